//! Sums of weights that know their error.

use core::iter::Sum;
use core::ops::{Add, AddAssign, Sub};

use crate::gamma;

/// An estimated quantity (bytes or objects), how sure it is, and the limits that it lies between.
///
/// Made from samples by [`crate::Weight::bytes_estimate`] and [`crate::Weight::objects_estimate`], and added up:
/// values, and, as allocations are sampled independently, variances too. A part of a whole (the live bytes, one site) is
/// the sum over the samples of that part, never a difference.
///
/// The variance is estimated from the blocks that were drawn. Blocks that were not drawn are not in it: a site of one
/// large block, which is drawn for certain, and a thousand small ones, of which none happened to be drawn, has next to no
/// variance. So every estimate also carries its *allowance*: what one more small block would have added. The standard
/// error and the limits contain it; [`Estimate::variance`] does not, so that variances can be added up.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    value: f64,
    /// Not a number: cannot be estimated. (An `Option` would take a third more, and readers keep millions of these.)
    variance_or_nan: f64,
    /// Lower bound of the quantity: the part that was sampled. Minus infinity for a difference.
    drawn: f64,
    /// The allowance: what one more small block would have added. Four bytes are precise enough.
    allowance: f32,
    /// Fewer than 2^32: a sample has an index of 32 bits.
    samples: u32,
}

const _: () = assert!(size_of::<Estimate>() == 32);

impl PartialEq for Estimate {
    fn eq(&self, other: &Self) -> bool {
        let parts = |it: &Self| (it.value, it.variance(), it.drawn, it.allowance, it.samples);
        parts(self) == parts(other)
    }
}

/// The 95 % limits of an [`Estimate`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The quantity is at least this.
    pub low: f64,
    /// The quantity is at most this.
    pub high: f64,
}

impl Limits {
    /// Whether a quantity lies between them.
    pub fn contain(&self, quantity: f64) -> bool {
        (self.low..=self.high).contains(&quantity)
    }
}

/// The normal distribution has 95 % within so many standard deviations.
const NORMAL_95: f64 = 1.959_963_984_540_054;

impl Estimate {
    /// An exact zero: nothing was sampled, and the allowance is 0.
    pub const ZERO: Estimate = Estimate {
        value: 0.0,
        variance_or_nan: 0.0,
        drawn: 0.0,
        allowance: 0.0,
        samples: 0,
    };

    /// With fewer effective samples the limits are asymmetric, and a standard error misleads.
    pub const FEW: f64 = 30.0;

    /// From parts that were stored. `variance` is `None` where it cannot be estimated (periodic sampling).
    pub fn from_parts(value: f64, variance: Option<f64>, samples: u64) -> Self {
        Self {
            value,
            variance_or_nan: variance.unwrap_or(f64::NAN),
            drawn: 0.0,
            allowance: 0.0,
            samples: u32::try_from(samples).unwrap_or(u32::MAX),
        }
    }

    /// The estimate from a single sample of `drawn` bytes or objects. One more sample would have added up to `allowance`.
    pub(crate) fn of_sample(value: f64, variance: Option<f64>, drawn: f64, allowance: f64) -> Self {
        Self {
            drawn,
            ..Self::from_parts(value, variance, 1)
        }
        .allowing_for(allowance)
    }

    /// The same with an allowance of at least this: what one more small block would have added that could have been
    /// drawn, and was not. An estimate without any sample knows it from nowhere else.
    #[must_use]
    pub fn allowing_for(self, allowance: f64) -> Self {
        Self {
            allowance: self.allowance.max(allowance as f32),
            ..self
        }
    }

    /// The same estimate with another lower bound.
    #[must_use]
    pub fn with_drawn(self, drawn: f64) -> Self {
        Self { drawn, ..self }
    }

    /// The same estimate with the variance of a further error that is independent of sampling.
    #[must_use]
    pub fn with_more_variance(self, variance: f64) -> Self {
        Self {
            variance_or_nan: self.variance_or_nan + variance,
            ..self
        }
    }

    /// The negated quantity, to be subtracted from others by adding it.
    #[must_use]
    pub fn negated(self) -> Self {
        Self {
            value: -self.value,
            drawn: f64::NEG_INFINITY,
            ..self
        }
    }

