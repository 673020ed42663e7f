//! Promise: `allocsample attach` to a Go program reads what Go's runtime samples, from outside, and leaves it as it was.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::attached::Attached;
use support::profile::Profile;
use support::room::{assert_error, stderr, stdout};
use support::{Room, skip, truth};

const SOURCE: &str = "go_heap.go";
/// Without symbols, as most released programs are.
const STRIPPED: &[&str] = &["-ldflags=-s -w"];
/// Code that may be loaded anywhere.
const MOVABLE: &[&str] = &["-buildmode=pie"];
/// Bytes of an object of each function, which are its size class.
const NODE: f64 = 48.0;
const ENTRY: f64 = 1024.0;
const PASSING: f64 = 208.0;
const ENTRIES: f64 = 1000.0;

/// The program, built with these flags; `None`: there is no Go.
fn start(flags: &[&str]) -> Option<Attached> {
    if !support::compile::can_compile(SOURCE) {
        skip("no Go (Debian: golang-go)");
        return None;
    }
    if flags == STRIPPED && cfg!(not(target_arch = "x86_64")) {
        skip("variables of a stripped program are found on x86-64 only");
        return None;
    }
    Some(Attached::start_by(SOURCE, flags, |room| {
        Command::new(room.path("attached"))
    }))
}

/// `attach` at work.
struct Reading {
    command: Child,
    error: BufReader<ChildStderr>,
    remark: String,
}

