//! Where the arenas of malloc are, found by what they contain: their layout differs between versions, and most programs have no
//! symbols for them.
//!
//! ```text
//! arena   [fastbins: 10 pointers]   up to glibc 2.42
//!         top, last remainder
//!         bins: 127 pairs of pointers; the pair of an empty bin points at itself, less 16 bytes
//!         binmap: 16 bytes
//!         next arena, next free one, attached threads
//!         bytes from the system, the same at most
//! heap    arena, heap before, bytes, accessible bytes, [page size: from 2.35 on]
//! ```

use crate::chunk::{ALIGNMENT, TO_BLOCK};
use crate::window::{Target, copy, word};

const WORD: u64 = 8;
const BINS: u64 = 127;
const BINS_BYTES: u64 = 2 * WORD * BINS;
/// From the bins to what follows them.
const TO_NEXT: u64 = BINS_BYTES + 16;
const TO_ATTACHED: u64 = TO_NEXT + 16;
const TO_SYSTEM: u64 = TO_NEXT + 24;
/// Bytes of an arena from its bins on.
const FROM_BINS: u64 = TO_SYSTEM + 16;
/// The last bins have chunks of more than 512 KiB: not all of them do.
const LEAST_EMPTY: u64 = 1;
const FASTBINS: u64 = 10;
const MOST_ADDRESS: u64 = 1 << 57;
/// Where addresses begin, and numbers of threads end.
const MOST_THREADS: u64 = 1 << 16;

/// One arena's own data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Where its bins are.
    pub bins: u64,
    /// Its topmost chunk.
    pub top: u64,
    /// The next arena, as the ring of them has it.
    pub next: u64,
    /// Threads that allocate from it.
    pub attached_threads: u64,
    /// What it has from the system.
    pub system_bytes: u64,
    /// The first chunk of each fastbin; none where there are no fastbins.
    pub fastbins: Vec<u64>,
}

impl State {
    /// The first arena within a piece of memory.
    pub fn find(memory: &[u8], start: u64) -> Option<Self> {
        let words: Vec<u64> = memory
            .chunks_exact(8)
            .map(|it| u64::from_le_bytes(it.try_into().unwrap_or_default()))
            .collect();
        let bins = (2..words.len()).find(|&at| are_bins(&words, start, at))?;
        let of = |offset: u64| words.get(bins + (offset / WORD) as usize).copied();
        let fastbins = bins.checked_sub(2 + FASTBINS as usize);
        Some(Self {
            bins: start + bins as u64 * WORD,
            top: words[bins - 2],
            next: of(TO_NEXT)?,
            attached_threads: of(TO_ATTACHED)?,
            system_bytes: of(TO_SYSTEM)?,
            fastbins: fastbins
                .map_or(&[][..], |first| &words[first..bins - 2])
                .to_vec(),
        })
    }
}

fn are_bins(words: &[u64], start: u64, at: usize) -> bool {
    let place = start + at as u64 * WORD;
    if at + (FROM_BINS / WORD) as usize > words.len() {
        return false;
    }
    let pairs = words[at..].chunks_exact(2).take(BINS as usize);
    let mut empty = 0;
    for (number, pair) in pairs.enumerate() {
        let itself = place + number as u64 * 2 * WORD - TO_BLOCK;
        match pair {
            [a, b] if *a == itself && *b == itself => empty += 1,
            [a, b] if is_chunk(*a) && is_chunk(*b) => {}
            _ => return false,
        }
    }
    // One pair too early or too late looks the same but for what follows.
    let after = |offset: u64| words[at + (offset / WORD) as usize];
    empty >= LEAST_EMPTY
        && after(TO_NEXT) >= MOST_THREADS
        && after(TO_ATTACHED) < MOST_THREADS
        && after(TO_SYSTEM).is_multiple_of(ALIGNMENT)
        && after(TO_SYSTEM) <= after(TO_SYSTEM + WORD)
}

fn is_chunk(address: u64) -> bool {
    address != 0 && address.is_multiple_of(ALIGNMENT) && address < MOST_ADDRESS
}

/// The head of a heap that an arena other than the main one has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapHead {
    /// Address of its arena.
    pub arena: u64,
    /// Bytes in use of its mapping.
    pub bytes: u64,
    /// First chunk.
    pub first: u64,
    /// The arena, if it lies in this heap.
    pub state: Option<State>,
}

/// Heaps begin at multiples of this, or of a multiple of it.
pub const HEAP_ALIGNMENT: u64 = 64 << 20;
/// What is read of a heap's beginning: its head, and an arena.
const HEAD_BYTES: usize = 4096;
/// What a heap's head takes, up to glibc 2.34 and from then on.
const HEAD_SIZES: [u64; 2] = [32, 48];

impl HeapHead {
    /// What lies at such a multiple; `None` if it is no heap.
    pub fn read(target: &dyn Target, start: u64, end: u64) -> Option<Self> {
        let (arena, before) = (word(target, start)?, word(target, start + 8)?);
        let bytes = word(target, start + 16)?;
        let accessible = word(target, start + 24)?;
        let is_heap = is_chunk(arena)
            && (before == 0 || is_chunk(before) && before.is_multiple_of(HEAP_ALIGNMENT))
            && bytes > 0
            && bytes <= accessible
            && bytes.is_multiple_of(target.page_bytes())
            && bytes <= end.saturating_sub(start);
        if !is_heap {
            return None;
        }
        let head_bytes = match word(target, start + 32)? == target.page_bytes() {
            true => HEAD_SIZES[1],
            false => HEAD_SIZES[0],
        };
        if arena != start + head_bytes {
            let is_elsewhere = !(start..end).contains(&arena);
            return is_elsewhere.then_some(Self {
                arena,
                bytes,
                first: start + head_bytes,
                state: None,
            });
        }
        let state = State::find(&copy(target, arena, HEAD_BYTES), arena)?;
        let after = state.bins + FROM_BINS;
        Some(Self {
            arena,
            bytes,
            first: after.next_multiple_of(ALIGNMENT),
            state: Some(state),
        })
    }
}
