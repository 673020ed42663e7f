//! What samples stand for, computed once for each size.

use allocsample_sampling::{Estimate, SamplePoints, Weight};

use crate::model::{IntervalInfo, Profile, Sample};

/// A power of two.
const PLACES: usize = 1 << 12;

/// A sample's size and interval, and its points if they matter.
type Key = (u64, u16, u32);

/// With bytes and objects.
type Entry = (Key, Estimate, Estimate);

/// Remembers the weights of the last sizes: a weight costs two exponentials, and programs ask for the same sizes again.
#[derive(Debug)]
pub struct Weights {
    /// By interval.
    laws: Vec<Option<Weight>>,
    /// The smallest block that a count allows for.
    smallest: u64,
    /// The sample points of a sample matter.
    is_periodic: bool,
    known: Vec<Option<Entry>>,
}

impl Weights {
    /// Of a profile's samples.
    pub fn of(profile: &Profile) -> Self {
        let law = |info: &IntervalInfo| info.weight();
        Self {
            laws: profile.intervals.iter().map(law).collect(),
            smallest: profile.smallest_expected(),
            is_periodic: profile.is_periodic(),
            known: vec![None; PLACES],
        }
    }

    /// Of a profile's sampled pages.
    pub fn of_pages(profile: &Profile) -> Self {
        let law = |info: &IntervalInfo| info.weight();
        Self {
            laws: profile.pages.intervals.iter().map(law).collect(),
            ..Self::of(profile)
        }
    }

    /// The bytes and the allocations that a sample stands for: [`Profile::bytes`] and [`Profile::objects`].
    ///
    /// Inlined, so that no more of a sample is read from its columns than the key.
    #[inline]
    pub fn get(&mut self, sample: &Sample) -> (Estimate, Estimate) {
        let points = if self.is_periodic { sample.points } else { 0 };
        let key = (sample.size, sample.interval, points);
        // The upper bits of a product with the golden ratio depend on all of the size.
        let mixed = (sample.size ^ u64::from(points) << 40 ^ u64::from(sample.interval) << 52)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let place = (mixed >> 52) as usize % PLACES;
        if let Some((known, bytes, objects)) = self.known[place]
            && known == key
        {
            return (bytes, objects);
        }
        self.compute(key, SamplePoints(sample.points.into()), place)
    }

    #[cold]
    fn compute(&mut self, key: Key, points: SamplePoints, place: usize) -> (Estimate, Estimate) {
        let (size, interval, _) = key;
        let law = self.laws.get(usize::from(interval)).copied().flatten();
        let (bytes, objects) = law.map_or_else(Default::default, |law| {
            let bytes = law.bytes_estimate(size, points);
            (bytes, law.objects_estimate(size, points, self.smallest))
        });
        self.known[place] = Some((key, bytes, objects));
        (bytes, objects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_record::Sampling;
    use allocsample_sampling::Random;

    #[test]
    fn what_is_remembered_is_what_would_be_computed() {
        for sampling in [Sampling::Poisson, Sampling::Periodic] {
            let mut profile = Profile::default();
            for interval_bytes in [1, 100, 1 << 19] {
                profile.intervals.push(IntervalInfo {
                    time_ns: 0,
                    sampling,
                    interval_bytes,
                    seed: 1,
                });
            }
            let mut weights = Weights::of(&profile);
            let mut random = Random::from_seed(1);
            for _ in 0..100_000 {
                let sample = Sample {
                    // Small ones come again and again, large ones push each other out.
                    size: random.next_u64() >> (20 + random.below(44)),
                    points: 1 + random.below(3) as u32,
                    interval: random.below(3) as u16,
                    ..Sample::default()
                };
                let computed = (profile.bytes(&sample), profile.objects(&sample));
                assert_eq!(weights.get(&sample), computed, "{sample:?}");
            }
        }
    }
}
