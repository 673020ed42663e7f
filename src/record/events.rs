//! The events of a chunk: ring records re-coded as varints, with stacks as nodes of a tree.
//!
//! ```text
//! event  = kind byte, then
//!   Node    parent distance (own number - parent's), module, zigzag(offset - last offset)
//!   Sample  zigzag(time - last time), id - last sample's id, zigzag(address - last address), size, thread,
//!           heap, flags, points - 1, interval, zigzag(thread bytes - that thread's last), stack
//!   Free    zigzag(time - last time), zigzag(last sample's id - id), thread
//!   Fate    number of words, fate + 8 type, zigzag(time - last time), zigzag(id - last id), zigzag(gc - last gc), hash;
//!           without words of 0 at its end. The last id is the last sample's if the fate is open, or else the last fate's
//!   other   number of words, each word
//! ```
//! Every "last" starts at 0 in each chunk, so that a chunk stands alone but for the numbers of modules and nodes.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::{
    Fate, FateRecord, FileFreeStackRecord, FreeRecord, HeapId, Location, ModuleId, RecordKind,
    SampleFlags, SampleId, ThreadId, take_signed, take_unsigned,
    varint::{unzigzag, zigzag},
};

const NODE: u8 = 0x40;

/// A stack: the number of its leaf's node, counted from 1 over the whole profile. [`StackId::EMPTY`] has no frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StackId(pub u32);

impl StackId {
    /// No frames at all; the parent of every root.
    pub const EMPTY: StackId = StackId(0);
}

/// A frame below its caller. Parents come before their children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StackNode {
    /// The caller's stack.
    pub parent: StackId,
    /// The frame's return address.
    pub location: Location,
}

/// A sample as it stands in the file; see [`crate::SampleRecord`] for the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of SampleRecord, documented there")]
pub struct FileSample {
    pub id: SampleId,
    pub time_ns: u64,
    pub address: u64,
    pub size: u64,
    pub thread: ThreadId,
    pub heap: HeapId,
    pub flags: SampleFlags,
    pub points: u32,
    pub interval: u16,
    pub thread_bytes: u64,
    pub stack: StackId,
}

/// One event of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The next stack node.
    Node(StackNode),
    /// An allocation.
    Sample(FileSample),
    /// Its end.
    Free(FreeRecord),
    /// Where a sample was freed.
    FreeStack(FileFreeStackRecord),
    /// Any other record, as its ring words; `kind` may be one that this version does not know.
    Words {
        /// Number of the [`RecordKind`].
        kind: u8,
        /// Its payload.
        words: Vec<u64>,
    },
}

#[derive(Clone, Debug, Default)]
struct Deltas {
    time_ns: u64,
    sample: u64,
    address: u64,
    offset: u64,
    thread_bytes: BTreeMap<ThreadId, u64>,
    fated: u64,
    gc: u64,
}

impl Deltas {
    /// The id that a fate's sample is encoded relative to.
    fn id_before(&mut self, fate: Fate) -> &mut u64 {
        match fate {
            Fate::Open => &mut self.sample,
            _ => &mut self.fated,
        }
    }
}

/// Words of the largest record. Rings have at most half a million words.
pub(crate) const MOST_RECORD_WORDS: usize = 1 << 19;

/// Words of a fate with all that it may say.
const FATE_WORDS: usize = 5;

/// Builds the raw bytes of one [`crate::ChunkKind::Events`] chunk after the other.
#[derive(Debug, Default)]
pub struct ChunkEncoder {
    bytes: Vec<u8>,
    last: Deltas,
    nodes: u32,
}

impl ChunkEncoder {
    /// Empty, with `nodes` stack nodes already written to the profile.
    pub fn new(nodes: u32) -> Self {
        Self {
            nodes,
            ..Self::default()
        }
    }

    /// Bytes so far in this chunk.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was added since the last [`Self::take`].
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds a stack node and returns its number.
    pub fn node(&mut self, node: StackNode) -> StackId {
        self.nodes += 1;
        self.begin(NODE);
        self.unsigned(u64::from(self.nodes - node.parent.0));
        self.unsigned(u64::from(node.location.module.0));
        self.signed(node.location.offset.wrapping_sub(self.last.offset));
        self.last.offset = node.location.offset;
        StackId(self.nodes)
    }

