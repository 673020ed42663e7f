//! Promise: a virtual machine that hosts the hook ABI runs as without it, and its profile is exact where it can be.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::support::collected::AtWork;
use crate::support::directory::Directory;
use crate::support::profile::figure;
use crate::support::{Agent, Outcome, Program, Room, Run, bridge, is_installed, skip};
use serde_json::Value;

const HEAP: &str = "org.example.vm";

fn machine() -> Program {
    Program::compiled("../vms/main.c")
}

fn run(arguments: &[&str]) -> Run {
    machine().run().args(arguments)
}

/// What the machine prints of a type: objects, bytes, bytes that survived their first collection.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Known {
    objects: f64,
    bytes: f64,
    survived: f64,
}

struct Truth {
    types: BTreeMap<String, Known>,
    minor: u64,
    major: u64,
}

fn truth(outcome: &Outcome) -> Truth {
    let mut truth = Truth {
        types: BTreeMap::new(),
        minor: 0,
        major: 0,
    };
    for line in outcome.complaints().lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["type", name, objects, bytes, survived] => {
                let known = Known {
                    objects: objects.parse().expect("a number"),
                    bytes: bytes.parse().expect("a number"),
                    survived: survived.parse().expect("a number"),
                };
                truth.types.insert(name.to_owned(), known);
            }
            ["collections", minor, major] => {
                truth.minor = minor.parse().expect("a number");
                truth.major = major.parse().expect("a number");
            }
            _ => panic!("the machine says {line:?}"),
        }
    }
    truth
}

const WORKLOADS: [&[&str]; 5] = [
    &["known", "20000"],
    &["trees", "14", "40"],
    &["strings", "20000"],
    &["mixed"],
    &["deep", "200"],
];

#[test]
fn the_machine_collects_when_it_would_have_collected_anyway() {
    for workload in WORKLOADS {
        let bare = run(workload).bare();
        bare.assert_success();
        for interval in ["1", "100", "4K", "512K", "1G"] {
            // The machine prints how often it collected, and what survived.
            run(workload)
                .observed(&Agent::at_interval(interval))
                .assert_same_as(&bare);
        }
        run(workload)
            .observed(&Agent::at_interval("off"))
            .assert_same_as(&bare);
    }
}

#[test]
fn at_interval_1_everything_is_exact() {
    for workload in WORKLOADS {
        let outcome = run(workload).observed(&Agent::at_interval(1));
        let truth = truth(&outcome);
        let profile = outcome.profile();
        assert_eq!(profile.number("lost_samples"), 0.0);
        let mut bytes = 0.0;
        for (name, known) in &truth.types {
            let found = profile.row("types", "type", name);
            assert_eq!(figure(found, "samples"), known.objects, "{name}");
            assert_eq!(figure(found, "allocated_bytes"), known.bytes, "{name}");
            assert_eq!(figure(found, "survived_bytes"), known.survived, "{name}");
            assert_eq!(
                figure(found, "survived_bytes") + figure(found, "died_young_bytes"),
                known.bytes,
                "each sample of {name} is resolved once"
            );
            bytes += known.bytes;
        }
        let heap = profile.row("heaps", "name", HEAP);
        assert_eq!(figure(heap, "allocated_bytes_exact"), bytes);
        assert_eq!(figure(heap, "minor_collections"), truth.minor as f64);
        assert_eq!(figure(heap, "major_collections"), truth.major as f64);
    }
}

#[test]
fn what_samples_of_a_machine_take_is_measured_like_that_of_mallocs() {
    let profile = run(&["known", "20000"])
        .observed(&Agent::at_interval(100).seeded(3))
        .profile();
    let timed = figure(&profile.report["agent"], "timed_samples");
    // One in sixteen: 5 standard errors of a count.
    let expected = profile.number("samples") / 16.0;
    assert!(
        expected > 100.0 && (timed - expected).abs() < 5.0 * expected.sqrt(),
        "{timed} of {expected}"
    );
}

