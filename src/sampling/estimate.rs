//! Sums of weights that know their error.

use core::iter::Sum;
use core::ops::{Add, AddAssign, Sub};

use crate::gamma;

/// An estimated quantity (bytes or objects) and how sure it is.
///
/// Made from samples by [`crate::Weight::bytes_estimate`] and [`crate::Weight::objects_estimate`], and added up:
/// values, and, as allocations are sampled independently, variances too. A part of a whole (the live bytes, one site) is
/// the sum over the samples of that part, never a difference.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    value: f64,
    /// Not a number: cannot be estimated. (An `Option` would take a third more, and readers keep millions of these.)
    variance_or_nan: f64,
    samples: u64,
}

impl PartialEq for Estimate {
    fn eq(&self, other: &Self) -> bool {
        let parts = |it: &Self| (it.value, it.variance(), it.samples);
        parts(self) == parts(other)
    }
}

impl Estimate {
    /// Nothing was sampled.
    pub const ZERO: Estimate = Estimate {
        value: 0.0,
        variance_or_nan: 0.0,
        samples: 0,
    };

    /// From parts that were stored. `variance` is `None` where it cannot be estimated (periodic sampling).
    pub fn from_parts(value: f64, variance: Option<f64>, samples: u64) -> Self {
        Self {
            value,
            variance_or_nan: variance.unwrap_or(f64::NAN),
            samples,
        }
    }

    pub(crate) fn of_sample(value: f64, variance: Option<f64>) -> Self {
        Self::from_parts(value, variance, 1)
    }

    /// The estimated quantity.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// Its estimated variance.
    pub fn variance(&self) -> Option<f64> {
        (!self.variance_or_nan.is_nan()).then_some(self.variance_or_nan)
    }

    /// Its standard error: the root of the variance. With few samples it is itself unsure; show
    /// [`Estimate::interval_95`] then.
    pub fn stderr(&self) -> Option<f64> {
        self.variance().map(libm::sqrt)
    }

    /// Number of samples that it rests on.
    pub fn samples(&self) -> u64 {
        self.samples
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

    /// Limits between which the quantity lies with (at least) 95 % confidence, good for few samples too.
    ///
    /// Fay and Feuer's gamma limits: with B the value, V its variance, u the weight of one sample more, and
    /// `G(q; a)` the q-quantile of the gamma distribution of shape a and scale 1,
    ///
    /// ```text
    /// lower = V/B G(0.025; B^2/V)      upper = V'/B' G(0.975; B'^2/V'),  B' = B + u,  V' = V + u^2
    /// ```
    ///
    /// Without any sample that is 0 to 3.69 u; a normal interval would be 0 to 0. For equal weights these are the exact
    /// limits of a Poisson count. M. P. Fay and E. J. Feuer, "Confidence intervals for directly standardized rates: a
    /// method based on the gamma distribution", Statistics in Medicine 16 (1997), 791-801.
    ///
    /// `unit` is u, from [`crate::Weight::unit_bytes`] or [`crate::Weight::unit_objects`]; with intervals that changed,
    /// the largest. `None` where there is no standard error.
    pub fn interval_95(&self, unit: f64) -> Option<(f64, f64)> {
        let variance = self.variance()?;
        let lower = gamma::quantile(gamma::LOWER, self.value, variance);
        let upper = gamma::quantile(gamma::UPPER, self.value + unit, variance + unit * unit);
        Some((lower, upper))
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
            samples: self.samples + other.samples,
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

    fn sub(self, other: Estimate) -> Estimate {
        Estimate {
            value: self.value - other.value,
            variance_or_nan: self.variance_or_nan + other.variance_or_nan,
            samples: self.samples + other.samples,
        }
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
    fn values_and_variances_add_up() {
        let a = Estimate::from_parts(10.0, Some(9.0), 2);
        let b = Estimate::from_parts(4.0, Some(16.0), 3);
        assert_eq!(a + b, Estimate::from_parts(14.0, Some(25.0), 5));
        assert_eq!(a - b, Estimate::from_parts(6.0, Some(25.0), 5));
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

    mod limits {
        use super::super::*;

        #[track_caller]
        fn assert_limits(estimate: Estimate, unit: f64, lower: f64, upper: f64, tolerance: f64) {
            let (low, high) = estimate.interval_95(unit).unwrap();
            assert!(
                (low - lower).abs() <= tolerance * lower.max(1e-300),
                "{low} {lower}"
            );
            assert!((high - upper).abs() <= tolerance * upper, "{high} {upper}");
        }

        /// Garwood's exact limits of a Poisson count, from the tables (5 digits).
        #[test]
        fn equal_weights_give_the_exact_limits_of_a_count() {
            for (count, lower, upper) in [
                (0.0, 0.0, 3.68888),
                (1.0, 0.0253178, 5.57164),
                (3.0, 0.618672, 8.76727),
                (10.0, 4.79539, 18.3904),
                (30.0, 20.2409, 42.8269),
                (100.0, 81.3640, 121.627),
            ] {
                for unit in [1.0, 524_288.0] {
                    let estimate =
                        Estimate::from_parts(count * unit, Some(count * unit * unit), count as u64);
                    assert_limits(estimate, unit, lower * unit, upper * unit, 1e-5);
                }
            }
        }

        #[test]
        fn what_is_exact_has_no_width() {
            assert_limits(
                Estimate::from_parts(77.0, Some(0.0), 3),
                0.0,
                77.0,
                77.0,
                0.0,
            );
            assert_limits(Estimate::ZERO, 0.0, 0.0, 0.0, 0.0);
        }

        #[test]
        fn many_samples_give_the_normal_interval() {
            let root = 1e5;
            let estimate = Estimate::from_parts(1e10, Some(1e10), 10_000_000_000);
            assert_limits(estimate, 1.0, 1e10 - 1.96 * root, 1e10 + 1.96 * root, 1e-8);
        }

        #[test]
        fn no_error_no_limits() {
            assert_eq!(Estimate::from_parts(1.0, None, 1).interval_95(1.0), None);
        }
    }
}
