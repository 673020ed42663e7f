//! The findings in a terminal.

use std::io::{self, Write};

use allocsample_profile::{Frame, MAPPINGS, Profile};
use allocsample_report::{Coverage, Width, origin, runtimes, shorten, shorten_all, units};

use crate::pace::{change, per_minute, rate};
use crate::resident::ResidentGrowth;
use crate::{Finding, Findings, Verdict};

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
        "{}  pid {}, {} sampled, one sample per {}",
        allocsample_report::text::command_line(profile),
        profile.process.pid,
        units::duration(findings.horizon_s),
        units::byte_range(profile.interval_range_bytes()),
    );
    let coverage = Coverage::of(profile);
    let coverage_line = coverage.as_ref().map(Coverage::line);
    let blind = coverage.as_ref().and_then(Coverage::warning);
    let runtimes = runtimes::lines(profile);
    let lines = (head.lines())
        .chain(coverage_line.as_deref())
        .chain(blind.as_deref())
        .chain(runtimes.iter().map(String::as_str));
    let is_blind = blind.is_some() || runtimes::is_any_missing(profile);
    let counts = counts(findings, is_blind);
    let process = process(findings);
    let last = profile.memory.last();
    let resident = ResidentGrowth::of(profile)
        .zip(last)
        .and_then(|(it, last)| it.line(last.totals.resident_bytes as f64));
    let lines = lines.chain(counts.lines()).chain(process.lines());
    for line in lines.chain(resident.as_deref()) {
        const INDENT: usize = 2;
        writeln!(out, "{}", options.width.broken(line, INDENT))?;
    }
    // The verdicts are in their order: those that are shown come first.
    let is_shown = |finding: &&Finding| {
        options.all
            || finding.verdict.is_finding()
            || (finding.verdict == Verdict::Undecided && finding.is_material)
    };
    // The first of a group stands for all of it.
    let mut groups = std::collections::BTreeSet::new();
    let is_first = |finding: &&Finding| finding.group.is_none_or(|group| groups.insert(group));
    let shown: Vec<&Finding> = findings
        .sites
        .iter()
        .filter(is_shown)
        .filter(is_first)
        .collect();
    for finding in shown.iter().take(options.top) {
        writeln!(out)?;
        write_finding(finding, options, out)?;
        write_group(finding, &findings.sites, options, out)?;
    }
    let left_out = shown.len().saturating_sub(options.top);
    if left_out > 0 {
        writeln!(out, "\n... {left_out} more; --top N shows more")?;
    }
    Ok(())
}

/// How the process grows, and how much of that the findings are.
fn process(findings: &Findings) -> String {
    let growth = &findings.process;
    let (low, high) = growth.live_per_s_95;
    let limits = format!("{} to {}", per_minute(low), per_minute(high));
    let live = change(growth.live_per_s);
    let mut text = match growth.resident_per_s {
        Some(resident) => format!(
            "the process {} (resident set); sampled live memory {live} ({limits})",
            change(resident)
        ),
        None => format!("the process {live} ({limits}, sampled live memory)"),
    };
    let verdicts = [Verdict::Leak, Verdict::PossibleLeak, Verdict::Growing];
    let counts = verdicts.map(|verdict| findings.count_of(verdict));
    let count: usize = counts.iter().map(|(findings, _)| findings).sum();
    let sites: usize = counts.iter().map(|(_, sites)| sites).sum();
    if let (1.., Some(share)) = (count, findings.explained_share()) {
        let subject = match (count, sites) {
            (1, 1) => "the finding explains".to_owned(),
            (1, _) => format!("the finding ({sites} sites) explains"),
            _ => format!("the {count} findings explain"),
        };
        text += &format!("; {subject} {:.0} %", 100.0 * share);
    }
    if growth.began_late {
        text += "\nnote: recording began while the program ran, or was interrupted. Blocks that were not recorded are freed unseen, so a full cache seems to grow until its first recorded entries are replaced";
    }
    text
}

/// The other sites of a group.
fn write_group(
    first: &Finding,
    all: &[Finding],
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    const MOST: usize = 8;
    let others = all.iter().filter(|other| {
        first.group.is_some() && other.group == first.group && !std::ptr::eq(*other, first)
    });
    let others: Vec<&Finding> = others.collect();
    if others.is_empty() {
        return Ok(());
    }
    let sum: f64 = others.iter().map(|other| other.present_per_s).sum();
    let heading = format!(
        "{:INDENT$}grows together with {} other site{}, {} more:",
        "",
        others.len(),
        if others.len() == 1 { "" } else { "s" },
        rate(sum),
    );
    writeln!(out, "{}", options.width.broken(&heading, INDENT))?;
    // Some of them have stopped growing.
    const LEAST_PER_S: f64 = 1.0;
    let growing = others
        .iter()
        .filter(|other| other.present_per_s >= LEAST_PER_S);
    let lines: Vec<String> = growing
        .take(MOST)
        .map(|other| {
            format!(
                "+ {} {}",
                rate(other.present_per_s),
                typed(other, &named(&other.function))
            )
        })
        .collect();
    for line in shorten_all(&lines, options.width.room(INDENT)) {
        writeln!(out, "{:INDENT$}{line}", "")?;
    }
    if others.len() > lines.len() {
        writeln!(out, "{:INDENT$}+ {} more", "", others.len() - lines.len())?;
    }
    Ok(())
}

