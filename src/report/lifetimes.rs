//! How long blocks live: in seconds, in bytes that the process allocates meanwhile, and in collections.
//!
//! Seconds tell how long memory is held; bytes tell how much other work a block outlives, whatever the speed of the
//! machine; collections tell how often a machine has looked at an object before it found it dead: one for those that
//! died young.

use std::collections::{BTreeMap, HashMap};

use allocsample_profile::{GcKind, HeapId, Profile, Sample, Weights};
use allocsample_sampling::Estimate;
use serde_json::{Value, json};

use crate::breakdown::{Breakdown, Parts};
use crate::csv::{high, low};
use crate::frames::Frames;
use crate::selection::{Selection, Window};
use crate::sums::Sums;
use crate::table::By;

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
    /// Those that were freed in heaps that are collected, by minor and major collections of that heap which began
    /// meanwhile.
    pub by_collections: Vec<Class>,
    /// The same as quantiles.
    pub quantiles_collections: Option<[f64; 3]>,
}

/// Of all that is selected, then of the types and sites that allocate most.
pub type Answer = Breakdown<Lifetimes>;

impl Answer {
    /// Looks at what is selected; at most `top` types and sites.
    pub fn of(profile: &Profile, frames: &Frames<'_>, selection: &Selection, top: usize) -> Self {
        let clock = Clock::of(profile);
        let window = Window::of(profile, selection, None);
        let sums = Sums::of(profile, frames, selection, window, true, |_| 0);
        let only = |sum: &u32| if *sum == Sums::NONE { *sum } else { 0 };
        let all = sums.of_sample.iter().map(only);
        let mut all = collect(profile, &clock, 1, all);
        let of_process = profile.allowances(0, u64::MAX).of_process().bytes;
        all[0].allow_for(of_process);
        let grouped = |by| {
            let parts = Parts::of(profile, frames, selection, by, top);
            let count = parts.names.len();
            let mut groups = collect(profile, &clock, count, parts.of_sample.into_iter());
            for (group, name) in groups.iter_mut().zip(parts.names) {
                group.name = name;
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
        self.to_json_with("allocsample-lifetimes/1", Lifetimes::to_json)
    }
}

impl Lifetimes {
    /// In all figures, for what may have been missed.
    fn allow_for(&mut self, missed_bytes: f64) {
        let classes = [
            &mut self.by_seconds,
            &mut self.by_bytes,
            &mut self.by_collections,
        ];
        let classes = classes.into_iter().flatten().map(|class| &mut class.bytes);
        for figure in classes.chain([&mut self.allocated, &mut self.not_freed]) {
            *figure = figure.allowing_for(missed_bytes);
        }
    }

    fn to_json(&self, key: &str) -> Value {
        let classes = |classes: &[Class], unit: &str| -> Vec<Value> {
            let class = |class: &Class| {
                json!({
                    format!("from_{unit}"): class.from,
                    format!("to_{unit}"): class.to.is_finite().then_some(class.to),
                    "bytes": class.bytes.value(),
                    "bytes_stderr": class.bytes.stderr(),
                    "bytes_low95": low(&class.bytes),
                    "bytes_high95": high(&class.bytes),
                    "samples": class.bytes.samples(),
                })
            };
            classes.iter().map(class).collect()
        };
        json!({
            key: self.name,
            "allocated_bytes": self.allocated.value(),
            "allocated_bytes_stderr": self.allocated.stderr(),
            "allocated_bytes_low95": low(&self.allocated),
            "allocated_bytes_high95": high(&self.allocated),
            "not_freed_bytes": self.not_freed.value(),
            "not_freed_bytes_stderr": self.not_freed.stderr(),
            "not_freed_bytes_low95": low(&self.not_freed),
            "not_freed_bytes_high95": high(&self.not_freed),
            "quantiles_s": self.quantiles_s,
            "quantiles_bytes": self.quantiles_bytes,
            "by_seconds": classes(&self.by_seconds, "s"),
            "by_bytes": classes(&self.by_bytes, "bytes"),
            "quantiles_collections": self.quantiles_collections,
            "by_collections": classes(&self.by_collections, "collections"),
        })
    }
}

/// What else than seconds tells the time.
struct Clock {
    /// Times with the bytes that the process had allocated up to and with them, in the order of time.
    steps: Vec<(u64, f64)>,
    /// When the collections of a heap began, in the order of time.
    collections: HashMap<HeapId, Vec<u64>>,
}

/// From a block's allocation to its end.
struct Lived {
    seconds: f64,
    bytes: f64,
    /// `None` where nothing is collected.
    collections: Option<f64>,
}

impl Clock {
    fn of(profile: &Profile) -> Self {
        let mut weights = Weights::of(profile);
        let mut steps: Vec<(u64, f64)> = profile
            .samples
            .iter()
            .filter(|sample| !sample.is_carried())
            .map(|sample| (sample.time_ns, weights.get(&sample).0.value()))
            .collect();
        if !steps.is_sorted_by_key(|step| step.0) {
            steps.sort_by_key(|step| step.0);
        }
        let mut sum = 0.0;
        for step in &mut steps {
            sum += step.1;
            step.1 = sum;
        }
        let mut collections: HashMap<HeapId, Vec<u64>> = HashMap::new();
        for gc in &profile.vm.gcs {
            // A step is part of a major collection, which is told of as well.
            if gc.kind != GcKind::MajorStep {
                collections.entry(gc.heap).or_default().push(gc.begin_ns);
            }
        }
        for begins in collections.values_mut() {
            begins.sort_unstable();
        }
        Self { steps, collections }
    }

    /// `None`: it has no end.
    fn lived(&self, sample: &Sample) -> Option<Lived> {
        let (from_ns, to_ns) = (sample.time_ns, sample.freed()?.time_ns);
        let collections = self.collections.get(&sample.heap).map(|begins| {
            let until = |time_ns| begins.partition_point(|&begin| begin <= time_ns);
            until(to_ns).saturating_sub(until(from_ns)) as f64
        });
        Some(Lived {
            seconds: to_ns.saturating_sub(from_ns) as f64 / 1e9,
            bytes: (self.at(to_ns) - self.at(from_ns)).max(0.0),
            collections,
        })
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
    let collections: Vec<f64> = std::iter::once(0.0)
        .chain((0..CLASSES - 2).map(|n| 2f64.powi(exponent(n))))
        .collect();
    let nothing = Estimate::ZERO;
    let classes = |bounds: &[f64]| classes(bounds, nothing);
    let allowances = profile.allowances(0, u64::MAX);
    let mut missed: BTreeMap<HeapId, f64> = BTreeMap::new();
    let empty = Lifetimes {
        name: String::new(),
        allocated: nothing,
        not_freed: nothing,
        quantiles_s: None,
        quantiles_bytes: None,
        by_seconds: classes(&seconds),
        by_bytes: classes(&bytes),
        by_collections: classes(&collections),
        quantiles_collections: None,
    };
    let mut all = vec![empty; count];
    // With their weights.
    let mut ends: Vec<Vec<(Lived, f64)>> = (0..count).map(|_| Vec::new()).collect();
    let mut weights = Weights::of(profile);
    for (sample, group) in profile.samples.iter().zip(groups) {
        let group = group as usize;
        let Some(lifetimes) = all.get_mut(group) else {
            continue;
        };
        let missed = missed.entry(sample.heap);
        let missed = *missed.or_insert_with(|| allowances.of(sample.heap).bytes);
        if lifetimes.allocated.allowance() < missed {
            lifetimes.allow_for(missed);
        }
        // Of those that were there when the file began, the short-lived are missing.
        if sample.is_carried() {
            continue;
        }
        let weight = weights.get(&sample).0;
        lifetimes.allocated += weight;
        match clock.lived(&sample) {
            None if sample.is_live() => lifetimes.not_freed += weight,
            None => {}
            Some(lived) => {
                lifetimes.by_seconds[class_of(&seconds, lived.seconds)].bytes += weight;
                lifetimes.by_bytes[class_of(&bytes, lived.bytes)].bytes += weight;
                if let Some(count) = lived.collections {
                    lifetimes.by_collections[class_of(&collections, count)].bytes += weight;
                }
                ends[group].push((lived, weight.value()));
            }
        }
    }
    for (lifetimes, ends) in all.iter_mut().zip(ends) {
        let sorted = |of: fn(&Lived) -> Option<f64>| {
            let values = ends.iter();
            let values = values.filter_map(|(lived, weight)| Some((of(lived)?, *weight)));
            let mut values: Vec<(f64, f64)> = values.collect();
            values.sort_by(|a, b| a.0.total_cmp(&b.0));
            quantiles(values.into_iter())
        };
        lifetimes.quantiles_s = sorted(|lived| Some(lived.seconds));
        lifetimes.quantiles_bytes = sorted(|lived| Some(lived.bytes));
        lifetimes.quantiles_collections = sorted(|lived| lived.collections);
    }
    all
}

/// Below ten.
fn exponent(class: usize) -> i32 {
    i32::try_from(class).unwrap_or(i32::MAX)
}

fn classes(bounds: &[f64], nothing: Estimate) -> Vec<Class> {
    let from = std::iter::once(0.0).chain(bounds.iter().copied());
    let to = bounds.iter().copied().chain([f64::INFINITY]);
    from.zip(to)
        .map(|(from, to)| Class {
            from,
            to,
            bytes: nothing,
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
        let classes = classes(&bounds, Estimate::ZERO);
        for (value, class) in [(0.0, 0), (1.0, 0), (1.5, 1), (10.0, 1), (11.0, 2)] {
            assert_eq!(class_of(&bounds, value), class);
            assert!(value <= classes[class].to);
        }
    }
}
