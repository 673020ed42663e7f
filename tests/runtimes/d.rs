//! Promise: blocks of D's collector, their deaths and collections are in the profile, and the program is as it was.

use std::process::Command;

use serde_json::Value;

use crate::support::attached::Attached;
use crate::support::compile::Compiled;
use crate::support::profile::Profile;
use crate::support::room::stdout;
use crate::support::{Agent, Outcome, Program, Room, Run, bridge, is_installed, skip, truth};

/// Compilers, with what makes them use a shared druntime.
const COMPILERS: [(&str, &str); 2] = [
    ("gdc", "-shared-libphobos"),
    ("ldc2", "-link-defaultlib-shared"),
];

fn compiled(compiler: &str, flag: &str, source: &str) -> Compiled {
    Compiled::in_directory(|directory| {
        let path = directory.join("program");
        let output = match compiler {
            "gdc" => format!("-o{}", path.display()),
            _ => format!("-of={}", path.display()),
        };
        let done = Command::new(compiler)
            .args(["-O2", "-g", flag, &output])
            .arg(bridge::program(source))
            .output()
            .expect("a compiler of D");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{compiler} {flag}: {said}");
        path
    })
}

fn compilers() -> Vec<(&'static str, &'static str)> {
    let there = COMPILERS.into_iter().filter(|(name, _)| {
        let is_there = is_installed(name);
        if !is_there {
            skip(&format!("no {name} (Debian: gdc, ldc)"));
        }
        is_there
    });
    there.collect()
}

fn run(program: &Compiled, arguments: &[&str], agent: &Agent) -> Outcome {
    let outcome = Run::of(&**program).args(arguments).observed(agent);
    outcome.assert_success();
    outcome
}

#[test]
fn each_site_is_within_its_error() {
    for (compiler, shared) in compilers() {
        let program = compiled(compiler, shared, "known_sites.d");
        for (interval, arguments) in [("4K", ["2000", "1"]), ("16K", ["4000", "4"])] {
            let outcome = run(&program, &arguments, &Agent::at_interval(interval));
            let profile = outcome.profile();
            let known = truth::printed(outcome.text().as_bytes());
            assert!(known.len() >= 6, "{known:?}");
            for (name, known) in known {
                let site = profile.site(&format!("known_sites.{name}"));
                let z = truth::z(
                    site.allocated_bytes,
                    known.bytes as f64,
                    site.allocated_bytes_stderr,
                );
                assert!(z.abs() < 4.0, "{compiler} {interval} {name}: z {z:+.1}");
                // The collector takes numbers for references: a few of the dead seem to live.
                let spared = 0.01 * known.bytes as f64;
                let error = 4.0 * site.live_bytes_stderr + spared;
                let difference = (site.live_bytes - known.live_bytes as f64).abs();
                assert!(
                    difference < error,
                    "{compiler} {interval} {name}: {site:?}, {known:?}"
                );
            }
            let z = profile.report["audit"]["z"].as_f64().expect("an audit");
            assert!(z.abs() < 4.0, "{compiler}: audit {z}");
        }
    }
}

#[test]
fn collections_and_stacks_are_told() {
    for (compiler, shared) in compilers() {
        let program = compiled(compiler, shared, "known_sites.d");
        let outcome = run(&program, &["4000", "2"], &Agent::at_interval("16K"));
        let profile = outcome.profile();
        let heap = bridge::heap(&profile, "d");
        assert!(heap["major_collections"].as_f64() >= Some(1.0), "{heap}");
        assert!(heap["gc_time_s"].as_f64() > Some(0.0), "{heap}");
        let stacks = profile.stacks();
        let is_whole = stacks.iter().any(|(stack, _)| {
            let at = |name: &str| stack.iter().position(|frame| frame == name);
            at("known_sites.work").is_some()
                && at("known_sites.work") < at("known_sites.small_dropped")
        });
        assert!(is_whole, "{compiler}: no stack from work to small_dropped");
        for (stack, _) in &stacks {
            let ours = stack.iter().any(|frame| frame.contains("liballocsample"));
            assert!(!ours, "{stack:?}");
        }
    }
}

