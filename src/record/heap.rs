//! Definitions of virtual machines: heaps, types, functions, statistics.

use crate::HeapId;
use crate::words::{WordReader, WordWriter, high, low, pack, text_words};

/// Maximum length of a name in bytes; longer ones are cut.
pub const MAX_NAME_BYTES: usize = 1024;

/// How a heap gives out memory. The numbers are those of `allocsample.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HeapKind {
    /// Blocks that stay where they are until they are freed one by one.
    Malloc = 1,
    /// Objects that a collector finds dead, allocated by bumping a pointer.
    Nursery = 2,
    /// Objects that a collector finds dead.
    Traced = 3,
    /// Memory outside of any heap that an object owns.
    External = 4,
    /// Blocks that stay where they are until a collector finds them dead, and frees them one by one.
    Collected = 5,
    /// Blocks of an allocator beside malloc, which code of any language calls.
    Allocator = 6,
    /// Pages of the process's memory, whoever has them: the same memory as in other heaps, so it is in no sum with those.
    Pages = 7,
}

impl HeapKind {
    /// Decodes the number of a kind.
    pub fn from_number(number: u32) -> Option<Self> {
        [
            Self::Malloc,
            Self::Nursery,
            Self::Traced,
            Self::External,
            Self::Collected,
            Self::Allocator,
            Self::Pages,
        ]
        .into_iter()
        .find(|&kind| kind as u32 == number)
    }

    /// Whether what dies counts as live until a collection finds it dead.
    pub fn is_collected(self) -> bool {
        matches!(self, Self::Nursery | Self::Traced | Self::Collected)
    }

    /// Whether the virtual machine reports the end of a block by its address.
    pub fn is_freed_by_address(self) -> bool {
        matches!(
            self,
            Self::Malloc | Self::External | Self::Collected | Self::Allocator
        )
    }

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malloc => "malloc",
            Self::Nursery => "nursery",
            Self::Traced => "traced",
            Self::External => "external",
            Self::Collected => "collected",
            Self::Allocator => "allocator",
            Self::Pages => "pages",
        }
    }
}

/// A definition: a number and names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefinitionRecord<'a> {
    /// The kind of definition.
    pub kind: Definition,
    /// The heap that the number belongs to.
    pub heap: HeapId,
    /// Its number, chosen by the virtual machine (a heap's own number again).
    pub id: u32,
    /// A heap's kind, a function's first line; 0 otherwise.
    pub value: u32,
    /// Its name.
    pub name: &'a [u8],
    /// A type's description, a function's file, a statistic's unit.
    pub detail: &'a [u8],
}

/// The kind of a [`DefinitionRecord`]. A later definition of the same number replaces an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Definition {
    /// A heap.
    Heap = 0,
    /// A type of objects.
    Type = 1,
    /// A function of the virtual machine's language.
    Function = 2,
    /// A quantity with a unit.
    Statistic = 3,
    /// The name of a thread; its number is the one in the profile.
    Thread = 4,
    /// Inlined functions: the name consists of pairs of a function and a line, 32 bits each, innermost first.
    Inlined = 5,
    /// Addresses that are the heap's alone: the name consists of the first address and the first one after them, 64 bits each.
    Range = 6,
}

impl<'a> DefinitionRecord<'a> {
    /// Length of the payload in words.
    pub fn words(&self) -> usize {
        3 + text_words(self.name.len()) + text_words(self.detail.len())
    }

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(pack(
                u32::from(self.heap.0) | u32::from(self.kind as u8) << 16,
                self.id,
            ))?
            .word(u64::from(self.value))?
            .word(pack(
                u32::try_from(self.name.len()).ok()?,
                u32::try_from(self.detail.len()).ok()?,
            ))?
            .text(self.name)?
            .text(self.detail)?;
        Some(writer.used())
    }

    /// Decodes a payload; `text` is the same words as bytes.
    pub fn decode(words: &'a [u64], text: &'a [u8]) -> Option<Self> {
        let mut reader = WordReader::new(words, text);
        let (owner, value, lengths) = (reader.word()?, reader.word()?, reader.word()?);
        let kind = match low(owner) >> 16 {
            0 => Definition::Heap,
            1 => Definition::Type,
            2 => Definition::Function,
            3 => Definition::Statistic,
            4 => Definition::Thread,
            5 => Definition::Inlined,
            6 => Definition::Range,
            _ => return None,
        };
        Some(Self {
            kind,
            heap: HeapId(low(owner) as u16),
            id: high(owner),
            value: low(value),
            name: reader.text(low(lengths) as usize)?,
            detail: reader.text(high(lengths) as usize)?,
        })
    }
}

