//! Recognises memory of allocators by its content.
//!
//! Large blocks of glibc's malloc and the arenas of CPython have mappings of their own. No walk leads to them, and a recording that
//! began later has no call that made them. Both have headers. The checks are so strict that other memory does not pass them:
//!
//! ```text
//! block   at +0   bytes between the start of its mapping and here: 0, or what alignment took
//!         at +8   size | 2; from the start of the mapping on it is whole pages
//! pool    at +0   blocks in use (4 bytes), 0
//!         at +8   first free block; 0 if, and only if, all are in use
//!         at +16  next pool, pool before
//!         at +32  number of the arena, class of the size: 16 (class + 1) bytes, in old versions 8 (class + 1)
//!         at +40  where the blocks end that were in use at some time, the last place of a block
//!         at +48  the blocks
//! ```
//!
//! A pool takes 4 KiB, and 16 KiB from CPython 3.10 on. Up to 64 of them are an arena; those that were not in use yet are empty
//! pages, or zeros where pages are huge.

use std::ops::Range;

use crate::chunk::{ALIGNMENT, Header};
use crate::window::{Mapping, Target, Window};

/// The allocator that the memory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Content {
    /// A block of glibc's malloc.
    MallocBlock,
    /// A pool of CPython, or several that are not in use.
    PythonPool,
}

/// A range of addresses that is known by its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// The allocator that it belongs to.
    pub content: Content,
    /// Bytes in memory.
    pub resident_bytes: u64,
    /// The part of that in blocks which are in use.
    pub live_bytes: u64,
}

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// By address; none overlap.
    pub known: Vec<Known>,
    /// Whether a bound ended the search.
    pub is_cut_short: bool,
}

/// Bounds of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Pages that are in memory: 64 GiB.
    pub resident_pages: u64,
    /// Pages, in memory or not: 1 TiB. The kernel is asked about each.
    pub pages: u64,
    /// Ranges that are known.
    pub known: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            resident_pages: 1 << 24,
            pages: 1 << 28,
            known: 1 << 22,
        }
    }
}

impl Contents {
    /// In the nameless mappings of a process, apart from these ranges, which are walked otherwise.
    pub fn find(target: &dyn Target, mappings: &[Mapping], apart: &[Range<u64>]) -> Self {
        Self::find_within(target, mappings, apart, Limits::default())
    }

    pub(crate) fn find_within(
        target: &dyn Target,
        mappings: &[Mapping],
        apart: &[Range<u64>],
        limits: Limits,
    ) -> Self {
        let mut search = Search {
            window: Window::new(target),
            page_bytes: target.page_bytes(),
            residents: Residents::default(),
            limits,
            found: Self::default(),
        };
        // A kernel may name memory after what the program has said of it.
        let is_nameless = |it: &&Mapping| it.name.is_empty() || it.name.starts_with("[anon:");
        let mut mappings: Vec<&Mapping> = mappings.iter().filter(is_nameless).collect();
        // A vast one may be reserved and hardly used: it must not keep the others from being looked at.
        mappings.sort_by_key(|it| (it.end - it.start, it.start));
        for mapping in mappings {
            for range in without(mapping.start..mapping.end, apart) {
                search.within(range);
            }
        }
        let mut found = search.found;
        found.known.sort_unstable_by_key(|it| it.start);
        found
    }
}

/// The parts of a range that are in none of the others.
fn without(range: Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut parts = vec![range];
    for other in others {
        let rest = parts.into_iter().flat_map(|part| {
            let before = part.start..part.end.min(other.start);
            let after = part.start.max(other.end)..part.end;
            [before, after].into_iter().filter(|it| it.start < it.end)
        });
        parts = rest.collect();
    }
    parts
}

/// Which pages are in memory, as the kernel has said of the next ones.
#[derive(Default)]
struct Residents {
    start: u64,
    pages: Vec<bool>,
}

impl Residents {
    const AT_ONCE: u64 = 1 << 12;

    fn has(&mut self, target: &dyn Target, page: u64, end: u64) -> bool {
        let page_bytes = target.page_bytes();
        let index = |start: u64| Some((page.checked_sub(start)? / page_bytes) as usize);
        let known = index(self.start).and_then(|at| self.pages.get(at));
        if let Some(&is_resident) = known {
            return is_resident;
        }
        let count = (end.saturating_sub(page) / page_bytes).min(Self::AT_ONCE);
        self.start = page;
        self.pages = target.residents(page, count as usize);
        self.pages.first() == Some(&true)
    }
}