/// With `is_blind`, that nothing was found says nothing about the rest of the process.
fn counts(findings: &Findings, is_blind: bool) -> String {
    let count = |verdict| findings.counts.get(&verdict).copied().unwrap_or(0);
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let grouped = |verdict, word: &str| {
        let (found, sites) = findings.count_of(verdict);
        let at = match sites - found {
            0 => String::new(),
            _ => format!(" ({sites} sites)"),
        };
        format!("{found} {word}{}{at}", plural(found))
    };
    let (leaks, possible) = (count(Verdict::Leak), count(Verdict::PossibleLeak));
    let undecided = match count(Verdict::Undecided) {
        0 => "0 undecided".to_owned(),
        some => format!(
            "{some} undecided ({})",
            units::bytes(findings.undecided_bytes)
        ),
    };
    let growing = count(Verdict::Growing);
    let found = if is_blind && leaks + possible + growing == 0 {
        "no verdict for the process: nothing grows among what was sampled".to_owned()
    } else {
        format!(
            "{}, {}, {growing} growing",
            grouped(Verdict::Leak, "leak"),
            grouped(Verdict::PossibleLeak, "possible leak"),
        )
    };
    format!(
        "{found}, {undecided}; of {} site{} with live bytes {} cache-like, {} start-up, {} steady{}",
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

/// What is said of a finding stands behind its verdict.
const INDENT: usize = 15;

fn write_finding(finding: &Finding, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let code = match finding.verdict {
        Verdict::Leak | Verdict::PossibleLeak => "1;31",
        Verdict::Growing | Verdict::Undecided => "1;33",
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
            "live {}, growth {} now ({} to {}), {} on average, {}",
            units::bytes_with_error(&finding.live),
            rate(finding.present_per_s),
            per_minute(finding.present_per_s_95.0),
            per_minute(finding.present_per_s_95.1),
            per_minute(finding.growth_per_s),
            match finding.p_value {
                Some(p) => format!("p {}", units::p_value(p)),
                None => "not tested".to_owned(),
            },
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
        ..0.995 => format!(" ({:.0} %), others", 100.0 * share),
        _ => String::new(),
    };
    if let Some((thread, share)) = finding.freed_by.first() {
        let others = others(*share);
        lines.push(format!("freed by: {thread}{others}"));
    }
    if let Some((code, share)) = finding.freed_in.first() {
        let (code, others) = (code.join(" < "), others(*share));
        lines.push(format!("freed in: {code}{others}"));
    }
    if let Some(own) = finding.own.as_ref().filter(|own| **own != finding.function) {
        lines.insert(0, format!("from your code: {}", named(own)));
    }
    for line in lines {
        let line = format!("{:INDENT$}{line}", "");
        writeln!(out, "{}", options.width.broken(&line, INDENT))?;
    }
    let callers = finding.stack.iter().skip(1);
    let room = options.width.room(INDENT);
    for caller in callers.clone().take(options.depth) {
        writeln!(
            out,
            "{:INDENT$}{}",
            "",
            shorten(&format!("< {caller}"), room)
        )?;
    }
    if callers.len() > options.depth {
        let more = callers.len() - options.depth;
        writeln!(out, "{:INDENT$}< ... {more} more", "")?;
    }
    Ok(())
}

fn place(finding: &Finding) -> String {
    let mut text = named(&finding.function);
    if let Some(package) = &finding.package {
        text += &format!(", {package}");
    }
    typed(finding, &text)
}

/// With the type of the objects.
fn typed(finding: &Finding, place: &str) -> String {
    if finding.heap.as_deref() == Some(MAPPINGS) {
        return format!("mappings by {place}");
    }
    match &finding.type_name {
        Some(type_name) => format!("{type_name} in {place}"),
        None => place.to_owned(),
    }
}

/// A function with its place and its module.
fn named(frame: &Frame) -> String {
    let mut text = frame.function.clone();
    if let Some(place) = origin::place(frame) {
        text += &format!(" {place}");
    }
    if !frame.module.is_empty() && frame.is_symbolized {
        text += &format!(" [{}]", frame.module);
    }
    text
}
