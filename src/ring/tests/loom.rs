//! Every interleaving of two producers and the consumer, within loom's bounds, on rings so small that they wrap.
//!
//! Run by `scripts/loom`. Loom fails a model when two threads touch a payload word unordered, when a thread is stuck,
//! and when one of these assertions fails.
#![cfg(loom)]

use allocsample_ring::{Consumer, ModelMemory, Priority, Progress, Ring, RingFull, Writer};
use loom::thread;

/// Runs `body` in a model of a fresh ring.
fn model(capacity_words: u64, body: impl Fn(Ring) + Sync + Send + 'static) {
    loom::model(move || {
        let memory = ModelMemory::new(capacity_words);
        // SAFETY: `body` joins its threads, so that no copy of the ring outlives the memory.
        let ring = unsafe { Ring::create(&memory, 1) };
        body(ring);
    });
}

fn consumer(ring: &Ring) -> Consumer {
    // SAFETY: each model has one.
    unsafe { ring.consumer() }
}

/// One record of one payload word: its kind, and a value that depends on it.
fn produce(ring: Ring, kind: u8, priority: Priority) -> Result<(), RingFull> {
    let mut record = ring.reserve(1, priority)?;
    assert_eq!(record.words_mut()[0], 0, "reserved words are zero");
    record.words_mut()[0] = u64::from(kind) * 1000;
    record.commit(kind);
    Ok(())
}

/// Reads what is there; checks it; adds the kinds.
///
/// It yields first, so that loom lets the producers go ahead and then moves the consumer's steps back between theirs,
/// step by step. The other way round it would not: of several accesses to a value it remembers the last one only, and
/// a producer's load of the head hides the consumer's from the exchange that follows it.
fn consume(consumer: &mut Consumer, kinds: &mut Vec<u8>) {
    thread::yield_now();
    while let Some(record) = consumer.next() {
        assert_eq!(record.words[0], u64::from(record.kind) * 1000);
        kinds.push(record.kind);
    }
    consumer.release();
}

#[test]
fn what_two_threads_commit_arrives_once() {
    model(16, |ring| {
        let first = thread::spawn(move || produce(ring, 1, Priority::Sample));
        let second = thread::spawn(move || produce(ring, 2, Priority::Sample));
        let (mut consumer, mut kinds) = (consumer(&ring), Vec::new());
        consume(&mut consumer, &mut kinds);
        assert_eq!(first.join().unwrap(), Ok(()));
        assert_eq!(second.join().unwrap(), Ok(()));
        consume(&mut consumer, &mut kinds);
        kinds.sort();
        assert_eq!(kinds, [1, 2]);
        assert_eq!((ring.tail(), ring.head()), (4, 4));
    });
}

/// Fills a ring of 8 words up to `used`, and reads and releases the first `read` records of two words.
fn prepare(ring: &Ring, records: usize, read: usize) -> Consumer {
    for _ in 0..records {
        produce(*ring, 9, Priority::Essential).unwrap();
    }
    let mut consumer = consumer(ring);
    for _ in 0..read {
        assert_eq!(consumer.next().unwrap().kind, 9);
    }
    consumer.release();
    consumer
}

#[test]
fn the_last_space_goes_to_one_of_two_threads_and_nothing_is_overwritten() {
    model(8, |ring| {
        let mut consumer = prepare(&ring, 3, 0);
        let first = thread::spawn(move || produce(ring, 1, Priority::Essential));
        let second = thread::spawn(move || produce(ring, 2, Priority::Essential));
        let results = [first.join().unwrap(), second.join().unwrap()];
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        let mut kinds = Vec::new();
        consume(&mut consumer, &mut kinds);
        assert_eq!(kinds[..3], [9, 9, 9]);
        assert_eq!(kinds.len(), 4);
    });
}

#[test]
fn words_released_on_one_side_are_reused_on_the_other() {
    model(8, |ring| {
        // Words 0..8 are full and the first two records are consumed while the producers want their place.
        let mut consumer = prepare(&ring, 4, 1);
        let first = thread::spawn(move || produce(ring, 1, Priority::Essential));
        let second = thread::spawn(move || produce(ring, 2, Priority::Essential));
        let mut kinds = Vec::new();
        consume(&mut consumer, &mut kinds);
        let results = [first.join().unwrap(), second.join().unwrap()];
        consume(&mut consumer, &mut kinds);
        let accepted = results.iter().filter(|result| result.is_ok()).count();
        assert!(accepted >= 1, "two words were free from the start");
        assert_eq!(kinds.len(), 3 + accepted);
        assert_eq!(ring.used_words(), 0);
    });
}

