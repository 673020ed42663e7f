//! What the viewer tells about the profile as a whole.

use serde_json::{Value, json};

use crate::view::{View, rounded};

/// What the viewer's information panel and its title bar show.
pub(super) fn describe(view: &View, meta: &mut Value) {
    let about = &view.about;
    let milliseconds = about.end_ns.saturating_sub(about.start_ns) as f64 / 1e6;
    meta["stackwalk"] = json!(1);
    // Fixes the range: a quiet end belongs to the profile.
    meta["profilingStartTime"] = json!(0);
    meta["profilingEndTime"] = json!(milliseconds);
    meta["arguments"] = json!(about.command.join(" "));
    meta["importedFrom"] = json!("allocsample");
    meta["keepProfileThreadOrder"] = json!(true);
    let (recorded, carried) = view.samples.recorded();
    let taken = view.samples.iter().filter(|it| !it.is_carried);
    let allocated: f64 = taken.map(|sample| sample.bytes).sum();
    let mut entries = vec![
        entry(
            "Mean bytes between samples",
            "bytes",
            json!(about.interval_bytes),
        ),
        entry("Samples", "integer", json!(recorded - carried)),
        entry("Allocated (estimate)", "bytes", json!(rounded(allocated))),
    ];
    if view.samples.len() < recorded {
        let merged = json!(view.samples.len());
        entries.push(entry("Merged into", "integer", merged));
    }
    if carried > 0 {
        entries.push(entry("Samples alive before", "integer", json!(carried)));
    }
    if let Some(stderr) = about.allocated_stderr {
        entries.push(entry("Standard error", "bytes", json!(rounded(stderr))));
    }
    entries.push(entry(
        "Allocated (exact)",
        "bytes",
        json!(about.exact_bytes),
    ));
    entries.push(entry("Lost samples", "integer", json!(about.lost_samples)));
    entries.push(entry(
        "Bytes of lost samples",
        "bytes",
        json!(about.lost_bytes),
    ));
    if !about.is_complete {
        entries.push(entry(
            "Incomplete",
            "string",
            json!("the profile ends before the process did"),
        ));
    }
    meta["extra"] = json!([{ "label": "Allocation sampling", "entries": entries }]);
}

fn entry(label: &str, format: &str, value: Value) -> Value {
    json!({ "label": label, "format": format, "value": value })
}
