//! The record of one sampled allocation, with the record of its end.

use crate::words::{WordReader, WordWriter, high, low, pack};
use crate::{HeapId, SampleId, ThreadId};

/// Words of a sample before its frames.
pub const SAMPLE_FIXED_WORDS: usize = 7;

/// Facts about a sample that fit in a bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct SampleFlags(pub u16);

impl SampleFlags {
    /// The stack was deeper than the limit: its root is missing and shown as `(truncated)`.
    pub const TRUNCATED: SampleFlags = SampleFlags(1);
    /// The unwinder gave up before the root: no rule for a frame, or memory that could not be read. Shown as `(unwind failed)`.
    pub const UNWIND_FAILED: SampleFlags = SampleFlags(2);
    /// The live table was full: the free of this block will not be seen, and it must not be counted as live.
    pub const UNTRACKED: SampleFlags = SampleFlags(4);
    /// The new block of a successful realloc.
    pub const REALLOC: SampleFlags = SampleFlags(8);
    /// In files only: it was taken before the file began, and was alive then ([`crate::ChunkKind::Carried`]). It counts
    /// among what is live, and not among what was allocated.
    pub const CARRIED: SampleFlags = SampleFlags(16);

    /// Whether all bits of `other` are set.
    pub fn contains(self, other: SampleFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets of bits.
    #[must_use]
    pub fn with(self, other: SampleFlags) -> SampleFlags {
        SampleFlags(self.0 | other.0)
    }

    /// The flags that are in both sets.
    #[must_use]
    pub fn only(self, other: SampleFlags) -> SampleFlags {
        SampleFlags(self.0 & other.0)
    }

    /// The flags of `self` that are not in `other`.
    pub fn without(self, other: SampleFlags) -> SampleFlags {
        SampleFlags(self.0 & !other.0)
    }
}

/// One sampled allocation. Its [`SampleId`] is the position of the record in the ring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleRecord<'a> {
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// The address of the block.
    pub address: u64,
    /// Requested bytes (0 is possible and weighs as 1).
    pub size: u64,
    /// The allocating thread.
    pub thread: ThreadId,
    /// The heap.
    pub heap: HeapId,
    /// See [`SampleFlags`].
    pub flags: SampleFlags,
    /// Sample points that fell into the allocation, at least 1; saturates.
    pub points: u32,
    /// Which [`crate::IntervalRecord`] was in force when the gap was drawn.
    pub interval: u16,
    /// Bytes that this thread had allocated when the sample was taken, this allocation included.
    pub thread_bytes: u64,
    /// Frames that this stack shares with that of the thread's last sample in the ring before it, counted from the root:
    /// the same frames of the same code, which are not told again.
    pub shared: u32,
    /// The object's type in its heap, 0 if it is not known (yet).
    pub type_id: u32,
    /// Return addresses of the other frames, leaf first. Where a signal interrupted a frame, the interrupted address plus
    /// one, so that "subtract one, then look it up" is right for every frame.
    pub frames: &'a [u64],
}

impl<'a> SampleRecord<'a> {
    /// Payload words of a sample with `frames` frames that are not shared.
    pub const fn words(frames: usize) -> usize {
        SAMPLE_FIXED_WORDS + frames
    }

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(self.time_ns)?
            .word(self.address)?
            .word(self.size)?
            .word(pack(
                self.thread.0,
                u32::from(self.heap.0) | u32::from(self.flags.0) << 16,
            ))?
            .word(pack(self.points, u32::from(self.interval)))?
            .word(self.thread_bytes)?
            .word(pack(self.shared, self.type_id))?
            .words(self.frames)?;
        Some(writer.used())
    }

    /// Reads a payload back: all words behind the fixed ones are frames.
    pub fn decode(words: &'a [u64]) -> Option<Self> {
        let mut reader = WordReader::new(words, &[]);
        let time_ns = reader.word()?;
        let address = reader.word()?;
        let size = reader.word()?;
        let owner = reader.word()?;
        let counts = reader.word()?;
        let thread_bytes = reader.word()?;
        let stack_and_type = reader.word()?;
        let frames = words.get(SAMPLE_FIXED_WORDS..)?;
        Some(Self {
            time_ns,
            address,
            size,
            thread: ThreadId(low(owner)),
            heap: HeapId(high(owner) as u16),
            flags: SampleFlags((high(owner) >> 16) as u16),
            points: low(counts),
            interval: high(counts) as u16,
            thread_bytes,
            shared: low(stack_and_type),
            type_id: high(stack_and_type),
            frames,
        })
    }
}

