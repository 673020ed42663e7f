//! Any sequence of operations on a ring does what the same sequence does to a queue.
#![cfg(not(loom))]

mod mapping;

use std::collections::VecDeque;

use allocsample_ring::{Consumer, Priority, Reservation, Ring, Stretch, recover, recover_words};
use mapping::Mapping;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Reserve(usize, Priority),
    /// Which open reservation (modulo their number), and as what kind.
    Commit(usize, u8),
    Abandon(usize),
    /// How many records to read.
    Consume(usize),
    Release,
    /// Drops the consumer and makes another.
    Replace,
}

fn step() -> impl Strategy<Value = Step> {
    let priority = prop_oneof![
        3 => Just(Priority::Sample),
        3 => Just(Priority::Essential),
        1 => Just(Priority::Last),
    ];
    prop_oneof![
        4 => (0_usize..20, priority).prop_map(|(words, priority)| Step::Reserve(words, priority)),
        4 => (0_usize..8, 1..=255_u8).prop_map(|(which, kind)| Step::Commit(which, kind)),
        1 => (0_usize..8).prop_map(Step::Abandon),
        3 => (0_usize..6).prop_map(Step::Consume),
        2 => Just(Step::Release),
        1 => Just(Step::Replace),
    ]
}

/// What a record is in the oracle.
#[derive(Clone, Debug, PartialEq)]
struct Expected {
    position: u64,
    state: State,
    words: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Open,
    Committed(u8),
    Abandoned,
}

/// The ring under test beside a plain queue of the records in it.
struct Pair<'a> {
    ring: &'a Ring,
    consumer: Consumer,
    /// Reserved and not released, in order.
    queue: VecDeque<Expected>,
    /// How many of them the consumer has passed.
    passed: usize,
    open: Vec<Reservation<'a>>,
    random: u64,
}

impl<'a> Pair<'a> {
    fn new(ring: &'a Ring) -> Self {
        // SAFETY: the only one until `replace`.
        let consumer = unsafe { ring.consumer() };
        Self {
            ring,
            consumer,
            queue: VecDeque::new(),
            passed: 0,
            open: Vec::new(),
            random: 1,
        }
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Reserve(words, priority) => self.reserve(words, priority)?,
            Step::Commit(which, kind) => self.finish(which, State::Committed(kind)),
            Step::Abandon(which) => self.finish(which, State::Abandoned),
            Step::Consume(records) => {
                for _ in 0..records {
                    self.consume()?;
                }
            }
            Step::Release => {
                self.consumer.release();
                self.queue.drain(..self.passed);
                self.passed = 0;
                prop_assert_eq!(self.ring.tail(), self.consumer.position());
            }
            Step::Replace => {
                // SAFETY: the old one is dropped by the assignment and not used in between.
                self.consumer = unsafe { self.ring.consumer() };
                self.passed = 0;
            }
        }
        Ok(())
    }

    fn reserve(&mut self, words: usize, priority: Priority) -> Result<(), TestCaseError> {
        let capacity = self.ring.capacity_words();
        let (head, total) = (self.ring.head(), words as u64 + 1);
        let to_end = capacity - head % capacity;
        let position = if total > to_end { head + to_end } else { head };
        let limit = match priority {
            Priority::Sample => capacity / 8 * 7,
            Priority::Essential => capacity - capacity / 64,
            Priority::Last => capacity,
        };
        let fits = total <= capacity / 4 && position + total - self.ring.tail() <= limit;
        match self.ring.reserve(words, priority) {
            Ok(mut record) => {
                prop_assert!(fits);
                prop_assert_eq!(record.position(), position);
                prop_assert_eq!(self.ring.head(), position + total);
                prop_assert!(record.words_mut().iter().all(|&word| word == 0));
                for word in record.words_mut() {
                    self.random = self.random.wrapping_mul(6_364_136_223_846_793_005) + 1;
                    *word = self.random;
                }
                self.queue.push_back(Expected {
                    position,
                    state: State::Open,
                    words: record.words_mut().to_vec(),
                });
                self.open.push(record);
            }
            Err(_) => prop_assert!(!fits),
        }
        Ok(())
    }

    fn finish(&mut self, which: usize, state: State) {
        if self.open.is_empty() {
            return;
        }
        let record = self.open.remove(which % self.open.len());
        let expected = self
            .queue
            .iter_mut()
            .find(|expected| expected.position == record.position())
            .unwrap();
        expected.state = state;
        match state {
            State::Committed(kind) => record.commit(kind),
            _ => drop(record),
        }
    }

    fn consume(&mut self) -> Result<(), TestCaseError> {
        while self
            .queue
            .get(self.passed)
            .is_some_and(|expected| expected.state == State::Abandoned)
        {
            self.passed += 1;
        }
        let expected = self.queue.get(self.passed);
        let record = self.consumer.next();
        match (expected, record) {
            (Some(expected), Some(record)) => {
                prop_assert_eq!(expected.state, State::Committed(record.kind));
                prop_assert_eq!(expected.position, record.position);
                prop_assert_eq!(&expected.words[..], record.words);
                self.passed += 1;
            }
            (Some(expected), None) => prop_assert_eq!(expected.state, State::Open),
            (None, record) => prop_assert!(record.is_none()),
        }
        Ok(())
    }

    /// What recovery must find: (position, kind, words) of the committed, and the number of the open.
    fn left(&self) -> (Vec<(u64, u8, Vec<u64>)>, u64) {
        let committed = self
            .queue
            .iter()
            .filter_map(|expected| match expected.state {
                State::Committed(kind) => Some((expected.position, kind, expected.words.clone())),
                _ => None,
            });
        (committed.collect(), self.open.len() as u64)
    }
}

