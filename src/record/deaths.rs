//! The ends of many samples in one record.

use crate::words::{WordReader, WordWriter};
use crate::{FreeRecord, SampleId, ThreadId};

/// Words before the samples.
const FIXED_WORDS: usize = 2;

/// Objects that a machine found dead at the same time. It means the same as a [`FreeRecord`] for each of them. In rings only:
/// files have the [`FreeRecord`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeathsRecord<'a> {
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// The thread that reports them (0 if it is not known).
    pub thread: ThreadId,
    /// The [`SampleId`]s.
    pub samples: &'a [u64],
}

impl<'a> DeathsRecord<'a> {
    /// Payload words.
    pub fn words(&self) -> usize {
        FIXED_WORDS + self.samples.len()
    }

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(self.time_ns)?
            .word(u64::from(self.thread.0))?
            .words(self.samples)?;
        Some(writer.used())
    }

    /// Reads a payload back: all words behind the fixed ones are samples.
    pub fn decode(words: &'a [u64]) -> Option<Self> {
        let mut reader = WordReader::new(words, &[]);
        Some(Self {
            time_ns: reader.word()?,
            // The upper half is for later versions.
            thread: ThreadId(reader.word()? as u32),
            samples: words.get(FIXED_WORDS..)?,
        })
    }

    /// The records that this one stands for.
    pub fn frees(&self) -> impl Iterator<Item = FreeRecord> + 'a {
        let (time_ns, thread) = (self.time_ns, self.thread);
        self.samples.iter().map(move |&sample| FreeRecord {
            time_ns,
            sample: SampleId(sample),
            thread,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn deaths_round_trip_and_stand_for_a_free_each(
            time_ns: u64, thread: u32, samples in proptest::collection::vec(any::<u64>(), 0..100),
        ) {
            let record = DeathsRecord { time_ns, thread: ThreadId(thread), samples: &samples };
            let mut words = [0; 200];
            let used = record.encode_into(&mut words).unwrap();
            prop_assert_eq!(used, record.words());
            prop_assert_eq!(DeathsRecord::decode(&words[..used]), Some(record));
            prop_assert_eq!(record.encode_into(&mut words[..used - 1]), None);
            let free = |&sample| FreeRecord { time_ns, sample: SampleId(sample), thread: ThreadId(thread) };
            let frees: Vec<_> = samples.iter().map(free).collect();
            prop_assert_eq!(record.frees().collect::<Vec<_>>(), frees);
        }
    }

    #[test]
    fn deaths_without_a_thread_are_malformed() {
        assert_eq!(DeathsRecord::decode(&[1]), None);
    }
}