/// The stack where a sampled allocation was freed. Some frees have one, after their [`FreeRecord`](crate::FreeRecord).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeStackRecord<'a> {
    /// The sample.
    pub sample: SampleId,
    /// The freeing thread.
    pub thread: ThreadId,
    /// As a sample's: frames that this stack shares with that of the thread's last sample in the ring before it.
    pub shared: u32,
    /// As a sample's, those that are not shared; the first frame of all is the return address into the caller of free.
    pub frames: &'a [u64],
}

impl<'a> FreeStackRecord<'a> {
    /// Payload words with `frames` frames that are not shared.
    pub const fn words(frames: usize) -> usize {
        2 + frames
    }

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(self.sample.0)?
            .word(pack(self.shared, self.thread.0))?
            .words(self.frames)?;
        Some(writer.used())
    }

    /// Reads a payload back: all words behind the first two are frames.
    pub fn decode(words: &'a [u64]) -> Option<Self> {
        let [sample, shared_and_thread, frames @ ..] = words else {
            return None;
        };
        Some(Self {
            sample: SampleId(*sample),
            thread: ThreadId(high(*shared_and_thread)),
            shared: low(*shared_and_thread),
            frames,
        })
    }
}

/// A [`FreeStackRecord`] in a file, where its stack is a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFreeStackRecord {
    /// The sample.
    pub sample: SampleId,
    /// Number of the stack in the file.
    pub stack: u32,
}

impl FileFreeStackRecord {
    /// Length of the payload in words.
    pub const WORDS: usize = 2;

    /// The payload.
    pub fn encode(&self) -> [u64; Self::WORDS] {
        [self.sample.0, u64::from(self.stack)]
    }

    /// Decodes a payload.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let &[sample, stack, ..] = words else {
            return None;
        };
        Some(Self {
            sample: SampleId(sample),
            stack: u32::try_from(stack).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FreeRecord;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sample_round_trips(
            time_ns: u64, address: u64, size: u64, thread: u32, heap: u16, flags: u16, points: u32, interval: u16,
            thread_bytes: u64, shared: u32, type_id: u32, frames in proptest::collection::vec(any::<u64>(), 0..300),
        ) {
            let record = SampleRecord {
                time_ns, address, size, thread: ThreadId(thread), heap: HeapId(heap), flags: SampleFlags(flags),
                points, interval, thread_bytes, shared, type_id, frames: &frames,
            };
            let mut words = [0; 400];
            let used = record.encode_into(&mut words).unwrap();
            prop_assert_eq!(used, SampleRecord::words(frames.len()));
            prop_assert_eq!(SampleRecord::decode(&words[..used]), Some(record));
            prop_assert_eq!(SampleRecord::decode(&words[..SAMPLE_FIXED_WORDS - 1]), None);
            prop_assert_eq!(record.encode_into(&mut words[..used - 1]), None);
        }
    }

    #[test]
    fn stack_of_a_free_round_trips() {
        let record = FreeStackRecord {
            sample: SampleId(u64::MAX),
            thread: ThreadId(5),
            shared: 6,
            frames: &[7, 8, 9],
        };
        let mut words = [0; 6];
        let used = record.encode_into(&mut words).unwrap();
        assert_eq!(used, FreeStackRecord::words(3));
        assert_eq!(FreeStackRecord::decode(&words[..used]), Some(record));
        assert_eq!(FreeStackRecord::decode(&[1]), None);
        assert_eq!(record.encode_into(&mut words[..used - 1]), None);
        let record = FileFreeStackRecord {
            sample: SampleId(u64::MAX),
            stack: 5,
        };
        assert_eq!(FileFreeStackRecord::decode(&record.encode()), Some(record));
        assert_eq!(FileFreeStackRecord::decode(&[1]), None);
        assert_eq!(FileFreeStackRecord::decode(&[1, u64::MAX]), None);
    }

    #[test]
    fn free_round_trips() {
        let record = FreeRecord {
            time_ns: 7,
            sample: SampleId(u64::MAX),
            thread: ThreadId(3),
        };
        let mut words = [0; FreeRecord::WORDS];
        assert_eq!(record.encode_into(&mut words), Some(FreeRecord::WORDS));
        assert_eq!(FreeRecord::decode(&words), Some(record));
    }
}
