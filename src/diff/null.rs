//! How far two equal programs may differ by the luck of sampling alone.
//!
//! # What is asked
//!
//! Let `D = after/c_after - before/c_before` be the difference of two estimates, each divided by its divisor c. *If* both
//! programs allocated the same per unit of c, how probable is a D as far out as the one that was seen?
//!
//! # Under that hypothesis
//!
//! Allocations of S bytes happen n(S) times per unit in both programs. Each of the `c n(S)` of a profile is recorded
//! with the probability p of the interval that was in force (see [`inclusion_probability`]), on its own, and then counts
//! y/p (y = S for bytes, 1 for allocations). n(S) is not known. It is estimated from *both* profiles, because each one's
//! own estimate of its error is wrong exactly where it matters: a profile that by luck has no sample of a site claims an
//! error of 0. With K samples of S bytes in each, and P the mean of p over the intervals that the site met,
//!
//! ```text
//! n(S) = max( (K_before + K_after) / (c_before P_before + c_after P_after), K_before/c_before, K_after/c_after )
//! Var D = sum over S, both profiles and their intervals r of  n(S) w_r y^2 (1 - p_r) / (p_r c)
//! ```
//!
//! The first of the three is the maximum-likelihood estimate, the other two the least that can have been: at p near 1
//! they keep a large block, missed by one profile, from being called new too lightly. For small p and equal weights this
//! is the E-test of K. Krishnamoorthy and J. Thomson, "A more powerful test for comparing two Poisson means", Journal of
//! Statistical Planning and Inference 119 (2004), 23-35.
//!
//! # Intervals that changed during a run
//!
//! Then the number N_r of a site's allocations that met interval r is not known either, and differs from site to site: one
//! that worked only before a change met only the first interval. Given the samples K_r under each interval, the N_r that
//! make them most likely, among those with equal sums per unit on both sides, are
//!
//! ```text
//! N_r = K_r / (p_r + l),   sum N_r (before) / c_before = sum N_r (after) / c_after,   l_before c_before = -l_after c_after
//! ```
//!
//! by Lagrange's rule. An interval with few or no samples so gets what the other profile says must have been there. One
//! sample more, divided among the intervals by what the row and the whole profile met, keeps an N_r without any sample
//! from being 0: the mean under a Dirichlet prior (A. Gelman et al., "Bayesian Data Analysis", 3rd edition, section 3.4).
//! Where each side has one interval, this is the formula above and no sample is added.
//!
//! # The tail
//!
//! D is a sum of independent two-valued variables, whose cumulant generating function K is known in full:
//!
//! ```text
//! K(t) = sum n(S) c [ ln(1 - p + p e^(x/p)) - x ],   x = +- t y/c
//! ```
//!
//! With few samples, or intervals that differ, D is skewed and a normal law is wrong by factors. So the tail comes from
//! the saddle point s, K'(s) = d: with `w = sqrt(2 (s d - K(s)))` and `u = s sqrt(K''(s))`
//!
//! ```text
//! P(D >= d) = 1 - F(w) + f(w) (1/u - 1/w)       (F, f: the normal distribution and its density)
//! ```
//!
//! R. Lugannani and S. Rice, "Saddle point approximation for the distribution of the sum of independent random
//! variables", Advances in Applied Probability 12 (1980), 475-490. As D moves in steps, d is taken half a step nearer (H.
//! E. Daniels, "Tail probability approximations", International Statistical Review 55 (1987), 37-48). The p-value is
//! twice the smaller tail.

use crate::Measure;
use crate::side::{Counts, Side};

/// Allocations of one size in one profile, under the hypothesis.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// How many there are.
    number: f64,
    /// The probability that one is recorded.
    p: f64,
    /// What one adds to D, recorded or not, on average: negative before, positive after.
    step: f64,
}

impl Class {
    /// Value, first and second derivative of this class's part of K.
    fn cumulants(&self, t: f64) -> [f64; 3] {
        let Self { number, p, step } = *self;
        let x = t * step;
        let y = x / p;
        // For either sign without overflow.
        let log = if y > 0.0 {
            y + libm::log1p((1.0 - p) * libm::expm1(-y))
        } else {
            libm::log1p(p * libm::expm1(y))
        };
        let tilted = p / (p + (1.0 - p) * libm::exp(-y));
        [
            number * (log - x),
            number * step * (tilted / p - 1.0),
            number * step * step * tilted * (1.0 - tilted) / (p * p),
        ]
    }

