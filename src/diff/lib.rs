//! What changed between two profiles, and what is only noise.
//!
//! [`Diff::of`] joins the tables of both by name, so that profiles of different builds can be compared, and asks of each
//! change whether two runs of the same program could differ as much by the luck of sampling. [`Diff::of_runs`] compares
//! several runs with several others, and knows how much runs differ by themselves. [`MemoryChange`] compares the resident memory of
//! both sides by the rows of the ledger. [`text`] and [`json`] print both.
#![forbid(unsafe_code)]

pub mod csv;
mod joining;
pub mod json;
mod memory;
mod null;
mod paths;
mod runs;
mod side;
pub mod text;

use allocsample_profile::Profile;
use allocsample_report::significance::{FALSE_DISCOVERY_RATE, benjamini_hochberg};
use allocsample_report::{By, Filter, Row, Sort, Table, Totals};
use allocsample_sampling::Estimate;

pub use memory::{MemoryChange, MemoryRow, Moment, NotCompared};

use joining::Joining;
use null::Null;
use runs::{DETECTABLE_BY_SAMPLING, Values};
use side::{Counts, Side};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Measure {
    /// Bytes allocated.
    #[default]
    Allocated,
    /// Bytes alive at the end.
    Live,
    /// Allocations.
    Count,
}

/// What both profiles are divided by before they are compared.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Per {
    /// Nothing.
    #[default]
    Run,
    /// The length of each.
    Second,
    /// Requests or the like, so many in each.
    Count(f64, f64),
}

impl Per {
    /// What the figures of each profile are divided by.
    pub fn divisors(self, before: &Profile, after: &Profile) -> (f64, f64) {
        (self.divisor(before, false), self.divisor(after, true))
    }

    fn divisor(self, profile: &Profile, is_after: bool) -> f64 {
        match self {
            Self::Run => 1.0,
            Self::Second => Totals::duration_s(profile).max(f64::MIN_POSITIVE),
            Self::Count(_, after) if is_after => after,
            Self::Count(before, _) => before,
        }
    }
}

/// A quantity before and after.
#[derive(Clone, Debug)]
pub struct Change {
    /// In the first profile, after division; of several, the mean.
    pub before: Estimate,
    /// In the second.
    pub after: Estimate,
    /// Probability of a difference at least as large if nothing changed: by sampling alone with one run a side, by
    /// sampling and by what runs differ with several. `None` where that is not known (periodic sampling, one run a
    /// side).
    pub p_value: Option<f64>,
    /// The difference in standard errors of a difference between equal programs; infinite where every allocation was
    /// recorded and something changed.
    pub z: Option<f64>,
    /// The smallest difference that would be found in four comparisons of five, at the level 5 %.
    pub detectable: Option<f64>,
}

impl Change {
    fn of(before: Estimate, after: Estimate, null: Option<&Null>, values: &Values) -> Self {
        let difference = after.value() - before.value();
        let variation = values.variation(null.map(Null::variances));
        let by_sampling = null.map(|null| null.p_value(difference));
        let by_runs = variation.map(|variation| variation.p_value(difference));
        // A difference must be more than either explains. The spread of the runs has sampling in it, but a few runs may by
        // luck be more alike than sampling lets them be.
        let p_value = match (by_sampling, by_runs) {
            (Some(one), Some(other)) => Some(one.max(other)),
            (one, other) => one.or(other),
        };
        let variances = [
            null.map(Null::variance),
            variation.map(|variation| variation.variance),
        ];
        let variance = variances.into_iter().flatten().reduce(f64::max);
        let errors = variation.map_or(DETECTABLE_BY_SAMPLING, |it| it.detectable_errors());
        Self {
            before,
            after,
            p_value,
            z: variance.map(|variance| match difference {
                0.0 => 0.0,
                _ => difference / variance.sqrt(),
            }),
            detectable: variance.map(|variance| errors * variance.sqrt()),
        }
    }

    /// What was added.
    pub fn difference(&self) -> f64 {
        self.after.value() - self.before.value()
    }
}

/// A row of both tables.
#[derive(Clone, Debug)]
pub struct RowChange {
    /// Names, as one of the tables has them.
    pub row: Row,
    /// What it did.
    pub change: Change,
    /// The p-value after correction for the number of rows (Benjamini and Hochberg): among rows with one below
    /// [`FALSE_DISCOVERY_RATE`] at most that share is noise.
    pub adjusted_p_value: Option<f64>,
}

impl RowChange {
    /// Whether it is more than noise.
    pub fn is_significant(&self) -> bool {
        self.adjusted_p_value
            .is_some_and(|p| p < FALSE_DISCOVERY_RATE)
    }
}

/// Two profiles, or groups of profiles, compared.
#[derive(Clone, Debug)]
pub struct Diff {
    /// Of all samples.
    pub total: Change,
    /// Largest differences first.
    pub rows: Vec<RowChange>,
    /// What rows are.
    pub by: By,
    /// What was compared.
    pub measure: Measure,
    /// What it was divided by.
    pub per: Per,
    /// How many runs there are before and after.
    pub runs: (usize, usize),
    /// Whether one profile of each side is compared by what it has in all, although the times that they cover differ.
    pub lengths: Option<Lengths>,
}

