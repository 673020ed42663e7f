use super::*;
use crate::process_control::Order;
use crate::shim::Caller;
use crate::trial::{Trial, agent};

fn thread() -> ShimThread {
    // SAFETY: all zero bytes are a thread that has not joined.
    unsafe { core::mem::zeroed() }
}

/// As the kernel copies it.
fn copy(thread: &ShimThread) -> [u8; THREAD_BYTES] {
    // SAFETY: a thread of a trial has so many bytes, which are plain numbers and which nobody writes meanwhile.
    unsafe {
        core::ptr::from_ref(thread)
            .cast::<[u8; THREAD_BYTES]>()
            .read()
    }
}

#[test]
fn a_noted_record_comes_back_once_as_it_was_noted() {
    let thread = thread();
    assert!(!thread.has_record());
    assert_eq!(thread.take_record(), None);
    let records = [
        (0, 0, 0, 0),
        (5, 7, 9, 11),
        ((1 << 48) - 1, (1 << 24) - 1, 255, (1 << 39) - 1),
    ];
    for (start, words, writer, ring) in records {
        for has_begun in [false, true] {
            let record = NotedRecord {
                start,
                words,
                writer,
                ring,
                has_begun,
            };
            thread.note_record(record);
            if has_begun {
                thread.record_has_begun();
            }
            assert!(thread.has_record());
            assert_eq!(thread.take_record(), Some(record));
            assert!(!thread.has_record());
            assert_eq!(thread.take_record(), None);
        }
    }
    // Of a ring's id the lowest bits are noted.
    assert_eq!(NotedRecord::ring_bits(u64::MAX), (1 << 39) - 1);
    assert_eq!(NotedRecord::ring_bits(77), 77);
}

#[test]
fn what_a_thread_is_told_to_keep_is_given_back_once() {
    let thread = thread();
    thread.set_shadow_stack(4);
    assert_eq!((thread.shadow_stack(), thread.shadow_stack()), (4, 4));
    thread.set_tick_place(5);
    assert_eq!((thread.take_tick_place(), thread.take_tick_place()), (5, 0));
    thread.set_signal_stack(6);
    let stacks = (thread.take_signal_stack(), thread.take_signal_stack());
    assert_eq!(stacks, (6, 0));
    thread.set_stack(7..9);
    assert_eq!(thread.stack(), 7..9);
}

#[test]
fn numbers_of_a_thread_are_those_that_were_set() {
    let thread = thread();
    let numbers = |thread: &ShimThread| (thread.change(), thread.slot(), thread.last_sample());
    assert_eq!(numbers(&thread), (0, 0, 0));
    thread.state.change.set(7);
    thread.state.slot.set(9);
    // One more than the id, so that 0 is none.
    thread.set_last_sample(41);
    assert_eq!(numbers(&thread), (7, 9, 42));
}

#[test]
fn totals_are_those_of_the_phase() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1G")]);
    let thread = trial.thread();
    // Of a grant of 100 bytes 40 are left: 60 were allocated since the total was 500. A slow path has settled 560.
    thread.state.granted.set(100);
    thread.bytes_until_sample.set(40);
    thread.state.total_bytes.set(500);
    thread.state.settled_bytes.set(560);
    thread.muted_bytes.set(3);
    for (phase, bytes, of_copy) in [
        (Phase::Quiet, 500, 560),
        (Phase::Settled, 560, 560),
        (Phase::Leaving, 500, 500),
    ] {
        thread.phase.set(phase as u32);
        assert_eq!(thread.totals().bytes, bytes);
        let totals = ShimThread::totals_of_copy(&copy(thread));
        assert_eq!((totals.bytes, totals.muted_bytes), (of_copy, 3));
    }
}

#[test]
fn a_thread_is_enabled_unless_it_is_switched_off_or_left_out() {
    let thread = thread();
    let state = |thread: &ShimThread| (thread.is_enabled(), thread.is_selected());
    assert_eq!(state(&thread), (true, true));
    thread.enable(false);
    assert_eq!(state(&thread), (false, true));
    thread.select(false);
    thread.enable(true);
    assert_eq!(state(&thread), (false, false));
    // A pause of all threads is something else.
    thread.set_paused(true);
    thread.select(true);
    assert_eq!(state(&thread), (true, true));
    assert_eq!(thread.state.is_paused.get(), PAUSED);
    thread.enable(false);
    thread.set_paused(false);
    assert_eq!(thread.state.is_paused.get(), DISABLED);
}

#[test]
fn a_copy_has_the_totals_of_the_moment() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1G")]);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24);
    assert!(thread.charge(40));
    let totals = |bytes, muted_bytes| Totals { bytes, muted_bytes };
    let of_copy = || ShimThread::totals_of_copy(&copy(thread));
    let at_work = || {
        let copy = copy(thread);
        (
            ShimThread::is_copy_at_work(&copy),
            ShimThread::is_copy_muted(&copy),
        )
    };
    assert_eq!(of_copy(), totals(64, 0));
    assert_eq!(thread.totals(), totals(24, 0));
    assert_eq!(at_work(), (false, false));
    // In a slow path all is settled, and what a handler allocates is muted at its end.
    let (slow_path, _) = thread.mute(0, &Caller::UNKNOWN);
    assert!(thread.charge(5));
    assert_eq!(of_copy(), totals(64, 0));
    assert_eq!(thread.totals(), totals(64, 0));
    assert_eq!(at_work(), (true, true));
    drop(slow_path);
    assert_eq!(of_copy(), totals(64, 5));
    assert_eq!(at_work(), (false, false));
    // While sampling is stopped.
    trial.agent.order(thread, Order::Stop).unwrap();
    assert!(thread.charge(70));
    assert_eq!(of_copy(), totals(64, 75));
    // A thread of our own is at work for good, but in no slow path.
    let own = trial.thread();
    own.mute_for_good();
    let copy = copy(own);
    assert!(ShimThread::is_copy_at_work(&copy));
    assert!(!ShimThread::is_copy_muted(&copy));
}

#[test]
fn a_thread_that_is_to_join_again_asks_at_its_next_allocation() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1G")]);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24);
    assert_eq!((thread.number(), thread.epoch()), (1, 1));
    assert_eq!(
        thread
            .interval()
            .map(|(interval, index)| (interval.bytes(), index)),
        Some((1 << 30, 0))
    );
    thread.forget();
    assert_eq!(thread.epoch(), 0);
    assert_eq!(thread.interval(), None);
    assert!(!thread.charge(1));
    trial.alloc(thread, 0x2000, 24);
    assert_eq!(thread.number(), 2);
    thread.look_again_later();
    assert!(thread.charge(1 << 20));
    assert!(!thread.charge(1));
}
