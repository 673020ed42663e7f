//! Time samples: where a thread was when it had used a certain CPU time.

use crate::words::{WordReader, WordWriter, high, low, pack};
use crate::{SampleFlags, ThreadId};

/// Words of a tick before its frames.
pub const TICK_FIXED_WORDS: usize = 3;

/// A thread had used the CPU for one more period, or several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TickRecord<'a> {
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// CPU time that the sample stands for, in nanoseconds.
    pub cpu_ns: u64,
    /// The thread.
    pub thread: ThreadId,
    /// Whether and why the root is missing.
    pub flags: SampleFlags,
    /// As a sample's. The first one is the interrupted address plus one.
    pub frames: &'a [u64],
}

impl<'a> TickRecord<'a> {
    /// Payload words of a tick with `frames` frames.
    pub const fn words(frames: usize) -> usize {
        TICK_FIXED_WORDS + frames
    }

    /// Writes the payload; `None` if it does not fit or has more than 65,535 frames.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let frame_count = u16::try_from(self.frames.len()).ok()?;
        let mut writer = WordWriter::new(words);
        writer
            .word(self.time_ns)?
            .word(self.cpu_ns)?
            .word(pack(
                self.thread.0,
                u32::from(self.flags.0) | u32::from(frame_count) << 16,
            ))?
            .words(self.frames)?;
        Some(writer.used())
    }

    /// Decodes a payload.
    pub fn decode(words: &'a [u64]) -> Option<Self> {
        let mut reader = WordReader::new(words, &[]);
        let time_ns = reader.word()?;
        let cpu_ns = reader.word()?;
        let owner = reader.word()?;
        Some(Self {
            time_ns,
            cpu_ns,
            thread: ThreadId(low(owner)),
            flags: SampleFlags(high(owner) as u16),
            frames: reader.words((high(owner) >> 16) as usize)?,
        })
    }
}

/// A [`TickRecord`] in a file, where its stack is a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileTickRecord {
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// CPU time that the sample stands for, in nanoseconds.
    pub cpu_ns: u64,
    /// The thread.
    pub thread: ThreadId,
    /// Whether and why the root is missing.
    pub flags: SampleFlags,
    /// Number of its stack in the file, 0 for none.
    pub stack: u32,
}

impl FileTickRecord {
    /// Length of the payload in words.
    pub const WORDS: usize = 5;

    /// The payload: a word for each field, since words are varints in a file.
    pub fn encode(&self) -> [u64; Self::WORDS] {
        [
            self.time_ns,
            self.cpu_ns,
            u64::from(self.thread.0),
            u64::from(self.flags.0),
            u64::from(self.stack),
        ]
    }

    /// Decodes a payload.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let &[time_ns, cpu_ns, thread, flags, stack, ..] = words else {
            return None;
        };
        Some(Self {
            time_ns,
            cpu_ns,
            thread: ThreadId(u32::try_from(thread).ok()?),
            flags: SampleFlags(u16::try_from(flags).ok()?),
            stack: u32::try_from(stack).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ticks_round_trip(
            time_ns: u64, cpu_ns: u64, thread: u32, flags: u16, stack: u32,
            frames in proptest::collection::vec(any::<u64>(), 0..300),
        ) {
            let (thread, flags) = (ThreadId(thread), SampleFlags(flags));
            let record = TickRecord { time_ns, cpu_ns, thread, flags, frames: &frames };
            let mut words = [0; 400];
            let used = record.encode_into(&mut words).unwrap();
            prop_assert_eq!(used, TickRecord::words(frames.len()));
            prop_assert_eq!(TickRecord::decode(&words[..used]), Some(record));
            prop_assert_eq!(TickRecord::decode(&words[..used - 1]), None);
            prop_assert_eq!(record.encode_into(&mut words[..used - 1]), None);
            let record = FileTickRecord { time_ns, cpu_ns, thread, flags, stack };
            prop_assert_eq!(FileTickRecord::decode(&record.encode()), Some(record));
            prop_assert_eq!(FileTickRecord::decode(&record.encode()[..4]), None);
        }
    }
}