    fn variance(&self) -> f64 {
        self.number * self.step * self.step * (1.0 - self.p) / self.p
    }

    /// What a single one, recorded, adds to D.
    fn jump(&self) -> f64 {
        self.step / self.p
    }
}

/// What one side sampled of a size, by interval.
struct Met {
    /// The probabilities of a sample.
    p: Vec<f64>,
    /// Samples.
    seen: Vec<f64>,
    /// Parts of one sample more.
    prior: Vec<f64>,
}

impl Met {
    fn of(side: &Side, size: u64, samples: &[u64], prior: &[f64]) -> Self {
        let p: Vec<f64> = side.regimes().map(|it| it.probability(size)).collect();
        let mut seen: Vec<f64> = samples.iter().map(|&count| count as f64).collect();
        seen.resize(p.len(), 0.0);
        Self {
            p,
            seen,
            prior: prior.to_vec(),
        }
    }

    /// The one interval that there is, with the number of its samples.
    fn only(&self) -> Option<(f64, f64)> {
        match (self.p.as_slice(), self.seen.as_slice()) {
            (&[p], &[seen]) => Some((p, seen)),
            _ => None,
        }
    }

    fn least_p(&self) -> f64 {
        let positive = self.p.iter().copied().filter(|&p| p > 0.0);
        positive.fold(f64::INFINITY, f64::min)
    }

    /// The most likely numbers for a multiplier.
    fn numbers(&self, multiplier: f64) -> impl Iterator<Item = f64> {
        let each = self.p.iter().zip(&self.seen).zip(&self.prior);
        each.map(move |((&p, seen), prior)| {
            if p > 0.0 {
                (seen + prior.max(1e-6)) / (p + multiplier)
            } else {
                0.0
            }
        })
    }
}

/// How many allocations of a size met each interval, before and after, if both sides had equally many per unit.
fn numbers_under_null(met: &[Met; 2], divisors: [f64; 2]) -> [Vec<f64>; 2] {
    let [before, after] = divisors;
    if let [Some((p_before, seen_before)), Some((p_after, seen_after))] =
        [met[0].only(), met[1].only()]
    {
        let per_unit = ((seen_before + seen_after) / (before * p_before + after * p_after))
            .max(seen_before / before)
            .max(seen_after / after);
        return [vec![per_unit * before], vec![per_unit * after]];
    }
    // The sum before falls with the multiplier, the sum after grows with it.
    let (mut low, mut high) = (-met[0].least_p(), met[1].least_p() * after / before);
    let other = |multiplier: f64| -multiplier * before / after;
    if low.is_finite() && high.is_finite() {
        for _ in 0..200 {
            let middle = low + (high - low) / 2.0;
            let of_before: f64 = met[0].numbers(middle).sum();
            let of_after: f64 = met[1].numbers(other(middle)).sum();
            if of_before / before > of_after / after {
                low = middle;
            } else {
                high = middle;
            }
        }
    }
    let multiplier = low + (high - low) / 2.0;
    let least = |(number, &seen): (f64, &f64)| number.max(seen);
    [
        met[0]
            .numbers(multiplier)
            .zip(&met[0].seen)
            .map(least)
            .collect(),
        met[1]
            .numbers(other(multiplier))
            .zip(&met[1].seen)
            .map(least)
            .collect(),
    ]
}

/// The law of D if nothing changed.
#[derive(Clone, Debug)]
pub(crate) struct Null {
    classes: Vec<Class>,
    variance: f64,
    /// The least by which D moves.
    lattice: f64,
}

impl Null {
    /// From what was counted.
    pub(crate) fn new(counts: &Counts, before: &Side, after: &Side, measure: Measure) -> Self {
        let sides = [before, after];
        let of_row = [counts.shares(before, false), counts.shares(after, true)];
        let mut classes = Vec::new();
        for (size, samples) in counts.iter() {
            let y = match measure {
                Measure::Allocated | Measure::Live => size as f64,
                Measure::Count => 1.0,
            };
            let met = [0, 1].map(|side| Met::of(sides[side], size, &samples[side], &of_row[side]));
            let numbers = numbers_under_null(&met, [before.divisor(), after.divisor()]);
            for (side, sign) in [(0, -1.0), (1, 1.0)] {
                for (&number, &p) in numbers[side].iter().zip(&met[side].p) {
                    let class = Class {
                        number,
                        p,
                        step: sign * y / sides[side].divisor(),
                    };
                    if class.p > 0.0 && class.variance() > 0.0 {
                        classes.push(class);
                    }
                }
            }
        }
        // Not `sum`, which is -0.0 of nothing.
        let variance = classes.iter().map(Class::variance).fold(0.0, |a, b| a + b);
        Self {
            lattice: lattice(&classes),
            classes,
            variance,
        }
    }

