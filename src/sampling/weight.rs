//! How many bytes and objects one sample stands for.

use crate::{Estimate, GapLaw, Interval, SamplePoints};

/// Turns sampled allocations into the bytes and objects they stand for.
///
/// # Poisson: Horvitz-Thompson
///
/// Allocation i of S_i bytes (0 counts as 1) is sampled with probability `p_i = 1 - exp(-S_i/N)`: that is the
/// probability that one of its bytes is a sample point, see [`crate::draw_gap`]. A sample stands for `S_i/p_i` bytes and
/// `1/p_i` objects.
///
/// *Unbiased.* Let z_i be 1 if i is sampled, else 0, and y_i any quantity of the allocation (S_i for bytes, 1 for
/// objects). The estimate of `Y = sum y_i` is `T = sum z_i y_i/p_i`, and `E[T] = sum p_i y_i/p_i = Y`, whatever the
/// sizes are and however they are mixed.
///
/// *Variance.* Sample points in disjoint stretches of bytes are independent, hence so are the z_i, and
/// `Var T = sum (y_i/p_i)^2 p_i (1 - p_i)`. Replacing the sum over all by the weighted sum over the samples gives
/// `V = sum z_i (y_i/p_i)^2 (1 - p_i)`, unbiased by the same argument: for bytes `sum (S_i/p_i)^2 (1 - p_i)`, for
/// objects `sum (1 - p_i)/p_i^2`.
///
/// D. G. Horvitz and D. J. Thompson, "A generalization of sampling without replacement from a finite universe", JASA 47
/// (1952), 663-685. The number of points in the sample is not used: `points * N` is an estimate too, but of larger
/// variance (at S = 8N: 8 N^2 against 0.02 N^2), since `S/p` is its mean given that there is a point (Rao-Blackwell).
///
/// For example, at N = 512 KiB a block of 4 KiB is sampled with probability 0.0078 and then stands for 514 KiB, a block
/// of 3 MiB with 0.9975 for 3.007 MiB.
///
/// # Periodic
///
/// A sample with n points stands for `n * N` bytes and `n * N / S` objects: unbiased over the random start, but with one
/// start there is nothing from which an error could be estimated.
///
/// # Interval 1
///
/// Every allocation is a sample and stands for itself, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weight {
    law: GapLaw,
    interval: Interval,
}

impl Weight {
    /// For samples whose gap was drawn with this law and interval. Where the interval changed in between, each sample
    /// needs its own.
    pub fn new(law: GapLaw, interval: Interval) -> Self {
        Self { law, interval }
    }

    /// The bytes that a sample of `size` bytes stands for.
    pub fn bytes(&self, size: u64, points: SamplePoints) -> f64 {
        // To f64: sizes beyond 2^53 lose less than one part in 10^15.
        self.scale(size, points) * size as f64
    }

    /// The objects that a sample of `size` bytes stands for.
    pub fn objects(&self, size: u64, points: SamplePoints) -> f64 {
        self.scale(size, points)
    }

    /// [`Weight::bytes`] with its error.
    pub fn bytes_estimate(&self, size: u64, points: SamplePoints) -> Estimate {
        let value = self.bytes(size, points);
        let variance = self.variance(value, size);
        // To f64: see `bytes`.
        Estimate::of_sample(value, variance, size as f64, self.unit_bytes())
    }

    /// [`Weight::objects`] with its error. `smallest` is the size of the smallest block that there may be.
    pub fn objects_estimate(&self, size: u64, points: SamplePoints, smallest: u64) -> Estimate {
        let value = self.objects(size, points);
        let variance = self.variance(value, size);
        Estimate::of_sample(value, variance, 1.0, self.unit_objects(smallest.min(size)))
    }

    /// The allowance of an [`Estimate`] of bytes: what one more small sample would have added. 0 if every allocation is a
    /// sample.
    pub fn unit_bytes(&self) -> f64 {
        if self.is_exact() {
            return 0.0;
        }
        self.interval.bytes() as f64
    }

    /// The allowance of an [`Estimate`] of objects of at least `smallest` bytes: what one more sample of that size would have
    /// added. 0 if every allocation is a sample.
    pub fn unit_objects(&self, smallest: u64) -> f64 {
        if self.is_exact() {
            return 0.0;
        }
        1.0 / inclusion_probability(smallest, self.interval)
    }

    /// Objects that a sample stands for. A sampled block of 0 bytes weighs as one of 1 byte, and has none.
    fn scale(&self, size: u64, points: SamplePoints) -> f64 {
        match self.law {
            _ if self.is_exact() => 1.0,
            GapLaw::Poisson => 1.0 / inclusion_probability(size, self.interval),
            GapLaw::Periodic => points.0 as f64 * self.interval.bytes() as f64 / size.max(1) as f64,
        }
    }

    /// `value^2 (1 - p)`, `None` if it cannot be estimated.
    fn variance(&self, value: f64, size: u64) -> Option<f64> {
        match self.law {
            _ if self.is_exact() => Some(0.0),
            GapLaw::Poisson => Some(value * value * libm::exp(-ratio(size, self.interval))),
            GapLaw::Periodic => None,
        }
    }