    /// Adds a sample.
    pub fn sample(&mut self, sample: &FileSample) {
        self.begin(RecordKind::Sample as u8);
        self.signed(sample.time_ns.wrapping_sub(self.last.time_ns));
        self.unsigned(sample.id.0.wrapping_sub(self.last.sample));
        self.signed(sample.address.wrapping_sub(self.last.address));
        self.unsigned(sample.size);
        self.unsigned(u64::from(sample.thread.0));
        self.unsigned(u64::from(sample.heap.0));
        self.unsigned(u64::from(sample.flags.0));
        self.unsigned(u64::from(sample.points.wrapping_sub(1)));
        self.unsigned(u64::from(sample.interval));
        let before = self
            .last
            .thread_bytes
            .insert(sample.thread, sample.thread_bytes)
            .unwrap_or(0);
        self.signed(sample.thread_bytes.wrapping_sub(before));
        self.unsigned(u64::from(sample.stack.0));
        self.last.time_ns = sample.time_ns;
        self.last.sample = sample.id.0;
        self.last.address = sample.address;
    }

    /// Adds the end of a sample.
    pub fn free(&mut self, free: &FreeRecord) {
        self.begin(RecordKind::Free as u8);
        self.signed(free.time_ns.wrapping_sub(self.last.time_ns));
        self.signed(self.last.sample.wrapping_sub(free.sample.0));
        self.unsigned(u64::from(free.thread.0));
        self.last.time_ns = free.time_ns;
    }

    /// Adds the fate of a sample.
    pub fn fate(&mut self, fate: &FateRecord) {
        let id = fate.sample.0;
        let before = core::mem::replace(self.last.id_before(fate.fate), id);
        let words = [
            u64::from(fate.fate as u32) + 8 * u64::from(fate.type_id),
            zigzag(fate.time_ns.wrapping_sub(self.last.time_ns).cast_signed()),
            zigzag(id.wrapping_sub(before).cast_signed()),
            zigzag(fate.gc.wrapping_sub(self.last.gc).cast_signed()),
            fate.content_hash,
        ];
        (self.last.time_ns, self.last.gc) = (fate.time_ns, fate.gc);
        let count = words.iter().rposition(|&word| word != 0);
        self.words(
            RecordKind::FileFate,
            &words[..count.map_or(0, |last| last + 1)],
        );
    }

    /// Adds any other record by its ring words.
    pub fn words(&mut self, kind: RecordKind, words: &[u64]) {
        debug_assert!(
            !matches!(kind, RecordKind::Sample | RecordKind::Free),
            "they have a shape of their own"
        );
        self.begin(kind as u8);
        self.unsigned(words.len() as u64);
        for &word in words {
            self.unsigned(word);
        }
    }

    /// The chunk's raw bytes; the next chunk starts.
    pub fn take(&mut self) -> Vec<u8> {
        self.last = Deltas::default();
        core::mem::take(&mut self.bytes)
    }

    /// Takes back the memory of a chunk from [`Self::take`], to be reused for the next one.
    pub fn give_back(&mut self, mut bytes: Vec<u8>) {
        if self.bytes.is_empty() {
            bytes.clear();
            self.bytes = bytes;
        }
    }

    fn begin(&mut self, kind: u8) {
        self.bytes.push(kind);
    }

    /// As [`crate::put_unsigned`], a byte at a time: most are one byte, and a copy from a buffer takes longer than ten.
    fn unsigned(&mut self, value: u64) {
        let mut rest = value;
        while rest >= 0x80 {
            self.bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.bytes.push(rest as u8);
    }

    /// Differences wrap: adding them back wraps the same way.
    #[inline]
    fn signed(&mut self, difference: u64) {
        self.unsigned(zigzag(difference.cast_signed()));
    }
}

/// Reads the events of one chunk. The iterator ends early at the first malformed event; [`Self::is_malformed`] tells.
#[derive(Debug)]
pub struct ChunkDecoder<'a> {
    input: &'a [u8],
    last: Deltas,
    nodes: u32,
    malformed: bool,
    /// The thread of the last sample, and its bytes: they are in `last` when another thread's sample comes.
    thread: (ThreadId, u64),
}

impl<'a> ChunkDecoder<'a> {
    /// Decodes a chunk's raw bytes, after `nodes` stack nodes in earlier chunks of the profile.
    pub fn new(raw: &'a [u8], nodes: u32) -> Self {
        Self {
            input: raw,
            last: Deltas::default(),
            nodes,
            malformed: false,
            thread: (ThreadId(0), 0),
        }
    }

    /// Whether the iterator stopped at something that is not an event.
    pub fn is_malformed(&self) -> bool {
        self.malformed
    }

    /// Stack nodes read so far in the whole profile.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    #[inline]
    fn event(&mut self) -> Option<Event> {
        let (&kind, rest) = self.input.split_first()?;
        self.input = rest;
        if kind == NODE {
            return self.node().map(Event::Node);
        }
        match RecordKind::from_number(kind) {
            Some(RecordKind::Sample) => self.sample().map(Event::Sample),
            Some(RecordKind::Free) => self.free().map(Event::Free),
            Some(RecordKind::FileFate) => self.fate(),
            Some(RecordKind::FileFreeStack) => self.free_stack(kind),
            _ => self.words(kind),
        }
    }

