//! Who was profiled, how, and what it comes to.

use allocsample_profile::Profile;
use allocsample_report::{Coverage, Totals, runtimes, units};
use serde_json::{Value, json};

use crate::answer;

/// What the program was called by; one file may have several names.
pub(crate) fn program(profile: &Profile) -> &str {
    let process = &profile.process;
    let called = process.command_line.first().unwrap_or(&process.executable);
    called.rsplit('/').next().unwrap_or("")
}

pub(crate) fn about(profile: &Profile, totals: &Totals) -> Value {
    let (lost_samples, lost_bytes) = profile.lost.samples();
    json!({
        "command": profile.process.command_line.join(" "),
        "program": program(profile),
        "executable": profile.process.executable,
        "pid": profile.process.pid,
        "start_unix_ms": profile.process.start_wall_ns as f64 / 1e6,
        "duration_s": Totals::duration_s(profile),
        "interval_bytes": profile.interval_bytes(),
        "periodic": profile.is_periodic(),
        "complete": profile.is_complete(),
        "held": answer::measure(profile.held()),
        "exit": profile.exit.map(|exit| exit.describe()),
        "running": profile.is_running,
        "killed_by": profile.killed_by(),
        "samples": profile.samples.len(),
        "lost_samples": lost_samples,
        "lost_bytes": lost_bytes,
        "exact_bytes": totals.exact_bytes,
        "allocated_bytes": totals.allocated.value(),
        "allocated_stderr": totals.allocated.stderr(),
        "live_bytes": totals.live.value(),
        "live_stderr": totals.live.stderr(),
        "allocated_text": units::bytes_with_error(&totals.allocated),
        "live_text": units::bytes_with_error(&totals.live),
        "peak_text": units::bytes_with_error(&totals.peak.bytes),
        "bytes_allowance": totals.allocated.allowance(),
        "allocations": totals.allocations.value(),
        "peak_bytes": totals.peak.bytes.value(),
        "peak_stderr": totals.peak.bytes.stderr(),
        "coverage": Coverage::of(profile).map(|coverage| coverage.to_json()),
        "coverage_line": Coverage::of(profile).map(|coverage| coverage.line()),
        "has_no_verdict": Coverage::of(profile).is_some_and(|coverage| coverage.is_low())
            || runtimes::is_any_missing(profile),
        "unseen": Coverage::of(profile)
            .and_then(|coverage| coverage.warning())
            .into_iter()
            .chain(runtimes::lines(profile))
            .collect::<Vec<_>>(),
        "peak_s": totals.peak.after_ns as f64 / 1e9,
        "peak_resident_bytes": peak_resident_bytes(profile),
    })
}

/// The most that was resident, as far as anybody read it.
fn peak_resident_bytes(profile: &Profile) -> Option<u64> {
    let totals = profile.memory.iter().map(|map| map.totals);
    let of_memory = totals.map(|it| it.resident_bytes.max(it.peak_resident_bytes));
    let readings = profile.resident_bytes.iter().map(|&(_, bytes)| bytes);
    readings.chain(of_memory).max()
}
