//! How much memory and work a profile may take, by the bytes that it is read from.
//!
//! A few kilobytes can expand to gigabytes: LZ4 blocks expand up to 255 times, a node of a stack takes four bytes before that,
//! and every sample can refer to the deepest stack. So readers count what they build, and stop where a file asks for more
//! than any agent writes. A sample and its free take 12 bytes of a file and some 40 of memory, an agent's stacks are at most
//! [`DEEPEST`] frames deep.

use std::sync::atomic::{AtomicBool, Ordering};

use allocsample_record::{ChunkKind, Location, ModuleId, SymbolFrame, VmFrame};
use rustc_hash::FxHashSet;

use crate::model::{Profile, Tick};
use crate::uses::Uses;
use crate::vm::{Function, Gc, Marker, Statistic, Type, Value};

/// Frames of the deepest stack that an agent records.
pub(crate) const DEEPEST: u32 = 4096;

/// Bytes of the largest ring file that is read. An agent's is a quarter of that.
pub(crate) const LARGEST_RING: u64 = 16 << 20;

/// Whether readers take whatever they are given.
static ARE_LIFTED: AtomicBool = AtomicBool::new(false);

/// Has all profiles that this process reads from now on read without limits. For those whose origin is known: a program that
/// allocates the same block millions of times writes some 3 bytes for each sample.
pub fn lift_limits() {
    ARE_LIFTED.store(true, Ordering::Relaxed);
}

/// Whether [`lift_limits`] was called.
pub fn limits_are_lifted() -> bool {
    ARE_LIFTED.load(Ordering::Relaxed)
}

/// What a profile may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of the profile in memory.
    pub(crate) memory: u64,
    /// Bytes of the names of all places beside it, in a report.
    names: u64,
    /// Frames of the stacks of all samples together: what it takes to look at each.
    frames: u64,
    /// Bytes of names in all different stacks together: what it takes to print each.
    text: u64,
}

impl Limits {
    /// For files of so many bytes in all.
    pub(crate) fn of(file_bytes: u64) -> Self {
        let limit = |base: u64, times: u64| match limits_are_lifted() {
            true => u64::MAX,
            false => base.saturating_add(file_bytes.saturating_mul(times)),
        };
        Self {
            memory: limit(32 << 20, 18),
            names: limit(16 << 20, 2),
            frames: limit(256 << 20, 2048),
            text: limit(256 << 20, 1024),
        }
    }

    /// Bytes that the payload of a chunk may expand to. An agent's come from a ring of 4 MiB at most; names are all in one,
    /// and LZ4 makes them some three times smaller.
    pub(crate) fn raw_bytes(kind: u16, stored_bytes: usize) -> u64 {
        const ALWAYS: u64 = 8 << 20;
        if limits_are_lifted() {
            return u64::MAX;
        }
        let times = if kind == ChunkKind::Symbols as u16 {
            8
        } else {
            1
        };
        ALWAYS + times * stored_bytes as u64
    }
}

/// Makes room for so many more in a large row. Doubling it, as [`Vec`] does, would have up to half of the room empty; large
/// rows are moved by the kernel, page by page, so that growing often costs little.
pub(crate) fn make_room<T>(row: &mut Vec<T>, more: usize) {
    const LEAST: usize = 1024;
    if row.capacity() - row.len() < more {
        row.reserve_exact(more.max(row.len() / 8).max(LEAST));
    }
}