struct Search<'a> {
    window: Window<'a>,
    page_bytes: u64,
    residents: Residents,
    limits: Limits,
    found: Contents,
}

impl Search<'_> {
    fn within(&mut self, range: Range<u64>) {
        // Up to here it is known whose it is.
        let mut floor = range.start;
        let mut page = range.start;
        let mut arena: Option<Arena> = None;
        while page < range.end {
            let limits = &mut self.limits;
            if limits.pages == 0 || limits.resident_pages == 0 || limits.known == 0 {
                self.found.is_cut_short = true;
                return;
            }
            limits.pages -= 1;
            let target = self.window.target();
            if !self.residents.has(target, page, range.end) {
                page += self.page_bytes;
                continue;
            }
            self.limits.resident_pages -= 1;
            let found = self.at(page, &(floor..range.end), &mut arena);
            if let Some(found) = found {
                floor = found.end;
                page = found.end;
                self.add(found, range.end);
            } else {
                page += self.page_bytes;
            }
        }
    }

    /// What begins in this page, which is in memory.
    fn at(&mut self, page: u64, within: &Range<u64>, arena: &mut Option<Arena>) -> Option<Known> {
        let mut pool = self.pool(page, within);
        let is_in_arena = arena.as_ref().is_some_and(|it| it.has(page));
        if pool.is_none() && is_in_arena {
            // The program goes on, and may have changed the header while it was read.
            self.window.forget();
            pool = self.pool(page, within);
        }
        if let Some(pool) = pool {
            Arena::add(arena, page, &pool);
            let range = page..page + pool.bytes;
            return Some(known(range, Content::PythonPool, pool.live_bytes()));
        }
        if let Some(block) = self.block(page, within) {
            *arena = None;
            return Some(block);
        }
        (is_in_arena && self.is_zero(page))
            .then(|| known(page..page + self.page_bytes, Content::PythonPool, 0))
    }

    fn pool(&mut self, page: u64, within: &Range<u64>) -> Option<Pool> {
        Pool::BYTES.into_iter().find_map(|bytes| {
            let is_within = page.is_multiple_of(bytes) && within.end - page >= bytes;
            is_within.then(|| Pool::read(&mut self.window, page, bytes))?
        })
    }

    /// A block with its header in this page.
    fn block(&mut self, page: u64, within: &Range<u64>) -> Option<Known> {
        // Blocks are aligned to 16 bytes, or to a larger power of two, and the header takes 16 bytes before it.
        let mut alignment = ALIGNMENT;
        while alignment <= self.page_bytes {
            let header = page + alignment - ALIGNMENT;
            if let Some(range) = self.block_at(header, within) {
                let live_bytes = range.end - header - ALIGNMENT;
                return Some(known(range, Content::MallocBlock, live_bytes));
            }
            alignment *= 2;
        }
        None
    }

    /// The whole of its pages.
    fn block_at(&mut self, header: u64, within: &Range<u64>) -> Option<Range<u64>> {
        /// Smaller ones are mapped only where an arena cannot grow.
        const LEAST_BYTES: u64 = 128 << 10;
        let range = self.block_range(header, within)?;
        if range.end - range.start >= LEAST_BYTES {
            return Some(range);
        }
        let rest = range.end..within.end;
        let is_followed = rest.is_empty() || self.block_range(range.end, &rest).is_some();
        (is_followed && range.start == header).then_some(range)
    }

    fn block_range(&mut self, header: u64, within: &Range<u64>) -> Option<Range<u64>> {
        /// The flag of a mapping, and no other.
        const IS_MAPPED: u64 = 2;
        const FLAGS: u64 = 7;
        let before = self.window.word(header)?;
        let word = self.window.word(header + 8)?;
        let start = header.checked_sub(before)?;
        // Alignment takes what is missing to the next multiple, and one more where that leaves no room for a block.
        let most_before = 2_u64.checked_shl((header + ALIGNMENT).trailing_zeros())?;
        let end = header.checked_add(Header(word).size())?;
        let is_block = word & FLAGS == IS_MAPPED
            && start.is_multiple_of(self.page_bytes)
            && end.is_multiple_of(self.page_bytes)
            && start >= within.start
            && before < most_before
            && end > header + ALIGNMENT
            && end <= within.end;
        is_block.then_some(start..end)
    }

    fn is_zero(&mut self, page: u64) -> bool {
        let mut words = (page..page + self.page_bytes).step_by(8);
        words.all(|at| self.window.word(at) == Some(0))
    }

    /// Adds it with what of it is in memory.
    fn add(&mut self, mut found: Known, end: u64) {
        let mut page = found.start;
        while page < found.end {
            let Some(rest) = self.limits.pages.checked_sub(1) else {
                self.found.is_cut_short = true;
                break;
            };
            self.limits.pages = rest;
            let target = self.window.target();
            if self.residents.has(target, page, end) {
                found.resident_bytes += self.page_bytes;
            }
            page += self.page_bytes;
        }
        found.live_bytes = found.live_bytes.min(found.resident_bytes);
        self.limits.known -= 1;
        let known = &mut self.found.known;
        let is_rest = found.content == Content::PythonPool && found.live_bytes == 0;
        match known
            .last_mut()
            .filter(|it| is_rest && it.content == found.content && it.end == found.start)
        {
            Some(last) => {
                last.end = found.end;
                last.resident_bytes += found.resident_bytes;
            }
            None => known.push(found),
        }
    }
}

