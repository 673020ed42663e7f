//! Memory laid out as the allocators do it, the same with one thing wrong, and memory of others.

use proptest::prelude::*;

use super::{Content, Contents, Known, Limits};
use crate::Process;
use crate::tests::{Fake, PAGE};

const START: u64 = 0x7e00_0000_0000;
const KIB: u64 = 1 << 10;

/// One mapping of that many pages.
fn mapping(pages: u64) -> Fake {
    let mut fake = Fake::default();
    let bytes = vec![0; usize::try_from(pages * PAGE).expect("small")];
    fake.pieces.insert(START, bytes);
    fake
}

fn found(fake: &Fake) -> Vec<Known> {
    Contents::find(fake, &fake.mappings(), &[]).known
}

/// Ranges by their content, in pages from the start on.
fn pages(known: &[Known], content: Content) -> Vec<(u64, u64)> {
    let of_content = known.iter().filter(|it| it.content == content);
    let page = |address: u64| (address - START) / PAGE;
    of_content
        .map(|it| (page(it.start), page(it.end)))
        .collect()
}

fn put_block(fake: &mut Fake, page: u64, before: u64, bytes: u64) {
    let header = START + page * PAGE + before;
    fake.put(header, before);
    fake.put(header + 8, (bytes - before) | 2);
}

#[test]
fn blocks_side_by_side_are_known_one_by_one() {
    let mut fake = mapping(200);
    put_block(&mut fake, 0, 0, 256 * KIB);
    put_block(&mut fake, 64, 0, 132 * KIB);
    // Memory of others, a block behind it, and a small one at the very end.
    fake.put(START + 100 * PAGE, 7);
    put_block(&mut fake, 120, 0, 79 * PAGE);
    put_block(&mut fake, 199, 0, PAGE);
    // Of the first one the program has not touched everything.
    fake.absent = vec![START + 3 * PAGE, START + 4 * PAGE];
    let known = found(&fake);
    let expected = [(0, 64), (64, 97), (120, 199), (199, 200)];
    assert_eq!(pages(&known, Content::MallocBlock), expected);
    assert_eq!(known[0].resident_bytes, 62 * PAGE);
    assert_eq!(known[1].resident_bytes, 33 * PAGE);
    assert_eq!(known[1].live_bytes, 33 * PAGE - 16);
}

#[test]
fn aligned_blocks_are_known_from_the_start_of_their_pages() {
    for alignment in [32, 64, 256, 2048, 4096, 16_384, 2 << 20] {
        let mut fake = mapping(1200);
        // The first place with this alignment that leaves room for a chunk before the header.
        let least = START + 48;
        let before = least.next_multiple_of(alignment) - 16 - START;
        put_block(&mut fake, 0, before, 1000 * PAGE);
        let known = found(&fake);
        let expected = [(0, 1000)];
        assert_eq!(pages(&known, Content::MallocBlock), expected, "{alignment}");
    }
}

#[test]
fn a_walked_range_is_left_out() {
    let mut fake = mapping(100);
    put_block(&mut fake, 0, 0, 50 * PAGE);
    put_block(&mut fake, 50, 0, 50 * PAGE);
    let walked = START..START + 50 * PAGE;
    let known = Contents::find(&fake, &fake.mappings(), &[walked]).known;
    assert_eq!(pages(&known, Content::MallocBlock), [(50, 100)]);
}

/// A pool with so many of its blocks in use, of those that were at some time.
#[derive(Clone, Copy, Debug)]
struct Pool {
    bytes: u64,
    block_bytes: u64,
    step: u64,
    used: u64,
    count: u64,
}

impl Pool {
    fn words(&self, at: u64, arena: u64) -> [u64; 6] {
        let capacity = (self.bytes - 48) / self.block_bytes;
        let is_full = self.count == capacity;
        let used = if is_full { capacity } else { self.used };
        let free = match is_full {
            true => 0,
            false => at + 48 + (used - 1) * self.block_bytes,
        };
        let class = self.block_bytes / self.step - 1;
        let last = self.bytes - self.block_bytes;
        [
            self.count,
            free,
            at + self.bytes,
            0,
            arena | class << 32,
            (48 + used * self.block_bytes) | last << 32,
        ]
    }
}

fn put_pool(fake: &mut Fake, at: u64, words: [u64; 6]) {
    for (word, place) in words.into_iter().zip((at..).step_by(8)) {
        fake.put(place, word);
    }
}

