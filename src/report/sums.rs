//! Samples added up by stack, before anybody asks for names: a program has thousands of stacks and millions of samples.

use std::collections::BTreeMap;
use std::hint::black_box;

use allocsample_profile::{Allowance, Allowances, HeapId, Profile, Sample, StackId};
use allocsample_sampling::Estimate;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::frames::{FrameId, Frames};
use crate::selection::{Selection, Selector, Window};
use allocsample_profile::Weights;
use allocsample_profile::{Halves, PeakMoments, with_error_of_moment};

/// What may have been missed in each heap.
struct Missed<'a> {
    allocated: Allowances<'a>,
    live: Allowances<'a>,
}

/// What a group of samples stands for.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Figures {
    /// Bytes allocated.
    pub allocated: Estimate,
    /// Allocations.
    pub allocations: Estimate,
    /// Bytes alive at the end.
    pub live: Estimate,
    /// Bytes alive when the process had most; zero unless the peak was looked for.
    pub peak: Estimate,
    /// The same by the plain curve at its highest point.
    plain_peak: f64,
    /// Bytes alive at the end, less those that were alive half-way.
    pub growth: Estimate,
}

impl Figures {
    /// Of no sample yet; what may have been missed is allowed for.
    fn allowing_for(allocated: Allowance, live: Allowance) -> Self {
        let nothing = Estimate::ZERO;
        Self {
            allocated: nothing.allowing_for(allocated.bytes),
            allocations: nothing.allowing_for(allocated.objects),
            live: nothing.allowing_for(live.bytes),
            peak: nothing.allowing_for(live.bytes),
            plain_peak: 0.0,
            growth: nothing.negated().allowing_for(live.bytes),
        }
    }

    // As all that is asked of every sample: what is not inlined reads all columns.
    #[inline(always)]
    fn take(
        &mut self,
        sample: &Sample,
        window: &Window,
        (bytes, objects): (Estimate, Estimate),
        halves: &mut Halves<'_>,
    ) {
        if let Some(moments) = &window.peak {
            self.peak += halves.at(sample, moments);
            if moments.is_live(sample) {
                self.plain_peak += bytes.value();
            }
            if window.is_at_peak {
                self.take_at_peak(sample, window, moments, halves);
                return;
            }
        }
        if !sample.is_carried() {
            self.allocated += bytes;
            self.allocations += objects;
        }
        if window.is_live(sample) {
            self.live += bytes;
        }
        match window.growth(sample) {
            1 => self.growth += bytes,
            -1 => {
                // Taken away, but it adds to the error.
                self.growth += bytes.negated();
            }
            _ => {}
        }
    }

    /// Each half of the samples counts at the moment that the other half takes for the peak.
    fn take_at_peak(
        &mut self,
        sample: &Sample,
        window: &Window,
        moments: &PeakMoments,
        halves: &mut Halves<'_>,
    ) {
        if !sample.is_carried() {
            let counts = moments.allocated(sample);
            self.allocated += halves.bytes(sample, counts);
            self.allocations += halves.objects(sample, counts);
        }
        let live = moments.live(sample);
        self.live += halves.bytes(sample, live);
        let growth = live.map(|live| live - window.middle(sample));
        self.growth += halves.bytes(sample, growth);
    }

    /// By how much the plain curve at its highest point exceeds the bytes at the peak.
    pub(crate) fn excess(&self) -> f64 {
        self.plain_peak - self.peak.value()
    }

    /// The same, where figures of the peak have the error of not knowing when it was.
    pub(crate) fn finished(&self, window: &Window) -> Self {
        let with_error = |figure| with_error_of_moment(figure, self.excess());
        let mut finished = *self;
        finished.peak = with_error(self.peak);
        if window.is_at_peak {
            finished.live = with_error(self.live);
            finished.growth = with_error(self.growth);
        }
        finished
    }

    pub(crate) fn add(&mut self, other: &Figures) {
        self.allocated += other.allocated;
        self.allocations += other.allocations;
        self.live += other.live;
        self.peak += other.peak;
        self.plain_peak += other.plain_peak;
        self.growth += other.growth;
    }
}

/// What was allocated with one stack, in one heap, and with one mark. What every sample changes comes first, so that most
/// change two lines of the processor's cache. (Aligned to such a line, a larger table could not be made in place.)
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Sum {
    /// What the caller tells samples apart by.
    pub(crate) mark: u32,
    /// The index of its first sample.
    first: u32,
    heap: HeapId,
    pub(crate) figures: Figures,
}

impl Sum {
    /// The first of its samples: all have the same stack and heap.
    pub(crate) fn sample(&self, profile: &Profile) -> Sample {
        profile.samples.at(self.first as usize)
    }
}

