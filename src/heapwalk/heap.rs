//! All arenas of a process: the walk from end to end, and what it found.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;

use crate::arena::{HEAP_ALIGNMENT, HeapHead, State as ArenaState};
use crate::caches::{Cached, may_be_cache};
use crate::chunk::{OVERHEAD, TO_BLOCK};
use crate::pages::{Holding, Pages, Parts};
use crate::segment::{Budget, Segment, State, Walker};
use crate::window::{Mapping, Target, Window, copy};

/// Bytes of chunks, resident or not. A chunk's size contains its header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sizes {
    /// Blocks of the program.
    pub in_use: u64,
    /// Free, in bins.
    pub free: u64,
    /// Free, in fastbins.
    pub fast: u64,
    /// Free, in caches of threads. `mallinfo2` counts these as in use.
    pub cached: u64,
    /// Free, at the ends of arenas.
    pub top: u64,
    /// Not understood.
    pub lost: u64,
    /// Blocks of the program.
    pub blocks: u64,
}

impl AddAssign for Sizes {
    fn add_assign(&mut self, other: Self) {
        self.in_use += other.in_use;
        self.free += other.free;
        self.fast += other.fast;
        self.cached += other.cached;
        self.top += other.top;
        self.lost += other.lost;
        self.blocks += other.blocks;
    }
}

/// One arena.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arena {
    /// Where its own data is.
    pub address: u64,
    /// Whether it is the one on the heap of `brk`.
    pub is_main: bool,
    /// Threads that allocate from it.
    pub attached_threads: u64,
    /// What it has from the system, as it says itself.
    pub system_bytes: u64,
    /// What was walked of that.
    pub walked_bytes: u64,
    /// Its chunks.
    pub sizes: Sizes,
    /// Its resident memory.
    pub parts: Parts,
}

/// A heap of an arena, or the heap of `brk`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Piece {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Whether it is the heap of `brk`: others may have memory there, too, which then counts as not understood.
    pub is_main: bool,
    /// Its resident memory.
    pub parts: Parts,
}

/// A block that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// As `malloc` returned it.
    pub address: u64,
    /// As `malloc_usable_size` has it.
    pub bytes: u64,
}

/// What malloc holds.
#[derive(Clone, Debug, Default)]
pub struct Heap {
    arenas: Vec<Arena>,
    /// By address.
    segments: Vec<Segment>,
    pages: Vec<Pages>,
    is_cut_short: bool,
}

/// With more pages in its arenas a process is not walked.
const MOST_PAGES: u64 = 1 << 26;
/// Each of the blocks that have the size of a thread's cache must be looked at; a program may have many of its own.
const MOST_CANDIDATES: usize = 1 << 20;

impl Heap {
    /// Of a process with these mappings. `None`: there is no arena of glibc's malloc that is in use.
    pub fn walk(target: &dyn Target, mappings: &[Mapping]) -> Option<Self> {
        Self::walk_within(target, mappings, Budget::default())
    }

    pub(crate) fn walk_within(
        target: &dyn Target,
        mappings: &[Mapping],
        mut budget: Budget,
    ) -> Option<Self> {
        let mut places = Places::find(target, mappings);
        let page_bytes = target.page_bytes();
        let bytes: u64 = places.segments.iter().map(|it| it.end - it.start).sum();
        if places.segments.is_empty() || bytes / page_bytes > MOST_PAGES {
            return None;
        }
        let mut candidates = Vec::new();
        let mut window = Window::new(target);
        for segment in &mut places.segments {
            let walker = Walker {
                window: &mut window,
                budget: &mut budget,
                end: segment.end,
                is_main: places.arenas[segment.arena].is_main,
            };
            segment.stretches = walker.walk(segment.first, &mut |at, bytes| {
                if may_be_cache(bytes) && candidates.len() <= MOST_CANDIDATES {
                    candidates.push((at, bytes));
                }
            });
        }
        let cached = Cached::read(target, &candidates, &places.fastbins);
        let mut heap = Self {
            arenas: places.arenas,
            segments: places.segments,
            pages: Vec::new(),
            is_cut_short: cached.is_cut_short || candidates.len() > MOST_CANDIDATES,
        };
        heap.segments.sort_by_key(|it| it.start);
        heap.mark(&cached.in_thread_caches, State::Cached);
        heap.mark(&cached.in_fastbins, State::Fast);
        heap.divide(target);
        Some(heap)
    }

