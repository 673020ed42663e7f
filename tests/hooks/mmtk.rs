//! Promise: a machine on a real framework of collectors hosts the hook ABI with its allocator's fast path as it was, runs
//! as without it, and its profile is exact where it can be.
//!
//! Builds `tests/vms/mmtk_host`, a package of its own: two minutes the first time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::profile::figure;
use crate::support::{Agent, Outcome, Run, scratch};

const HEAP: &str = "org.example.mmtk";
const TYPES: [&str; 3] = ["Node", "Text", "Array"];

fn machine(arguments: &[&str]) -> Run {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let target = scratch().join("mmtk_host");
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vms/mmtk_host/Cargo.toml");
        let output = Command::new(env!("CARGO"))
            .args([
                "build",
                "--release",
                "--locked",
                "--quiet",
                "--manifest-path",
            ])
            .arg(manifest)
            .env("CARGO_TARGET_DIR", &target)
            .output()
            .expect("cargo");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        target.join("release/mmtk-host")
    });
    Run::of(program).args(arguments)
}

/// Numbers of the line that begins so: of a type its objects, bytes, and bytes that nursery collections copied; of the
/// collections the minor and the major ones.
fn printed(outcome: &Outcome, start: &str) -> Vec<f64> {
    let said = outcome.complaints();
    let line = said.lines().find_map(|line| line.strip_prefix(start));
    line.unwrap_or_else(|| panic!("no {start} in {said}"))
        .split_whitespace()
        .map(|number| number.parse().expect("a number"))
        .collect()
}

const GENERATIONS: &[&str] = &["GenCopy", "12", "100"];
const SEMISPACE: &[&str] = &["SemiSpace", "12", "60"];

#[test]
fn the_framework_collects_when_it_would_have_collected_anyway() {
    for workload in [GENERATIONS, SEMISPACE] {
        let bare = machine(workload).bare();
        bare.assert_success();
        // What was allocated, what nursery collections copied, and how many collections there were.
        for interval in ["off", "1", "100", "64K", "8M"] {
            machine(workload)
                .observed(&Agent::at_interval(interval))
                .assert_same_as(&bare);
        }
    }
}

#[test]
fn at_interval_1_everything_is_exact() {
    for workload in [GENERATIONS, SEMISPACE] {
        let outcome = machine(workload).observed(&Agent::at_interval(1));
        let profile = outcome.assert_success().profile();
        assert_eq!(profile.number("lost_samples"), 0.0);
        let mut sum = 0.0;
        for name in TYPES {
            let [objects, bytes, promoted] = printed(&outcome, &format!("type {name} "))[..] else {
                panic!("three numbers");
            };
            let found = profile.row("types", "type", name);
            assert_eq!(figure(found, "samples"), objects, "{name}");
            assert_eq!(figure(found, "allocated_bytes"), bytes, "{name}");
            // Arrays are large: they survive without a copy. SemiSpace has no nursery.
            if name != "Array" && workload == GENERATIONS {
                assert_eq!(figure(found, "survived_bytes"), promoted, "{name}");
            }
            sum += bytes;
        }
        let [minor, major] = printed(&outcome, "collections ")[..] else {
            panic!("two numbers");
        };
        assert!(major > 0.0);
        let heap = profile.row("heaps", "name", HEAP);
        assert_eq!(figure(heap, "allocated_bytes_exact"), sum);
        assert_eq!(figure(heap, "allocated_bytes"), sum);
        assert_eq!(figure(heap, "minor_collections"), minor);
        assert_eq!(figure(heap, "major_collections"), major);
        // The tree that lives to the end, and not much that no collection has looked at since.
        let kept = 24.0 * f64::from((2 << workload[1].parse::<u32>().expect("depth")) - 1);
        let live = figure(profile.row("types", "type", "Node"), "live_bytes");
        assert!(live >= kept && live < 0.5 * sum, "{live} of {sum}");
    }
}

#[test]
fn several_threads_are_estimated_within_their_errors() {
    for (interval, seed) in [("4K", 1), ("64K", 2)] {
        let outcome = machine(&["GenCopy", "12", "100", "4"])
            .observed(&Agent::at_interval(interval).seeded(seed));
        let profile = outcome.assert_success().profile();
        let mut sum = 0.0;
        for name in TYPES {
            let exact = printed(&outcome, &format!("type {name} "))[1];
            let found = profile.row("types", "type", name);
            let error = figure(found, "allocated_bytes") - exact;
            let stderr = figure(found, "allocated_bytes_stderr");
            assert!(error.abs() <= 4.0 * stderr, "{name}: {error} +- {stderr}");
            sum += exact;
        }
        let heap = profile.row("heaps", "name", HEAP);
        assert_eq!(figure(heap, "allocated_bytes_exact"), sum);
    }
}