#[test]
fn a_record_that_would_cross_the_end_is_preceded_by_padding() {
    model(16, |ring| {
        // The head stands one word before the end, the first records are released during the race.
        let mut consumer = consumer(&ring);
        for _ in 0..5 {
            ring.reserve(2, Priority::Essential).unwrap().commit(9);
            assert_eq!(consumer.next().unwrap().kind, 9);
        }
        consumer.release();
        assert_eq!(ring.head(), 15);
        let first = thread::spawn(move || produce(ring, 1, Priority::Essential));
        let second = thread::spawn(move || produce(ring, 2, Priority::Essential));
        let mut kinds = Vec::new();
        consume(&mut consumer, &mut kinds);
        assert_eq!(first.join().unwrap(), Ok(()));
        assert_eq!(second.join().unwrap(), Ok(()));
        consume(&mut consumer, &mut kinds);
        kinds.sort();
        assert_eq!(kinds, [1, 2]);
        assert_eq!((ring.tail(), ring.head()), (20, 20));
    });
}

#[test]
fn an_abandoned_record_is_passed_over() {
    model(8, |ring| {
        let first = thread::spawn(move || {
            let mut record = ring.reserve(1, Priority::Essential).unwrap();
            record.words_mut()[0] = 77;
            drop(record);
        });
        let second = thread::spawn(move || produce(ring, 2, Priority::Essential));
        let (mut consumer, mut kinds) = (consumer(&ring), Vec::new());
        consume(&mut consumer, &mut kinds);
        first.join().unwrap();
        assert_eq!(second.join().unwrap(), Ok(()));
        consume(&mut consumer, &mut kinds);
        assert_eq!(kinds, [2]);
        assert_eq!(ring.used_words(), 0);
    });
}

#[test]
fn a_record_within_a_record_commits_first() {
    // A signal handler's record, made between the other one's reservation and its commit, on the same thread.
    model(16, |ring| {
        let interrupted = thread::spawn(move || {
            let mut outer = ring.reserve(1, Priority::Sample).unwrap();
            assert_eq!(produce(ring, 2, Priority::Sample), Ok(()));
            outer.words_mut()[0] = 1000;
            outer.commit(1);
        });
        let (mut consumer, mut kinds) = (consumer(&ring), Vec::new());
        consume(&mut consumer, &mut kinds);
        interrupted.join().unwrap();
        consume(&mut consumer, &mut kinds);
        assert_eq!(kinds, [1, 2]);
    });
}

#[test]
fn a_second_consumer_takes_over_from_the_first() {
    model(8, |ring| {
        let producer = thread::spawn(move || {
            let _ = produce(ring, 1, Priority::Essential);
            let _ = produce(ring, 2, Priority::Essential);
        });
        let first = thread::spawn(move || {
            let (mut consumer, mut kinds) = (consumer(&ring), Vec::new());
            consume(&mut consumer, &mut kinds);
            kinds
        });
        let mut kinds = first.join().unwrap();
        producer.join().unwrap();
        consume(&mut consumer(&ring), &mut kinds);
        assert_eq!(kinds, [1, 2]);
    });
}

#[test]
fn a_writer_that_is_left_right_after_its_exchange_knows_which_one_it_was() {
    model(16, |ring| {
        let left = thread::spawn(move || {
            let (writer, mut intended) = (Writer::new(1), Vec::new());
            let tell = |progress| match progress {
                Progress::Intended(start) => intended.push(start),
                Progress::Begun => unreachable!("it is left before"),
            };
            ring.take_and_leave(writer, 1, Priority::Sample, tell)
                .unwrap();
            let last = intended.pop().unwrap();
            for start in intended {
                if start != last {
                    assert!(!ring.abandon_intended(writer, start, 1), "another's");
                }
            }
            assert!(ring.abandon_intended(writer, last, 1));
        });
        let other = thread::spawn(move || {
            for kind in [2, 3] {
                let mut record = ring
                    .reserve_by(Writer::new(2), 1, Priority::Sample, |_| {})
                    .unwrap();
                record.words_mut()[0] = u64::from(kind) * 1000;
                record.commit(kind);
            }
        });
        let (mut consumer, mut kinds) = (consumer(&ring), Vec::new());
        consume(&mut consumer, &mut kinds);
        left.join().unwrap();
        other.join().unwrap();
        consume(&mut consumer, &mut kinds);
        assert_eq!(kinds, [2, 3]);
        assert_eq!((ring.tail(), ring.head()), (6, 6));
    });
}
