//! Promise: frames that a machine keeps itself are in the stacks, and what is broken in them loses no more than the rest
//! of that stack.

use crate::support::profile::Profile;
use crate::support::{Agent, Outcome, Program};

fn story(name: &str, agent: &Agent) -> Outcome {
    let run = Program::compiled("../vms/stacks.c").run().arg(name);
    let outcome = run.observed(agent);
    outcome.assert_success();
    outcome
}

/// The functions of the one object's stack, root first.
fn stack(profile: &Profile) -> Vec<String> {
    let stacks = profile.stacks();
    let own = |stack: &&(Vec<String>, f64)| {
        let names = ["allocate", "oldest", "newest"];
        stack.0.iter().any(|frame| names.contains(&frame.as_str()))
    };
    let (stack, bytes) = stacks.iter().find(own).expect("the object's stack");
    assert_eq!(*bytes, 64.0);
    stack.clone()
}

fn machine_frames(stack: &[String]) -> Vec<&str> {
    let own = ["oldest", "middle", "newest"];
    let names = stack.iter().map(String::as_str);
    names.filter(|name| own.contains(name)).collect()
}

#[test]
fn a_row_and_a_chain_are_read_where_they_lie() {
    for name in ["row", "chain"] {
        let stack = stack(&story(name, &Agent::at_interval(1)).profile());
        assert_eq!(machine_frames(&stack), ["oldest", "middle", "newest"]);
        assert!(stack.iter().any(|frame| frame == "main"), "{stack:?}");
        assert!(
            !stack.iter().any(|frame| frame.starts_with('(')),
            "{stack:?}"
        );
    }
}

#[test]
fn two_thousand_frames_are_whole_or_say_that_they_are_not() {
    let whole = Agent::at_interval(1).with("ALLOCSAMPLE_MAX_DEPTH", 4096);
    let found = stack(&story("deep", &whole).profile());
    assert_eq!(machine_frames(&found).len(), 2000);
    assert!(!found.iter().any(|frame| frame.starts_with('(')));
    let found = stack(&story("deep", &Agent::at_interval(1)).profile());
    assert_eq!(found.first().map(String::as_str), Some("(truncated)"));
    assert!(machine_frames(&found).len() <= 512);
}

#[test]
fn a_broken_frame_loses_the_rest_of_its_stack_alone() {
    let newest_two = &["middle", "newest"][..];
    for (name, expected) in [
        ("unmapped", newest_two),
        ("misaligned", newest_two),
        ("wild", newest_two),
        ("row_beyond", &[]),
        ("row_odd", &[]),
    ] {
        let stack = stack(&story(name, &Agent::at_interval(1)).profile());
        assert_eq!(machine_frames(&stack), expected, "{name}");
        assert_eq!(stack.first().map(String::as_str), Some("(unwind failed)"));
    }
    for name in ["loop", "self"] {
        let stack = stack(&story(name, &Agent::at_interval(1)).profile());
        let found = machine_frames(&stack);
        assert!((2..20).contains(&found.len()), "{name}: {found:?}");
        assert_eq!(found.last(), Some(&"newest"));
        assert_eq!(stack.first().map(String::as_str), Some("(unwind failed)"));
    }
}

#[test]
fn a_walker_that_returns_more_than_asked_has_filled_the_room() {
    let stack = stack(&story("walker", &Agent::at_interval(1)).profile());
    assert_eq!(stack.first().map(String::as_str), Some("(truncated)"));
    assert!(machine_frames(&stack).len() <= 512);
}

#[test]
fn a_function_stands_for_those_that_were_made_part_of_it() {
    let stack = stack(&story("inlined", &Agent::at_interval(1)).profile());
    assert_eq!(machine_frames(&stack), ["oldest", "middle", "newest"]);
}

#[test]
fn a_thread_that_is_switched_off_is_in_no_figure() {
    let profile = story("thread", &Agent::at_interval(1)).profile();
    assert_eq!(
        profile.site("allocated_by_a_thread").allocated_bytes,
        2000.0
    );
    assert_eq!(
        profile.total("allocated_bytes"),
        profile.total("allocated_bytes_exact")
    );
}

#[test]
fn samples_of_time_have_the_machines_frames() {
    let agent = Agent::at_interval(1).with("ALLOCSAMPLE_TIME_HZ", 200);
    let profile = story("busy", &agent).profile();
    let rows = profile.report["time"]["functions"]
        .as_array()
        .expect("rows")
        .clone();
    let total = |name: &str| {
        let row = rows.iter().find(|row| row["function"] == name);
        row.and_then(|row| row["total_s"].as_f64()).unwrap_or(0.0)
    };
    let busy_s = total("busy_in_the_machine");
    assert!(busy_s > 0.3, "{busy_s}");
    for name in ["oldest", "middle", "newest"] {
        assert!(total(name) >= busy_s, "{name}");
    }
}
