//! What collectors did: each collection, how long the program stood still, what the machine measured.

use std::collections::BTreeMap;

use allocsample_profile::{Gc, GcKind, HeapId, Profile};
use allocsample_report::heaps::{self, Heaps};
use serde_json::{Value, json};

use crate::columns::{integers, reals};
use crate::sites::{Sites, number};

/// Collections that the page knows one by one: those that took longest.
const MOST_COLLECTIONS: usize = 50_000;
/// Points of a line that a screen can show.
const MOST_READINGS: usize = 2_000;
const MOST_STATISTICS: usize = 60;

/// Half-decades of a pause, from 100 ns: `10^(-7 + i/2)` seconds and more. The last is open.
const PAUSE_CLASSES: usize = 20;

/// Collections, their summary by heap and kind, and statistics over time.
pub(crate) fn collections(profile: &Profile, sites: &Sites) -> Value {
    let heap_of = |heap: HeapId| {
        let name = heaps::name(profile, heap);
        number(sites.heaps.iter().position(|it| it == name).unwrap_or(0))
    };
    let start_ns = profile.process.start_ns;
    let seconds = |time_ns: u64| time_ns.saturating_sub(start_ns) as f64 / 1e9;
    let all = &profile.vm.gcs;
    let mut shown: Vec<&Gc> = all.iter().collect();
    if shown.len() > MOST_COLLECTIONS {
        shown.select_nth_unstable_by_key(MOST_COLLECTIONS, |gc| std::cmp::Reverse(pause_ns(gc)));
        shown.truncate(MOST_COLLECTIONS);
    }
    shown.sort_by_key(|gc| gc.begin_ns);
    json!({
        "in_all": all.len(),
        "heap": integers(shown.iter().map(|gc| heap_of(gc.heap))),
        "kind": integers(shown.iter().map(|gc| gc.kind as u32)),
        "begin": reals(shown.iter().map(|gc| seconds(gc.begin_ns))),
        "pause": reals(shown.iter().map(|gc| pause_ns(gc) as f64 / 1e9)),
        "stress": stress(profile, &heap_of),
        "statistics": statistics(profile, &heap_of, &seconds),
    })
}

fn pause_ns(gc: &Gc) -> u64 {
    gc.end_ns.saturating_sub(gc.begin_ns)
}

/// The report's figures, with quantiles and the distribution of the pauses.
fn stress(profile: &Profile, heap_of: &impl Fn(HeapId) -> u32) -> Vec<Value> {
    if profile.vm.gcs.is_empty() {
        // Adding up the heaps is a walk over all samples.
        return Vec::new();
    }
    let mut pauses: BTreeMap<(HeapId, GcKind), Vec<u64>> = BTreeMap::new();
    for gc in &profile.vm.gcs {
        pauses
            .entry((gc.heap, gc.kind))
            .or_default()
            .push(pause_ns(gc));
    }
    let rows = Heaps::of(profile).stress(profile);
    // Both are in the order of heap and kind.
    let rows = rows
        .iter()
        .zip(pauses)
        .map(|(row, ((heap, kind), mut ns))| {
            ns.sort_unstable();
            let at = |share: f64| {
                let index = (share * (ns.len() - 1) as f64).round() as usize;
                ns.get(index).map_or(0.0, |&ns| ns as f64 / 1e9)
            };
            let mut classes = [0u32; PAUSE_CLASSES];
            for &ns in &ns {
                let half_decades = 2.0 * (ns.max(1) as f64 / 100.0).log10();
                // Saturates at 0, by the definition of `as`.
                classes[(half_decades as usize).min(PAUSE_CLASSES - 1)] += 1;
            }
            let mut value = row.to_json();
            value["heap_index"] = json!(heap_of(heap));
            value["kind_number"] = json!(kind as u32);
            value["p50_s"] = json!(at(0.5));
            value["p99_s"] = json!(at(0.99));
            value["pauses"] = json!(classes);
            value
        });
    rows.collect()
}

/// What the machines measured, at collections and between them, by heap and name.
fn statistics(
    profile: &Profile,
    heap_of: &impl Fn(HeapId) -> u32,
    seconds: &impl Fn(u64) -> f64,
) -> Vec<Value> {
    let mut points: BTreeMap<(HeapId, u32), Vec<(u64, u64)>> = BTreeMap::new();
    for gc in &profile.vm.gcs {
        for &(statistic, value) in &gc.statistics {
            let key = (gc.heap, statistic);
            points.entry(key).or_default().push((gc.end_ns, value));
        }
    }
    for value in &profile.vm.values {
        let key = (value.heap, value.statistic);
        points
            .entry(key)
            .or_default()
            .push((value.time_ns, value.value));
    }
    let named = points.into_iter().filter_map(|(key, mut points)| {
        let statistic = profile.vm.statistics.get(&key)?;
        points.sort_unstable();
        let points: Vec<Value> = thinned(&points)
            .map(|&(time_ns, value)| json!([seconds(time_ns), value]))
            .collect();
        Some(json!({
            "heap": heap_of(key.0),
            "name": statistic.name,
            "unit": statistic.unit,
            "points": points,
        }))
    });
    named.take(MOST_STATISTICS).collect()
}

/// No more than a line on a screen needs.
pub(crate) fn thinned<T>(all: &[T]) -> impl Iterator<Item = &T> {
    all.iter().step_by(all.len().div_ceil(MOST_READINGS).max(1))
}
