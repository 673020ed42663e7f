//! Quantiles of mixtures of gamma distributions, behind the confidence limits.

/// From this shape on Wilson and Hilferty's formula is good to 10^-5 of the quantile, and the series would need ever
/// more terms.
const LARGE_SHAPE: f64 = 300.0;

/// With at least this many samples a formula replaces the search; the two agree within 0.1 %.
const MANY: f64 = 30.0;

/// The standard normal distribution has 2.5 % above this.
const NORMAL_TAIL: f64 = 1.959_963_984_540_054;

/// The probabilities below and above the limits.
#[derive(Clone, Copy, Debug)]
struct Tails {
    low: f64,
    high: f64,
}

impl Tails {
    /// On either side, with many samples or none.
    const EVEN: f64 = 0.025;
    /// With few samples, this much of the upper tail moves to the lower one.
    const MOVED: f64 = 0.015;
    /// The most that the lower tail gains.
    const GAINED: f64 = 0.025;

    /// Of samples with this sum and variance, where one more would have weighed `unit`.
    ///
    /// With equal tails the upper limit of a few samples would be missed too rarely and too often by turns, depending on
    /// the quantity: limits of a count cannot hold exactly 95 %. Tails of 4 % and 1 % miss it less often, and vary less.
    /// A unit that exceeds the weight of the samples alone keeps the quantity below the upper limit. Then that limit stays
    /// what it is, and the lower one has 5 %.
    fn of(mean: f64, variance: f64, unit: f64) -> Self {
        let even = Self {
            low: Self::EVEN,
            high: Self::EVEN,
        };
        if mean <= 0.0 || variance <= 0.0 || unit <= 0.0 {
            return even;
        }
        let units = variance / (unit * unit);
        // Blocks that are nearly certain to be sampled are no samples of others: for them `mean` is small.
        let samples = mean * mean / variance;
        let few = (1.0 - units / MANY).max(0.0) * samples.min(1.0);
        let likeness = (variance / mean / unit).min(1.0);
        Self {
            low: Self::EVEN + few * (Self::MOVED * likeness + Self::GAINED * (1.0 - likeness)),
            high: Self::EVEN - few * Self::MOVED * likeness,
        }
    }
}

/// A gamma distribution by its mean and variance; all of it at the mean if there is no spread.
#[derive(Clone, Copy, Debug)]
struct Gamma {
    mean: f64,
    variance: f64,
}

impl Gamma {
    /// P(X <= x).
    fn cumulative(&self, x: f64) -> f64 {
        if self.mean <= 0.0 || self.variance <= 0.0 {
            return if x >= self.mean.max(0.0) { 1.0 } else { 0.0 };
        }
        let scale = self.variance / self.mean;
        let (shape, x) = (self.mean / scale, x / scale);
        if shape > LARGE_SHAPE {
            return wilson_hilferty(shape, x);
        }
        regularized_lower(shape, x)
    }
}

/// With fewer samples than these the lower limit is 0: one sample shows that its block exists, and no more. A few blocks
/// of about an interval, all of them sampled, count as so few.
const LEAST_SAMPLES: f64 = 1.5;

/// Limits of what was not sampled: quantiles of even mixtures of a gamma distribution with this mean and variance, and of
/// one with another sample added. See [`crate::Estimate::limits_95`].
pub(crate) fn mid_p_limits(mean: f64, variance: f64, unit: f64) -> (f64, f64) {
    let mean = mean.max(0.0);
    let below = Gamma {
        mean,
        variance: if mean > 0.0 { variance } else { 0.0 },
    };
    let above = |weight: f64| Gamma {
        mean: mean + weight,
        variance: variance + weight * weight,
    };
    let with_unit = above(unit);
    if with_unit.variance <= 0.0 {
        return (mean, mean);
    }
    if mean <= 0.0 {
        // Exponential above, a point below.
        return (0.0, -libm::log(2.0 * Tails::EVEN) * unit);
    }
    // A larger unit bounds what may be missing, and says nothing of what was seen.
    let weight = (variance / mean).min(unit);
    if variance >= MANY * unit * unit {
        // The mixture is as good as one gamma distribution of its mean and variance.
        let quantile = |weight: f64, normal| {
            let mean = mean + weight / 2.0;
            let variance = variance + 0.75 * weight * weight;
            let scale = variance / mean;
            scale * wilson_hilferty_quantile(mean / scale, normal)
        };
        return (quantile(weight, -NORMAL_TAIL), quantile(unit, NORMAL_TAIL));
    }
    let tails = Tails::of(mean, variance, unit);
    // Both quantiles of a gamma distribution lie within the mean plus 4 deviations and 10 scales, whatever its shape.
    let quantile = |above: Gamma, probability| {
        let mixture = |x: f64| 0.5 * (below.cumulative(x) + above.cumulative(x));
        let scale = above.variance / above.mean;
        let highest = above.mean + 4.0 * libm::sqrt(above.variance) + 10.0 * scale;
        quantile(&mixture, probability, highest)
    };
    let low = if mean * mean < LEAST_SAMPLES * variance {
        0.0
    } else {
        quantile(above(weight), tails.low)
    };
    (low, quantile(with_unit, 1.0 - tails.high))
}

