//! Another profile, with which the page's is compared.

use allocsample_diff::{Diff, Measure, MemoryChange, Per, json, text};
use allocsample_profile::Profile;
use allocsample_report::{By, Totals};
use serde_json::{Value, json};

use crate::about::about;
use crate::cells::{Cells, Key, LIVE, Sums, UNKNOWN};
use crate::collections::thinned;
use crate::columns::reals;
use crate::sites::Sites;

/// Rows of each table, those with the largest differences.
const MOST_ROWS: usize = 1_000;

/// What is compared.
pub struct Against<'a> {
    /// The earlier profile.
    pub before: &'a Profile,
    /// What both are divided by.
    pub per: Per,
}

/// The earlier profile by site and over time, and what `diff` says.
pub(crate) fn against(
    it: &Against<'_>,
    after: &Profile,
    sites: &Sites,
    of_sample: &[u32],
) -> Value {
    let totals = Totals::of(it.before);
    let cells = Cells::new(it.before, of_sample, &totals);
    let mut by_site = vec![[0.0; 3]; sites.sites.len()];
    for (key, sums) in cells.iter() {
        let [allocated, live, peak] = &mut by_site[key.site as usize];
        *allocated += sums.bytes;
        *peak += sums.at_peak;
        if key.died == LIVE {
            *live += sums.bytes;
        }
    }
    let column = |at: usize| reals(by_site.iter().map(|sums| sums[at]));
    let (per_before, per_after) = it.per.divisors(it.before, after);
    json!({
        "about": about(it.before, &totals),
        "per": match it.per {
            Per::Run => "",
            Per::Second => " per second",
            Per::Count(..) => " per request",
        },
        // What makes bytes of the one comparable with those of the other.
        "scale": per_after / per_before,
        "per_after": per_after,
        "sites": { "allocated": column(0), "live": column(1), "peak": column(2) },
        "bucket_s": cells.bucket_ns as f64 / 1e9,
        "live": live_over_time(&cells, sites),
        "tables": tables(it, after),
        "resident": resident_over_time(it.before),
        "memory": {
            "peak": memory(it, after, Measure::Allocated),
            "last": memory(it, after, Measure::Live),
        },
    })
}

/// Seconds and resident bytes of the earlier process's readings.
fn resident_over_time(before: &Profile) -> Vec<Value> {
    let readings: Vec<(u64, u64)> = (before.memory.iter())
        .map(|map| (map.totals.time_ns, map.totals.resident_bytes))
        .collect();
    let seconds = |time_ns: u64| time_ns.saturating_sub(before.process.start_ns) as f64 / 1e9;
    thinned(&readings)
        .map(|&(time_ns, bytes)| json!([seconds(time_ns), bytes]))
        .collect()
}

/// The rows of both ledgers, or why they are not compared.
fn memory(it: &Against<'_>, after: &Profile, measure: Measure) -> Value {
    let compared = MemoryChange::of_runs(&[it.before], &[after], measure);
    let memory = match &compared {
        Ok(memory) => memory,
        Err(reason) => return json!({"not_compared": text::describe(*reason)}),
    };
    let mut value = json::memory_of(memory);
    if let Some(rows) = value["rows"].as_array_mut() {
        for (row, of) in rows.iter_mut().zip(&memory.rows) {
            row["verdict"] = json!(match of {
                of if of.is_noise() => "noise",
                of if !memory.is_material(of) => "small",
                of if of.change.difference() < 0.0 => "less",
                _ => "more",
            });
        }
    }
    value["warning"] = json!(text::missed_peak(memory));
    value
}

/// Live bytes at the end of each bucket, by heap.
fn live_over_time(cells: &Cells, sites: &Sites) -> Vec<Value> {
    let buckets = cells.buckets as usize;
    let mut changes = vec![vec![0.0; buckets]; sites.heaps.len()];
    let heap_of = |key: &Key| sites.sites[key.site as usize].heap as usize;
    let tracked = cells.iter().filter(|(key, _)| key.died != UNKNOWN);
    for (key, Sums { bytes, .. }) in tracked {
        let change = &mut changes[heap_of(key)];
        change[key.born as usize] += bytes;
        if key.died < UNKNOWN {
            change[key.died as usize] -= bytes;
        }
    }
    let lines = changes.into_iter().map(|change| {
        let mut live: f64 = 0.0;
        let levels = change.into_iter().map(|delta| {
            live += delta;
            live.max(0.0)
        });
        json!(levels.collect::<Vec<f64>>())
    });
    lines.collect()
}

fn tables(it: &Against<'_>, after: &Profile) -> Vec<Value> {
    let mut tables = Vec::new();
    for (measure, measured) in [(Measure::Allocated, "allocated"), (Measure::Live, "live")] {
        for (by, name) in [
            (By::Function, "function"),
            (By::Site, "site"),
            (By::Line, "line"),
            (By::Type, "type"),
            (By::Module, "module"),
        ] {
            let mut diff = Diff::of(it.before, after, by, measure, it.per);
            let in_all = diff.rows.len();
            let significant = diff.rows.iter().filter(|row| row.is_significant()).count();
            diff.rows.truncate(MOST_ROWS);
            let mut table = json::diff(&diff).into_value();
            table["by"] = json!(name);
            table["measured"] = json!(measured);
            table["rows_in_all"] = json!(in_all);
            table["significant_in_all"] = json!(significant);
            tables.push(table);
        }
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{MemoryMap, MemoryMapping, MemoryTotals};

    /// With so much in a mapping without a name, and then half of it.
    fn profile(mib: u64) -> Profile {
        let mut profile = Profile::default();
        for (second, bytes) in [(1, mib << 20), (2, mib << 19)] {
            profile.memory.push(MemoryMap {
                totals: MemoryTotals {
                    time_ns: second * 1_000_000_000,
                    resident_bytes: bytes,
                    anonymous_bytes: bytes,
                    peak_resident_bytes: 0,
                },
                names: vec![Vec::new()],
                mappings: vec![MemoryMapping {
                    start: 1 << 40,
                    bytes: 1 << 30,
                    resident_bytes: bytes,
                    anonymous_bytes: bytes,
                    ..MemoryMapping::default()
                }],
                group: Vec::new(),
            });
        }
        profile
    }

    fn page(before: &Profile, after: &Profile) -> Value {
        let per = Per::Run;
        crate::document::document(after, Some(&Against { before, per }))["against"].take()
    }

    #[test]
    fn the_page_compares_the_ledgers_at_the_peaks_and_at_the_ends() {
        let against = page(&profile(10), &profile(30));
        for (moment, mib) in [("peak", 20.0), ("last", 10.0)] {
            let memory = &against["memory"][moment];
            let row = &memory["rows"][0];
            assert_eq!(row["account"], "unexplained", "{memory}");
            assert_eq!(row["verdict"], "more", "{memory}");
            for change in [row, &memory["resident_bytes"]] {
                assert_eq!(change["difference"], json!(mib * f64::from(1 << 20)));
            }
        }
        let resident = json!([[1.0, 10 << 20], [2.0, 5 << 20]]);
        assert_eq!(against["resident"], resident);
        let shrunk = page(&profile(30), &profile(10));
        assert_eq!(shrunk["memory"]["peak"]["rows"][0]["verdict"], "less");
    }

    #[test]
    fn a_profile_without_readings_has_the_reason_why_memory_is_not_compared() {
        let against = page(&Profile::default(), &profile(10));
        let reason = against["memory"]["peak"]["not_compared"].as_str();
        assert!(reason.is_some_and(|it| it.starts_with("the profile before has no list")));
    }
}
