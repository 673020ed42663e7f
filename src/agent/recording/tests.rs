use core::sync::atomic::{AtomicBool, Ordering};

use allocsample_record::{ForkRecord, NoteRecord, RecordKind};
use allocsample_ring::{Writer, request};
use std::vec::Vec;

use super::*;
use crate::accounting::thread::ShimThread;
use crate::config::OnFull;
use crate::trial::{Trial, agent};

const CAPACITY_WORDS: u64 = 1 << 12;

/// Without files: the ring is plain memory that is never given back.
pub(crate) fn recording() -> Recording {
    recording_at(Path::new())
}

/// The same with files, which the caller makes.
pub(crate) fn recording_at(path: Path) -> Recording {
    let bytes = allocsample_ring::file_bytes(CAPACITY_WORDS);
    let base = memory::map(bytes).unwrap();
    // SAFETY: fresh and zeroed, mapped for ever, aligned to a page.
    let ring = unsafe { Ring::create(base, CAPACITY_WORDS, 7) };
    Recording::new(ring, path, (base, bytes), 0)
}

fn new_thread() -> ShimThread {
    // SAFETY: all zero bytes are a thread that has not joined.
    unsafe { core::mem::zeroed() }
}

/// The kinds of the records that the drain thread would get.
fn drained(recording: &Recording) -> Vec<u8> {
    // SAFETY: the only consumer.
    let mut consumer = unsafe { recording.ring.consumer() };
    let mut kinds = Vec::new();
    while let Some(record) = consumer.next() {
        kinds.push(record.kind);
    }
    kinds
}

#[test]
fn of_two_requests_the_one_that_does_more_stays_with_the_later_generation() {
    let recording = recording();
    assert_eq!(recording.take_asked(), None);
    recording.ask_for_file_work(request::ROTATE, 5);
    recording.ask_for_file_work(request::FLUSH, 9);
    assert!(recording.is_asked());
    assert_eq!(recording.take_asked(), Some((request::ROTATE, 9)));
    assert_eq!(recording.take_asked(), None);
    // From inside there is no generation, and the one from outside is not lost.
    recording.ask_for_file_work(request::SNAPSHOT, 3);
    recording.ask_for_file_work(request::RESET, 0);
    assert_eq!(recording.take_asked(), Some((request::RESET, 3)));
}

#[test]
fn each_request_wakes_the_drain_thread_once_more() {
    let recording = recording();
    let before = recording.wake.load(Ordering::Relaxed);
    recording.ask_for_file_work(request::FLUSH, 1);
    assert_eq!(recording.wake.load(Ordering::Relaxed), before + 1);
    // A nudge wakes only a thread that sleeps.
    recording.nudge_drain();
    assert_eq!(recording.wake.load(Ordering::Relaxed), before + 1);
    recording.is_drain_asleep.store(true, Ordering::Relaxed);
    recording.nudge_drain();
    recording.nudge_drain();
    assert_eq!(recording.wake.load(Ordering::Relaxed), before + 2);
}

#[test]
fn a_record_wakes_a_drain_thread_that_sleeps_if_there_is_enough_in_the_ring() {
    let recording = recording();
    let woken = |state: DrainState, used_words: u64| {
        recording.set_drain_state(state);
        recording.is_drain_asleep.store(true, Ordering::Relaxed);
        let before = recording.wake.load(Ordering::Relaxed);
        recording.nudge_if_due(used_words);
        recording.wake.load(Ordering::Relaxed) - before
    };
    let quarter = CAPACITY_WORDS / 4;
    assert_eq!(woken(DrainState::Running, quarter - 1), 0);
    assert_eq!(woken(DrainState::Running, quarter), 1);
    assert_eq!(woken(DrainState::Starting, quarter), 0);
}

#[test]
fn one_of_many_threads_starts_the_drain_thread() {
    let recording = recording();
    let claims = std::thread::scope(|scope| {
        let claim = || recording.claim_drain_start();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(claim)).collect();
        let claims = threads.into_iter().map(|thread| thread.join().unwrap());
        claims.filter(|&is_claimed| is_claimed).count()
    });
    assert_eq!(claims, 1);
    assert_eq!(recording.drain_state(), DrainState::Starting);
    assert_eq!(recording.holders.load(Ordering::Relaxed), 2);
}

