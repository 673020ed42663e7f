#![allow(clippy::indexing_slicing, reason = "a test may fail")]

use super::*;
use crate::trial::{Trial, agent};

/// Numbers of samples are positions in the ring, whose distances repeat.
#[test]
fn one_in_eight_has_a_stack_whatever_the_pattern_of_the_numbers() {
    const COUNT: u32 = 80_000;
    for stride in 1..200 {
        let taken = (0..u64::from(COUNT)).map(|at| 1 + stride * at);
        let with_stack = taken.filter(|&taken| has_stack(taken)).count() as f64;
        // Five standard deviations of a fair draw.
        let expected = f64::from(COUNT) / 8.0;
        let bound = 5.0 * (expected * 7.0 / 8.0).sqrt();
        assert!(
            (with_stack - expected).abs() < bound,
            "{stride}: {with_stack}"
        );
    }
}

const EVERY: &[(&str, &str)] = &[("INTERVAL", "1"), ("ON_FULL", "drop")];

#[test]
fn a_free_names_its_sample_and_the_thread_that_frees() {
    let trial = Trial::begin(agent!(), EVERY);
    let (thread, other) = (trial.thread(), trial.thread());
    let first = trial.alloc(thread, 0x1000, 24).unwrap();
    let second = trial.alloc(thread, 0x2000, 24).unwrap();
    trial.free(thread, 0x1000);
    // Once; and a block that is no sample is none.
    trial.free(thread, 0x1000);
    trial.free(thread, 0x9000);
    // A thread that only frees joins.
    trial.free(other, 0x2000);
    assert_eq!(trial.frees(), [(first.0, 1), (second.0, 2)]);
    assert_eq!(trial.starts(), [1, 2]);
}

#[test]
fn a_thread_that_has_ended_frees_as_nobody() {
    let trial = Trial::begin(agent!(), EVERY);
    let (thread, other) = (trial.thread(), trial.thread());
    let id = trial.alloc(thread, 0x1000, 24).unwrap();
    trial.alloc(other, 0x2000, 24).unwrap();
    trial.agent.on_thread_end(other);
    trial.free(other, 0x1000);
    assert_eq!(trial.frees(), [(id.0, 0)]);
}

#[test]
fn a_block_that_was_not_freed_after_all_is_live_again() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    let id = trial.alloc(thread, 0x1000, 24).unwrap();
    let taken = trial.agent.take_sampled(0x1000);
    assert_eq!(trial.agent.id_taken(taken), Some(id.0));
    assert_eq!(trial.agent.take_sampled(0x1000), 0);
    trial.agent.put_back(0x1000, taken);
    assert_eq!(trial.frees(), []);
    trial.free(thread, 0x1000);
    assert_eq!(trial.frees(), [(id.0, 1)]);
    // What was no sample stays none.
    trial.agent.put_back(0x2000, 0);
    assert_eq!(trial.recording().ring.lost(), [(0, 0); 7]);
    assert_eq!(trial.agent.take_sampled(0x2000), 0);
}

#[test]
fn a_block_that_was_freed_past_us_ends_when_its_address_is_handed_out_again() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    let lost = || trial.recording().ring.lost()[LostReason::FreeRingFull as usize];
    let first = trial.alloc(thread, 0x1000, 24).unwrap();
    trial.alloc(thread, 0x1000, 24).unwrap();
    assert_eq!(trial.frees(), [(first.0, 1)]);
    assert_eq!(lost(), (0, 0));
    // There is no room for the end of the second one, nor for a third.
    trial.fill_ring();
    assert_eq!(trial.alloc(thread, 0x1000, 24), None);
    assert_eq!(lost(), (1, 0));
    assert_eq!(trial.agent.take_sampled(0x1000), 0);
}

#[test]
fn what_was_taken_in_another_epoch_is_no_sample_of_this_one() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24).unwrap();
    let taken = trial.agent.take_sampled(0x1000);
    assert_eq!(trial.agent.id_taken(0), None);
    trial.agent.epoch_ended();
    assert_eq!(trial.agent.id_taken(taken), None);
    trial.agent.put_back(0x1000, taken);
    assert_eq!(trial.agent.take_sampled(0x1000), 0);
    trial.agent.on_free(thread, taken, &Caller::UNKNOWN);
    assert_eq!(trial.frees(), []);
}

#[test]
fn after_the_end_of_the_profile_no_free_is_recorded() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24).unwrap();
    trial.agent.switch.set(Switch::Finished);
    trial.free(thread, 0x1000);
    assert_eq!(trial.frees(), []);
}
