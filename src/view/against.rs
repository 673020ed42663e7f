//! Another profile, with which the page's is compared.

use allocsample_diff::{Diff, Measure, Per, json};
use allocsample_profile::Profile;
use allocsample_report::{By, Totals};
use serde_json::{Value, json};

use crate::about::about;
use crate::cells::{Cells, Key, LIVE, Sums, UNKNOWN};
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
    })
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
