//! How the resident memory of two sides differs, by the rows of the ledger.
//!
//! A row that the kernel counts has no error of sampling; a row of a sampled heap has that of its samples. With several runs a
//! side, the spread between the runs is an error of every row.

use std::collections::BTreeMap;

use allocsample_profile::Profile;
use allocsample_report::{Account, Ledger};
use allocsample_sampling::Estimate;

use crate::runs::{DETECTABLE_BY_SAMPLING, Values};
use crate::{Change, Measure};

/// The reading of each profile that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The one with most resident memory.
    Largest,
    /// The last one.
    Last,
}

/// Why memory is not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotCompared {
    /// A part of the samples was selected, and the kernel's figures have no such part.
    Narrowed,
    /// So many profiles have no list of mappings, the first of them on this side.
    NoReadings {
        /// How many.
        profiles: usize,
        /// Whether the first of them is after the change.
        is_after: bool,
    },
}

/// A row of the ledger.
#[derive(Clone, Debug)]
pub struct MemoryRow {
    /// Whose memory it is.
    pub account: Account,
    /// The same in words.
    pub name: String,
    /// Resident bytes.
    pub change: Change,
}

/// What changed of the resident memory.
#[derive(Clone, Debug)]
pub struct MemoryChange {
    /// When it was read.
    pub moment: Moment,
    /// All of it.
    pub resident: Change,
    /// Largest differences first. They add up to `resident`.
    pub rows: Vec<MemoryRow>,
    /// Before and after: see [`Ledger::missed_bytes`]. The largest of several runs.
    pub missed_bytes: [u64; 2],
}

/// A row that changed by a smaller part of the resident memory is not worth a line.
const MATERIAL: f64 = 0.01;
/// Nor is one that changed by so little.
const LEAST_BYTES: f64 = (64 << 10) as f64;
/// Above it a difference is taken for noise.
const LEVEL: f64 = 0.05;

impl MemoryChange {
    /// Compares the runs `after` with the runs `before`: at the end for live bytes, else where most memory was resident.
    pub fn of_runs(
        before: &[&Profile],
        after: &[&Profile],
        measure: Measure,
    ) -> Result<Self, NotCompared> {
        let moment = match measure {
            Measure::Live => Moment::Last,
            Measure::Allocated | Measure::Count => Moment::Largest,
        };
        let all = || before.iter().chain(after);
        if all().any(|profile| profile.narrowed.is_some()) {
            return Err(NotCompared::Narrowed);
        }
        let has_none = |profile: &&&Profile| Ledger::last_reading(profile).is_none();
        if let Some(first) = all().position(|profile| has_none(&profile)) {
            return Err(NotCompared::NoReadings {
                profiles: all().filter(has_none).count(),
                is_after: first >= before.len(),
            });
        }
        let mut resident = Sum::new(before.len(), after.len());
        let mut rows: BTreeMap<(Account, String), Sum> = BTreeMap::new();
        for (is_after, runs) in [(false, before), (true, after)] {
            for (run, profile) in runs.iter().enumerate() {
                let reading = match moment {
                    Moment::Largest => Ledger::peak_reading(profile),
                    Moment::Last => Ledger::last_reading(profile),
                };
                let Some(reading) = reading else {
                    continue;
                };
                let ledger = Ledger::without_sites(profile, reading);
                let bytes = ledger.totals.resident_bytes as f64;
                resident.add(run, is_after, bytes, None);
                for row in ledger.rows {
                    let sum = rows
                        .entry((row.account, row.name))
                        .or_insert_with(|| Sum::new(before.len(), after.len()));
                    sum.add(run, is_after, row.resident_bytes, row.stderr_bytes);
                }
            }
        }
        let rows = rows.into_iter().map(|((account, name), sum)| MemoryRow {
            account,
            name,
            change: sum.change(),
        });
        let mut rows: Vec<MemoryRow> = rows.collect();
        rows.sort_by(|a, b| {
            let size = |row: &MemoryRow| row.change.difference().abs();
            size(b).total_cmp(&size(a))
        });
        let missed = |runs: &[&Profile]| {
            let missed = runs.iter().map(|profile| Ledger::missed_bytes(profile));
            missed.max().unwrap_or(0)
        };
        Ok(Self {
            moment,
            resident: resident.change(),
            rows,
            missed_bytes: [missed(before), missed(after)],
        })
    }