    /// The same quantity in a unit that is `divisor` times as large.
    #[must_use]
    pub fn divided_by(self, divisor: f64) -> Self {
        Self {
            value: self.value / divisor,
            variance_or_nan: self.variance_or_nan / (divisor * divisor),
            drawn: self.drawn / divisor,
            allowance: (f64::from(self.allowance) / divisor) as f32,
            samples: self.samples,
        }
    }

    /// The estimated quantity.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// The estimated variance of what was drawn. It leaves out the allowance for what was not; see
    /// [`Estimate::stderr`].
    pub fn variance(&self) -> Option<f64> {
        (!self.variance_or_nan.is_nan()).then_some(self.variance_or_nan)
    }

    /// Its standard error: `sqrt(V + u^2)` with the variance V and the allowance u. With few samples it is itself
    /// unsure; show [`Estimate::limits_95`] then.
    pub fn stderr(&self) -> Option<f64> {
        let allowance = self.allowance();
        let with_allowance = |variance| libm::sqrt(variance + allowance * allowance);
        self.variance().map(with_allowance)
    }

    /// Number of samples in the estimate.
    pub fn samples(&self) -> u64 {
        u64::from(self.samples)
    }

    /// Lower bound: the bytes, or the number, of the blocks that were sampled. 0 for a difference.
    pub fn drawn(&self) -> f64 {
        self.drawn.max(0.0)
    }

    /// The allowance: what one more small block would have added.
    pub fn allowance(&self) -> f64 {
        f64::from(self.allowance)
    }

    /// Whether the value is exact: every allocation was recorded.
    pub fn is_exact(&self) -> bool {
        self.variance_or_nan == 0.0 && self.allowance == 0.0
    }

    /// Whether its limits say more than its standard error: fewer than [`Estimate::FEW`] effective samples, which are
    /// `V/u^2`. For n samples of small blocks that is n; blocks so large that they are drawn for certain count as none,
    /// for they say nothing of others.
    pub fn has_few_samples(&self) -> bool {
        let allowance = self.allowance();
        self.variance_or_nan < Self::FEW * allowance * allowance
    }

    /// How many standard errors the estimate lies above the exact quantity. `None` where there is no standard error.
    /// Where it is 0 the answer is 0 for equal numbers, and infinite for others.
    pub fn z_against(&self, exact: f64) -> Option<f64> {
        let difference = self.value - exact;
        let stderr = self.stderr()?;
        Some(if difference == 0.0 {
            0.0
        } else {
            difference / stderr
        })
    }

    /// Limits between which the quantity lies with 95 % confidence, good for few samples too.
    ///
    /// What was drawn (D) is certain; the limits are about the rest, U = B - D, with the variance V and the allowance u.
    /// They are Fay and Kim's mid-p gamma limits, with unequal tails: quantiles of even mixtures of two gamma
    /// distributions, of mean U and variance V, and of those of one more sample. For the upper limit that sample is u,
    /// for the lower one the mean weight of those that were drawn, w = V/U, but at most u:
    ///
    /// ```text
    /// low = D + the quantile a of 1/2 Gamma(U, V) + 1/2 Gamma(U + w, V + w^2);   D if U^2 < 1.5 V
    /// high = D + the quantile 1 - b of 1/2 Gamma(U, V) + 1/2 Gamma(U + u, V + u^2)
    /// few = max(0, 1 - V / 30 u^2) min(1, U^2 / V),   r = min(1, w / u)
    /// a = 2.5 % + few (1.5 % r + 2.5 % (1 - r)),   b = 2.5 % - few 1.5 % r
    /// ```
    ///
    /// With many samples, and with none, the tails a and b are 2.5 % each. With few of equal weight (r = 1) they are 4 %
    /// and 1 %: limits of a small count hold more evenly so. Where u exceeds the weight of the samples (r = 0) only the
    /// lower tail grows, to 5 %, since the allowance itself keeps the quantity below the upper limit.
    ///
    /// Without any sample that is 0 to 3.0 u (the chance to draw nothing of 3.0 N bytes is 5 %, however they are cut into
    /// blocks); a normal interval would be 0 to 0. For samples of equal weight these are the mid-p limits of a Poisson
    /// count. M. P. Fay and S. Kim, "Confidence intervals for directly standardized rates using mid-p gamma intervals",
    /// Biometrical Journal 59 (2017), 377-387; the gamma limits themselves are M. P. Fay and E. J. Feuer's, Statistics in
    /// Medicine 16 (1997), 791-801.
    ///
    /// A difference, which may be negative, has normal limits. `None` where there is no standard error.
    pub fn limits_95(&self) -> Option<Limits> {
        let variance = self.variance()?;
        let stderr = self.stderr()?;
        let half_width = NORMAL_95 * stderr;
        if self.drawn == f64::NEG_INFINITY {
            return Some(Limits {
                low: self.value - half_width,
                high: self.value + half_width,
            });
        }
        let rest = (self.value - self.drawn).max(0.0);
        let (low, high) = gamma::mid_p_limits(rest, variance, self.allowance());
        Some(Limits {
            low: self.drawn + low,
            high: self.drawn + high,
        })
    }
}

