//! The report for scripts: `"schema": "allocsample-report/1"`. Keys are only ever added.
//!
//! Bytes and counts are unrounded estimates; `..._stderr` is `null` where there is none (periodic sampling).

use std::collections::HashMap;
use std::rc::Rc;

use allocsample_profile::{LostReason, Profile};
use serde_json::{Value, json};

use crate::cost;
use crate::coverage::Coverage;
use crate::csv::{high, low};
use crate::document::Document;
use crate::frames::Frames;
use crate::heaps::{Heaps, Stress};
use crate::runtimes;
use crate::selection::Selection;
use crate::sums::Figures;
use crate::table::{By, Grouped, Request, Row, Sort};
use crate::text;
use crate::time::CpuTime;
use crate::totals::Totals;

/// The whole report; rows of every table, of the samples that are selected. The totals, heaps and types are of all.
pub fn report<'a>(
    profile: &'a Profile,
    frames: &'a Frames<'a>,
    totals: &'a Totals,
    sort: Sort,
    selection: &'a Selection,
) -> Document<'a> {
    let grouped = move |by| {
        let request = Request {
            by,
            sort,
            selection,
            peak: Some(totals.peak.moments),
            limit: usize::MAX,
        };
        Grouped::of(profile, frames, &request)
    };
    let selected_figures = grouped(By::Heap).selected();
    let rows = move |by| move || grouped(by).into_rows().map(move |row| self::row(by, &row));
    let heaps = Rc::new(Heaps::of(profile));
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
    let mut report = Document::of(json!({
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
        "killed_by": profile.killed_by(),
        "exit_status": profile.exit.and_then(|exit| exit.status),
        "agent": cost::agent_json(profile),
        "intervals": cost::intervals_json(profile),
        "time": CpuTime::of(profile, frames).map(|time| time.to_json()),
        "samples": profile.samples.len(),
        "lost_samples": lost_samples,
        "lost_bytes": lost_bytes,
        "lost": lost,
        "totals": {
            "allocated_bytes": totals.allocated.value(),
            "allocated_bytes_stderr": totals.allocated.stderr(),
            "allocated_bytes_low95": low(&totals.allocated),
            "allocated_bytes_high95": high(&totals.allocated),
            "allocated_bytes_exact": totals.exact_bytes,
            "allocations": totals.allocations.value(),
            "allocations_stderr": totals.allocations.stderr(),
            "allocations_low95": low(&totals.allocations),
            "allocations_high95": high(&totals.allocations),
            "live_bytes": totals.live.value(),
            "live_bytes_stderr": totals.live.stderr(),
            "live_bytes_low95": low(&totals.live),
            "live_bytes_high95": high(&totals.live),
            "live_unexamined_bytes": totals.unexamined.value(),
            "peak_live_bytes": totals.peak.bytes.value(),
            "peak_live_bytes_stderr": totals.peak.bytes.stderr(),
            "peak_live_bytes_low95": low(&totals.peak.bytes),
            "peak_live_bytes_high95": high(&totals.peak.bytes),
            "peak_time_s": totals.peak.after_ns as f64 / 1e9,
        },
        "audit": {
            "z": totals.audit.z,
            "passed": totals.audit.is_passed(),
        },
        "coverage": totals.coverage.as_ref().map(Coverage::to_json),
        "heaps": heaps.heaps_json(profile),
    }));
    let types = Rc::clone(&heaps);
    report.rows("types", move || {
        let types = Rc::clone(&types);
        (0..types.type_count()).map(move |index| types.type_json(profile, index))
    });
    report.extend(json!({
        "gc": heaps.stress(profile).iter().map(Stress::to_json).collect::<Vec<_>>(),
        "selected": selected(&selected_figures),
    }));
    report.rows("functions", rows(By::Function));
    report.rows("sites", rows(By::Site));
    report.rows("lines", rows(By::Line));
    report.rows("modules", rows(By::Module));
    report.rows("threads", move || {
        threads(profile, totals, grouped(By::Thread).into_rows())
    });
    report.rows("sizes", rows(By::Size));
    report.rows("lifetimes", rows(By::Lifetime));
    report.extend(json!({
        "notes": text::remarks(profile, totals),
        "recovery": {
            "ring_found": profile.recovery.ring_found,
            "ring_records": profile.recovery.ring_records,
            "unfinished_records": profile.recovery.unfinished_records,
            "malformed_records": profile.recovery.malformed_records,
            "stopped": profile.recovery.stopped.map(|stopped| stopped.to_string()),
            "ring_error": profile.recovery.ring_error,
        },
        "unseen_runtimes": runtimes::lines(profile),
    }));
    report
}

