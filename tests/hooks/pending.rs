//! Promise: each sample of a collected heap is resolved once, whatever becomes of its thread, its heap or its process.

use crate::support::profile::Profile;
use crate::support::{Agent, Outcome, Program};
use serde_json::Value;

fn story(name: &str) -> Outcome {
    let run = Program::compiled("../vms/pending.c").run().arg(name);
    let outcome = run.observed(&Agent::at_interval(1));
    outcome.assert_success();
    outcome
}

/// Bytes of the objects: allocated, survived, died young.
fn objects(profile: &Profile) -> [f64; 3] {
    let types = profile.report["types"].as_array().expect("types");
    let row = types.iter().find(|row| row["type"] == "Object");
    let row = row.expect("the type of the objects");
    ["allocated_bytes", "survived_bytes", "died_young_bytes"]
        .map(|name| row[name].as_f64().unwrap_or_else(|| panic!("{row}")))
}

#[test]
fn a_childs_first_object_is_its_own_and_is_resolved() {
    let outcome = story("fork");
    let mut found: Vec<_> = outcome.profiles().iter().map(objects).collect();
    found.sort_by(|a, b| a[0].total_cmp(&b[0]));
    assert_eq!(found, [[48.0, 48.0, 0.0], [64.0, 64.0, 0.0]]);
}

/// The child does not map its parent's ring, and the agent gets no notice of a fork past libc.
#[test]
fn any_call_may_be_the_first_of_a_child_that_was_forked_past_libc() {
    let program = Program::compiled("../vms/raw_fork.c");
    for arguments in [&[][..], &["stopped"]] {
        let run = program.run().args(arguments);
        run.observed(&Agent::at_interval(1)).assert_success();
    }
}

#[test]
fn discarding_gives_up_young_old_and_late_samples() {
    let outcome = story("discard");
    let [allocated, survived, died] = objects(&outcome.profile());
    // The old one and the last one had survived; the young one and the late one have no fate.
    assert_eq!(
        [allocated, survived, died],
        [16.0 + 32.0 + 48.0 + 80.0, 32.0 + 80.0, 0.0]
    );
}

#[test]
fn samples_of_a_thread_that_has_ended_have_a_first_collection_too() {
    let outcome = story("late");
    let [allocated, survived, died] = objects(&outcome.profile());
    assert_eq!(
        [allocated, survived, died],
        [16.0 + 32.0 + 48.0 + 80.0, 32.0 + 80.0, 16.0 + 48.0]
    );
}

#[test]
fn a_lost_sample_weighs_what_its_own_interval_says() {
    let profile = story("interval").profile();
    assert_eq!(profile.report["lost_samples"], Value::from(1));
    assert_eq!(profile.number("lost_bytes"), 1000.0);
}

#[test]
fn a_signal_handler_may_ask_how_many_wait_whatever_it_has_interrupted() {
    let profile = story("interrupted").profile();
    let [allocated, survived, died] = objects(&profile);
    assert_eq!([allocated, survived, died], [32_000.0, 32_000.0, 0.0]);
}

#[test]
fn a_type_can_be_told_while_the_object_is_there() {
    let profile = story("typed").profile();
    let [allocated, survived, died] = objects(&profile);
    assert_eq!([allocated, survived, died], [32.0, 32.0, 0.0]);
    let freed = profile.row("types", "type", "Freed");
    assert_eq!(freed["allocated_bytes"], Value::from(100.0));
    assert_eq!(freed["live_bytes"], Value::from(0.0));
}

/// As where another profiler's hook takes the frees.
#[test]
fn a_machines_block_whose_free_nobody_told_ends_when_its_address_is_sampled_again() {
    let profile = story("reused").profile();
    let reused = profile.row("types", "type", "Reused");
    assert_eq!(reused["allocated_bytes"], Value::from(100_000.0));
    assert_eq!(reused["live_bytes"], Value::from(100.0));
}
