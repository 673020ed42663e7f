//! Layouts of everything that crosses the ring or reaches the disk.
//!
//! The same facts exist in two encodings. In the *ring* a record is a few 64-bit words written by a thread of the
//! program in nanoseconds; stacks are plain addresses ([`SampleRecord`] and its siblings, `encode_into`/`decode`).
//! In the *file* records are varints, stacks are nodes of a tree that is written once ([`ChunkEncoder`],
//! [`ChunkDecoder`], feature `alloc`). Encode and decode stand side by side in one file per subject.
//!
//! Nothing here does I/O, reads a clock or knows who calls: the agent, the drain thread and the offline tools all
//! depend on this crate and it depends on none of them.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(feature = "alloc")]
mod address_space;
mod chunk;
mod deaths;
#[cfg(feature = "alloc")]
mod events;
mod figures;
mod gc;
mod header;
mod heap;
#[cfg(feature = "alloc")]
mod inspected;
mod kinds;
mod lost;
#[cfg(feature = "alloc")]
mod mapped;
mod mapping;
mod memory;
mod module;
#[cfg(feature = "alloc")]
mod name;
mod own;
mod packed;
mod part;
mod plain;
mod process;
mod sample;
#[cfg(feature = "alloc")]
mod symbol;
mod thread;
mod tick;
mod varint;
mod words;

#[cfg(feature = "alloc")]
pub use address_space::{AddressSpace, Location};
pub use chunk::{CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind};
pub use deaths::DeathsRecord;
#[cfg(feature = "alloc")]
pub use events::{ChunkDecoder, ChunkEncoder, Event, FileSample, StackId, StackNode};
pub use figures::{FIGURES, Figure};
pub use gc::{Fate, FateRecord, GcKind, GcRecord, MAX_GC_STATISTICS, MarkerRecord, ValueRecord};
pub use header::{FILE_HEADER_BYTES, FileHeader, FormatVersion, HeaderError};
pub use heap::{
    CodeChange, CodeRecord, Definition, DefinitionRecord, HeapKind, MAX_NAME_BYTES, VmFrame,
};
#[cfg(feature = "alloc")]
pub use inspected::Inspected;
pub use kinds::{Decoded, EventRecord, RecordKind, RingRecord, event_records};
pub use lost::{LOST_REASONS, LostReason};
#[cfg(feature = "alloc")]
pub use mapped::MappedRanges;
pub use mapping::{FileMappingRecord, Mapped, MappingChange, MappingRecord};
pub use memory::MemoryTotals;
#[cfg(feature = "alloc")]
pub use memory::{GroupFigure, MemoryMap, MemoryMapping};
pub use module::{MAX_BUILD_ID_BYTES, MAX_PATH_BYTES, ModuleAgainRecord, ModuleRecord};
#[cfg(feature = "alloc")]
pub use name::{is_plain, readable, readable_char};
pub use own::OwnFigure;
pub use packed::Packer;
#[cfg(feature = "alloc")]
pub use packed::{Packed, Unpacker};
pub use part::{PartEdge, PartRecord};
pub use plain::*;
pub use process::{
    CounterId, CounterRecord, ExecRecord, ExitHow, ExitRecord, IntervalRecord, Note, NoteRecord,
    ProcessRecord, Sampling,
};
pub use sample::{
    FileFreeStackRecord, FreeStackRecord, SAMPLE_FIXED_WORDS, SampleFlags, SampleRecord,
};
#[cfg(feature = "alloc")]
pub use symbol::{CodeGeneration, SymbolFrame, SymbolTable};
pub use thread::{LastStackRecord, THREAD_NAME_BYTES, ThreadEndRecord, ThreadStartRecord};
pub use tick::{FileTickRecord, TICK_FIXED_WORDS, TickRecord};
pub use varint::{MAX_VARINT_BYTES, put_signed, put_unsigned, take_signed, take_unsigned};

/// Number of a module in the order of its [`ModuleRecord`]s in one profile, from 1. [`ModuleId::NONE`] is code that
/// belongs to no module: JIT code, or an address we could not attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ModuleId(pub u32);

impl ModuleId {
    /// Not in any module; the offset that goes with it is an absolute address.
    pub const NONE: ModuleId = ModuleId(0);
    /// No module of the system's, but a virtual machine; the offset that goes with it is a [`VmFrame`].
    pub const VM: ModuleId = ModuleId(u32::MAX);
    /// Compiled code whose memory was used for other code too; the offset is an index into [`SymbolTable::code`].
    pub const CODE: ModuleId = ModuleId(u32::MAX - 1);
    /// No code, but the place of a stack's root that is missing; the offset says why. In no file.
    pub const NO_ROOT: ModuleId = ModuleId(u32::MAX - 2);
}

/// Identity of a sample within a process: the position of its record in the ring, in words. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SampleId(pub u64);

/// Number of a thread in the order in which threads were first seen, from 1 (not the kernel's tid, which is reused).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ThreadId(pub u32);

/// One allocator under observation. [`HeapId::MALLOC`] is the C heap; the hook ABI registers others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct HeapId(pub u16);

impl HeapId {
    /// The malloc family.
    pub const MALLOC: HeapId = HeapId(0);
}