    #[inline]
    fn node(&mut self) -> Option<StackNode> {
        let mut input = self.input;
        let number = self.nodes.checked_add(1)?;
        let distance = u32::try_from(take_unsigned(&mut input)?).ok()?;
        let parent = StackId(
            number
                .checked_sub(distance)
                .filter(|&parent| parent < number)?,
        );
        let module = ModuleId(u32::try_from(take_unsigned(&mut input)?).ok()?);
        let offset = self.last.offset.wrapping_add(signed(&mut input)?);
        self.input = input;
        self.last.offset = offset;
        self.nodes = number;
        Some(StackNode {
            parent,
            location: Location { module, offset },
        })
    }

    #[inline]
    fn sample(&mut self) -> Option<FileSample> {
        // A copy, which stays in registers.
        let mut input = self.input;
        let time_ns = self.last.time_ns.wrapping_add(signed(&mut input)?);
        let id = self.last.sample.wrapping_add(take_unsigned(&mut input)?);
        let address = self.last.address.wrapping_add(signed(&mut input)?);
        let size = take_unsigned(&mut input)?;
        let thread = ThreadId(u32::try_from(take_unsigned(&mut input)?).ok()?);
        let heap = HeapId(u16::try_from(take_unsigned(&mut input)?).ok()?);
        let flags = SampleFlags(u16::try_from(take_unsigned(&mut input)?).ok()?);
        let points = u32::try_from(take_unsigned(&mut input)?).ok()?;
        let points = points.wrapping_add(1);
        let interval = u16::try_from(take_unsigned(&mut input)?).ok()?;
        let difference = signed(&mut input)?;
        let stack = u32::try_from(take_unsigned(&mut input)?).ok()?;
        let stack = StackId(Some(stack).filter(|&stack| stack <= self.nodes)?);
        self.input = input;
        if thread != self.thread.0 {
            self.change_thread(thread);
        }
        let thread_bytes = self.thread.1.wrapping_add(difference);
        self.thread.1 = thread_bytes;
        self.last.time_ns = time_ns;
        self.last.sample = id;
        self.last.address = address;
        let id = SampleId(id);
        Some(FileSample {
            id,
            time_ns,
            address,
            size,
            thread,
            heap,
            flags,
            points,
            interval,
            thread_bytes,
            stack,
        })
    }

    fn change_thread(&mut self, thread: ThreadId) {
        let (last, bytes) = self.thread;
        let all = &mut self.last.thread_bytes;
        all.insert(last, bytes);
        self.thread = (thread, all.get(&thread).copied().unwrap_or(0));
    }

    #[inline]
    fn free(&mut self) -> Option<FreeRecord> {
        let mut input = self.input;
        let time_ns = self.last.time_ns.wrapping_add(signed(&mut input)?);
        let sample = SampleId(self.last.sample.wrapping_sub(signed(&mut input)?));
        let thread = ThreadId(u32::try_from(take_unsigned(&mut input)?).ok()?);
        self.input = input;
        self.last.time_ns = time_ns;
        Some(FreeRecord {
            time_ns,
            sample,
            thread,
        })
    }

    /// Decodes a fate into the words of its ring record.
    fn fate(&mut self) -> Option<Event> {
        let mut given = [0; FATE_WORDS];
        let count = usize::try_from(self.unsigned()?).ok()?;
        for place in given.get_mut(..count)? {
            *place = self.unsigned()?;
        }
        let [fate_and_type, time, id, gc, content_hash] = given;
        let difference = |word| unzigzag(word).cast_unsigned();
        let fate = Fate::from_number((fate_and_type & 7) as u32)?;
        self.last.time_ns = self.last.time_ns.wrapping_add(difference(time));
        self.last.gc = self.last.gc.wrapping_add(difference(gc));
        let before = self.last.id_before(fate);
        *before = before.wrapping_add(difference(id));
        let record = FateRecord {
            sample: SampleId(*before),
            time_ns: self.last.time_ns,
            fate,
            type_id: u32::try_from(fate_and_type >> 3).ok()?,
            gc: self.last.gc,
            content_hash,
        };
        let mut words = [0; FateRecord::WORDS];
        record.encode_into(&mut words)?;
        let (kind, words) = (RecordKind::Fate as u8, words.to_vec());
        Some(Event::Words { kind, words })
    }

    fn free_stack(&mut self, kind: u8) -> Option<Event> {
        let before = self.input;
        if self.unsigned()? == FileFreeStackRecord::WORDS as u64 {
            let words = [self.unsigned()?, self.unsigned()?];
            if let Some(free) = FileFreeStackRecord::decode(&words) {
                return Some(Event::FreeStack(free));
            }
        }
        // For whoever counts malformed records.
        self.input = before;
        self.words(kind)
    }