fn any_pool() -> impl Strategy<Value = Pool> {
    let sizes = prop::sample::select(vec![4096_u64, 16_384]);
    (sizes, any::<bool>(), 0..64_u64, any::<u64>(), any::<u64>()).prop_map(
        |(bytes, is_old, class, used, count)| {
            let (step, classes) = if is_old { (8, 64) } else { (16, 32) };
            let block_bytes = (class % classes + 1) * step;
            let capacity = (bytes - 48) / block_bytes;
            let used = 2 + used % (capacity - 1);
            let count = match count % 4 {
                0 => capacity,
                _ => count % used,
            };
            Pool {
                bytes,
                block_bytes,
                step,
                used,
                count,
            }
        },
    )
}

#[test]
fn a_pool_that_is_not_in_use_yet_belongs_to_its_arena() {
    let pool = Pool {
        bytes: 4096,
        block_bytes: 32,
        step: 16,
        used: 100,
        count: 90,
    };
    let mut fake = mapping(200);
    for page in 10..20 {
        let at = START + page * PAGE;
        put_pool(&mut fake, at, pool.words(at, 5));
    }
    // Others have written there.
    fake.put(START + 40 * PAGE + 100 * 8, 1);
    let known = found(&fake);
    let of_python = pages(&known, Content::PythonPool);
    let single = (10..19).map(|page| (page, page + 1));
    // With what follows until the end of the arena, but for the page of others.
    let expected: Vec<_> = single.chain([(19, 40), (41, 74)]).collect();
    let live: u64 = known.iter().map(|it| it.live_bytes).sum();
    let resident: u64 = known.iter().map(|it| it.resident_bytes).sum();
    assert_eq!((live, resident), (10 * 90 * 32, 63 * PAGE));
    let sum = |ranges: &[(u64, u64)]| ranges.iter().map(|(a, b)| b - a).sum::<u64>();
    assert_eq!(sum(&of_python), sum(&expected));
    assert!(
        of_python.iter().all(|&(a, b)| b <= 40 || a >= 41),
        "{of_python:?}"
    );
}

#[test]
fn what_is_looked_at_has_a_limit() {
    let mut fake = mapping(1000);
    for number in 0..10 {
        put_block(&mut fake, number * 100, 0, 100 * PAGE);
    }
    let all = Contents::find(&fake, &fake.mappings(), &[]);
    assert_eq!((all.known.len(), all.is_cut_short), (10, false));
    let limits = Limits::default();
    for limits in [
        Limits {
            resident_pages: 3,
            ..limits
        },
        Limits { known: 3, ..limits },
        Limits {
            pages: 303,
            ..limits
        },
    ] {
        let some = Contents::find_within(&fake, &fake.mappings(), &[], limits);
        assert_eq!(
            (some.known.len(), some.is_cut_short),
            (3, true),
            "{limits:?}"
        );
    }
}

/// This test's own malloc is glibc's.
#[test]
fn a_large_block_of_this_process_is_known() {
    const BYTES: usize = 5 << 20;
    let block = std::hint::black_box(vec![1_u8; BYTES]);
    let address = block.as_ptr() as u64;
    let process = Process::open(std::process::id(), PAGE).expect("this process");
    let contents = process.contents(None).expect("mappings");
    drop(block);
    let known = contents.known.iter();
    let mut around = known.filter(|it| (it.start..it.end).contains(&address));
    let known = around.next().expect("the block");
    assert_eq!(
        (known.start + 16, known.content),
        (address, Content::MallocBlock)
    );
    assert_eq!(
        known.resident_bytes,
        (BYTES as u64 + 16).next_multiple_of(PAGE)
    );
}