impl Default for Estimate {
    fn default() -> Self {
        Self::ZERO
    }
}

impl Add for Estimate {
    type Output = Estimate;

    fn add(self, other: Estimate) -> Estimate {
        Estimate {
            value: self.value + other.value,
            // What is not known of a part is not known of the sum.
            variance_or_nan: self.variance_or_nan + other.variance_or_nan,
            drawn: self.drawn + other.drawn,
            // The block that was missed is in one of the two.
            allowance: self.allowance.max(other.allowance),
            samples: self.samples.saturating_add(other.samples),
        }
    }
}

impl AddAssign for Estimate {
    fn add_assign(&mut self, other: Estimate) {
        *self = *self + other;
    }
}

/// The difference of two estimates with no sample in common, as of two profiles: their variances add up.
impl Sub for Estimate {
    type Output = Estimate;

    #[expect(
        clippy::suspicious_arithmetic_impl,
        reason = "the other quantity is negated, its variance is not"
    )]
    fn sub(self, other: Estimate) -> Estimate {
        self + other.negated()
    }
}

impl Sum for Estimate {
    fn sum<I: Iterator<Item = Estimate>>(estimates: I) -> Estimate {
        estimates.fold(Estimate::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_changes_in_the_part_that_is_named_and_in_no_other() {
        let sampled = Estimate::of_sample(10.0, Some(9.0), 7.0, 2.0);
        let stored = Estimate::from_parts(10.0, Some(9.0), 1).allowing_for(2.0);
        assert_ne!(sampled, stored);
        assert_eq!(sampled, stored.with_drawn(7.0));
        let parts = |it: Estimate| {
            (
                it.value(),
                it.variance(),
                it.drawn(),
                it.allowance(),
                it.samples(),
            )
        };
        assert_eq!(parts(sampled), (10.0, Some(9.0), 7.0, 2.0, 1));
        let more = sampled.with_more_variance(2.0);
        assert_eq!(parts(more), (10.0, Some(11.0), 7.0, 2.0, 1));
        let half = sampled.divided_by(2.0);
        assert_eq!(parts(half), (5.0, Some(2.25), 3.5, 1.0, 1));
        let unknown = Estimate::from_parts(10.0, None, 3);
        assert_eq!(unknown.with_more_variance(2.0).variance(), None);
    }

    #[test]
    fn values_and_variances_add_up() {
        let a = Estimate::from_parts(10.0, Some(9.0), 2);
        let b = Estimate::from_parts(4.0, Some(16.0), 3);
        assert_eq!(a + b, Estimate::from_parts(14.0, Some(25.0), 5));
        assert_eq!(((a - b).value(), (a - b).variance()), (6.0, Some(25.0)));
        assert_eq!((a + b).stderr(), Some(5.0));
        assert_eq!([a, b].into_iter().sum::<Estimate>(), a + b);
        let unknown = Estimate::from_parts(1.0, None, 1);
        assert_eq!((a + unknown).stderr(), None);
        assert_eq!((a - unknown).value(), 9.0);
    }

    #[test]
    fn z_counts_standard_errors() {
        let estimate = Estimate::from_parts(10.0, Some(4.0), 2);
        assert_eq!(estimate.z_against(6.0), Some(2.0));
        assert_eq!(estimate.z_against(13.0), Some(-1.5));
        assert_eq!(Estimate::ZERO.z_against(0.0), Some(0.0));
        assert_eq!(Estimate::ZERO.z_against(1.0), Some(f64::NEG_INFINITY));
        assert_eq!(Estimate::from_parts(1.0, None, 1).z_against(1.0), None);
    }

    #[test]
    fn a_difference_may_be_negative_and_is_certain_of_nothing() {
        let small = Estimate::of_sample(10.0, Some(9.0), 8.0, 2.0);
        let large = Estimate::of_sample(14.0, Some(16.0), 12.0, 3.0);
        let difference = small - large;
        assert_eq!((difference.value(), difference.drawn()), (-4.0, 0.0));
        assert_eq!(difference.variance(), Some(25.0));
        let Limits { low, high } = difference.limits_95().unwrap();
        let half = NORMAL_95 * (25.0_f64 + 9.0).sqrt();
        assert!((low + 4.0 + half).abs() < 1e-9 && (high + 4.0 - half).abs() < 1e-9);
    }

    #[test]
    fn what_was_not_drawn_is_in_the_standard_error() {
        let none = Estimate::ZERO.allowing_for(4096.0);
        assert_eq!(none.stderr(), Some(4096.0));
        let one = Estimate::of_sample(0.0, Some(9.0), 0.0, 4.0);
        assert_eq!(one.stderr(), Some(5.0));
        // Of all that was allowed for, only one is missing.
        assert_eq!((one + one).allowance(), 4.0);
        assert_eq!((one + none).allowance(), 4096.0);
        assert!(none.has_few_samples() && !Estimate::ZERO.has_few_samples());
        let many: Estimate =
            core::iter::repeat_n(Estimate::of_sample(4.0, Some(16.0), 0.0, 4.0), 30).sum();
        assert!(!many.has_few_samples());
        // Drawn for certain, however many: of what is small they say nothing.
        let large: Estimate =
            core::iter::repeat_n(Estimate::of_sample(4e6, Some(1e-9), 4e6, 4.0), 1000).sum();
        assert!(large.has_few_samples());
    }

    mod limits {
        use super::super::*;

        fn of_count(count: f64, unit: f64) -> Estimate {
            Estimate::from_parts(count * unit, Some(count * unit * unit), count as u64)
                .allowing_for(unit)
        }

        #[track_caller]
        fn assert_limits(estimate: Estimate, lower: f64, upper: f64, tolerance: f64) {
            let Limits { low, high } = estimate.limits_95().unwrap();
            assert!(
                (low - lower).abs() <= tolerance * lower.max(1e-300),
                "{low} {lower}"
            );
            assert!((high - upper).abs() <= tolerance * upper, "{high} {upper}");
        }

        /// Where half of the probability of the count itself and all of that beyond it make so much, by a sum of the
        /// Poisson law.
        fn mid_p(count: u32, is_upper: bool, probability: f64) -> f64 {
            let tail = |mean: f64| {
                let term = |k: u32| {
                    (f64::from(k) * mean.ln() - mean - libm::lgamma(f64::from(k) + 1.0)).exp()
                };
                let half = 0.5 * term(count);
                match is_upper {
                    true => (0..count).map(term).sum::<f64>() + half,
                    false => 1.0 - (0..count).map(term).sum::<f64>() - half,
                }
            };
            let (mut low, mut high) = (1e-9, 400.0);
            for _ in 0..100 {
                let middle = (low + high) / 2.0;
                if (tail(middle) > probability) == is_upper {
                    low = middle;
                } else {
                    high = middle;
                }
            }
            low
        }

        #[test]
        fn equal_weights_give_the_mid_p_limits_of_a_count() {
            for count in [2, 3, 10, 30, 100] {
                let moved = 0.015 * (1.0 - f64::from(count) / 30.0).max(0.0);
                let lower = mid_p(count, false, 0.025 + moved);
                let upper = mid_p(count, true, 0.025 - moved);
                for unit in [1.0, 524_288.0] {
                    let estimate = of_count(f64::from(count), unit);
                    assert_limits(estimate, lower * unit, upper * unit, 1e-3);
                }
            }
        }

        #[test]
        fn a_block_that_was_sampled_for_sure_or_by_luck_may_be_all_there_is() {
            // One small block, and one to four of an interval, all of them sampled: p = 1 - 1/e.
            let Limits { low, high } = of_count(1.0, 1.0).limits_95().unwrap();
            assert!(low == 0.0 && (high - mid_p(1, true, 0.0105)).abs() < 1e-3);
            let p = 1.0 - (-1.0_f64).exp();
            for blocks in 1..=4 {
                let one = Estimate::of_sample(1.0 / p, Some((1.0 - p) / (p * p)), 1.0, 1.0);
                let all: Estimate = core::iter::repeat_n(one, blocks).sum();
                let limits = all.limits_95().unwrap();
                assert!(limits.contain(blocks as f64), "{blocks}: {limits:?}");
            }
            // Ten at once are no luck: some were missed.
            let one = Estimate::of_sample(1.0 / p, Some((1.0 - p) / (p * p)), 1.0, 1.0);
            let ten: Estimate = core::iter::repeat_n(one, 10).sum();
            assert!(ten.limits_95().unwrap().low > 10.5);
        }

        #[test]
        fn no_sample_is_below_three_intervals() {
            assert_limits(of_count(0.0, 524_288.0), 0.0, 2.995_732 * 524_288.0, 1e-6);
        }

        #[test]
        fn what_was_drawn_is_the_least_and_what_was_not_comes_on_top() {
            // A large block, drawn for certain.
            let large = Estimate::of_sample(1e9, Some(0.0), 1e9, 4096.0);
            assert_limits(large, 1e9, 1e9 + 2.995_732 * 4096.0, 1e-11);
        }

        #[test]
        fn what_is_exact_has_no_width() {
            let exact = Estimate::from_parts(77.0, Some(0.0), 3);
            assert!(exact.is_exact());
            assert_limits(exact, 77.0, 77.0, 0.0);
            assert_limits(Estimate::ZERO, 0.0, 0.0, 0.0);
        }

        #[test]
        fn many_samples_give_the_normal_interval() {
            let root = 1e5;
            let estimate = Estimate::from_parts(1e10, Some(1e10), 4_000_000_000).allowing_for(1.0);
            assert_limits(estimate, 1e10 - 1.96 * root, 1e10 + 1.96 * root, 1e-8);
        }

        #[test]
        fn no_error_no_limits() {
            assert_eq!(Estimate::from_parts(1.0, None, 1).limits_95(), None);
        }
    }

    #[test]
    fn only_an_estimate_without_variance_and_allowance_is_exact() {
        let estimate =
            |variance, allowance| Estimate::from_parts(10.0, variance, 1).allowing_for(allowance);
        assert!(estimate(Some(0.0), 0.0).is_exact());
        assert!(!estimate(Some(1.0), 0.0).is_exact());
        assert!(!estimate(Some(0.0), 1.0).is_exact());
        assert!(!estimate(None, 0.0).is_exact());
    }

    #[test]
    fn limits_contain_what_lies_between_them() {
        let limits = Limits {
            low: 1.0,
            high: 2.0,
        };
        let contained = [0.9, 1.0, 1.5, 2.0, 2.1].map(|quantity| limits.contain(quantity));
        assert_eq!(contained, [false, true, true, true, false]);
    }

    #[test]
    fn samples_add_up() {
        let three = Estimate::from_parts(30.0, Some(5.0), 3);
        let mut sum = three + Estimate::from_parts(40.0, Some(6.0), 4);
        assert_eq!((sum.value(), sum.samples()), (70.0, 7));
        sum += three;
        assert_eq!(
            (sum.value(), sum.variance(), sum.samples()),
            (100.0, Some(16.0), 10)
        );
    }

    #[test]
    fn fewer_than_thirty_effective_samples_are_few() {
        let of = |variance| Estimate::from_parts(0.0, Some(variance), 1).allowing_for(2.0);
        assert!(of(119.9).has_few_samples());
        assert!(!of(120.0).has_few_samples());
    }

    #[test]
    fn a_larger_unit_divides_the_variance_by_its_square() {
        let estimate = Estimate::from_parts(40.0, Some(32.0), 3).allowing_for(8.0);
        let divided = estimate.divided_by(4.0);
        assert_eq!((divided.value(), divided.variance()), (10.0, Some(2.0)));
        assert_eq!((divided.allowance(), divided.samples()), (2.0, 3));
    }
}
