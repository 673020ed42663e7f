//! Heaps made for the purpose, laid out as glibc does; and the same with words overwritten.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::chunk::{OVERHEAD, TO_BLOCK};
use crate::segment::Budget;
use crate::{Heap, Mapping, Parts, Target};

pub(crate) const PAGE: u64 = 4096;
const LIBC: u64 = 0x7f00_0000_0000;
const BRK: u64 = 0x5500_0000_0000;
/// From the start of libc's data.
const BINS_AT: u64 = 0x500;

/// Memory in a few pieces, with pages that are not resident.
#[derive(Clone, Default)]
pub(crate) struct Fake {
    pub pieces: BTreeMap<u64, Vec<u8>>,
    pub absent: Vec<u64>,
}

impl Fake {
    pub fn put(&mut self, address: u64, word: u64) {
        let (start, bytes) = self
            .pieces
            .range_mut(..=address)
            .next_back()
            .expect("a piece");
        let at = (address - start) as usize;
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    pub fn mappings(&self) -> Vec<Mapping> {
        let name = |start| match start {
            LIBC => "/lib/libc.so.6",
            BRK => "[heap]",
            _ => "",
        };
        let mapping = |(&start, bytes): (&u64, &Vec<u8>)| Mapping {
            start,
            end: start + bytes.len() as u64,
            name: name(start).to_owned(),
        };
        self.pieces.iter().map(mapping).collect()
    }

    fn resident_bytes(&self, start: u64) -> u64 {
        let pages = self.pieces[&start].len() as u64 / PAGE;
        let absent = self
            .absent
            .iter()
            .filter(|page| (start..start + pages * PAGE).contains(page));
        (pages - absent.count() as u64) * PAGE
    }
}

impl Target for Fake {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let Some((start, bytes)) = self.pieces.range(..=address).next_back() else {
            return 0;
        };
        let from = bytes.get((address - start) as usize..).unwrap_or_default();
        let length = from.len().min(into.len());
        into[..length].copy_from_slice(&from[..length]);
        length
    }

    fn residents(&self, start: u64, count: usize) -> Vec<bool> {
        let is_resident = |page: u64| {
            let piece = self.pieces.range(..=page).next_back();
            piece.is_some_and(|(start, bytes)| page < start + bytes.len() as u64)
                && !self.absent.contains(&page)
        };
        (0..count as u64)
            .map(|page| is_resident(start + page * PAGE))
            .collect()
    }

    fn page_bytes(&self) -> u64 {
        PAGE
    }
}

/// What a chunk shall be, with its size in units of 16 bytes.
type Chunk = (u16, u8);

#[derive(Default)]
struct Expected {
    in_use: u64,
    free: u64,
    fast: u64,
    cached: u64,
    blocks: Vec<u64>,
}

const FREE: u8 = 0;
const FAST: u8 = 1;
const CACHED: u8 = 2;