/// All samples that were selected.
pub(crate) struct Sums {
    /// Each has the stacks of a thread's own.
    shards: Vec<Vec<Sum>>,
    /// Shards and indices, in the order in which their stacks first came.
    order: Vec<(u32, u32)>,
    /// For each sample of the profile the index of its sum; [`Sums::NONE`] if it was not selected.
    pub(crate) of_sample: Vec<u32>,
    /// Over all sums.
    pub(crate) whole: Figures,
}

impl Sums {
    pub(crate) const NONE: u32 = u32::MAX;

    /// Adds up by stack, and apart by what `mark` says of samples. `keeps_samples` fills `of_sample`.
    ///
    /// Several threads do it, each for some of the stacks: then every sum is added up in the order of its samples, and no
    /// figure depends on how many threads there are.
    pub(crate) fn of(
        profile: &Profile,
        frames: &Frames<'_>,
        selection: &Selection,
        window: Window,
        keeps_samples: bool,
        mark: impl Fn(&Sample) -> u32 + Sync,
    ) -> Self {
        let count = match keeps_samples {
            true => 1,
            false => threads_for(profile.samples.len()),
        };
        let missed = Missed {
            allocated: window.allowances(profile),
            live: window.allowances(profile),
        };
        let shard = |number| {
            let mut shard = Shard {
                number,
                count,
                missed: &missed,
                sums: Vec::new(),
                allowances: BTreeMap::new(),
                of_stack: vec![Self::NONE; profile.stacks.count() as usize + 1],
                others: FxHashMap::default(),
            };
            let selector = Selector::new(frames, profile, selection, window);
            let of_sample = shard.add_all(profile, selector, keeps_samples, &mark);
            (shard.sums, of_sample)
        };
        let shards: Vec<_> = (0..count).into_par_iter().map(shard).collect();
        let (shards, mut of_samples): (Vec<_>, Vec<_>) = shards.into_iter().unzip();
        // Samples are kept only if there is one shard.
        let of_sample = of_samples.swap_remove(0);
        let whole = Figures::allowing_for(missed.allocated.of_process(), missed.live.of_process());
        let order = order(&shards);
        let mut all = Self {
            shards,
            order,
            of_sample,
            whole,
        };
        let mut whole = all.whole;
        for sum in all.iter() {
            whole.add(&sum.figures);
        }
        all.whole = whole;
        all
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        // Fewer than samples, whose indices have 32 bits.
        self.order.len() as u32
    }

    /// One of them, in the order in which their stacks first came.
    pub(crate) fn at(&self, number: u32) -> &Sum {
        let (shard, index) = self.order[number as usize];
        &self.shards[shard as usize][index as usize]
    }

    /// The same, to be changed.
    pub(crate) fn at_mut(&mut self, number: u32) -> &mut Sum {
        let (shard, index) = self.order[number as usize];
        &mut self.shards[shard as usize][index as usize]
    }

    /// In the order in which their stacks first came.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Sum> {
        let order = self.order.iter();
        order.map(|&(shard, index)| &self.shards[shard as usize][index as usize])
    }
}

/// How many threads add up so many samples.
fn threads_for(samples: usize) -> u32 {
    /// Fewer are added up before a thread has begun.
    const EACH: usize = 1 << 16;
    /// All of them go through all samples.
    const MOST: usize = 4;
    let threads = rayon::current_num_threads().min(MOST);
    let threads = threads.min(samples / EACH).max(1);
    u32::try_from(threads).unwrap_or(1)
}

/// The sums of all shards by the first sample of each.
fn order(shards: &[Vec<Sum>]) -> Vec<(u32, u32)> {
    let mut order = Vec::with_capacity(shards.iter().map(Vec::len).sum());
    let mut next = vec![0u32; shards.len()];
    let first = |shard: usize, index: u32| Some(shards[shard].get(index as usize)?.first);
    while let Some((_, shard)) = (0..shards.len())
        .filter_map(|shard| Some((first(shard, next[shard])?, shard)))
        .min()
    {
        order.push((shard as u32, next[shard]));
        next[shard] += 1;
    }
    order
}

/// The sums of some of the stacks.
struct Shard<'m> {
    number: u32,
    /// How many shards there are.
    count: u32,
    missed: &'m Missed<'m>,
    sums: Vec<Sum>,
    /// What every sum of a heap begins with.
    allowances: BTreeMap<HeapId, Figures>,
    /// For each stack the first of its sums.
    of_stack: Vec<u32>,
    /// Other sums of a stack, and stacks that do not pass.
    others: FxHashMap<(StackId, HeapId, u32), u32>,
}

