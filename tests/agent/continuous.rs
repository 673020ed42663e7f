//! Promise: a recording that goes on in other files loses nothing at the border, each of its files can be read by itself,
//! and together they are the whole.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::profile::Profile;
use crate::support::room::{assert_error, stderr, stdout};
use crate::support::steps::{
    BLOCKS, CARRIED_IDS, LIVE, LIVE_IDS, Steps, TAKEN, alive_after, assert_sound, join, parts,
    query,
};
use crate::support::{Program, Room, Run, is_installed, skip};

#[test]
fn each_file_stands_by_itself_and_together_they_are_the_whole() {
    const STEPS: u64 = 24;
    let mut steps = Steps::start(&["--rotate-size", "64K"], &[]);
    for _ in 0..STEPS {
        steps.step();
    }
    let room = steps.end();
    let mut files = parts(&room, "xsteps");
    assert!(files.len() >= 3, "{files:?}");
    files.push(room.path("xsteps.allocsample"));
    let mut taken = 0;
    for (before, after) in files.iter().zip(&files[1..]) {
        // What is alive at the end of one is what the next one begins with.
        assert_eq!(query(before, LIVE_IDS), query(after, CARRIED_IDS));
        assert_sound(before);
        taken += query(before, TAKEN);
    }
    let last = files.last().expect("a file");
    assert_sound(last);
    assert_eq!(taken + query(last, TAKEN), STEPS * BLOCKS);
    assert_eq!(query(last, LIVE), alive_after(STEPS));
    // Their functions have names, in each.
    for file in &files {
        let site = Profile::read(file).site("step");
        assert!(site.live_bytes > 0.0, "{}", file.display());
    }
    let all = join(&room, "xsteps.allocsample");
    assert_sound(&all);
    assert_eq!(query(&all, TAKEN), STEPS * BLOCKS);
    assert_eq!(query(&all, LIVE), alive_after(STEPS));
    // Two in the middle are a profile as well.
    let two = [&files[1], &files[2]].map(|path| path.to_str().expect("a name"));
    let output = room.output(&["join", two[0], two[1], "-o", "two.allocsample"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let two = room.path("two.allocsample");
    assert_sound(&two);
    assert_eq!(
        query(&two, TAKEN),
        query(&files[1], TAKEN) + query(&files[2], TAKEN)
    );
    assert_eq!(query(&two, LIVE), query(&files[2], LIVE));
}

#[test]
fn sigkill_at_any_moment_of_a_rotation_loses_nothing() {
    for done in 1..=12 {
        let mut steps = Steps::start(&["--rotate-size", "64K"], &[]);
        for _ in 0..done {
            steps.step();
        }
        // The drain thread is some way behind.
        let room = steps.kill();
        let current = room.path("xsteps.allocsample");
        assert_eq!(query(&current, LIVE), alive_after(done), "{done}");
        // Also the stacks of those that were in the ring, which tell only what is new after the file before.
        let site = Profile::read(&current).site("step");
        assert_eq!(site.samples, query(&current, TAKEN), "{done}");
        let all = join(&room, "xsteps.allocsample");
        assert_eq!(query(&all, TAKEN), done * BLOCKS, "{done}");
        assert_eq!(Profile::read(&all).site("step").samples, done * BLOCKS);
        assert_eq!(query(&all, LIVE), alive_after(done), "{done}");
        let profile = Profile::read(&all);
        assert_eq!(profile.number("lost_samples"), 0.0);
        assert!(!profile.is_complete());
    }
}

#[test]
fn only_as_many_files_stay_as_are_wanted_and_the_index_names_them() {
    const STEPS: u64 = 12;
    let mut steps = Steps::start(&["--rotate-size", "64K", "--keep", "2"], &[]);
    for _ in 0..STEPS {
        steps.step();
    }
    let room = steps.end();
    let files = parts(&room, "xsteps");
    assert_eq!(files.len(), 2, "{files:?}");
    let index = fs::read_to_string(room.path("xsteps.allocsample.index")).expect("an index");
    let named: Vec<&str> = index
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split('\t').nth(4))
        .collect();
    let mut there: Vec<&str> = files
        .iter()
        .filter_map(|path| path.file_name()?.to_str())
        .collect();
    there.push("xsteps.allocsample");
    assert_eq!(named, there);
    // What is alive does not depend on what was kept.
    let last = room.path("xsteps.allocsample");
    assert_eq!(query(&last, LIVE), alive_after(STEPS));
    let all = join(&room, "xsteps.allocsample");
    assert_eq!(query(&all, LIVE), alive_after(STEPS));
    assert_sound(&all);
}

#[test]
fn a_forked_child_has_files_of_its_own() {
    const STEPS: u64 = 6;
    let mut steps = Steps::start(&["--rotate-size", "64K"], &["4"]);
    for _ in 0..STEPS {
        steps.step();
    }
    let room = steps.end();
    let mut processes = Vec::new();
    for name in room.names() {
        let Some(stem) = name.strip_suffix(".allocsample") else {
            continue;
        };
        if stem.contains(".part-") {
            continue;
        }
        let all = room.path(&format!("all-{stem}.allocsample"));
        let output = room.output(&["join", &name, "-o", all.to_str().expect("a name")]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(!parts(&room, stem).is_empty(), "{stem}");
        processes.push(query(&all, TAKEN));
        assert_sound(&all);
    }
    processes.sort_unstable();
    assert_eq!(processes, [BLOCKS, STEPS * BLOCKS]);
}

#[test]
fn a_running_process_can_be_told_to_flush_to_rotate_and_to_begin_anew() {
    let mut steps = Steps::start(&[], &[]);
    steps.step();
    assert_eq!(steps.ctl("flush"), "flushed\n");
    let without_ring = steps.room.path("copy.allocsample");
    fs::copy(steps.current(), &without_ring).expect("a copy");
    assert_eq!(query(&without_ring, TAKEN), BLOCKS);
    let told = steps.ctl("rotate");
    let part = steps.room.path("xsteps.part-1.allocsample");
    assert_eq!(told, "xsteps.part-1.allocsample\n");
    assert_eq!(query(&part, TAKEN), BLOCKS);
    assert_sound(&part);
    let profile = Profile::read(&part);
    assert!(profile.is_complete());
    steps.step();
    assert_eq!(query(&steps.current(), TAKEN), BLOCKS);
    assert_eq!(query(&steps.current(), LIVE), alive_after(2));
    assert_eq!(steps.ctl("reset"), "totals reset\n");
    assert_eq!(query(&steps.current(), TAKEN), 0);
    assert_eq!(query(&steps.current(), LIVE), alive_after(2));
    steps.step();
    let snapshot = steps.ctl("snapshot");
    assert!(snapshot.contains("samples"), "{snapshot}");
    let room = steps.end();
    let last = room.path("xsteps.allocsample");
    assert_eq!(query(&last, TAKEN), BLOCKS);
    assert_eq!(query(&last, LIVE), alive_after(3));
    assert_sound(&last);
    // What a reset forgets is not there, whatever is joined.
    assert_eq!(parts(&room, "xsteps"), [part]);
    assert_eq!(query(&join(&room, "xsteps.allocsample"), TAKEN), 2 * BLOCKS);
}

#[test]
fn a_signal_writes_a_snapshot() {
    let mut steps = Steps::start(&["--snapshot-on", "usr2"], &[]);
    steps.step();
    let pid = steps.pid();
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGUSR2).expect("the program");
    let snapshot = steps.room.path("xsteps.snapshot-1.allocsample");
    // The drain thread takes a moment, however busy the machine is; the program goes on.
    while !snapshot.exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(query(&snapshot, TAKEN), BLOCKS);
    assert_eq!(query(&snapshot, LIVE), alive_after(1));
    steps.step();
    let room = steps.end();
    assert_eq!(query(&room.path("xsteps.allocsample"), TAKEN), 2 * BLOCKS);
}

#[test]
fn a_program_keeps_its_own_use_of_the_signal() {
    // The program's handler ends the process with status 3, with us as without.
    let agent = crate::support::Agent::at_interval(4096).with("ALLOCSAMPLE_SIGNAL", "USR1");
    let script = "trap 'exit 3' USR1; kill -USR1 $$; exit 4";
    let outcome = Run::of("sh").args(&["-c", script]).observed(&agent);
    assert_eq!(outcome.status.code(), Some(3));
    // One that ignores it, since before it started, goes on ignoring it.
    let script = "trap '' USR1; exec sh -c 'kill -USR1 $$; exit 4'";
    let outcome = Run::of("sh").args(&["-c", script]).observed(&agent);
    assert_eq!(outcome.status.code(), Some(4));
}

#[test]
fn requests_of_many_at_once_are_all_heard() {
    let mut steps = Steps::start(&[], &[]);
    steps.step();
    std::thread::scope(|scope| {
        let steps = &steps;
        let asked: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| steps.ctl("rotate")))
            .collect();
        for thread in asked {
            let told = thread.join().expect("an answer");
            assert!(told.contains(".part-"), "{told}");
        }
    });
    steps.step();
    let room = steps.end();
    assert_eq!(parts(&room, "xsteps").len(), 8);
    let all = join(&room, "xsteps.allocsample");
    assert_eq!(query(&all, TAKEN), 2 * BLOCKS);
    assert_sound(&all);
}

