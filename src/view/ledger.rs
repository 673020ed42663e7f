//! Whose the resident memory is, over time: the ledger of every reading that the page has room for.

use std::collections::BTreeMap;

use allocsample_profile::{MemoryMap, Profile};
use allocsample_report::ledger::{Site, frames_of};
use allocsample_report::{Account, Ledger};
use serde_json::{Value, json};

/// Readings at most, and samples that are looked at for all of them together: each goes through all samples.
const MOST_READINGS: usize = 40;
const MOST_SAMPLES: usize = 20_000_000;
/// Places of each row, and frames of each place.
const MOST_SITES: usize = 10;
const MOST_FRAMES: usize = 40;

/// `null` if no reading has a list of mappings.
pub(crate) fn ledger(profile: &Profile) -> Value {
    let ledgers: Vec<Ledger> = (readings(profile).into_iter())
        .map(|map| Ledger::of(profile, map))
        .collect();
    let Some(last) = ledgers.last() else {
        return Value::Null;
    };
    let mut rows: BTreeMap<(Account, &str), Vec<f64>> = BTreeMap::new();
    for (at, ledger) in ledgers.iter().enumerate() {
        for row in &ledger.rows {
            let bytes = rows.entry((row.account, &row.name)).or_default();
            bytes.resize(ledgers.len(), 0.0);
            bytes[at] = row.resident_bytes.round();
        }
    }
    let rows = rows.into_iter().map(|((account, name), bytes)| {
        let mut of_last = last.rows.iter();
        let row = of_last.find(|row| row.account == account && row.name == name);
        let sites = row.map_or(&[][..], |row| &row.sites).iter();
        json!({
            "account": account.name(),
            "name": name,
            "bytes": bytes,
            "sites": sites.take(MOST_SITES).map(|site| site_json(profile, site)).collect::<Vec<_>>(),
        })
    });
    let seconds = |ledger: &Ledger| {
        ledger
            .totals
            .time_ns
            .saturating_sub(profile.process.start_ns) as f64
            / 1e9
    };
    json!({
        "times": ledgers.iter().map(seconds).collect::<Vec<_>>(),
        "resident": ledgers.iter().map(|it| it.totals.resident_bytes).collect::<Vec<_>>(),
        "rows": rows.collect::<Vec<_>>(),
    })
}

fn site_json(profile: &Profile, site: &Site) -> Value {
    let frames = frames_of(profile, site.stack).into_iter();
    let functions = frames.take(MOST_FRAMES).map(|frame| frame.function);
    json!({
        "bytes": site.resident_bytes.round(),
        "calls": site.calls,
        "stack": functions.collect::<Vec<_>>(),
    })
}

/// Readings with a list: the largest, the last, and others between them at even distances.
fn readings(profile: &Profile) -> Vec<&MemoryMap> {
    let listed: Vec<&MemoryMap> = (profile.memory.iter())
        .filter(|map| !map.mappings.is_empty())
        .collect();
    let room = (MOST_SAMPLES / profile.samples.len().max(1)).clamp(2, MOST_READINGS);
    let largest = (0..listed.len()).max_by_key(|&at| listed[at].totals.resident_bytes);
    let step = listed.len().div_ceil(room).max(1);
    let is_kept =
        |at: usize| at.is_multiple_of(step) || Some(at) == largest || at + 1 == listed.len();
    let kept = listed.iter().enumerate().filter(|(at, _)| is_kept(*at));
    kept.map(|(_, map)| *map).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{MemoryMapping, MemoryTotals};

    fn reading(second: u64, resident_bytes: u64) -> MemoryMap {
        MemoryMap {
            totals: MemoryTotals {
                time_ns: second * 1_000_000_000,
                resident_bytes,
                anonymous_bytes: resident_bytes,
                peak_resident_bytes: 0,
            },
            names: vec![Vec::new()],
            mappings: vec![MemoryMapping {
                start: 1 << 40,
                bytes: 1 << 30,
                resident_bytes,
                anonymous_bytes: resident_bytes,
                ..MemoryMapping::default()
            }],
            group: Vec::new(),
        }
    }

    #[test]
    fn the_largest_and_the_last_reading_are_always_there() {
        let mut profile = Profile::default();
        assert_eq!(ledger(&profile), Value::Null);
        profile.memory = (0..1000)
            .map(|second| reading(second, if second == 777 { 1 << 29 } else { 1 << 20 }))
            .collect();
        let page = ledger(&profile);
        let times = page["times"].as_array().expect("times");
        assert!((MOST_READINGS..MOST_READINGS + 3).contains(&times.len()));
        assert_eq!(times.last(), Some(&json!(999.0)));
        let at = times
            .iter()
            .position(|time| *time == json!(777.0))
            .expect("the largest");
        assert_eq!(page["rows"][0]["bytes"][at], json!(f64::from(1 << 29)));
        assert_eq!(page["rows"][0]["account"], "unexplained");
    }
}
