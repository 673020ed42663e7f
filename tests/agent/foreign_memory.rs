//! Promise: whatever a program does with its stacks, frames and heaps, reading them never faults.
//!
//! Walkers of bridges are compiled into programs that give them memory that is wrong in every way, from fixed seeds; and
//! programs that switch stacks run with many samples, and check what they compute.

use std::path::PathBuf;

use crate::support::python::interpreters_with;
use crate::support::{Agent, Program, Run, bridge};

fn walker(source: &str) -> Program {
    let shim = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("c_shim");
    let include = |path: PathBuf| format!("-I{}", path.display());
    let places = [shim.clone(), shim.join("include"), shim.join("bridges")];
    let flags = places.map(include);
    Program::compiled_with(source, &flags.each_ref().map(String::as_str))
}

#[test]
fn the_walk_of_pythons_frames_survives_any_memory() {
    let walker = walker("wrecked_python_frames.c");
    for minor in 8..=16 {
        // Without the interpreter's lock from 3.13 on. The last one is unknown, and described as the one before.
        let kinds: &[&str] = if minor < 13 { &[""] } else { &["", "t"] };
        for kind in kinds {
            let outcome = walker.run().arg(format!("3.{minor}.0{kind}")).bare();
            outcome.assert_success();
        }
    }
}

#[test]
fn what_python_says_of_its_structures_is_read_within_bounds_or_refused() {
    walker("hostile_python_offsets.c")
        .run()
        .bare()
        .assert_success();
}

fn coroutines(kind: &str, rounds: u32) {
    for python in interpreters_with(kind) {
        let outcome = Run::of(&python)
            .arg(bridge::program("greenlets.py"))
            .arg(kind)
            .arg(rounds.to_string())
            .patience(120)
            .observed(&Agent::at_interval("4K").seeded(7));
        outcome.assert_success();
        assert!(outcome.text().contains("all answers were right"));
        let profile = outcome.profile();
        let stacks = profile.stacks();
        let has = |name: &str| {
            let frames = stacks.iter().flat_map(|(stack, _)| stack);
            frames.filter(|frame| *frame == name).count() > 0
        };
        assert!(has("work") && has("nested"), "{}", python.display());
    }
}

#[test]
fn greenlets_that_are_killed_and_abandoned_are_sampled_without_harm() {
    coroutines("greenlet", 60);
}

#[test]
fn gevent_under_load_is_sampled_without_harm() {
    coroutines("gevent", 30);
}

#[test]
fn eventlet_under_load_is_sampled_without_harm() {
    coroutines("eventlet", 4);
}

#[test]
fn stacks_whose_frames_lead_anywhere_are_walked_without_harm() {
    let outcome = Program::compiled("wrecked_stacks.c")
        .run()
        .patience(120)
        .observed(&Agent::at_interval(1));
    outcome.assert_success();
    assert_eq!(outcome.text(), "walked\n");
}
