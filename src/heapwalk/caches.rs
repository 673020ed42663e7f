//! Chunks that are free although their successors say that they are in use: in thread caches and in fastbins.

use crate::chunk::{ALIGNMENT, Header, LEAST_BYTES, TO_BLOCK, TO_SIZE};
use crate::window::{Target, Window, copy, word};

/// Caches of a thread, by version: bytes of their chunk, of their counters, and number of their lists.
const LAYOUTS: [Layout; 3] = [
    // glibc 2.26 to 2.29, 2.30 to 2.41, and from 2.42 on.
    Layout {
        chunk_bytes: 0x250,
        counters: 64,
        lists: 64,
    },
    Layout {
        chunk_bytes: 0x290,
        counters: 128,
        lists: 64,
    },
    Layout {
        chunk_bytes: 0x300,
        counters: 152,
        lists: 76,
    },
];

#[derive(Clone, Copy, Debug)]
struct Layout {
    chunk_bytes: u64,
    counters: usize,
    lists: usize,
}

impl Layout {
    /// glibc 2.42 rounds its size up twice, and a rest too small for a chunk of its own stays with the chunk.
    fn has_size(self, bytes: u64) -> bool {
        (self.chunk_bytes..=self.chunk_bytes + 2 * ALIGNMENT).contains(&bytes)
    }
}

/// Lists with chunks of one size: those beyond have chunks of several.
const EXACT_LISTS: usize = 64;
/// No list is longer: the largest `glibc.malloc.tcache_count`.
const MOST_IN_LIST: usize = 65_535;
/// A fastbin has no limit; neither has a faulty one.
const MOST_IN_FASTBIN: usize = 4 << 20;
/// Of all lists together.
const MOST_IN_ALL: usize = 8 << 20;

/// Whether a chunk in use of this size may be the cache of a thread.
pub fn may_be_cache(bytes: u64) -> bool {
    LAYOUTS.iter().any(|it| it.has_size(bytes))
}

/// What was found in lists, by address, in order.
#[derive(Debug, Default)]
pub struct Cached {
    pub in_thread_caches: Vec<u64>,
    pub in_fastbins: Vec<u64>,
    /// Whether a list did not end.
    pub is_cut_short: bool,
}

impl Cached {
    /// From the chunks that may be caches of threads, and the fastbins of all arenas.
    pub fn read(target: &dyn Target, candidates: &[(u64, u64)], fastbins: &[Vec<u64>]) -> Self {
        let mut lists = Lists {
            target,
            window: Window::new(target),
            found: Self::default(),
        };
        for &(chunk, bytes) in candidates {
            lists.thread_cache(chunk, bytes);
        }
        for bins in fastbins {
            lists.fastbins(bins);
        }
        let mut found = lists.found;
        for addresses in [&mut found.in_thread_caches, &mut found.in_fastbins] {
            addresses.sort_unstable();
            addresses.dedup();
        }
        found
    }

    fn len(&self) -> usize {
        self.in_thread_caches.len() + self.in_fastbins.len()
    }
}

struct Lists<'a> {
    target: &'a dyn Target,
    window: Window<'a>,
    found: Cached,
}

impl Lists<'_> {
    /// Adds what a thread has in its cache, if the chunk is one: the first entry of every list is a block of the list's size.
    fn thread_cache(&mut self, chunk: u64, bytes: u64) -> Option<()> {
        let layout = LAYOUTS.into_iter().find(|it| it.has_size(bytes))?;
        let length = layout.counters + 8 * layout.lists;
        let memory = copy(self.target, chunk + TO_BLOCK, length);
        let heads: Vec<u64> = (memory.get(layout.counters..)?.chunks_exact(8))
            .map(|it| u64::from_le_bytes(it.try_into().unwrap_or_default()))
            .collect();
        let of_list = |list: usize| match list < EXACT_LISTS {
            true => Some(LEAST_BYTES + ALIGNMENT * list as u64),
            false => None,
        };
        let is_cache = heads.iter().enumerate().all(|(list, &block)| {
            block == 0 || self.has_size(block.wrapping_sub(TO_BLOCK), of_list(list))
        });
        if !is_cache {
            return None;
        }
        for (list, &block) in heads.iter().enumerate() {
            let mut next = block;
            for _ in 0..MOST_IN_LIST {
                let chunk = next.wrapping_sub(TO_BLOCK);
                if next == 0 || !self.has_size(chunk, of_list(list)) || self.is_full() {
                    break;
                }
                self.found.in_thread_caches.push(chunk);
                next = self.follow(next)?;
            }
        }
        Some(())
    }

    fn fastbins(&mut self, bins: &[u64]) {
        for (bin, &first) in bins.iter().enumerate() {
            let bytes = LEAST_BYTES + ALIGNMENT * bin as u64;
            let mut next = first;
            let mut count = 0;
            while next != 0 && self.has_size(next, Some(bytes)) && !self.is_full() {
                self.found.in_fastbins.push(next);
                count += 1;
                if count >= MOST_IN_FASTBIN {
                    self.found.is_cut_short = true;
                    break;
                }
                next = self.follow(next + TO_BLOCK).unwrap_or(0);
            }
        }
    }

    fn is_full(&mut self) -> bool {
        let is_full = self.found.len() >= MOST_IN_ALL;
        self.found.is_cut_short |= is_full;
        is_full
    }

    fn has_size(&mut self, chunk: u64, bytes: Option<u64>) -> bool {
        let is_aligned = chunk != 0 && chunk.is_multiple_of(ALIGNMENT);
        let header = is_aligned.then(|| self.window.single(chunk.wrapping_add(TO_SIZE)));
        header.flatten().map(Header).is_some_and(|header| {
            header.is_plausible(false) && bytes.is_none_or(|bytes| header.size() == bytes)
        })
    }

    /// The link at an address. From glibc 2.32 on it is mangled with its own address. In fastbins a link leads to a chunk, in
    /// thread caches to a block; both are multiples of 16, and a mangled one is so by chance only.
    fn follow(&mut self, address: u64) -> Option<u64> {
        let link = self
            .window
            .single(address)
            .or_else(|| word(self.target, address))?;
        let plain = link ^ (address >> 12);
        let is_readable = |at: u64| at == 0 || word(self.target, at).is_some();
        let mut both = [plain, link].into_iter();
        both.find(|it| it.is_multiple_of(ALIGNMENT) && is_readable(*it))
    }
}