/// One table alone, for a script that asks for it: `"schema": "allocsample-table/1"`.
pub fn table<'a>(totals: &Totals, table: Grouped<'a>) -> Document<'a> {
    let by = table.by();
    let mut document = Document::of(json!({
        "schema": "allocsample-table/1",
        "by": by.name(),
        "totals": {
            "allocated_bytes": totals.allocated.value(),
            "allocated_bytes_stderr": totals.allocated.stderr(),
            "allocated_bytes_low95": low(&totals.allocated),
            "allocated_bytes_high95": high(&totals.allocated),
            "allocations": totals.allocations.value(),
            "allocations_stderr": totals.allocations.stderr(),
            "allocations_low95": low(&totals.allocations),
            "allocations_high95": high(&totals.allocations),
            "live_bytes": totals.live.value(),
            "live_bytes_stderr": totals.live.stderr(),
            "live_bytes_low95": low(&totals.live),
            "live_bytes_high95": high(&totals.live),
        },
        "selected": selected(&table.selected()),
        "row_count": table.row_count(),
    }));
    let table = Rc::new(table);
    document.rows("rows", move || {
        let table = Rc::clone(&table);
        (0..table.shown_count()).map(move |place| self::row(by, &table.row(place)))
    });
    document
}

/// What was selected of the whole.
pub fn selected(figures: &Figures) -> Value {
    json!({
        "allocated_bytes": figures.allocated.value(),
        "allocated_bytes_stderr": figures.allocated.stderr(),
        "allocated_bytes_low95": low(&figures.allocated),
        "allocated_bytes_high95": high(&figures.allocated),
        "allocations": figures.allocations.value(),
        "allocations_stderr": figures.allocations.stderr(),
        "allocations_low95": low(&figures.allocations),
        "allocations_high95": high(&figures.allocations),
        "live_bytes": figures.live.value(),
        "live_bytes_stderr": figures.live.stderr(),
        "live_bytes_low95": low(&figures.live),
        "live_bytes_high95": high(&figures.live),
        "samples": figures.allocated.samples(),
    })
}

/// A row of any table.
fn row(by: By, row: &Row) -> Value {
    match by {
        By::Function | By::Line => function(row),
        By::Site => {
            let mut value = group("function", row);
            value["stack"] = json!(row.stack);
            value["charged"] = json!(row.charged);
            value
        }
        By::Type => {
            let mut value = group("type", row);
            value["heap"] = json!((!row.module.is_empty()).then_some(&row.module));
            value
        }
        By::Module => {
            let mut value = group("module", row);
            value["total_allocated_bytes"] = json!(row.total_allocated.value());
            value["total_live_bytes"] = json!(row.total_live.value());
            value
        }
        By::Thread | By::Heap | By::Size | By::Lifetime => group(by.name(), row),
    }
}

