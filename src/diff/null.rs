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
//! with that profile's probability p (see [`inclusion_probability`]), on its own, and then counts y/p (y = S for bytes, 1
//! for allocations). What is not known is n(S). It is estimated from *both* profiles, for what each one alone says of
//! its error is wrong exactly where it matters: a profile that by luck has no sample of a site claims an error of 0.
//! With K samples of S bytes in each,
//!
//! ```text
//! n(S) = max( (K_before + K_after) / (c_before p_before + c_after p_after), K_before/c_before, K_after/c_after )
//! Var D = sum over S and both profiles of  n(S) y^2 (1 - p) / (p c)
//! ```
//!
//! The first of the three is the maximum-likelihood estimate, the other two the least that can have been: at p near 1
//! they keep a large block, missed by one profile, from being called new too lightly. For small p and equal weights this
//! is the E-test of K. Krishnamoorthy and J. Thomson, "A more powerful test for comparing two Poisson means", Journal of
//! Statistical Planning and Inference 119 (2004), 23-35.
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

use std::collections::HashMap;

use allocsample_profile::{IntervalInfo, Profile, Sample};
use allocsample_sampling::{Interval, inclusion_probability};

use crate::Measure;

/// How a profile was sampled, and what it is divided by.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    /// Intervals that were in force, each with its share of the profile's bytes.
    intervals: Vec<(Interval, f64)>,
    divisor: f64,
}

impl Side {
    /// Of a profile.
    pub(crate) fn of(profile: &Profile, divisor: f64) -> Self {
        let mut bytes = vec![0.0; profile.intervals.len()];
        for sample in &profile.samples {
            if let Some(sum) = bytes.get_mut(usize::from(sample.interval)) {
                *sum += profile.bytes(sample).value();
            }
        }
        let whole: f64 = bytes.iter().sum();
        let interval = |info: &IntervalInfo| Interval::new(info.interval_bytes);
        let mut intervals: Vec<(Interval, f64)> = profile
            .intervals
            .iter()
            .zip(bytes)
            .filter_map(|(info, bytes)| Some((interval(info)?, bytes / whole)))
            .filter(|&(_, share)| share > 0.0)
            .collect();
        if intervals.is_empty() {
            // Nothing was sampled: what could have been, was asked for at the first interval.
            let first = profile.intervals.iter().find_map(interval);
            intervals.extend(first.map(|interval| (interval, 1.0)));
        }
        Self { intervals, divisor }
    }

    #[cfg(test)]
    pub(crate) fn simple(interval_bytes: u64, divisor: f64) -> Self {
        Self {
            intervals: vec![(Interval::new(interval_bytes).unwrap(), 1.0)],
            divisor,
        }
    }

    /// The probability that an allocation of this size is recorded, over all of the run.
    fn probability(&self, size: u64) -> f64 {
        let each = self.intervals.iter();
        each.map(|&(interval, share)| share * inclusion_probability(size, interval))
            .sum()
    }
}

/// How many samples of each size there are, before and after.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts(HashMap<u64, [u64; 2]>);

impl Counts {
    /// Takes in one sample of a profile.
    pub(crate) fn add(&mut self, sample: &Sample, is_after: bool) {
        self.add_size(sample.size, is_after);
    }

    pub(crate) fn add_size(&mut self, size: u64, is_after: bool) {
        self.0.entry(size).or_default()[usize::from(is_after)] += 1;
    }

    /// Takes in all of another's.
    pub(crate) fn merge(&mut self, other: &Counts) {
        for (&size, counts) in &other.0 {
            let own = self.0.entry(size).or_default();
            own[0] += counts[0];
            own[1] += counts[1];
        }
    }
}

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
        let mut classes = Vec::new();
        for (&size, &[k_before, k_after]) in &counts.0 {
            let y = match measure {
                Measure::Allocated | Measure::Live => size as f64,
                Measure::Count => 1.0,
            };
            let expected =
                before.divisor * before.probability(size) + after.divisor * after.probability(size);
            let (k_before, k_after) = (k_before as f64, k_after as f64);
            let per_unit = ((k_before + k_after) / expected)
                .max(k_before / before.divisor)
                .max(k_after / after.divisor);
            for (side, sign) in [(before, -1.0), (after, 1.0)] {
                for &(interval, share) in &side.intervals {
                    let class = Class {
                        number: per_unit * side.divisor * share,
                        p: inclusion_probability(size, interval),
                        step: sign * y / side.divisor,
                    };
                    if class.variance() > 0.0 {
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