#[test]
fn each_type_and_its_survival_are_within_four_standard_errors() {
    for (workload, seed) in [(&["known", "400000"][..], 1), (&["trees", "17", "400"], 2)] {
        for interval in ["4K", "64K"] {
            let outcome = run(workload).observed(&Agent::at_interval(interval).seeded(seed));
            let truth = truth(&outcome);
            let profile = outcome.profile();
            let mut exact = 0.0;
            for (name, known) in &truth.types {
                exact += known.bytes;
                let Some(found) = profile.report["types"]
                    .as_array()
                    .expect("types")
                    .iter()
                    .find(|row| row["type"] == *name)
                else {
                    // Nothing seen: less than 3 intervals with 95 % confidence, and with 4 standard errors 16.
                    assert!(known.bytes < 16.0 * 65536.0, "{name} is missing");
                    continue;
                };
                let stderr = figure(found, "allocated_bytes_stderr").max(1.0);
                let error = figure(found, "allocated_bytes") - known.bytes;
                assert!(error.abs() <= 4.0 * stderr, "{name}: {error} +- {stderr}");
                let ratio = known.survived / known.bytes;
                let found_ratio = figure(found, "survived_ratio");
                // Of a share of n samples, which have weights of one order.
                let stderr = (ratio * (1.0 - ratio) / figure(found, "samples")).sqrt();
                assert!(
                    (found_ratio - ratio).abs() <= 4.0 * stderr + 1e-9,
                    "{name}: {found_ratio} of {ratio} +- {stderr}"
                );
            }
            let heap = profile.row("heaps", "name", HEAP);
            assert_eq!(figure(heap, "allocated_bytes_exact"), exact);
        }
    }
}

#[test]
fn native_frames_and_the_machines_own_stand_in_their_true_order() {
    let outcome = run(&["mixed"]).observed(&Agent::at_interval("4K"));
    let stacks = outcome.assert_success().profile().stacks();
    let wanted = [
        "main",
        "vm_run",
        "outer",
        "native_extension",
        "vm_run",
        "inner",
        "allocate_nodes",
        "vm_new",
        "vm_allocate",
    ];
    let has_all = |stack: &[String]| {
        let mut left = wanted.iter();
        let mut next = left.next();
        for frame in stack {
            if next.is_some_and(|name| frame == name) {
                next = left.next();
            }
        }
        next.is_none()
    };
    let of_machine: Vec<_> = stacks
        .iter()
        .filter(|(stack, _)| stack.iter().any(|frame| frame == "allocate_nodes"))
        .collect();
    assert!(!of_machine.is_empty(), "{stacks:?}");
    for (stack, _) in of_machine {
        assert!(has_all(stack), "{stack:?}");
        assert!(!stack.iter().any(|frame| frame == "loop"), "{stack:?}");
    }
}

#[test]
fn a_deep_recursion_is_whole_or_says_that_it_is_not() {
    for (depth, is_whole) in [("4096", true), ("300", false)] {
        let agent = Agent::at_interval("4K").with("ALLOCSAMPLE_MAX_DEPTH", depth);
        let stacks = run(&["deep", "2000"]).observed(&agent).profile().stacks();
        let (stack, _) = stacks
            .iter()
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .expect("a stack");
        let descents = stack.iter().filter(|frame| *frame == "descend").count();
        assert_eq!(descents == 2001, is_whole, "{descents} frames");
        assert_eq!(stack[0] == "(truncated)", !is_whole, "{}", stack[0]);
    }
}

#[test]
fn threads_may_come_go_and_switch_sampling_on_and_off() {
    let bare = run(&["threads", "24", "toggle"]).bare();
    for interval in ["1", "8K", "64K"] {
        let outcome = run(&["threads", "24", "toggle"]).observed(&Agent::at_interval(interval));
        outcome.assert_same_as(&bare);
        let profile = outcome.profile();
        let heap = profile.row("heaps", "name", HEAP);
        assert!(figure(heap, "allocated_bytes_exact") > 1e6);
        // What the ring had no room for is counted.
        let told = figure(heap, "allocated_bytes") + profile.number("lost_bytes");
        let error = told - figure(heap, "allocated_bytes_exact");
        let stderr = figure(heap, "allocated_bytes_stderr");
        assert!(error.abs() <= 5.0 * stderr, "{error} +- {stderr}");
    }
}