proptest! {
    #[test]
    fn every_pool_is_known_with_its_blocks(
        pools in prop::collection::vec(any_pool(), 1..20),
        arena in 0..1000_u64,
    ) {
        let mut fake = mapping(4 * pools.len() as u64);
        let mut live = 0;
        let mut bytes = 0;
        for (number, pool) in pools.iter().enumerate() {
            let at = START + number as u64 * 4 * PAGE;
            // Each is in an arena of its own, and what is behind it is not empty.
            put_pool(&mut fake, at, pool.words(at, arena + number as u64));
            for page in pool.bytes / PAGE..4 {
                fake.put(at + page * PAGE, 1);
            }
            live += pool.count * pool.block_bytes;
            bytes += pool.bytes;
        }
        let known = found(&fake);
        prop_assert!(known.iter().all(|it| it.content == Content::PythonPool));
        prop_assert_eq!(known.iter().map(|it| it.live_bytes).sum::<u64>(), live);
        prop_assert_eq!(known.iter().map(|it| it.end - it.start).sum::<u64>(), bytes);
        prop_assert_eq!(known.iter().map(|it| it.resident_bytes).sum::<u64>(), bytes);
    }

    /// One thing is wrong with it.
    #[test]
    fn what_is_almost_a_pool_is_not_known(pool in any_pool(), what in 0..12_usize, by in 1..1000_u64) {
        let at = START;
        let mut words = pool.words(at, 3);
        let is_full = words[1] == 0;
        match what {
            // More in use than there are blocks, or than were in use.
            0 => words[0] += pool.bytes,
            // The upper half.
            1 => words[0] |= by << 32,
            // A free block of another pool, of none, or none at all.
            2 => words[1] = at + 2 * pool.bytes + by * 16,
            3 => words[1] = if is_full { at + 48 } else { 0 },
            4 => words[1] = if is_full { 1 } else { words[1] + 1 },
            // Pointers to nowhere.
            5 => words[2] |= 1 << 60,
            6 => words[3] = by | 1,
            // Another class or another size of pools.
            7 => words[4] += by << 32,
            8 => words[5] ^= by << 32,
            // No place of a block.
            9 => words[5] += 1,
            10 => words[5] = (words[5] >> 32) << 32 | 48,
            // It was copied from elsewhere; only a full one does not show that.
            _ => words[1] = if is_full { 8 } else { words[1] - 4 * pool.bytes },
        }
        // Another class or another last place may be those of a pool of another version.
        let (class, last) = (words[4] >> 32, words[5] >> 32);
        let is_of_another_version = [4096, 16_384].iter().any(|bytes| {
            let is_last = |step| last + step * (class + 1) == *bytes;
            is_last(8) || is_last(16)
        });
        prop_assume!(!matches!(what, 7 | 8) || !is_of_another_version);
        let mut fake = mapping(4);
        put_pool(&mut fake, at, words);
        prop_assert_eq!(found(&fake), []);
    }

    #[test]
    fn what_is_almost_a_block_is_not_known(
        size in 33..200_u64,
        what in 0..6_usize,
        by in 1..4000_u64,
    ) {
        let mut fake = mapping(200);
        let (mut before, mut word) = (0, (size * PAGE) | 2);
        match what {
            // Too long.
            0 => word += (200 - size + by) * PAGE,
            // No whole pages.
            1 => word += by.next_multiple_of(16) % PAGE + 16,
            // In an arena, with other flags.
            2 => word ^= 2,
            3 => word |= [1, 4, 5][by as usize % 3],
            // Another place than it says.
            4 => before = by,
            // Small, and something else is behind it.
            _ => {
                word = (31 * PAGE) | 2;
                fake.put(START + 31 * PAGE, by);
            }
        }
        fake.put(START, before);
        fake.put(START + 8, word);
        prop_assert_eq!(found(&fake), []);
    }

    /// A program that maps memory itself may have anything in it: most often small numbers, lengths, and addresses nearby.
    #[test]
    fn memory_of_others_is_not_known(
        words in prop::collection::vec(
            prop_oneof![
                any::<u64>(),
                0..300_u64,
                (0..64_u64).prop_map(|it| it * 16),
                (0..64_u64).prop_map(|it| it * PAGE),
                (0..64 * 512_u64).prop_map(|it| START + it * 8),
                (0..64_u64, 0..4096_u64).prop_map(|(high, low)| high << 32 | low),
            ],
            64 * 8,
        ),
    ) {
        let mut fake = mapping(64);
        for (words, page) in words.chunks(8).zip(0..) {
            for (word, place) in words.iter().zip(0..) {
                fake.put(START + page * PAGE + place * 8, *word);
            }
        }
        prop_assert_eq!(found(&fake), []);
    }

    #[test]
    fn blocks_pools_and_others_are_told_apart(
        kinds in prop::collection::vec((0..3_u8, 32..80_u64, any_pool()), 1..12),
    ) {
        let mut fake = mapping(1200);
        let (mut page, mut blocks, mut pools) = (0, vec![], vec![]);
        for (number, (kind, length, pool)) in kinds.into_iter().enumerate() {
            match kind {
                0 => {
                    put_block(&mut fake, page, 0, length * PAGE);
                    blocks.push((page, page + length));
                    page += length;
                }
                1 => {
                    page = page.next_multiple_of(4);
                    let at = START + page * PAGE;
                    put_pool(&mut fake, at, pool.words(at, number as u64));
                    pools.push((page, page + pool.bytes / PAGE));
                    page += pool.bytes / PAGE;
                }
                _ => {
                    for other in page..page + 66 {
                        fake.put(START + other * PAGE + 24, u64::MAX);
                    }
                    page += 66;
                }
            }
        }
        let known = found(&fake);
        prop_assert_eq!(pages(&known, Content::MallocBlock), blocks);
        // Pools without live blocks are joined, and empty pages behind the last one are of its arena.
        let of_python = self::pages(&known, Content::PythonPool);
        for (start, end) in pools {
            let is_within = |range: &(u64, u64)| range.0 <= start && end <= range.1;
            prop_assert!(of_python.iter().any(is_within), "{} of {:?}", start, of_python);
        }
    }
}