fn function(row: &Row) -> Value {
    json!({
        "function": row.name,
        "file": row.file,
        "line": if row.line == 0 { None } else { Some(row.line) },
        "module": row.module,
        "self_allocated_bytes": row.self_allocated.value(),
        "self_allocated_bytes_stderr": row.self_allocated.stderr(),
        "self_allocated_bytes_low95": low(&row.self_allocated),
        "self_allocated_bytes_high95": high(&row.self_allocated),
        "total_allocated_bytes": row.total_allocated.value(),
        "total_allocated_bytes_stderr": row.total_allocated.stderr(),
        "total_allocated_bytes_low95": low(&row.total_allocated),
        "total_allocated_bytes_high95": high(&row.total_allocated),
        "self_live_bytes": row.self_live.value(),
        "self_live_bytes_stderr": row.self_live.stderr(),
        "self_live_bytes_low95": low(&row.self_live),
        "self_live_bytes_high95": high(&row.self_live),
        "total_live_bytes": row.total_live.value(),
        "total_live_bytes_stderr": row.total_live.stderr(),
        "total_live_bytes_low95": low(&row.total_live),
        "total_live_bytes_high95": high(&row.total_live),
        "self_peak_live_bytes": row.self_peak.value(),
        "self_peak_live_bytes_stderr": row.self_peak.stderr(),
        "self_peak_live_bytes_low95": low(&row.self_peak),
        "self_peak_live_bytes_high95": high(&row.self_peak),
        "self_growth_bytes": row.self_growth.value(),
        "self_growth_bytes_stderr": row.self_growth.stderr(),
        "self_growth_bytes_low95": low(&row.self_growth),
        "self_growth_bytes_high95": high(&row.self_growth),
        "allocations": row.allocations.value(),
        "allocations_stderr": row.allocations.stderr(),
        "allocations_low95": low(&row.allocations),
        "allocations_high95": high(&row.allocations),
        "samples": row.total_allocated.samples(),
        "self_samples": row.self_allocated.samples(),
    })
}

fn group(key: &str, row: &Row) -> Value {
    json!({
        key: row.name,
        "allocated_bytes": row.self_allocated.value(),
        "allocated_bytes_stderr": row.self_allocated.stderr(),
        "allocated_bytes_low95": low(&row.self_allocated),
        "allocated_bytes_high95": high(&row.self_allocated),
        "live_bytes": row.self_live.value(),
        "live_bytes_stderr": row.self_live.stderr(),
        "live_bytes_low95": low(&row.self_live),
        "live_bytes_high95": high(&row.self_live),
        "peak_live_bytes": row.self_peak.value(),
        "peak_live_bytes_stderr": row.self_peak.stderr(),
        "peak_live_bytes_low95": low(&row.self_peak),
        "peak_live_bytes_high95": high(&row.self_peak),
        "growth_bytes": row.self_growth.value(),
        "growth_bytes_stderr": row.self_growth.stderr(),
        "growth_bytes_low95": low(&row.self_growth),
        "growth_bytes_high95": high(&row.self_growth),
        "allocations": row.allocations.value(),
        "allocations_stderr": row.allocations.stderr(),
        "allocations_low95": low(&row.allocations),
        "allocations_high95": high(&row.allocations),
        "samples": row.self_allocated.samples(),
    })
}

/// Every thread, with or without samples.
fn threads<'a>(
    profile: &'a Profile,
    totals: &'a Totals,
    rows: impl Iterator<Item = Row>,
) -> impl Iterator<Item = Value> + 'a {
    let rows: HashMap<u32, Row> = rows.map(|row| (row.thread, row)).collect();
    profile.threads.iter().map(move |(id, thread)| {
        let mut value = match rows.get(&id.0) {
            Some(row) => group("thread", row),
            None => group("thread", &Row::default()),
        };
        value["thread"] = json!(thread.name);
        value["id"] = json!(id.0);
        value["tid"] = json!(thread.tid);
        value["allocated_bytes_exact"] = json!(thread.exact_bytes);
        value["muted_bytes"] = json!(thread.muted_bytes);
        value["audit_z"] = json!(totals.audit.threads.get(id));
        value
    })
}
