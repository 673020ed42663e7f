//! How long blocks live: in seconds, and in bytes that the process allocates meanwhile.
//!
//! Seconds tell how long memory is held; bytes tell how many collections, or how much other work, a block outlives,
//! whatever the speed of the machine.

use allocsample_profile::{Profile, Sample};
use allocsample_sampling::Estimate;
use serde_json::{Value, json};

use crate::frames::Frames;
use crate::selection::{Selection, Window};
use crate::sums::Sums;
use crate::table::{By, Request, Sort, Table};
use allocsample_profile::Weights;

/// Classes of a histogram; the last holds all that is beyond.
const CLASSES: usize = 10;

/// One class of lifetimes.
#[derive(Clone, Debug)]
pub struct Class {
    /// Above this ...
    pub from: f64,
    /// ... up to this; infinite for the last.
    pub to: f64,
    /// Bytes that lived so long.
    pub bytes: Estimate,
}

/// Lifetimes of a group of samples.
#[derive(Clone, Debug)]
pub struct Lifetimes {
    /// What the group is called; empty for all.
    pub name: String,
    /// Bytes allocated.
    pub allocated: Estimate,
    /// Those that were not freed.
    pub not_freed: Estimate,
    /// Of those that were freed, in seconds: 10, 50 and 90 % of the bytes lived no longer. `None` if nothing was freed.
    pub quantiles_s: Option<[f64; 3]>,
    /// The same in bytes allocated meanwhile.
    pub quantiles_bytes: Option<[f64; 3]>,
    /// Those that were freed, by seconds.
    pub by_seconds: Vec<Class>,
    /// Those that were freed, by bytes.
    pub by_bytes: Vec<Class>,
}

/// Of all that is selected, then of types and sites.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Of all.
    pub all: Lifetimes,
    /// Of the types that allocate most.
    pub types: Vec<Lifetimes>,
    /// Of the sites that allocate most.
    pub sites: Vec<Lifetimes>,
}

impl Answer {
    /// Looks at what is selected; at most `top` types and sites.
    pub fn of(profile: &Profile, frames: &Frames<'_>, selection: &Selection, top: usize) -> Self {
        let clock = Clock::of(profile);
        let window = Window::of(profile, selection, None);
        let sums = Sums::of(profile, frames, selection, window, true, |_| 0);
        let only = |sum: &u32| if *sum == Sums::NONE { *sum } else { 0 };
        let all = sums.of_sample.iter().map(only);
        let mut all = collect(profile, &clock, 1, all);
        let grouped = |by| {
            let request = Request {
                by,
                sort: Sort::Allocated,
                selection,
                peak_ns: None,
                limit: top,
            };
            let (table, rows) = Table::of_samples(profile, frames, &request);
            let shown = table.rows.len();
            let mut groups = collect(profile, &clock, shown, rows.into_iter());
            for (group, row) in groups.iter_mut().zip(table.rows) {
                group.name = match by {
                    By::Site => row.stack[row.charged..].join(" < "),
                    _ if row.module.is_empty() => row.name,
                    _ => format!("{} [{}]", row.name, row.module),
                };
            }
            groups
        };
        let has_types = profile
            .samples
            .iter()
            .any(|sample| sample.outcome().is_some());
        Self {
            all: all.remove(0),
            types: if has_types {
                grouped(By::Type)
            } else {
                Vec::new()
            },
            sites: grouped(By::Site),
        }
    }

    /// For scripts.
    pub fn to_json(&self) -> Value {
        let list = |groups: &[Lifetimes], key: &str| -> Vec<Value> {
            groups.iter().map(|group| group.to_json(key)).collect()
        };
        json!({
            "schema": "allocsample-lifetimes/1",
            "all": self.all.to_json("name"),
            "types": list(&self.types, "type"),
            "sites": list(&self.sites, "site"),
        })
    }
}

impl Lifetimes {
    fn to_json(&self, key: &str) -> Value {
        let classes = |classes: &[Class], unit: &str| -> Vec<Value> {
            let class = |class: &Class| {
                json!({
                    format!("from_{unit}"): class.from,
                    format!("to_{unit}"): class.to.is_finite().then_some(class.to),
                    "bytes": class.bytes.value(),
                    "bytes_stderr": class.bytes.stderr(),
                    "samples": class.bytes.samples(),
                })
            };
            classes.iter().map(class).collect()
        };
        json!({
            key: self.name,
            "allocated_bytes": self.allocated.value(),
            "allocated_bytes_stderr": self.allocated.stderr(),
            "not_freed_bytes": self.not_freed.value(),
            "not_freed_bytes_stderr": self.not_freed.stderr(),
            "quantiles_s": self.quantiles_s,
            "quantiles_bytes": self.quantiles_bytes,
            "by_seconds": classes(&self.by_seconds, "s"),
            "by_bytes": classes(&self.by_bytes, "bytes"),
        })
    }
}

/// Bytes that the process had allocated, as a function of time.
struct Clock {
    /// Times with the bytes up to and with them, in the order of time.
    steps: Vec<(u64, f64)>,
}