    /// Whether the largest readings lack so much of the peaks that the difference may be theirs.
    pub fn misses_a_peak(&self) -> bool {
        const WORTH_A_WARNING: f64 = 0.05;
        let sides = [&self.resident.before, &self.resident.after];
        let mut missed = self.missed_bytes.iter().zip(sides);
        self.moment == Moment::Largest
            && missed.any(|(&missed, side)| missed as f64 > WORTH_A_WARNING * side.value())
    }

    /// Whether a row changed by a part of the resident memory that is worth a line.
    pub fn is_material(&self, row: &MemoryRow) -> bool {
        let most = f64::max(self.resident.before.value(), self.resident.after.value());
        row.change.difference().abs() >= (MATERIAL * most).max(LEAST_BYTES)
    }

    /// The row that grew most, if one did by more than its error.
    pub fn grew_most(&self) -> Option<&MemoryRow> {
        let mut rows = self.rows.iter();
        rows.find(|row| row.change.difference() > 0.0 && self.is_material(row) && !row.is_noise())
    }
}

impl MemoryRow {
    /// Whether its error explains what changed.
    pub fn is_noise(&self) -> bool {
        self.change.p_value.is_some_and(|p| p >= LEVEL)
    }
}

/// What the runs of both sides say of a row.
struct Sum {
    /// The means, with the variances by sampling as far as there are some.
    sides: [(f64, Option<f64>); 2],
    runs: [usize; 2],
    values: Values,
}

impl Sum {
    fn new(before: usize, after: usize) -> Self {
        Self {
            sides: [(0.0, None); 2],
            runs: [before, after],
            values: Values::new(before, after),
        }
    }

    fn add(&mut self, run: usize, is_after: bool, bytes: f64, stderr: Option<f64>) {
        self.values.add(run, is_after, bytes);
        let side = usize::from(is_after);
        let runs = self.runs[side] as f64;
        let (mean, variance) = &mut self.sides[side];
        *mean += bytes / runs;
        if let Some(stderr) = stderr {
            *variance = Some(variance.unwrap_or(0.0) + (stderr / runs).powi(2));
        }
    }

    fn change(&self) -> Change {
        let [before, after] = self.sides.map(|(mean, variance)| {
            let samples = u64::from(variance.is_some());
            Estimate::from_parts(mean, variance, samples)
        });
        let difference = after.value() - before.value();
        let sampled: Vec<f64> = self.sides.iter().filter_map(|side| side.1).collect();
        let by_sampling = (!sampled.is_empty()).then(|| sampled.iter().sum::<f64>());
        let variances = self.sides.map(|side| side.1.unwrap_or(0.0));
        let variation = self.values.variation(Some(variances));
        let p_by_sampling = by_sampling.map(|variance| normal_p_value(difference, variance));
        let p_by_runs = variation.map(|variation| variation.p_value(difference));
        let variances = [by_sampling, variation.map(|it| it.variance)];
        let variance = variances.into_iter().flatten().reduce(f64::max);
        let errors = variation.map_or(DETECTABLE_BY_SAMPLING, |it| it.detectable_errors());
        Change {
            before,
            after,
            p_value: [p_by_sampling, p_by_runs]
                .into_iter()
                .flatten()
                .reduce(f64::max),
            z: variance.map(|variance| match difference {
                0.0 => 0.0,
                _ => difference / variance.sqrt(),
            }),
            detectable: variance.map(|variance| errors * variance.sqrt()),
        }
    }
}

/// Of a difference at least as far from 0, on either side.
fn normal_p_value(difference: f64, variance: f64) -> f64 {
    match difference {
        0.0 => 1.0,
        _ => libm::erfc(difference.abs() / (2.0 * variance).sqrt()),
    }
}

#[cfg(test)]
mod tests;
