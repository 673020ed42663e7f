//! Promise: the agent of a running process can be asked, stopped, started and told another interval, and estimates stay
//! right through all of it.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use crate::support::profile::Profile;
use crate::support::room::{assert_error, stderr, stdout};
use crate::support::running::{BYTES, Running};
use crate::support::{Room, skip, truth};

#[track_caller]
fn assert_is(profile: &Profile, function: &str, bytes: f64) {
    let functions = profile.report["functions"].as_array().expect("functions");
    let row = functions
        .iter()
        .find(|row| row["function"] == function)
        .unwrap_or_else(|| panic!("no {function}"));
    let figure = |name: &str| row[name].as_f64().expect("a figure");
    let (found, error) = (
        figure("total_allocated_bytes"),
        figure("total_allocated_bytes_stderr"),
    );
    let z = truth::z(found, bytes, error);
    assert!(z.abs() < 4.0, "{function}: {found} for {bytes}, z {z:+.1}");
}

fn samples_in(profile: &Profile, function: &str) -> u64 {
    let functions = profile.report["functions"].as_array().expect("functions");
    let row = functions.iter().find(|row| row["function"] == function);
    row.map_or(0, |row| row["samples"].as_u64().expect("a number"))
}

#[test]
fn each_phase_is_estimated_by_its_own_interval_and_none_while_stopped() {
    let mut running = Running::start(&["--interval", "256K"]);
    running.phase();
    // The program waits; what is asked is done when it next allocates.
    running.ctl(&["interval", "16K"]);
    running.phase();
    running.ctl(&["stop"]);
    running.phase();
    let status = running.ctl(&["status"]);
    for line in [
        "one sample per 256 KiB after",
        "one sample per 16.0 KiB after",
        "stopped after",
    ] {
        assert!(status.contains(line), "{status}");
    }
    running.ctl(&["start"]);
    running.phase();
    let (_room, profile) = running.end();
    let bytes = f64::from(BYTES);
    for phase in ["phase_first", "phase_dense", "phase_again"] {
        assert_is(&profile, phase, bytes);
    }
    let (first, dense) = (
        samples_in(&profile, "phase_first"),
        samples_in(&profile, "phase_dense"),
    );
    // Sixteen times as many; 5 standard errors of the smaller count.
    assert!(dense > 12 * first && dense < 22 * first, "{first} {dense}");
    // A thread looks at least once a mebibyte: 64 samples at 16 KiB, and luck.
    assert!(samples_in(&profile, "phase_stopped") < 120);
    let z = profile.report["audit"]["z"].as_f64().expect("a deviation");
    assert!(z.abs() < 4.0, "{z}");
    // It was sampled while sampling was on, and freed while it was off.
    let kept = profile.site("keep_large");
    assert_eq!((kept.samples, kept.live_bytes), (1, 0.0));
}

#[test]
fn what_was_asked_before_is_not_forgotten_for_something_else() {
    let mut running = Running::start(&["--interval", "256K"]);
    running.phase();
    // The program waits. Of two intervals the second is what is wanted.
    running.ctl(&["interval", "4K"]);
    running.ctl(&["interval", "16K"]);
    let output = running.room.output(&["ctl", "x.allocsample", "rotate"]);
    assert_error(&output, 1, "an earlier request is still pending");
    running.phase();
    running.ctl(&["rotate"]);
    running.phase();
    running.phase();
    let (room, _) = running.end();
    let part = Profile::read(&room.path("x.part-1.allocsample"));
    assert_is(&part, "phase_dense", f64::from(BYTES));
    let samples = samples_in(&part, "phase_dense") as f64;
    // One in 16 KiB: five standard errors and the first mebibyte.
    let due = f64::from(BYTES) / 16_384.0;
    assert!((samples - due).abs() < 5.0 * due.sqrt() + 64.0, "{samples}");
}

#[test]
fn a_process_that_was_started_without_samples_waits_for_start() {
    let mut running = Running::start(&["--interval", "16K", "--start", "off"]);
    running.phase();
    assert!(running.ctl(&["status"]).contains("stopped after"));
    running.ctl(&["start"]);
    running.phase();
    running.phase();
    running.phase();
    let (_room, profile) = running.end();
    assert_eq!(samples_in(&profile, "phase_first"), 0);
    // It may be a mebibyte late.
    let bytes = f64::from(BYTES);
    assert_is(&profile, "phase_stopped", bytes);
    assert_is(&profile, "phase_again", bytes);
    let z = profile.report["audit"]["z"].as_f64().expect("a deviation");
    assert!(z.abs() < 4.0, "{z}");
}