impl Clock {
    fn of(profile: &Profile) -> Self {
        let mut weights = Weights::of(profile);
        let mut steps: Vec<(u64, f64)> = profile
            .samples
            .iter()
            .filter(|sample| !sample.is_carried())
            .map(|sample| (sample.time_ns, weights.get(sample).0.value()))
            .collect();
        if !steps.is_sorted_by_key(|step| step.0) {
            steps.sort_by_key(|step| step.0);
        }
        let mut sum = 0.0;
        for step in &mut steps {
            sum += step.1;
            step.1 = sum;
        }
        Self { steps }
    }

    fn at(&self, time_ns: u64) -> f64 {
        let after = self.steps.partition_point(|step| step.0 <= time_ns);
        after
            .checked_sub(1)
            .map_or(0.0, |index| self.steps[index].1)
    }
}

/// Lifetimes of `count` groups; `groups` says for each sample in which it is, or in none of them.
fn collect(
    profile: &Profile,
    clock: &Clock,
    count: usize,
    groups: impl Iterator<Item = u32>,
) -> Vec<Lifetimes> {
    let seconds: Vec<f64> = (0..CLASSES - 1)
        .map(|n| 1e-5 * 10f64.powi(exponent(n)))
        .collect();
    let bytes: Vec<f64> = (0..CLASSES - 1)
        .map(|n| 4096.0 * 8f64.powi(exponent(n)))
        .collect();
    let empty = Lifetimes {
        name: String::new(),
        allocated: Estimate::ZERO,
        not_freed: Estimate::ZERO,
        quantiles_s: None,
        quantiles_bytes: None,
        by_seconds: classes(&seconds),
        by_bytes: classes(&bytes),
    };
    let mut all = vec![empty; count];
    // Lifetime in seconds and in bytes, and weight.
    let mut ends: Vec<Vec<(f64, f64, f64)>> = vec![Vec::new(); count];
    let mut weights = Weights::of(profile);
    for (sample, group) in profile.samples.iter().zip(groups) {
        // Of those that were there when the file began, the short-lived are missing.
        if sample.is_carried() {
            continue;
        }
        let group = group as usize;
        let Some(lifetimes) = all.get_mut(group) else {
            continue;
        };
        let weight = weights.get(sample).0;
        lifetimes.allocated += weight;
        match lived(sample, clock) {
            None if sample.is_live() => lifetimes.not_freed += weight,
            None => {}
            Some((lived_s, lived_bytes)) => {
                lifetimes.by_seconds[class_of(&seconds, lived_s)].bytes += weight;
                lifetimes.by_bytes[class_of(&bytes, lived_bytes)].bytes += weight;
                ends[group].push((lived_s, lived_bytes, weight.value()));
            }
        }
    }
    for (lifetimes, mut ends) in all.iter_mut().zip(ends) {
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        lifetimes.quantiles_s = quantiles(ends.iter().map(|end| (end.0, end.2)));
        ends.sort_by(|a, b| a.1.total_cmp(&b.1));
        lifetimes.quantiles_bytes = quantiles(ends.iter().map(|end| (end.1, end.2)));
    }
    all
}

/// Below ten.
fn exponent(class: usize) -> i32 {
    i32::try_from(class).unwrap_or(i32::MAX)
}

fn lived(sample: &Sample, clock: &Clock) -> Option<(f64, f64)> {
    let freed = sample.freed()?;
    let seconds = freed.time_ns.saturating_sub(sample.time_ns) as f64 / 1e9;
    let bytes = clock.at(freed.time_ns) - clock.at(sample.time_ns);
    Some((seconds, bytes.max(0.0)))
}

fn classes(bounds: &[f64]) -> Vec<Class> {
    let from = std::iter::once(0.0).chain(bounds.iter().copied());
    let to = bounds.iter().copied().chain([f64::INFINITY]);
    from.zip(to)
        .map(|(from, to)| Class {
            from,
            to,
            bytes: Estimate::ZERO,
        })
        .collect()
}

fn class_of(bounds: &[f64], value: f64) -> usize {
    bounds.partition_point(|&bound| bound < value)
}

/// The values below which 10, 50 and 90 % of the weight lie.
fn quantiles(sorted: impl Iterator<Item = (f64, f64)> + Clone) -> Option<[f64; 3]> {
    let whole: f64 = sorted.clone().map(|(_, weight)| weight).sum();
    let at = |share: f64| {
        let mut sum = 0.0;
        let reached = sorted.clone().find(|(_, weight)| {
            sum += weight;
            sum >= share * whole
        });
        // Rounding may leave the last one out.
        reached
            .or_else(|| sorted.clone().last())
            .map(|(value, _)| value)
    };
    Some([at(0.1)?, at(0.5)?, at(0.9)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_weigh() {
        let values = [(1.0, 1.0), (2.0, 8.0), (3.0, 1.0)];
        assert_eq!(quantiles(values.into_iter()), Some([1.0, 2.0, 2.0]));
        assert_eq!(quantiles(std::iter::empty()), None);
    }

    #[test]
    fn bounds_belong_to_the_class_below() {
        let bounds = [1.0, 10.0];
        let classes = classes(&bounds);
        for (value, class) in [(0.0, 0), (1.0, 0), (1.5, 1), (10.0, 1), (11.0, 2)] {
            assert_eq!(class_of(&bounds, value), class);
            assert!(value <= classes[class].to);
        }
    }
}
