//! Samples added up by stack, before anybody asks for names: a program has thousands of stacks and millions of samples.

use allocsample_profile::{HeapId, Profile, Sample, StackId};
use allocsample_sampling::Estimate;
use rustc_hash::FxHashMap;

use crate::frames::{FrameId, Frames};
use crate::selection::{Selection, Selector, Window};
use allocsample_profile::Weights;

/// What a group of samples stands for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Bytes allocated.
    pub allocated: Estimate,
    /// Allocations.
    pub allocations: Estimate,
    /// Bytes alive at the end.
    pub live: Estimate,
    /// Bytes alive when the process had most; zero unless the peak was looked for.
    pub peak: Estimate,
    /// Bytes alive at the end, less those that were alive half-way.
    pub growth: Estimate,
}

impl Figures {
    fn take(&mut self, sample: &Sample, window: &Window, (bytes, objects): (Estimate, Estimate)) {
        if !sample.is_carried() {
            self.allocated += bytes;
            self.allocations += objects;
        }
        if window.is_live(sample) {
            self.live += bytes;
        }
        if window.is_live_at_peak(sample) {
            self.peak += bytes;
        }
        match window.growth(sample) {
            1 => self.growth += bytes,
            -1 => {
                // Taken away, but it adds to the error.
                self.growth +=
                    Estimate::from_parts(-bytes.value(), bytes.variance(), bytes.samples());
            }
            _ => {}
        }
    }

    pub(crate) fn add(&mut self, other: &Figures) {
        self.allocated += other.allocated;
        self.allocations += other.allocations;
        self.live += other.live;
        self.peak += other.peak;
        self.growth += other.growth;
    }
}

/// What was allocated with one stack, in one heap, and with one mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sum<'a> {
    /// The first of its samples: all have the same stack, missing root and heap.
    pub(crate) sample: &'a Sample,
    /// What the caller tells samples apart by.
    pub(crate) mark: u32,
    pub(crate) figures: Figures,
}

/// All samples that were selected.
pub(crate) struct Sums<'a> {
    /// In the order in which their stacks first came.
    pub(crate) sums: Vec<Sum<'a>>,
    /// For each sample of the profile the index of its sum; [`Sums::NONE`] if it was not selected.
    pub(crate) of_sample: Vec<u32>,
    /// Over all sums.
    pub(crate) whole: Figures,
}

impl<'a> Sums<'a> {
    pub(crate) const NONE: u32 = u32::MAX;

    /// Adds up by stack, and apart by what `mark` says of samples. `keeps_samples` fills `of_sample`.
    pub(crate) fn of(
        profile: &'a Profile,
        frames: &Frames<'a>,
        selection: &Selection,
        window: Window,
        keeps_samples: bool,
        mut mark: impl FnMut(&Sample) -> u32,
    ) -> Self {
        // Of the flags those that say why a root is missing.
        type Key = (StackId, u16, HeapId, u32);
        let mut places: FxHashMap<Key, u32> = FxHashMap::default();
        let mut selector = Selector::new(frames, profile, selection, window);
        let mut weights = Weights::of(profile);
        let mut all = Self {
            sums: Vec::new(),
            of_sample: Vec::new(),
            whole: Figures::default(),
        };
        if keeps_samples {
            all.of_sample.reserve_exact(profile.samples.len());
        }
        let mut stack: Vec<FrameId> = Vec::new();
        for sample in &profile.samples {
            let mut place = Self::NONE;
            if selector.passes(sample) {
                let mark = mark(sample);
                let key = (sample.stack, sample.flags.0 & 3, sample.heap, mark);
                place = *places.entry(key).or_insert_with(|| {
                    frames.fill(sample, &mut stack);
                    let charged = frames.charged(sample.heap, &stack);
                    if !selector.passes_stack(&stack, charged) {
                        return Self::NONE;
                    }
                    all.sums.push(Sum {
                        sample,
                        mark,
                        figures: Figures::default(),
                    });
                    u32::try_from(all.sums.len() - 1).unwrap_or(Self::NONE)
                });
            }
            if let Some(sum) = all.sums.get_mut(place as usize) {
                sum.figures
                    .take(sample, &selector.window, weights.get(sample));
            }
            if keeps_samples {
                all.of_sample.push(place);
            }
        }
        for sum in &all.sums {
            all.whole.add(&sum.figures);
        }
        all
    }
}