#[test]
fn the_fast_path_is_the_same_code_with_and_without_the_abi() {
    if !is_installed("objdump") {
        skip("no objdump (Debian: binutils)");
        return;
    }
    let directory = Directory::new();
    let disassembly = |flags: &[&str]| {
        let object = directory.join("gc.o");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vms/gc.c");
        let status = Command::new("cc")
            .args(["-std=gnu11", "-O2", "-ffunction-sections", "-c", "-o"])
            .arg(&object)
            .args(flags)
            .arg(source)
            .status()
            .expect("cc");
        assert!(status.success());
        let output = Command::new("objdump")
            .args(["-dr", "--no-show-raw-insn", "--section=.text.vm_allocate"])
            .arg(&object)
            .output()
            .expect("objdump");
        String::from_utf8(output.stdout).expect("text")
    };
    let with = disassembly(&[]);
    assert!(with.contains("<vm_allocate>:"), "{with}");
    assert_eq!(with, disassembly(&["-DWITHOUT_ALLOCSAMPLE"]));
}

/// Instructions of the interpreter loop and of what it calls, as callgrind counts them.
fn instructions(program: &Program, workload: &[&str], preloaded: Option<&Path>) -> f64 {
    let directory = Directory::new();
    let counts = directory.join("counts");
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--quiet", "--toggle-collect=loop*"])
        .arg(format!("--callgrind-out-file={}", counts.display()))
        .arg(program.path())
        .args(workload)
        .env("ALLOCSAMPLE_INTERVAL", "off")
        .env_remove("LD_PRELOAD");
    if let Some(library) = preloaded {
        command.env("LD_PRELOAD", library);
    }
    let output = command.output().expect("valgrind");
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(counts).expect("counts");
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    total.expect("a total").trim().parse().expect("a number")
}

#[test]
fn a_machine_that_nobody_samples_runs_no_more_instructions() {
    if !is_installed("valgrind") {
        skip("no valgrind");
        return;
    }
    let workload = ["trees", "14", "100"];
    let unaware = Program::compiled_with("../vms/main.c", &["-DWITHOUT_ALLOCSAMPLE"]);
    let expected = instructions(&unaware, &workload, None);
    assert!(expected > 1e7, "the workload is not idle: {expected}");
    let absent = instructions(&machine(), &workload, None);
    // The compiler may find it a little shorter: the slow paths are other code.
    assert!(absent < expected * 1.001, "{absent} of {expected}");
    let off = instructions(
        &machine(),
        &workload,
        Some(&crate::support::agent_library()),
    );
    let difference = (off - absent).abs() / absent;
    assert!(difference < 0.001, "{off} instead of {absent}");
}

#[test]
fn more_than_65536_samples_may_be_pending() {
    let outcome = run(&["trees", "16", "1"]).observed(&Agent::at_interval(1));
    let known = truth(&outcome).types["Node"];
    assert!(known.survived / known.bytes > 0.5 && known.objects > 131_000.0);
    let profile = outcome.profile();
    let found = profile.row("types", "type", "Node");
    assert_eq!(figure(found, "survived_bytes"), known.survived);
    assert_eq!(figure(found, "samples"), known.objects);
}

#[test]
fn sanitizers_find_nothing_in_24_threads_that_switch_at_random() {
    // The agent itself is not instrumented: what it does is judged by loom and by the tests of its rooms.
    let directory = Directory::new();
    let file = directory.join("tsan.supp");
    std::fs::write(&file, "called_from_lib:liballocsample.so\n").expect("a file");
    let suppressions = format!("suppressions={} report_thread_leaks=0", file.display());
    for sanitizer in ["-fsanitize=thread", "-fsanitize=address"] {
        let program = Program::compiled_with("../vms/main.c", &[sanitizer, "-O1"]);
        // The sanitizer's allocator is the program's own; the hooks are what is tested.
        let outcome = program
            .run()
            .args(&["threads", "24", "toggle"])
            .env("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0")
            .env("TSAN_OPTIONS", &suppressions)
            .observed(&Agent::at_interval("4K"));
        outcome.assert_success();
        assert_eq!(outcome.complaints(), "", "{sanitizer}");
        let profile = outcome.profile();
        assert!(figure(profile.row("heaps", "name", HEAP), "samples") > 100.0);
    }
}

