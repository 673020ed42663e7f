//! What of each page is whose, and which pages `malloc_trim` would return.

use std::ops::{AddAssign, Range};

use crate::chunk::{LEAST_BYTES, OVERHEAD, TO_SIZE};
use crate::heap::Block;
use crate::segment::{Segment, State};

/// Resident bytes of malloc, divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parts {
    /// Blocks of the program, with what their sizes were rounded up by.
    pub in_use: u64,
    /// Headers of these, and malloc's own data.
    pub headers: u64,
    /// Free, in caches of threads.
    pub cached: u64,
    /// Free, in pages that `malloc_trim(0)` returns to the system.
    pub returnable: u64,
    /// Free, at the end of arenas other than the main one, which `malloc_trim` leaves alone.
    pub at_ends: u64,
    /// Free, in pages that blocks of the program lie on, too.
    pub held: u64,
    /// Free, and kept for other reasons: by blocks in caches, and where malloc needs a header.
    pub other_free: u64,
    /// Not understood.
    pub lost: u64,
}

impl Parts {
    /// All of it.
    pub fn sum(&self) -> u64 {
        self.in_use + self.headers + self.lost + self.free()
    }

    /// What is free, in whatever way.
    pub fn free(&self) -> u64 {
        self.cached + self.returnable + self.at_ends + self.held + self.other_free
    }
}

impl AddAssign for Parts {
    fn add_assign(&mut self, other: Self) {
        self.in_use += other.in_use;
        self.headers += other.headers;
        self.cached += other.cached;
        self.returnable += other.returnable;
        self.at_ends += other.at_ends;
        self.held += other.held;
        self.other_free += other.other_free;
        self.lost += other.lost;
    }
}

/// What one block holds back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Holding {
    /// Its share of the free bytes on the pages that it lies on: each page's are divided among the blocks on it.
    pub free_bytes: f64,
    /// The part of that on pages without another block.
    pub alone_bytes: f64,
    /// Its share of these pages.
    pub pages: f64,
}

/// A page of a segment.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    is_resident: bool,
    is_returnable: bool,
    free: u32,
    /// Blocks of the program that lie on it, at least in part.
    blocks: u32,
}

/// The pages of a segment.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    start: u64,
    page_bytes: u64,
    pages: Vec<Page>,
    pub parts: Parts,
}

impl Pages {
    /// `residents` says of every page of the segment whether it is in memory.
    pub fn of(segment: &Segment, is_main: bool, page_bytes: u64, residents: &[bool]) -> Self {
        let start = segment.start / page_bytes * page_bytes;
        let page = |is_resident: &bool| Page {
            is_resident: *is_resident,
            ..Page::default()
        };
        let mut pages = Self {
            start,
            page_bytes,
            pages: residents.iter().map(page).collect(),
            parts: Parts::default(),
        };
        for returned in returned(segment, is_main, page_bytes) {
            let range = pages.index(returned.start)..pages.index(returned.end);
            for page in pages.pages.get_mut(range).into_iter().flatten() {
                page.is_returnable = true;
            }
        }
        pages.divide(segment, is_main);
        pages
    }

    fn index(&self, address: u64) -> usize {
        (address.saturating_sub(self.start) / self.page_bytes) as usize
    }

    /// Calls `each` for the resident pages that a range of addresses lies on, with the bytes of the range on it.
    fn on_pages(&mut self, range: Range<u64>, mut each: impl FnMut(&mut Page, u64)) {
        let mut at = range.start;
        while at < range.end {
            let index = self.index(at);
            let page_end = self.start + (index as u64 + 1) * self.page_bytes;
            let until = range.end.min(page_end);
            if let Some(page) = self.pages.get_mut(index).filter(|it| it.is_resident) {
                each(page, until - at);
            }
            at = until;
        }
    }

    fn divide(&mut self, segment: &Segment, is_main: bool) {
        let mut parts = Parts::default();
        let mut free_at_end = 0;
        self.on_pages(segment.start..segment.first + TO_SIZE, |_, bytes| {
            parts.headers += bytes;
        });
        for (at, stretch) in segment.at() {
            // What lies before its size belongs to the chunk before.
            let begin = at + TO_SIZE;
            let range = begin..(begin + stretch.bytes()).min(segment.end);
            match stretch.state() {
                State::InUse => {
                    let block = (begin + OVERHEAD).min(range.end);
                    self.on_pages(begin..block, |_, bytes| parts.headers += bytes);
                    self.on_pages(block..range.end, |page, bytes| {
                        parts.in_use += bytes;
                        page.blocks += 1;
                    });
                }
                State::Top if !is_main => {
                    self.on_pages(range, |_, bytes| free_at_end += bytes);
                }
                State::Free | State::Fast | State::Top => {
                    self.on_pages(range, |page, bytes| match page.is_returnable {
                        true => parts.returnable += bytes,
                        // A page is smaller than 4 GiB.
                        false => page.free += bytes as u32,
                    });
                }
                State::Cached => self.on_pages(range, |_, bytes| parts.cached += bytes),
                State::Own => self.on_pages(range, |_, bytes| parts.headers += bytes),
                State::Lost => self.on_pages(range, |_, bytes| parts.lost += bytes),
            }
        }
        parts.at_ends = free_at_end;
        for page in &self.pages {
            match page.blocks {
                0 => parts.other_free += u64::from(page.free),
                _ => parts.held += u64::from(page.free),
            }
        }
        self.parts = parts;
    }

    /// What a block in use holds.
    pub fn holding(&mut self, block: &Block) -> Holding {
        let mut holding = Holding::default();
        self.on_pages(block.address..block.address + block.bytes, |page, _| {
            let share = 1.0 / f64::from(page.blocks.max(1));
            let free = f64::from(page.free);
            holding.free_bytes += free * share;
            holding.pages += share;
            if page.blocks == 1 {
                holding.alone_bytes += free;
            }
        });
        holding
    }
}

/// `struct malloc_chunk`: `malloc_trim` leaves so much at the beginning of a free chunk.
const TRIM_LEAVES: u64 = 48;

/// The pages that `malloc_trim(0)` returns, resident or not. It joins the chunks of fastbins with their neighbours first; then
/// it gives up the whole pages within free chunks, and of the main arena those at its end.
fn returned(segment: &Segment, is_main: bool, page_bytes: u64) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    let mut run: Option<Range<u64>> = None;
    let inside = |run: Range<u64>| {
        let start = (run.start + TRIM_LEAVES).next_multiple_of(page_bytes);
        let bytes = run.end.saturating_sub(start) / page_bytes * page_bytes;
        (bytes > 0).then(|| start..start + bytes)
    };
    for (at, stretch) in segment.at() {
        let end = at + stretch.bytes();
        match stretch.state() {
            State::Free | State::Fast => {
                run = Some(run.map_or(at, |run| run.start)..end);
            }
            State::Top => {
                let start = run.take().map_or(at, |run| run.start);
                let spare = (end - start).saturating_sub(LEAST_BYTES + 1);
                let bytes = spare / page_bytes * page_bytes;
                if is_main && bytes > 0 {
                    ranges.push(end - bytes..end);
                }
            }
            _ => ranges.extend(run.take().and_then(inside)),
        }
    }
    ranges.extend(run.and_then(inside));
    ranges
}
