//! Finds the allocations that contain sample points.

use crate::{GapLaw, Interval, Random, draw_gap};

/// Sample points that were found in one allocation; 0 = it is not sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SamplePoints(pub u64);

impl SamplePoints {
    /// Whether the allocation is a sample.
    pub fn is_sampled(self) -> bool {
        self.0 > 0
    }
}

/// Under the Poisson law more points than this are not counted: an allocation with this many has at least this many.
/// No estimate depends on the count there ([`crate::Weight`]), and a terabyte at interval 2 would take minutes.
pub const MAX_COUNTED_POINTS: u64 = 64;

/// Walks along the bytes of one thread (or nursery), from sample point to sample point.
///
/// Its only state that matters is `d`, [`Sampler::bytes_until_sample`]: at d, d bytes can be allocated before the byte
/// that is the next sample point. Hence an allocation of `size` bytes is sampled exactly if `size > d`. The
/// bytes of the allocation are `[0, size)`, the sample point is byte d.
///
/// Under the Poisson law `d + 1` is a gap, at the first allocation as at any other, so
/// `P(sampled) = P(gap <= size) = 1 - exp(-size/N)`; and because that law has no memory, drawing `d` anew at any moment
/// that does not depend on it changes nothing.
///
/// An allocation of 0 bytes counts as 1, so that it can be sampled.
#[derive(Clone, Debug)]
pub struct Sampler {
    bytes_until_sample: u64,
    law: GapLaw,
    interval: Interval,
    random: Random,
}

/// d stays below 2^63, so that it fits into a signed counter. Where a gap is longer, the sample point after it comes
/// after 8 EiB instead.
const MAX_DISTANCE: u64 = u64::MAX >> 1;

impl Sampler {
    /// A sampler at the start of its row of bytes. The first gap obeys the same law as all others (Periodic: a start
    /// that is uniform within the interval), otherwise first allocations would be sampled too often.
    pub fn new(law: GapLaw, interval: Interval, random: Random) -> Self {
        let mut sampler = Self {
            bytes_until_sample: 0,
            law,
            interval,
            random,
        };
        sampler.redraw(interval);
        sampler
    }

    /// Accounts an allocation of `size` bytes; tells how many sample points are in it. At interval 1 these are `size`,
    /// under the Poisson law at most [`MAX_COUNTED_POINTS`] are counted.
    ///
    /// Takes bounded time: at most `MAX_COUNTED_POINTS` + 1 draws.
    #[inline]
    pub fn on_alloc(&mut self, size: u64) -> SamplePoints {
        let size = size.max(1);
        match self.bytes_until_sample.checked_sub(size) {
            Some(distance) => {
                self.bytes_until_sample = distance;
                SamplePoints(0)
            }
            // Of the sample point's own byte and those after it: at least 1.
            None => self.pass_points(size - self.bytes_until_sample - 1),
        }
    }

    /// Passes the first sample point and the `rest` bytes of the allocation behind it.
    fn pass_points(&mut self, mut rest: u64) -> SamplePoints {
        if self.law == GapLaw::Periodic || self.interval == Interval::EVERY_ALLOCATION {
            let interval = self.interval.bytes();
            self.bytes_until_sample = interval - 1 - rest % interval;
            return SamplePoints((rest / interval).saturating_add(1));
        }
        for points in 1..=MAX_COUNTED_POINTS {
            let gap = draw_gap(self.interval, &mut self.random);
            if gap > u128::from(rest) {
                self.bytes_until_sample = distance(gap - u128::from(rest));
                return SamplePoints(points);
            }
            // At most the rest, as was just seen.
            rest -= gap as u64;
        }
        self.redraw(self.interval);
        SamplePoints(MAX_COUNTED_POINTS)
    }

    /// Bytes that can be allocated before the next sample point: the next allocation of more bytes is a sample. Below
    /// 2^63.
    #[inline]
    pub fn bytes_until_sample(&self) -> u64 {
        self.bytes_until_sample
    }

    /// Accounts `bytes` that were allocated without a sample, and counted elsewhere. More than
    /// [`Sampler::bytes_until_sample`] is an error of the caller (a debug assertion); the next byte is then the sample
    /// point.
    #[inline]
    pub fn advance(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.bytes_until_sample);
        self.bytes_until_sample = self.bytes_until_sample.saturating_sub(bytes);
    }

    /// Forgets the distance and draws it anew, with `interval` from here on. Under the Poisson law this biases nothing,
    /// provided that the moment does not depend on the distance itself.
    pub fn redraw(&mut self, interval: Interval) {
        self.interval = interval;
        self.bytes_until_sample = match self.law {
            GapLaw::Poisson => distance(draw_gap(interval, &mut self.random)),
            GapLaw::Periodic => self.random.below(interval.bytes()),
        };
    }

    /// The interval that the next sample point was drawn with.
    pub fn interval(&self) -> Interval {
        self.interval
    }

    /// The law of the gaps.
    pub fn law(&self) -> GapLaw {
        self.law
    }
}

