//! Programs of which everything is known.

use allocsample_sampling::Random;

/// The interval without budgets, and the shortest with them.
pub const INTERVAL: u64 = 16 << 10;
/// Sites that are judged.
pub const SITES: usize = 3;
/// What the rest of the program allocates, where there is a rest.
pub const REST: usize = SITES;

/// One block.
#[derive(Clone, Copy)]
pub struct Block {
    pub site: usize,
    pub size: u64,
    pub time_ns: u64,
    pub freed_ns: Option<u64>,
}

impl Block {
    pub fn is_live_at(&self, time_ns: u64) -> bool {
        self.time_ns <= time_ns && self.freed_ns.is_none_or(|freed_ns| freed_ns > time_ns)
    }
}

/// Bytes, and number.
pub fn sums<'a>(blocks: impl Iterator<Item = &'a Block>) -> (f64, f64) {
    blocks.fold((0.0, 0.0), |sum, block| {
        (sum.0 + block.size as f64, sum.1 + 1.0)
    })
}

/// Site 0 has blocks of 48 bytes, site 1 of 8 bytes to 32 KiB (each octave as many bytes), site 2 blocks of 64 bytes and
/// a few of twenty intervals. Each has `samples` expected samples at [`INTERVAL`], in random order. The rest of the program
/// has blocks of 8 KiB with `rest` expected samples, four in five of them in the second and the last quarter of the run. A
/// fifth of all is never freed.
pub fn program(samples: f64, rest: f64, random: &mut Random) -> Vec<Block> {
    let bytes = (samples * INTERVAL as f64) as u64;
    let mut sizes: Vec<(f64, usize, u64)> = Vec::new();
    let mut fill = |site: usize, bytes: u64, random: &mut Random, next: fn(&mut Random) -> u64| {
        let mut sum = 0;
        while sum < bytes {
            let size = next(random);
            sum += size;
            let mut place = random.unit();
            if site == REST && random.below(5) < 3 {
                // From an even quarter into the odd one behind it.
                let quarter = (place * 4.0).floor();
                place += if quarter % 2.0 == 0.0 { 0.25 } else { 0.0 };
            }
            sizes.push((place, site, size));
        }
    };
    fill(0, bytes, random, |_| 48);
    // As many bytes in each octave: sizes as 1/size.
    fill(1, bytes, random, |random| {
        (8.0 / (1.0 - random.unit() * (1.0 - 1.0 / 4096.0))) as u64
    });
    fill(2, bytes, random, |_| 64);
    fill(2, 20 * INTERVAL, random, |_| 20 * INTERVAL);
    fill(REST, (rest * INTERVAL as f64) as u64, random, |_| 8 << 10);
    sizes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let count = sizes.len() as f64;
    let blocks = (1_u64..).zip(sizes).map(|(number, (_, site, size))| {
        let time_ns = number * 10;
        let lifetime = -(count / 5.0) * 10.0 * random.unit().ln();
        let is_kept = random.below(5) == 0;
        let freed_ns = time_ns + 1 + lifetime as u64;
        Block {
            site,
            size,
            time_ns,
            freed_ns: (!is_kept && freed_ns < count as u64 * 10).then_some(freed_ns),
        }
    });
    blocks.collect()
}

/// Blocks in their order, each alive for the same time.
pub fn steady(live: u64, size: u64) -> Vec<Block> {
    let count = 40 * live;
    let block = |number: u64| Block {
        site: 0,
        size,
        time_ns: number * 10,
        freed_ns: (number + live < count).then_some((number + live) * 10),
    };
    (0..count).map(block).collect()
}
