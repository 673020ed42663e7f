//! Why malloc keeps memory that is free: what of it would go back to the system, and which blocks hold the rest.
//!
//! A walk of malloc's heap ([`allocsample_heapwalk`]) knows every chunk, and not who allocated it. The samples know that of a
//! few blocks. Together they estimate which site holds how much free memory.
//!
//! # The estimator
//! Let page P be resident, with f_P free bytes that `malloc_trim` would not return and n_P > 0 blocks on it. Every one of the
//! n_P blocks alone would keep the page, so each is charged an equal share: block b holds `y_b = sum of f_P / n_P over its pages
//! P`. Nothing is charged twice and nothing is left out: the y_b of all blocks add up to the free bytes on pages with blocks,
//! which the walk knows exactly. An equal share is also the Shapley value of the game in which a set of blocks is worth the free
//! bytes of the pages that nothing else would keep if they were gone: the only division that is symmetric, complete and additive
//! over pages.
//!
//! A site holds `Y = sum of y_b over its blocks`. Block b is sampled with probability p_b, which depends on its size alone and
//! not on where it lies (see [`allocsample_sampling::Weight`]), so given the heap as it is,
//!
//! ```text
//! T = sum of y_b / p_b over the sampled blocks     E[T] = sum of p_b y_b / p_b = Y
//! Var T = sum of y_b^2 (1 - p_b) / p_b             estimated by  V = sum of y_b^2 (1 - p_b) / p_b^2 over the sampled blocks
//! ```
//!
//! as for bytes and objects: y_b takes the place of the size. `y_b / p_b` is y_b times the objects that a sample stands for. With
//! a page of 4 KiB and an interval of 512 KiB a block of 64 B that holds a whole page stands for 8,192 of them, 32 MiB: errors are
//! large until some hundred samples are alive, and are printed.
//!
//! Blocks older than the recording are never sampled, and the program frees others while the walk goes on: what these hold is
//! in nobody's sum. The known total says how much that is. Blocks that stay, which fragmentation is about, are not affected.

use std::collections::BTreeMap;

use allocsample_heapwalk::{Arena, Content, Contents, Heap, Known, Parts, Piece};
use allocsample_profile::{Frame, HeapId, Profile, StackId};
use allocsample_sampling::Estimate;

use crate::shares::live_at;
use crate::{FrameId, Frames, origin};

/// A process as it was read from outside.
#[derive(Clone, Debug)]
pub struct Walked {
    /// When the walk began. CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// What malloc's heap holds, if it was walked.
    pub heap: Option<Heap>,
    /// What is known by its content alone.
    pub contents: Contents,
}

/// The same, with what the profile knows of it.
#[derive(Clone, Debug)]
pub(crate) struct Outside {
    pub held: Option<Held>,
    pub contents: Contents,
}

impl Outside {
    pub fn of(profile: &Profile, walked: Walked) -> Self {
        let Walked {
            time_ns,
            heap,
            contents,
        } = walked;
        Self {
            held: heap.map(|heap| Held::of(profile, time_ns, heap)),
            contents,
        }
    }

    /// Whether the blocks of malloc there were counted.
    pub fn has_counted(&self, address: u64) -> bool {
        let is_walked = (self.held.as_ref()).is_some_and(|held| held.contains(address));
        is_walked
            || self
                .known_at(address)
                .is_some_and(|it| it.content == Content::MallocBlock)
    }

    fn known_at(&self, address: u64) -> Option<&Known> {
        let known = &self.contents.known;
        let after = known.partition_point(|it| it.start <= address);
        known
            .get(after.checked_sub(1)?)
            .filter(|it| address < it.end)
    }

    /// Whether objects of CPython were counted.
    pub fn has_pools(&self) -> bool {
        let mut known = self.contents.known.iter();
        known.any(|it| it.content == Content::PythonPool)
    }
}

/// How many of the addresses in a range are known by their content.
pub(super) fn known_bytes_within(known: &[Known], start: u64, end: u64) -> u64 {
    let first = known.partition_point(|it| it.end <= start);
    let within = known.iter().skip(first).take_while(|it| it.start < end);
    within.map(|it| it.end.min(end) - it.start.max(start)).sum()
}