#[test]
fn what_cannot_be_joined_is_named() {
    let room = Room::new();
    fs::write(room.path("a.allocsample"), "no profile").expect("a file");
    assert_error(&room.output(&["join", "a.allocsample"]), 1, "a.allocsample");
    let missing = "none.allocsample: No such file or directory";
    assert_error(&room.output(&["join", "none.allocsample"]), 1, missing);
    let several = ["join", "none.allocsample", "a.allocsample"];
    assert_error(&room.output(&several), 1, missing);
    assert_error(&room.output(&["join"]), 2, "PID|FILE");
    for name in ["b.allocsample", "c.allocsample"] {
        let recorded = room.output(&["run", "-q", "-o", name, "--", "true"]);
        assert!(recorded.status.success(), "{recorded:?}");
    }
    let strangers = ["join", "b.allocsample", "c.allocsample"];
    assert_error(&room.output(&strangers), 1, "not of one recording");
    let twice = ["join", "b.allocsample", "b.allocsample"];
    assert_error(&room.output(&twice), 1, "b.allocsample: begins before");
    let own = [
        "diff",
        "b.allocsample",
        "c.allocsample",
        "--to",
        "html",
        "-o",
    ];
    for name in ["b.allocsample", "c.allocsample"] {
        let output = room.output(&[&own[..], &[name]].concat());
        assert_error(&output, 2, "this is the profile itself");
    }
    let names = room.names();
    assert!(
        !names.iter().any(|name| name.contains("joined")),
        "{names:?}"
    );
}