    fn words(&mut self, kind: u8) -> Option<Event> {
        let count = usize::try_from(self.unsigned()?).ok()?;
        // Each word takes a byte at least: a count beyond the input is a lie, and must not size an allocation. A word takes
        // eight bytes in memory, so a record that no ring could have held is refused as well.
        if count > self.input.len().min(MOST_RECORD_WORDS) {
            return None;
        }
        let words = (0..count)
            .map(|_| self.unsigned())
            .collect::<Option<Vec<u64>>>()?;
        Some(Event::Words { kind, words })
    }

    fn unsigned(&mut self) -> Option<u64> {
        take_unsigned(&mut self.input)
    }
}

/// A difference, to be added.
#[inline(always)]
fn signed(input: &mut &[u8]) -> Option<u64> {
    take_signed(input).map(i64::cast_unsigned)
}

impl Iterator for ChunkDecoder<'_> {
    type Item = Event;

    #[inline]
    fn next(&mut self) -> Option<Event> {
        if self.input.is_empty() || self.malformed {
            return None;
        }
        let event = self.event();
        self.malformed = event.is_none();
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    fn sample(
        id: u64,
        thread: u32,
        thread_bytes: u64,
        stack: u32,
        rest: (u64, u64, u64, u32),
    ) -> FileSample {
        FileSample {
            id: SampleId(id),
            time_ns: rest.0,
            address: rest.1,
            size: rest.2,
            thread: ThreadId(thread),
            heap: HeapId(1),
            flags: SampleFlags::TRUNCATED,
            points: rest.3,
            interval: 3,
            thread_bytes,
            stack: StackId(stack),
        }
    }

    proptest! {
        #[test]
        fn events_round_trip(
            samples in proptest::collection::vec((any::<u64>(), 0u32..4, any::<u64>(), 0u32..=2, any::<(u64, u64, u64, u32)>()), 0..50),
            words in proptest::collection::vec(any::<u64>(), 0..20),
            fates in proptest::collection::vec((any::<[u64; 3]>(), 0..5_u32, any::<u32>(), 0..2_u64), 0..9),
        ) {
            let mut encoder = ChunkEncoder::new(0);
            let root = StackNode { parent: StackId::EMPTY, location: Location { module: ModuleId(1), offset: 0x1234 } };
            let leaf = StackNode { parent: StackId(1), location: Location { module: ModuleId::NONE, offset: u64::MAX } };
            prop_assert_eq!(encoder.node(root), StackId(1));
            prop_assert_eq!(encoder.node(leaf), StackId(2));
            let mut expected = vec![Event::Node(root), Event::Node(leaf)];
            for (id, thread, bytes, stack, rest) in samples {
                let sample = sample(id, thread, bytes, stack, rest);
                let free = FreeRecord { time_ns: rest.2, sample: SampleId(rest.1), thread: ThreadId(9) };
                encoder.sample(&sample);
                encoder.free(&free);
                expected.extend([Event::Sample(sample), Event::Free(free)]);
            }
            for ([time_ns, id, gc], fate, type_id, content_hash) in fates {
                let sample = SampleId(id);
                let fate = Fate::from_number(fate).unwrap();
                let record = FateRecord { time_ns, sample, fate, type_id, gc, content_hash };
                encoder.fate(&record);
                let mut words = [0; FateRecord::WORDS];
                record.encode_into(&mut words).unwrap();
                let (kind, words) = (RecordKind::Fate as u8, words.to_vec());
                expected.push(Event::Words { kind, words });
            }
            encoder.words(RecordKind::Note, &words);
            expected.push(Event::Words { kind: RecordKind::Note as u8, words });
            let raw = encoder.take();
            let mut decoder = ChunkDecoder::new(&raw, 0);
            let events: Vec<_> = decoder.by_ref().collect();
            prop_assert!(!decoder.is_malformed());
            prop_assert_eq!(events, expected);
        }

        #[test]
        fn any_bytes_end_without_panic(raw in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut decoder = ChunkDecoder::new(&raw, 3);
            let _ = decoder.by_ref().count();
            prop_assert!(decoder.nodes() >= 3);
        }
    }

    #[test]
    fn a_stack_that_was_never_written_is_refused() {
        let mut encoder = ChunkEncoder::new(0);
        encoder.sample(&sample(1, 1, 1, 7, (1, 1, 1, 1)));
        let raw = encoder.take();
        let mut decoder = ChunkDecoder::new(&raw, 6);
        assert_eq!(decoder.next(), None);
        assert!(decoder.is_malformed());
        assert!(ChunkDecoder::new(&raw, 7).next().is_some());
    }
}
