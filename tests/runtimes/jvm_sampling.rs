//! Promise: what the JVM's own tests assert of its sampler of objects (JEP 331, `serviceability/jvmti/HeapMonitor`) holds of
//! profiles. The JVM seeds itself: 5 standard errors are passed by luck once in two million figures.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::compile::has_java;
use crate::support::profile::Profile;
use crate::support::room::{assert_error, stderr, stdout};
use crate::support::talking::Talking;
use crate::support::{Program, Room, compile, is_installed, truth};
use serde_json::Value;

/// `Monitored.arraysOfPhase` makes objects of as many bytes.
const BYTES: f64 = 1000.0;

/// The program, with options of `run` and of the JVM.
fn started(options: &[&str], java: &[&str]) -> Talking {
    let command = [&["java"], java, &["Monitored"]].concat();
    Talking::start(compile::java("Monitored.java"), options, &command)
}

/// The profile of a program that did all that was asked.
fn profile(options: &[&str], java: &[&str], lines: &[&str]) -> Profile {
    left_by(options, java, lines).1
}

fn left_by(options: &[&str], java: &[&str], lines: &[&str]) -> (Room, Profile) {
    let mut program = started(options, java);
    for line in lines {
        program.ask(line);
    }
    program.end()
}

/// What a method and those that it called allocated, of Java's heap and otherwise, and the error.
fn total(profile: &Profile, method: &str) -> (f64, f64) {
    let name = format!("Monitored.{method}");
    let functions = profile.report["functions"].as_array().expect("functions");
    let Some(row) = functions.iter().find(|row| row["function"] == *name) else {
        return (0.0, 0.0);
    };
    let bytes = row["total_allocated_bytes"].as_f64().expect("bytes");
    // All of its objects have one size here, far below the interval.
    (bytes, (bytes * interval(profile)).sqrt())
}

fn interval(profile: &Profile) -> f64 {
    let interval = profile.report["interval_bytes"].as_f64();
    interval.expect("an interval")
}

#[track_caller]
fn assert_total(profile: &Profile, method: &str, count: u32) {
    let truth = f64::from(count) * BYTES;
    let error = (truth * interval(profile)).sqrt();
    let (bytes, _) = total(profile, method);
    let z = truth::z(bytes, truth, error);
    assert!(z.abs() < 5.0, "{method}: {bytes} for {truth}, z {z:+.1}");
}

/// Objects of a type that a method and what it called made; a program's first pass through a line makes others, too.
#[track_caller]
fn assert_exact(room: &Room, [method, type_name]: [&str; 2], objects: f64, bytes: f64) {
    let query = format!(
        "SELECT sum(objects), sum(bytes) FROM samples JOIN types USING (heap_id, type_id) WHERE type LIKE '{type_name}' AND stack_id IN
         (SELECT stack_id FROM frames JOIN functions USING (function_id) WHERE function = 'Monitored.{method}')"
    );
    let output = room.output(&["query", "--format", "csv", "x.allocsample", &query]);
    let text = stdout(&output);
    let figures: Vec<f64> = text
        .lines()
        .nth(1)
        .expect("a row")
        .split(',')
        .map(|figure| figure.parse().expect("a figure"))
        .collect();
    assert_eq!(figures, [objects, bytes], "{method}");
}

/// ArrayAllSampled, MultiArray, StatObjectCorrectness at interval 0, VMEvents, Recursive: in the interpreter and compiled, each
/// object is told of once, also those that the JVM makes for a library; what the callback asks of the JVM is not.
#[test]
fn at_interval_1_each_object_is_sampled_once() {
    if !has_java() {
        return;
    }
    for java in [&["-XX:+UseSerialGC", "-Xint"][..], &["-XX:+UseG1GC"]] {
        let lines = [
            "arrays 1000 1000",
            "nested 1000",
            "plain 20000",
            "cloned 2000",
            "reflected 2000",
        ];
        let (room, profile) = left_by(&["--interval", "1"], java, &lines);
        assert_exact(&room, ["arrays", "int[]"], 1000.0, 1000.0 * 4016.0);
        assert_exact(&room, ["nested", "int[]%"], 6000.0, 6000.0 * 40.0);
        assert_exact(
            &room,
            ["plain", "Monitored$Plain"],
            20_000.0,
            20_000.0 * 24.0,
        );
        // The first array, too.
        assert_exact(&room, ["cloned", "int[]"], 2001.0, 2001.0 * 416.0);
        assert_exact(&room, ["reflected", "long[]"], 2000.0, 2000.0 * 816.0);
        assert_eq!(profile.report["lost_samples"], 0);
    }
}

