//! Many threads at once, on the real memory model of this machine.
#![cfg(not(loom))]

mod mapping;

use std::sync::atomic::{AtomicBool, Ordering};

use allocsample_ring::{Priority, Ring};
use mapping::Mapping;

const RECORDS: u64 = 50_000;

/// The payload of a thread's record: it names both, and all words follow from the first.
fn payload(thread: u64, number: u64) -> impl Iterator<Item = u64> {
    let first = thread << 48 | number;
    (0_u64..).map(move |index| first.wrapping_mul(index * 2 + 1))
}

/// Writes `RECORDS` records; waits where the ring is full; every eleventh is abandoned once first.
fn produce(ring: &Ring, thread: u64) {
    for number in 0..RECORDS {
        let words = 1 + (number * 7 + thread) as usize % 13;
        let priority = [Priority::Sample, Priority::Essential][number as usize % 2];
        if number % 11 == 0
            && let Ok(mut record) = ring.reserve(words, priority)
        {
            record.words_mut().fill(u64::MAX);
        }
        let mut record = loop {
            match ring.reserve(words, priority) {
                Ok(record) => break record,
                Err(_) => std::thread::yield_now(),
            }
        };
        for (word, value) in record.words_mut().iter_mut().zip(payload(thread, number)) {
            assert_eq!(*word, 0);
            *word = value;
        }
        record.commit(1 + thread as u8);
    }
}

#[test]
fn every_record_of_every_thread_arrives_once_and_in_the_order_of_its_thread() {
    // Small, so that it wraps thousands of times and is full most of the time.
    let mapping = Mapping::new(256);
    let ring = mapping.ring();
    let is_done = AtomicBool::new(false);
    let mut next = [0_u64; 4];
    std::thread::scope(|scope| {
        let producers: Vec<_> = (0..4)
            .map(|thread| scope.spawn(move || produce(ring, thread)))
            .collect();
        scope.spawn(|| {
            producers
                .into_iter()
                .for_each(|producer| producer.join().unwrap());
            is_done.store(true, Ordering::Release);
        });
        // SAFETY: the only one.
        let mut consumer = unsafe { ring.consumer() };
        let mut last = None;
        loop {
            let was_done = is_done.load(Ordering::Acquire);
            let mut batch = 0;
            while let Some(record) = consumer.next() {
                assert!(Some(record.position) > last);
                last = Some(record.position);
                let thread = u64::from(record.kind) - 1;
                let number = next[thread as usize];
                next[thread as usize] += 1;
                assert_eq!(record.words.len(), 1 + (number * 7 + thread) as usize % 13);
                assert!(
                    record
                        .words
                        .iter()
                        .copied()
                        .eq(payload(thread, number).take(record.words.len()))
                );
                batch += 1;
                if batch % 5 == 0 {
                    break;
                }
            }
            consumer.release();
            if was_done && batch == 0 {
                break;
            }
            if batch == 0 {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(next, [RECORDS; 4]);
    assert_eq!(ring.used_words(), 0);
}