fn found(records: Vec<allocsample_ring::RecoveredRecord>) -> Vec<(u64, u8, Vec<u64>)> {
    let triple =
        |record: allocsample_ring::RecoveredRecord| (record.position, record.kind, record.words);
    records.into_iter().map(triple).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_ring_is_a_queue(steps in prop::collection::vec(step(), 1..200)) {
        let mapping = Mapping::new(64);
        let mut pair = Pair::new(mapping.ring());
        for step in steps {
            pair.step(step)?;
        }
    }

    #[test]
    fn whenever_the_process_dies_recovery_finds_what_was_committed(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mapping = Mapping::new(64);
        let mut pair = Pair::new(mapping.ring());
        for step in steps {
            pair.step(step)?;
            let (records, open) = pair.left();
            let recovered = recover(&mapping.file()).unwrap();
            prop_assert_eq!(recovered.unfinished, open);
            prop_assert_eq!(found(recovered.records), records);
            prop_assert_eq!((recovered.tail, recovered.head), (pair.ring.tail(), pair.ring.head()));
        }
    }

    #[test]
    fn a_copy_in_pieces_has_every_record(
        steps in prop::collection::vec(step(), 1..60), buffer in 16_usize..100,
    ) {
        let mapping = Mapping::new(64);
        let mut pair = Pair::new(mapping.ring());
        for step in steps {
            pair.step(step)?;
        }
        let (records, open) = pair.left();
        let mut words = vec![u64::MAX; buffer];
        let mut position = pair.ring.pending_from();
        let (mut copied, mut unfinished) = (Vec::new(), 0);
        loop {
            // SAFETY: the consumer is not used meanwhile; positions as required.
            let end = unsafe { pair.ring.copy_pending(position, &mut words) };
            if end == position {
                break;
            }
            let bytes: Vec<u8> = words[..(end - position) as usize].iter().flat_map(|word| word.to_le_bytes()).collect();
            let piece = recover_words(position, end, &bytes);
            copied.extend(found(piece.records));
            unfinished += piece.unfinished;
            position = end;
        }
        prop_assert_eq!(position, pair.ring.head());
        prop_assert_eq!(copied, records);
        prop_assert_eq!(unfinished, open);
    }

    #[test]
    fn what_is_pending_is_every_record_where_it_lies(steps in prop::collection::vec(step(), 1..60)) {
        let mapping = Mapping::new(64);
        let mut pair = Pair::new(mapping.ring());
        for step in steps {
            pair.step(step)?;
        }
        let (records, open) = pair.left();
        let mut position = pair.ring.pending_from();
        let (mut pending, mut unfinished) = (Vec::new(), 0);
        // SAFETY: the consumer is not used meanwhile; positions as required.
        for stretch in unsafe { pair.ring.pending(position, pair.ring.head()) } {
            match stretch {
                Stretch::Record { kind, payload } => pending.push((position, kind, payload.to_vec())),
                Stretch::Padding(_) => {}
                Stretch::Unfinished(_) => unfinished += 1,
            }
            position += stretch.words();
        }
        prop_assert_eq!(position, pair.ring.head());
        prop_assert_eq!(pending, records);
        prop_assert_eq!(unfinished, open);
    }
}
