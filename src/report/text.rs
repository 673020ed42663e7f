//! The report in a terminal.

use std::io::{self, Write};

use allocsample_profile::{LostReason, Note, Profile};

use crate::table::{By, Filter, Sort, Table};
use crate::totals::{Audit, Totals};
use crate::{cost, heaps, tree, units};

/// What is printed, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rows are ...
    pub by: By,
    /// ... ordered by.
    pub sort: Sort,
    /// Rows at most.
    pub top: usize,
    /// Which samples.
    pub filter: Filter,
    /// The call tree instead of the table.
    pub tree: bool,
    /// Only the summary.
    pub summary: bool,
    /// Columns of the terminal.
    pub width: usize,
    /// Whether the output may have colours.
    pub colour: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            by: By::default(),
            sort: Sort::default(),
            top: 20,
            filter: Filter::all(),
            tree: false,
            summary: false,
            width: 120,
            colour: false,
        }
    }
}

/// Prints the whole report.
pub fn write(profile: &Profile, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let totals = Totals::of(profile);
    for line in summary_lines(profile, &totals) {
        writeln!(out, "{line}")?;
    }
    for line in cost::lines(profile) {
        writeln!(out, "{line}")?;
    }
    for line in remarks(profile, &totals) {
        writeln!(out, "{}", paint(&line, "33", options.colour))?;
    }
    if options.summary || profile.samples.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let machines = heaps::lines(profile);
    if !machines.is_empty() {
        for line in machines {
            writeln!(out, "{line}")?;
        }
        writeln!(out)?;
    }
    if options.tree {
        const LEAST_PERCENT: f64 = 0.5;
        return tree::write(profile, options.sort, &options.filter, LEAST_PERCENT, out);
    }
    write_table(profile, options, out)
}

/// Five lines: the program, what it allocated, what is alive, the peak, how sure that is.
pub fn summary_lines(profile: &Profile, totals: &Totals) -> Vec<String> {
    let interval = match profile.interval_bytes() {
        0 => "no interval".to_owned(),
        1 => "every allocation".to_owned(),
        bytes => format!(
            "one sample each {}{}",
            units::bytes(bytes as f64),
            if profile.is_periodic() {
                ", periodic (no standard errors)"
            } else {
                ""
            }
        ),
    };
    let end = match &profile.exit {
        Some(exit) => exit.describe(),
        None => "incomplete: killed, or still running".to_owned(),
    };
    let (lost, lost_bytes) = profile.lost.samples();
    let z = totals
        .audit
        .z
        .map_or_else(|| "-".to_owned(), |z| format!("{z:+.1}"));
    vec![
        format!(
            "{}  pid {}, {}, {end}",
            profile.process.command_line.join(" "),
            profile.process.pid,
            units::duration(Totals::duration_s(profile)),
        ),
        format!(
            "allocated  {} in {} allocations (exact: {}{})",
            units::bytes_with_error(&totals.allocated),
            units::count_with_error(&totals.allocations),
            units::bytes(totals.exact_bytes as f64),
            uncounted(profile),
        ),
        format!(
            "live       {} at the end; peak {} after {}",
            units::bytes_with_error(&totals.live),
            units::bytes(totals.peak.bytes),
            units::duration(totals.peak.after_ns as f64 / 1e9),
        ),
        format!(
            "samples    {}, {interval}; lost {}{}",
            units::count(profile.samples.len() as f64),
            units::count(lost as f64),
            if lost > 0 {
                format!(" ({})", units::bytes(lost_bytes as f64))
            } else {
                String::new()
            },
        ),
        format!(
            "audit      estimate - exact = {z} standard errors{}",
            if totals.audit.is_passed() {
                ""
            } else {
                ": OUT OF BOUNDS, do not trust this profile"
            },
        ),
    ]
}

/// The heaps whose bytes only their own sampler knows.
fn uncounted(profile: &Profile) -> String {
    let names: Vec<&str> = (profile.vm.heaps.iter())
        .filter(|(id, _)| !profile.is_counted(**id))
        .map(|(_, heap)| heap.name.as_str())
        .collect();
    match names[..] {
        [] => String::new(),
        _ => format!(", without {}", names.join(", ")),
    }
}