/// Where a distribution function on `0..=highest` reaches a probability, by bisection. It may jump. The Illinois method takes as
/// many evaluations (24 to 37, instead of 27 to 33) to a bracket this narrow.
fn quantile(cumulative: &impl Fn(f64) -> f64, probability: f64, highest: f64) -> f64 {
    const PRECISION: f64 = 1e-7;
    let (mut low, mut high) = (0.0, highest);
    if cumulative(low) >= probability {
        return low;
    }
    // Bounded also where the quantile is next to 0.
    for _ in 0..100 {
        if high - low <= PRECISION * high {
            break;
        }
        let middle = low + (high - low) / 2.0;
        if cumulative(middle) >= probability {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

/// P(a, x): the cube root of a gamma variable is nearly normal. E. B. Wilson and M. M. Hilferty, "The distribution of
/// chi-square", PNAS 17 (1931), 684-688.
fn wilson_hilferty(shape: f64, x: f64) -> f64 {
    let normal = (libm::cbrt(x / shape) - 1.0 + 1.0 / (9.0 * shape)) * 3.0 * libm::sqrt(shape);
    0.5 * libm::erfc(-normal * core::f64::consts::FRAC_1_SQRT_2)
}

/// P(a, x), the distribution function: its power series below the mean, the continued fraction of 1 - P (by Lentz's
/// method) above it. NIST Digital Library of Mathematical Functions, 8.11.4 and 8.9.2.
fn regularized_lower(shape: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    const TERMS: usize = 100_000;
    const TINY: f64 = 1e-300;
    let front = libm::exp(shape * libm::log(x) - x - libm::lgamma(shape));
    if x < shape + 1.0 {
        let mut term = 1.0 / shape;
        let mut sum = term;
        let mut divisor = shape;
        for _ in 0..TERMS {
            divisor += 1.0;
            term *= x / divisor;
            sum += term;
            if term <= sum * f64::EPSILON {
                break;
            }
        }
        return front * sum;
    }
    let mut b = x + 1.0 - shape;
    let mut c = 1.0 / TINY;
    let mut d = 1.0 / b;
    let mut fraction = d;
    for index in 1..=TERMS {
        // Exact: far below 2^53.
        let n = index as f64;
        let a = -n * (n - shape);
        b += 2.0;
        d = 1.0 / nonzero(a * d + b, TINY);
        c = nonzero(b + a / c, TINY);
        fraction *= c * d;
        if (c * d - 1.0).abs() <= f64::EPSILON {
            break;
        }
    }
    1.0 - front * fraction
}

fn nonzero(value: f64, tiny: f64) -> f64 {
    if value.abs() < tiny { tiny } else { value }
}

/// The same the other way round: where the standard normal variable is `normal`.
fn wilson_hilferty_quantile(shape: f64, normal: f64) -> f64 {
    // Of a small shape much of the distribution is next to 0, where the formula falls below it.
    let cube_root = (1.0 - 1.0 / (9.0 * shape) + normal / (3.0 * libm::sqrt(shape))).max(0.0);
    shape * cube_root * cube_root * cube_root
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_distr::Distribution;

    #[test]
    fn the_limits_are_where_the_distribution_function_says() {
        for step in 0..120 {
            let mean = 0.05 * 1.1_f64.powi(step);
            let (low, high) = mid_p_limits(mean, mean, 1.0);
            let mixture = |x| 0.5 * (regularized_lower(mean, x) + regularized_lower(mean + 1.0, x));
            let tails = Tails::of(mean, mean, 1.0);
            let probability = if mean < LEAST_SAMPLES { 0.0 } else { tails.low };
            assert!((mixture(low) - probability).abs() < 3e-4, "{mean} {low}");
            assert!(
                (mixture(high) - 1.0 + tails.high).abs() < 3e-4,
                "{mean} {high}"
            );
        }
    }

    #[track_caller]
    fn assert_tails(tails: Tails, low: f64, high: f64) {
        let is_close = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(
            is_close(tails.low, low) && is_close(tails.high, high),
            "{tails:?}"
        );
    }

    #[test]
    fn tails_are_even_without_samples_and_with_many() {
        assert_tails(Tails::of(0.0, 0.0, 1.0), 0.025, 0.025);
        assert_tails(Tails::of(30.0, 30.0, 1.0), 0.025, 0.025);
        assert_tails(Tails::of(1e9, 1e9, 1.0), 0.025, 0.025);
        // A block that is nearly certain to be sampled: p = 1 - 1e-9, S = 20.
        let tails = Tails::of(2e-8, 4e-7, 1.0);
        assert!((tails.low - 0.025).abs() < 1e-9 && (tails.high - 0.025).abs() < 1e-9);
    }

    #[test]
    fn few_equal_samples_move_probability_from_the_upper_tail_to_the_lower() {
        assert_tails(Tails::of(15.0, 15.0, 1.0), 0.0325, 0.0175);
        for samples in 1..40 {
            let Tails { low, high } = Tails::of(f64::from(samples), f64::from(samples), 1.0);
            assert!((low + high - 0.05).abs() < 1e-12, "{samples}");
        }
        // Whatever they are counted in.
        let large = Tails::of(3.0 * 4096.0, 3.0 * 4096.0 * 4096.0, 4096.0);
        let Tails { low, high } = Tails::of(3.0, 3.0, 1.0);
        assert_tails(large, low, high);
    }

    #[test]
    fn a_unit_beyond_the_samples_leaves_the_upper_tail_as_it_is() {
        // 10 samples of weight 1 beside a unit of 1000.
        let tails = Tails::of(10.0, 10.0, 1000.0);
        assert!((tails.low - 0.05).abs() < 2e-5, "{tails:?}");
        assert!((tails.high - 0.025).abs() < 2e-5, "{tails:?}");
    }

    #[test]
    fn a_larger_unit_never_lowers_the_upper_limit() {
        for samples in [0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 29.0, 60.0, 200.0] {
            let mut last = 0.0;
            for step in 0..200 {
                let unit = 0.1 * 1.05_f64.powi(step);
                let (_, high) = mid_p_limits(samples, samples, unit);
                // The formula for many samples is good to 0.1 %.
                assert!(high >= last * 0.998, "{samples} {unit}: {high} {last}");
                last = high;
            }
        }
    }

    #[test]
    fn known_values() {
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-8, "{a} {b}");
        // Shape 1 is the exponential law, shape 1/2 half of a squared normal variable.
        close(regularized_lower(1.0, 2.0), 1.0 - (-2.0_f64).exp());
        close(
            regularized_lower(0.5, 1.959_963_984_540_054_f64.powi(2) / 2.0),
            0.95,
        );
        // chi^2 of 10 degrees of freedom: 3.246972780 and 20.48317735.
        close(regularized_lower(5.0, 3.246_972_780_236_84 / 2.0), 0.025);
        close(regularized_lower(5.0, 20.483_177_350_807_4 / 2.0), 0.975);
        // Nothing drawn: half of the chance to draw nothing is 2.5 %.
        close(mid_p_limits(0.0, 0.0, 1.0).1, -(0.05_f64.ln()));
    }

    #[test]
    fn no_limit_is_negative_or_below_the_other() {
        for mean in [1e-6, 0.01, 1.0, 100.0] {
            for variance in [1e-9, 0.1, 10.0, 1e6] {
                for unit in [0.0, 0.1, 1.0] {
                    let (low, high) = mid_p_limits(mean, variance, unit);
                    assert!(
                        0.0 <= low && low <= high,
                        "{mean} {variance} {unit}: {low} {high}"
                    );
                }
            }
        }
    }

    #[test]
    fn no_step_where_the_method_changes() {
        let deviations = LARGE_SHAPE.sqrt();
        for step in -40..40 {
            let x = LARGE_SHAPE + f64::from(step) / 10.0 * deviations;
            let series = regularized_lower(LARGE_SHAPE, x);
            let formula = wilson_hilferty(LARGE_SHAPE, x);
            assert!((series - formula).abs() < 5e-5, "{x}: {series} {formula}");
        }
        let (mut last_low, mut last_high) = (0.0, 0.0);
        for step in 0..300 {
            let mean = 1.2_f64.powi(step - 20);
            let (low, high) = mid_p_limits(mean, mean, 1.0);
            let is_higher = low > last_low || mean < LEAST_SAMPLES;
            assert!(is_higher && high > last_high, "{step}");
            (last_low, last_high) = (low, high);
        }
    }

    #[test]
    fn agrees_with_random_gamma_variables() {
        let mut random = rand_xoshiro::Xoshiro256StarStar::seed_from_u64(5);
        for (mean, variance) in [(3.0, 2.0), (1e9, 3e16), (700.0, 700.0)] {
            let (shape, scale) = (mean * mean / variance, variance / mean);
            let law = rand_distr::Gamma::new(shape, scale).unwrap();
            let (low, high) = mid_p_limits(mean, variance, 0.0);
            let inside = (0..100_000)
                .filter(|_| (low..high).contains(&law.sample(&mut random)))
                .count();
            // Standard deviation 69; 5 of them.
            assert!(inside.abs_diff(95_000) < 345, "{inside}");
        }
    }

    #[test]
    fn tails_follow_their_formula() {
        let tails = |mean, variance, unit| {
            let tails = Tails::of(mean, variance, unit);
            (tails.low, tails.high)
        };
        let close = |(low, high): (f64, f64), expected: (f64, f64)| {
            let difference = (low - expected.0).abs() + (high - expected.1).abs();
            assert!(difference < 1e-12, "{low} {high} {expected:?}");
        };
        // A quarter of a sample, as heavy as the unit.
        let few = (1.0 - 0.25 / 30.0) * 0.25;
        let expected = (0.025 + few * 0.015, 0.025 - few * 0.015);
        close(tails(0.5, 1.0, 2.0), expected);
        // Samples of a quarter of the unit.
        let few = 1.0 - 1.0 / 30.0;
        let expected = (0.025 + few * 0.0225, 0.025 - few * 0.00375);
        close(tails(4.0, 1.0, 1.0), expected);
    }

    #[test]
    fn what_is_certain_is_the_lower_limit() {
        let (low, high) = mid_p_limits(5.0, 0.0, 1.0);
        assert!((low - 5.0).abs() < 1e-5, "{low}");
        assert!(high > 6.0 && high < 12.0, "{high}");
    }

    #[test]
    fn with_many_samples_a_larger_unit_leaves_the_lower_limit_as_it_is() {
        let low = |unit| mid_p_limits(1000.0, 1000.0, unit).0;
        assert_eq!(low(2.0), low(3.0));
        // A unit that is smaller than a sample is all that may be missing.
        assert!(low(0.5) < low(1.0));
    }

    #[test]
    fn a_quantile_is_found_in_few_steps() {
        for shape in [1.5, 2.0, 7.0, 40.0, 290.0] {
            for probability in [0.025, 0.5, 0.975, 0.99] {
                let calls = core::cell::Cell::new(0);
                let cumulative = |x: f64| {
                    calls.set(calls.get() + 1);
                    regularized_lower(shape, x)
                };
                let highest = shape + 4.0 * shape.sqrt() + 10.0;
                let found = quantile(&cumulative, probability, highest);
                let error = regularized_lower(shape, found) - probability;
                assert!(error.abs() < 1e-6, "{shape} {probability} {error}");
                assert!(calls.get() < 35, "{shape} {probability} {}", calls.get());
            }
        }
    }
}