/// A frame of a virtual machine among the addresses of a stack: a number that no code address is.
///
/// ```text
/// 63..60 1000 | 59..52 heap | 51..32 line | 31..0 function
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VmFrame {
    /// The heap that the function belongs to.
    pub heap: HeapId,
    /// The function's number.
    pub function: u32,
    /// Line, 0 if it is not known; at most 2^20 - 1.
    pub line: u32,
}

impl VmFrame {
    /// Heaps beyond this number have no frames of their own.
    pub const MAX_HEAP: u16 = 0xff;
    const MARK: u64 = 0b1000 << 60;
    const MAX_LINE: u32 = (1 << 20) - 1;

    /// As a number among code addresses.
    pub fn encode(self) -> u64 {
        let line = if self.line > Self::MAX_LINE {
            0
        } else {
            self.line
        };
        Self::MARK
            | u64::from(self.heap.0 & Self::MAX_HEAP) << 52
            | u64::from(line) << 32
            | u64::from(self.function)
    }

    /// `None` for a code address.
    pub fn decode(address: u64) -> Option<Self> {
        (address >> 60 == 0b1000).then_some(Self {
            heap: HeapId((address >> 52) as u16 & Self::MAX_HEAP),
            function: address as u32,
            line: (address >> 32) as u32 & Self::MAX_LINE,
        })
    }

    /// Where a stack has it: in no module of the system's.
    #[cfg(feature = "alloc")]
    pub fn location(self) -> crate::Location {
        crate::Location {
            module: crate::ModuleId::VM,
            offset: self.encode(),
        }
    }
}

/// Code that a compiler made at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeRecord {
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// The kind of change.
    pub change: CodeChange,
    /// First address.
    pub start: u64,
    /// First address after it; for a move the new first address; 0 for a removal.
    pub end: u64,
    /// The function that it belongs to.
    pub frame: VmFrame,
}

/// See [`CodeRecord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CodeChange {
    /// New code, in place of all that it touches.
    Add = 0,
    /// The code that begins there is gone.
    Remove = 1,
    /// The code that began there begins elsewhere.
    Move = 2,
}

impl CodeRecord {
    /// Length of the payload in words.
    pub const WORDS: usize = 5;

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(self.time_ns)?
            .word(self.change as u64)?
            .word(self.start)?
            .word(self.end)?
            .word(self.frame.encode())?;
        Some(writer.used())
    }

    /// Decodes a payload.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let mut reader = WordReader::new(words, &[]);
        Some(Self {
            time_ns: reader.word()?,
            change: match reader.word()? {
                0 => CodeChange::Add,
                1 => CodeChange::Remove,
                2 => CodeChange::Move,
                _ => return None,
            },
            start: reader.word()?,
            end: reader.word()?,
            frame: VmFrame::decode(reader.word()?)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_of_a_virtual_machine_is_no_address() {
        let frame = VmFrame {
            heap: HeapId(3),
            function: u32::MAX,
            line: 77,
        };
        assert_eq!(VmFrame::decode(frame.encode()), Some(frame));
        // User space, the kernel's half, the old vsyscall page.
        for address in [
            0x7fff_ffff_ffff,
            0xffff_8000_0000_0000,
            0xffff_ffff_ff60_0000,
        ] {
            assert_eq!(VmFrame::decode(address), None);
        }
        let far = VmFrame {
            line: 1 << 20,
            ..frame
        };
        assert_eq!(
            VmFrame::decode(far.encode()).map(|frame| frame.line),
            Some(0)
        );
    }

    #[test]
    fn definitions_round_trip() {
        let record = DefinitionRecord {
            kind: Definition::Function,
            heap: HeapId(7),
            id: 9,
            value: 12,
            name: b"compute",
            detail: b"/src/a.vm",
        };
        let mut words = [0; 8];
        let used = record.encode_into(&mut words).unwrap();
        assert_eq!(used, record.words());
        let text: std::vec::Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(
            DefinitionRecord::decode(&words[..used], &text),
            Some(record)
        );
        assert_eq!(DefinitionRecord::decode(&words[..2], &text), None);
    }
}