impl Profile {
    /// Bytes of memory that the profile takes, about, without the texts in it.
    pub(crate) fn held_bytes(&self) -> u64 {
        /// Keys and room of trees and tables.
        const ENTRY: usize = 48;
        /// A node, its slot in the table by which nodes are found, and the same in a table of a report.
        const NODE: usize = 64;
        /// A place, its number, and in a report its frame, with a name as module and offset.
        const PLACE: usize = 640;
        let vm = &self.vm;
        let held = [
            (self.stacks.nodes().len(), NODE),
            (self.stacks.places().len(), PLACE),
            (self.ticks.capacity(), size_of::<Tick>()),
            (self.pages.samples.capacity(), size_of::<crate::Sample>()),
            (self.mappings.capacity(), size_of::<crate::MappingCall>()),
            (self.threads.len(), 2 * size_of::<crate::Thread>()),
            (self.modules.len(), 2 * size_of::<crate::Module>()),
            (self.intervals.len(), size_of::<crate::IntervalInfo>()),
            (
                self.interval_history.len(),
                size_of::<crate::IntervalInfo>(),
            ),
            (self.content_hashes.len(), ENTRY),
            (self.free_stacks.capacity(), 8),
            (self.notes.len(), ENTRY),
            (self.resident_bytes.len(), 16),
            (1, self.events.held_bytes() as usize),
            (vm.heaps.len(), ENTRY + size_of::<crate::Heap>()),
            (
                vm.intervals.values().map(Vec::capacity).sum(),
                size_of::<crate::IntervalInfo>(),
            ),
            (
                vm.intervals.len(),
                ENTRY + size_of::<Vec<crate::IntervalInfo>>(),
            ),
            (vm.types.len(), ENTRY + size_of::<Type>()),
            (vm.functions.len(), ENTRY + size_of::<Function>()),
            (vm.ends.len(), ENTRY + size_of::<String>()),
            (vm.inlined.len(), ENTRY + size_of::<Vec<(u32, u32)>>()),
            (vm.ranges.len(), ENTRY),
            (vm.statistics.len(), ENTRY + size_of::<Statistic>()),
            (vm.gcs.len(), size_of::<Gc>()),
            (vm.markers.len(), size_of::<Marker>()),
            (vm.values.len(), size_of::<Value>()),
        ];
        held.iter()
            .map(|&(count, each)| count as u64 * each as u64)
            .sum::<u64>()
            + self.samples.held_bytes()
    }

    /// Whether no stack is deeper than one of an agent's.
    pub(crate) fn is_shallow(&self) -> bool {
        let mut depths: Vec<u32> = Vec::with_capacity(self.stacks.nodes().len());
        self.stacks.nodes().all(|node| {
            let below = (node.parent.0 as usize).checked_sub(1);
            let depth = 1 + below.map_or(0, |caller| depths.get(caller).copied().unwrap_or(0));
            depths.push(depth);
            depth <= DEEPEST
        })
    }

    /// Whether what its stacks and their names expand to is within the limits. `held_bytes` is what it takes already.
    pub(crate) fn is_proportionate(&self, limits: &Limits, held_bytes: u64, uses: &Uses) -> bool {
        let mut names = Names::default();
        let places: Vec<(u64, u64)> = (self.stacks.places().iter())
            .map(|&place| names.of_place(self, place))
            .collect();
        // Of each stack: its frames and their text.
        let mut sums: Vec<(u64, u64)> = Vec::with_capacity(self.stacks.nodes().len());
        let (mut frames_in_all, mut text_in_all) = (0u64, 0u64);
        for (number, &count) in (1..=self.stacks.count()).zip(uses.counts.iter().skip(1)) {
            let Some((caller, place)) = self.stacks.parent_and_place(crate::StackId(number)) else {
                break;
            };
            let below = (caller.0 as usize)
                .checked_sub(1)
                .and_then(|it| sums.get(it));
            let (frames, text) = below.copied().unwrap_or_default();
            let own = places.get(place as usize).copied().unwrap_or_default();
            let (frames, text) = (frames.saturating_add(own.0), text.saturating_add(own.1));
            sums.push((frames, text));
            if count > 0 {
                let expanded = frames.saturating_mul(u64::from(count));
                frames_in_all = frames_in_all.saturating_add(expanded);
                text_in_all = text_in_all.saturating_add(text);
            }
        }
        frames_in_all <= limits.frames
            && text_in_all <= limits.text
            && held_bytes.saturating_add(names.bytes) <= limits.memory.saturating_add(limits.names)
    }
}

