#![allow(clippy::indexing_slicing, reason = "a test may fail")]

use std::vec::Vec;

use super::*;
use crate::process_control::{Order, Refusal};
use crate::switch::Switch;
use crate::trial::{Trial, agent};

const EVERY: &[(&str, &str)] = &[("INTERVAL", "1"), ("ON_FULL", "drop")];

/// Asks as `ctl` does. The next slow path looks.
fn ask(trial: &Trial, what: u64, value: u64, more: [u64; 4]) -> u64 {
    let ring = &trial.recording().ring;
    ring.ask(what, value, more);
    ring.request().0
}

fn sizes(trial: &Trial) -> Vec<u64> {
    trial.samples().iter().map(|it| it.size).collect()
}

#[test]
fn another_interval_holds_from_the_next_allocation_on_all_threads() {
    let trial = Trial::begin(agent!(), EVERY);
    let (thread, other) = (trial.thread(), trial.thread());
    trial.alloc(thread, 0x1000, 24).unwrap();
    trial.alloc(other, 0x2000, 24).unwrap();
    ask(&trial, request::SET_INTERVAL, 1 << 20, [0; 4]);
    // Its own allocation is still one of before.
    trial.alloc(thread, 0x3000, 30).unwrap();
    assert_eq!(trial.agent.interval_in_force().unwrap().bytes(), 1 << 20);
    assert_eq!(trial.intervals(), [(0, 1, 0), (1, 1 << 20, 0)]);
    trial.alloc(other, 0x4000, 30).unwrap();
    for (thread, address) in [(thread, 0x5000), (other, 0x6000)] {
        let sample = trial.alloc(thread, address, 16 << 20).unwrap();
        let found = trial.samples();
        let found = found.iter().find(|it| it.id == sample.0).unwrap();
        assert_eq!(found.interval, 1);
        assert!((15..=17).contains(&found.points));
    }
}

#[test]
fn zero_stops_and_start_goes_on_at_the_interval_of_before() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24).unwrap();
    ask(&trial, request::SET_INTERVAL, 0, [0; 4]);
    trial.alloc(thread, 0x2000, 30).unwrap();
    assert_eq!(trial.agent.interval_in_force(), None);
    assert_eq!(trial.alloc(thread, 0x3000, 40), None);
    ask(&trial, request::START, 0, [0; 4]);
    // Found when the thread looks, within a mebibyte.
    assert_eq!(trial.alloc(thread, 0x4000, 2 << 20), None);
    trial.alloc(thread, 0x5000, 50).unwrap();
    assert_eq!(sizes(&trial), [24, 30, 50]);
    assert_eq!(trial.agent.interval_in_force().unwrap().bytes(), 1);
}

#[test]
fn a_request_is_obeyed_once() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24).unwrap();
    ask(&trial, request::SET_INTERVAL, 100, [0; 4]);
    trial.alloc(thread, 0x2000, 24).unwrap();
    for block in 3..100 {
        trial.alloc(thread, 0x1000 * block, 24);
    }
    assert_eq!(trial.intervals().len(), 2);
}

#[test]
fn a_filter_of_sizes_holds_from_the_next_allocation() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24).unwrap();
    ask(&trial, request::FILTER, 50, [100, 0, 0, 0]);
    trial.alloc(thread, 0x2000, 24).unwrap();
    for (block, size) in [(3, 49), (4, 50), (5, 100), (6, 101)] {
        trial.alloc(thread, 0x1000 * block, size);
    }
    assert_eq!(sizes(&trial), [24, 24, 50, 100]);
}

#[test]
fn the_calling_thread_can_be_left_out_and_taken_in_again() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24).unwrap();
    let tid = u64::from(crate::os::process::tid());
    ask(&trial, request::SELECT_THREAD, tid << 1, [0; 4]);
    trial.alloc(thread, 0x2000, 24).unwrap();
    assert_eq!(trial.alloc(thread, 0x3000, 30), None);
    ask(&trial, request::SELECT_THREAD, tid << 1 | 1, [0; 4]);
    trial.alloc(thread, 0x4000, 2 << 20);
    trial.alloc(thread, 0x5000, 50).unwrap();
    assert_eq!(sizes(&trial), [24, 24, 50]);
    assert_eq!(trial.agent.order_thread(thread, 0, false), Ok(()));
    assert_eq!(trial.alloc(thread, 0x6000, 60), None);
    assert_eq!(trial.agent.order_thread(thread, 0, true), Ok(()));
    trial.alloc(thread, 0x7000, 70).unwrap();
}