/// The sample point is the byte after `distance` others.
fn distance(gap: u128) -> u64 {
    u64::try_from(gap.saturating_sub(1))
        .unwrap_or(MAX_DISTANCE)
        .min(MAX_DISTANCE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seed;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    fn sampler(law: GapLaw, interval: u64, seed: u64) -> Sampler {
        let random = Seed { process: seed }.thread(1);
        Sampler::new(law, Interval::new(interval).unwrap(), random)
    }

    /// The byte-indexed oracle: the positions of all sample points up to `end`, from the same random numbers.
    fn points_before(law: GapLaw, interval: u64, seed: u64, end: u64) -> BTreeSet<u128> {
        let mut random = Seed { process: seed }.thread(1);
        let step = Interval::new(interval).unwrap();
        let mut position = match law {
            GapLaw::Poisson => draw_gap(step, &mut random) - 1,
            GapLaw::Periodic => u128::from(random.below(interval)),
        };
        let mut points = BTreeSet::new();
        while position < u128::from(end) {
            points.insert(position);
            position += match law {
                GapLaw::Poisson => draw_gap(step, &mut random),
                GapLaw::Periodic => u128::from(interval),
            };
        }
        points
    }

    fn laws() -> impl Strategy<Value = GapLaw> {
        prop_oneof![Just(GapLaw::Poisson), Just(GapLaw::Periodic)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn an_allocation_contains_exactly_the_points_among_its_bytes(
            law in laws(),
            interval in prop_oneof![Just(1_u64), 2..8_u64, 8..3000_u64, Just(1 << 40), Just(u64::MAX >> 1)],
            seed: u64,
            steps in prop::collection::vec((prop_oneof![0..20_u64, 0..400_u64], any::<bool>()), 1..200),
        ) {
            let mut sampler = sampler(law, interval, seed);
            let end = steps.iter().map(|(size, _)| size.max(&1)).sum();
            let points = points_before(law, interval, seed, end);
            let mut start = 0_u64;
            for (size, is_bulk) in steps {
                let size = size.max(1);
                let next = points.range(u128::from(start)..).next();
                let distance = next.map(|next| (next - u128::from(start)) as u64);
                if let Some(distance) = distance {
                    prop_assert_eq!(sampler.bytes_until_sample(), distance);
                }
                if is_bulk && size <= sampler.bytes_until_sample() {
                    sampler.advance(size);
                } else {
                    let inside = points.range(u128::from(start)..u128::from(start + size)).count();
                    // Beyond, the draws no longer line up with the oracle's.
                    prop_assume!(interval == 1 || law == GapLaw::Periodic || inside < 64);
                    prop_assert_eq!(sampler.on_alloc(size), SamplePoints(inside as u64));
                }
                start += size;
            }
        }
    }

    #[test]
    fn interval_one_samples_everything() {
        for law in [GapLaw::Poisson, GapLaw::Periodic] {
            let mut sampler = sampler(law, 1, 9);
            for size in [0, 1, 2, 1000, 1 << 40, u64::MAX] {
                assert_eq!(sampler.on_alloc(size), SamplePoints(size.max(1)));
                assert_eq!(sampler.bytes_until_sample(), 0);
            }
        }
    }

    #[test]
    fn huge_blocks_and_intervals_neither_loop_nor_wrap() {
        for interval in [2, 3, 4096, 1 << 40, 1 << 62, u64::MAX >> 1] {
            let mut poisson = sampler(GapLaw::Poisson, interval, 4);
            let mut periodic = sampler(GapLaw::Periodic, interval, 4);
            for size in [1 << 40, u64::MAX >> 1, u64::MAX, 0, 1] {
                let points = poisson.on_alloc(size);
                assert!(points.0 <= MAX_COUNTED_POINTS);
                assert!(poisson.bytes_until_sample() <= MAX_DISTANCE);
                let before = periodic.bytes_until_sample();
                let exact = (u128::from(size.max(1)) + u128::from(interval - 1 - before))
                    / u128::from(interval);
                assert_eq!(u128::from(periodic.on_alloc(size).0), exact);
                assert!(periodic.bytes_until_sample() < interval);
            }
        }
        assert_eq!(
            sampler(GapLaw::Poisson, 2, 4).on_alloc(1 << 40),
            SamplePoints(64)
        );
    }

    #[test]
    fn after_a_block_with_too_many_points_to_count_the_law_is_the_same() {
        let mut sampler = sampler(GapLaw::Poisson, 100, 8);
        let distances: Vec<u64> = (0..200_000)
            .map(|_| {
                sampler.on_alloc(1 << 20);
                sampler.bytes_until_sample()
            })
            .collect();
        let mean = distances.iter().sum::<u64>() as f64 / 200_000.0;
        // Mean of gap - 1; standard error 100 / sqrt(200000) = 0.22.
        let expected = 1.0 / (1.0 - (-0.01_f64).exp()) - 1.0;
        assert!((mean - expected).abs() < 5.0 * 0.22, "{mean} {expected}");
    }

    #[test]
    fn a_change_of_interval_holds_from_the_next_byte() {
        let mut sampler = sampler(GapLaw::Poisson, 1 << 40, 5);
        sampler.redraw(Interval::EVERY_ALLOCATION);
        assert_eq!(sampler.bytes_until_sample(), 0);
        sampler.redraw(Interval::new(1000).unwrap());
        assert_eq!(sampler.interval().bytes(), 1000);
        let mut sum = 0;
        for _ in 0..100_000 {
            sampler.redraw(Interval::new(1000).unwrap());
            sum += sampler.bytes_until_sample() + 1;
        }
        // Standard error 3.2.
        assert!((f64::from(sum as u32) / 1e5 - 1000.5).abs() < 16.0, "{sum}");
    }

    #[test]
    fn an_allocation_with_a_sample_point_is_sampled() {
        let is_sampled = [0, 1, 2].map(|points| SamplePoints(points).is_sampled());
        assert_eq!(is_sampled, [false, true, true]);
    }

    #[test]
    fn a_distance_fits_into_a_signed_counter() {
        for seed in 0..64 {
            let distance = sampler(GapLaw::Poisson, i64::MAX as u64, seed).bytes_until_sample();
            assert!(distance <= i64::MAX as u64, "{distance}");
        }
    }
}