/// StatArrayCorrectness, StatObjectCorrectness, and the two interpreter tests.
#[test]
fn as_many_are_sampled_as_the_interval_says() {
    if !has_java() {
        return;
    }
    for java in [
        &["-XX:+UseSerialGC", "-Xint"][..],
        &["-XX:+UseParallelGC"],
        &["-XX:+UseG1GC"],
    ] {
        for (length, count) in [(1000, 100_000), (10_000, 50_000), (100_000, 10_000)] {
            let size = 4 * length + 16;
            let interval = (111 * length).to_string();
            let line = format!("arrays {count} {length}");
            let profile = profile(&["--interval", &interval], java, &[&line]);
            let site = profile.site("Monitored.arrays");
            let inclusion = -(-f64::from(size) / f64::from(111 * length)).exp_m1();
            let due = f64::from(count) * inclusion;
            let samples = site.samples as f64;
            let z = truth::z(samples, due, (due * (1.0 - inclusion)).sqrt());
            assert!(z.abs() < 5.0, "{java:?} {size}: {samples}, z {z:+.1}");
            let bytes = f64::from(count) * f64::from(size);
            let z = truth::z(site.allocated_bytes, bytes, site.allocated_bytes_stderr);
            assert!(z.abs() < 5.0, "{java:?} {size}: z {z:+.1}");
        }
    }
}

/// StatInterval: an object of many intervals is one event, and stands for itself.
#[test]
fn objects_of_many_intervals_weigh_what_they_are() {
    if !has_java() {
        return;
    }
    for interval in ["1K", "8K"] {
        let lines = ["arrays 10 2500000"];
        let (room, _profile) = left_by(&["--interval", interval], &[], &lines);
        assert_exact(&room, ["arrays", "int[]"], 10.0, 10.0 * 10_000_016.0);
    }
}

/// Sizes that alternate, and whose sum divides the interval: with gaps that do not vary one of them had all samples.
#[test]
fn gaps_vary() {
    if !has_java() {
        return;
    }
    let count = 200_000;
    let lines = [format!("turns {count}")];
    let profile = profile(&["--interval", "256"], &["-XX:+UseSerialGC"], &[&*lines[0]]);
    for (method, size) in [("medium", 48.0), ("small", 16.0)] {
        let site = profile.site(&format!("Monitored.{method}"));
        let truth = f64::from(count) * size;
        let z = truth::z(site.allocated_bytes, truth, site.allocated_bytes_stderr);
        assert!(z.abs() < 5.0, "{method}: z {z:+.1}");
    }
}

/// InitialAllocation: a thread's first object is as likely as any other.
#[test]
fn first_objects_of_threads_are_not_sampled_more_often() {
    if !has_java() {
        return;
    }
    let profile = profile(&["--interval", "1M"], &[], &["threads 500"]);
    // 12,000 bytes in all: one in 87 runs has a sample, one in ten million has four.
    let samples = profile.site("Monitored.first").samples;
    assert!(samples <= 3, "{samples}");
}

/// StatSimple, EventOnOff, and what HeapMonitorTest asserts when it has disabled events.
#[test]
fn sampling_goes_on_and_off_while_the_program_runs() {
    const COUNT: u32 = 400_000;
    if !has_java() {
        return;
    }
    for java in [&["-XX:+UseSerialGC"][..], &["-XX:+UseG1GC"], &["-Xint"]] {
        let mut program = started(&["--interval", "64K", "--start", "off"], java);
        let ask = |method: &str| format!("{method} {COUNT}");
        program.ask(&ask("early"));
        program.ctl(&["start"]);
        program.ask(&ask("second"));
        program.ctl(&["stop"]);
        program.ask(&ask("third"));
        program.ctl(&["start"]);
        program.ask(&ask("fourth"));
        let (_room, profile) = program.end();
        for (method, count) in [
            ("early", 0),
            ("second", COUNT),
            ("third", 0),
            ("fourth", COUNT),
        ] {
            assert_total(&profile, method, count);
        }
    }
}