/// Blocks of one site that hold free memory.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Holder {
    /// The function and line that is charged.
    pub frame: Option<Frame>,
    /// The stack of one of the samples.
    pub stack: StackId,
    /// Its blocks.
    pub blocks: Estimate,
    /// Their bytes, as rounded up by malloc.
    pub block_bytes: Estimate,
    /// The free bytes that they hold.
    pub free_bytes: Estimate,
    /// The part of it on pages with no other block: there they alone are the cause.
    pub alone_bytes: Estimate,
}

impl Holder {
    /// The function, with its file and line.
    pub fn name(&self) -> String {
        match &self.frame {
            None => "blocks without a stack".to_owned(),
            Some(frame) => match origin::place(frame) {
                Some(place) => format!("{} ({place})", frame.function),
                None => frame.function.clone(),
            },
        }
    }
}

/// What malloc keeps, and why.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Held {
    /// Resident bytes of malloc.
    pub parts: Parts,
    /// Every arena.
    pub arenas: Vec<Arena>,
    /// Sites that hold free memory, largest first.
    pub holders: Vec<Holder>,
    /// The sum of all sites: what is missing to [`Parts::held`] is held by blocks that cannot be sampled.
    pub attributed: Estimate,
    /// What sizes of blocks were rounded up by.
    pub rounding: Estimate,
    /// Sampled blocks that were found, and those that were gone by the time of the walk.
    pub found: usize,
    /// See `found`.
    pub gone: usize,
    /// Every piece of the heap, by address.
    pub(crate) pieces: Vec<Piece>,
}

/// The estimate for a block that holds `held` bytes, by the objects that its sample stands for. Its allowance for a block that
/// was not drawn is another one like it: `y_b sqrt(1 - p_b) / p_b`. Far smaller blocks would stand for more.
fn stands_for(objects: Estimate, held: f64) -> Estimate {
    let variance = objects.variance().map(|it| it * held * held);
    Estimate::from_parts(objects.value() * held, variance, 1)
        .with_drawn(held)
        .allowing_for(variance.unwrap_or(0.0).sqrt())
}

impl Held {
    /// Of a profile that was read after the walk: it knows what was alive then.
    pub fn of(profile: &Profile, time_ns: u64, mut heap: Heap) -> Self {
        let pieces: Vec<Piece> = heap.pieces().collect();
        let samples = live_at(profile, time_ns);
        let live: Vec<_> = samples
            .filter(|it| {
                it.sample.heap == HeapId::MALLOC && piece_at(&pieces, it.sample.address).is_some()
            })
            .collect();
        let addresses: Vec<u64> = live.iter().map(|it| it.sample.address).collect();
        let holdings = heap.holdings(&addresses);
        let frames = Frames::of(profile);
        let mut stack = Vec::new();
        let mut sites: BTreeMap<Option<FrameId>, Holder> = BTreeMap::new();
        let (mut found, mut gone) = (0, 0);
        let (mut attributed, mut rounding) = (Estimate::ZERO, Estimate::ZERO);
        for (live, holding) in live.iter().zip(holdings) {
            let sample = &live.sample;
            // Another block may lie there by now; it has another size most of the time.
            let is_same = |bytes: u64| (sample.size..sample.size + MOST_ROUNDING).contains(&bytes);
            let Some((block, holding)) = holding.filter(|(block, _)| is_same(block.bytes)) else {
                gone += 1;
                continue;
            };
            found += 1;
            let free_bytes = stands_for(live.objects, holding.free_bytes);
            attributed += free_bytes;
            rounding += stands_for(live.objects, (block.bytes - sample.size) as f64);
            let charged = frames
                .charged_to(sample, &mut stack)
                .map(|(_, frame)| frame);
            let holder = sites.entry(charged).or_insert_with(|| Holder {
                frame: charged.map(|id| frames.frame(id).clone()),
                stack: sample.stack,
                blocks: Estimate::ZERO,
                block_bytes: Estimate::ZERO,
                free_bytes: Estimate::ZERO,
                alone_bytes: Estimate::ZERO,
            });
            holder.blocks += live.objects;
            holder.block_bytes += stands_for(live.objects, block.bytes as f64);
            holder.free_bytes += free_bytes;
            holder.alone_bytes += stands_for(live.objects, holding.alone_bytes);
        }
        let mut holders: Vec<Holder> = sites.into_values().collect();
        holders.sort_by(|a, b| b.free_bytes.value().total_cmp(&a.free_bytes.value()));
        Self {
            parts: heap.parts(),
            arenas: heap.arenas().to_vec(),
            holders,
            attributed,
            rounding,
            found,
            gone,
            pieces,
        }
    }

