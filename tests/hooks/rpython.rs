//! Promise: RPython's own collector can host the hook ABI, runs as without it, and its profile is exact where it can be.
//!
//! Needs a CPython 2.7 and, for the first time, PyPI; says so and does nothing else where there is none.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::profile::figure;
use crate::support::{Agent, Outcome, Run, scratch, skip};

const HEAP: &str = "rpython";
const NODE: &str = "gcbench.Node";
/// Header and two references.
const NODE_BYTES: f64 = 24.0;

/// Where `integrations/pypy/run` has put its programs; `None` without a CPython 2.7.
fn programs() -> Option<&'static Path> {
    static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = DIRECTORY.get_or_init(|| {
        let directory = scratch().join("rpython");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("integrations/pypy/run");
        let output = Command::new(script)
            .arg("--build")
            .arg(&directory)
            .output()
            .expect("bash");
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => Some(directory),
            Some(77) => None,
            status => panic!("run --build: {status:?}\n{said}"),
        }
    });
    if built.is_none() {
        skip("no CPython 2.7, which RPython is translated with");
    }
    built.as_deref()
}

fn program(directory: &Path, name: &str, depth: u32, rounds: u32) -> Run {
    Run::of(directory.join(name))
        .arg(depth.to_string())
        .arg(rounds.to_string())
        .env("PYPY_GC_NURSERY", "1M")
        .env("PYPYLOG", "gc:log")
}

/// What the collector has logged of itself, without the times: each collection with the memory in use behind it.
fn collections(outcome: &Outcome) -> Vec<String> {
    fs::read_to_string(outcome.work().join("log"))
        .expect("a log")
        .lines()
        .map(|line| match line.split_once("] ") {
            Some((_, event)) => event.to_owned(),
            None => line.to_owned(),
        })
        .collect()
}

/// A number that the program prints.
fn printed(outcome: &Outcome, name: &str) -> f64 {
    outcome
        .complaints()
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        .unwrap_or_else(|| panic!("no {name} in {:?}", outcome.complaints()))
}

#[test]
fn the_collector_collects_when_it_would_have_collected_anyway() {
    let Some(directory) = programs() else {
        return;
    };
    let plain = program(directory, "gcbench-plain", 12, 20).bare();
    plain.assert_success();
    let expected = collections(&plain);
    let pinned = expected
        .iter()
        .filter(|line| *line == "number of pinned objects: 2");
    assert!(pinned.count() > 0, "nurseries with holes are met");
    let hosted = program(directory, "gcbench-hosted", 12, 20);
    let alone = hosted.bare();
    alone.assert_same_as(&plain);
    assert_eq!(collections(&alone), expected, "edited, and alone");
    for interval in ["off", "1", "100", "64K", "3M", "1G"] {
        let observed = hosted.observed(&Agent::at_interval(interval));
        observed.assert_same_as(&plain);
        assert_eq!(collections(&observed), expected, "at interval {interval}");
    }
}

#[test]
fn a_nursery_of_no_size_is_sampled_too() {
    let Some(directory) = programs() else {
        return;
    };
    // The collector's own debugging aid: a minor collection for each few objects.
    let tiny = |name| program(directory, name, 6, 2).env("PYPY_GC_NURSERY", "1000");
    let plain = tiny("gcbench-plain").bare();
    plain.assert_success();
    let observed = tiny("gcbench-hosted").observed(&Agent::at_interval(1));
    observed.assert_same_as(&plain);
    assert_eq!(collections(&observed), collections(&plain));
    assert_exact(&observed);
}

/// At interval 1: each node and each array is a sample, and a collection has looked at each.
fn assert_exact(outcome: &Outcome) {
    let nodes = printed(outcome, "nodes ");
    let profile = outcome.profile();
    assert_eq!(profile.number("lost_samples"), 0.0);
    let found = profile.row("types", "type", NODE);
    assert_eq!(figure(found, "samples"), nodes);
    assert_eq!(figure(found, "allocated_bytes"), nodes * NODE_BYTES);
    assert_eq!(
        figure(found, "survived_bytes") + figure(found, "died_young_bytes"),
        nodes * NODE_BYTES,
        "each node is resolved once"
    );
    let arrays = profile.row("types", "type", "array of * GcStruct object");
    assert_eq!(figure(arrays, "samples"), printed(outcome, "arrays "));
    let mut bytes = 0.0;
    for row in profile.report["types"].as_array().expect("types") {
        if row["heap"] == HEAP {
            bytes += figure(row, "allocated_bytes");
        }
    }
    let heap = profile.row("heaps", "name", HEAP);
    let exact = figure(heap, "allocated_bytes_exact");
    assert_eq!(figure(heap, "allocated_bytes"), exact);
    // No collection has looked at the strings that were printed last.
    assert!(bytes <= exact && bytes > exact - 1024.0, "{bytes} {exact}");
    let minor = collections(outcome)
        .iter()
        .filter(|line| *line == "{gc-minor")
        .count();
    assert_eq!(figure(heap, "minor_collections"), minor as f64);
    assert!(figure(heap, "major_collections") > 0.0);
}

#[test]
fn at_interval_1_everything_is_exact() {
    let Some(directory) = programs() else {
        return;
    };
    let outcome = program(directory, "gcbench-hosted", 12, 20).observed(&Agent::at_interval(1));
    assert_exact(outcome.assert_success());
    // What is left is the long-lived tree, of 2^13 - 1 nodes, and those in the array that was kept.
    let profile = outcome.profile();
    let live = figure(profile.row("types", "type", NODE), "live_bytes");
    assert_eq!(live, 8192.0 * NODE_BYTES);
}

#[test]
fn estimates_are_within_four_standard_errors_and_blame_the_program() {
    let Some(directory) = programs() else {
        return;
    };
    let run = program(directory, "gcbench-hosted", 12, 40);
    let exact = run.observed(&Agent::at_interval(1)).profile();
    let exact = exact.row("types", "type", NODE);
    let survived = figure(exact, "survived_bytes") / figure(exact, "allocated_bytes");
    for (interval, seed) in [("4K", 1), ("32K", 2)] {
        let outcome = run.observed(&Agent::at_interval(interval).seeded(seed));
        let profile = outcome.assert_success().profile();
        let found = profile.row("types", "type", NODE);
        let stderr = figure(found, "allocated_bytes_stderr");
        let error = figure(found, "allocated_bytes") - figure(exact, "allocated_bytes");
        assert!(error.abs() <= 4.0 * stderr, "{error} +- {stderr}");
        let share = figure(found, "survived_bytes") / figure(found, "allocated_bytes");
        let stderr = (survived * (1.0 - survived) / figure(found, "samples")).sqrt();
        assert!(
            (share - survived).abs() <= 4.0 * stderr,
            "{share} of {survived}"
        );
        // Not the collector, which allocates for it. The compiler may have split a function.
        let mut blamed = 0.0;
        for row in profile.report["functions"].as_array().expect("functions") {
            let name = row["function"].as_str().expect("a name");
            if ["pypy_g_bottom_up", "pypy_g_top_down"]
                .iter()
                .any(|start| name.starts_with(start))
            {
                blamed += figure(row, "self_allocated_bytes");
            }
        }
        let heap = profile.row("heaps", "name", HEAP);
        assert!(blamed > 0.8 * figure(heap, "allocated_bytes"), "{blamed}");
    }
}