/// The times that two profiles cover.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lengths {
    /// Of the first, in seconds.
    pub before_s: f64,
    /// Of the second.
    pub after_s: f64,
    /// Both are of one recording, and begin together: the longer one has all that the other has.
    pub are_of_one_recording: bool,
}

impl Lengths {
    /// If they differ by more than runs of one program do.
    fn of(before: &[&Profile], after: &[&Profile], per: Per) -> Option<Self> {
        const MATERIAL: f64 = 1.25;
        let ([before], [after], Per::Run) = (before, after, per) else {
            return None;
        };
        let (one, other) = (&before.process, &after.process);
        let (before_s, after_s) = (Totals::duration_s(before), Totals::duration_s(after));
        let lengths = Self {
            before_s,
            after_s,
            are_of_one_recording: (one.pid, one.start_wall_ns, one.start_ns)
                == (other.pid, other.start_wall_ns, other.start_ns),
        };
        let (short, long) = (before_s.min(after_s), before_s.max(after_s));
        (short > 0.0 && long > MATERIAL * short).then_some(lengths)
    }
}

impl Diff {
    /// Compares `after` with `before`.
    pub fn of(before: &Profile, after: &Profile, by: By, measure: Measure, per: Per) -> Self {
        Self::of_runs(&[before], &[after], by, measure, per)
    }

    /// Compares the runs `after` with the runs `before`: at least one of each.
    pub fn of_runs<'p>(
        before: &[&'p Profile],
        after: &[&'p Profile],
        by: By,
        measure: Measure,
        per: Per,
    ) -> Self {
        let sides = [(before, false), (after, true)].map(|(runs, is_after)| -> Vec<_> {
            let divided = |profile: &&'p Profile| (*profile, per.divisor(profile, is_after));
            runs.iter().map(divided).collect()
        });
        let laws = [Side::of(&sides[0]), Side::of(&sides[1])];
        // Without a law of the gaps there is no law of the difference.
        let has_errors = !sides.iter().flatten().any(|(it, _)| it.is_periodic());
        let null_of =
            |counts: &Counts| has_errors.then(|| Null::new(counts, &laws[0], &laws[1], measure));
        let mut joining = Joining::new(by, (before.len(), after.len()));
        for (is_after, (runs, law)) in [false, true].into_iter().zip(sides.iter().zip(&laws)) {
            for (run, &(profile, divisor)) in runs.iter().enumerate() {
                let (table, of_sample) =
                    Table::group_samples(profile, by, Sort::default(), &Filter::all());
                let mut counts = vec![Counts::default(); table.rows.len()];
                for (sample, row) in profile.samples.iter().zip(of_sample) {
                    if let Some(counts) = counts.get_mut(row as usize)
                        && match measure {
                            Measure::Live => sample.is_live(),
                            _ => !sample.is_carried(),
                        }
                    {
                        counts.add(&sample, law, run, is_after);
                    }
                }
                let figure = |row: &Row| divided(figure(row, measure), divisor);
                joining.add(table.rows, counts, figure, run, is_after);
            }
        }
        let mut total = Joined {
            values: Values::new(before.len(), after.len()),
            ..Joined::default()
        };
        let mut rows = Vec::new();
        for each in joining.into_rows() {
            total.before += each.before;
            total.after += each.after;
            total.counts.merge(&each.counts);
            total.values.merge(&each.values);
            if each.before.samples() + each.after.samples() > 0 {
                rows.push(RowChange {
                    change: each.change(null_of(&each.counts).as_ref()),
                    row: each.row,
                    adjusted_p_value: None,
                });
            }
        }
        let p_values: Vec<Option<f64>> = rows.iter().map(|row| row.change.p_value).collect();
        for (row, adjusted) in rows.iter_mut().zip(benjamini_hochberg(&p_values)) {
            row.adjusted_p_value = adjusted;
        }
        rows.sort_by(|a, b| {
            let size = |row: &RowChange| row.change.difference().abs();
            size(b)
                .total_cmp(&size(a))
                .then_with(|| a.row.name.cmp(&b.row.name))
        });
        Self {
            total: total.change(null_of(&total.counts).as_ref()),
            rows,
            by,
            measure,
            per,
            runs: (before.len(), after.len()),
            lengths: Lengths::of(before, after, per),
        }
    }
}

/// What all profiles say of a row.
#[derive(Clone, Default)]
struct Joined {
    row: Row,
    before: Estimate,
    after: Estimate,
    counts: Counts,
    values: Values,
}

impl Joined {
    fn change(&self, null: Option<&Null>) -> Change {
        Change::of(self.before, self.after, null, &self.values)
    }
}

fn figure(row: &Row, measure: Measure) -> Estimate {
    match measure {
        Measure::Allocated => row.self_allocated,
        Measure::Live => row.self_live,
        Measure::Count => row.allocations,
    }
}

fn divided(estimate: Estimate, by: f64) -> Estimate {
    estimate.divided_by(by)
}