fn known(range: Range<u64>, content: Content, live_bytes: u64) -> Known {
    Known {
        start: range.start,
        end: range.end,
        content,
        resident_bytes: 0,
        live_bytes,
    }
}

/// Pools with the same number.
#[derive(Clone, Copy, Debug)]
struct Arena {
    number: u32,
    first: u64,
    pool_bytes: u64,
}

impl Arena {
    const POOLS: u64 = 64;

    fn add(arena: &mut Option<Self>, page: u64, pool: &Pool) {
        let is_of =
            |it: &Self| it.number == pool.arena && it.pool_bytes == pool.bytes && it.has(page);
        if !arena.as_ref().is_some_and(is_of) {
            *arena = Some(Self {
                number: pool.arena,
                first: page,
                pool_bytes: pool.bytes,
            });
        }
    }

    fn has(&self, page: u64) -> bool {
        (self.first..self.first + Self::POOLS * self.pool_bytes).contains(&page)
    }
}

/// The header of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pool {
    bytes: u64,
    count: u64,
    arena: u32,
    block_bytes: u64,
}

impl Pool {
    const BYTES: [u64; 2] = [4 << 10, 16 << 10];
    const HEADER_BYTES: u64 = 48;

    fn read(window: &mut Window, page: u64, bytes: u64) -> Option<Self> {
        let mut words = [0; 6];
        for (word, at) in words.iter_mut().zip((page..).step_by(8)) {
            *word = window.word(at)?;
        }
        Self::parse(words, page, bytes)
    }

    fn parse(words: [u64; 6], page: u64, bytes: u64) -> Option<Self> {
        /// Steps of sizes, now and in old versions.
        const STEPS: [u64; 2] = [16, 8];
        const CLASSES: u64 = 64;
        const LARGEST: u64 = 512;
        const MOST_ADDRESS: u64 = 1 << 57;
        const MOST_ARENAS: u64 = 1 << 24;
        let [count, free, next, before, numbers, offsets] = words;
        let low = |word: u64| word & u64::from(u32::MAX);
        let (arena, class) = (low(numbers), numbers >> 32);
        let (next_place, last_place) = (low(offsets), offsets >> 32);
        let is_pointer = |it: u64| it < MOST_ADDRESS && it.is_multiple_of(8);
        if class >= CLASSES || arena >= MOST_ARENAS || !is_pointer(next) || !is_pointer(before) {
            return None;
        }
        let mut sizes = STEPS.into_iter().map(|step| step * (class + 1));
        let block_bytes = sizes.find(|it| *it <= LARGEST && last_place + it == bytes)?;
        let capacity = (bytes - Self::HEADER_BYTES) / block_bytes;
        let of_blocks = next_place.checked_sub(Self::HEADER_BYTES)?;
        // A new pool has its first block in use, and the second one free.
        let used = of_blocks / block_bytes;
        if !of_blocks.is_multiple_of(block_bytes) || !(2..=capacity).contains(&used) {
            return None;
        }
        let is_consistent = match free {
            0 => count == capacity && used == capacity,
            _ => {
                let place = free.checked_sub(page + Self::HEADER_BYTES)?;
                count < used && place < of_blocks && place.is_multiple_of(block_bytes)
            }
        };
        is_consistent.then_some(Self {
            bytes,
            count,
            arena: u32::try_from(arena).ok()?,
            block_bytes,
        })
    }

    fn live_bytes(&self) -> u64 {
        self.count * self.block_bytes
    }
}

#[cfg(test)]
mod tests;
