use std::vec::Vec;

use allocsample_sampling::{GapLaw, Interval, Seed};
use proptest::prelude::*;

use super::super::thread::{NotedRecord, THREAD_BYTES, Totals};
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

/// The totals as another thread reads them.
fn totals_from_outside(thread: &ShimThread) -> Totals {
    let mut copy = [0; THREAD_BYTES];
    // SAFETY: the source is valid and consists of plain numbers, and the copy is large enough for all of them.
    unsafe {
        core::ptr::from_ref(thread)
            .cast::<u8>()
            .copy_to_nonoverlapping(copy.as_mut_ptr(), size_of::<ShimThread>());
    }
    ShimThread::totals_of_copy(&copy)
}

/// All that was allocated until now.
#[track_caller]
fn assert_totals(thread: &ShimThread, bytes: u64, muted_bytes: u64) {
    let expected = Totals { bytes, muted_bytes };
    assert_eq!(totals_from_outside(thread), expected, "from outside");
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
fn in_a_tick_the_total_is_that_before_it() {
    for is_paused in [false, true] {
        let thread = joined(is_paused);
        allocate(&thread, 7);
        let tick = thread.tick().unwrap();
        allocate(&thread, 100);
        let bytes = if is_paused { 0 } else { 7 };
        assert_eq!(totals_from_outside(&thread).bytes, bytes, "{is_paused}");
        drop(tick);
    }
}

#[test]
fn a_phase_is_known_by_its_number() {
    for phase in [
        Phase::Quiet,
        Phase::Entering,
        Phase::Settled,
        Phase::Leaving,
        Phase::Tick,
        Phase::Brief,
        Phase::OfTheAgent,
    ] {
        assert_eq!(Phase::from_number(phase as u32), phase);
    }
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

/// What may happen on a thread, one thing after the other.
#[derive(Clone, Debug)]
enum Step {
    /// An allocation on the fast path, or through a slow path if the grant does not suffice.
    Allocate(u64),
    /// A slow path in which signal handlers allocate; it ends, or a handler jumps out of it and it is given up.
    SlowPath { within: Vec<u64>, is_given_up: bool },
    /// A handler that enters while a slow path is under way.
    Nested(u64),
    /// A time sample in which something is allocated.
    Tick(u64),
    /// The thread is enabled or disabled.
    Enable(bool),
    /// The selection includes the thread or not.
    Select(bool),
    /// Another interval is in force; `None` stops sampling.
    Adopt(Option<u64>),
    /// A record is written, while the counter counts on.
    Record(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = || prop_oneof![Just(0_u64), 1..5_000_u64, 60_000..80_000_u64];
    let step = prop_oneof![
        4 => (1..200_000_u64).prop_map(Step::Allocate),
        2 => (prop::collection::vec(bytes(), 0..4), any::<bool>())
            .prop_map(|(within, is_given_up)| Step::SlowPath { within, is_given_up }),
        1 => bytes().prop_map(Step::Nested),
        1 => (0..5_000_u64).prop_map(Step::Tick),
        1 => any::<bool>().prop_map(Step::Enable),
        1 => any::<bool>().prop_map(Step::Select),
        1 => prop::option::of(1..100_000_u64).prop_map(Step::Adopt),
        1 => (0..100_u64).prop_map(Step::Record),
    ];
    prop::collection::vec(step, 0..40)
}

/// An allocation as the shim makes it in a signal handler.
fn allocate_in_handler(thread: &ShimThread, bytes: u64) {
    match thread.bytes_until_sample.get() >= bytes {
        true => allocate(thread, bytes),
        false => thread.count_muted(bytes),
    }
}

proptest! {
    /// Each byte is in one of the two totals, whatever happens: in the exact one while the thread is sampled, in the muted
    /// one otherwise, and nothing of a finished slow path stays pending.
    #[test]
    fn every_byte_is_counted_once(steps in steps()) {
        let thread = new_thread();
        let mut force = Force { interval: Interval::new(4096), index: 0, change: 1 };
        let sampler = Sampler::new(
            GapLaw::Poisson,
            force.interval.unwrap(),
            Seed { process: 1 }.thread(1),
        );
        let (slow_path, _) = thread.mute(0, &Caller::UNKNOWN);
        slow_path.join(1, 1, 0, sampler, &force);
        drop(slow_path);
        let (mut counted, mut muted) = (0, 0);
        let (mut is_enabled, mut is_selected) = (true, true);
        for step in steps {
            let is_sampled = is_enabled && is_selected && force.interval.is_some();
            let own = if is_sampled { &mut counted } else { &mut muted };
            match step {
                Step::Allocate(bytes) => {
                    *own += bytes;
                    if thread.bytes_until_sample.get() >= bytes {
                        allocate(&thread, bytes);
                    } else {
                        let (slow_path, points) = thread.mute(bytes, &Caller::UNKNOWN);
                        prop_assert!(is_sampled || !points.is_sampled());
                        prop_assert_eq!(thread.pending().points, points);
                        drop(slow_path);
                    }
                }
                Step::SlowPath { within, is_given_up } => {
                    let (slow_path, _) = thread.mute(0, &Caller::UNKNOWN);
                    for bytes in within {
                        allocate_in_handler(&thread, bytes);
                        muted += bytes;
                    }
                    if is_given_up {
                        thread.give_up();
                        prop_assert!(!slow_path.is_ours());
                    }
                    drop(slow_path);
                }
                Step::Nested(bytes) => {
                    let (outer, _) = thread.mute(0, &Caller::UNKNOWN);
                    let (inner, points) = thread.mute(0, &Caller::UNKNOWN);
                    prop_assert!(outer.is_ours() && !inner.is_outermost() && !points.is_sampled());
                    allocate_in_handler(&thread, bytes);
                    muted += bytes;
                    drop(inner);
                    prop_assert!(thread.is_muted());
                    drop(outer);
                }
                Step::Tick(bytes) => {
                    let tick = thread.tick().unwrap();
                    prop_assert!(thread.tick().is_none());
                    allocate(&thread, bytes);
                    muted += bytes;
                    drop(tick);
                }
                Step::Enable(is_on) => {
                    let (slow_path, _) = thread.mute(0, &Caller::UNKNOWN);
                    slow_path.enable(is_on);
                    is_enabled = is_on;
                }
                Step::Select(is_in) => {
                    let (slow_path, _) = thread.mute(0, &Caller::UNKNOWN);
                    slow_path.select(is_in);
                    is_selected = is_in;
                }
                Step::Adopt(interval_bytes) => {
                    force.interval = interval_bytes.and_then(Interval::new);
                    force.change += 1;
                    let (slow_path, _) = thread.mute(0, &Caller::UNKNOWN);
                    slow_path.adopt(&force);
                }
                Step::Record(bytes) => {
                    let slow_path = thread.begin_record(&Caller::UNKNOWN);
                    prop_assert!(thread.is_muted() && slow_path.is_ours());
                    if thread.bytes_until_sample.get() >= bytes {
                        allocate(&thread, bytes);
                        *own += bytes;
                    }
                    drop(slow_path);
                }
            }
            prop_assert!(!thread.is_muted());
            prop_assert_eq!(thread.pending().points, SamplePoints(0));
            prop_assert_eq!(thread.is_enabled(), is_enabled && is_selected);
            assert_totals(&thread, counted, muted);
        }
    }
}

#[test]
fn a_noted_record_comes_back_as_it_was_and_once() {
    let thread = new_thread();
    assert!(!thread.has_record());
    let mut record = NotedRecord {
        start: (1 << 48) - 1,
        words: 12_345,
        writer: 191,
        ring: NotedRecord::ring_bits(u64::MAX),
        has_begun: false,
    };
    thread.note_record(record);
    assert!(thread.has_record());
    thread.record_has_begun();
    record.has_begun = true;
    assert_eq!(thread.take_record(), Some(record));
    assert_eq!(thread.take_record(), None);
    // Position 0 is a place too.
    let first = NotedRecord {
        start: 0,
        writer: 0,
        has_begun: false,
        ..record
    };
    thread.note_record(first);
    assert_eq!(thread.take_record(), Some(first));
}

#[test]
fn a_slow_path_that_drifts_owns_nothing_and_ends_the_drift() {
    let thread = joined(false);
    allocate(&thread, 100);
    let (slow_path, _) = thread.mute(0, &Caller::UNKNOWN);
    // A handler has forked, and this is the child: it stays muted until the interrupted slow path is over.
    thread.drift();
    assert!(!slow_path.is_ours() && slow_path.is_outermost());
    assert_eq!(thread.epoch(), 0);
    slow_path.enable(false);
    assert!(
        thread.is_enabled(),
        "a token without its thread changes nothing"
    );
    assert!(thread.is_muted() && thread.tick().is_none());
    drop(slow_path);
    assert!(!thread.is_muted());
    assert_eq!(thread.epoch(), 0);
    assert_eq!(
        thread.bytes_until_sample.get(),
        0,
        "the next allocation joins"
    );
}

#[test]
fn a_fork_that_leaves_its_slow_path_open_is_ended_by_another_token() {
    let thread = joined(false);
    let (slow_path, _) = thread.mute(0, &Caller::UNKNOWN);
    assert!(slow_path.leave_open());
    assert!(thread.is_muted());
    let (nested, _) = thread.mute(0, &Caller::UNKNOWN);
    assert!(!nested.leave_open());
    drop(SlowPath::again(&thread));
    assert!(!thread.is_muted());
}