/// The main arena on a heap with these chunks, and a rest at its end.
fn heap(chunks: &[Chunk]) -> (Fake, Expected) {
    let mut sizes: Vec<(u64, u8)> = vec![(0x290, u8::MAX)];
    for &(units, kind) in chunks {
        let was_free = sizes.last().is_some_and(|it| it.1 == FREE);
        let kind = if was_free && kind == FREE {
            u8::MAX
        } else {
            kind
        };
        let most = match kind {
            FAST => 8,
            CACHED => 64,
            _ => 4096,
        };
        sizes.push(((2 + u64::from(units) % most) * 16, kind));
    }
    // A free chunk before the rest is a part of it.
    if sizes.last().is_some_and(|it| it.1 == FREE) {
        sizes.push((32, u8::MAX));
    }
    let used: u64 = sizes.iter().map(|it| it.0).sum();
    let end = (BRK + used + 64).next_multiple_of(PAGE);
    let mut fake = Fake::default();
    fake.pieces.insert(BRK, vec![0; (end - BRK) as usize]);
    fake.pieces.insert(LIBC, vec![0; PAGE as usize]);
    let bins = LIBC + BINS_AT;
    for word in 0..254 {
        fake.put(bins + word * 8, bins + word / 2 * 16 - TO_BLOCK);
    }
    let mut expected = Expected::default();
    let (mut at, mut before) = (BRK, u8::MAX);
    let mut heads = [0; 64];
    let mut fastbins = [0; 10];
    for (size, kind) in sizes {
        fake.put(at + 8, size | u64::from(before != FREE));
        let block = at + TO_BLOCK;
        match kind {
            FREE => {
                fake.put(at + size, size);
                expected.free += size;
            }
            FAST => {
                let bin = (size / 16 - 2) as usize;
                fake.put(block, fastbins[bin] ^ (block >> 12));
                fastbins[bin] = at;
                expected.fast += size;
            }
            CACHED => {
                let list = (size / 16 - 2) as usize;
                fake.put(block, heads[list] ^ (block >> 12));
                heads[list] = block;
                expected.cached += size;
            }
            _ => {
                expected.in_use += size;
                expected.blocks.push(block);
            }
        }
        (at, before) = (at + size, kind);
    }
    fake.put(at + 8, (end - at) | u64::from(before != FREE));
    for (list, head) in heads.into_iter().enumerate() {
        fake.put(BRK + TO_BLOCK + 128 + list as u64 * 8, head);
    }
    for (bin, head) in fastbins.into_iter().enumerate() {
        fake.put(bins - 16 - 80 + bin as u64 * 8, head);
    }
    let after = [at, 0];
    for (word, value) in after.into_iter().enumerate() {
        fake.put(bins - 16 + word as u64 * 8, value);
    }
    let arena = bins - 112;
    for (word, value) in [arena, 0, 1, end - BRK, end - BRK].into_iter().enumerate() {
        fake.put(bins + 254 * 8 + 16 + word as u64 * 8, value);
    }
    (fake, expected)
}

fn chunks() -> impl Strategy<Value = Vec<Chunk>> {
    proptest::collection::vec((0..600_u16, 0..6_u8), 1..120)
}

/// The sum of free bytes on pages with blocks, by the definition: page by page, byte by byte.
fn held_by_definition(fake: &Fake, heap: &Heap) -> u64 {
    let end = BRK + fake.pieces[&BRK].len() as u64;
    let (mut free, mut blocks) = (BTreeMap::new(), BTreeMap::new());
    for (segment_start, at, stretch) in heap.every_stretch() {
        assert_eq!(segment_start, BRK);
        for byte in at + 8..(at + 8 + stretch.bytes()).min(end) {
            use crate::segment::State::{Free, InUse, Top};
            let page = byte / PAGE;
            match stretch.state() {
                Free | Top | crate::segment::State::Fast => *free.entry(page).or_insert(0) += 1,
                InUse if byte >= at + TO_BLOCK => *blocks.entry(page).or_insert(0) += 1,
                _ => {}
            }
        }
    }
    let is_held = |page: &u64| blocks.contains_key(page) && !fake.absent.contains(&(page * PAGE));
    free.iter()
        .filter(|(page, _)| is_held(page))
        .map(|(_, bytes)| bytes)
        .sum()
}

