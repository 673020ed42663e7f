//! Quantiles of mixtures of gamma distributions, behind the confidence limits.

/// From this shape on Wilson and Hilferty's formula is good to 10^-5 of the quantile, and the series would need ever
/// more terms.
const LARGE_SHAPE: f64 = 300.0;

/// With at least this many samples a formula replaces the search; the two agree within 0.1 %.
const MANY: f64 = 30.0;

/// The standard normal distribution has 2.5 % above this.
const NORMAL_TAIL: f64 = 1.959_963_984_540_054;

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

/// The 2.5 % and 97.5 % quantiles of an even mixture of a gamma distribution with this mean and variance, and of one with
/// `unit` and its square added. See [`crate::Estimate::limits_95`].
pub(crate) fn mid_p_limits(mean: f64, variance: f64, unit: f64) -> (f64, f64) {
    const TAIL: f64 = 0.025;
    let below = Gamma {
        mean: mean.max(0.0),
        variance: if mean > 0.0 { variance } else { 0.0 },
    };
    let above = Gamma {
        mean: mean.max(0.0) + unit,
        variance: variance + unit * unit,
    };
    if above.variance <= 0.0 {
        return (below.mean, below.mean);
    }
    if below.mean <= 0.0 {
        // Exponential above, a point below.
        return (0.0, -libm::log(2.0 * TAIL) * unit);
    }
    if variance >= MANY * unit * unit {
        // The mixture is as good as one gamma distribution of its mean and variance.
        let mean = below.mean + unit / 2.0;
        let variance = variance + 0.75 * unit * unit;
        let scale = variance / mean;
        let quantile = |normal| scale * wilson_hilferty_quantile(mean / scale, normal);
        return (quantile(-NORMAL_TAIL), quantile(NORMAL_TAIL));
    }
    let mixture = |x: f64| 0.5 * (below.cumulative(x) + above.cumulative(x));
    // Both quantiles of a gamma distribution lie within the mean plus 4 deviations and 10 scales, whatever its shape.
    let scale = above.variance / above.mean;
    let highest = above.mean + 4.0 * libm::sqrt(above.variance) + 10.0 * scale;
    (
        quantile(&mixture, TAIL, highest),
        quantile(&mixture, 1.0 - TAIL, highest),
    )
}

/// Where a distribution function on `0..=highest` reaches a probability: bisection, sped up by the secant where it stays
/// inside the bracket (the Illinois method). It may jump.
fn quantile(cumulative: &impl Fn(f64) -> f64, probability: f64, highest: f64) -> f64 {
    const PRECISION: f64 = 1e-7;
    let (mut low, mut high) = (0.0, highest);
    let mut below = cumulative(low) - probability;
    let mut above = cumulative(high) - probability;
    if below >= 0.0 {
        return low;
    }
    for step in 0..100 {
        if high - low <= PRECISION * high {
            break;
        }
        let secant = low - below * (high - low) / (above - below);
        // Every third step halves, which bounds their number where the function is flat or jumps.
        let is_inside = step % 3 != 2 && secant > low && secant < high;
        let x = if is_inside {
            secant
        } else {
            low + (high - low) / 2.0
        };
        let excess = cumulative(x) - probability;
        if excess >= 0.0 {
            (high, above) = (x, excess);
            below /= 2.0;
        } else {
            (low, below) = (x, excess);
            above /= 2.0;
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
    let cube_root = 1.0 - 1.0 / (9.0 * shape) + normal / (3.0 * libm::sqrt(shape));
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
            assert!((mixture(low) - 0.025).abs() < 3e-4, "{mean} {low}");
            assert!((mixture(high) - 0.975).abs() < 3e-4, "{mean} {high}");
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
            assert!(low > last_low && high > last_high, "{step}");
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
}
