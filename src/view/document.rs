//! What the page knows of a profile, as JSON: names as lists, numbers as columns.

use allocsample_profile::Profile;
use allocsample_report::Totals;
use serde_json::{Value, json};

use crate::about::about;
use crate::against::{Against, against};
use crate::answer::{Explained, answer};
use crate::cells::{Cells, Key, LIVE, Sums};
use crate::collections::{collections, thinned};
use crate::columns::{integers, reals};
use crate::ledger::ledger;
use crate::sites::{FOLDED, Sites};
use crate::sources::sources;
use crate::suspects::Suspects;

/// The page draws no more sites than this; the smallest of those beyond become one for each function.
const MOST_SITES: usize = 60_000;

pub(crate) fn document(profile: &Profile, earlier: Option<&Against<'_>>) -> Value {
    // Looking for leaks takes as long as the rest, and neither needs the other.
    let add_up = || {
        let sums = add_up(profile, earlier);
        let explained = Explained::of(profile, &sums.0);
        (sums, explained)
    };
    let (mut leaks, ((totals, sites, cells, of_before), explained)) =
        rayon::join(|| Suspects::of(profile), add_up);
    leaks.find_in(&sites);
    let nodes = sites.nodes.values();
    let mut document = json!({
        "schema": "allocsample-page/3",
        "about": about(profile, &totals),
        "answer": answer(profile, &totals, &leaks.findings, explained),
        "modules": sites.modules,
        "functions": sites.functions.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "function_modules": integers(sites.functions.iter().map(|(_, module)| *module)),
        "files": sites.files,
        "place_files": integers(sites.places.iter().map(|(file, _)| *file)),
        "place_lines": integers(sites.places.iter().map(|(_, line)| *line)),
        "node_parents": integers(nodes.iter().map(|node| node.parent)),
        "node_functions": integers(nodes.iter().map(|node| node.function)),
        "node_places": integers(nodes.iter().map(|node| node.place)),
        "site_nodes": integers(sites.sites.iter().map(|site| site.node)),
        "site_charged": integers(sites.sites.iter().map(|site| site.charged)),
        "site_heaps": integers(sites.sites.iter().map(|site| site.heap)),
        "sites_in_all": sites.in_all,
        "folded": FOLDED,
        "heaps": sites.heaps,
        "threads": profile.threads.values().map(|it| format!("{} ({})", it.name, it.tid)).collect::<Vec<_>>(),
        "kinds": cells.kinds.iter().map(|kind| &kind.name).collect::<Vec<_>>(),
        "kind_is_type": integers(cells.kinds.iter().map(|kind| u32::from(kind.is_type))),
        "buckets": cells.buckets,
        "bucket_s": cells.bucket_ns as f64 / 1e9,
        "cells": columns(&cells),
        "memory": memory(profile),
        "ledger": ledger(profile),
        "collections": collections(profile, &sites),
        "leaks": leaks.value,
        "sources": sources(profile, &sites, &bytes_by_site(&cells, &sites)),
    });
    if let Some((earlier, of_before)) = earlier.zip(of_before) {
        document["against"] = against(earlier, profile, &sites, &of_before);
    }
    document
}

/// What the kernel says: seconds, resident bytes, and anonymous bytes where they were read.
fn memory(profile: &Profile) -> Vec<Value> {
    let totals = profile.memory.iter().map(|map| map.totals);
    let of_memory = totals.map(|it| (it.time_ns, it.resident_bytes, Some(it.anonymous_bytes)));
    let counters = profile.resident_bytes.iter();
    let of_counters = counters.map(|&(time_ns, bytes)| (time_ns, bytes, None));
    let mut readings: Vec<(u64, u64, Option<u64>)> = of_memory.chain(of_counters).collect();
    readings.sort_unstable();
    let start_ns = profile.process.start_ns;
    let seconds = |time_ns: u64| time_ns.saturating_sub(start_ns) as f64 / 1e9;
    thinned(&readings)
        .map(|&(time_ns, resident, anonymous)| json!([seconds(time_ns), resident, anonymous]))
        .collect()
}

/// The totals of the profile, the sites of both, the cells of the profile, and the sites of the earlier one's samples.
fn add_up(
    profile: &Profile,
    earlier: Option<&Against<'_>>,
) -> (Totals, Sites, Cells, Option<Vec<u32>>) {
    let totals = Totals::of(profile);
    let earlier = earlier.map(|it| it.before);
    let profiles: Vec<&Profile> = [profile].into_iter().chain(earlier).collect();
    let (sites, of_samples) = Sites::of(&profiles, MOST_SITES);
    let mut of_samples = of_samples.into_iter();
    let of_sample = of_samples.next().unwrap_or_default();
    let cells = Cells::new(profile, &of_sample, &totals);
    (totals, sites, cells, of_samples.next())
}

/// Allocated bytes, and live ones once more: a source line is shown for either.
fn bytes_by_site(cells: &Cells, sites: &Sites) -> Vec<f64> {
    let mut bytes = vec![0.0; sites.sites.len()];
    for (key, sums) in cells.iter() {
        let times = if key.died == LIVE { 2.0 } else { 1.0 };
        bytes[key.site as usize] += times * sums.bytes;
    }
    bytes
}

fn columns(cells: &Cells) -> Value {
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
