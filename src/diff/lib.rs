//! What changed between two profiles, and what is only noise.
//!
//! [`Diff::of`] joins the tables of both by name, so that profiles of different builds can be compared, and asks of each
//! change whether two runs of the same program could differ as much by the luck of sampling. [`text`] and [`json`] print
//! it.
#![forbid(unsafe_code)]

pub mod csv;
pub mod json;
mod null;
mod significance;
pub mod text;

use std::collections::HashMap;

use allocsample_profile::Profile;
use allocsample_report::{By, Filter, Row, Sort, Table, Totals};
use allocsample_sampling::Estimate;

use null::{Counts, Null, Side};

pub use significance::{FALSE_DISCOVERY_RATE, benjamini_hochberg};

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
        let seconds = |profile| Totals::duration_s(profile).max(f64::MIN_POSITIVE);
        match self {
            Self::Run => (1.0, 1.0),
            Self::Second => (seconds(before), seconds(after)),
            Self::Count(before, after) => (before, after),
        }
    }
}

/// A quantity before and after.
#[derive(Clone, Debug)]
pub struct Change {
    /// In the first profile, after division.
    pub before: Estimate,
    /// In the second.
    pub after: Estimate,
    /// Probability of a difference at least as large by sampling alone; `None` where that is not known (periodic
    /// sampling).
    pub p_value: Option<f64>,
    /// The difference in standard errors of a difference between equal programs; infinite where every allocation was
    /// recorded and something changed.
    pub z: Option<f64>,
}

impl Change {
    fn of(before: Estimate, after: Estimate, null: Option<&Null>) -> Self {
        let difference = after.value() - before.value();
        Self {
            before,
            after,
            p_value: null.map(|null| null.p_value(difference)),
            z: null.map(|null| match difference {
                0.0 => 0.0,
                _ => difference / null.variance().sqrt(),
            }),
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

/// Two profiles, compared.
#[derive(Clone, Debug)]
pub struct Diff {
    /// Of all samples that pass the filter.
    pub total: Change,
    /// Largest differences first.
    pub rows: Vec<RowChange>,
    /// What was compared.
    pub measure: Measure,
    /// What it was divided by.
    pub per: Per,
}

impl Diff {
    /// Compares `after` with `before`.
    pub fn of(
        before: &Profile,
        after: &Profile,
        by: By,
        measure: Measure,
        per: Per,
        filter: &Filter,
    ) -> Self {
        let (per_before, per_after) = per.divisors(before, after);
        let sides = (Side::of(before, per_before), Side::of(after, per_after));
        // Without a law of the gaps there is no law of the difference.
        let has_errors = !before.is_periodic() && !after.is_periodic();
        let null_of =
            |counts: &Counts| has_errors.then(|| Null::new(counts, &sides.0, &sides.1, measure));
        let mut joined: HashMap<Key, Joined> = HashMap::new();
        for (profile, per, is_after) in [(before, per_before, false), (after, per_after, true)] {
            let (table, of_sample) = Table::group_samples(profile, by, Sort::default(), filter);
            let mut counts = vec![Counts::default(); table.rows.len()];
            for (sample, row) in profile.samples.iter().zip(of_sample) {
                if let Some(counts) = counts.get_mut(row as usize)
                    && match measure {
                        Measure::Live => sample.is_live(),
                        _ => !sample.is_carried(),
                    }
                {
                    counts.add(sample, is_after);
                }
            }
            for (row, counts) in table.rows.into_iter().zip(counts) {
                let value = divided(figure(&row, measure), per);
                // Lines of one function in several files of one name, say.
                let entry = joined.entry(key(by, &row)).or_default();
                let side = if is_after {
                    &mut entry.after
                } else {
                    &mut entry.before
                };
                *side += value;
                entry.counts.merge(&counts);
                // The names of the later build.
                entry.row = row;
            }
        }
        let mut total = Joined::default();
        let mut rows = Vec::new();
        for each in joined.into_values() {
            total.before += each.before;
            total.after += each.after;
            total.counts.merge(&each.counts);
            if each.before.samples() + each.after.samples() > 0 {
                let null = null_of(&each.counts);
                rows.push(RowChange {
                    row: each.row,
                    change: Change::of(each.before, each.after, null.as_ref()),
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
            total: Change::of(total.before, total.after, null_of(&total.counts).as_ref()),
            rows,
            measure,
            per,
        }
    }
}

/// What both profiles say of a row.
#[derive(Default)]
struct Joined {
    row: Row,
    before: Estimate,
    after: Estimate,
    counts: Counts,
}

/// By symbol, never by address: what tells a row apart in both builds.
type Key = (String, String, Vec<String>, u32);

fn key(by: By, row: &Row) -> Key {
    match by {
        // The kernel's number is another in each run.
        By::Thread => {
            let name = row
                .name
                .rsplit_once(" (")
                .map_or(&*row.name, |(name, _)| name);
            (name.to_owned(), String::new(), Vec::new(), 0)
        }
        By::Line => (
            row.name.clone(),
            row.file.clone().unwrap_or_default(),
            Vec::new(),
            row.line,
        ),
        By::Site => (row.name.clone(), String::new(), row.stack.clone(), 0),
        By::Type => (row.name.clone(), row.module.clone(), Vec::new(), 0),
        By::Heap | By::Size | By::Lifetime => (row.name.clone(), String::new(), Vec::new(), 0),
        By::Function | By::Module => (row.name.clone(), row.module.clone(), Vec::new(), 0),
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