#[test]
fn a_drain_thread_that_was_paused_may_start_again() {
    let recording = recording();
    for (state, after) in [
        (DrainState::Done, DrainState::None),
        (DrainState::Running, DrainState::Running),
        (DrainState::Failed, DrainState::Failed),
    ] {
        recording.set_drain_state(state);
        recording.allow_drain_again();
        assert_eq!(recording.drain_state(), after);
        assert_eq!(recording.drain_request(), DrainRequest::Work);
    }
}

#[test]
fn a_quarter_of_the_ring_is_worth_draining_or_what_was_asked_for_if_that_is_less() {
    let recording = recording();
    let quarter = CAPACITY_WORDS / 4;
    let edges = |recording: &Recording, words| {
        [words - 1, words].map(|used| recording.is_worth_draining(used))
    };
    assert_eq!(edges(&recording, quarter), [false, true]);
    recording.drain_from(100);
    assert_eq!(edges(&recording, 100), [false, true]);
    recording.drain_from(u64::MAX);
    assert_eq!(edges(&recording, quarter), [false, true]);
    assert!(!recording.has_work());
}

#[test]
fn a_slow_path_that_waited_for_a_processor_counts_as_sixteen_usual_ones_at_most() {
    let recording = recording();
    let figure = |figure: Figure| *recording.ring.figures().get(figure as usize).unwrap();
    let sum = || figure(Figure::TimedSamplesNs);
    // Until there is a mean, a millisecond at most.
    recording.count_time(Figure::TimedSamples, 5_000_000);
    assert_eq!(sum(), 1_000_000);
    for _ in 1..16 {
        recording.count_time(Figure::TimedSamples, 0);
    }
    // The mean is 62,500 ns now.
    recording.count_time(Figure::TimedSamples, 40_000_000);
    assert_eq!(sum(), 1_000_000 + 16 * 62_500);
    recording.count_time(Figure::TimedSamples, 300);
    assert_eq!(sum(), 1_000_000 + 16 * 62_500 + 300);
    assert_eq!(figure(Figure::TimedSamples), 18);
}

#[test]
fn a_record_that_does_not_fit_leaves_room_for_those_at_the_end() {
    let recording = recording();
    let record = ForkRecord {
        time_ns: 1,
        child_pid: 2,
    };
    let mut pushed = 0_u64;
    while recording.push(&record) {
        pushed += 1;
        assert!(pushed < CAPACITY_WORDS);
    }
    assert!(recording.push_at_end(&record));
    assert_eq!(drained(&recording).len() as u64, pushed + 1);
}

#[test]
fn records_of_any_size_are_drained_in_order() {
    let recording = recording();
    recording.note(Note::Attached, b"a detail");
    assert!(recording.push(&ForkRecord {
        time_ns: 1,
        child_pid: 2,
    }));
    let note = NoteRecord {
        time_ns: 1,
        note: Note::Filtered,
        detail: &[b'x'; 1000],
    };
    assert!(recording.push_at_end(&note));
    let expected = [RecordKind::Note, RecordKind::Fork, RecordKind::Note];
    assert_eq!(drained(&recording), expected.map(|kind| kind as u8));
}

#[test]
fn a_record_that_was_left_by_a_jump_does_not_stop_those_behind_it() {
    let recording = recording();
    let thread = new_thread();
    let noted = recording
        .reserve_on(&thread, 5, Priority::Essential)
        .unwrap();
    assert!(thread.has_record());
    // The handler's own record is not noted: the interrupted one is.
    let within = recording
        .reserve_on(&thread, 2, Priority::Essential)
        .unwrap();
    within.commit(RecordKind::Free as u8);
    assert!(thread.has_record());
    core::mem::forget(noted);
    assert!(!recording.abandon_record_of(&thread));
    assert!(!thread.has_record());
    let after = recording
        .reserve_on(&thread, 1, Priority::Essential)
        .unwrap();
    after.commit(RecordKind::Fork as u8);
    let expected = [RecordKind::Free, RecordKind::Fork].map(|kind| kind as u8);
    assert_eq!(drained(&recording), expected);
}

