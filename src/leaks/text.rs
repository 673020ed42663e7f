//! The findings in a terminal.

use std::io::{self, Write};

use allocsample_profile::Profile;
use allocsample_report::{Coverage, Width, runtimes, units};

use crate::{Finding, Findings, Pace, Verdict};

/// What is printed, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sites at most.
    pub top: usize,
    /// Those that do not grow too.
    pub all: bool,
    /// Callers of a site at most.
    pub depth: usize,
    /// How wide it may be.
    pub width: Width,
    /// Whether the output may have colours.
    pub colour: bool,
}

/// Prints what was found in one profile.
pub fn write(
    profile: &Profile,
    findings: &Findings,
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    let head = format!(
        "{}  pid {}, {} sampled, one sample each {}",
        allocsample_report::text::command_line(profile),
        profile.process.pid,
        units::duration(findings.horizon_s),
        units::bytes(profile.interval_bytes() as f64),
    );
    let coverage = Coverage::of(profile);
    let coverage_line = coverage.as_ref().map(Coverage::line);
    let blind = coverage.as_ref().and_then(Coverage::warning);
    let runtimes = runtimes::lines(profile);
    let lines = (head.lines())
        .chain(coverage_line.as_deref())
        .chain(blind.as_deref())
        .chain(runtimes.iter().map(String::as_str));
    let counts = counts(findings, blind.is_some());
    for line in lines.chain(counts.lines()) {
        const INDENT: usize = 2;
        writeln!(out, "{}", options.width.broken(line, INDENT))?;
    }
    let pace = Pace::for_run(findings.horizon_s);
    // The verdicts are in their order: those that are shown come first.
    let is_shown = |verdict: Verdict| options.all || verdict <= Verdict::Growing;
    let shown = findings
        .sites
        .iter()
        .filter(|finding| is_shown(finding.verdict));
    for finding in shown.take(options.top) {
        writeln!(out)?;
        write_finding(finding, pace, options, out)?;
    }
    let counts = findings.counts.iter();
    let all: usize = counts
        .filter(|(verdict, _)| is_shown(**verdict))
        .map(|(_, count)| count)
        .sum();
    let left_out = all.saturating_sub(options.top);
    if left_out > 0 {
        writeln!(out, "\n... {left_out} more; --top N shows more")?;
    }
    Ok(())
}

/// With `is_blind`, that nothing was found says nothing about the rest of the process.
fn counts(findings: &Findings, is_blind: bool) -> String {
    let count = |verdict| findings.counts.get(&verdict).copied().unwrap_or(0);
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let (leaks, growing) = (count(Verdict::Leak), count(Verdict::Growing));
    let found = if is_blind && leaks + growing == 0 {
        "no verdict for the process: nothing grows among what was sampled".to_owned()
    } else {
        format!("{leaks} leak{}, {growing} growing", plural(leaks))
    };
    format!(
        "{found}; of {} site{} with live bytes {} cache-like, {} start-up, {} steady{}",
        findings.count(),
        plural(findings.count()),
        count(Verdict::CacheLike),
        count(Verdict::StartUp),
        count(Verdict::Steady),
        if findings.tests == 0 {
            "\nnote: no site has enough samples for a test; a smaller --interval or a longer run gives more"
        } else {
            ""
        }
    )
}

fn write_finding(
    finding: &Finding,
    pace: Pace,
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    const INDENT: usize = 12;
    let code = match finding.verdict {
        Verdict::Leak => "1;31",
        Verdict::Growing => "1;33",
        _ => "1",
    };
    let word = format!("{:<INDENT$}", finding.verdict.word());
    let word = if options.colour {
        format!("\x1b[{code}m{word}\x1b[0m")
    } else {
        word
    };
    writeln!(out, "{word}{}", place(finding))?;
    let mut lines = vec![
        finding.sentence.clone(),
        format!(
            "live {}, growth {} ({} to {}), p {}",
            units::bytes_with_error(&finding.live),
            pace.rate(finding.growth_per_s),
            pace.bytes(finding.growth_per_s_95.0),
            pace.bytes(finding.growth_per_s_95.1),
            units::p_value(finding.p_value),
        ),
        format!(
            "ages {} / {} / {} (10 / 50 / 90 %), oldest {}; {:.0} % of {} never freed",
            units::duration(finding.ages_s[0]),
            units::duration(finding.ages_s[1]),
            units::duration(finding.ages_s[2]),
            units::duration(finding.ages_s[3]),
            100.0 * finding.never_freed,
            units::bytes(finding.allocated.value()),
        ),
    ];
    let others = |share: f64| match share {
        ..0.995 => format!(" ({:.0} %) and others", 100.0 * share),
        _ => String::new(),
    };
    if let Some((thread, share)) = finding.freed_by.first() {
        let others = others(*share);
        lines.push(format!("what is freed is freed by {thread}{others}"));
    }
    if let Some((code, share)) = finding.freed_in.first() {
        let (code, others) = (code.join(" < "), others(*share));
        lines.push(format!("what is freed is freed in {code}{others}"));
    }
    for line in lines {
        let line = format!("{:INDENT$}{line}", "");
        writeln!(out, "{}", options.width.broken(&line, INDENT))?;
    }
    let callers = finding.stack.iter().skip(1);
    let room = options.width.room(INDENT);
    for caller in callers.clone().take(options.depth) {
        writeln!(out, "{:INDENT$}{}", "", cut(&format!("< {caller}"), room))?;
    }
    if callers.len() > options.depth {
        let more = callers.len() - options.depth;
        writeln!(out, "{:INDENT$}< ... {more} more", "")?;
    }
    Ok(())
}

fn place(finding: &Finding) -> String {
    let function = &finding.function;
    let mut text = function.function.clone();
    if let Some(file) = &function.file {
        let file = file.rsplit('/').next().unwrap_or(file);
        text += &format!(" {file}:{}", function.line);
    }
    if !function.module.is_empty() && function.is_symbolized {
        text += &format!(" [{}]", function.module);
    }
    if let Some(type_name) = &finding.type_name {
        text = format!("{type_name} in {text}");
    }
    text
}

fn cut(line: &str, room: usize) -> String {
    if line.chars().count() <= room {
        return line.to_owned();
    }
    let start: String = line.chars().take(room - 1).collect();
    start + "…"
}
