//! Ledgers for scripts: `"schema": "allocsample-memory/1"`. Keys are only ever added.

use allocsample_profile::Profile;
use serde_json::{Map, Value, json};

use super::{Ledger, LedgerRow, Site};

/// The ledgers of the peak and of the last reading.
pub fn to_json(profile: &Profile, peak: &Ledger, last: &Ledger) -> Value {
    json!({
        "schema": "allocsample-memory/1",
        "peak": moment(profile, peak),
        "last": moment(profile, last),
        "mapping_calls": {
            "recorded": profile.mappings.len(),
            "not_recorded": super::not_recorded(profile),
        },
    })
}

fn moment(profile: &Profile, ledger: &Ledger) -> Value {
    let totals = &ledger.totals;
    let group: Map<String, Value> = (ledger.group.iter())
        .map(|(figure, value)| (figure.name().to_owned(), json!(value)))
        .collect();
    json!({
        "time_s": super::seconds_into(profile, totals.time_ns),
        "resident_bytes": totals.resident_bytes,
        "anonymous_bytes": totals.anonymous_bytes,
        "swapped_bytes": ledger.swapped_bytes,
        "huge_bytes": ledger.huge_bytes,
        "unexplained_bytes": ledger.of_account(super::Account::Unexplained),
        "rows": ledger.rows.iter().map(|row| row_json(profile, row)).collect::<Vec<_>>(),
        "control_group": group,
    })
}

fn row_json(profile: &Profile, row: &LedgerRow) -> Value {
    json!({
        "account": row.account.name(),
        "name": row.name,
        "resident_bytes": row.resident_bytes,
        "anonymous_bytes": row.anonymous_bytes,
        "stderr_bytes": row.stderr_bytes,
        "sites": row.sites.iter().map(|site| site_json(profile, site)).collect::<Vec<_>>(),
    })
}

fn site_json(profile: &Profile, site: &Site) -> Value {
    let frames = super::frames_of(profile, site.stack)
        .into_iter()
        .map(|frame| {
            json!({
                "function": frame.function,
                "module": frame.module,
                "file": frame.file,
                "line": frame.line,
            })
        });
    json!({
        "resident_bytes": site.resident_bytes,
        "mapped_bytes": site.mapped_bytes,
        "calls": site.calls,
        "stack": frames.collect::<Vec<_>>(),
    })
}
