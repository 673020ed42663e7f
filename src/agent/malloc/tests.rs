#![allow(clippy::indexing_slicing, reason = "a test may fail")]

use core::sync::atomic::{AtomicU64, Ordering};
use std::vec::Vec;

use allocsample_record::{Figure, Note};

use super::*;
use crate::process_control::Order;
use crate::setup::Hooks;
use crate::shim::Caller;
use crate::trial::{Trial, agent};

/// Every byte is a sample point.
const EVERY: &[(&str, &str)] = &[("INTERVAL", "1"), ("ON_FULL", "drop")];

#[test]
fn a_sample_says_what_was_allocated_by_whom() {
    let trial = Trial::begin(agent!(), EVERY);
    let (first, second) = (trial.thread(), trial.thread());
    let ids: Vec<u64> = [
        trial.alloc(first, 0x1000, 24),
        trial.alloc(first, 0x2000, 0),
        trial.alloc(second, 0x3000, 70_000),
        trial.alloc(first, 0x4000, 100),
    ]
    .map(|id| id.unwrap().0)
    .to_vec();
    let samples = trial.samples();
    let found: Vec<_> = samples
        .iter()
        .map(|it| (it.address, it.size, it.points, it.thread, it.thread_bytes))
        .collect();
    // A block of 0 bytes counts as one of 1.
    assert_eq!(
        found,
        [
            (0x1000, 24, 24, 1, 24),
            (0x2000, 0, 1, 1, 25),
            (0x3000, 70_000, 70_000, 2, 70_000),
            (0x4000, 100, 100, 1, 125),
        ]
    );
    assert_eq!(samples.iter().map(|it| it.id).collect::<Vec<_>>(), ids);
    assert!(
        samples
            .iter()
            .all(|it| (it.heap, it.type_id, it.flags) == (0, 0, 0))
    );
    assert_eq!(trial.starts(), [1, 2]);
    assert_eq!(trial.recording().ring.lost(), [(0, 0); 7]);
}

#[test]
fn points_are_as_far_apart_as_the_interval() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1000")]);
    let thread = trial.thread();
    for block in 0..1000 {
        trial.alloc(thread, 0x1000 + 64 * block, 104);
    }
    // And one that has many.
    trial.alloc(thread, 0x10, 500_000);
    let samples = trial.samples();
    let points: u32 = samples.iter().map(|it| it.points).sum();
    assert!((603..=605).contains(&points), "{points}");
    assert_eq!(
        samples.len(),
        points as usize - samples.last().unwrap().points as usize + 1
    );
    assert!(samples.last().unwrap().points >= 499);
    let in_between = |pair: &[crate::trial::FoundSample]| {
        let bytes = pair[1].thread_bytes - pair[0].thread_bytes;
        assert!((800..=1200).contains(&bytes), "{bytes}");
    };
    samples[..samples.len() - 1].windows(2).for_each(in_between);
    assert_eq!(thread.totals().bytes, 604_000);
}

#[test]
fn the_new_block_of_a_realloc_is_marked() {
    let trial = Trial::begin(agent!(), EVERY);
    let allocation = Allocation {
        address: 0x1000,
        size: 24,
        charged: 24,
        is_realloc: 1,
        has_own_frame: 0,
        caller: Caller::UNKNOWN,
    };
    trial.agent.on_alloc(trial.thread(), &allocation).unwrap();
    assert_eq!(trial.samples()[0].flags, SampleFlags::REALLOC.0);
}

#[test]
fn a_block_that_was_freed_past_the_agent_ends_where_its_address_comes_again() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    let first = trial.alloc(thread, 0x1000, 24).unwrap();
    trial.alloc(thread, 0x1000, 48).unwrap();
    assert_eq!(trial.frees(), [(first.0, 1)]);
}

#[test]
fn a_size_that_is_left_out_is_counted_with_its_weight() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24).unwrap();
    let filter = crate::Filter {
        least_bytes: 50,
        most_bytes: 100,
        ..crate::Filter::ALL
    };
    trial.agent.order_filter(thread, &filter).unwrap();
    for (block, size) in [(2, 49), (3, 50), (4, 100), (5, 101)] {
        trial.alloc(thread, 0x1000 * block, size);
    }
    let sizes: Vec<u64> = trial.samples().iter().map(|it| it.size).collect();
    assert_eq!(sizes, [24, 50, 100]);
    let lost = trial.recording().ring.lost();
    assert_eq!(lost[LostReason::LeftOut as usize], (2, 150));
    assert!(
        trial
            .notes()
            .iter()
            .any(|(note, _)| *note == Note::Selection)
    );
}

#[test]
fn while_sampling_is_stopped_bytes_count_as_muted() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24).unwrap();
    trial.agent.order(thread, Order::Stop).unwrap();
    assert_eq!(trial.alloc(thread, 0x2000, 3 << 20), None);
    assert_eq!(trial.alloc(thread, 0x3000, 50), None);
    trial.agent.order(thread, Order::Start(None)).unwrap();
    trial.alloc(thread, 0x4000, 30).unwrap();
    let sizes: Vec<u64> = trial.samples().iter().map(|it| it.size).collect();
    assert_eq!(sizes, [24, 30]);
    let totals = thread.totals();
    assert_eq!((totals.bytes, totals.muted_bytes), (54, (3 << 20) + 50));
    let intervals: Vec<u64> = trial.intervals().iter().map(|it| it.1).collect();
    assert_eq!(intervals, [1, 0, 1]);
}

