//! Promise: `allocsample attach` to a Go program reads what Go's runtime samples, from outside, and leaves it as it was;
//! `allocsample run` does so from its first allocation until its last.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};

use crate::support::attached::Attached;
use crate::support::profile::Profile;
use crate::support::room::{assert_error, stderr, stdout};
use crate::support::{Program, Room, skip, truth, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

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
    if !crate::support::compile::can_compile(SOURCE) {
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
    let source = crate::support::bridge::program(SOURCE);
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
    wait_until("samples", || {
        Profile::read_exactly(&path, &[]).number("samples") > 0.0
    });
    let (room, status) = running.end_of_input();
    assert_eq!(status.code(), Some(0));
    let profile = reading.ended(&room);
    assert_site(&profile, "main.newNode", 0.0, 60e3 * NODE);
}

/// Where an agent samples malloc already, `attach` is for it.
#[test]
fn an_agent_that_is_there_is_started_and_goes_back_to_sleep() {
    const WITH_C: &str = "go_with_c.go";
    if !crate::support::compile::can_compile(WITH_C) {
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
fn detach_and_ctl_say_who_reads_a_go_program() {
    let Some(running) = start(&[]) else {
        return;
    };
    running.fails(&["detach", &running.pid()], "read from outside");
    running.fails(&["ctl", &running.pid(), "status"], "no agent could answer");
}

/// Allocates before `main`, and right before its end.
const WHOLE_LIFE: &str = "go_whole_life.go";
const OBJECTS: f64 = 20e3;
const EARLY: f64 = OBJECTS * 208.0;
const LATE: f64 = OBJECTS * 1024.0;

/// What the program does by itself, and under `run`.
struct Life {
    room: Room,
    alone: Output,
    observed: Output,
}

impl Life {
    /// `None`: there is no Go.
    fn of(flags: &[&str], how: &str) -> Option<Self> {
        Self::under(flags, how, &["--interval", "4K"])
    }

    fn under(flags: &[&str], how: &str, options: &[&str]) -> Option<Self> {
        let room = room_with(WHOLE_LIFE, flags)?;
        let alone = Command::new(room.path("program"))
            .arg(how)
            .output()
            .expect("the program");
        let run = ["run", "-o", "go.allocsample"];
        let program = ["--", "./program", how];
        let observed = room.output(&[&run, options, &program].concat());
        assert_eq!(observed.status, alone.status, "{}", stderr(&observed));
        assert_eq!(stdout(&observed), stdout(&alone));
        Some(Self {
            room,
            alone,
            observed,
        })
    }

    fn profile(&self) -> Profile {
        Profile::read_exactly(&self.room.path("go.allocsample"), &[])
    }

    /// What the command said.
    fn said(&self) -> String {
        let said = stderr(&self.observed);
        let lines = said
            .lines()
            .filter(|line| line.starts_with("allocsample: "));
        lines.collect::<Vec<_>>().join("\n")
    }
}

fn room_with(source: &str, flags: &[&str]) -> Option<Room> {
    if !crate::support::compile::can_compile(source) {
        skip("no Go (Debian: golang-go)");
        return None;
    }
    let room = Room::new();
    room.add(&Program::compiled_with(source, flags), "program");
    Some(room)
}

/// `run` with these options, as soon as the program below it has said `ready`.
struct Observed {
    command: Child,
    output: BufReader<ChildStdout>,
}

impl Observed {
    fn start(room: &Room, options: &[&str], program: &[&str]) -> Self {
        let mut command = room.command(&[&["run"], options, &["--"], program].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut command = command.spawn().expect("the command");
        let mut output = BufReader::new(command.stdout.take().expect("a pipe"));
        let mut said = String::new();
        while !said.ends_with("ready\n") {
            assert_ne!(output.read_line(&mut said).expect("a line"), 0, "{said}");
        }
        Self { command, output }
    }

    /// What the program has printed since, what the command said, and its status.
    fn ended(mut self) -> (String, String, Option<i32>) {
        let mut printed = String::new();
        self.output.read_to_string(&mut printed).expect("UTF-8");
        let ended = self.command.wait_with_output().expect("the command");
        (printed, stderr(&ended), ended.status.code())
    }
}

/// Waits until the profile has all that the program has allocated until it waits itself.
fn wait_for_late(profile: &Path) {
    wait_until("the last allocations", || {
        let late = Profile::read_exactly(profile, &[]).site("main.atEnd");
        late.allocated_bytes >= 0.9 * LATE
    });
}

#[track_caller]
fn assert_whole_life(profile: &Profile) {
    for (function, truth) in [("main.atStart", EARLY), ("main.atEnd", LATE)] {
        let site = profile.site(function);
        let z = truth::z(site.allocated_bytes, truth, site.allocated_bytes_stderr);
        assert!(z.abs() < 4.0, "{function}: {site:?} for {truth}, z {z}");
    }
}

#[test]
fn run_reads_a_program_from_before_main_until_os_exit() {
    let Some(life) = Life::of(&[], "exit") else {
        return;
    };
    assert_eq!(life.observed.status.code(), Some(7));
    let profile = life.profile();
    assert_whole_life(&profile);
    assert!(profile.exit().contains('7'), "{}", profile.exit());
    assert!(life.said().contains("the profile is go.allocsample"));
    // Nothing is said of an attach, because there was none.
    assert!(!life.said().contains("attach"), "{}", life.said());
}

#[test]
fn run_reads_stripped_and_movable_programs_to_the_end_of_main() {
    let all: [&[&str]; 3] = [STRIPPED, MOVABLE, &["-buildmode=pie", "-ldflags=-s -w"]];
    let stripped_ones = if cfg!(target_arch = "x86_64") { 3 } else { 0 };
    for flags in &all[..stripped_ones] {
        let Some(life) = Life::of(flags, "return") else {
            return;
        };
        assert_eq!(life.observed.status.code(), Some(0));
        assert_whole_life(&life.profile());
    }
}

#[test]
fn a_program_that_kills_itself_loses_nothing() {
    let Some(life) = Life::of(&[], "kill") else {
        return;
    };
    assert_eq!(life.alone.status.signal(), Some(Signal::SIGKILL as i32));
    assert_whole_life(&life.profile());
    assert!(life.said().contains("SIGKILL"), "{}", life.said());
}

#[test]
fn a_panic_is_told_as_without_us() {
    let Some(life) = Life::of(&[], "panic") else {
        return;
    };
    assert_eq!(life.alone.status.code(), Some(2));
    let own = |output| stderr(output).lines().next().map(str::to_owned);
    assert_eq!(own(&life.observed), own(&life.alone));
    assert_whole_life(&life.profile());
}

#[test]
fn a_program_that_becomes_another_one_has_a_profile_of_both() {
    let Some(room) = room_with(WHOLE_LIFE, &[]) else {
        return;
    };
    let options = ["--interval", "4K", "-o", "go.allocsample"];
    let observed = Observed::start(&room, &options, &["./program", "exec"]);
    let command = Pid::from_raw(observed.command.id().cast_signed());
    let paths = ["go.allocsample", "go.1.allocsample"].map(|name| room.path(name));
    // The program catches the first signal, and waits for the second one.
    kill(command, Signal::SIGTERM).expect("the command");
    wait_for_late(&paths[0]);
    kill(command, Signal::SIGTERM).expect("the command");
    let (printed, said, status) = observed.ended();
    assert_eq!(status, Some(7), "{said}");
    assert!(printed.ends_with("begun with 20000 [exit]\n"), "{printed}");
    let [first, second] = paths.map(|path| Profile::read_exactly(&path, &[]));
    assert_whole_life(&first);
    assert_whole_life(&second);
    assert!(first.exit().contains("exec"), "{}", first.exit());
}

#[test]
fn signals_reach_a_go_program_that_is_read() {
    let Some(room) = room_with(WHOLE_LIFE, &[]) else {
        return;
    };
    let options = ["-q", "-o", "go.allocsample"];
    let observed = Observed::start(&room, &options, &["./program", "signal"]);
    let command = Pid::from_raw(observed.command.id().cast_signed());
    kill(command, Signal::SIGTERM).expect("the command");
    let (printed, said, status) = observed.ended();
    assert_eq!((&*printed, &*said), ("terminated\n", ""));
    assert_eq!(status, Some(0));
    let profile = Profile::read_exactly(&room.path("go.allocsample"), &[]);
    let site = profile.site("main.atEnd");
    let z = truth::z(site.allocated_bytes, LATE, site.allocated_bytes_stderr);
    assert!(z.abs() < 4.0, "{site:?}, z {z}");
}

/// A Go program below a Go program below a shell. The inner one allocates when it is told to, long after it was found.
#[test]
fn go_programs_that_others_start_are_read_once_they_are_found() {
    let Some(room) = room_with(WHOLE_LIFE, &[]) else {
        return;
    };
    let options = ["--interval", "4K", "-o", "%n.%p.allocsample"];
    let script = "./program child; exit $?";
    let observed = Observed::start(&room, &options, &["sh", "-c", script]);
    let profiles = || {
        let names = room.names().into_iter();
        names.filter(|name| name.starts_with("program.") && name.ends_with(".allocsample"))
    };
    wait_until("two profiles", || profiles().count() == 2);
    // The outer one has started the inner one.
    let pids = profiles().filter_map(|name| name.split('.').nth(1)?.parse().ok());
    let inner: i32 = pids.max().expect("a process");
    let path = room.path(&format!("program.{inner}.allocsample"));
    let terminate = || kill(Pid::from_raw(inner), Signal::SIGTERM).expect("the program");
    terminate();
    wait_for_late(&path);
    terminate();
    let (_, said, status) = observed.ended();
    assert_eq!(status, Some(0), "{said}");
    let what = "2 Go programs that it started: read from outside";
    assert!(said.contains(what), "{said}");
    let site = Profile::read_exactly(&path, &[]).site("main.atEnd");
    let z = truth::z(site.allocated_bytes, LATE, site.allocated_bytes_stderr);
    assert!(z.abs() < 4.0, "{site:?}, z {z}");
    for name in profiles() {
        assert!(Profile::read_exactly(&room.path(&name), &[]).is_complete());
    }
}

#[test]
fn a_stopped_go_program_can_be_continued() {
    let Some(room) = room_with(WHOLE_LIFE, &[]) else {
        return;
    };
    // The shell stops the program, as a user would, and sees that it stands still.
    let script = "./observed & command=$!
        until test -s out && grep -q ready out; do sleep 0.02; done
        program=$(cat /proc/$command/task/*/children); program=${program% }
        kill -STOP $program
        until grep -q '^State:.*[Tt]' /proc/$program/status; do sleep 0.02; done
        kill -CONT $program
        until ! grep -q '^State:.*[Tt]' /proc/$program/status; do sleep 0.02; done
        kill -TERM $program
        wait $command";
    let observed = format!(
        "#!/bin/sh\nexec {} run -q -o go.allocsample -- ./program signal > out\n",
        crate::support::command().display()
    );
    room.write_executable("observed", observed);
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(room.directory());
    command.env("ALLOCSAMPLE_LIBRARY", room.agent());
    let ended = command.output().expect("a shell");
    assert_eq!((ended.status.code(), &*stderr(&ended)), (Some(0), ""));
    let said = std::fs::read_to_string(room.path("out")).expect("the output");
    assert!(said.ends_with("terminated\n"), "{said}");
}

#[test]
fn a_go_program_with_an_unknown_table_runs_without_a_profile() {
    let Some(room) = room_with(WHOLE_LIFE, &[]) else {
        return;
    };
    // The runtime does not look at section headers. Ours says that the table is one byte further on.
    let mut bytes = std::fs::read(room.path("program")).expect("the program");
    let section = section_header(&bytes, ".gopclntab");
    bytes[section + 16] += 1;
    room.write_executable("changed", bytes);
    let output = room.output(&["run", "-o", "go.allocsample", "--", "./changed", "exit"]);
    assert_eq!(output.status.code(), Some(7));
    let said = stderr(&output);
    assert!(
        said.contains("its table of functions has another layout"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(room.names(), ["changed", "program"]);
}

/// Where the header of this section is in an ELF file.
fn section_header(file: &[u8], name: &str) -> usize {
    const BYTES: usize = 64;
    let number = |at: usize, length: usize| -> usize {
        let bytes = file[at..at + length].iter().rev();
        bytes.fold(0, |number, &byte| number << 8 | usize::from(byte))
    };
    let (headers, count, names) = (number(0x28, 8), number(0x3c, 2), number(0x3e, 2));
    let names = number(headers + names * BYTES + 24, 8);
    let all = (0..count).map(|index| headers + index * BYTES);
    let is_it = |header: &usize| file[names + number(*header, 4)..].starts_with(name.as_bytes());
    all.into_iter().find(is_it).expect("the section")
}

#[test]
fn nothing_is_read_if_sampling_is_off() {
    for options in [["--interval", "off"], ["--start", "off"]] {
        let Some(life) = Life::under(&[], "exit", &options) else {
            return;
        };
        assert_eq!(life.room.names(), ["program"], "{}", life.said());
    }
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