    /// Every arena; the main one, if there is one, comes first.
    pub fn arenas(&self) -> &[Arena] {
        &self.arenas
    }

    /// All resident memory.
    pub fn parts(&self) -> Parts {
        let mut sum = Parts::default();
        self.arenas.iter().for_each(|arena| sum += arena.parts);
        sum
    }

    /// All chunks.
    pub fn sizes(&self) -> Sizes {
        let mut sum = Sizes::default();
        self.arenas.iter().for_each(|arena| sum += arena.sizes);
        sum
    }

    /// Whether lists of free chunks were longer than was read.
    pub fn is_cut_short(&self) -> bool {
        self.is_cut_short
    }

    /// Every piece of memory that was walked, by address.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        let pieces = self.segments.iter().zip(&self.pages);
        pieces.map(|(segment, pages)| Piece {
            start: segment.start,
            end: segment.end,
            is_main: self.arenas[segment.arena].is_main,
            parts: pages.parts,
        })
    }

    /// Every stretch with its address and the start of its segment.
    #[cfg(test)]
    pub(crate) fn every_stretch(
        &self,
    ) -> impl Iterator<Item = (u64, u64, crate::segment::Stretch)> + '_ {
        let segments = self.segments.iter();
        segments.flat_map(|segment| segment.at().map(|(at, it)| (segment.start, at, it)))
    }

    /// What the blocks at these addresses hold, in the same order. `None`: there is no block in use at the address.
    pub fn holdings(&mut self, addresses: &[u64]) -> Vec<Option<(Block, Holding)>> {
        let mut order: Vec<usize> = (0..addresses.len()).collect();
        order.sort_by_key(|&index| addresses[index]);
        let mut found = vec![None; addresses.len()];
        let mut order = order.into_iter().peekable();
        for (segment, pages) in self.segments.iter().zip(&mut self.pages) {
            let mut chunks = segment.at().peekable();
            while let Some(&index) = order.peek() {
                let chunk = addresses[index].wrapping_sub(TO_BLOCK);
                if chunk >= segment.end {
                    break;
                }
                order.next();
                while chunks.next_if(|(at, _)| *at < chunk).is_some() {}
                let here = chunks.peek().filter(|(at, _)| *at == chunk);
                let Some((_, stretch)) = here.filter(|(_, it)| it.state() == State::InUse) else {
                    continue;
                };
                let block = Block {
                    address: addresses[index],
                    bytes: stretch.bytes() - OVERHEAD,
                };
                found[index] = Some((block, pages.holding(&block)));
            }
        }
        found
    }

    /// Gives chunks at these addresses, in order, another state.
    fn mark(&mut self, addresses: &[u64], state: State) {
        let mut addresses = addresses.iter().copied().peekable();
        for segment in &mut self.segments {
            let mut at = segment.first;
            for stretch in &mut segment.stretches {
                while addresses.next_if(|it| *it < at).is_some() {}
                if addresses.peek() == Some(&at) && stretch.state() == State::InUse {
                    stretch.set_state(state);
                }
                at += stretch.bytes();
            }
        }
    }

    fn divide(&mut self, target: &dyn Target) {
        let page_bytes = target.page_bytes();
        for segment in &self.segments {
            let arena = &mut self.arenas[segment.arena];
            arena.walked_bytes += segment.end - segment.start;
            let sizes = &mut arena.sizes;
            for (_, stretch) in segment.at() {
                let bytes = stretch.bytes();
                match stretch.state() {
                    State::InUse => {
                        sizes.in_use += bytes;
                        sizes.blocks += 1;
                    }
                    State::Free => sizes.free += bytes,
                    State::Fast => sizes.fast += bytes,
                    State::Cached => sizes.cached += bytes,
                    State::Top => sizes.top += bytes,
                    State::Lost => sizes.lost += bytes,
                    State::Own => {}
                }
            }
            let first_page = segment.start / page_bytes * page_bytes;
            // At most MOST_PAGES.
            let count = (segment.end - first_page).div_ceil(page_bytes) as usize;
            let residents = target.residents(first_page, count);
            let pages = Pages::of(segment, arena.is_main, page_bytes, &residents);
            arena.parts += pages.parts;
            self.pages.push(pages);
        }
    }
}

