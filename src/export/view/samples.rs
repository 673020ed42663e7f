//! The samples of a view, in the order of time.

use allocsample_profile::{
    Estimate, Halves, HeapId, MissingRoot, Peak, Profile, Sample as Recorded, StackId, ThreadId,
    Weights,
};
use rustc_hash::FxHashMap;
use std::ops::Range;

use super::merged::Merged;
use super::{End, HeapIndex, LocationIndex, Sample, StackIndex, Survival};

/// Samples, made one by one: a list of them would take more memory than the profile.
#[derive(Debug)]
pub(crate) enum Samples<'a> {
    Recorded(Source<'a>),
    /// Others, each of which stands for several of these.
    Merged(Box<Samples<'a>>, Merged),
    #[cfg(test)]
    Listed(Vec<Sample>),
}

/// What samples are made of.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    pub(super) profile: &'a Profile,
    /// Indices of the profile's samples, unless they are in order.
    pub(super) order: Option<Vec<u32>>,
    pub(super) threads: FxHashMap<ThreadId, usize>,
    /// Stacks whose root is missing, for this reason.
    pub(super) cut: CutStacks,
    pub(super) heaps: FxHashMap<HeapId, HeapIndex>,
    pub(super) objects: FxHashMap<(HeapId, u32, Survival), LocationIndex>,
}

/// Which stack of the view stands for one of the profile below a pseudo-frame, for each of those.
#[derive(Debug, Default)]
pub(crate) struct CutStacks([Vec<u32>; MissingRoot::COUNT]);

impl CutStacks {
    pub(super) fn get(&self, stack: StackId, missing: MissingRoot) -> Option<StackIndex> {
        let indices = &self.0[missing as usize];
        (*indices.get(stack.0 as usize)? as usize).checked_sub(1)
    }

    pub(super) fn insert(&mut self, stack: StackId, missing: MissingRoot, index: StackIndex) {
        let indices = &mut self.0[missing as usize];
        if indices.len() <= stack.0 as usize {
            indices.resize(stack.0 as usize + 1, 0);
        }
        // A number of a thing in memory, which 32 bits are enough for.
        indices[stack.0 as usize] = index as u32 + 1;
    }
}

impl Samples<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Samples::Recorded(source) => source.profile.samples.len(),
            Samples::Merged(_, merged) => merged.len(),
            #[cfg(test)]
            Samples::Listed(samples) => samples.len(),
        }
    }

    /// How many were recorded, and how many of those were alive when the file began: merged ones stand for several.
    pub fn recorded(&self) -> (usize, usize) {
        match self {
            Samples::Recorded(source) => {
                let samples = &source.profile.samples;
                let carried = samples.iter().filter(|sample| sample.is_carried());
                (samples.len(), carried.count())
            }
            Samples::Merged(of, _) => of.recorded(),
            #[cfg(test)]
            Samples::Listed(samples) => {
                let carried = samples.iter().filter(|sample| sample.is_carried);
                (samples.len(), carried.count())
            }
        }
    }

    /// The sample with this index.
    pub fn get(&self, index: usize) -> Sample {
        match self {
            Samples::Recorded(source) => {
                let sample = source.at(index);
                let (bytes, objects) = (
                    source.profile.bytes(&sample),
                    source.profile.objects(&sample),
                );
                source.sample(&sample, bytes, objects)
            }
            Samples::Merged(_, merged) => merged.get(index),
            #[cfg(test)]
            Samples::Listed(samples) => samples[index],
        }
    }

    /// The sample with this index, for who does not ask what it stands for, which takes longer: for nothing here.
    pub fn without_weight(&self, index: usize) -> Sample {
        match self {
            Samples::Recorded(source) => {
                let none = Estimate::default();
                source.sample(&source.at(index), none, none)
            }
            samples => Sample {
                bytes: 0.0,
                objects: 0.0,
                ..samples.get(index)
            },
        }
    }

    /// From which heap the sample with this index is, and what became of it. All of it takes longer.
    pub fn fate(&self, index: usize) -> (Option<HeapIndex>, End) {
        match self {
            Samples::Recorded(source) => {
                let sample = source.at(index);
                (source.heap(&sample), end(&sample))
            }
            samples => {
                let sample = samples.get(index);
                (sample.heap, sample.end)
            }
        }
    }

    /// When the sample with this index was allocated, and what became of it. What it stands for takes longer.
    pub fn life(&self, index: usize) -> (u64, End) {
        match self {
            Samples::Recorded(source) => {
                let sample = source.at(index);
                (sample.time_ns, end(&sample))
            }
            Samples::Merged(_, merged) => merged.life(index),
            #[cfg(test)]
            Samples::Listed(samples) => (samples[index].time_ns, samples[index].end),
        }
    }

    /// For who asks for many, in any order.
    pub fn lookup(&self) -> Lookup<'_> {
        Lookup {
            samples: self,
            weights: match self {
                Samples::Recorded(source) => Some(Weights::of(source.profile)),
                _ => None,
            },
        }
    }

    /// Tells `add` of every sample, and of how many bytes it stands for that were live when the process held most.
    pub fn at_peak(&self, add: &mut dyn FnMut(&Sample, f64)) {
        match self {
            Samples::Recorded(source) => {
                let profile = source.profile;
                let moments = Peak::of(profile).moments;
                let mut halves = Halves::of(profile);
                let none = Estimate::default();
                for sample in &profile.samples {
                    let bytes = halves.at(&sample, &moments).value();
                    if bytes > 0.0 {
                        add(&source.sample(&sample, none, none), bytes);
                    }
                }
            }
            Samples::Merged(of, _) => of.at_peak(add),
            #[cfg(test)]
            Samples::Listed(_) => {}
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Sample> + '_ {
        self.range(0..self.len())
    }

    /// Those with these indices.
    pub fn range(&self, range: Range<usize>) -> impl ExactSizeIterator<Item = Sample> + '_ {
        let mut lookup = self.lookup();
        range.map(move |index| lookup.get(index))
    }
}

