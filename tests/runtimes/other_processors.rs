//! Promise: on other processors than x86-64, `--embedded` says that it can redirect no function.

use std::fs;

use crate::support::room::{stderr, stdout};
use crate::support::{Room, is_installed, skip};

/// Whether this is such a processor, and has these programs.
fn is_another_with(programs: &[&str]) -> bool {
    if cfg!(target_arch = "x86_64") {
        skip("this processor has everything");
        return false;
    }
    let missing = programs.iter().find(|it| !is_installed(it));
    if let Some(program) = missing {
        skip(&format!("no {program}"));
    }
    missing.is_none()
}

fn run(room: &Room, options: &[&str], command: &[&str]) {
    let run = ["run", "-q", "--interval", "4K", "-o", "x.allocsample"];
    let output = room.output(&[&run[..], options, &["--"], command].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn embedded_allocators_are_said_not_to_be_redirected() {
    if !is_another_with(&["python3"]) {
        return;
    }
    let room = Room::new();
    for (options, is_asked_for) in [(&["--embedded"][..], true), (&[], false)] {
        run(&room, options, &["python3", "-c", "pass"]);
        let report = stdout(&room.output(&["report", "x.allocsample"]));
        let is_said = report.contains("no function can be redirected on this processor");
        assert_eq!(is_said, is_asked_for, "{report}");
        fs::remove_file(room.path("x.allocsample")).expect("the profile");
    }
}