#[test]
fn a_thread_that_is_disabled_takes_no_samples() {
    let trial = Trial::begin(agent!(), EVERY);
    let (thread, other) = (trial.thread(), trial.thread());
    trial.alloc(thread, 0x1000, 24).unwrap();
    assert!(trial.agent.enable_thread(thread, false));
    assert_eq!(trial.alloc(thread, 0x2000, 2 << 20), None);
    trial.alloc(other, 0x3000, 5).unwrap();
    assert!(trial.agent.enable_thread(thread, true));
    trial.alloc(thread, 0x4000, 30).unwrap();
    let totals = thread.totals();
    assert_eq!((totals.bytes, totals.muted_bytes), (54, 2 << 20));
}

#[test]
fn an_agent_that_is_off_takes_no_samples() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24).unwrap();
    trial.agent.switch.set(Switch::Off);
    assert_eq!(trial.alloc(thread, 0x2000, 24), None);
    // It looks again after a mebibyte at the latest.
    assert!(thread.charge(1 << 20));
    assert!(!thread.charge(1));
    trial.agent.switch.set(Switch::On);
    trial.alloc(thread, 0x3000, 24).unwrap();
    // As another thread: nothing from before counts.
    assert_eq!(trial.samples()[1].thread, 2);
}

#[test]
fn a_full_ring_loses_samples_and_counts_them_with_their_weight() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24).unwrap();
    trial.fill_ring();
    assert_eq!(trial.alloc(thread, 0x2000, 30), None);
    assert_eq!(trial.alloc(thread, 0x3000, 70), None);
    let lost = trial.recording().ring.lost();
    assert_eq!(lost[LostReason::RingFull as usize], (2, 100));
    assert_eq!(thread.totals().bytes, 124);
    trial.free(thread, 0x1000);
    trial.free(thread, 0x2000);
    let lost = trial.recording().ring.lost();
    assert_eq!(lost[LostReason::FreeRingFull as usize], (1, 0));
}

#[test]
fn without_files_the_agent_switches_itself_off() {
    let settings = [("INTERVAL", "1"), ("OUTPUT", "/nonexistent/directory/app")];
    let trial = Trial::begin(agent!(), &settings);
    let thread = trial.thread();
    assert!(trial.agent.is_on());
    assert_eq!(trial.alloc(thread, 0x1000, 24), None);
    assert_eq!(trial.agent.state(), Switch::Failed);
    assert!(recording::current().is_none());
    assert_eq!(trial.alloc(thread, 0x2000, 24), None);
}

#[test]
fn a_process_that_waits_to_be_started_records_no_sample() {
    let settings = [("INTERVAL", "1"), ("START", "off")];
    let trial = Trial::begin(agent!(), &settings);
    let thread = trial.thread();
    for block in 0..10 {
        assert_eq!(trial.alloc(thread, 0x1000 * block, 1 << 20), None);
    }
    // There is a profile that can be asked.
    let intervals: Vec<_> = trial.intervals();
    assert_eq!(intervals, [(0, 1, 0), (1, 0, 0)]);
    trial.agent.order(thread, Order::Start(None)).unwrap();
    trial.alloc(thread, 0x1000, 24).unwrap();
    let sample = trial.samples()[0];
    assert_eq!((sample.size, sample.points), (24, 24));
}

static LISTENED: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

#[test]
fn a_listener_is_told_of_each_sample_and_its_weight() {
    let hooks = Hooks {
        has_listener: || true,
        on_sampled: |address, size, weight| {
            for (place, value) in LISTENED.iter().zip([address, size, weight]) {
                place.store(value, Ordering::Relaxed);
            }
        },
        ..Hooks::NONE
    };
    let trial = Trial::begin_with(agent!(), &[("INTERVAL", "1000")], hooks);
    let thread = trial.thread();
    trial.alloc(thread, 0x5000, 64_000).unwrap();
    let heard = LISTENED
        .each_ref()
        .map(|place| place.load(Ordering::Relaxed));
    let points = u64::from(trial.samples()[0].points);
    assert_eq!(heard, [0x5000, 64_000, 64_000]);
    assert!((63..=65).contains(&points));
}

#[test]
fn one_slow_path_in_sixteen_is_timed() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    for block in 1..=1600 {
        trial.alloc(thread, 0x100 * block, 16).unwrap();
    }
    let figures = trial.recording().ring.figures();
    let timed = figures[Figure::TimedSamples as usize];
    assert!((70..=130).contains(&timed), "{timed}");
    let ns = figures[Figure::TimedSamplesNs as usize];
    assert!(ns > 20 * timed && ns < 1_000_000 * timed, "{ns}");
    for block in 1..=1600 {
        trial.free(thread, 0x100 * block);
    }
    let figures = trial.recording().ring.figures();
    let timed = figures[Figure::TimedFrees as usize];
    assert!((70..=130).contains(&timed), "{timed}");
    let ns = figures[Figure::TimedFreesNs as usize];
    assert!(ns > 20 * timed && ns < 1_000_000 * timed, "{ns}");
}
