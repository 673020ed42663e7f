//! Records of a few numbers, kept as they came.
//!
//! A kind of record that a reader only passes on, to a table or a line of text, needs no place of its own in a profile: all
//! kinds that are an [`EventRecord`] are here, each with the words of its records behind each other.

use std::collections::BTreeMap;

use allocsample_record::{EventRecord, RecordKind};

use crate::limits::make_room;

/// The events of a profile, by kind, in the order in which they were recorded.
///
/// ```
/// use allocsample_profile::Profile;
/// use allocsample_profile::event_records::ForkRecord;
///
/// let profile = Profile::default();
/// let children: Vec<u32> = profile.events.of::<ForkRecord>().map(|fork| fork.child_pid).collect();
/// assert!(children.is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Events {
    /// By the number of the kind.
    words: BTreeMap<u8, Vec<u64>>,
}

impl Events {
    /// How many there are of a kind.
    pub fn count<R: EventRecord>(&self) -> usize {
        self.words_of::<R>().len() / R::WORDS
    }

    /// All of a kind.
    pub fn of<R: EventRecord>(&self) -> impl Iterator<Item = R> + use<'_, R> {
        let rows = self.words_of::<R>().chunks_exact(R::WORDS);
        rows.filter_map(R::decode)
    }

    /// One of a kind, in their order.
    pub fn at<R: EventRecord>(&self, row: usize) -> Option<R> {
        let words = self.words_of::<R>().chunks_exact(R::WORDS).nth(row)?;
        R::decode(words)
    }

    fn words_of<R: EventRecord>(&self) -> &[u64] {
        let words = self.words.get(&(R::KIND as u8));
        words.map_or(&[], Vec::as_slice)
    }

    /// Adds one: all words that its kind has.
    pub(crate) fn push(&mut self, kind: RecordKind, words: &[u64]) {
        let all = self.words.entry(kind as u8).or_default();
        make_room(all, words.len());
        all.extend_from_slice(words);
    }

    /// Bytes of memory that they take.
    pub(crate) fn held_bytes(&self) -> u64 {
        let words: usize = self.words.values().map(Vec::capacity).sum();
        8 * words as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_record::ForkRecord;

    #[test]
    fn events_come_out_as_they_went_in() {
        let mut events = Events::default();
        assert_eq!((events.count::<ForkRecord>(), events.held_bytes()), (0, 0));
        for number in 0..1000 {
            events.push(RecordKind::Fork, &[number * 3, number]);
        }
        let all: Vec<ForkRecord> = events.of().collect();
        assert_eq!((all.len(), events.count::<ForkRecord>()), (1000, 1000));
        for (number, fork) in (0..).zip(&all) {
            assert_eq!(
                (fork.time_ns, fork.child_pid),
                (u64::from(number) * 3, number)
            );
            assert_eq!(events.at(number as usize).as_ref(), Some(fork));
        }
        assert_eq!(events.at::<ForkRecord>(1000), None);
        assert!(events.held_bytes() >= 16_000);
    }
}