impl Shard<'_> {
    /// Adds its own of the samples, whose indices have 32 bits; if `keeps_samples` the answer has the index of the sum of each.
    fn add_all(
        &mut self,
        profile: &Profile,
        mut selector: Selector<'_>,
        keeps_samples: bool,
        mark: impl Fn(&Sample) -> u32,
    ) -> Vec<u32> {
        /// Rows that are looked at together.
        const BLOCK: usize = 128;
        let mut weights = Weights::of(profile);
        let mut halves = Halves::of(profile);
        let mut of_sample = Vec::new();
        if keeps_samples {
            of_sample.reserve_exact(profile.samples.len());
        }
        let mut stack: Vec<FrameId> = Vec::new();
        let samples = &profile.samples;
        // Rows of this shard's stacks, with the first sum of each stack.
        let mut own = [(0_usize, Sums::NONE); BLOCK];
        for start in (0..samples.len()).step_by(BLOCK) {
            let block = start..samples.len().min(start + BLOCK);
            // One loop for each look at memory: the processor fetches what many samples need at the same time.
            let mut count = 0;
            for row in block {
                // Without a branch, which nobody could foretell.
                own[count].0 = row;
                count += usize::from(self.owns(samples.stack(row)));
            }
            let own = &mut own[..count];
            for (row, place) in &mut *own {
                *place = self.first_of(samples.stack(*row));
            }
            for (row, place) in &mut *own {
                let sample = samples.at(*row);
                *place = match self.sums.get(*place as usize) {
                    Some(sum) if sum.heap == sample.heap => {
                        // The next line of the cache.
                        black_box(sum.figures.allocations.samples());
                        *place
                    }
                    _ => Sums::NONE,
                };
            }
            for &mut (row, known) in own {
                let sample = samples.at(row);
                let mut place = Sums::NONE;
                if selector.passes(&sample) {
                    let mark = mark(&sample);
                    let found = match self.sums.get(known as usize) {
                        Some(sum) if sum.mark == mark => Some(known),
                        _ => self.find(&sample, mark),
                    };
                    place = found.unwrap_or_else(|| {
                        let passes = selector.passes_its_stack(&sample, &mut stack);
                        self.begin(&sample, mark, row as u32, passes)
                    });
                }
                if let Some(sum) = self.sums.get_mut(place as usize) {
                    sum.figures
                        .take(&sample, &selector.window, weights.get(&sample), &mut halves);
                }
                if keeps_samples {
                    of_sample.push(place);
                }
            }
        }
        of_sample
    }

    /// The first of the sums of a stack; [`Sums::NONE`] if there is none yet.
    #[inline]
    fn first_of(&self, stack: StackId) -> u32 {
        let place = self.of_stack.get(stack.0 as usize).copied();
        place.unwrap_or(Sums::NONE)
    }

    fn owns(&self, stack: StackId) -> bool {
        // The upper half of a product with the golden ratio: callers and what they call are neighbours.
        let mixed = stack.0.wrapping_mul(0x9E37_79B9) >> 16;
        // Which of so many equal parts of 16 bits it is in.
        (mixed * self.count) >> 16 == self.number
    }

    /// The sum that a sample belongs to, or [`Sums::NONE`]; nothing if it is the first.
    fn find(&self, sample: &Sample, mark: u32) -> Option<u32> {
        let place = self.first_of(sample.stack);
        match self.sums.get(place as usize) {
            Some(sum) if (sum.heap, sum.mark) == (sample.heap, mark) => Some(place),
            _ => {
                let other = (sample.stack, sample.heap, mark);
                self.others.get(&other).copied()
            }
        }
    }

    /// A sum that begins with this sample, or the memory that there is none.
    fn begin(&mut self, sample: &Sample, mark: u32, first: u32, passes: bool) -> u32 {
        let allowances = &mut self.allowances;
        let Missed { allocated, live } = self.missed;
        let nothing = || Figures::allowing_for(allocated.of(sample.heap), live.of(sample.heap));
        let figures = *allowances.entry(sample.heap).or_insert_with(nothing);
        let mut place = Sums::NONE;
        if passes {
            place = u32::try_from(self.sums.len()).unwrap_or(Sums::NONE);
            self.sums.push(Sum {
                mark,
                first,
                heap: sample.heap,
                figures,
            });
        }
        match self.of_stack.get_mut(sample.stack.0 as usize) {
            Some(of_stack) if passes && *of_stack == Sums::NONE => *of_stack = place,
            _ => {
                let other = (sample.stack, sample.heap, mark);
                self.others.insert(other, place);
            }
        }
        place
    }
}
