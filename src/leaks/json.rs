//! The findings for scripts: `"schema": "allocsample-leaks/1"`. Keys are only ever added.
//!
//! Bytes are unrounded estimates; `..._stderr` is `null` where there is none (periodic sampling). `growth_...` is the mean
//! after the first fifth of the run, `present_...` that of the last third of the growth. `growth_p_value` is adjusted
//! for the number of sites that were tested, and `null` for a site that was not: it has too few samples. Suspects of one
//! `group` grow together.

use allocsample_profile::Profile;
use allocsample_report::{Coverage, Document, runtimes};
use serde_json::{Value, json};

use crate::{Finding, Findings, ResidentGrowth};

/// All sites with live bytes, worst first.
pub fn leaks<'a>(profile: &Profile, findings: &'a Findings) -> Document<'a> {
    let mut document = Document::of(json!({
        "schema": "allocsample-leaks/1",
        "command": profile.process.command_line,
        "pid": profile.process.pid,
        "interval_bytes": profile.interval_bytes(),
        "duration_s": findings.horizon_s,
        "tests": findings.tests,
        "coverage": Coverage::of(profile).map(|coverage| coverage.to_json()),
        "unseen_runtimes": runtimes::lines(profile),
        "process": {
            "resident_bytes_per_s": findings.process.resident_per_s,
            "live_bytes_per_s": findings.process.live_per_s,
            "live_bytes_per_s_low": findings.process.live_per_s_95.0,
            "live_bytes_per_s_high": findings.process.live_per_s_95.1,
            "began_late": findings.process.began_late,
            "explained_bytes_per_s": findings.explained_per_s,
            "explained_share": findings.explained_share(),
        },
        "resident_growth": ResidentGrowth::of(profile).map(|growth| growth.to_json()),
        "undecided_bytes": findings.undecided_bytes,
    }));
    document.rows("suspects", || findings.sites.iter().map(suspect));
    document
}

fn suspect(finding: &Finding) -> Value {
    json!({
        "verdict": finding.verdict.word(),
        "reason": finding.reason.word(),
        "sentence": finding.sentence,
        "function": finding.function.function,
        "file": finding.function.file,
        "line": (finding.function.line > 0).then_some(finding.function.line),
        "module": finding.function.module,
        "package": finding.package,
        "own": finding.own.as_ref().map(|own| json!({
            "function": own.function,
            "file": own.file,
            "line": (own.line > 0).then_some(own.line),
            "module": own.module,
        })),
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
        "present_bytes_per_s": finding.present_per_s,
        "present_bytes_per_s_low": finding.present_per_s_95.0,
        "present_bytes_per_s_high": finding.present_per_s_95.1,
        "onset_s": finding.onset_s,
        "usual_age_s": finding.usual_age_s,
        "group": finding.group,
        "material": finding.is_material,
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