/// ThreadDisabled, and more than that version of the JVM could (EventsForTwoThreads).
#[test]
fn only_the_threads_that_are_wanted_are_sampled() {
    const COUNT: u32 = 200_000;
    if !has_java() {
        return;
    }
    let names = ["worker-a", "worker-b", "worker-c"];
    let mut program = started(&["--interval", "8K"], &[]);
    // They begin.
    for name in names {
        program.ask(&format!("worker 0 {name}"));
    }
    let work = |program: &mut Talking| {
        // It hears of what was asked for when it allocates.
        program.ask("arrays 1000 1000");
        for name in names {
            program.ask(&format!("worker {COUNT} {name}"));
        }
    };
    program.ctl(&["filter", "--threads", "worker-b"]);
    work(&mut program);
    program.ctl(&["filter", "--threads", "nobody"]);
    program.ask("arrays 1000 1000");
    for name in ["worker-a", "worker-c"] {
        program.ctl(&["thread", &number_of(program.parent(), name), "on"]);
        program.ask("arrays 1000 1000");
    }
    work(&mut program);
    program.ctl(&["filter"]);
    program.ask("arrays 1000 1000");
    program.ctl(&["thread", &number_of(program.parent(), "worker-c"), "off"]);
    work(&mut program);
    let (_room, profile) = program.end();
    let threads = profile.report["threads"].as_array().expect("threads");
    for (name, times) in [("worker-a", 2), ("worker-b", 2), ("worker-c", 1)] {
        let row = threads.iter().find(|row| row["thread"] == name);
        let bytes = row.expect("a thread")["allocated_bytes"].as_f64();
        let truth = f64::from(times * COUNT) * BYTES;
        let error = (truth * interval(&profile)).sqrt();
        // What a thread needs to begin.
        let most = 5.0 * error + 0.01 * truth;
        let difference = bytes.expect("bytes") - truth;
        assert!(difference.abs() < most, "{name}: {bytes:?} for {truth}");
    }
}

/// The kernel's number of a thread of a process's child.
#[track_caller]
fn number_of(parent: u32, name: &str) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let tasks = |pid: &str| {
        let directory = fs::read_dir(format!("/proc/{pid}/task")).expect("the process");
        let names = directory.flatten().map(|entry| entry.file_name());
        names
            .map(|name| name.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
    };
    let parent = parent.to_string();
    let children = tasks(&parent)
        .iter()
        .map(|task| read(&format!("/proc/{parent}/task/{task}/children")))
        .collect::<String>();
    let child = children.split_whitespace().next().expect("a child");
    let of_name = |task: &String| read(&format!("/proc/{child}/task/{task}/comm")).trim() == name;
    tasks(child).into_iter().find(of_name).expect("the thread")
}

/// HeapMonitorThread.
#[test]
fn all_threads_are_sampled() {
    if !has_java() {
        return;
    }
    let names = ["one", "two", "three", "four", "five"];
    let lines = names.map(|name| format!("worker 2000 {name}"));
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let profile = profile(&["--interval", "8K"], &[], &lines);
    let threads = profile.report["threads"].as_array().expect("threads");
    let is_there = |name: &&str| threads.iter().any(|row| row["thread"] == **name);
    assert_eq!(names.iter().filter(|name| is_there(name)).count(), 5);
}

/// ThreadOnOff: 24 threads allocate, each at a depth of its own, while sampling goes on and off.
#[test]
fn threads_go_on_while_sampling_comes_and_goes() {
    if !has_java() {
        return;
    }
    for collector in ["-XX:+UseG1GC", "-XX:+UseParallelGC"] {
        let mut program = started(&["--interval", "16K"], &[collector]);
        program.ask("begin 24");
        for _ in 0..10 {
            program.ctl(&["stop"]);
            program.ctl(&["start"]);
        }
        program.ask("end");
        let (_room, profile) = program.end();
        let stacks = profile.stacks();
        let depth = |stack: &[String]| {
            let is_deep = |frame: &&String| *frame == "Monitored.deep";
            stack.iter().filter(is_deep).count()
        };
        let deepest = stacks.iter().map(|(stack, _)| depth(stack)).max();
        assert_eq!(deepest, Some(24), "{collector}");
    }
}

