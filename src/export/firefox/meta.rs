//! What the viewer tells about the profile as a whole.

use allocsample_profile::{Profile, Sample, Weights};
use serde_json::{Value, json};

use crate::rounding::rounded;
use crate::source::Source;

/// What the viewer's information panel and its title bar show.
pub(super) fn describe(source: &Source, meta: &mut Value) {
    let profile = source.profile;
    let milliseconds = source.since_start(profile.process.end_ns) as f64 / 1e6;
    meta["stackwalk"] = json!(1);
    // Fixes the range: a quiet end belongs to the profile.
    meta["profilingStartTime"] = json!(0);
    meta["profilingEndTime"] = json!(milliseconds);
    meta["arguments"] = json!(profile.process.command_line.join(" "));
    meta["importedFrom"] = json!("allocsample");
    meta["keepProfileThreadOrder"] = json!(true);
    let recorded = profile.samples.len();
    let carried = profile.samples.iter().filter(Sample::is_carried).count();
    let taken = source.samples.with_bytes();
    let taken = taken.filter(|(sample, _)| !sample.is_carried());
    let allocated: f64 = taken.map(|(_, bytes)| bytes).sum();
    let mut entries = vec![
        entry(
            "Mean bytes between samples",
            "bytes",
            json!(profile.interval_bytes()),
        ),
        entry("Samples", "integer", json!(recorded - carried)),
        entry("Allocated (estimate)", "bytes", json!(rounded(allocated))),
    ];
    if source.samples.len() < recorded {
        let merged = json!(source.samples.len());
        entries.push(entry("Merged into", "integer", merged));
    }
    if carried > 0 {
        entries.push(entry("Samples alive before", "integer", json!(carried)));
    }
    if let Some(stderr) = allocated_stderr(profile) {
        entries.push(entry("Standard error", "bytes", json!(rounded(stderr))));
    }
    let (lost_samples, lost_bytes) = profile.lost.samples();
    entries.push(entry(
        "Allocated (exact)",
        "bytes",
        json!(profile.exact_bytes()),
    ));
    entries.push(entry("Lost samples", "integer", json!(lost_samples)));
    entries.push(entry("Bytes of lost samples", "bytes", json!(lost_bytes)));
    if !profile.is_complete() {
        entries.push(entry(
            "Incomplete",
            "string",
            json!("the profile ends before the process did"),
        ));
    }
    meta["extra"] = json!([{ "label": "Allocation sampling", "entries": entries }]);
}

/// Standard error of the allocated bytes.
fn allocated_stderr(profile: &Profile) -> Option<f64> {
    let taken = profile.samples.iter().filter(|it| !it.is_carried());
    let mut weights = Weights::of(profile);
    let estimates = taken.map(|sample| weights.get(&sample).0);
    estimates.reduce(|sum, more| sum + more)?.stderr()
}

fn entry(label: &str, format: &str, value: Value) -> Value {
    json!({ "label": label, "format": format, "value": value })
}
