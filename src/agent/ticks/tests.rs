use std::vec::Vec;

use super::*;
use crate::os::timer::tests::{Awaited, LONG_NS};
use crate::trial::{Trial, agent};

/// Ticks each millisecond.
const OFTEN: &[(&str, &str)] = &[("INTERVAL", "1000000"), ("TIME_HZ", "1000")];
const MARK: u64 = 77;
const QUIET_NS: u64 = 50_000_000;

fn threads_with_places(agent: &Agent) -> usize {
    let places = agent.ticks.places.iter();
    places
        .filter(|place| place.load(Ordering::Relaxed) != 0)
        .count()
}

#[test]
fn a_thread_has_ticks_from_its_start_to_its_end() {
    let trial = Trial::begin(agent!(), OFTEN);
    let (agent, thread) = (trial.agent, trial.thread());
    let awaited = Awaited::new(6);
    agent.start_ticks(awaited.signal, MARK);
    agent.on_thread_start(thread, 0xABC0);
    assert_eq!(threads_with_places(agent), 1);
    // The first one comes within the first period, wherever that began.
    let came = awaited.spin_for(LONG_NS).unwrap();
    assert_eq!(came.mark, MARK);
    assert!(awaited.spin_for(LONG_NS).is_some());
    assert_eq!(agent.end_ticks_of(thread), 0xABC0);
    assert_eq!(threads_with_places(agent), 0);
    awaited.spin_for(0);
    assert_eq!(awaited.spin_for(QUIET_NS), None);
    // Nothing is left.
    assert_eq!(agent.end_ticks_of(thread), 0);
}

#[test]
fn ticks_can_be_stopped_for_all_threads_and_started_again() {
    let trial = Trial::begin(agent!(), OFTEN);
    let (agent, thread) = (trial.agent, trial.thread());
    let awaited = Awaited::new(7);
    agent.start_ticks(awaited.signal, MARK);
    agent.on_thread_start(thread, 0);
    assert!(awaited.spin_for(LONG_NS).is_some());
    agent.stop_ticks();
    assert_eq!(threads_with_places(agent), 1);
    awaited.spin_for(0);
    assert_eq!(awaited.spin_for(QUIET_NS), None);
    agent.start_ticks(awaited.signal, MARK + 1);
    let came = awaited.spin_for(LONG_NS).unwrap();
    assert_eq!(came.mark, MARK + 1);
    // Who has a timer gets no second one.
    let place = agent.ticks.places[0].load(Ordering::Relaxed);
    agent.start_ticks(awaited.signal, MARK + 1);
    assert_eq!(agent.ticks.places[0].load(Ordering::Relaxed), place);
    agent.end_ticks_of(thread);
}

#[test]
fn threads_without_ticks_have_no_place() {
    let trial = Trial::begin(agent!(), OFTEN);
    let agent = trial.agent;
    let awaited = Awaited::new(8);
    // There is no signal yet.
    agent.on_thread_start(trial.thread(), 0);
    agent.start_ticks(awaited.signal, MARK);
    let muted = trial.thread();
    muted.mute_for_good();
    agent.on_thread_start(muted, 0);
    agent.switch.set(Switch::Off);
    agent.on_thread_start(trial.thread(), 0);
    assert_eq!(threads_with_places(agent), 0);
    assert_eq!(awaited.spin_for(QUIET_NS), None);
}

#[test]
fn without_a_period_there_are_no_ticks() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1000000")]);
    let awaited = Awaited::new(9);
    trial.agent.start_ticks(awaited.signal, MARK);
    trial.agent.on_thread_start(trial.thread(), 0);
    assert_eq!(threads_with_places(trial.agent), 0);
}

#[test]
fn every_place_has_one_thread() {
    static TICKS: Ticks = Ticks::new();
    let taken: Vec<usize> = (1..=PLACES)
        .map(|tid| {
            let place = TICKS.take_place(tid as u32).unwrap();
            assert_eq!(place.load(Ordering::Relaxed), (tid as u64) << 32);
            core::ptr::from_ref(place).addr()
        })
        .collect();
    let mut distinct = taken.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), PLACES);
    assert!(TICKS.take_place(1).is_none());
    TICKS.forget();
    assert!(TICKS.take_place(1).is_some());
}

#[test]
fn a_place_of_another_thread_is_left_alone() {
    let trial = Trial::begin(agent!(), OFTEN);
    let (agent, thread) = (trial.agent, trial.thread());
    let awaited = Awaited::new(10);
    agent.start_ticks(awaited.signal, MARK);
    agent.on_thread_start(thread, 0);
    // As in the child of a bare clone, where another thread took it.
    let place = &agent.ticks.places[0];
    let timer = place.load(Ordering::Relaxed) as u32;
    let other = u64::from(process::tid() + 1) << 32;
    place.store(other, Ordering::Relaxed);
    agent.end_ticks_of(thread);
    assert_eq!(place.load(Ordering::Relaxed), other);
    timer::stop(Timer(timer - 1));
}

#[test]
fn time_from_before_the_recording_is_in_it_and_a_childs_begins_anew() {
    let trial = Trial::begin(agent!(), OFTEN);
    trial.alloc(trial.thread(), 0x1000, 8_000_000).unwrap();
    let recording = trial.recording();
    let ticks = Ticks::new();
    let figure = |figure: Figure| *(recording.ring.figures().get(figure as usize)).unwrap();
    ticks.before_ns[0].store(5, Ordering::Relaxed);
    ticks.before_ns[1].store(7, Ordering::Relaxed);
    ticks.begin_recording(recording, Some(9));
    assert_eq!(figure(Figure::TicksInAgentNs), 5);
    assert_eq!(figure(Figure::TicksNotRecordedNs), 7);
    assert_eq!(figure(Figure::TickPeriodNs), 9);
    ticks.before_ns[0].store(5, Ordering::Relaxed);
    ticks.forget();
    ticks.begin_recording(recording, None);
    assert_eq!(figure(Figure::TicksInAgentNs), 5);
    assert_eq!(figure(Figure::TickPeriodNs), 0);
}

#[test]
fn ticks_start_the_drain_thread_where_there_may_be_no_sample() {
    let trial = Trial::begin(agent!(), OFTEN);
    trial.alloc(trial.thread(), 0x1000, 8_000_000).unwrap();
    let (agent, recording) = (trial.agent, trial.recording());
    assert!(!agent.wants_drain(recording));
    recording.ask_for_file_work(allocsample_ring::request::FLUSH, 1);
    assert!(agent.wants_drain(recording));
    recording.set_drain_state(DrainState::Running);
    assert!(!agent.wants_drain(recording));
    recording.set_drain_state(DrainState::None);
    assert!(recording.take_asked().is_some());
    assert!(!agent.wants_drain(recording));
    recording.drain_from(1);
    assert!(agent.wants_drain(recording));
}
