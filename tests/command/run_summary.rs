//! Promise: the summary of `run` is about the process that did the work, and the name that was asked for is that of its profile.

use std::fs;

use crate::support::room::stderr;
use crate::support::{Program, Room};
use serde_json::Value;

/// leaky.c allocates 8 MB.
fn room() -> Room {
    let room = Room::new();
    room.add(&Program::compiled("leaky.c"), "leaky");
    room
}

fn summary_of(room: &Room, script: &str) -> String {
    let _from_before = fs::remove_dir_all(room.path("x.processes"));
    let _from_before = fs::remove_file(room.path("x.allocsample"));
    let run = ["run", "--interval", "4K", "-o", "x.allocsample", "--"];
    stderr(&room.output(&[&run[..], &["sh", "-c", script]].concat()))
}

fn report(room: &Room, name: &str) -> Value {
    let output = room.output(&["report", "--format", "json", name]);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn the_summary_is_about_the_process_that_did_the_work() {
    let room = room();
    for script in [
        // As the only child, as the first of several and as the last, in place of the shell, and below another shell.
        "./leaky; true",
        "./leaky; ls; ls; true",
        "ls; ls; ./leaky; true",
        "ls; exec ./leaky",
        "sh -c 'ls; ./leaky; true'; true",
    ] {
        let said = summary_of(&room, script);
        let is_child = !script.contains("exec");
        assert_eq!(
            said.contains(" allocated most") || said.contains("largest profile of its children"),
            is_child,
            "{script}: {said}"
        );
        assert!(said.contains("./leaky  pid "), "{script}: {said}");
        assert!(
            said.contains("next: allocsample report x.allocsample\n"),
            "{script}: {said}"
        );
        let command = &report(&room, "x.allocsample")["command"];
        assert_eq!(command[0], "./leaky", "{script}: {said}");
    }
}

#[test]
fn a_program_that_allocates_about_as_much_as_its_child_keeps_the_name() {
    let room = room();
    room.add(&Program::compiled("allocates_and_runs.c"), "allocates");
    let said = summary_of(&room, "exec ./allocates 6000000 ./leaky");
    assert!(said.contains("the profile is x.allocsample"), "{said}");
    let command = &report(&room, "x.allocsample")["command"];
    assert_eq!(command[0], "./allocates", "{said}");
    let room = self::room();
    room.add(&Program::compiled("allocates_and_runs.c"), "allocates");
    let said = summary_of(&room, "exec ./allocates 2000000 ./leaky");
    assert!(said.contains("leaky (pid "), "{said}");
    let command = &report(&room, "x.allocsample")["command"];
    assert_eq!(command[0], "./leaky", "{said}");
    // It is not small, so its profile is beside the other one.
    let others = room.names().into_iter();
    let mut others = others.filter(|name| name.starts_with("x.") && name != "x.allocsample");
    let other = others.find(|name| name.ends_with(".allocsample"));
    let command = &report(&room, &other.expect("its profile"))["command"];
    assert_eq!(command[0], "./allocates");
}
