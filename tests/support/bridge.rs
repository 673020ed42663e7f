//! What is promised of every bridge to a language runtime.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use super::attached::Attached;
use super::profile::{Profile, Site};
use super::room::{stderr, stdout};
use super::{Outcome, Program, Room, truth};

/// A program of the language.
pub fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(name)
}

/// Each site of a known_sites, which has printed the truth, must be within 4 of its reported standard errors: once in
/// 16,000 figures that is luck, and seeds are fixed.
#[track_caller]
pub fn assert_near_truth(profile: &Profile, printed: &[u8], sites: usize) {
    let known = truth::printed(printed);
    assert_eq!(known.len(), sites);
    let deviations = truth::deviations(profile, &known, 4.0, |_| 0.0);
    assert!(deviations.is_empty(), "{deviations:#?}");
    for name in known.keys() {
        let samples = profile.site(name).samples;
        assert!(samples > 10, "{name}: {samples} samples");
    }
}

/// The estimate of all bytes must be within 4 standard errors of what was counted.
#[track_caller]
pub fn assert_audit(profile: &Profile) {
    let z = profile.report["audit"]["z"].as_f64().expect("an audit");
    assert!(z.abs() < 4.0, "audit {z}");
}

/// The profile of a known_sites, all of whose figures are right.
#[track_caller]
pub fn profile_near_truth(outcome: &Outcome, sites: usize) -> Profile {
    let profile = outcome.profile();
    assert_near_truth(&profile, outcome.text().as_bytes(), sites);
    assert_audit(&profile);
    profile
}

/// What the report says of a heap.
#[track_caller]
pub fn heap<'a>(profile: &'a Profile, name: &str) -> &'a Value {
    let heaps = profile.report["heaps"].as_array().expect("heaps");
    let heap = heaps.iter().find(|heap| heap["name"] == name);
    heap.unwrap_or_else(|| panic!("no heap {name} in {heaps:?}"))
}

/// Whether the report has a heap.
pub fn has_heap(profile: &Profile, name: &str) -> bool {
    let heaps = profile.report["heaps"].as_array().expect("heaps");
    heaps.iter().any(|heap| heap["name"] == name)
}

/// The line that a function is charged for must be the one of its file that holds `text`.
#[track_caller]
pub fn assert_line(profile: &Profile, function: &str, file: &Path, text: &str) {
    let content = std::fs::read_to_string(file).expect("the program");
    let wanted = 1 + content
        .lines()
        .position(|line| line.contains(text))
        .expect("the line");
    let lines = profile.report["lines"].as_array().expect("lines");
    let line = lines
        .iter()
        .find(|line| line["function"] == function)
        .unwrap_or_else(|| panic!("no line of {function}"));
    assert_eq!(line["line"], wanted, "{line}");
    let name = file.file_name().expect("a name").to_string_lossy();
    let shown = line["file"].as_str().expect("a file");
    assert!(shown.ends_with(&*name), "{line}");
}

/// One of the stacks ends in `names`' last, and the others come before it in this order.
#[track_caller]
pub fn assert_in_order(stacks: &[(Vec<String>, f64)], names: &[&str]) {
    let found = stacks.iter().any(|(stack, _)| {
        let mut rest = names.iter().peekable();
        for frame in stack {
            rest.next_if(|name| frame == **name);
        }
        rest.peek().is_none() && stack.last().map(String::as_str) == names.last().copied()
    });
    assert!(found, "no stack {names:?}");
}

/// The same of all frames, none of which is the agent's.
#[track_caller]
pub fn assert_stack(profile: &Profile, names: &[&str]) {
    let stacks = profile.stacks();
    assert_in_order(&stacks, names);
    for (stack, _) in &stacks {
        let ours = stack.iter().any(|frame| frame.contains("liballocsample"));
        assert!(!ours, "{stack:?}");
    }
}

/// The profile of a program that has symbols of a runtime and nothing behind them, run under the name of the runtime's program, and the
/// text of its report. It prints what it does by itself.
#[track_caller]
pub fn stranger(source: &str, name: &str, flags: &[&str]) -> (Profile, String) {
    let program = Program::compiled_with(source, &[&["-rdynamic"], flags].concat());
    let room = Room::new();
    room.add(&program, name);
    let run = ["run", "-q", "--interval", "4K", "-o", "x.allocsample", "--"];
    let output = room.output(&[&run[..], &[&format!("./{name}")]].concat());
    assert_eq!(stdout(&output), "250008\n");
    let report = room.output(&["report", "x.allocsample"]);
    (Profile::read(&room.path("x.allocsample")), stdout(&report))
}

