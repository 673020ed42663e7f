//! Ledgers for scripts: `"schema": "allocsample-memory/1"`. Keys are only ever added.

use allocsample_heapwalk::Parts;
use allocsample_profile::{OwnFigure, Profile, StackId};
use serde_json::{Map, Value, json};

use super::{Held, Holder, Ledger, LedgerRow, OwnCount, Site};

/// The ledgers of the peak and of the last reading.
pub fn to_json(profile: &Profile, peak: &Ledger, last: &Ledger) -> Value {
    json!({
        "schema": "allocsample-memory/1",
        "peak": moment(profile, peak),
        "last": moment(profile, last),
        "missed_bytes": Ledger::missed_bytes(profile),
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
        "own_counts": ledger.own_counts.iter().map(|own| own_json(profile, own)).collect::<Vec<_>>(),
        "malloc": ledger.held.as_ref().map(|held| held_json(profile, held)),
    })
}

fn own_json(profile: &Profile, own: &OwnCount) -> Value {
    let figures = OwnFigure::ALL.map(|figure| (figure.name().to_owned(), json!(own.of(figure))));
    let mut value: Map<String, Value> = figures.into_iter().collect();
    value.extend([
        ("name".to_owned(), json!(own.name)),
        (
            "time_s".to_owned(),
            json!(super::seconds_into(profile, own.time_ns)),
        ),
        ("live_bytes".to_owned(), json!(own.live.value())),
        ("live_stderr_bytes".to_owned(), json!(own.live.stderr())),
        (
            "live_rounded_bytes".to_owned(),
            json!(own.live_rounded.value()),
        ),
        (
            "live_rounded_stderr_bytes".to_owned(),
            json!(own.live_rounded.stderr()),
        ),
        (
            "agreement".to_owned(),
            json!(own.agreement().map(|it| it.name())),
        ),
    ]);
    Value::Object(value)
}

fn held_json(profile: &Profile, held: &Held) -> Value {
    let arenas = held.arenas.iter().map(|arena| {
        json!({
            "is_main": arena.is_main,
            "attached_threads": arena.attached_threads,
            "system_bytes": arena.system_bytes,
            "walked_bytes": arena.walked_bytes,
            "chunks": {
                "blocks": arena.sizes.blocks,
                "in_use_bytes": arena.sizes.in_use,
                "free_bytes": arena.sizes.free,
                "fastbin_bytes": arena.sizes.fast,
                "cached_bytes": arena.sizes.cached,
                "top_bytes": arena.sizes.top,
                "not_understood_bytes": arena.sizes.lost,
            },
            "resident": parts_json(&arena.parts),
        })
    });
    json!({
        "resident": parts_json(&held.parts),
        "arenas": arenas.collect::<Vec<_>>(),
        "sampled_blocks": {"found": held.found, "gone": held.gone},
        "held_by_sites_bytes": held.attributed.value(),
        "held_by_sites_stderr_bytes": held.attributed.stderr(),
        "holders": held.holders.iter().map(|it| holder_json(profile, it)).collect::<Vec<_>>(),
        "advice": super::advice::of(held),
    })
}

fn parts_json(parts: &Parts) -> Value {
    json!({
        "in_use_bytes": parts.in_use,
        "headers_bytes": parts.headers,
        "cached_bytes": parts.cached,
        "returnable_bytes": parts.returnable,
        "at_ends_bytes": parts.at_ends,
        "held_bytes": parts.held,
        "other_free_bytes": parts.other_free,
        "not_understood_bytes": parts.lost,
    })
}

fn holder_json(profile: &Profile, holder: &Holder) -> Value {
    json!({
        "free_bytes": holder.free_bytes.value(),
        "stderr_bytes": holder.free_bytes.stderr(),
        "alone_bytes": holder.alone_bytes.value(),
        "blocks": holder.blocks.value(),
        "block_bytes": holder.block_bytes.value(),
        "samples": holder.free_bytes.samples(),
        "stack": stack_json(profile, holder.stack),
    })
}

fn row_json(profile: &Profile, row: &LedgerRow) -> Value {
    json!({
        "account": row.account.name(),
        "name": row.name,
        "resident_bytes": row.resident_bytes,
        "anonymous_bytes": row.anonymous_bytes,
        "stderr_bytes": row.stderr_bytes,
        "reasons": row.reasons.iter().map(|(reason, bytes)| {
            json!({"reason": reason.name(), "resident_bytes": bytes})
        }).collect::<Vec<_>>(),
        "sites": row.sites.iter().map(|site| site_json(profile, site)).collect::<Vec<_>>(),
    })
}

fn site_json(profile: &Profile, site: &Site) -> Value {
    json!({
        "resident_bytes": site.resident_bytes,
        "mapped_bytes": site.mapped_bytes,
        "calls": site.calls,
        "stack": stack_json(profile, site.stack),
    })
}

fn stack_json(profile: &Profile, stack: StackId) -> Value {
    let frames = super::frames_of(profile, stack).into_iter().map(|frame| {
        json!({
            "function": frame.function,
            "module": frame.module,
            "file": frame.file,
            "line": frame.line,
        })
    });
    frames.collect()
}
