//! One row of chunks that lie back to back.

use crate::chunk::{ALIGNMENT, Header, TO_SIZE};
use crate::window::Window;

/// What a stretch of a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// A block of the program.
    InUse,
    /// Free, in a bin.
    Free,
    /// Free, in the cache of a thread.
    Cached,
    /// Free, in a fastbin.
    Fast,
    /// The free rest at the end of an arena.
    Top,
    /// Malloc's own: fence posts.
    Own,
    /// Not understood.
    Lost,
}

/// A stretch: its state, and its length in units of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch(u32);

const STATE_BITS: u32 = 3;
/// Longer chunks are not understood.
const MOST_BYTES: u64 = (u32::MAX >> STATE_BITS) as u64 * ALIGNMENT;

impl Stretch {
    fn new(state: State, bytes: u64) -> Self {
        // At most MOST_BYTES: it fits.
        Self(((bytes / ALIGNMENT) as u32) << STATE_BITS | state as u32)
    }

    pub fn bytes(self) -> u64 {
        u64::from(self.0 >> STATE_BITS) * ALIGNMENT
    }

    pub fn state(self) -> State {
        match self.0 & ((1 << STATE_BITS) - 1) {
            0 => State::InUse,
            1 => State::Free,
            2 => State::Cached,
            3 => State::Fast,
            4 => State::Top,
            5 => State::Own,
            _ => State::Lost,
        }
    }

    pub fn set_state(&mut self, state: State) {
        *self = Self::new(state, self.bytes());
    }
}

/// How much work there may be in all, whatever the memory contains.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Stretches that are kept.
    pub stretches: usize,
    /// Headers that are looked at in search of a row of chunks.
    pub probes: u64,
}

impl Default for Budget {
    /// 128 MiB of stretches, and some seconds of search.
    fn default() -> Self {
        Self {
            stretches: 32 << 20,
            probes: 1 << 27,
        }
    }
}

/// A heap, or what of the main arena lies in one piece.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Index of its arena.
    pub arena: usize,
    /// First address of its memory; before the first chunk lies what malloc needs itself.
    pub start: u64,
    /// Its first chunk.
    pub first: u64,
    /// First address after it.
    pub end: u64,
    /// From the first chunk to the end, without gaps.
    pub stretches: Vec<Stretch>,
}

impl Segment {
    /// Every stretch with its address.
    pub fn at(&self) -> impl Iterator<Item = (u64, Stretch)> + '_ {
        let mut at = self.first;
        self.stretches.iter().map(move |stretch| {
            let here = at;
            at += stretch.bytes();
            (here, *stretch)
        })
    }
}

/// What there is at an address.
enum Step {
    Chunk { bytes: u64, state: State },
    Top,
    End,
}

/// Walks from the first chunk to the end.
pub struct Walker<'w, 'a> {
    pub window: &'w mut Window<'a>,
    pub budget: &'w mut Budget,
    /// First address after the segment.
    pub end: u64,
    pub is_main: bool,
}

/// So many chunks in a row are no accident.
const ROW: u32 = 8;
/// How often one place is read again before it counts as not understood.
const RETRIES: u32 = 3;

impl Walker<'_, '_> {
    /// All stretches from `first` on. `seen` is called for each chunk in use, with its address and size.
    pub fn walk(mut self, first: u64, seen: &mut dyn FnMut(u64, u64)) -> Vec<Stretch> {
        let mut stretches = Vec::new();
        let mut at = first;
        let mut retries = RETRIES;
        while at < self.end {
            if self.budget.stretches <= 2 {
                push(&mut stretches, State::Lost, self.end - at);
                break;
            }
            let step = self.step(at);
            if step.is_none() && retries > 0 {
                retries -= 1;
                self.window.forget();
                continue;
            }
            retries = RETRIES;
            let (state, bytes) = match step {
                Some(Step::Chunk { bytes, state }) => {
                    if state == State::InUse {
                        seen(at, bytes);
                    }
                    (state, bytes)
                }
                Some(Step::Top) => (State::Top, self.end - at),
                Some(Step::End) => (State::Own, self.end - at),
                None => (State::Lost, self.next_row(at) - at),
            };
            let before = stretches.len();
            push(&mut stretches, state, bytes);
            self.budget.stretches -= (stretches.len() - before).min(self.budget.stretches);
            at += bytes;
        }
        stretches
    }