/// What a running program does for each of the numbers that it is asked to count to.
pub struct Work<'a> {
    /// The functions that it is in, the one that allocates last.
    pub stack: &'a [&'a str],
    /// What it allocates there.
    pub bytes: f64,
    /// What it adds to its answer.
    pub answer: u64,
}

/// A running program, which ends with status 3, must be joined with its functions at each attach, and be left alone otherwise.
#[track_caller]
pub fn assert_joined_by_attach(running: Attached, work: &Work<'_>) {
    assert_joined_by_attach_with(&[], running, work);
}

/// The same, with options that it takes to join the runtime.
#[track_caller]
pub fn assert_joined_by_attach_with(options: &[&str], mut running: Attached, work: &Work<'_>) {
    const COUNT: u32 = 20_000;
    let function = work.stack[work.stack.len() - 1];
    let answer = |count: u32| (work.answer * u64::from(count)).to_string();
    for interval in ["64K", "16K"] {
        running.attach(&[&["--interval", interval], options].concat());
        assert_eq!(running.ask(&COUNT.to_string()), answer(COUNT));
        let profile = running.detach();
        let site = profile.site(function);
        let difference = site.allocated_bytes - f64::from(COUNT) * work.bytes;
        let deviation = difference / site.allocated_bytes_stderr;
        assert!(
            site.samples > 100 && deviation.abs() < 4.0,
            "{interval}: {deviation}"
        );
        // Without the runtime's own native functions.
        assert_in_order(&profile.stacks_with(&[]), work.stack);
        assert_audit(&profile);
        assert_eq!(running.ask("2000"), answer(2000));
    }
    running.attach(&["--interval", "16K", "--runtime", "none"]);
    running.ask("2000");
    let profile = running.detach();
    assert_eq!(profile.site(function).samples, 0);
    assert_eq!(running.end(3).1.code(), Some(3));
}

/// `allocsample leaks` must call `function` a leak in a program that leaks there, and not what the program drops or makes
/// once, in three of five runs. Growth is judged by the clock, too, and a run of a second stands still where others need the
/// processor: one in some twenty is not called a leak then, so three of five are not about once in a thousand times.
#[track_caller]
pub fn assert_leak(command: &[&str], function: &str) {
    assert_leak_with(&[], &[], command, function);
}

/// The same, with options for `run` and variables for the program.
#[track_caller]
pub fn assert_leak_with(
    options: &[&str],
    variables: &[(&str, &str)],
    command: &[&str],
    function: &str,
) {
    const MAJORITY: usize = 3;
    let mut wrong = Vec::new();
    let mut right = 0;
    for seed in ["7", "8", "9", "10", "11"] {
        let leaks = leaks_of(options, variables, command, seed);
        let is_found = leaks.iter().any(|leak| is_of(leak, function));
        // What the runtime takes from malloc for a heap that grows may be called a leak too, not what the program drops.
        let innocent = |leak: &&Value| is_of(leak, "serve_request") || is_of(leak, "build_table");
        if !is_found || leaks.iter().any(|leak| innocent(&leak)) {
            wrong.push(leaks);
        } else {
            right += 1;
        }
        if right == MAJORITY {
            return;
        }
        assert!(wrong.len() < MAJORITY, "{wrong:#?}");
    }
}

/// Whether a leak is charged to the function of this name.
fn is_of(leak: &Value, name: &str) -> bool {
    let function = leak["function"].as_str().expect("a function");
    function == name || function.ends_with(&format!(".{name}"))
}

/// Compiles a program that tests a file of a bridge by itself, and prints this line if all is well.
#[track_caller]
pub fn assert_part_prints(program: &str, line: &str) {
    let flags = [
        concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c_shim"),
        concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c_shim/include"),
        concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c_shim/bridges"),
    ];
    let program = Program::compiled_with(program, &flags);
    assert_eq!(program.run().bare().assert_success().text(), line);
}

/// The leaks and possible leaks that `leaks` finds in a command, profiled with this seed.
#[track_caller]
pub fn leaks_of(
    options: &[&str],
    variables: &[(&str, &str)],
    command: &[&str],
    seed: &str,
) -> Vec<Value> {
    let room = Room::new();
    let options = [&["--seed", seed], options].concat();
    record(&room, "x.allocsample", &options, variables, command);
    accused(&room, "x.allocsample")
}

