//! Records that are a few numbers, each a word of its own: their fields are all there is to say of them.

use crate::words::{WordReader, WordWriter};
use crate::{SampleId, ThreadId};

/// A field that is one word of a record.
trait WordField: Sized + Copy {
    fn to_word(self) -> u64;
    fn from_word(word: u64) -> Self;
}

impl WordField for u64 {
    #[inline]
    fn to_word(self) -> u64 {
        self
    }

    #[inline]
    fn from_word(word: u64) -> Self {
        word
    }
}

impl WordField for u32 {
    #[inline]
    fn to_word(self) -> u64 {
        u64::from(self)
    }

    #[inline]
    fn from_word(word: u64) -> Self {
        // The upper half is for later versions.
        word as u32
    }
}

impl WordField for ThreadId {
    #[inline]
    fn to_word(self) -> u64 {
        self.0.to_word()
    }

    #[inline]
    fn from_word(word: u64) -> Self {
        Self(u32::from_word(word))
    }
}

impl WordField for SampleId {
    #[inline]
    fn to_word(self) -> u64 {
        self.0
    }

    #[inline]
    fn from_word(word: u64) -> Self {
        Self(word)
    }
}

macro_rules! plain_records {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// Length of the payload in words.
            pub const WORDS: usize = [$(stringify!($field)),*].len();

            /// Encodes the payload and returns its words; `None` if it does not fit.
            #[inline]
            pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
                let mut writer = WordWriter::new(words);
                $(writer.word(self.$field.to_word())?;)*
                Some(writer.used())
            }

            /// Reads a payload back. Words behind it are a later version's.
            pub fn decode(words: &[u64]) -> Option<Self> {
                let mut reader = WordReader::new(words, &[]);
                Some(Self {
                    $($field: WordField::from_word(reader.word()?),)*
                })
            }
        }
    )*};
}

plain_records! {
    /// The process forked; the child writes its own profile.
    ForkRecord {
        /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
        time_ns: u64,
        /// The pid of the child.
        child_pid: u32,
    }

    /// A module is no longer mapped.
    ModuleUnloadRecord {
        /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
        time_ns: u64,
        /// Start address of the module.
        start: u64,
    }

    /// The exact number of bytes that a thread allocated.
    ThreadTotalRecord {
        /// The thread; 0 for the sum of all threads that ended before the recording began.
        thread: ThreadId,
        /// Bytes requested by successful allocations while sampling was on: what the samples estimate.
        bytes: u64,
        /// Bytes that were due to be counted but came from inside the agent's own work or from a signal handler that
        /// interrupted it. They are in no estimate.
        muted_bytes: u64,
    }

    /// The end of a sampled allocation: freed, or moved away by realloc.
    FreeRecord {
        /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
        time_ns: u64,
        /// The sample.
        sample: SampleId,
        /// The freeing thread (0 if it was not known: it was in a slow path of ours, or ending).
        thread: ThreadId,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_words_in_their_order() {
        let record = FreeRecord {
            time_ns: 1,
            sample: SampleId(1 << 40),
            thread: ThreadId(3),
        };
        let mut words = [0; 4];
        assert_eq!(record.encode_into(&mut words), Some(FreeRecord::WORDS));
        assert_eq!(words, [1, 1 << 40, 3, 0]);
        assert_eq!(FreeRecord::decode(&words), Some(record));
    }

    #[test]
    fn a_payload_that_is_too_short_is_no_record() {
        assert_eq!(ForkRecord::decode(&[1]), None);
        assert_eq!(
            ForkRecord {
                time_ns: 1,
                child_pid: 2
            }
            .encode_into(&mut [0]),
            None
        );
    }
}
