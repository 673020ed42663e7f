//! Quantiles of the gamma distribution, behind the confidence limits.

/// From this shape on the Wilson-Hilferty formula is good to 10^-7 of the quantile, and the search would need ever more
/// terms.
const LARGE_SHAPE: f64 = 2e4;

/// A quantile that is asked for, with the same one of the normal distribution.
#[derive(Clone, Copy)]
pub(crate) struct Level {
    probability: f64,
    normal: f64,
}

/// Below it lies 2.5 % of the distribution.
pub(crate) const LOWER: Level = Level {
    probability: 0.025,
    normal: -1.959_963_984_540_054,
};

/// Above it lies 2.5 %.
pub(crate) const UPPER: Level = Level {
    probability: 0.975,
    normal: 1.959_963_984_540_054,
};

/// Quantile of the gamma distribution with this mean and variance; the mean itself (at least 0) if there is no spread.
pub(crate) fn quantile(level: Level, mean: f64, variance: f64) -> f64 {
    if mean <= 0.0 || variance <= 0.0 {
        return mean.max(0.0);
    }
    let scale = variance / mean;
    scale * unit_quantile(level, mean / scale)
}

/// Quantile at scale 1: bisection, sped up by Newton's steps where these stay inside the bracket.
fn unit_quantile(level: Level, shape: f64) -> f64 {
    let start = wilson_hilferty(level.normal, shape);
    if shape > LARGE_SHAPE {
        return start;
    }
    // The 97.5 % quantile lies below the mean plus 4 (and 10) standard deviations at any shape.
    let (mut low, mut high) = (0.0, shape + 10.0 * libm::sqrt(shape) + 10.0);
    let mut x = if start > 0.0 { start } else { high / 2.0 };
    for _ in 0..200 {
        let excess = regularized_lower(shape, x) - level.probability;
        if excess > 0.0 {
            high = x;
        } else {
            low = x;
        }
        let newton = x - excess / density(shape, x);
        let next = if newton > low && newton < high {
            newton
        } else {
            low + (high - low) / 2.0
        };
        if (next - x).abs() <= 1e-13 * x {
            return next;
        }
        x = next;
    }
    x
}

/// The cube root of a gamma variable is nearly normal. E. B. Wilson and M. M. Hilferty, "The distribution of
/// chi-square", PNAS 17 (1931), 684-688.
fn wilson_hilferty(normal: f64, shape: f64) -> f64 {
    let cube_root = 1.0 - 1.0 / (9.0 * shape) + normal / (3.0 * libm::sqrt(shape));
    shape * cube_root * cube_root * cube_root
}

/// `x^(a-1) e^-x / Gamma(a)`
fn density(shape: f64, x: f64) -> f64 {
    libm::exp((shape - 1.0) * libm::log(x) - x - libm::lgamma(shape))
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

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_distr::Distribution;

    #[test]
    fn the_quantile_is_where_the_distribution_function_says() {
        for step in 0..120 {
            let shape = 0.05 * 1.1_f64.powi(step);
            for level in [LOWER, UPPER] {
                let probability = regularized_lower(shape, unit_quantile(level, shape));
                assert!(
                    (probability - level.probability).abs() < 1e-9,
                    "{shape} {probability}"
                );
            }
        }
    }

    #[test]
    fn known_values() {
        // Shape 1 is the exponential law, shape 1/2 half of a squared normal variable.
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-10, "{a} {b}");
        close(unit_quantile(LOWER, 1.0), -(0.975_f64.ln()));
        close(unit_quantile(UPPER, 1.0), -(0.025_f64.ln()));
        close(
            regularized_lower(0.5, UPPER.normal * UPPER.normal / 2.0),
            0.95,
        );
        // chi^2 of 10 degrees of freedom: 3.246972780 and 20.48317735.
        close(2.0 * unit_quantile(LOWER, 5.0), 3.246_972_780_236_84);
        close(2.0 * unit_quantile(UPPER, 5.0), 20.483_177_350_807_4);
    }

    #[test]
    fn no_step_where_the_method_changes() {
        for level in [LOWER, UPPER] {
            let searched = unit_quantile(level, LARGE_SHAPE);
            let formula = wilson_hilferty(level.normal, LARGE_SHAPE);
            assert!(
                (searched / formula - 1.0).abs() < 1e-7,
                "{searched} {formula}"
            );
            let mut last = 0.0;
            for step in 0..300 {
                let quantile = unit_quantile(level, 1.2_f64.powi(step - 20));
                assert!(quantile > last, "{step}");
                last = quantile;
            }
        }
    }

    #[test]
    fn agrees_with_random_gamma_variables() {
        let mut random = rand_xoshiro::Xoshiro256StarStar::seed_from_u64(5);
        for (mean, variance) in [(3.0, 2.0), (1e9, 3e16), (700.0, 700.0)] {
            let (shape, scale) = (mean * mean / variance, variance / mean);
            let law = rand_distr::Gamma::new(shape, scale).unwrap();
            let (low, high) = (
                quantile(LOWER, mean, variance),
                quantile(UPPER, mean, variance),
            );
            let inside = (0..100_000)
                .filter(|_| (low..high).contains(&law.sample(&mut random)))
                .count();
            // Standard deviation 69; 5 of them.
            assert!(inside.abs_diff(95_000) < 345, "{inside}");
        }
    }
}
