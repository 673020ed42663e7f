//! The findings as comma-separated values: a line for each site with live bytes, worst first.

use std::io::{self, Write};

use allocsample_report::csv::{Lines, number, optional};

use crate::{Finding, Findings};

/// Prints all sites; the columns are the keys of the JSON.
pub fn leaks(findings: &Findings, out: &mut dyn Write) -> io::Result<()> {
    let head = [
        "verdict",
        "sentence",
        "function",
        "file",
        "line",
        "module",
        "heap",
        "type",
        "stack",
        "live_bytes",
        "live_bytes_stderr",
        "live_bytes_at_end",
        "allocated_bytes",
        "live_samples",
        "growth_bytes_per_s",
        "growth_bytes_per_s_low",
        "growth_bytes_per_s_high",
        "growth_p_value",
        "age_p10_s",
        "age_p50_s",
        "age_p90_s",
        "oldest_s",
        "never_freed_share",
        "freed_by",
        "freed_in",
        "reason",
        "present_bytes_per_s",
        "present_bytes_per_s_low",
        "present_bytes_per_s_high",
        "onset_s",
        "group",
        "package",
        "own_function",
        "own_file",
        "own_line",
    ];
    let mut lines = Lines::new(out);
    lines.line(head)?;
    for finding in &findings.sites {
        lines.line(fields(finding))?;
    }
    lines.finish()
}

fn fields(finding: &Finding) -> [String; 35] {
    let function = &finding.function;
    let own = finding.own.as_ref();
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let shares = |parts: &[(String, f64)]| {
        let part = |(name, share): &(String, f64)| format!("{name} {share}");
        parts.iter().map(part).collect::<Vec<_>>().join(";")
    };
    let freed_in = (finding.freed_in.iter()).map(|(code, share)| (code.join(" < "), *share));
    let freed_in: Vec<(String, f64)> = freed_in.collect();
    let line = (function.line > 0).then(|| function.line.to_string());
    let [young, half, old, oldest] = finding.ages_s.map(number);
    [
        finding.verdict.word().to_owned(),
        finding.sentence.clone(),
        function.function.clone(),
        text(&function.file),
        line.unwrap_or_default(),
        function.module.clone(),
        text(&finding.heap),
        text(&finding.type_name),
        finding.stack.join(";"),
        number(finding.live.value()),
        optional(finding.live.stderr()),
        number(finding.live_at_end.value()),
        number(finding.allocated.value()),
        finding.live.samples().to_string(),
        number(finding.growth_per_s),
        number(finding.growth_per_s_95.0),
        number(finding.growth_per_s_95.1),
        optional(finding.p_value),
        young,
        half,
        old,
        oldest,
        number(finding.never_freed),
        shares(&finding.freed_by),
        shares(&freed_in),
        finding.reason.word().to_owned(),
        number(finding.present_per_s),
        number(finding.present_per_s_95.0),
        number(finding.present_per_s_95.1),
        optional(finding.onset_s),
        finding
            .group
            .map(|group| group.to_string())
            .unwrap_or_default(),
        text(&finding.package),
        own.map_or_else(String::new, |own| own.function.clone()),
        own.map_or_else(String::new, |own| text(&own.file)),
        own.filter(|own| own.line > 0)
            .map_or_else(String::new, |own| own.line.to_string()),
    ]
}