#[test]
fn a_program_that_waits_is_recorded_meanwhile() {
    let mut running = Running::start(&["--interval", "16K"]);
    running.phase();
    std::thread::sleep(Duration::from_millis(1100));
    let status = running.ctl(&["status"]);
    assert!(status.contains(" s recorded"), "{status}");
    (0..3).for_each(|_| running.phase());
    running.end();
}

#[test]
fn a_snapshot_is_a_profile_of_its_own() {
    let mut running = Running::start(&["--interval", "16K"]);
    running.phase();
    let said = running.ctl(&["snapshot", "-o", "first.allocsample"]);
    assert!(said.starts_with("first.allocsample: "), "{said}");
    running.phase();
    running.ctl(&["snapshot"]);
    let first = Profile::read(&running.room.path("first.allocsample"));
    let second = Profile::read(&running.room.path("x.snapshot.1.allocsample"));
    running.phase();
    running.phase();
    let bytes = f64::from(BYTES);
    assert_is(&first, "phase_first", bytes);
    assert_eq!(samples_in(&first, "phase_dense"), 0);
    assert_is(&second, "phase_dense", bytes);
    assert!(second.site("keep_large").live_bytes > 0.0, "alive then");
    let (room, whole) = running.end();
    assert_is(&whole, "phase_again", bytes);
    let names = room.names();
    assert!(
        names.iter().all(|name| !name.ends_with(".ring")),
        "{names:?}"
    );
}

#[test]
fn a_ring_that_was_removed_is_told_and_costs_nothing_else() {
    let mut running = Running::start(&["--interval", "64K"]);
    running.phase();
    std::fs::remove_file(running.room.path("x.allocsample.ring")).expect("a ring");
    let pid = running.pid();
    for what in ["status", "stop"] {
        let output = running.room.output(&["ctl", &pid, what]);
        assert_error(
            &output,
            1,
            "x.allocsample was removed, so commands cannot reach it",
        );
    }
    for _ in 0..3 {
        running.phase();
    }
    let (_room, profile) = running.end();
    assert!(profile.is_complete());
    assert_is(&profile, "phase_first", f64::from(BYTES));
    assert_is(&profile, "phase_again", f64::from(BYTES));
}

