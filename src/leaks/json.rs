//! The findings for scripts: `"schema": "allocsample-leaks/1"`. Keys are only ever added.
//!
//! Bytes are unrounded estimates; `..._stderr` is `null` where there is none (periodic sampling).

use allocsample_profile::Profile;
use allocsample_report::{Coverage, runtimes};
use serde_json::{Value, json};

use crate::{Finding, Findings};

/// All sites with live bytes, worst first.
pub fn leaks(profile: &Profile, findings: &Findings) -> Value {
    json!({
        "schema": "allocsample-leaks/1",
        "command": profile.process.command_line,
        "pid": profile.process.pid,
        "interval_bytes": profile.interval_bytes(),
        "duration_s": findings.horizon_s,
        "tests": findings.tests,
        "coverage": Coverage::of(profile).map(|coverage| coverage.to_json()),
        "unseen_runtimes": runtimes::lines(profile),
        "suspects": findings.sites.iter().map(suspect).collect::<Vec<_>>(),
    })
}

fn suspect(finding: &Finding) -> Value {
    json!({
        "verdict": finding.verdict.word(),
        "sentence": finding.sentence,
        "function": finding.function.function,
        "file": finding.function.file,
        "line": (finding.function.line > 0).then_some(finding.function.line),
        "module": finding.function.module,
        "heap": finding.heap,
        "type": finding.type_name,
        "stack": finding.stack,
        "live_bytes": finding.live.value(),
        "live_bytes_stderr": finding.live.stderr(),
        "live_bytes_at_end": finding.live_at_end.value(),
        "allocated_bytes": finding.allocated.value(),
        "live_samples": finding.live.samples(),
        "growth_bytes_per_s": finding.growth_per_s,
        "growth_bytes_per_s_low": finding.growth_per_s_95.0,
        "growth_bytes_per_s_high": finding.growth_per_s_95.1,
        "growth_p_value": finding.p_value,
        "age_p10_s": finding.ages_s[0],
        "age_p50_s": finding.ages_s[1],
        "age_p90_s": finding.ages_s[2],
        "oldest_s": finding.ages_s[3],
        "never_freed_share": finding.never_freed,
        "freed_by": finding
            .freed_by
            .iter()
            .map(|(thread, share)| json!({"thread": thread, "share": share}))
            .collect::<Vec<_>>(),
        "freed_in": finding
            .freed_in
            .iter()
            .map(|(code, share)| json!({"functions": code, "share": share}))
            .collect::<Vec<_>>(),
    })
}
