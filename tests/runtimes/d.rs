//! Promise: blocks of D's collector, their deaths and collections are in the profile, and the program is as it was.

use std::process::Command;

use crate::support::compile::Compiled;
use crate::support::{Agent, Outcome, Program, Run, bridge, is_installed, skip, truth};

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