/// The request of a process that has no ring yet, on its standard error.
#[track_caller]
fn asked_before_first_sample(running: &Running, pid: &str, arguments: &[&str]) -> String {
    let arguments = [&["ctl", pid], arguments].concat();
    let output = running.room.output(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    stderr(&output)
}

#[test]
fn an_idle_process_takes_an_interval_before_its_first_sample() {
    let mut running = Running::start(&["--interval", "1T"]);
    let pid = running.waiting_pid();
    let status = running.room.output(&["ctl", &pid, "status"]);
    assert!(stdout(&status).contains("no sample yet"), "{status:?}");
    let said = asked_before_first_sample(&running, &pid, &["interval", "16K"]);
    assert!(said.contains("when the program next allocates"), "{said}");
    running.phase();
    let status = running.ctl(&["status"]);
    assert!(status.contains("one sample per 16.0 KiB"), "{status}");
    let rest = format!("/tmp/.allocsample-request-{pid}");
    assert!(!std::path::Path::new(&rest).exists(), "{rest}");
    for _ in 0..3 {
        running.phase();
    }
    let (_room, profile) = running.end();
    // A mebibyte of the first phase may go by before the thread looks.
    assert!(samples_in(&profile, "phase_first") > 20_000);
    assert_is(&profile, "phase_dense", f64::from(BYTES));
}

#[test]
fn a_process_that_has_allocated_without_a_sample_takes_what_is_asked() {
    let mut running = Running::start(&["--interval", "1T"]);
    let pid = running.waiting_pid();
    running.phase();
    asked_before_first_sample(&running, &pid, &["interval", "4K"]);
    // Of two intervals the second is what is wanted, and nothing else takes its place.
    asked_before_first_sample(&running, &pid, &["interval", "16K"]);
    let output = running.room.output(&["ctl", &pid, "rotate"]);
    assert_error(&output, 1, "an earlier request is still pending");
    let output = running.room.output(&["ctl", &pid, "snapshot"]);
    assert_error(&output, 1, "has taken no sample yet");
    for _ in 0..3 {
        running.phase();
    }
    let (_room, profile) = running.end();
    assert_eq!(samples_in(&profile, "phase_first"), 0);
    let dense = samples_in(&profile, "phase_dense") as f64;
    let due = f64::from(BYTES) / 16_384.0;
    assert!((dense - due).abs() < 5.0 * due.sqrt() + 64.0, "{dense}");
}

#[test]
fn a_stopped_process_is_said_to_be_stopped_and_obeys_when_it_continues() {
    let signal = |pid: &str, signal| {
        let pid = pid.parse().expect("a pid");
        // SAFETY: a process that this test has started and not waited for.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    };
    let mut running = Running::start(&["--interval", "1T"]);
    let pid = running.waiting_pid();
    signal(&pid, libc::SIGSTOP);
    let said = asked_before_first_sample(&running, &pid, &["interval", "16K"]);
    assert!(said.contains("is stopped (SIGSTOP"), "{said}");
    signal(&pid, libc::SIGCONT);
    running.phase();
    signal(&pid, libc::SIGSTOP);
    let said = asked_before_first_sample(&running, &pid, &["interval", "64K"]);
    assert!(said.contains("is stopped (SIGSTOP"), "{said}");
    signal(&pid, libc::SIGCONT);
    for _ in 0..3 {
        running.phase();
    }
    let (_room, profile) = running.end();
    let again = samples_in(&profile, "phase_again") as f64;
    let due = f64::from(BYTES) / 65_536.0;
    assert!((again - due).abs() < 5.0 * due.sqrt() + 16.0, "{again}");
}

/// The bytes that a status calls alive, and those that it calls allocated, at an interval of 1.
fn live_and_allocated(status: &str) -> (f64, f64) {
    let line = status.lines().find_map(|line| line.strip_prefix("live "));
    let words: Vec<&str> = line.expect("a line").split_whitespace().collect();
    let bytes = |at: usize| -> f64 {
        let unit = match words[at + 1] {
            "B" => 1.0,
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            other => panic!("{other}: {status}"),
        };
        words[at].parse::<f64>().expect("a number") * unit
    };
    (bytes(0), bytes(3))
}

#[test]
fn no_status_calls_more_bytes_alive_than_were_allocated() {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        return skip("no CPython");
    }
    let room = Room::new();
    // Its heap tells its exact bytes at collections, of which there are none here.
    let script = "import gc; gc.disable(); x = [str(i) * 10 for i in range(50000)]; print('done', flush=True); __import__('sys').stdin.read()";
    let run = [
        "run",
        "-q",
        "-o",
        "x.allocsample",
        "--interval",
        "1",
        "--",
        "/usr/bin/python3",
        "-c",
        script,
    ];
    let mut child = room
        .command(&run)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command");
    let mut line = String::new();
    let output = child.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut line).expect("a line");
    let status = stdout(&room.output(&["ctl", "x.allocsample", "status"]));
    let (live, allocated) = live_and_allocated(&status);
    // As far as they are printed.
    assert!(live > 0.0 && live < 1.02 * allocated, "{status}");
    drop(child.stdin.take());
    child.wait().expect("the program");
}

#[test]
fn mistakes_get_a_line_and_a_status() {
    let room = Room::new();
    room.record("x.allocsample", &["--interval", "16K"], &[]);
    let ctl = |arguments: &[&str]| room.output(&[&["ctl"], arguments].concat());
    assert_error(&ctl(&["x.allocsample", "stop"]), 1, "its process has ended");
    assert_error(
        &ctl(&["x.allocsample", "interval", "0"]),
        2,
        "expected a number of bytes",
    );
    assert_error(&ctl(&["none.allocsample", "status"]), 1, "none.allocsample");
    assert_error(&ctl(&["4194304", "status"]), 1, "there is no such process");
    let pid = std::process::id().to_string();
    assert_error(&ctl(&[&pid, "status"]), 1, "writes no profile");
    std::fs::write(room.path("there"), "").expect("a file");
    assert_error(
        &ctl(&["x.allocsample", "snapshot", "-o", "there"]),
        1,
        "already exists",
    );
}
