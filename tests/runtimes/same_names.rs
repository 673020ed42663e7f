//! Promise: functions that have nothing but their name in common are told apart, so that one is not charged with the other's memory.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::profile::Profile;
use crate::support::python::interpreters;
use crate::support::room::{stderr, stdout};
use crate::support::{Room, bridge, truth};
use serde_json::Value;

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/same_names")
}

/// Records the program that lies in `directory` with these parts; what it prints.
#[track_caller]
fn record(room: &Room, profile: &str, directory: &Path, parts: &[&str]) -> String {
    let python = interpreters().pop().expect("a CPython");
    let program = directory.join("main.py");
    let (python, program) = (python.to_string_lossy(), program.to_string_lossy());
    let command = [&[&*python, "-B", &program], parts].concat();
    bridge::record(room, profile, &["--seed", "7"], &[], &command)
}

#[test]
fn each_has_its_own_memory_and_only_the_one_that_leaks_is_accused() {
    let room = Room::new();
    let printed = record(&room, "x.allocsample", &programs(), &[]);
    let profile = Profile::read(&room.path("x.allocsample"));
    for line in printed.lines() {
        let (part, bytes) = line.split_once(' ').expect("a part");
        let site = profile.site_in("handle", &format!("{part}/views.py"));
        let bytes: f64 = bytes.parse().expect("bytes");
        let z = truth::z(site.live_bytes, bytes, site.live_bytes_stderr);
        assert!(z.abs() < 4.0, "{part}: {bytes} are {site:?}, z {z}");
    }
    let accused = bridge::accused(&room, "x.allocsample");
    // By type, that of its small objects and that of the others.
    let is_kept = |it: &Value| {
        let file = it["file"].as_str();
        it["function"] == "handle" && file.is_some_and(|file| file.ends_with("/kept/views.py"))
    };
    assert!(
        !accused.is_empty() && accused.iter().all(is_kept),
        "{accused:?}"
    );
}

/// Each version of a program lies in a directory of its own, and which of its functions share their names may differ.
#[test]
fn versions_in_different_directories_are_compared_by_the_same_names() {
    let room = Room::new();
    for (release, parts) in [("1", &["kept"][..]), ("2", &[])] {
        let directory = room.path(release);
        let mut copy = Command::new("cp");
        copy.arg("-r").args([&programs(), &directory]);
        assert!(copy.status().expect("cp").success());
        record(&room, &format!("{release}.allocsample"), &directory, parts);
    }
    let output = room.output(&["diff", "1.allocsample", "2.allocsample", "--format", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let diff: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = diff["rows"].as_array().expect("rows").iter();
    let handles: Vec<&Value> = rows.filter(|row| row["name"] == "handle").collect();
    let row = |end: &str| {
        let is_it = |row: &&&Value| row["file"].as_str().is_some_and(|file| file.ends_with(end));
        let row = handles.iter().find(is_it);
        row.unwrap_or_else(|| panic!("no {end}: {handles:?}"))
    };
    assert_eq!(handles.len(), 2, "{handles:?}");
    assert_eq!(row("kept/views.py")["significant"], false);
    assert_eq!(row("cached/views.py")["before"], 0.0);
    // What people read tells them apart.
    let output = room.output(&["diff", "1.allocsample", "2.allocsample"]);
    let text = stdout(&output);
    assert!(text.contains("handle[cached/views.py] [python]"), "{text}");
}
