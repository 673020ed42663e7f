//! The comparison for scripts: `"schema": "allocsample-diff/1"`. Keys are only ever added.

use allocsample_report::Document;
use serde_json::{Value, json};

use crate::{Change, Diff, Lengths, Measure, MemoryChange, MemoryRow, Moment, Per, RowChange};

/// All rows, largest differences first.
pub fn diff(diff: &Diff) -> Document<'_> {
    let mut document = Document::of(json!({
        "schema": "allocsample-diff/1",
        "measure": match diff.measure {
            Measure::Allocated => "allocated_bytes",
            Measure::Live => "live_bytes",
            Measure::Count => "allocations",
        },
        "per": match diff.per {
            Per::Run => "run",
            Per::Second => "second",
            Per::Count(..) => "count",
        },
        "runs_before": diff.runs.0,
        "runs_after": diff.runs.1,
        "lengths": diff.lengths.map(lengths),
        "total": change(&diff.total),
    }));
    document.rows("rows", || diff.rows.iter().map(row));
    document
}

/// The lengths of profiles whose totals may differ because one is longer.
fn lengths(lengths: Lengths) -> Value {
    json!({
        "before_s": lengths.before_s,
        "after_s": lengths.after_s,
        "are_of_one_recording": lengths.are_of_one_recording,
    })
}

/// What else the document has: the rows of the ledger, or null.
pub fn memory(memory: Option<&MemoryChange>) -> Value {
    json!({"memory": memory.map(memory_of)})
}

/// The rows of the ledger.
pub fn memory_of(memory: &MemoryChange) -> Value {
    json!({
        "reading": match memory.moment {
            Moment::Largest => "peak",
            Moment::Last => "last",
        },
        "resident_bytes": change(&memory.resident),
        "rows": memory.rows.iter().map(memory_row).collect::<Vec<_>>(),
        "missed_bytes": memory.missed_bytes,
        "grew_most": memory.grew_most().map(|row| &row.name),
    })
}

fn memory_row(row: &MemoryRow) -> Value {
    let mut value = json!({"account": row.account.name(), "name": row.name});
    if let (Value::Object(value), Value::Object(change)) = (&mut value, change(&row.change)) {
        value.extend(change);
    }
    value
}

fn row(row: &RowChange) -> Value {
    let mut value = json!({
        "name": row.row.name,
        "module": row.row.module,
        "file": row.row.file,
        "line": (row.row.line > 0).then_some(row.row.line),
        "stack": row.row.stack,
    });
    if let (Value::Object(value), Value::Object(change)) = (&mut value, change(&row.change)) {
        value.extend(change);
        value.insert("adjusted_p_value".into(), json!(row.adjusted_p_value));
        value.insert("significant".into(), json!(row.is_significant()));
    }
    value
}

/// JSON has no infinity: the largest number stands for it.
fn finite(z: f64) -> f64 {
    z.clamp(f64::MIN, f64::MAX)
}

fn change(change: &Change) -> Value {
    json!({
        "before": change.before.value(),
        "before_stderr": change.before.stderr(),
        "after": change.after.value(),
        "after_stderr": change.after.stderr(),
        "difference": change.difference(),
        "z": change.z.map(finite),
        "p_value": change.p_value,
        "detectable": change.detectable,
    })
}