/// What they grow by is a part of their blocks.
#[test]
fn arrays_that_grow_in_place_are_as_large_as_their_blocks() {
    for (compiler, shared) in compilers() {
        let program = compiled(compiler, shared, "grows_arrays.d");
        let outcome = run(&program, &[], &Agent::at_interval("16K"));
        let profile = outcome.profile();
        let known: Value = serde_json::from_str(&outcome.text()).expect("what is alive");
        for (name, known) in known.as_object().expect("sites") {
            let site = profile.site(&format!("grows_arrays.{name}"));
            let known = known["live_bytes"].as_f64().expect("bytes");
            let error = 4.0 * site.live_bytes_stderr + 0.01 * known;
            let difference = (site.live_bytes - known).abs();
            assert!(
                difference < error,
                "{compiler} {name}: {site:?}, {known} live"
            );
        }
    }
}

/// A program that is attached to, and does what it is told beside so many threads that allocate and collect all the time.
fn running(compiler: &str, shared: &str, threads: &str) -> Attached {
    let program = compiled(compiler, shared, "attached.d");
    Attached::start_as(|room| {
        let file = room.path("program");
        std::fs::copy(&*program, &file).expect("the program");
        let mut command = Command::new(file);
        command.arg(threads);
        command
    })
}

#[test]
fn a_running_program_is_attached_to() {
    for (compiler, shared) in compilers() {
        bridge::assert_joined_by_attach(
            running(compiler, shared, "0"),
            &bridge::Work {
                stack: &["attached.work", "attached.grow"],
                bytes: 3000.0,
                answer: 2999,
            },
        );
    }
}

/// Threads stand anywhere in a collection at an attach and at a detach. They check what their blocks hold.
#[test]
fn threads_that_collect_without_a_pause_are_attached_to_and_detached_from() {
    const CYCLES: usize = 25;
    const COUNT: u32 = 5000;
    for (compiler, shared) in compilers() {
        let mut running = running(compiler, shared, "4");
        for cycle in 0..CYCLES {
            running.attach(&["--interval", "64K"]);
            let before: u64 = running.ask("rounds").parse().expect("a number");
            let answer = running.ask(&COUNT.to_string());
            assert_eq!(answer, (COUNT * 2999).to_string());
            while running.ask("rounds").parse::<u64>().expect("a number") < before + 20_000 {}
            let profile = running.detach();
            let heap = bridge::heap(&profile, "d");
            // Each thread has 64 arrays of up to 4 KB, beside what it has allocated since the last collection.
            assert!(
                heap["live_bytes"].as_f64() < Some(50e6),
                "{compiler}, cycle {cycle}: {heap}"
            );
            assert!(heap["major_collections"].as_f64() > Some(3.0), "{heap}");
            bridge::assert_audit(&profile);
        }
        assert_eq!(running.end(3).1.code(), Some(3));
    }
}

/// The calls of a druntime inside of the program do not pass by us.
#[test]
fn a_druntime_inside_of_the_program_is_named() {
    if !compilers().iter().any(|(compiler, _)| *compiler == "gdc") {
        return;
    }
    let program = compiled("gdc", "-static-libphobos", "known_sites.d");
    let outcome = run(&program, &["2000", "1"], &Agent::at_interval("16K"));
    let profile = outcome.profile();
    assert!(!bridge::has_heap(&profile, "d"));
    let report = profile.report.to_string();
    assert!(
        report.contains("D: what its collector manages is not sampled"),
        "{report}"
    );
    assert!(report.contains("gc:manual"), "{report}");
}

/// druntime throws at whoever asks for a size there.
#[test]
fn blocks_that_finalizers_free_are_left_alone() {
    for (compiler, shared) in compilers() {
        let program = compiled(compiler, shared, "frees_in_finalizers.d");
        let outcome = Run::of(&*program).unchanged(&Agent::at_interval("4K"));
        outcome.assert_success();
        let heap = bridge::heap(&outcome.profile(), "d").clone();
        assert!(
            heap["live_bytes"].as_f64() < Some(1e6),
            "{compiler}: {heap}"
        );
    }
}