/// What a reader must know to read the figures right.
pub fn remarks(profile: &Profile, totals: &Totals) -> Vec<String> {
    let mut lines = Vec::new();
    for (note, detail) in &profile.notes {
        match note {
            Note::MallocIsElsewhere => lines.push(format!(
                "note: {detail} brings its own malloc in front of ours: what it serves is not in this profile"
            )),
            Note::NoDrainThread => lines.push(format!("note: no drain thread: {detail}")),
            Note::SwitchedOff => lines.push(format!("note: the agent switched itself off: {detail}")),
            Note::ForkedFrom => lines.push(format!("note: forked from process {detail}")),
            Note::StacksCompared => lines.push(format!("note: stacks compared: {detail}")),
            Note::NextAllocator => {}
        }
    }
    let recovery = &profile.recovery;
    if let Some(stopped) = &recovery.stopped {
        lines.push(format!("warning: {stopped}"));
    }
    if let Some(error) = &recovery.ring_error {
        lines.push(format!("warning: {error}"));
    }
    if recovery.ring_records > 0 {
        lines.push(format!(
            "note: {} records come from the ring that the process left",
            recovery.ring_records
        ));
    }
    if recovery.unfinished_records > 0 {
        lines.push(format!(
            "note: {} records were being written when it died",
            recovery.unfinished_records
        ));
    }
    if recovery.malformed_records > 0 {
        lines.push(format!(
            "warning: {} malformed records were left out",
            recovery.malformed_records
        ));
    }
    for reason in LostReason::ALL {
        let (events, bytes) = profile.lost.of(reason);
        if events > 0 {
            let what = if reason.is_sample_missing() {
                "samples"
            } else {
                "events"
            };
            lines.push(format!(
                "lost: {events} {what}, {} ({})",
                units::bytes(bytes as f64),
                reason.description()
            ));
        }
    }
    let muted: u64 = profile
        .threads
        .values()
        .map(|thread| thread.muted_bytes)
        .sum();
    if muted > 0 {
        lines.push(format!(
            "note: {} were allocated while sampling was stopped, by signal handlers that interrupted the agent, or by libc on its behalf (its thread), and are in no figure",
            units::bytes(muted as f64)
        ));
    }
    for (id, z) in totals
        .audit
        .threads
        .iter()
        .filter(|(_, z)| z.abs() > Audit::LIMIT)
    {
        let name = profile.threads.get(id).map_or("?", |thread| &thread.name);
        lines.push(format!(
            "warning: thread {name}: estimate - exact = {z:+.1} standard errors"
        ));
    }
    if profile.samples.is_empty() && recovery.stopped.is_none() {
        lines.push(match profile.exact_bytes() {
            0 => "no samples: nothing was allocated through malloc while sampling was on".to_owned(),
            bytes => format!(
                "no samples: only {} went through malloc, less than the interval; try --interval 4K or 1",
                units::bytes(bytes as f64)
            ),
        });
    }
    lines
}

fn write_table(profile: &Profile, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let table = Table::group(profile, options.by, options.sort, &options.filter);
    let whole: f64 = table
        .rows
        .iter()
        .map(|row| row.self_allocated.value())
        .sum();
    let whole_live: f64 = table.rows.iter().map(|row| row.self_live.value()).sum();
    let has_total = !matches!(options.by, By::Site | By::Thread);
    let mut head = format!("{:>6} {:>22} ", "self", "allocated");
    if has_total {
        head += &format!("{:>10} ", "total");
    }
    head += &format!("{:>22} {:>12}  {}", "live", "count", heading(options.by));
    writeln!(out, "{}", paint(&head, "1", options.colour))?;
    for row in table.rows.iter().take(options.top) {
        let share = match options.sort {
            Sort::Live => units::percent(row.self_live.value(), whole_live),
            _ => units::percent(row.self_allocated.value(), whole),
        };
        let mut line = format!(
            "{share:>6} {:>22} ",
            units::bytes_with_error(&row.self_allocated)
        );
        if has_total {
            line += &format!("{:>10} ", units::bytes(row.total_allocated.value()));
        }
        line += &format!(
            "{:>22} {:>12}  ",
            units::bytes_with_error(&row.self_live),
            units::count(row.allocations.value())
        );
        let room = options.width.saturating_sub(line.chars().count()).max(20);
        writeln!(out, "{line}{}", shorten(&describe(options.by, row), room))?;
        if options.by == By::Site {
            for function in row
                .stack
                .iter()
                .skip_while(|function| **function != row.name)
                .skip(1)
            {
                writeln!(
                    out,
                    "{:30}{}",
                    "",
                    shorten(function, options.width.saturating_sub(30).max(20))
                )?;
            }
        }
    }
    if table.rows.len() > options.top {
        writeln!(
            out,
            "... {} more; --top N shows more",
            table.rows.len() - options.top
        )?;
    }
    Ok(())
}

fn heading(by: By) -> &'static str {
    match by {
        By::Function => "function",
        By::Site => "site",
        By::Line => "line",
        By::Module => "module",
        By::Thread => "thread",
    }
}

fn describe(by: By, row: &crate::table::Row) -> String {
    match (by, &row.file) {
        (By::Line, Some(file)) => format!(
            "{}:{} {}",
            file.rsplit('/').next().unwrap_or(file),
            row.line,
            row.name
        ),
        (By::Function | By::Site, _) if !row.module.is_empty() && !row.name.contains('+') => {
            format!("{} [{}]", row.name, row.module)
        }
        _ => row.name.clone(),
    }
}

/// Cuts in the middle, where names of templates are dullest.
fn shorten(text: &str, room: usize) -> String {
    let length = text.chars().count();
    if length <= room {
        return text.to_owned();
    }
    let half = room.saturating_sub(1) / 2;
    let start: String = text.chars().take(half).collect();
    let end: String = text.chars().skip(length - half).collect();
    format!("{start}…{end}")
}

fn paint(text: &str, code: &str, colour: bool) -> String {
    if colour {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}