/// What the names of places take in a report: those that are alike take it once.
#[derive(Default)]
struct Names {
    known: FxHashSet<(usize, usize, u32, ModuleId)>,
    bytes: u64,
}

impl Names {
    /// How many frames a place has, and how long they are together.
    fn of_place(&mut self, profile: &Profile, place: Location) -> (u64, u64) {
        /// `+0x` and a number, or a line.
        const ADDRESS: usize = 20;
        let module = profile
            .module(place.module)
            .map_or(0, |module| module.name().len());
        if let Some(frames) = profile.symbols.frames.get(&place) {
            let each = frames
                .iter()
                .map(|frame| self.of_frame(frame, place.module, module));
            return (frames.len() as u64, each.sum());
        }
        let machine = VmFrame::decode(place.offset).filter(|_| place.module == ModuleId::VM);
        let Some(frame) = machine else {
            let code = usize::try_from(place.offset)
                .ok()
                .filter(|_| place.module == ModuleId::CODE);
            let code = code.and_then(|index| profile.symbols.code.get(index));
            return match code {
                Some(code) => (1, self.of_frame(&code.frame, place.module, 0)),
                None => {
                    self.bytes += 2 * (module + ADDRESS) as u64;
                    (1, (module + ADDRESS) as u64)
                }
            };
        };
        let text = |function| {
            let known = profile.vm.functions.get(&(frame.heap, function));
            known.map_or(ADDRESS, |it| it.name.len() + it.file.len()) as u64
        };
        let (frames, bytes) = match profile.vm.inlined.get(&(frame.heap, frame.function)) {
            Some(inlined) => {
                let each = inlined.iter().map(|&(function, _)| text(function));
                (inlined.len() as u64, each.sum())
            }
            None => (1, text(frame.function)),
        };
        self.bytes = self.bytes.saturating_add(2 * bytes);
        (frames, bytes)
    }

    fn of_frame(&mut self, frame: &SymbolFrame, module: ModuleId, module_bytes: usize) -> u64 {
        /// A frame itself.
        const FRAME: usize = 96;
        let address =
            |name: &Option<std::sync::Arc<str>>| name.as_ref().map_or(0, |it| it.as_ptr() as usize);
        let length = |name: &Option<std::sync::Arc<str>>| name.as_ref().map_or(0, |it| it.len());
        let bytes = length(&frame.function) + length(&frame.file) + module_bytes;
        let key = (
            address(&frame.function),
            address(&frame.file),
            frame.line,
            module,
        );
        if self.known.insert(key) {
            self.bytes = self.bytes.saturating_add(2 * (bytes + FRAME) as u64);
        }
        bytes as u64
    }
}

#[cfg(test)]
mod tests {
    use allocsample_record::{StackId, StackNode};

    use super::*;
    use crate::model::Sample;

    /// TensorFlow's import, at 64 KiB, was a file of 1.9 MB: 24,312 samples in stacks of 515 frames on average, nearly all different, with
    /// names of 77 bytes.
    #[test]
    fn deep_stacks_that_are_all_different_are_proportionate() {
        let mut profile = Profile::default();
        let mut caller = StackId::EMPTY;
        for offset in 0..24_000 + 500 {
            let location = Location {
                module: ModuleId(1),
                offset,
            };
            let frame = SymbolFrame {
                function: Some("f".repeat(77).into()),
                ..SymbolFrame::default()
            };
            profile.symbols.frames.insert(location, vec![frame]);
            let parent = caller;
            let stack = profile.stacks.push(StackNode { parent, location });
            if offset < 500 {
                caller = stack;
            } else {
                let points = 1;
                profile.samples.push(Sample {
                    stack,
                    points,
                    ..Sample::default()
                });
            }
        }
        let uses = Uses::of(&profile);
        let is_proportionate = |file_bytes| {
            profile.is_proportionate(&Limits::of(file_bytes), profile.held_bytes(), &uses)
        };
        assert!(is_proportionate(1_900_000));
        assert!(!is_proportionate(19_000));
    }
}