    /// Whether malloc's memory at this address was walked.
    pub(crate) fn contains(&self, address: u64) -> bool {
        piece_at(&self.pieces, address).is_some()
    }

    /// What of malloc's memory is not in blocks, by the reason why it is kept, largest first.
    pub fn reasons(&self) -> Vec<(Reason, u64)> {
        let parts = &self.parts;
        let lost: u64 = self.pieces.iter().map(lost_by_malloc).sum();
        let mut reasons = vec![
            (Reason::Returnable, parts.returnable),
            (Reason::Held, parts.held),
            (Reason::Ends, parts.at_ends),
            (Reason::Cached, parts.cached),
            (Reason::Headers, parts.headers),
            (Reason::Other, parts.other_free),
            (Reason::Lost, lost),
        ];
        reasons.retain(|(_, bytes)| *bytes > 0);
        reasons.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        reasons
    }

    /// The share of the memory that blocks hold which this site holds, from 0 to 1, with its standard error.
    pub fn share(&self, holder: &Holder) -> (f64, Option<f64>) {
        // Known exactly, so it divides the error as well.
        let held = (self.parts.held as f64).max(1.0);
        let error = holder.free_bytes.stderr();
        (holder.free_bytes.value() / held, error.map(|it| it / held))
    }

    /// Whether there are enough samples to say that this site holds anything: its share is more than twice its standard error.
    /// One to four samples are not enough: their error is at least half of their share. Where no error is known, it counts as known.
    pub fn is_known(&self, holder: &Holder) -> bool {
        let (share, error) = self.share(holder);
        error.is_none_or(|error| share > 2.0 * error)
    }
}

fn piece_at(pieces: &[Piece], address: u64) -> Option<&Piece> {
    let after = pieces.partition_point(|piece| piece.start <= address);
    let piece = pieces.get(after.checked_sub(1)?)?;
    (address < piece.end).then_some(piece)
}

/// What was not understood and yet is malloc's: in the heap of `brk` it may be of any allocator that calls sbrk.
pub(crate) fn lost_by_malloc(piece: &Piece) -> u64 {
    match piece.is_main {
        true => 0,
        false => piece.parts.lost,
    }
}

/// A rest too small for a chunk stays with the block; alignment adds more.
const MOST_ROUNDING: u64 = 64;

/// Why memory without a block is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Nobody has called `malloc_trim`.
    Returnable,
    /// Blocks lie on the same pages.
    Held,
    /// It is at the end of an arena other than the main one.
    Ends,
    /// It is in the cache of a thread.
    Cached,
    /// Headers of blocks, and malloc's own data.
    Headers,
    /// Free, between headers or cached blocks.
    Other,
    /// Not understood.
    Lost,
}