/// IllegalArgument.
#[test]
fn an_interval_that_is_none_is_refused_before_the_jvm_starts() {
    let room = Room::new();
    for (interval, why) in [("-1", "-1"), ("-1024", "-1024"), ("0", "every allocation")] {
        let option = format!("--interval={interval}");
        let output = room.output(&["run", "-q", &option, "--", "java", "-version"]);
        assert_error(&output, 2, why);
    }
}

/// NoCapability and TwoAgents: only one agent may have the sampler. Whoever comes second is told, and all else goes on.
#[test]
fn another_agent_may_have_the_sampler() {
    if !has_java() {
        return;
    }
    let room = compile::java("Monitored.java");
    let other = Program::library("takes_sampling.c", "libtakes_sampling.so", &[]);
    let option = format!("-agentpath:{}", other.path().display());
    fs::write(room.path("input"), "arrays 1000 1000\n").expect("the input");
    let run = |is_first: bool| {
        let mut arguments = vec!["run", "-q", "--interval", "8K", "-o", "x.allocsample", "--"];
        arguments.push("java");
        if !is_first {
            arguments.push(&option);
        }
        arguments.push("Monitored");
        let _ = fs::remove_file(room.path("x.allocsample"));
        let mut command = room.command(&arguments);
        let input = fs::File::open(room.path("input")).expect("the input");
        command.stdin(input);
        if is_first {
            command.env("JAVA_TOOL_OPTIONS", &option);
        }
        let output = command.output().expect("the command");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let markers = room.output(&["query", "x.allocsample", "select marker from markers"]);
        let profile = Profile::read(&room.path("x.allocsample"));
        (stdout(&output), stdout(&markers), profile)
    };
    let (said, _, profile) = run(false);
    assert!(said.contains("sampler: refused"), "{said}");
    assert!(java_samples(&profile) > Some(0));
    let (said, markers, profile) = run(true);
    assert!(said.contains("sampler: taken"), "{said}");
    assert!(
        markers.contains("another agent samples Java's objects"),
        "{markers}"
    );
    assert_eq!(java_samples(&profile).unwrap_or(0), 0);
    assert!(profile.total("allocated_bytes") > 0.0, "of malloc");
}

fn java_samples(profile: &Profile) -> Option<u64> {
    let heaps = profile.report["heaps"].as_array().expect("heaps");
    let heap = heaps.iter().find(|heap: &&Value| heap["name"] == "java")?;
    heap["samples"].as_u64()
}

/// The JVM's tests of collected and of kept objects have their counterparts in tests/runtimes/jvm.rs. Here the JVM's own command loads
/// the agent into a running JVM.
#[test]
fn a_jvm_that_runs_is_joined_by_its_own_command() {
    const COUNT: u32 = 400_000;
    if !has_java() || !is_installed("jcmd") {
        return;
    }
    let mut program = started(&["--interval", "64K", "--runtime", "none"], &[]);
    program.ask(&format!("early {COUNT}"));
    let pid = child_of(program.parent());
    let agent = program.room.agent().to_owned();
    for _ in 0..2 {
        let output = Command::new("jcmd")
            .args([&pid, "JVMTI.agent_load"])
            .arg(Path::new(&agent))
            .output()
            .expect("jcmd");
        assert!(stdout(&output).contains("return code: 0"), "{output:?}");
    }
    // Gaps that were drawn before are those of the JVM's own interval of 512 KiB.
    program.ask("third 5000");
    program.ask(&format!("second {COUNT}"));
    let (_room, profile) = program.end();
    assert_eq!(total(&profile, "early").0, 0.0);
    assert_total(&profile, "second", COUNT);
}

fn child_of(parent: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).expect("the process");
    let children = tasks
        .flatten()
        .map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default())
        .collect::<String>();
    children
        .split_whitespace()
        .next()
        .expect("a child")
        .to_owned()
}
