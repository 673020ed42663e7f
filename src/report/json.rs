//! The report for scripts: `"schema": "allocsample-report/1"`. Keys are only ever added.
//!
//! Bytes and counts are unrounded estimates; `..._stderr` is `null` where there is none (periodic sampling).

use allocsample_profile::{LostReason, Profile};
use allocsample_sampling::Estimate;
use serde_json::{Value, json};

use crate::cost;
use crate::heaps::Heaps;
use crate::table::{By, Filter, Row, Sort, Table};
use crate::text;
use crate::totals::Totals;

/// The whole report; rows of every table that has samples which pass `filter`.
pub fn report(profile: &Profile, sort: Sort, filter: &Filter) -> Value {
    let totals = Totals::of(profile);
    let heaps = Heaps::of(profile);
    let (lost_samples, lost_bytes) = profile.lost.samples();
    let lost: serde_json::Map<String, Value> = LostReason::ALL
        .into_iter()
        .map(|reason| {
            let (events, bytes) = profile.lost.of(reason);
            (
                reason.description().to_owned(),
                json!({"events": events, "bytes": bytes}),
            )
        })
        .collect();
    json!({
        "schema": "allocsample-report/1",
        "command": profile.process.command_line,
        "executable": profile.process.executable,
        "pid": profile.process.pid,
        "parent_pid": profile.process.parent_pid,
        "start_unix_ns": profile.process.start_wall_ns,
        "interval_bytes": profile.interval_bytes(),
        "sampling": if profile.is_periodic() { "periodic" } else { "poisson" },
        "duration_s": Totals::duration_s(profile),
        "complete": profile.is_complete(),
        "exit": profile.exit.map(|exit| exit.describe()),
        "exit_status": profile.exit.and_then(|exit| exit.status),
        "agent": cost::agent_json(profile),
        "intervals": cost::intervals_json(profile),
        "samples": profile.samples.len(),
        "lost_samples": lost_samples,
        "lost_bytes": lost_bytes,
        "lost": lost,
        "totals": {
            "allocated_bytes": totals.allocated.value(),
            "allocated_bytes_stderr": totals.allocated.stderr(),
            "allocated_bytes_exact": totals.exact_bytes,
            "allocations": totals.allocations.value(),
            "allocations_stderr": totals.allocations.stderr(),
            "live_bytes": totals.live.value(),
            "live_bytes_stderr": totals.live.stderr(),
            "peak_live_bytes": totals.peak.bytes,
            "peak_time_s": totals.peak.after_ns as f64 / 1e9,
        },
        "audit": {
            "z": totals.audit.z,
            "passed": totals.audit.is_passed(),
        },
        "heaps": heaps.heaps_json(profile),
        "types": heaps.types_json(profile),
        "functions": rows(profile, By::Function, sort, filter, function),
        "sites": rows(profile, By::Site, sort, filter, site),
        "lines": rows(profile, By::Line, sort, filter, function),
        "modules": rows(profile, By::Module, sort, filter, |row| group("module", row)),
        "threads": threads(profile, &totals, sort, filter),
        "notes": text::remarks(profile, &totals),
        "recovery": {
            "ring_found": profile.recovery.ring_found,
            "ring_records": profile.recovery.ring_records,
            "unfinished_records": profile.recovery.unfinished_records,
            "malformed_records": profile.recovery.malformed_records,
            "stopped": profile.recovery.stopped.map(|stopped| stopped.to_string()),
            "ring_error": profile.recovery.ring_error,
        },
    })
}

fn rows(
    profile: &Profile,
    by: By,
    sort: Sort,
    filter: &Filter,
    print: impl Fn(&Row) -> Value,
) -> Vec<Value> {
    Table::group(profile, by, sort, filter)
        .rows
        .iter()
        .map(print)
        .collect()
}

fn function(row: &Row) -> Value {
    json!({
        "function": row.name,
        "file": row.file,
        "line": if row.line == 0 { None } else { Some(row.line) },
        "module": row.module,
        "self_allocated_bytes": row.self_allocated.value(),
        "self_allocated_bytes_stderr": row.self_allocated.stderr(),
        "total_allocated_bytes": row.total_allocated.value(),
        "total_allocated_bytes_stderr": row.total_allocated.stderr(),
        "self_live_bytes": row.self_live.value(),
        "self_live_bytes_stderr": row.self_live.stderr(),
        "total_live_bytes": row.total_live.value(),
        "total_live_bytes_stderr": row.total_live.stderr(),
        "allocations": row.allocations.value(),
        "allocations_stderr": row.allocations.stderr(),
        "samples": row.total_allocated.samples(),
        "self_samples": row.self_allocated.samples(),
    })
}

fn site(row: &Row) -> Value {
    let mut value = group("function", row);
    value["stack"] = json!(row.stack);
    value
}

fn group(key: &str, row: &Row) -> Value {
    let figure = |estimate: &Estimate| (estimate.value(), estimate.stderr());
    let ((allocated, allocated_stderr), (live, live_stderr)) =
        (figure(&row.self_allocated), figure(&row.self_live));
    json!({
        key: row.name,
        "allocated_bytes": allocated,
        "allocated_bytes_stderr": allocated_stderr,
        "live_bytes": live,
        "live_bytes_stderr": live_stderr,
        "allocations": row.allocations.value(),
        "samples": row.self_allocated.samples(),
    })
}

fn threads(profile: &Profile, totals: &Totals, sort: Sort, filter: &Filter) -> Vec<Value> {
    let table = Table::group(profile, By::Thread, sort, filter);
    profile
        .threads
        .iter()
        .map(|(id, thread)| {
            let name = format!("{} ({})", thread.name, thread.tid);
            let row = table
                .rows
                .iter()
                .find(|row| row.name == name)
                .cloned()
                .unwrap_or_default();
            let mut value = group("thread", &row);
            value["thread"] = json!(thread.name);
            value["id"] = json!(id.0);
            value["tid"] = json!(thread.tid);
            value["allocated_bytes_exact"] = json!(thread.exact_bytes);
            value["muted_bytes"] = json!(thread.muted_bytes);
            value["audit_z"] = json!(totals.audit.threads.get(id));
            value
        })
        .collect()
}