#[test]
fn each_step_of_the_guide_works_by_itself() {
    let run = |step: u32| {
        let flag = format!("-DSTEP={step}");
        Program::compiled_with("../vms/guide.c", &[&flag])
            .run()
            .arg("100000")
    };
    let bare = run(0).bare();
    let text = bare.text();
    let numbers: Vec<f64> = text
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [allocated, survived, collections] = numbers[..] else {
        panic!("{text}");
    };
    assert!(survived > 0.0 && collections > 100.0, "{text}");
    for step in 1..=6 {
        // Without an agent, and with one.
        run(step).bare().assert_same_as(&bare);
        let outcome = run(step).observed(&Agent::at_interval(1));
        outcome.assert_same_as(&bare);
        let profile = outcome.profile();
        let name = "org.example.guide";
        let heap = profile.row("heaps", "name", name);
        if step == 1 {
            assert_eq!(figure(heap, "allocated_bytes"), 0.0);
            continue;
        }
        // Nobody has said what died.
        let live = if step < 4 { allocated } else { survived };
        let of_step = |since: u32, value: f64| if step >= since { value } else { 0.0 };
        for (column, wanted) in [
            ("allocated_bytes", allocated),
            ("allocated_bytes_exact", allocated),
            ("survived_bytes", of_step(4, survived)),
            ("live_bytes", live),
            ("minor_collections", of_step(5, collections)),
        ] {
            assert_eq!(figure(heap, column), wanted, "{column} in step {step}");
        }
        if step >= 3 {
            let node = profile.row("types", "type", "Node");
            assert_eq!(figure(node, "allocated_bytes"), allocated, "{step}");
        }
        if step >= 6 {
            let inner = profile.row("functions", "function", "inner");
            assert_eq!(figure(inner, "self_allocated_bytes"), allocated);
        }
    }
}

/// What is looked at in the viewer, without the viewer.
#[test]
fn firefox_shows_a_heaps_fates_collections_and_memory() {
    let agent = Agent::at_interval("4K").with("ALLOCSAMPLE_TIME_HZ", 200);
    let outcome = run(&["trees", "18", "200"]).observed(&agent);
    outcome.assert_success();
    let path = outcome.profile().path().to_owned();
    let output = path.with_extension("firefox.json");
    let status = Command::new(crate::support::command())
        .args(["convert", "--to", "firefox", "-o"])
        .args([&output, &path])
        .status();
    assert!(status.expect("the command").success());
    let text = std::fs::read(&output).expect("the document");
    let document: Value = serde_json::from_slice(&text).expect("JSON");
    let list = |value: &Value| value.as_array().expect("a list").clone();
    // Two labelled time lines: the process, and the heap; and the thread's time.
    let threads = list(&document["threads"]);
    let processes: std::collections::BTreeSet<_> = threads
        .iter()
        .filter(|thread| thread["isMainThread"] == true)
        .map(|thread| thread["processName"].as_str().expect("a name"))
        .collect();
    assert_eq!(processes.len(), 2, "{processes:?}");
    let has = |suffix: &str| {
        let mut names = threads.iter().filter_map(|thread| thread["name"].as_str());
        names.any(|name| name.ends_with(suffix))
    };
    assert!(has(" (allocations)") && has(" (time)") && has(HEAP));
    // Three tracks of memory with names of their own.
    let tracks: std::collections::BTreeSet<String> = list(&document["counters"])
        .iter()
        .filter(|counter| counter["category"] == "Memory")
        .map(|counter| counter["name"].as_str().expect("a name").to_owned())
        .collect();
    for name in [
        "Resident set",
        "Live bytes in org.example.vm",
        "org.example.vm: old space",
    ] {
        assert!(tracks.contains(name), "no {name} in {tracks:?}");
    }
    // Types as leaves, green and red.
    let categories = list(&document["meta"]["categories"]);
    let colour = |name: &str| {
        let category = categories.iter().find(|category| category["name"] == name);
        category.map(|category| category["color"].clone())
    };
    assert_eq!(colour("Died young"), Some("green".into()));
    assert_eq!(colour("Survived"), Some("red".into()));
    let heap = threads
        .iter()
        .find(|thread| {
            thread["name"]
                .as_str()
                .is_some_and(|name| name.ends_with(HEAP))
        })
        .expect("the heap");
    let strings = match &heap["stringArray"] {
        Value::Null => list(&document["shared"]["stringArray"]),
        own => list(own),
    };
    let leaves: std::collections::BTreeSet<(String, String)> =
        list(&heap["nativeAllocations"]["stack"])
            .iter()
            .filter_map(Value::as_u64)
            .map(|stack| {
                let frame = heap["stackTable"]["frame"][stack as usize].as_u64();
                let frame = frame.expect("a frame") as usize;
                let function = heap["frameTable"]["func"][frame].as_u64();
                let name = &heap["funcTable"]["name"][function.expect("a function") as usize];
                let category = heap["frameTable"]["category"][frame].as_u64();
                let category = &categories[category.expect("a category") as usize]["name"];
                (
                    strings[name.as_u64().expect("a name") as usize]
                        .as_str()
                        .expect("text")
                        .to_owned(),
                    category.as_str().expect("text").to_owned(),
                )
            })
            .collect();
    for (leaf, category) in [
        ("Node (died young)", "Died young"),
        ("Node (survived)", "Survived"),
    ] {
        let leaf = (leaf.to_owned(), category.to_owned());
        assert!(leaves.contains(&leaf), "{leaves:?}");
    }
    // Collections with their statistics.
    let markers = &heap["markers"];
    for kind in ["Minor collection", "Major collection"] {
        let names = list(&markers["name"]);
        let mut of_kind = names
            .iter()
            .zip(list(&markers["data"]))
            .filter(|(name, _)| strings[name.as_u64().expect("a name") as usize] == kind);
        let (_, data) = of_kind.next().expect("one at least");
        assert!(data["statistic0"].is_number(), "{data}");
    }
}

