//! Promise: a bridge that is written for x86-64 says so on every other processor, in every output that its heap is missing from.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::support::attached::Ends;
use crate::support::compile::{self, Compiled};
use crate::support::room::{stderr, stdout};
use crate::support::{Room, bridge, is_installed, skip};

const REASON: &str = "this processor is not supported, only x86-64 is";

/// Whether this is such a processor, and has these programs.
fn is_another_with(programs: &[&str]) -> bool {
    if cfg!(target_arch = "x86_64") {
        skip("this processor has all bridges");
        return false;
    }
    let missing = programs.iter().find(|it| !is_installed(it));
    if let Some(program) = missing {
        skip(&format!("no {program}"));
    }
    missing.is_none()
}

/// Checks every output that lists missing heaps. `memory` is not one: it lists owners of memory.
fn assert_said_everywhere(room: &Room, missing: &str) {
    for command in [
        &["report", "x.allocsample"][..],
        &["report", "x.allocsample", "--format", "json"],
        &["leaks", "x.allocsample"],
        &["leaks", "x.allocsample", "--format", "json"],
    ] {
        let output = room.output(command);
        let said = stdout(&output) + &stderr(&output);
        assert!(said.contains(missing), "{command:?}: {missing}: {said}");
        assert!(said.contains(REASON), "{command:?}: {said}");
        // It would not sample it.
        let advice = "--runtime pypy` samples";
        assert!(!said.contains(advice), "{command:?}: {said}");
    }
}

fn run(room: &Room, options: &[&str], command: &[&str]) {
    let run = ["run", "-q", "--interval", "4K", "-o", "x.allocsample"];
    let output = room.output(&[&run[..], options, &["--"], command].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

fn attach_and_detach(room: &Room, mut command: Command) {
    let mut child = Ends(command.stdout(Stdio::piped()).spawn().expect("the program"));
    let out = child.0.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(out).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    let pid = child.0.id().to_string();
    for command in [
        &["attach", &*pid, "-o", "x.allocsample"][..],
        &["detach", &*pid],
    ] {
        let output = room.output(command);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
}

const PYPY: &str = "PyPy's heap is not sampled";
const OCAML: &str = "the OCaml heap is not sampled";
const WAITING: &str = "import time\nkept = [bytes(1000) for _ in range(10000)]\nprint('ready', flush=True)\ntime.sleep(3000)";

fn ocaml(name: &str, options: &[&str]) -> Compiled {
    Compiled::in_directory(|directory| compile::ocaml(name, options, &directory.join("work")))
}

#[test]
fn the_heap_of_an_ocaml_program_is_named_as_missing() {
    if !is_another_with(&["ocamlopt"]) {
        return;
    }
    let room = Room::new();
    run(
        &room,
        &[],
        &[&ocaml("known_sites", &["unix.cmxa"]).to_string_lossy(), "1"],
    );
    assert_said_everywhere(&room, OCAML);
}

#[test]
fn the_heap_of_a_running_ocaml_program_is_named_as_missing() {
    if !is_another_with(&["ocamlopt"]) {
        return;
    }
    let room = Room::new();
    let program = ocaml("attached", &[]);
    let mut command = Command::new(&*program);
    command.stdin(Stdio::piped());
    attach_and_detach(&room, command);
    assert_said_everywhere(&room, OCAML);
}

#[test]
fn the_heap_of_pypy_is_named_as_missing_whether_it_was_asked_for_or_not() {
    if !is_another_with(&["pypy3"]) {
        return;
    }
    let program = bridge::program("known_sites_pypy.py");
    for options in [&[][..], &["--runtime", "pypy"]] {
        let room = Room::new();
        run(&room, options, &["pypy3", &program.to_string_lossy(), "1"]);
        assert_said_everywhere(&room, PYPY);
    }
}

#[test]
fn the_heap_of_a_running_pypy_is_named_as_missing() {
    if !is_another_with(&["pypy3"]) {
        return;
    }
    let room = Room::new();
    let mut command = Command::new("pypy3");
    command.args(["-c", WAITING]);
    attach_and_detach(&room, command);
    assert_said_everywhere(&room, PYPY);
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