    fn is_exact(&self) -> bool {
        self.interval == Interval::EVERY_ALLOCATION
    }
}

/// Probability that an allocation of `size` bytes (0 counts as 1) is sampled under the Poisson law:
/// `1 - exp(-size/N)`, and 1 at N = 1. In (0, 1].
pub fn inclusion_probability(size: u64, interval: Interval) -> f64 {
    if interval == Interval::EVERY_ALLOCATION {
        return 1.0;
    }
    // expm1: for S = 16 and N = 2^40 the difference 1 - exp(-S/N) would keep 5 digits only.
    -libm::expm1(-ratio(size, interval))
}

fn ratio(size: u64, interval: Interval) -> f64 {
    size.max(1) as f64 / interval.bytes() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ONE: SamplePoints = SamplePoints(1);

    fn poisson(interval: u64) -> Weight {
        Weight::new(GapLaw::Poisson, Interval::new(interval).unwrap())
    }

    #[track_caller]
    fn assert_close(value: f64, expected: f64) {
        assert!((value / expected - 1.0).abs() < 1e-12, "{value} {expected}");
    }

    #[test]
    fn the_allowance_is_what_one_more_sample_would_stand_for() {
        let weight = poisson(1000);
        assert_eq!(weight.unit_bytes(), 1000.0);
        // 1 / (1 - exp(-S/N)).
        assert_close(weight.unit_objects(1000), 1.581_976_706_869_326_4);
        assert_close(weight.unit_objects(1), 1.0 / -libm::expm1(-0.001));
        let exact = poisson(1);
        assert_eq!((exact.unit_bytes(), exact.unit_objects(1)), (0.0, 0.0));
    }

    #[test]
    fn known_values() {
        let half_mib = Interval::DEFAULT;
        assert_close(
            inclusion_probability(4096, half_mib),
            0.007_782_061_739_756_485,
        );
        assert_close(
            inclusion_probability(512 << 10, half_mib),
            1.0 - (-1.0_f64).exp(),
        );
        // Tiny ratios keep their precision: p = x - x^2/2, x = 2^-60.
        let far = Interval::new(1 << 60).unwrap();
        assert_eq!(inclusion_probability(0, far), 2.0_f64.powi(-60));
        assert_eq!(inclusion_probability(1, far), 2.0_f64.powi(-60));
        assert_eq!(inclusion_probability(u64::MAX, half_mib), 1.0);
    }

    #[test]
    fn interval_one_is_exact() {
        for law in [GapLaw::Poisson, GapLaw::Periodic] {
            let weight = Weight::new(law, Interval::EVERY_ALLOCATION);
            for size in [0, 1, 16, 1 << 40] {
                let points = SamplePoints(size.max(1));
                assert_eq!(weight.bytes(size, points), size as f64);
                assert_eq!(weight.objects(size, points), 1.0);
                assert_eq!(weight.bytes_estimate(size, points).stderr(), Some(0.0));
            }
            assert_eq!((weight.unit_bytes(), weight.unit_objects(1)), (0.0, 0.0));
        }
    }

    #[test]
    fn empty_blocks_weigh_objects_and_no_bytes() {
        let weight = poisson(1000);
        assert_eq!(weight.bytes(0, ONE), 0.0);
        assert_close(weight.objects(0, ONE), 1.0 / (1.0 - (-0.001_f64).exp()));
    }

    #[test]
    fn periodic_counts_points_and_claims_no_error() {
        let weight = Weight::new(GapLaw::Periodic, Interval::new(1000).unwrap());
        assert_eq!(weight.bytes(2500, SamplePoints(3)), 3000.0);
        assert_eq!(weight.objects(2500, SamplePoints(3)), 1.2);
        assert_eq!(weight.bytes_estimate(2500, SamplePoints(3)).stderr(), None);
    }

    proptest! {
        #[test]
        fn expectation_and_variance_are_those_of_the_formula(size in 1..1_u64 << 50, interval in 2..1_u64 << 50) {
            let weight = poisson(interval);
            let p = inclusion_probability(size, Interval::new(interval).unwrap());
            prop_assert!(p > 0.0 && p <= 1.0);
            let (bytes, objects) = (weight.bytes_estimate(size, ONE), weight.objects_estimate(size, ONE, 8));
            prop_assert!((p * bytes.value() / size as f64 - 1.0).abs() < 1e-12);
            prop_assert!((p * objects.value() - 1.0).abs() < 1e-12);
            // E[V] = S^2 (1 - p) / p, of which 1 - p is computed without cancellation.
            let q = (-(size as f64 / interval as f64)).exp();
            let variance = size as f64 * size as f64 * q / p;
            prop_assert!((p * bytes.variance().unwrap() - variance).abs() <= 1e-9 * variance);
            // Weights never exceed both the size and the interval by more than half of the latter, nor fall below either.
            let larger = size.max(interval) as f64;
            prop_assert!(bytes.value() >= larger * (1.0 - 1e-12) && bytes.value() <= larger * 1.582);
        }
    }
}