/// Profiles a command at 16 KiB; what it prints.
#[track_caller]
pub fn record(
    room: &Room,
    profile: &str,
    options: &[&str],
    variables: &[(&str, &str)],
    command: &[&str],
) -> String {
    let run = ["run", "-q", "--interval", "16K", "-o", profile];
    let mut command = room.command(&[&run, options, &["--"], command].concat());
    let output = command
        .envs(variables.iter().copied())
        .output()
        .expect("the command");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    stdout(&output)
}

/// The leaks and possible leaks that `leaks` finds in a profile.
#[track_caller]
pub fn accused(room: &Room, profile: &str) -> Vec<Value> {
    let output = room.output(&["leaks", profile, "--format", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found: Value = serde_json::from_slice(&output.stdout).expect("suspects");
    let suspects = found["suspects"].as_array().expect("suspects");
    let leaks = suspects
        .iter()
        .filter(|suspect| matches!(suspect["verdict"].as_str(), Some("leak" | "possible leak")));
    leaks.cloned().collect()
}

/// What a steered program is told by `ctl` before its second part and before its third.
pub type Told = [&'static [&'static str]; 2];
/// Another interval.
pub const INTERVALS: Told = [&["interval", "256K"], &["interval", "8K"]];
/// To rest.
pub const STOP_AND_START: Told = [&["stop"], &["start"]];

/// The profile of a program that is told twice: where it says its process number and waits for a line. It begins at 32 KiB.
#[track_caller]
pub fn steered(room: &Room, command: &[&str], told: Told) -> Profile {
    let run = ["run", "-q", "--seed", "7", "-o", "x.allocsample"];
    let mut child = room
        .command(&[&run[..], &["--interval", "32K", "--"], command].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    for (pid, words) in lines.map(|line| line.expect("a line")).zip(told) {
        let output = room.output(&[&["ctl", &pid], words].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        writeln!(stdin).expect("it reads");
    }
    assert!(child.wait().expect("it ends").success());
    Profile::read(&room.path("x.allocsample"))
}

/// The sites of a program that was told of `INTERVALS`, one for each: each has allocated `bytes`, in as many samples as its interval says,
/// each of which counts by the interval under which it was drawn.
#[track_caller]
pub fn assert_follows(sites: [Site; 3], bytes: f64) {
    assert_follows_to(sites, bytes, [32e3, 256e3, 8e3]);
}

/// The same for a heap that takes other intervals than it was told.
#[track_caller]
pub fn assert_follows_to(sites: [Site; 3], bytes: f64, intervals_bytes: [f64; 3]) {
    for (site, interval_bytes) in sites.into_iter().zip(intervals_bytes) {
        let z = truth::z(site.allocated_bytes, bytes, site.allocated_bytes_stderr);
        assert!(z.abs() < 5.0, "{interval_bytes}: z {z:+.1}, {site:?}");
        // Half as many to twice as many: between two phases lies a factor of eight or more.
        let expected = bytes / interval_bytes;
        let samples = site.samples as f64;
        assert!(
            (expected / 2.0..expected * 2.0).contains(&samples),
            "{interval_bytes}: {samples} samples where {expected} are to be"
        );
    }
}

/// The sites of a program that was stopped and started: the first and the third have allocated `bytes`, and nothing is known of
/// what the second has, but for `late` bytes at most until its threads heard of it.
#[track_caller]
pub fn assert_rests(sites: [Site; 3], bytes: f64, late: f64) {
    let [first, second, third] = sites;
    for site in [first, third] {
        // A thread hears late that it is to go on, too.
        let missing = (bytes - site.allocated_bytes - 5.0 * site.allocated_bytes_stderr).max(0.0);
        let z = truth::z(site.allocated_bytes, bytes, site.allocated_bytes_stderr);
        assert!(
            z < 5.0 && missing <= late,
            "{bytes} bytes: z {z:+.1}, {site:?}"
        );
    }
    assert!(second.allocated_bytes <= late, "{second:?}");
}

/// What they hold at the end: within 5 standard errors, or of nothing a sample or two of the longest interval, since a block
/// may still stand in a register when the collector comes.
#[track_caller]
pub fn assert_live(sites: [Site; 3], live_bytes: [f64; 3]) {
    for (site, bytes) in sites.into_iter().zip(live_bytes) {
        let slack = if bytes == 0.0 { 2.0 * 256e3 } else { 0.0 };
        let difference = (site.live_bytes - bytes).abs();
        assert!(
            difference <= 5.0 * site.live_bytes_stderr + slack,
            "{bytes} bytes live, {site:?}"
        );
    }
}
