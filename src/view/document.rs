//! What is embedded in the page: names as JSON, numbers as columns in base64, little-endian.

use allocsample_profile::Profile;
use allocsample_report::Totals;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::cells::{Cells, Key, Sums};
use crate::sites::Sites;

/// Points of a line that a screen can show.
const MOST_READINGS: usize = 2_000;
/// Collections that a screen can show.
const MOST_COLLECTIONS: usize = 5_000;

/// What the program was called by; one file may have several names.
pub(crate) fn program(profile: &Profile) -> &str {
    let process = &profile.process;
    let called = process.command_line.first().unwrap_or(&process.executable);
    called.rsplit('/').next().unwrap_or("")
}

pub(crate) fn document(profile: &Profile) -> Value {
    let totals = Totals::of(profile);
    let sites = Sites::new(profile);
    let cells = Cells::new(profile, &sites, &totals);
    let start_ns = profile.process.start_ns;
    let seconds = |time_ns: u64| time_ns.saturating_sub(start_ns) as f64 / 1e9;
    let (lost_samples, lost_bytes) = profile.lost.samples();
    json!({
        "schema": "allocsample-page/1",
        "about": {
            "command": profile.process.command_line.join(" "),
            "program": program(profile),
            "executable": profile.process.executable,
            "pid": profile.process.pid,
            "start_unix_ms": profile.process.start_wall_ns as f64 / 1e6,
            "duration_s": Totals::duration_s(profile),
            "interval_bytes": profile.interval_bytes(),
            "periodic": profile.is_periodic(),
            "complete": profile.is_complete(),
            "samples": profile.samples.len(),
            "lost_samples": lost_samples,
            "lost_bytes": lost_bytes,
            "exact_bytes": totals.exact_bytes,
            "allocated_bytes": totals.allocated.value(),
            "allocated_stderr": totals.allocated.stderr(),
            "live_bytes": totals.live.value(),
            "live_stderr": totals.live.stderr(),
            "allocations": totals.allocations.value(),
            "peak_bytes": totals.peak.bytes,
            "peak_s": totals.peak.after_ns as f64 / 1e9,
        },
        "modules": sites.modules,
        "functions": sites.functions.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "function_modules": integers(sites.functions.iter().map(|(_, module)| *module)),
        "node_parents": integers(sites.nodes.iter().map(|(parent, _)| *parent)),
        "node_functions": integers(sites.nodes.iter().map(|(_, function)| *function)),
        "site_nodes": integers(sites.sites.iter().map(|(node, _)| *node)),
        "site_functions": integers(sites.sites.iter().map(|(_, function)| *function)),
        "threads": profile.threads.values().map(|it| format!("{} ({})", it.name, it.tid)).collect::<Vec<_>>(),
        "kinds": cells.kinds,
        "kinds_are_types": cells.kinds_are_types,
        "buckets": cells.buckets,
        "bucket_s": cells.bucket_ns as f64 / 1e9,
        "cells": columns(&cells.cells),
        "resident": thinned(&profile.resident_bytes).map(|&(time_ns, bytes)| json!([seconds(time_ns), bytes])).collect::<Vec<_>>(),
        "collections": profile.vm.gcs.iter().take(MOST_COLLECTIONS).map(|gc| json!([
            seconds(gc.begin_ns), seconds(gc.end_ns), format!("{:?}", gc.kind).to_lowercase(),
        ])).collect::<Vec<_>>(),
        "collections_in_all": profile.vm.gcs.len(),
    })
}

fn columns(cells: &[(Key, Sums)]) -> Value {
    let key = |part: fn(&Key) -> u32| integers(cells.iter().map(|(key, _)| part(key)));
    let sum = |part: fn(&Sums) -> f64| reals(cells.iter().map(|(_, sums)| part(sums)));
    json!({
        "site": key(|key| key.site),
        "kind": key(|key| key.kind),
        "thread": key(|key| key.thread),
        "born": key(|key| key.born),
        "died": key(|key| key.died),
        "lifetime": key(|key| key.lifetime),
        "survived": key(|key| key.survived),
        "samples": integers(cells.iter().map(|(_, sums)| sums.samples)),
        "bytes": sum(|sums| sums.bytes),
        "variance": sum(|sums| sums.variance),
        "objects": sum(|sums| sums.objects),
        "at_peak": sum(|sums| sums.at_peak),
    })
}

/// In as few bytes each as the largest needs; the first character says how many.
fn integers(values: impl Iterator<Item = u32> + Clone) -> String {
    let largest = values.clone().max().unwrap_or(0);
    let width = match largest {
        0..=0xFF => 1,
        0x100..=0xFFFF => 2,
        _ => 4,
    };
    let bytes: Vec<u8> = values
        .flat_map(|value| value.to_le_bytes().into_iter().take(width))
        .collect();
    format!("{width}{}", STANDARD.encode(bytes))
}

fn reals(values: impl Iterator<Item = f64>) -> String {
    let bytes: Vec<u8> = values.flat_map(f64::to_le_bytes).collect();
    format!("8{}", STANDARD.encode(bytes))
}

fn thinned<T>(all: &[T]) -> impl Iterator<Item = &T> {
    all.iter().step_by(all.len().div_ceil(MOST_READINGS).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_take_as_little_room_as_their_largest_value_needs() {
        assert_eq!(integers([1, 2].into_iter()), "1AQI=");
        assert_eq!(integers([256].into_iter()), "2AAE=");
        assert_eq!(integers([u32::MAX].into_iter()), "4/////w==");
        assert_eq!(reals([0.0].into_iter()), "8AAAAAAAAAAA=");
    }
}
