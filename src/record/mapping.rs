//! Calls that change what is mapped or usable: mmap, munmap, mremap, brk, shmat, mprotect, madvise, and new threads' stacks.
//!
//! All calls are recorded, not a sample of them: programs make few. A reader that replays them (`mapped.rs`) knows which call
//! made the mapping that an address lies in.

use crate::words::{WordReader, WordWriter, high, low, pack};
use crate::{SampleFlags, ThreadId};

/// What a call did. A call that moves or shrinks a mapping is two changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MappingChange {
    /// mmap made a mapping, in place of all that was in its range.
    Map = 1,
    /// mremap made it.
    Remap = 2,
    /// brk or sbrk raised the end of the data segment.
    Break = 3,
    /// shmat attached a segment.
    Attach = 4,
    /// pthread_create started a thread, whose descriptor is at this address. The C library keeps it at the upper end of the
    /// thread's stack, which has this length.
    Thread = 5,
    /// munmap, mremap, brk or sbrk removed all that was in this range.
    Unmap = 6,
    /// The agent has mapped it for itself.
    Own = 7,
    /// The agent has started a thread of its own.
    OwnThread = 8,
    /// mprotect made pages of a reservation (a mapping without rights) writable that were not usable before.
    Commit = 9,
    /// mprotect took all rights from such pages.
    Uncommit = 10,
    /// madvise gave the memory of this range back to the kernel (`MADV_DONTNEED`, `MADV_REMOVE`), or allowed the kernel to take it
    /// (`MADV_FREE`). The range stays mapped. The flags of the record are the advice.
    Discard = 11,
}

impl MappingChange {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::Map,
        Self::Remap,
        Self::Break,
        Self::Attach,
        Self::Thread,
        Self::Unmap,
        Self::Own,
        Self::OwnThread,
        Self::Commit,
        Self::Uncommit,
        Self::Discard,
    ];

    /// The change with this number, or `None` for one that a newer version may have added.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|it| *it as u8 == number)
    }

    /// Whether memory is mapped or made usable by it, or a thread started.
    pub fn maps(self) -> bool {
        !matches!(self, Self::Unmap | Self::Uncommit | Self::Discard)
    }

    /// Whether its stack is recorded: the program's calls that map, and those that discard.
    pub fn has_stack(self) -> bool {
        self.maps() && !self.is_own() || self == Self::Discard
    }

    /// Whether the agent did it for itself.
    pub fn is_own(self) -> bool {
        matches!(self, Self::Own | Self::OwnThread)
    }

    /// Whether it started a thread: its address is that of the descriptor.
    pub fn is_thread(self) -> bool {
        matches!(self, Self::Thread | Self::OwnThread)
    }

    /// The name of the call in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Map => "mmap",
            Self::Remap => "mremap",
            Self::Break => "sbrk",
            Self::Attach => "shmat",
            Self::Thread => "pthread_create",
            Self::Unmap => "munmap",
            Self::Commit => "mprotect",
            Self::Uncommit => "mprotect(PROT_NONE)",
            Self::Discard => "madvise",
            Self::Own | Self::OwnThread => "allocsample",
        }
    }
}

/// A change, and what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds: after a call that maps, before one that unmaps.
    pub time_ns: u64,
    /// Where the range begins.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
    /// The thread; 0 if it is not known.
    pub thread: ThreadId,
    /// What was done.
    pub change: MappingChange,
    /// Rights, as mmap takes them (`PROT_READ` and others); 0 where the call has none.
    pub protection: u8,
    /// Flags, as mmap takes them (`MAP_ANONYMOUS` and others); 0 where the call has none.
    pub flags: u32,
    /// Facts about the stack.
    pub stack_flags: SampleFlags,
}

impl Mapped {
    /// A mapping of the agent's own.
    pub const fn own(time_ns: u64, start: u64, bytes: u64) -> Self {
        Self {
            time_ns,
            start,
            bytes,
            thread: ThreadId(0),
            change: MappingChange::Own,
            protection: 0,
            flags: 0,
            stack_flags: SampleFlags(0),
        }
    }
}

/// A change in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingRecord<'a> {
    /// The change.
    pub mapped: Mapped,
    /// As a sample's: frames that this stack shares with that of the thread's last sample in the ring before it.
    pub shared: u32,
    /// As a sample's, those that are not shared; none where [`MappingChange::has_stack`] is false.
    pub frames: &'a [u64],
}