/// Our entries stand before functions of these names in every process, with whatever arguments.
#[test]
fn functions_of_others_with_the_collector_s_names_are_called_as_without_the_agent() {
    let library = |number: &str| {
        let define = format!("-DNUMBER={number}");
        Program::library(
            "own_gc_free.c",
            &format!("own_{number}.so"),
            &["-O1", &define],
        )
    };
    let [first, second] = ["1", "2"].map(library);
    let program = Program::compiled_with("opens_own_gc_free.c", &["-ldl"]);
    let paths = [first.path(), second.path()].map(|it| it.to_str().expect("UTF-8"));
    let agent = Agent::at_interval("4K");
    program
        .run()
        .args(&paths)
        .unchanged(&agent)
        .assert_success();
    // The same where one of them comes next in the program's order.
    let preloaded = program.run().args(&paths[..1]);
    let outcome = preloaded.preload_after_agent(first.path()).observed(&agent);
    outcome.assert_success();
    assert_eq!(outcome.text(), "done\n");
}

/// A program with a collector of its own that has druntime's functions, of 2.111 and later, and what its report says.
fn own_druntime(flags: &[&str]) -> (Profile, String) {
    let library = [&["-O1", "-DLIBRARY"], flags].concat();
    let library = Program::library("own_druntime.c", "libown_druntime.so", &library);
    let path = library.path().to_str().expect("UTF-8");
    let program = Program::compiled_with("own_druntime.c", &[path]);
    let room = Room::new();
    room.add(&program, "program");
    let run = [
        "run",
        "-q",
        "--seed=7",
        "--interval=16K",
        "-o",
        "x.allocsample",
        "--",
        "./program",
    ];
    assert_eq!(stdout(&room.output(&run)), "done\n");
    let report = stdout(&room.output(&["report", "x.allocsample"]));
    (Profile::read(&room.path("x.allocsample")), report)
}

/// The function that hears of marks has a name of D's: its module, its attributes and the order of its arguments may be others.
#[test]
fn a_druntime_without_a_c_name_for_marks_is_joined() {
    for flags in [&[][..], &["-DIN_AN_OTHER_MODULE"], &["-DDELEGATE_FIRST"]] {
        let (profile, _) = own_druntime(flags);
        for (name, allocated, live) in [
            ("dropped", 12e6, 0.0),
            ("kept", 8e6, 8e6),
            ("grown", 8_003_584.0, 8_003_584.0),
        ] {
            let site = profile.site(name);
            let z = truth::z(site.allocated_bytes, allocated, site.allocated_bytes_stderr);
            assert!(z.abs() < 4.0, "{flags:?} {name}: {site:?}");
            let difference = (site.live_bytes - live).abs();
            assert!(
                difference <= 4.0 * site.live_bytes_stderr,
                "{flags:?} {name}: {site:?}"
            );
        }
        assert_eq!(
            bridge::heap(&profile, "d")["major_collections"].as_f64(),
            Some(8.0)
        );
    }
}

#[test]
fn a_druntime_whose_marks_cannot_be_had_is_off_and_the_report_says_so() {
    for (flag, line) in [
        (
            "-DDIRECT_CALLS",
            "what its collector manages is not sampled: druntime's function for marks is called directly",
        ),
        (
            "-DUNSEEN",
            "D's collector calls its functions in another way than known ones",
        ),
        (
            "-DOTHER_ANSWERS",
            "D's collector marks blocks in another way than known ones",
        ),
    ] {
        let (profile, report) = own_druntime(&[flag]);
        assert!(report.contains(line), "{flag}: {report}");
        assert_eq!(
            bridge::heap(&profile, "d")["live_bytes"].as_f64(),
            Some(0.0)
        );
    }
}