/// Samples by index, with what they stand for computed once for each size.
#[derive(Debug)]
pub(crate) struct Lookup<'a> {
    samples: &'a Samples<'a>,
    weights: Option<Weights>,
}

impl Lookup<'_> {
    /// The sample with this index.
    pub fn get(&mut self, index: usize) -> Sample {
        match (self.samples, &mut self.weights) {
            (Samples::Recorded(source), Some(weights)) => {
                let sample = source.at(index);
                let (bytes, objects) = weights.get(&sample);
                source.sample(&sample, bytes, objects)
            }
            (samples, _) => samples.get(index),
        }
    }

    /// The bytes that the sample with this index stands for. All of it takes longer.
    pub fn bytes(&mut self, index: usize) -> f64 {
        match (self.samples, &mut self.weights) {
            (Samples::Recorded(source), Some(weights)) => {
                let (bytes, _) = weights.get(&source.at(index));
                bytes.value()
            }
            (samples, _) => samples.get(index).bytes,
        }
    }
}

fn end(sample: &Recorded) -> End {
    match sample.freed() {
        Some(freed) => End::Freed(freed.time_ns),
        None if sample.is_live() => End::Live,
        None => End::Unknown,
    }
}

#[cfg(test)]
impl Samples<'_> {
    /// Those of the tests.
    pub fn list(&mut self) -> &mut Vec<Sample> {
        match self {
            Samples::Listed(samples) => samples,
            _ => panic!("not a list"),
        }
    }
}

impl Source<'_> {
    /// The indices of a profile's samples in the order of time, unless they are in it. (They are in the order of the
    /// ring, in which threads may overtake each other by a moment.)
    pub(super) fn order(profile: &Profile) -> Option<Vec<u32>> {
        let samples = &profile.samples;
        if samples.iter().is_sorted_by_key(|sample| sample.time_ns) {
            return None;
        }
        // A profile has no more samples than 32 bits can number: they would not fit into memory.
        let mut order: Vec<u32> = (0..).take(samples.len()).collect();
        order.sort_by_key(|&index| samples.at(index as usize).time_ns);
        Some(order)
    }

    fn at(&self, index: usize) -> Recorded {
        let index = self
            .order
            .as_ref()
            .map_or(index, |order| order[index] as usize);
        self.profile.samples.at(index)
    }

    fn sample(&self, sample: &Recorded, bytes: Estimate, objects: Estimate) -> Sample {
        Sample {
            id: sample.id.0,
            time_ns: sample.time_ns,
            address: sample.address,
            size: sample.size,
            // The reader has an entry for the thread of each sample, so the first one is never a stand-in.
            thread: self.threads.get(&sample.thread).copied().unwrap_or(0),
            stack: self.stack(sample),
            bytes: bytes.value(),
            objects: objects.value(),
            end: end(sample),
            is_carried: sample.is_carried(),
            heap: self.heap(sample),
            object: sample.outcome().and_then(|outcome| {
                let key = (sample.heap, outcome.type_id, super::survival(&outcome));
                self.objects.get(&key).copied()
            }),
        }
    }

    fn heap(&self, sample: &Recorded) -> Option<HeapIndex> {
        match sample.heap {
            HeapId::MALLOC => None,
            heap => self.heaps.get(&heap).copied(),
        }
    }

    fn stack(&self, sample: &Recorded) -> StackIndex {
        match sample.missing_root() {
            Some(missing) => self.cut.get(sample.stack, missing).unwrap_or(0),
            None => (sample.stack.0 as usize).saturating_sub(1),
        }
    }
}