impl Reason {
    /// In words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Returnable => "free in whole pages, which malloc_trim(0) returns",
            Self::Held => "free in pages that live blocks hold",
            Self::Ends => "free at the ends of arenas, which malloc_trim leaves",
            Self::Cached => "free in the caches of threads",
            Self::Headers => "headers of blocks",
            Self::Other => "free in pages with headers or cached blocks only",
            Self::Lost => "not understood",
        }
    }

    /// The name for scripts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Returnable => "returnable",
            Self::Held => "held",
            Self::Ends => "at_ends",
            Self::Cached => "cached",
            Self::Headers => "headers",
            Self::Other => "other_free",
            Self::Lost => "not_understood",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_sampling::{
        GapLaw, Interval, Random, SamplePoints, Weight, inclusion_probability,
    };

    const INTERVAL: u64 = 4096;
    const DRAWINGS: usize = 1500;

    /// A block: its site, its size, and the pages that it lies on.
    struct Block {
        site: usize,
        size: u64,
        page: usize,
    }

    /// Pages of 4 KiB with a few blocks of three sites. Site 1 is alone on its pages, the others share theirs.
    fn population(random: &mut Random) -> Vec<Block> {
        let mut blocks = Vec::new();
        for page in 0..400 {
            let count = if page % 4 == 0 {
                1
            } else {
                1 + random.below(12)
            };
            for _ in 0..count {
                let site = if page % 4 == 0 {
                    1
                } else {
                    2 * random.below(2) as usize
                };
                let sizes = [[24, 24, 100], [24, 100, 300], [100, 300, 300]];
                let size = sizes[site][random.below(3) as usize];
                blocks.push(Block { site, size, page });
            }
        }
        blocks
    }

    fn free_bytes(blocks: &[Block]) -> Vec<(f64, f64)> {
        let mut pages = vec![(4096.0, 0.0); 400];
        for block in blocks {
            let (free, count) = &mut pages[block.page];
            *free -= (block.size + 8) as f64;
            *count += 1.0;
        }
        pages
    }

    /// Mean of the estimates of each site over many drawings, with the mean of their variances, and the sites' true figures.
    /// `weigh` computes what a sampled block stands for, from its own holding and its page's figures: free bytes, blocks on it,
    /// sampled blocks on it.
    fn simulate(weigh: impl Fn(Estimate, f64, f64, f64) -> Estimate) -> Vec<(f64, f64, f64, f64)> {
        let mut random = Random::from_seed(7);
        let blocks = population(&mut random);
        let pages = free_bytes(&blocks);
        let weight = Weight::new(
            GapLaw::Poisson,
            Interval::new(INTERVAL).expect("an interval"),
        );
        let mut truth = [0.0; 3];
        for block in &blocks {
            let (free, count) = pages[block.page];
            truth[block.site] += free / count;
        }
        let mut sums = [(0.0, 0.0, 0.0); 3];
        for _ in 0..DRAWINGS {
            let is_drawn: Vec<bool> = (blocks.iter())
                .map(|block| {
                    let p =
                        inclusion_probability(block.size, Interval::new(INTERVAL).expect("one"));
                    random.unit() <= p
                })
                .collect();
            let mut drawn_on = vec![0.0; pages.len()];
            for (block, _) in blocks.iter().zip(&is_drawn).filter(|it| *it.1) {
                drawn_on[block.page] += 1.0;
            }
            let mut estimates = [Estimate::ZERO; 3];
            for (block, _) in blocks.iter().zip(&is_drawn).filter(|it| *it.1) {
                let (free, count) = pages[block.page];
                let objects = weight.objects_estimate(block.size, SamplePoints(1), 24);
                estimates[block.site] += weigh(objects, free, count, drawn_on[block.page]);
            }
            for (sum, estimate) in sums.iter_mut().zip(&estimates) {
                let value = estimate.value();
                sum.0 += value;
                sum.1 += value * value;
                sum.2 += estimate.variance().expect("a variance");
            }
        }
        let n = DRAWINGS as f64;
        let figures = |(truth, (sum, squares, variances)): (f64, (f64, f64, f64))| {
            let mean = sum / n;
            (truth, mean, squares / n - mean * mean, variances / n)
        };
        truth.into_iter().zip(sums).map(figures).collect()
    }

    /// Off by how many standard errors of the mean.
    fn bias(&(truth, mean, variance, _): &(f64, f64, f64, f64)) -> f64 {
        (mean - truth).abs() / (variance / DRAWINGS as f64).sqrt()
    }

    #[test]
    fn what_a_site_holds_is_estimated_without_bias_and_with_its_variance() {
        let sites = simulate(|objects, free, count, _| stands_for(objects, free / count));
        for site in &sites {
            assert!(bias(site) < 4.0, "{site:?}");
            let (_, _, variance, claimed) = site;
            // The variance of so many drawings has a standard error of 4 %.
            assert!((claimed / variance - 1.0).abs() < 0.16, "{site:?}");
        }
    }

    /// Dividing a page among its sampled blocks charges each of them too much; one weight for all is right for one size only.
    #[test]
    fn biased_estimators_fail_the_same_test() {
        let among_samples = simulate(|objects, free, _, drawn| stands_for(objects, free / drawn));
        assert!(
            among_samples.iter().any(|site| bias(site) > 10.0),
            "{among_samples:?}"
        );
        let unweighted = simulate(|_, free, count, _| {
            let p = inclusion_probability(141, Interval::new(INTERVAL).expect("one"));
            Estimate::from_parts(free / count / p, Some(0.0), 1)
        });
        assert!(
            unweighted.iter().any(|site| bias(site) > 10.0),
            "{unweighted:?}"
        );
    }

    #[test]
    fn a_block_that_holds_nothing_stands_for_nothing() {
        let weight = Weight::new(GapLaw::Poisson, Interval::DEFAULT);
        let nothing = stands_for(weight.objects_estimate(64, SamplePoints(1), 8), 0.0);
        assert_eq!((nothing.value(), nothing.variance()), (0.0, Some(0.0)));
    }
}
