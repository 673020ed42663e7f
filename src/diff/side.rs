//! How the profiles of each side were sampled, and what was sampled of a row.

use std::collections::BTreeMap;

use allocsample_profile::{IntervalInfo, Profile, Sample};
use allocsample_sampling::{Interval, inclusion_probability};

/// How the profiles of one side were sampled, and what they are divided by.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    /// Intervals that were in force, those of each profile in the order of its list.
    regimes: Vec<Regime>,
    /// Where the regimes of each profile begin.
    starts: Vec<usize>,
    /// All divisors together.
    divisor: f64,
}

/// An interval that was in force.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Regime {
    /// `None` for a time when nothing was sampled.
    interval: Option<Interval>,
    /// Its part of the bytes of the side.
    share: f64,
}

impl Regime {
    /// That an allocation of this size is recorded.
    pub(crate) fn probability(&self, size: u64) -> f64 {
        self.interval
            .map_or(0.0, |interval| inclusion_probability(size, interval))
    }

    /// Bytes that a sample of a small block stands for.
    fn unit_bytes(&self) -> f64 {
        self.interval
            .map_or(0.0, |interval| interval.bytes() as f64)
    }
}

impl Side {
    /// Of profiles with what each is divided by.
    pub(crate) fn of(runs: &[(&Profile, f64)]) -> Self {
        let mut side = Self {
            regimes: Vec::new(),
            starts: Vec::new(),
            divisor: 0.0,
        };
        for (profile, divisor) in runs {
            side.add(profile, *divisor);
        }
        side
    }

    fn add(&mut self, profile: &Profile, divisor: f64) {
        let start = self.regimes.len();
        self.starts.push(start);
        let regime = |info: &IntervalInfo| Regime {
            interval: Interval::new(info.interval_bytes),
            share: 0.0,
        };
        self.regimes.extend(profile.intervals.iter().map(regime));
        let own = &mut self.regimes[start..];
        for sample in &profile.samples {
            if let Some(regime) = own.get_mut(usize::from(sample.interval)) {
                regime.share += profile.bytes(&sample).value();
            }
        }
        let sampled: f64 = own.iter().map(|regime| regime.share).sum();
        if sampled <= 0.0 {
            // Nothing was sampled: all that could have been met the first interval.
            if let Some(first) = own.iter_mut().find(|regime| regime.interval.is_some()) {
                first.share = 1.0;
            }
        }
        // The runs of a side count by their divisors.
        let whole = if sampled > 0.0 { sampled } else { 1.0 };
        for regime in own {
            regime.share *= divisor / whole;
        }
        let total = self.divisor + divisor;
        for regime in &mut self.regimes[..start] {
            regime.share *= self.divisor / total;
        }
        for regime in &mut self.regimes[start..] {
            regime.share /= total;
        }
        self.divisor = total;
    }

    /// Intervals that were in force.
    pub(crate) fn regimes(&self) -> std::slice::Iter<'_, Regime> {
        self.regimes.iter()
    }

    /// What the sum of all its profiles is divided by.
    pub(crate) fn divisor(&self) -> f64 {
        self.divisor
    }

    /// With intervals that were in force for these parts of the bytes.
    #[cfg(test)]
    pub(crate) fn mixed(regimes: &[(u64, f64)], divisor: f64) -> Self {
        let regime = |&(interval_bytes, share)| Regime {
            interval: Interval::new(interval_bytes),
            share,
        };
        Self {
            regimes: regimes.iter().map(regime).collect(),
            starts: vec![0],
            divisor,
        }
    }

    #[cfg(test)]
    pub(crate) fn simple(interval_bytes: u64, divisor: f64) -> Self {
        Self::mixed(&[(interval_bytes, 1.0)], divisor)
    }

    /// The parts of what a row allocated that met each regime: from the bytes of its samples, and from what is known of
    /// more than the row.
    pub(crate) fn shares(&self, bytes: &[f64], prior: &[f64]) -> Vec<f64> {
        let each = self.regimes.iter().zip(prior).enumerate();
        let mut shares: Vec<f64> = each
            .map(|(index, (regime, prior))| {
                bytes.get(index).copied().unwrap_or(0.0) + regime.unit_bytes() * prior
            })
            .collect();
        let sum: f64 = shares.iter().sum();
        if sum > 0.0 {
            shares.iter_mut().for_each(|share| *share /= sum);
        }
        shares
    }

    fn whole_shares(&self) -> Vec<f64> {
        self.regimes.iter().map(|regime| regime.share).collect()
    }

    /// Bytes that samples of one size stand for, by regime.
    pub(crate) fn bytes<'s>(
        &'s self,
        size: u64,
        samples: &'s [u64],
    ) -> impl Iterator<Item = f64> + 's {
        let each = self.regimes.iter().zip(samples);
        each.map(move |(regime, &count)| {
            let p = regime.probability(size);
            if count > 0 && p > 0.0 {
                count as f64 * size as f64 / p
            } else {
                0.0
            }
        })
    }
}

/// How many samples of each size a row has, before and after, by the regime of the side.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts(BTreeMap<u64, [Vec<u64>; 2]>);

impl Counts {
    /// Takes in one sample of the profile with this place in its side.
    pub(crate) fn add(&mut self, sample: &Sample, side: &Side, run: usize, is_after: bool) {
        let start = side.starts.get(run).copied().unwrap_or(0);
        self.add_size(
            sample.size,
            start + usize::from(sample.interval),
            1,
            is_after,
        );
    }

    pub(crate) fn add_size(&mut self, size: u64, regime: usize, count: u64, is_after: bool) {
        let counts = &mut self.0.entry(size).or_default()[usize::from(is_after)];
        if counts.len() <= regime {
            counts.resize(regime + 1, 0);
        }
        counts[regime] += count;
    }

    /// Takes in all of another's.
    pub(crate) fn merge(&mut self, other: &Counts) {
        for (&size, sides) in &other.0 {
            for (is_after, counts) in [false, true].into_iter().zip(sides) {
                for (regime, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                    self.add_size(size, regime, count, is_after);
                }
            }
        }
    }

    /// Sizes, with the samples of each: before and after.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &[Vec<u64>; 2])> {
        self.0.iter().map(|(&size, samples)| (size, samples))
    }

    /// The parts of all sizes that met each regime of a side.
    pub(crate) fn shares(&self, side: &Side, is_after: bool) -> Vec<f64> {
        let mut bytes = vec![0.0; side.regimes.len()];
        for (&size, counts) in &self.0 {
            let of_size = side.bytes(size, &counts[usize::from(is_after)]);
            for (sum, value) in bytes.iter_mut().zip(of_size) {
                *sum += value;
            }
        }
        side.shares(&bytes, &side.whole_shares())
    }
}