proptest! {
    #[test]
    fn every_chunk_is_found(chunks in chunks()) {
        let (fake, expected) = heap(&chunks);
        let heap = Heap::walk(&fake, &fake.mappings()).expect("an arena");
        let sizes = heap.sizes();
        prop_assert_eq!(sizes.lost, 0);
        let found = (sizes.in_use, sizes.free, sizes.fast, sizes.cached);
        let made = (expected.in_use, expected.free, expected.fast, expected.cached);
        prop_assert_eq!(found, made);
        prop_assert_eq!(heap.parts().sum(), fake.resident_bytes(BRK));
    }

    #[test]
    fn what_blocks_hold_is_all_that_is_held(chunks in chunks()) {
        let (fake, expected) = heap(&chunks);
        let mut heap = Heap::walk(&fake, &fake.mappings()).expect("an arena");
        prop_assert_eq!(heap.parts().held, held_by_definition(&fake, &heap));
        let holdings = heap.holdings(&expected.blocks);
        let mut free_bytes = 0.0;
        for (block, holding) in holdings.into_iter().map(|it| it.expect("a block")) {
            prop_assert!(block.bytes >= 24);
            prop_assert!(holding.alone_bytes <= holding.free_bytes + 1e-9);
            free_bytes += holding.free_bytes;
        }
        prop_assert!((free_bytes - heap.parts().held as f64).abs() < 1e-3);
        // Between blocks there is none.
        let between: Vec<u64> = expected.blocks.iter().map(|it| it + OVERHEAD).collect();
        prop_assert!(heap.holdings(&between).iter().all(Option::is_none));
    }

    /// Whatever stands in the words: a reading ends, and accounts for every resident byte.
    #[test]
    fn a_damaged_heap_is_accounted_for(
        chunks in chunks(),
        damage in proptest::collection::vec((any::<bool>(), any::<u32>(), 0..8_u8, any::<u64>()), 1..60),
        absent in proptest::collection::vec(any::<u16>(), 0..6),
    ) {
        let (mut fake, _) = heap(&chunks);
        let length = fake.pieces[&BRK].len() as u64;
        for (is_in_heap, place, kind, random) in damage {
            let (start, length) = if is_in_heap { (BRK, length) } else { (LIBC, PAGE) };
            let address = start + u64::from(place) % (length / 8) * 8;
            let value = match kind {
                0 => 0,
                1 => 1,
                2 => 0x11,
                3 => 0x21 + random % 4096 * 16,
                4 => BRK + random % length / 16 * 16,
                5 => LIBC + random % PAGE / 8 * 8,
                6 => u64::MAX - random % 64,
                _ => random,
            };
            fake.put(address, value);
        }
        fake.absent = absent.iter().map(|it| BRK + u64::from(*it) % (length / PAGE) * PAGE).collect();
        fake.absent.sort_unstable();
        fake.absent.dedup();
        for budget in [Budget::default(), Budget { stretches: 50, probes: 100 }] {
            if let Some(heap) = Heap::walk_within(&fake, &fake.mappings(), budget) {
                prop_assert_eq!(heap.parts().sum(), fake.resident_bytes(BRK));
                prop_assert_eq!(heap.every_stretch().map(|it| it.2.bytes()).sum::<u64>(), length);
            }
        }
    }

    #[test]
    fn bytes_at_random_are_no_arena(words in proptest::collection::vec(any::<u64>(), 1024)) {
        let mut fake = Fake::default();
        let bytes: Vec<u8> = words.iter().flat_map(|it| it.to_le_bytes()).collect();
        fake.pieces.insert(LIBC, bytes.clone());
        fake.pieces.insert(BRK, bytes.clone());
        fake.pieces.insert(1 << 30, bytes);
        prop_assert!(Heap::walk(&fake, &fake.mappings()).is_none());
    }
}

/// A header that is overwritten costs its own chunk and the one before, and not the rest of the heap.
#[test]
fn the_walk_goes_on_behind_damage() {
    let chunks: Vec<Chunk> = (0..2000).map(|_| (4, u8::MAX)).collect();
    let (mut fake, expected) = heap(&chunks);
    let victim = expected.blocks[1000];
    fake.put(victim - 8, 0xdead_beef_dead_beef);
    let heap = Heap::walk(&fake, &fake.mappings()).expect("an arena");
    assert_eq!(heap.sizes().lost, 2 * 96);
    assert_eq!(heap.sizes().in_use, expected.in_use - 2 * 96);
}

#[test]
fn pages_that_malloc_trim_would_return() {
    // A block, ten pages free, a block.
    let pages = |count: u16| count * 256;
    let chunks = [(0, u8::MAX), (pages(10), FREE), (0, u8::MAX)];
    let (mut fake, _) = heap(&chunks);
    let parts = |fake: &Fake| {
        Heap::walk(fake, &fake.mappings())
            .expect("an arena")
            .parts()
    };
    let Parts {
        returnable, held, ..
    } = parts(&fake);
    assert_eq!(returnable, 9 * PAGE);
    assert_eq!(
        held,
        (2 + 10 * 256) * 16 - 9 * PAGE + 64_u64.next_multiple_of(16) + rest(&chunks)
    );
    // What is not in memory cannot be returned.
    fake.absent = vec![BRK + 2 * PAGE, BRK + 3 * PAGE];
    assert_eq!(parts(&fake).returnable, 7 * PAGE);
}

/// What the end of the heap has beyond the 64 bytes that [`heap`] leaves, less the 8 that belong to the next chunk.
fn rest(chunks: &[Chunk]) -> u64 {
    let used = 0x290
        + chunks
            .iter()
            .map(|it| (2 + u64::from(it.0)) * 16)
            .sum::<u64>();
    (used + 64).next_multiple_of(PAGE) - used - 64 - 8
}
