#![allow(clippy::indexing_slicing, reason = "a test may fail")]

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use allocsample_record::{CHUNK_HEADER_BYTES, ChunkHeader, ForkRecord, IntervalRecord, RecordKind};
use allocsample_sampling::{Interval, Seed};
use std::vec::Vec;

use super::*;
use crate::os::futex;
use crate::os::process;
use crate::trial::{Trial, agent};

const FORK: ForkRecord = ForkRecord {
    time_ns: 1,
    child_pid: 2,
};

fn begun(settings: &[(&str, &str)]) -> Trial {
    let trial = Trial::begin(agent!(), settings);
    trial.alloc(trial.thread(), 0x1000, 4096).unwrap();
    trial
}

#[test]
fn samples_that_were_due_before_a_recording_are_lost_in_the_first_of_the_same_process() {
    let trial = begun(&[("INTERVAL", "1")]);
    let recording = trial.recording();
    let lost = || {
        let lost = recording.ring.lost();
        lost.into_iter().nth(LostReason::WriteFailed as usize)
    };
    let publisher = Publisher::new();
    publisher.count_lost_before_recording(100);
    publisher.write_lost_before(recording);
    assert_eq!(lost(), Some((1, 100)));
    // Those of the parent are not the child's.
    publisher.count_lost_before_recording(1000);
    publisher.restart();
    publisher.write_lost_before(recording);
    assert_eq!(lost(), Some((1, 100)));
}

#[test]
fn what_was_defined_while_the_recording_began_is_in_its_file() {
    let trial = begun(&[("INTERVAL", "1")]);
    let recording = trial.recording();
    let length = || {
        let path = std::str::from_utf8(recording.path.as_bytes()).unwrap();
        std::fs::metadata(path).unwrap().len()
    };
    let before = length();
    let publisher = Publisher::new();
    publisher.write_late_definitions(recording);
    assert_eq!(length(), before);
    assert!(publisher.definitions().keep(&FORK));
    publisher.write_late_definitions(recording);
    let record_bytes = (1 + FORK.words() as u64) * 8;
    assert_eq!(length() - before, CHUNK_HEADER_BYTES as u64 + record_bytes);
}

/// They lie behind a header in memory that is mapped for them: here far more than a page.
#[test]
fn thousands_of_definitions_are_written_as_one_chunk() {
    let trial = begun(&[("INTERVAL", "1")]);
    let path = std::str::from_utf8(trial.recording().path.as_bytes()).unwrap();
    let before = std::fs::metadata(path).unwrap().len() as usize;
    let publisher = Publisher::new();
    let defined: Vec<ForkRecord> = (0..5000)
        .map(|child_pid| ForkRecord { child_pid, ..FORK })
        .collect();
    assert!(defined.iter().all(|it| publisher.definitions().keep(it)));
    publisher.write_late_definitions(trial.recording());
    let file = std::fs::read(path).unwrap();
    let chunk = ChunkHeader::decode(&file[before..]).unwrap();
    let payload = &file[before + CHUNK_HEADER_BYTES..];
    assert_eq!(chunk.raw_bytes as usize, payload.len());
    let record_words = 1 + FORK.words();
    let found: Vec<Option<ForkRecord>> = payload
        .as_chunks()
        .0
        .chunks(record_words)
        .map(|record: &[[u8; 8]]| {
            let words: Vec<u64> = record
                .iter()
                .map(|word| u64::from_le_bytes(*word))
                .collect();
            ForkRecord::decode(&words[1..])
        })
        .collect();
    assert_eq!(found, defined.into_iter().map(Some).collect::<Vec<_>>());
}

#[test]
fn each_interval_of_heaps_has_one_number_and_one_definition() {
    // An agent of its own: what it defines is known to its later recordings.
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1")]);
    trial.alloc(trial.thread(), 0x1000, 4096).unwrap();
    let publisher = trial.agent.publisher();
    let number = |bytes| {
        let interval = Interval::new(bytes).unwrap();
        publisher
            .interval_of_heaps(interval, Seed { process: 3 })
            .unwrap()
    };
    let before = trial.of_kind(RecordKind::Interval).len();
    let first = number(1000);
    let second = number(2000);
    assert_ne!(first, second);
    assert_eq!((number(1000), number(2000)), (first, second));
    let found: Vec<_> = trial.of_kind(RecordKind::Interval)[before..]
        .iter()
        .map(|words| {
            let it = IntervalRecord::decode(words).unwrap();
            (it.heap, it.index, it.interval_bytes, it.seed)
        })
        .collect();
    let some = IntervalRecord::SOME_HEAP;
    assert_eq!(found, [(some, first, 1000, 3), (some, second, 2000, 3)]);
}

#[test]
fn a_record_waits_for_the_space_that_the_drain_thread_makes() {
    let trial = begun(&[("INTERVAL", "1"), ("ON_FULL", "wait")]);
    let recording = trial.recording();
    let publisher = &trial.agent.publisher;
    trial.fill_ring();
    // Nobody makes any.
    recording.set_drain_state(DrainState::Failed);
    assert!(!publisher.wait_for_space(recording, true));
    while recording.push(&FORK) {}
    assert!(!publisher.push_or_wait(&FORK));
    recording.set_drain_state(DrainState::Running);
    let (asked, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    let wake = recording.wake.load(Ordering::Acquire);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                if recording.wake.load(Ordering::Acquire) != wake {
                    asked.store(1, Ordering::Release);
                    recording.space.fetch_add(1, Ordering::Release);
                    futex::wake_all(&recording.space);
                }
                process::yield_now();
            }
        });
        let is_there = publisher.wait_for_space(recording, true);
        is_over.store(true, Ordering::Release);
        assert!(is_there);
    });
    assert_eq!(asked.load(Ordering::Acquire), 1);
}

#[test]
fn a_sleeping_drain_thread_is_woken_and_one_of_another_process_is_not() {
    let trial = begun(&[("INTERVAL", "1")]);
    let recording = trial.recording();
    let publisher = &trial.agent.publisher;
    recording.set_drain_state(DrainState::Running);
    let wakes = || recording.wake.load(Ordering::Acquire);
    let before = wakes();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| recording.sleep_until_work(before, None));
        // As long as it is not asleep, there is nothing to wake.
        while !sleeper.is_finished() {
            publisher.set_drain_to_work(recording, true);
            process::yield_now();
        }
    });
    assert_eq!(wakes(), before + 1);
    recording::forget();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| recording.sleep_until_work(before + 1, Some(50)));
        while !sleeper.is_finished() {
            publisher.set_drain_to_work(recording, true);
            process::yield_now();
        }
    });
    assert_eq!(wakes(), before + 1);
}