#[test]
fn a_machine_is_asked_to_collect_and_each_heap_says_what_became_of_it() {
    let program = Program::compiled("../vms/collects.c");
    let command = [&*program.path().to_string_lossy()];
    let mut machine = AtWork::start(Room::new(), &["--interval", "1"], &command);
    // It sleeps: the request waits for it, and the command does not.
    let (said, remark) = machine.ctl(&["gc"]);
    assert_eq!(said, "");
    assert!(
        remark.contains("when the program next allocates"),
        "{remark}"
    );
    machine.go_on();
    assert_eq!(machine.line(), "at work");
    let (said, _) = machine.ctl(&["gc"]);
    let lines: Vec<&str> = said.lines().collect();
    let [collects, declines, late, older] = lines[..] else {
        panic!("{said}");
    };
    assert_eq!(collects, "org.example.collects: collected");
    assert!(declines.starts_with("org.example.declines: not collected"));
    assert!(late.starts_with("org.example.late: requested, not yet done"));
    assert_eq!(older, "org.example.older: cannot be asked to collect");
    let marks = machine.query("SELECT marker FROM markers WHERE begin_ns <= end_ns");
    let marks = marks.as_array().expect("rows");
    let is_marked = |row: &Value| row["marker"] == "collection on request";
    assert!(marks.iter().any(is_marked), "{marks:?}");
    let (_room, profile) = machine.end();
    let heap = bridge::heap(&profile, "org.example.collects");
    assert_eq!(heap["live_bytes"], 50_000.0, "{heap}");
    assert_eq!(heap["live_examined_bytes"], 50_000.0, "{heap}");
}

#[test]
fn memory_that_a_machine_says_is_its_heap_is_garbage_or_free() {
    let program = Program::compiled("../vms/ranges.c");
    for arguments in [&[][..], &["rotate"]] {
        let room = Room::new();
        let program = program.path().to_string_lossy();
        let run = ["run", "-q", "-o", "x.allocsample", "--", &*program];
        let output = room.output(&[&run[..], arguments].concat());
        assert!(output.status.success(), "{output:?}");
        let memory = room.output(&["memory", "--format", "json", "x.allocsample"]);
        let memory: Value = serde_json::from_slice(&memory.stdout).expect("JSON");
        let rows = memory["last"]["rows"].as_array().expect("rows");
        let mib_of = |name: &str| {
            let row = rows.iter().find(|row| row["name"] == name);
            let row = row.unwrap_or_else(|| panic!("{arguments:?}: no {name}: {rows:?}"));
            row["resident_bytes"].as_f64().expect("bytes") / f64::from(1 << 20)
        };
        let live = mib_of("org.example.ranges: live objects");
        let rest = mib_of("org.example.ranges: garbage or free");
        assert!((live - 1.0).abs() < 0.01, "{arguments:?}: {live}");
        // The list of mappings may be read while the program touches the last of them.
        assert!(rest > 16.0 && rest < 63.01, "{arguments:?}: {rest}");
        let others = mib_of("mapped by ranges");
        assert!(others > 16.0 && others < 32.1, "{arguments:?}: {others}");
    }
}
