//! Promise: a profile says how much of the process's memory it accounts for.

mod support;

use std::ffi::OsStr;
use std::process::Command;

use serde_json::Value;
use support::python::interpreters;
use support::{Program, Room, command, is_installed, skip};

/// What the commands say of a program that holds 64 MiB.
struct Said {
    /// What the kernel counts, as the program saw it at its peak.
    anonymous_bytes: f64,
    run: String,
    report: String,
    leaks: String,
    coverage: Value,
}

fn run(how: &str) -> Said {
    let program = Program::compiled("unseen_memory.c");
    run_program(&[program.path().as_os_str(), how.as_ref()])
}

fn run_program(program: &[&OsStr]) -> Said {
    let room = Room::new();
    let profile = room.directory().join("it.allocsample");
    let ran = Command::new(command())
        .args(["run", "--output"])
        .arg(&profile)
        .arg("--")
        .args(program)
        .stdin(std::process::Stdio::null())
        .output()
        .expect("the command");
    let run = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{run}");
    let kib = String::from_utf8_lossy(&ran.stdout);
    let text = |arguments: &[&str]| {
        let said = Command::new(command())
            .args(arguments)
            .arg(&profile)
            .output();
        let said = said.expect("the command");
        assert!(said.status.success(), "{said:?}");
        String::from_utf8_lossy(&said.stdout).into_owned()
    };
    let json =
        |arguments: &[&str]| -> Value { serde_json::from_str(&text(arguments)).expect("JSON") };
    let coverage = json(&["report", "--format", "json"])["coverage"].clone();
    assert_eq!(json(&["leaks", "--format", "json"])["coverage"], coverage);
    Said {
        anonymous_bytes: kib.trim().parse::<f64>().expect("a figure") * 1024.0,
        report: text(&["report"]),
        leaks: text(&["leaks"]),
        run,
        coverage,
    }
}

/// A text is broken into lines where it is too long for one.
fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_profile_of_almost_nothing_says_so_in_every_output() {
    let said = run("mmap");
    let Said { coverage, .. } = &said;
    assert_eq!(coverage["low"], true, "{coverage}");
    assert!(coverage["share"].as_f64() < Some(0.1), "{coverage}");
    for text in [&said.run, &said.report, &said.leaks] {
        let text = in_one_line(text);
        assert!(
            text.contains("of anonymous memory; 64.0 MiB in mappings without a name"),
            "{text}"
        );
        assert!(
            text.contains("is not in this profile: it comes from another allocator"),
            "{text}"
        );
        assert!(!text.contains("--interval 4K"), "{text}");
    }
    assert!(!said.leaks.contains("0 leaks"), "{}", said.leaks);
    assert!(
        said.leaks.contains("no verdict for the process"),
        "{}",
        said.leaks
    );
}

#[test]
fn a_program_on_malloc_is_accounted_for() {
    let said = run("malloc");
    let Said { coverage, .. } = &said;
    assert_eq!(coverage["low"], false, "{coverage}");
    assert!(coverage["share"].as_f64() > Some(0.9), "{coverage}");
    for text in [&said.run, &said.report, &said.leaks] {
        assert!(text.contains("coverage"), "{text}");
        assert!(!text.contains("is not in this profile"), "{text}");
    }
}

#[test]
fn the_anonymous_memory_is_what_the_kernel_counts_at_the_same_moment() {
    for how in ["mmap", "malloc"] {
        let said = run(how);
        let read = said.coverage["anonymous_bytes"].as_f64().expect("a figure");
        let off = (read - said.anonymous_bytes).abs() / said.anonymous_bytes;
        assert!(off < 0.05, "{how}: {read} is not {}", said.anonymous_bytes);
    }
}

#[test]
fn a_runtime_without_its_bridge_is_named_in_every_output() {
    if !is_installed("node") {
        return skip("no Node.js (Debian: nodejs)");
    }
    let room = Room::new();
    let profile = room.directory().join("it.allocsample");
    let ran = Command::new(command())
        .args(["run", "--runtime", "none", "--output"])
        .arg(&profile)
        .args(["--", "node", "-e", "console.log(1)"])
        .output()
        .expect("the command");
    let said = |arguments: &[&str]| {
        let said = Command::new(command())
            .args(arguments)
            .arg(&profile)
            .output();
        String::from_utf8_lossy(&said.expect("the command").stdout).into_owned()
    };
    for text in [
        String::from_utf8_lossy(&ran.stderr).into_owned(),
        said(&["report"]),
        said(&["report", "--format", "json"]),
        said(&["leaks"]),
        said(&["leaks", "--format", "json"]),
    ] {
        let text = in_one_line(&text);
        assert!(
            text.contains(
                "the JavaScript heap is not sampled: its bridge did not join (--runtime none)"
            ),
            "{text}"
        );
    }
}

/// Its arenas are its own, and its samples are malloc's blocks. It says its memory as the C program does.
#[test]
fn cpythons_arenas_are_accounted_for_in_every_version() {
    const HOLDS: &str = "
import time
kept = [str(number) + 'x' * 200 for number in range(150_000)]
time.sleep(0.5)
print([line.split()[1] for line in open('/proc/self/smaps_rollup') if line.startswith('Anonymous:')][0])
";
    for python in interpreters() {
        let said = run_program(&[python.as_os_str(), "-c".as_ref(), HOLDS.as_ref()]);
        let share = said.coverage["share"].as_f64();
        assert!(share > Some(0.7), "{}: {}", python.display(), said.coverage);
        assert!(!said.run.contains("not in this profile"), "{}", said.run);
    }
}
