//! Promise: code that a compiler puts where other code was has its own name at each time.
#![cfg(target_arch = "x86_64")]

use std::fs;

use crate::support::profile::Profile;
use crate::support::room::stderr;
use crate::support::{Agent, Program, Room, truth};

/// Runs the compiler in small; its names are in the profile, and its dump is gone.
fn profile(interval: &str) -> (Profile, truth::Truth, Room) {
    let room = Room::new();
    room.add(&Program::compiled("jit.c"), "jit");
    let options = ["run", "-q", "--seed", "7", "--interval", interval];
    let output = room.output(&[&options[..], &["-o", "x.allocsample", "--", "./jit"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    for name in room.names() {
        if name.starts_with("jit-") {
            fs::remove_file(room.path(&name)).expect("the dump");
        }
    }
    let profile = Profile::read(&room.path("x.allocsample"));
    (profile, truth::printed(&output.stdout), room)
}

#[test]
fn each_function_is_charged_for_its_own_time() {
    for interval in ["1", "16K"] {
        let (profile, mut known, _room) = profile(interval);
        assert_eq!(known.len(), 4);
        // Once more at its end, where it has moved to, and that block is kept.
        let first = known.get_mut("first").expect("first");
        first.bytes += 1000;
        first.live_bytes += 1000;
        let deviations = truth::deviations(&profile, &known, 4.0, |_| 0.0);
        // A live block that was not sampled has no error to measure with.
        let of_bytes: Vec<_> = deviations
            .iter()
            .filter(|line| interval == "1" || !line.contains("live"))
            .collect();
        assert!(of_bytes.is_empty(), "{interval}: {of_bytes:#?}");
    }
}

#[test]
fn lines_stay_with_their_code() {
    let (profile, _, _room) = profile("16K");
    let lines = profile.report["lines"].as_array().expect("lines");
    let line_of = |name: &str| {
        let mut of_function = lines.iter().filter(|line| line["function"] == name);
        of_function.next().expect("a line").clone()
    };
    assert_eq!(line_of("first")["line"], 11);
    assert_eq!(line_of("first")["file"], "made.src");
    assert!(line_of("second")["file"].is_null(), "{}", line_of("second"));
}

#[test]
fn other_formats_have_the_names() {
    let (profile, _, _room) = profile("16K");
    let stacks = profile.stacks();
    for name in ["first", "second", "third", "fourth"] {
        let leaf = |stack: &[String]| stack.last().is_some_and(|leaf| leaf == name);
        assert!(stacks.iter().any(|(stack, _)| leaf(stack)), "{name}");
    }
}

#[test]
fn a_stack_through_code_that_was_written_over_is_walked_by_the_new_code() {
    let program = Program::compiled_with("rewritten_code.c", &["-fno-omit-frame-pointer"]);
    let outcome = program.run().observed(&Agent::at_interval(1));
    let stacks = outcome.assert_success().profile().stacks();
    let to_after = stacks
        .iter()
        .filter(|(stack, _)| stack.last().is_some_and(|leaf| leaf == "after"));
    let mut bytes = 0.0;
    for (stack, weight) in to_after {
        assert!(stack.iter().any(|name| name == "calls"), "{stack:?}");
        bytes += weight;
    }
    assert_eq!(bytes, 20.0 * 100.0);
}
