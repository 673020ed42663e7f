use allocsample_sampling::{GapLaw, Interval, Seed};

use super::super::thread::{THREAD_BYTES, Totals};
use super::*;

fn new_thread() -> ShimThread {
    // SAFETY: all zero bytes are a thread that has not joined.
    unsafe { core::mem::zeroed() }
}

/// Sampled so rarely that no sample is due, or not at all.
fn joined(is_paused: bool) -> ShimThread {
    let thread = new_thread();
    let interval = Interval::MAX;
    let sampler = Sampler::new(GapLaw::Periodic, interval, Seed { process: 1 }.thread(1));
    let force = Force {
        interval: (!is_paused).then_some(interval),
        index: 0,
        change: 1,
    };
    let (slow_path, _) = thread.mute(0, &Caller::UNKNOWN);
    slow_path.join(1, 1, 0, sampler, &force);
    drop(slow_path);
    thread
}

/// What the fast path does, which borrows if the counter does not suffice.
fn allocate(thread: &ShimThread, bytes: u64) {
    let counter = &thread.bytes_until_sample;
    counter.set(counter.get().wrapping_sub(bytes));
}

/// All that was allocated until now.
#[track_caller]
fn assert_totals(thread: &ShimThread, bytes: u64, muted_bytes: u64) {
    let expected = Totals { bytes, muted_bytes };
    let mut copy = [0; THREAD_BYTES];
    // SAFETY: plain numbers, of which the copy has room for all.
    unsafe {
        core::ptr::from_ref(thread)
            .cast::<u8>()
            .copy_to_nonoverlapping(copy.as_mut_ptr(), size_of::<ShimThread>());
    }
    assert_eq!(ShimThread::totals_of_copy(&copy), expected, "from outside");
    let slow_path = thread.mute(0, &Caller::UNKNOWN);
    assert_eq!(thread.totals(), expected);
    drop(slow_path);
    assert_eq!(thread.totals(), expected, "after a slow path");
}

#[test]
fn bytes_between_slow_paths_are_counted_or_muted_while_it_is_paused() {
    for is_paused in [false, true] {
        let thread = joined(is_paused);
        let mut allocated = 0;
        for bytes in [1, 100, 5000] {
            allocate(&thread, bytes);
            allocated += bytes;
            let [counted, muted] = if is_paused {
                [0, allocated]
            } else {
                [allocated, 0]
            };
            assert_totals(&thread, counted, muted);
        }
    }
}

#[test]
fn the_allocation_that_enters_a_slow_path_is_counted_or_muted_while_it_is_paused() {
    for is_paused in [false, true] {
        let thread = joined(is_paused);
        allocate(&thread, 10);
        let (slow_path, points) = thread.mute(LARGEST_GRANT, &Caller::UNKNOWN);
        assert_eq!(points, SamplePoints(0));
        drop(slow_path);
        let all = LARGEST_GRANT + 10;
        let [counted, muted] = if is_paused { [0, all] } else { [all, 0] };
        assert_totals(&thread, counted, muted);
    }
}

#[test]
fn bytes_that_handlers_allocate_in_a_slow_path_are_muted() {
    let thread = joined(false);
    allocate(&thread, 7);
    let (slow_path, _) = thread.mute(0, &Caller::UNKNOWN);
    allocate(&thread, 100);
    // More than the counter had: it is filled up again, and nothing is forgotten.
    let left = thread.bytes_until_sample.get();
    allocate(&thread, left - 1);
    thread.count_muted(50);
    assert_eq!(thread.bytes_until_sample.get(), MUTED_GRANT);
    allocate(&thread, 30);
    drop(slow_path);
    assert_totals(&thread, 7, MUTED_GRANT - 1 + 50 + 30);
}

#[test]
fn bytes_that_are_allocated_in_a_tick_are_muted() {
    let thread = joined(false);
    allocate(&thread, 7);
    let tick = thread.tick().unwrap();
    allocate(&thread, 100);
    drop(tick);
    assert_totals(&thread, 7, 100);
}

#[test]
fn bytes_that_were_muted_in_a_slow_path_are_kept_when_it_is_given_up() {
    let thread = joined(false);
    allocate(&thread, 7);
    let (slow_path, _) = thread.mute(0, &Caller::UNKNOWN);
    allocate(&thread, 100);
    let undone = thread.give_up();
    assert_eq!(undone.points, SamplePoints(0));
    assert_totals(&thread, 7, 100);
    drop(slow_path);
    assert_totals(&thread, 7, 100);
}

#[test]
fn a_counter_that_was_left_borrowed_is_settled_or_muted_while_it_is_paused() {
    for is_paused in [false, true] {
        let thread = joined(is_paused);
        let bytes = LARGEST_GRANT + 5;
        allocate(&thread, bytes);
        assert!(thread.has_borrowed());
        assert_eq!(thread.settle_borrowed(), if is_paused { 0 } else { bytes });
        let [counted, muted] = if is_paused { [0, bytes] } else { [bytes, 0] };
        assert_totals(&thread, counted, muted);
    }
}

#[test]
fn the_allocation_that_joins_a_paused_thread_is_muted() {
    let thread = joined(true);
    let (slow_path, _) = thread.mute(0, &Caller::UNKNOWN);
    assert_eq!(slow_path.first_alloc(300), SamplePoints(0));
    drop(slow_path);
    assert_totals(&thread, 0, 300);
}