#[test]
fn a_record_that_was_committed_before_the_jump_stays() {
    let recording = recording();
    let thread = new_thread();
    let noted = recording
        .reserve_on(&thread, 5, Priority::Essential)
        .unwrap();
    let mut is_written = None;
    noted.commit_and(RecordKind::Sample as u8, || {
        // A handler comes in here, and finds out that the thread has left the slow path.
        is_written = Some(recording.abandon_record_of(&thread));
    });
    assert_eq!(is_written, Some(true));
    assert!(!thread.has_record());
    assert_eq!(drained(&recording), [RecordKind::Sample as u8]);
}

#[test]
fn a_note_about_another_ring_touches_nothing() {
    let recording = recording();
    let thread = new_thread();
    let noted = recording
        .reserve_on(&thread, 5, Priority::Essential)
        .unwrap();
    let mut record = thread.take_record().unwrap();
    record.ring ^= 1;
    thread.note_record(record);
    assert!(!recording.abandon_record_of(&thread));
    noted.commit(RecordKind::Sample as u8);
    assert_eq!(drained(&recording), [RecordKind::Sample as u8]);
}

#[test]
fn a_note_about_an_intended_record_of_another_ring_touches_nothing() {
    let trial = Trial::begin(agent!(), &[]);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 64);
    assert_ne!(thread.slot(), 0, "it has joined");
    let recording = recording();
    let noted = recording
        .reserve_on(thread, 5, Priority::Essential)
        .unwrap();
    let mut record = thread.take_record().unwrap();
    record.has_begun = false;
    record.ring ^= 1;
    thread.note_record(record);
    assert!(recording.push(&ForkRecord {
        time_ns: 1,
        child_pid: 2,
    }));
    assert!(!recording.abandon_record_of(thread));
    assert!(drained(&recording).is_empty(), "the first is not finished");
    noted.commit(RecordKind::Sample as u8);
    let expected = [RecordKind::Sample, RecordKind::Fork].map(|kind| kind as u8);
    assert_eq!(drained(&recording), expected);
}

#[test]
fn a_thread_that_has_not_joined_writes_under_no_slot() {
    let trial = Trial::begin(agent!(), &[]);
    let thread = trial.thread();
    let writer = || {
        let recording = recording();
        let noted = recording
            .reserve_on(thread, 5, Priority::Essential)
            .unwrap();
        let writer = thread.take_record().unwrap().writer;
        noted.commit(RecordKind::Sample as u8);
        writer
    };
    assert_eq!(writer(), 0);
    trial.alloc(thread, 0x1000, 64);
    assert_eq!(writer(), Writer::new(thread.slot() as usize).number());
    assert_ne!(writer(), 0);
    // What it has left of a slot may be another thread's by now.
    thread.forget();
    assert_ne!(thread.slot(), 0);
    assert_eq!(writer(), 0);
}

#[test]
fn a_record_without_room_leaves_no_note() {
    let recording = recording();
    let thread = new_thread();
    let too_long = CAPACITY_WORDS as usize;
    assert!(
        recording
            .reserve_on(&thread, too_long, Priority::Last)
            .is_err()
    );
    assert!(!thread.has_record());
}

/// Runs `work` while another thread answers as a drain thread would.
fn with_drain<R>(answer: impl Fn() + Sync, work: impl FnOnce() -> R) -> R {
    std::thread::scope(|scope| {
        scope.spawn(&answer);
        work()
    })
}

#[test]
fn only_who_is_to_wait_waits_for_space_and_only_while_it_can_come() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1")]);
    trial.alloc(trial.thread(), 0x1000, 24).unwrap();
    let recording = trial.recording();
    assert!(!recording.wait_for_space(OnFull::Wait), "no drain thread");
    recording.set_drain_state(DrainState::Running);
    assert!(!recording.wait_for_space(OnFull::Drop));
    let wake = recording.wake.load(Ordering::Relaxed);
    let give_space = || {
        // It is woken first.
        while recording.wake.load(Ordering::Acquire) == wake {
            process::yield_now();
        }
        recording.space.fetch_add(1, Ordering::Release);
        crate::os::futex::wake_all(&recording.space);
    };
    let is_there = with_drain(give_space, || recording.wait_for_space(OnFull::Wait));
    assert!(is_there);
    // One that ends gives none. The waiting thread may be about to sleep when that happens.
    let is_over = AtomicBool::new(false);
    let end = || {
        while recording.wake.load(Ordering::Acquire) == wake + 1 {
            process::yield_now();
        }
        recording.set_drain_state(DrainState::Failed);
        while !is_over.load(Ordering::Acquire) {
            crate::os::futex::wake_all(&recording.space);
            process::yield_now();
        }
    };
    let is_there = with_drain(end, || {
        let is_there = recording.wait_for_space(OnFull::Wait);
        is_over.store(true, Ordering::Release);
        is_there
    });
    assert!(!is_there);
    forget();
    recording.set_drain_state(DrainState::Running);
    assert!(
        !recording.wait_for_space(OnFull::Wait),
        "of another process"
    );
}