    /// Of D.
    pub(crate) fn variance(&self) -> f64 {
        self.variance
    }

    /// Of its two parts: of the mean before, and of that after.
    pub(crate) fn variances(&self) -> [f64; 2] {
        [false, true].map(|is_after| {
            let of_side = self.classes.iter();
            let of_side = of_side.filter(|class| (class.step > 0.0) == is_after);
            of_side.map(Class::variance).sum()
        })
    }

    /// Probability of a D at least as far out as `difference`, on either side.
    pub(crate) fn p_value(&self, difference: f64) -> f64 {
        if difference == 0.0 {
            return 1.0;
        }
        if self.variance <= 0.0 {
            // Nothing was left to chance: it is another number.
            return 0.0;
        }
        let nearer = difference.abs() - self.lattice / 2.0;
        if nearer <= 0.0 {
            return 1.0;
        }
        let tail = self.tail(difference.signum(), nearer);
        (2.0 * tail).clamp(0.0, 1.0)
    }

    /// P(D >= d) for sign 1, P(-D >= d) for sign -1.
    fn tail(&self, sign: f64, d: f64) -> f64 {
        let sigma = self.variance.sqrt();
        let at = |t: f64| {
            let mut sum = [0.0; 3];
            for class in &self.classes {
                let part = class.cumulants(sign * t / sigma);
                sum = [sum[0] + part[0], sum[1] + part[1], sum[2] + part[2]];
            }
            [sum[0], sign * sum[1] / sigma, sum[2] / (sigma * sigma)]
        };
        let d = d / sigma;
        // K' grows from 0 to its limit; a d beyond that cannot be.
        let (mut low, mut high) = (0.0, 1.0);
        while at(high)[1] < d {
            low = high;
            high *= 2.0;
            if high > 1e6 {
                return self.chance_of_the_most(sign);
            }
        }
        let mut s = d.clamp(low, high);
        for _ in 0..100 {
            let [_, slope, curvature] = at(s);
            if slope > d {
                high = s;
            } else {
                low = s;
            }
            let newton = s - (slope - d) / curvature;
            let next = if newton > low && newton < high {
                newton
            } else {
                low + (high - low) / 2.0
            };
            if (next - s).abs() <= 1e-12 * s {
                break;
            }
            s = next;
        }
        let [value, _, curvature] = at(s);
        let exponent = s * d - value;
        let w = (2.0 * exponent.max(0.0)).sqrt();
        let u = s * curvature.sqrt();
        if w < 1e-4 || u < 1e-4 {
            return 0.5;
        }
        let density = libm::exp(-exponent) / (2.0 * std::f64::consts::PI).sqrt();
        let upper = 0.5 * libm::erfc(w / std::f64::consts::SQRT_2);
        // Chernoff's bound holds always; the formula may overshoot it at the ends of the law.
        (upper + density * (1.0 / u - 1.0 / w)).clamp(0.0, libm::exp(-exponent))
    }

    /// The chance that all are recorded which add to D, and none that take away from it.
    fn chance_of_the_most(&self, sign: f64) -> f64 {
        let log = |class: &Class| {
            let chance = if class.step * sign > 0.0 {
                class.p.ln()
            } else {
                libm::log1p(-class.p)
            };
            class.number * chance
        };
        libm::exp(self.classes.iter().map(log).sum())
    }
}

/// The step in which D moves where it matters: on each side the mean of the jumps, by their part in the variance; of
/// both sides the smaller one.
fn lattice(classes: &[Class]) -> f64 {
    let mean = |is_after: bool| {
        let of_side = classes
            .iter()
            .filter(|class| (class.step > 0.0) == is_after);
        let sum = |f: fn(&Class) -> f64| of_side.clone().map(f).sum::<f64>();
        let variance = sum(Class::variance);
        (variance > 0.0).then(|| sum(|class| class.variance() * class.jump().abs()) / variance)
    };
    match (mean(false), mean(true)) {
        (Some(before), Some(after)) => before.min(after),
        (Some(step), None) | (None, Some(step)) => step,
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests;