/// Where there are chunks.
struct Places {
    arenas: Vec<Arena>,
    /// Heads of the fastbins of every arena.
    fastbins: Vec<Vec<u64>>,
    segments: Vec<Segment>,
}

/// What is read of a module's data in search of the main arena: of libc that is all.
const MOST_DATA: u64 = 1 << 20;

impl Places {
    fn find(target: &dyn Target, mappings: &[Mapping]) -> Self {
        let mut found = Self {
            arenas: Vec::new(),
            fastbins: Vec::new(),
            segments: Vec::new(),
        };
        let brk = mappings.iter().find(|it| it.name == "[heap]");
        if let Some((brk, state)) = brk.and_then(|brk| Some((brk, main_arena(target, mappings)?))) {
            let address = state.bins - 16;
            found.add_arena(address, true, &state);
            found.add_segment(0, brk.start, brk.start, brk.end);
        }
        let mut heads = BTreeMap::new();
        for mapping in mappings.iter().filter(|it| it.name.is_empty()) {
            let mut start = mapping.start.next_multiple_of(HEAP_ALIGNMENT);
            while start < mapping.end {
                if let Some(head) = HeapHead::read(target, start, mapping.end) {
                    heads.insert(start, head);
                }
                start += HEAP_ALIGNMENT;
            }
        }
        let mut numbers = BTreeMap::new();
        for head in heads.values() {
            if let Some(state) = &head.state {
                numbers.insert(head.arena, found.add_arena(head.arena, false, state));
            }
        }
        let mut covered = BTreeSet::new();
        for (&start, head) in &heads {
            // One without an arena is no heap, and neither is one within the heap before.
            let last: Option<&u64> = covered.last();
            if let Some(&arena) = numbers.get(&head.arena)
                && last.is_none_or(|end| *end <= start)
            {
                found.add_segment(arena, start, head.first, start + head.bytes);
                covered.insert(start + head.bytes);
            }
        }
        found
    }

    fn add_arena(&mut self, address: u64, is_main: bool, state: &ArenaState) -> usize {
        self.arenas.push(Arena {
            address,
            is_main,
            attached_threads: state.attached_threads,
            system_bytes: state.system_bytes,
            ..Arena::default()
        });
        self.fastbins.push(state.fastbins.clone());
        self.arenas.len() - 1
    }

    fn add_segment(&mut self, arena: usize, start: u64, first: u64, end: u64) {
        self.segments.push(Segment {
            arena,
            start,
            first,
            end,
            stretches: Vec::new(),
        });
    }
}

/// The arena in the data of the C library, or, in a static program, in the program's own.
fn main_arena(target: &dyn Target, mappings: &[Mapping]) -> Option<ArenaState> {
    let is_libc = |it: &&Mapping| {
        let file = it.name.rsplit('/').next().unwrap_or_default();
        file.starts_with("libc.so") || file.starts_with("libc-2")
    };
    let in_libc = mappings.iter().filter(is_libc);
    // A static program lies lowest.
    let in_program = mappings.iter().find(|it| it.name.starts_with('/'));
    let mut places = in_libc.chain(in_program);
    places.find_map(|mapping| {
        let bytes = (mapping.end - mapping.start).min(MOST_DATA);
        let memory = copy(target, mapping.start, usize::try_from(bytes).ok()?);
        let state = ArenaState::find(&memory, mapping.start)?;
        (state.system_bytes > 0).then_some(state)
    })
}