    fn header(&mut self, at: u64) -> Option<Header> {
        self.window.word(at + TO_SIZE).map(Header)
    }

    /// `None`: not understood.
    fn step(&mut self, at: u64) -> Option<Step> {
        let header = self.header(at)?;
        if header.is_end() && self.end - at <= 2 * ALIGNMENT {
            return Some(Step::End);
        }
        let own = |bytes| Step::Chunk {
            bytes,
            state: State::Own,
        };
        if header.is_fence_post() {
            return Some(own(ALIGNMENT));
        }
        if !header.is_plausible(self.is_main) || header.size() > MOST_BYTES {
            return None;
        }
        let bytes = header.size();
        let next = at.checked_add(bytes)?;
        let is_at_end = next == self.end
            // The heap has grown since its end was read.
            || next > self.end && next.is_multiple_of(self.window.target().page_bytes());
        if is_at_end && header.is_previous_in_use() {
            return Some(Step::Top);
        }
        if next > self.end.checked_sub(ALIGNMENT)? {
            return None;
        }
        let after = self.header(next)?;
        let is_chunk = after.is_plausible(self.is_main) || after.is_fence_post() || after.is_end();
        if !is_chunk {
            return None;
        }
        let state = match after.is_previous_in_use() {
            true => State::InUse,
            // Neighbours that are both free are joined at once, and a free chunk has its size at its end, too.
            false if header.is_previous_in_use() && self.window.word(next)? == bytes => State::Free,
            false => return None,
        };
        Some(Step::Chunk { bytes, state })
    }

    /// Where the next row of chunks begins, or the end.
    fn next_row(&mut self, at: u64) -> u64 {
        let page_bytes = self.window.target().page_bytes();
        let mut candidate = at + ALIGNMENT;
        while candidate < self.end && self.budget.probes > 0 {
            self.budget.probes -= 1;
            match self.header(candidate) {
                // In pages that are not there is no header.
                None => {
                    let next_page = (candidate + TO_SIZE) / page_bytes * page_bytes + page_bytes;
                    // Its last 8 bytes may be the beginning of a chunk of the next page.
                    candidate = (next_page - ALIGNMENT).max(candidate + ALIGNMENT);
                    continue;
                }
                Some(header) if header.is_plausible(self.is_main) && self.is_row(candidate) => {
                    return candidate;
                }
                Some(_) => candidate += ALIGNMENT,
            }
        }
        self.end
    }

    fn is_row(&mut self, first: u64) -> bool {
        let mut at = first;
        for _ in 0..ROW {
            self.budget.probes = self.budget.probes.saturating_sub(1);
            // Words one by one: candidates lead anywhere.
            let Some(header) = self.window.single(at + TO_SIZE).map(Header) else {
                return false;
            };
            if !header.is_plausible(self.is_main) || header.size() > MOST_BYTES {
                return false;
            }
            at += header.size();
            if at == self.end {
                return header.is_previous_in_use();
            }
            if at > self.end - ALIGNMENT {
                return false;
            }
            let Some(after) = self.window.single(at + TO_SIZE).map(Header) else {
                return false;
            };
            if !after.is_previous_in_use() && self.window.single(at) != Some(header.size()) {
                return false;
            }
        }
        true
    }
}

/// Adds a stretch; one that is too long for one of them is several.
fn push(stretches: &mut Vec<Stretch>, state: State, mut bytes: u64) {
    while bytes > 0 {
        let part = bytes.min(MOST_BYTES);
        stretches.push(Stretch::new(state, part));
        bytes -= part;
    }
}
