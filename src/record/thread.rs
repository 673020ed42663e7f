//! Records of threads: first seen, ended, or still running when the process ended.

use crate::words::{WordReader, WordWriter, high, low, pack};
use crate::{ThreadId, ThreadTotalRecord};

/// The kernel's limit for a thread's name, with its NUL.
pub const THREAD_NAME_BYTES: usize = 16;

/// A thread reached the agent for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadStartRecord {
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// The number of the thread in the profile.
    pub thread: ThreadId,
    /// The kernel's tid.
    pub tid: u32,
    /// Its name at that moment, padded with NUL.
    pub name: [u8; THREAD_NAME_BYTES],
}

impl ThreadStartRecord {
    /// Length of the payload in words.
    pub const WORDS: usize = 2 + THREAD_NAME_BYTES / 8;

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(self.time_ns)?
            .word(pack(self.thread.0, self.tid))?
            .text(&self.name)?;
        Some(writer.used())
    }

    /// Decodes a payload.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let mut reader = WordReader::new(words, &[]);
        let time_ns = reader.word()?;
        let ids = reader.word()?;
        let mut name = [0; THREAD_NAME_BYTES];
        for part in name.chunks_exact_mut(8) {
            part.copy_from_slice(&reader.word()?.to_le_bytes());
        }
        Some(Self {
            time_ns,
            thread: ThreadId(low(ids)),
            tid: high(ids),
            name,
        })
    }
}

/// A thread ended; its totals are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadEndRecord {
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// Which thread, and what it allocated.
    pub total: ThreadTotalRecord,
}

impl ThreadEndRecord {
    /// Length of the payload in words.
    pub const WORDS: usize = 1 + ThreadTotalRecord::WORDS;

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let (time, total) = words.split_first_mut()?;
        *time = self.time_ns;
        Some(1 + self.total.encode_into(total)?)
    }

    /// Decodes a payload.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let (&time_ns, total) = words.split_first()?;
        Some(Self {
            time_ns,
            total: ThreadTotalRecord::decode(total)?,
        })
    }
}

/// The stack of a running thread's last sample before the file began, which its next one may share frames with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastStackRecord {
    /// The number of the thread in the profile.
    pub thread: ThreadId,
    /// Number of the leaf's node in the file; 0 for no frames.
    pub stack: u32,
}

impl LastStackRecord {
    /// Length of the payload in words.
    pub const WORDS: usize = 1;

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer.word(pack(self.thread.0, self.stack))?;
        Some(writer.used())
    }

    /// Decodes a payload.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let word = WordReader::new(words, &[]).word()?;
        Some(Self {
            thread: ThreadId(low(word)),
            stack: high(word),
        })
    }
}