#[test]
fn the_drain_thread_is_asked_and_waited_for() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1")]);
    trial.alloc(trial.thread(), 0x1000, 24).unwrap();
    let recording = trial.recording();
    for state in [DrainState::None, DrainState::Failed] {
        recording.set_drain_state(state);
        assert!(!recording.ask_drain(DrainRequest::Pause, 1000));
    }
    recording.set_drain_state(DrainState::Done);
    assert!(recording.ask_drain(DrainRequest::Pause, 1000));
    for request in [DrainRequest::Pause, DrainRequest::Finish] {
        recording.allow_drain_again();
        recording.set_drain_state(DrainState::Running);
        assert_eq!(recording.drain_request(), DrainRequest::Work);
        let obey = || {
            while recording.drain_request() != request {
                process::yield_now();
            }
            recording.set_drain_state(DrainState::Done);
        };
        assert!(with_drain(obey, || recording.ask_drain(request, 60_000)));
    }
    // One that stands still is waited for as long as the patience goes.
    recording.set_drain_state(DrainState::Running);
    assert!(!recording.ask_drain(DrainRequest::Finish, 1));
    forget();
    assert!(!recording.ask_drain(DrainRequest::Finish, 60_000));
}

#[test]
fn a_start_of_the_drain_thread_is_waited_for_until_it_has_opened_the_profile() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1")]);
    trial.alloc(trial.thread(), 0x1000, 24).unwrap();
    let recording = trial.recording();
    recording.wait_for_drain_start();
    assert!(recording.claim_drain_start());
    assert!(!recording.claim_drain_start());
    let begin = || recording.set_drain_state(DrainState::Running);
    with_drain(begin, || recording.wait_for_drain_start());
    assert_eq!(recording.drain_state(), DrainState::Running);
}

#[test]
fn the_drain_thread_sleeps_only_while_there_is_nothing_to_do() {
    let recording = recording();
    let wake = recording.wake.load(Ordering::Relaxed);
    // Somebody has woken it since it looked.
    recording.sleep_until_work(wake.wrapping_sub(1), None);
    assert!(!recording.is_drain_asleep.load(Ordering::Relaxed));
    // There is work.
    recording.drain_from(1);
    recording.note(Note::Attached, b"");
    recording.sleep_until_work(wake, None);
    assert!(!recording.is_drain_asleep.load(Ordering::Relaxed));
    assert!(!recording.has_main_exited());
    recording.main_has_exited();
    assert!(recording.has_main_exited());
    assert_eq!(recording.wake.load(Ordering::Relaxed), wake + 1);
    recording.wake_drain_for_the_last_time();
    assert_eq!(recording.wake.load(Ordering::Relaxed), wake + 2);
}

#[test]
fn a_note_goes_with_its_record() {
    let recording = recording();
    let thread = new_thread();
    let reserve = || {
        let noted = recording.reserve_on(&thread, 2, Priority::Essential);
        assert!(thread.has_record());
        noted.unwrap()
    };
    reserve().commit(RecordKind::Free as u8);
    assert!(!thread.has_record());
    drop(reserve());
    assert!(!thread.has_record());
    reserve().commit_and(RecordKind::Fork as u8, || assert!(thread.has_record()));
    assert!(!thread.has_record());
    let expected = [RecordKind::Free, RecordKind::Fork].map(|kind| kind as u8);
    assert_eq!(drained(&recording), expected);
}