impl<'a> MappingRecord<'a> {
    /// Payload words with `frames` frames that are not shared.
    pub const fn words(frames: usize) -> usize {
        5 + frames
    }

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let it = &self.mapped;
        let change =
            u32::from(it.stack_flags.0) | (it.change as u32) << 16 | u32::from(it.protection) << 24;
        let mut writer = WordWriter::new(words);
        writer
            .word(it.time_ns)?
            .word(it.start)?
            .word(it.bytes)?
            .word(pack(it.thread.0, change))?
            .word(pack(it.flags, self.shared))?
            .words(self.frames)?;
        Some(writer.used())
    }

    /// Reads a payload back: all words behind the first five are frames.
    pub fn decode(words: &'a [u64]) -> Option<Self> {
        let mut reader = WordReader::new(words, &[]);
        let (time_ns, start, bytes) = (reader.word()?, reader.word()?, reader.word()?);
        let (thread, flags) = (reader.word()?, reader.word()?);
        let change = high(thread);
        Some(Self {
            mapped: Mapped {
                time_ns,
                start,
                bytes,
                thread: ThreadId(low(thread)),
                change: MappingChange::from_number((change >> 16) as u8)?,
                protection: (change >> 24) as u8,
                flags: low(flags),
                stack_flags: SampleFlags(change as u16),
            },
            shared: high(flags),
            frames: words.get(5..)?,
        })
    }
}

/// A change in a file, where its stack is a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMappingRecord {
    /// The change.
    pub mapped: Mapped,
    /// Number of the stack in the file, 0 for none.
    pub stack: u32,
}

impl FileMappingRecord {
    /// Length of the payload in words.
    pub const WORDS: usize = 9;

    /// The payload: a word for each field, since words are varints in a file.
    pub fn encode(&self) -> [u64; Self::WORDS] {
        let it = &self.mapped;
        [
            it.time_ns,
            it.start,
            it.bytes,
            u64::from(it.thread.0),
            it.change as u64,
            u64::from(it.protection),
            u64::from(it.flags),
            u64::from(it.stack_flags.0),
            u64::from(self.stack),
        ]
    }

    /// Decodes a payload.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let &[
            time_ns,
            start,
            bytes,
            thread,
            change,
            protection,
            flags,
            stack_flags,
            stack,
            ..,
        ] = words
        else {
            return None;
        };
        Some(Self {
            mapped: Mapped {
                time_ns,
                start,
                bytes,
                thread: ThreadId(u32::try_from(thread).ok()?),
                change: MappingChange::from_number(u8::try_from(change).ok()?)?,
                protection: u8::try_from(protection).ok()?,
                flags: u32::try_from(flags).ok()?,
                stack_flags: SampleFlags(u16::try_from(stack_flags).ok()?),
            },
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
        fn changes_round_trip(
            numbers: [u64; 3], thread: u32, change in 0..MappingChange::ALL.len(), protection: u8, flags: u32,
            stack_flags: u16, shared: u32, frames in proptest::collection::vec(any::<u64>(), 0..300),
        ) {
            let [time_ns, start, bytes] = numbers;
            let mapped = Mapped {
                time_ns, start, bytes, thread: ThreadId(thread), change: MappingChange::ALL[change], protection, flags,
                stack_flags: SampleFlags(stack_flags),
            };
            let record = MappingRecord { mapped, shared, frames: &frames };
            let mut words = [0; 400];
            let used = record.encode_into(&mut words).unwrap();
            prop_assert_eq!(used, MappingRecord::words(frames.len()));
            prop_assert_eq!(MappingRecord::decode(&words[..used]), Some(record));
            prop_assert_eq!(MappingRecord::decode(&words[..4]), None);
            prop_assert_eq!(record.encode_into(&mut words[..used - 1]), None);
            let record = FileMappingRecord { mapped, stack: shared };
            prop_assert_eq!(FileMappingRecord::decode(&record.encode()), Some(record));
            prop_assert_eq!(FileMappingRecord::decode(&record.encode()[..8]), None);
        }
    }

    #[test]
    fn every_change_has_its_number_and_its_name() {
        for change in MappingChange::ALL {
            assert_eq!(MappingChange::from_number(change as u8), Some(change));
            assert!(!change.name().is_empty());
        }
        assert_eq!(MappingChange::from_number(0), None);
        assert_eq!(MappingChange::from_number(12), None);
    }
}