/// A program that allocates next to nothing under samples of time; its time by its own clocks, and what `run` says.
fn busy(options: &[&str]) -> (Room, f64, String) {
    let room = Room::new();
    room.add(&Program::compiled("busy_functions.c"), "busy");
    let time = [
        "--time-hz",
        "200",
        "--interval",
        "1T",
        "-o",
        "x.allocsample",
    ];
    let command = ["--", "./busy", "2", "2000"];
    let output = room.output(&[&["run"], &time[..], options, &command[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let truth = stdout(&output);
    let all_ns = truth.lines().find_map(|line| line.strip_prefix("all "));
    let all_ns: f64 = all_ns.expect("a line").parse().expect("nanoseconds");
    (room, all_ns / 1e9, stderr(&output))
}

#[track_caller]
fn recorded_s(path: &Path) -> f64 {
    let report = Profile::read(path).report;
    report["time"]["recorded_s"].as_f64().expect("time")
}

/// No sample starts the thread that goes on in another file.
#[test]
fn ticks_alone_go_on_in_other_files() {
    let (room, truth_s, said) = busy(&["--rotate-every", "1s"]);
    // The summary that `run` prints.
    assert!(said.contains(" of CPU time in "), "{said}");
    let files = parts(&room, "x");
    assert!(!files.is_empty());
    let last = room.path("x.allocsample");
    let sum_s: f64 = files
        .iter()
        .chain([&last])
        .map(|path| recorded_s(path))
        .sum();
    let joined_s = recorded_s(&join(&room, "x.allocsample"));
    assert!((sum_s - joined_s).abs() < 1e-6, "{sum_s} {joined_s}");
    // Both threads' last ticks, and what else they did.
    assert!((joined_s - truth_s).abs() < 0.2, "{joined_s} {truth_s}");
}

#[test]
fn of_a_window_the_last_ticks_stay() {
    // A second, and at most half of one more, of two at least.
    let (room, truth_s, _) = busy(&["--window", "1s"]);
    let joined_s = recorded_s(&join(&room, "x.allocsample"));
    assert!(
        0.0 < joined_s && joined_s < 0.9 * truth_s,
        "{joined_s} {truth_s}"
    );
}

/// In the order in which the disk must have them if the machine loses its power in between.
#[test]
fn a_file_is_on_the_disk_before_it_gets_its_name() {
    if !is_installed("strace") {
        return skip("strace is not installed");
    }
    let room = Room::new();
    room.add(&Program::compiled("steps.c"), "steps");
    let mut command = Command::new("strace");
    command
        .args(["-f", "-y", "-qq", "-o", "calls"])
        .args([
            "-e",
            "trace=fsync,fdatasync,link,linkat,rename,renameat,renameat2",
        ])
        .arg("-E")
        .arg(format!("LD_PRELOAD={}", room.agent().display()))
        .args(["-E", "ALLOCSAMPLE_OUTPUT=x.allocsample"])
        .args(["-E", "ALLOCSAMPLE_INTERVAL=1"])
        .args(["-E", "ALLOCSAMPLE_ROTATE_SIZE=64K"])
        .arg("./steps")
        .current_dir(room.directory())
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let mut child = command.spawn().expect("strace");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(&[b'\n'; 6]).expect("the program listens");
    drop(input);
    assert!(child.wait().expect("the program").success());
    let directory = room.directory().to_str().expect("a path");
    let calls = fs::read_to_string(room.path("calls")).expect("what strace saw");
    let calls: Vec<&str> = calls.lines().collect();
    let parts = parts(&room, "x");
    assert!(!parts.is_empty());
    let position = |from: usize, what: &[&str]| {
        let found = calls[from..]
            .iter()
            .position(|call| what.iter().all(|part| call.contains(part)));
        from + found.unwrap_or_else(|| panic!("no {what:?} from {from} on in {calls:#?}"))
    };
    let file = format!("<{directory}/x.allocsample>");
    let next = format!("<{directory}/x.allocsample.next>");
    let mut from = 0;
    for part in &parts {
        let name = part
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name");
        let finished = position(from, &["fdatasync(", &file]);
        let ready = position(finished, &["fdatasync(", &next]);
        let linked = position(from, &["link", name]);
        let renamed = position(from, &["rename", "x.allocsample.next\", "]);
        let named = position(renamed, &["fsync(", &format!("<{directory}>")]);
        let order = [finished, ready, linked, renamed, named];
        assert!(order.is_sorted(), "{order:?} in {calls:#?}");
        from = named;
    }
}