#[test]
fn a_thread_that_ends_leaves_its_number_to_one_that_is_sampled() {
    let trial = Trial::begin(agent!(), EVERY);
    let (thread, next) = (trial.thread(), trial.thread());
    assert_eq!(trial.agent.order_thread(thread, 0, false), Ok(()));
    assert_eq!(trial.alloc(thread, 0x1000, 24), None);
    trial.agent.on_thread_end(thread);
    trial.alloc(next, 0x2000, 24).unwrap();
}

#[test]
fn work_on_files_is_left_to_the_drain_thread() {
    for what in [
        request::FLUSH,
        request::SNAPSHOT,
        request::ROTATE,
        request::RESET,
    ] {
        let trial = Trial::begin(agent!(), EVERY);
        let thread = trial.thread();
        trial.alloc(thread, 0x1000, 24).unwrap();
        let generation = ask(&trial, what, 0, [0; 4]);
        trial.alloc(thread, 0x2000, 24).unwrap();
        assert_eq!(trial.recording().take_asked(), Some((what, generation)));
    }
}

#[test]
fn an_unknown_request_changes_nothing() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24).unwrap();
    ask(&trial, 99, 5, [0; 4]);
    trial.alloc(thread, 0x2000, 24).unwrap();
    assert_eq!(trial.intervals(), [(0, 1, 0)]);
    assert!(!trial.recording().is_asked());
}

#[test]
fn the_interval_is_changed_only_from_the_one_that_was_looked_at() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24).unwrap();
    let interval = |bytes| Interval::new(bytes).unwrap();
    let change = |from, to| {
        trial
            .agent
            .change_interval(trial.recording(), interval(from), Interval::new(to))
    };
    assert!(!change(5, 100));
    assert!(change(1, 100));
    assert!(!change(1, 200));
    assert_eq!(trial.agent.interval_in_force(), Some(interval(100)));
    // An interval of before has its number again.
    assert!(change(100, 1));
    assert_eq!(trial.intervals(), [(0, 1, 0), (1, 100, 0), (0, 1, 0)]);
}

#[test]
fn orders_to_an_agent_that_is_off_are_refused() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.agent.switch.set(Switch::Off);
    assert_eq!(trial.agent.order(thread, Order::Stop), Err(Refusal::Off));
    assert_eq!(trial.agent.status(&mut []).err(), Some(Refusal::Off));
    assert!(!trial.agent.enable_thread(thread, false));
    assert!(recording::current().is_none());
}

#[test]
fn work_on_files_without_a_drain_thread_is_refused() {
    let trial = Trial::begin(agent!(), EVERY);
    let refused = trial.agent.order(trial.thread(), Order::Flush);
    assert_eq!(refused, Err(Refusal::Limit));
    let notes = trial.notes();
    let is_told = |(note, _): &(Note, Vec<u8>)| *note == Note::NoDrainThread;
    assert_eq!(notes.iter().filter(|note| is_told(note)).count(), 1);
}

#[test]
fn the_status_has_the_figures_and_the_path() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    let mut path = [7; 4096];
    let before = trial.agent.status(&mut path).unwrap();
    assert_eq!(before.interval.unwrap().bytes(), 1);
    assert_eq!((before.ring_bytes, path[0]), (0, 0));
    trial.alloc(thread, 0x1000, 24).unwrap();
    let ring = &trial.recording().ring;
    let record = allocsample_record::LostReason::ALL;
    for (number, reason) in (1..).zip(record) {
        ring.count_lost(reason as usize, number, 100 * number);
    }
    ring.set_figure(allocsample_record::Figure::WrittenBytes as usize, 500);
    ring.set_figure(allocsample_record::Figure::DrainNs as usize, 70);
    ring.set_figure(allocsample_record::Figure::TimedSamples as usize, 4);
    ring.set_figure(allocsample_record::Figure::TimedSamplesNs as usize, 1000);
    let status = trial.agent.status(&mut path).unwrap();
    assert_eq!(status.interval.unwrap().bytes(), 1);
    // Ring full, no memory, write failed, reentered: 1 + 4 + 5 + 6.
    assert_eq!((status.lost_samples, status.lost_bytes), (16, 1600));
    assert_eq!((status.left_out_samples, status.left_out_bytes), (7, 700));
    assert_eq!(
        (status.profile_bytes, status.drain_ns, status.sample_ns),
        (500, 70, 250)
    );
    assert_eq!(status.ring_bytes, ring.capacity_words() * 8);
    assert_eq!(status.ring_used_bytes, ring.used_words() * 8);
    assert!(status.memory_bytes > 4 << 20);
    let name = trial.recording().path.as_bytes();
    assert!(path.starts_with(name) && path[name.len()..].iter().all(|&byte| byte == 0));
    // Cut, with its NUL.
    let mut short = [7; 5];
    trial.agent.status(&mut short).unwrap();
    assert_eq!(short[..4], name[..4]);
    assert_eq!(short[4], 0);
}