impl Reading {
    /// Returns when it has begun.
    fn start(running: &Attached, options: &[&str]) -> Self {
        let pid = running.pid();
        let attach = ["attach", &pid, "-o", "go.allocsample"];
        let mut command = running.room.command(&[&attach, options].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut command = command.spawn().expect("the command");
        let mut error = BufReader::new(command.stderr.take().expect("a pipe"));
        let mut remark = String::new();
        error.read_line(&mut remark).expect("a line");
        Self {
            command,
            error,
            remark,
        }
    }

    fn end(self, running: &Attached) -> Profile {
        let pid = Pid::from_raw(self.command.id().cast_signed());
        kill(pid, Signal::SIGINT).expect("the command");
        self.ended(&running.room)
    }

    fn ended(mut self, room: &Room) -> Profile {
        let status = self.command.wait().expect("the command");
        let mut rest = String::new();
        self.error.read_to_string(&mut rest).expect("UTF-8");
        assert_eq!(status.code(), Some(0), "{}{rest}", self.remark);
        // A movable program has a loader, so there may be C code.
        let is_known = |line: &str| line.contains("blocks of malloc are not included");
        assert!(rest.lines().all(is_known), "{rest}");
        Profile::read_exactly(&room.path("go.allocsample"), &[])
    }
}

#[track_caller]
fn assert_site(profile: &Profile, function: &str, allocated: f64, live: f64) {
    let site = profile.site(function);
    let z = truth::z(site.allocated_bytes, allocated, site.allocated_bytes_stderr);
    assert!(z.abs() < 4.0, "{function}: {site:?} for {allocated}, z {z}");
    // The program's samples are its own, with a seed that nobody knows.
    let z = truth::z(site.live_bytes, live, site.live_bytes_stderr);
    assert!(z.abs() < 4.5, "{function}: {site:?} for {live} live, z {z}");
}

fn is_right_in_a_program_that_took_no_samples(flags: &[&str]) {
    let Some(mut running) = start(flags) else {
        return;
    };
    // Nothing uses its profile, so that its linker has switched it off.
    assert_eq!(running.ask("keep 20000"), "0");
    let reading = Reading::start(&running, &["--interval", "4K"]);
    assert!(
        reading.remark.contains("MemProfileRate 4096 in place of 0"),
        "{}",
        reading.remark
    );
    assert_eq!(running.ask("keep 60000"), "4096");
    running.ask("fill 20000");
    running.ask("pass 50000");
    running.ask("collect");
    let profile = reading.end(&running);
    assert_eq!(running.ask("keep 1"), "0", "the rate is as it was");
    // `keep` would be charged if the inlined function had no name.
    assert_site(&profile, "main.newNode", 60e3 * NODE, 60e3 * NODE);
    assert_site(&profile, "main.fillCache", 20e3 * ENTRY, ENTRIES * ENTRY);
    assert_site(&profile, "main.pass", 50e3 * PASSING, 0.0);
    assert_line(&profile, "main.newNode", "// the line of nodes");
    let stack = profile.stack_to("main.newNode");
    let callers: Vec<&str> = stack.iter().map(String::as_str).collect();
    assert!(
        callers.ends_with(&["runtime.main", "main.main", "main.keep", "main.newNode"]),
        "{callers:?}"
    );
    assert_eq!(running.end_of_input().1.code(), Some(0));
}

#[track_caller]
fn assert_line(profile: &Profile, function: &str, mark: &str) {
    let source = support::bridge::program(SOURCE);
    let source = std::fs::read_to_string(source).expect("the program");
    let truth = source.lines().position(|line| line.contains(mark));
    let lines = profile.report["lines"].as_array().expect("lines");
    let line = lines.iter().find(|line| line["function"] == function);
    let line = line.expect("a line of the function");
    assert_eq!(line["line"], truth.expect("the line") + 1);
    let file = line["file"].as_str().expect("a file");
    assert!(file.ends_with(SOURCE), "{file}");
}

#[test]
fn sites_are_right_in_a_program_that_took_no_samples() {
    is_right_in_a_program_that_took_no_samples(&[]);
}

#[test]
fn sites_are_right_in_a_stripped_program() {
    is_right_in_a_program_that_took_no_samples(STRIPPED);
}

#[test]
fn sites_are_right_in_code_that_may_be_loaded_anywhere() {
    is_right_in_a_program_that_took_no_samples(MOVABLE);
}

#[test]
fn live_memory_from_before_the_attach_counts_as_live_and_not_as_allocated() {
    let Some(mut running) = start(&[]) else {
        return;
    };
    assert_eq!(running.ask("rate 4096"), "4096");
    running.ask("keep 60000");
    running.ask("pass 50000");
    running.ask("collect");
    let reading = Reading::start(&running, &[]);
    assert!(!reading.remark.contains("in place"), "{}", reading.remark);
    running.ask("fill 20000");
    running.ask("collect");
    let profile = reading.end(&running);
    assert_eq!(running.ask("forget"), "4096");
    assert_site(&profile, "main.newNode", 0.0, 60e3 * NODE);
    assert_site(&profile, "main.pass", 0.0, 0.0);
    assert_site(&profile, "main.fillCache", 20e3 * ENTRY, ENTRIES * ENTRY);
    assert!(profile.exit().starts_with("detach"), "{}", profile.exit());
}

#[test]
fn a_program_that_samples_already_is_sampled_at_the_interval_that_is_asked_for() {
    let Some(mut running) = start(&[]) else {
        return;
    };
    running.ask("rate 65536");
    running.ask("keep 60000");
    running.ask("collect");
    let reading = Reading::start(&running, &["--interval", "4K"]);
    assert_eq!(running.ask("fill 20000"), "4096");
    running.ask("collect");
    let profile = reading.end(&running);
    assert_eq!(running.ask("forget"), "65536", "the rate is as it was");
    assert_site(&profile, "main.newNode", 0.0, 60e3 * NODE);
    assert_site(&profile, "main.fillCache", 20e3 * ENTRY, ENTRIES * ENTRY);
    for command in ["report", "leaks"] {
        let output = running.room.output(&[command, "go.allocsample"]);
        let text = stdout(&output);
        assert!(text.contains("4.0 KiB to 64.0 KiB"), "{command}: {text}");
    }
}

#[test]
fn what_was_allocated_before_the_attach_and_dies_after_it_is_in_no_total() {
    let Some(mut running) = start(&[]) else {
        return;
    };
    running.ask("rate 4096");
    // No collection has looked at these before the attach.
    running.ask("keep 20000");
    let reading = Reading::start(&running, &[]);
    running.ask("forget");
    running.ask("collect");
    let profile = reading.end(&running);
    assert_site(&profile, "main.newNode", 0.0, 0.0);
}

#[test]
fn allocations_since_the_last_collection_are_counted_at_the_end() {
    let Some(mut running) = start(&[]) else {
        return;
    };
    running.ask("rate 4096");
    running.ask("collect");
    let reading = Reading::start(&running, &[]);
    running.ask("keep 60000");
    let profile = reading.end(&running);
    let site = profile.site("main.newNode");
    let z = truth::z(
        site.allocated_bytes,
        60e3 * NODE,
        site.allocated_bytes_stderr,
    );
    assert!(z.abs() < 4.0, "{site:?}, z {z}");
}

#[test]
fn the_profile_is_whole_if_the_program_ends_first() {
    let Some(mut running) = start(&[]) else {
        return;
    };
    running.ask("rate 4096");
    running.ask("keep 60000");
    running.ask("collect");
    let reading = Reading::start(&running, &[]);
    let path = running.room.path("go.allocsample");
    // The first reading is in the file.
    while Profile::read_exactly(&path, &[]).number("samples") == 0.0 {
        std::thread::yield_now();
    }
    let (room, status) = running.end_of_input();
    assert_eq!(status.code(), Some(0));
    let profile = reading.ended(&room);
    assert_site(&profile, "main.newNode", 0.0, 60e3 * NODE);
}

/// Where an agent samples malloc already, `attach` is for it.
#[test]
fn an_agent_that_is_there_is_started_and_goes_back_to_sleep() {
    const WITH_C: &str = "go_with_c.go";
    if !support::compile::can_compile(WITH_C) {
        return skip("no Go (Debian: golang-go)");
    }
    let mut running = Attached::start_by(WITH_C, &[], |room| {
        let mut command = Command::new(room.path("attached"));
        command
            .env("LD_PRELOAD", room.agent())
            .env("ALLOCSAMPLE_START", "off")
            .env("ALLOCSAMPLE_OUTPUT", "go.allocsample");
        command
    });
    running.ask("more");
    let pid = running.pid();
    let output = (running.room).output(&["attach", &pid, "--interval", "4K"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // A thread counts from its next look at the agent on, within a mebibyte.
    for _ in 0..10 {
        running.ask("more");
    }
    let output = running.room.output(&["detach", &pid]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let profile = Profile::read(&running.room.path("go.allocsample"));
    assert!(profile.number("samples") > 100.0, "{}", profile.report);
    let (_room, status) = running.end_of_input();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn detach_says_who_reads_a_go_program() {
    let Some(running) = start(&[]) else {
        return;
    };
    running.fails(&["detach", &running.pid()], "read from outside");
}

#[test]
fn run_says_how_a_go_program_is_profiled() {
    let Some(running) = start(&[]) else {
        return;
    };
    let output = running.room.output(&["run", "--", "./attached"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), "ready\n");
    let said = stderr(&output);
    assert!(
        said.contains("`allocsample attach` reads its heap"),
        "{said}"
    );
}

#[test]
fn options_that_are_for_the_agent_are_refused() {
    let Some(running) = start(&[]) else {
        return;
    };
    let refused = |options: &[&str], status, what| {
        let output = (running.room).output(&[&["attach", &running.pid()], options].concat());
        assert_error(&output, status, what);
        assert_eq!(running.room.names(), ["attached"], "{}", stderr(&output));
    };
    refused(&["--max-depth", "7"], 2, "--max-depth");
    refused(&["--interval", "off"], 2, "--interval off");
    // It has no C library that could load the agent.
    refused(&["--runtime", "none"], 1, "static");
}
