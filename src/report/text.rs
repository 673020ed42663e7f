//! The report in a terminal.

mod absent;
mod command_line;
mod lifetimes;
mod redundancy;
mod table;
mod unsearched;

use std::io::{self, Write};

use allocsample_profile::{Figure, LostReason, Note, Profile};

use crate::coverage::Coverage;
use crate::frames::Frames;
use crate::pages::PageAudit;
use crate::selection::Selection;
use crate::sums::Figures;
use crate::table::{By, Request, Sort, Table};
use crate::time::CpuTime;
use crate::totals::{Audit, Totals};
use crate::tree::{Direction, Tree};
use crate::width::Width;
use crate::wrappers;
use crate::{cost, heaps, runtimes, units};

pub use command_line::command_line;

/// What follows the summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Nothing.
    Summary,
    /// A table.
    Table(By),
    /// A call tree.
    Tree(Direction),
    /// Histograms of lifetimes.
    Lifetimes,
    /// Objects that hold the same.
    Redundancy,
}

/// What is printed, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// What of it.
    pub shape: Shape,
    /// Rows and branches are ordered by.
    pub sort: Sort,
    /// Rows at most.
    pub top: usize,
    /// Which samples.
    pub selection: Selection,
    /// How wide it may be.
    pub width: Width,
    /// Whether the output may have colours and bars.
    pub colour: bool,
}

/// Rows of a table, unless told otherwise.
pub const ROWS: usize = 20;

/// Prints the whole report; the summary alone needs no frames.
pub fn write(
    profile: &Profile,
    totals: &Totals,
    frames: Option<&Frames<'_>>,
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    for line in summary_lines(profile, totals) {
        write_labelled(&line, options, out)?;
    }
    for line in cost::lines(profile) {
        write_labelled(&line, options, out)?;
    }
    let time = match frames {
        Some(frames) => CpuTime::of(profile, frames),
        None => CpuTime::without_functions(profile),
    };
    if let Some(time) = &time {
        write_labelled(&time.line(), options, out)?;
    }
    for line in remarks(profile, totals) {
        const INDENT: usize = "note: ".len();
        let line = options.width.broken(&line, INDENT);
        writeln!(out, "{}", paint(&line, "33", options.colour))?;
    }
    let Some(frames) = frames else {
        return Ok(());
    };
    if let Some(time) = time.filter(|time| time.ticks > 0) {
        writeln!(out)?;
        for line in time.table_lines(options.top, options.width.columns()) {
            writeln!(out, "{line}")?;
        }
    }
    if profile.samples.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let machines = heaps::lines(profile);
    if !machines.is_empty() {
        for line in machines {
            write_labelled(&line, options, out)?;
        }
        writeln!(out)?;
    }
    if let Some(line) = wrappers::line(frames.skipped()) {
        write_labelled(&line, options, out)?;
        writeln!(out)?;
    }
    let peak = Some(totals.peak.moments);
    match &options.shape {
        Shape::Summary => Ok(()),
        Shape::Table(by) => {
            let request = Request {
                by: *by,
                sort: options.sort,
                selection: &options.selection,
                peak,
                limit: options.top,
            };
            let table = Table::of_shown(profile, frames, &request);
            write_selected(totals, options, &table.selected, out)?;
            write_measure(totals, options, out)?;
            if table.rows.is_empty() {
                let why = absent::line(profile, totals, &table.selected, options);
                return write_labelled(&why, options, out);
            }
            table::write(*by, &table, options, out)
        }
        Shape::Tree(direction) => {
            const LEAST_PERCENT: f64 = 0.5;
            let selection = &options.selection;
            let sort = options.sort;
            let tree = Tree::of(profile, frames, selection, peak, sort, direction);
            write_selected(totals, options, &tree.selected, out)?;
            write_measure(totals, options, out)?;
            if tree.is_empty() {
                let why = absent::line(profile, totals, &tree.selected, options);
                return write_labelled(&why, options, out);
            }
            tree.write(LEAST_PERCENT, options.width.columns(), options.colour, out)
        }
        Shape::Lifetimes => {
            const GROUPS: usize = 10;
            let groups = options.top.min(GROUPS);
            let answer = crate::lifetimes::Answer::of(profile, frames, &options.selection, groups);
            lifetimes::write(&answer, options, out)
        }
        Shape::Redundancy => {
            let (selection, top) = (&options.selection, options.top);
            let answer = crate::redundancy::Answer::of(profile, frames, selection, top);
            redundancy::write(&answer, options, out)
        }
    }
}

/// Which part of the whole the answer is about, so that nobody takes the part for the whole.
fn write_selected(
    totals: &Totals,
    options: &Options,
    selected: &Figures,
    out: &mut dyn Write,
) -> io::Result<()> {
    let is_part =
        !options.selection.is_all() || selected.allocated.samples() < totals.allocated.samples();
    if !is_part {
        return Ok(());
    }
    let of = |part: &allocsample_sampling::Estimate, whole: f64, what: &str| {
        format!(
            "{} of {} {what} ({})",
            units::bytes_with_error(part),
            units::bytes(whole),
            units::percent(part.value(), whole)
        )
    };
    let live = match options.selection.until_ns {
        _ if options.selection.at_peak.is_some() => {
            let whole = totals.peak.bytes.value();
            of(&selected.live, whole, "live at the peak")
        }
        Some(until) => format!(
            "{} live after {}",
            units::bytes_with_error(&selected.live),
            units::duration(until as f64 / 1e9)
        ),
        None => of(&selected.live, totals.live.value(), "live"),
    };
    let line = format!(
        "shown      {}; {live}",
        of(&selected.allocated, totals.allocated.value(), "allocated")
    );
    let line = options.width.broken(&line, LABEL);
    writeln!(out, "{}\n", paint(&line, "36", options.colour))
}

/// By which figure rows are ordered, and how to get another.
fn write_measure(totals: &Totals, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let after = |ns: u64| units::duration(ns as f64 / 1e9);
    let live = match options.selection.until_ns {
        _ if options.selection.at_peak.is_some() => "live at the peak".to_owned(),
        Some(until) => format!("live after {}", after(until)),
        None => "live at the end".to_owned(),
    };
    let what = match options.sort {
        Sort::Allocated => "bytes allocated, freed or not".to_owned(),
        Sort::Live => format!("bytes held: {live}"),
        Sort::Peak => format!(
            "bytes held: live at the peak, after {}",
            after(totals.peak.after_ns)
        ),
        Sort::Count => "number of allocations".to_owned(),
        Sort::Growth => format!("growth: bytes {live}, less those live half-way"),
    };
    let others = [
        (Sort::Peak, "peak"),
        (Sort::Live, "live"),
        (Sort::Allocated, "allocated"),
        (Sort::Growth, "growth"),
        (Sort::Count, "count"),
    ];
    let others: Vec<&str> = (others.into_iter())
        .filter_map(|(sort, name)| (sort != options.sort).then_some(name))
        .collect();
    let line = format!("measure    {what} (others: --sort {})", others.join(", "));
    let line = options.width.broken(&line, LABEL);
    writeln!(out, "{}\n", paint(&line, "36", options.colour))
}

/// Columns of what stands before the figures of a line.
const LABEL: usize = 11;

fn write_labelled(line: &str, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", options.width.broken(line, LABEL))
}

/// The program, what it allocated, what is alive, the peak, how sure that is, and how much of the process it is.
pub fn summary_lines(profile: &Profile, totals: &Totals) -> Vec<String> {
    let interval = match profile.interval_range_bytes() {
        (0, _) => "no interval".to_owned(),
        (1, 1) => "every allocation".to_owned(),
        range => format!(
            "one per {} on average{}",
            units::byte_range(range),
            if profile.is_periodic() {
                ", periodic: no standard errors"
            } else {
                ""
            }
        ),
    };
    let end = match &profile.exit {
        Some(exit) => exit.describe(),
        None if profile.part.is_continued => "continues in another file".to_owned(),
        None if profile.is_running => "still running".to_owned(),
        None => match profile.killed_by() {
            Some(signal) => format!("killed by {signal}"),
            None if profile.recovery.ring_found => "incomplete: killed".to_owned(),
            None => "incomplete: killed, or written while it ran".to_owned(),
        },
    };
    let (lost, lost_bytes) = profile.lost.samples();
    let compared = match (totals.audit.z, profile.sampled_by()) {
        (Some(z), _) => format!(
            "estimate - exact = {z:+.1} standard errors, of what the sampled heaps allocated"
        ),
        (None, Some(runtime)) => format!("none: {runtime} has no count of bytes to compare with"),
        (None, None) if !profile.is_periodic() => {
            "none: there is no exact count to compare with".to_owned()
        }
        (None, None) => "periodic samples have no standard error to compare with".to_owned(),
    };
    let mut lines = vec![
        format!(
            "{}  pid {}, {}, {end}",
            command_line(profile),
            profile.process.pid,
            units::duration(Totals::duration_s(profile)),
        ),
        format!(
            "allocated  {} in {} allocations{}",
            units::bytes_with_error(&totals.allocated),
            units::count_with_error(&totals.allocations),
            exactly(profile, totals),
        ),
        format!(
            "live       {} at the end{}; peak {} after {}",
            units::bytes_with_error(&totals.live),
            unexamined(totals),
            units::bytes_with_error(&totals.peak.bytes),
            units::duration(totals.peak.after_ns as f64 / 1e9),
        ),
        format!(
            "samples    {} ({interval}), {} lost{}",
            units::count(profile.samples.len() as f64),
            units::count(lost as f64),
            if lost > 0 {
                format!(" ({})", units::bytes(lost_bytes as f64))
            } else {
                String::new()
            },
        ),
        format!(
            "audit      {compared}{}",
            if totals.audit.is_passed() {
                ""
            } else {
                ": OUT OF BOUNDS, do not trust this profile"
            },
        ),
    ];
    lines.extend(totals.coverage.as_ref().map(Coverage::line));
    lines
}

/// What a collector may still find dead.
fn unexamined(totals: &Totals) -> String {
    let bytes = totals.unexamined.value();
    match bytes > 0.0 {
        true => format!(
            " ({} of them not yet examined by a full GC)",
            units::bytes(bytes)
        ),
        false => String::new(),
    }
}

/// What was counted beside the estimate.
fn exactly(profile: &Profile, totals: &Totals) -> String {
    match profile.sampled_by() {
        Some(_) => String::new(),
        None => format!(
            " (exact: {}{}{})",
            units::bytes(totals.exact_bytes as f64),
            including_backing(totals),
            uncounted(profile)
        ),
    }
}

/// Explains why the estimate is visibly below the exact count.
fn including_backing(totals: &Totals) -> String {
    let bytes = totals.backing.value();
    match totals.allocated.stderr() {
        Some(stderr) if bytes > stderr => {
            format!(
                ", including {} that heaps took from malloc",
                units::bytes(bytes)
            )
        }
        _ => String::new(),
    }
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
    let coverage = totals.coverage.as_ref();
    lines.extend(coverage.and_then(Coverage::warning));
    lines.extend(coverage.iter().flat_map(|it| it.unreconciled.clone()));
    lines.extend(runtimes::lines(profile));
    lines.extend(PageAudit::of(profile).map(|audit| audit.line()));
    let pages_lost = profile.own_cost.of(Figure::PagesNotRecordedBytes);
    if pages_lost > 0 {
        lines.push(format!(
            "note: sampled page faults for {} were not recorded (the agent was at work, or the ring was full)",
            units::bytes(pages_lost as f64)
        ));
    }
    if profile.part.before > 0 {
        let carried = profile.samples.iter().filter(|it| it.is_carried()).count();
        lines.push(format!(
            "note: part {} of a recording: {} samples were live when it began; they count as live but not as allocated",
            profile.part.before + 1,
            units::count(carried as f64),
        ));
    }
    for (note, detail) in &profile.notes {
        match note {
            Note::NoDrainThread => lines.push(format!("note: no drain thread: {detail}")),
            Note::SwitchedOff => lines.push(format!("note: the agent switched itself off: {detail}")),
            Note::ForkedFrom => lines.push(format!("note: forked from process {detail}")),
            Note::StacksCompared => lines.push(format!("note: stacks compared: {detail}")),
            Note::Attached if profile.sampled_by().is_some() => {}
            Note::Attached => lines.push(format!("note: attached to a running process; earlier allocations are not included: {detail}")),
            Note::NoSnapshot => lines.push(format!("note: a snapshot could not be written: {detail}")),
            Note::NotRotated => lines.push(format!("note: the profile could not continue in a new file: {detail}")),
            Note::Filtered => lines.push("note: a system call filter was installed: children have no profiles, and threads have no names".to_owned()),
            Note::Selection => lines.push(format!("note: the selection changed during the run: {detail}")),
            Note::UnknownSetting => lines.push(format!("note: {detail} is not a setting and had no effect (is it misspelt?)")),
            Note::DiskFull => lines.push(format!("note: there was no room for the profile for a while: {detail}")),
            Note::NotJoined => lines.extend(unsearched::line(profile, detail)),
            // `runtimes` says it where it matters.
            Note::NextAllocator | Note::MallocIsElsewhere | Note::NotInlined | Note::Embedded => {}
            Note::PagesNotSampled => lines.push(format!("note: page faults are not sampled: {detail}")),
            Note::Outside => {
                let is_attached = profile.notes.iter().any(|(note, _)| *note == Note::Attached);
                let more = if is_attached { ", and includes what was sampled before the attach" } else { "" };
                lines.push(format!("note: {detail} took the samples, and they were read from outside; live memory is as of the last GC{more}"));
            }
            // The summary says it.
            Note::Killed => {}
        }
    }
    for marker in &profile.vm.markers {
        let heap = || {
            profile
                .vm
                .heaps
                .get(&marker.heap)
                .map_or("", |heap| &heap.name)
        };
        if let Some(text) = marker.name.strip_prefix("note: ") {
            let after_ns = marker.begin_ns.saturating_sub(profile.process.start_ns);
            let after = units::duration(after_ns as f64 / 1e9);
            lines.push(format!("note: {}, after {after}: {text}", heap()));
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
            "note: {} records were being written when the process died",
            recovery.unfinished_records
        ));
    }
    if recovery.malformed_records > 0 {
        lines.push(format!(
            "warning: {} malformed records were skipped",
            recovery.malformed_records
        ));
    }
    for reason in LostReason::ALL {
        let (events, bytes) = profile.lost.of(reason);
        if events > 0 && reason == LostReason::LeftOut {
            lines.push(format!(
                "note: {events} samples (representing {}) are not included: excluded by the filter of sizes",
                units::bytes(bytes as f64)
            ));
        } else if events > 0 {
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
        .fold(0, u64::saturating_add);
    if muted > 0 {
        lines.push(format!(
            "note: {} are not included: allocated while sampling was off, on excluded threads, in signal handlers that interrupted the agent, or by libc for the agent",
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
            _ if profile.sampled_by().is_some() => {
                "no samples: a smaller interval takes more".to_owned()
            }
            0 => "no samples: nothing was allocated through malloc while sampling was on".to_owned(),
            // A smaller interval samples no other allocator.
            bytes if coverage.is_some_and(Coverage::is_low) => format!(
                "no samples: only {} went through malloc",
                units::bytes(bytes as f64)
            ),
            bytes => format!(
                "no samples: only {} went through malloc, less than the interval; try --interval 4K or 1",
                units::bytes(bytes as f64)
            ),
        });
    }
    lines
}

fn paint(text: &str, code: &str, colour: bool) -> String {
    if colour {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{Heap, HeapId, IntervalInfo, Sample, Sampling};

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_exact_count_says_how_much_of_it_heaps_took_from_malloc() {
        let mut profile = Profile::default();
        profile.intervals.push(IntervalInfo {
            time_ns: 0,
            sampling: Sampling::Poisson,
            interval_bytes: MIB,
            seed: 1,
        });
        let heap = Heap {
            name: "pypy".to_owned(),
            kind: None,
            exact_bytes: 400 * MIB,
        };
        profile.vm.heaps.insert(HeapId(1), heap);
        let sample = Sample {
            time_ns: 1,
            size: 100 * MIB,
            heap: HeapId(1),
            points: 100,
            ..Sample::default()
        };
        for number in 1..=4 {
            let address = number << 32;
            profile.samples.push(Sample { address, ..sample });
        }
        let said = |profile: &Profile| exactly(profile, &Totals::of(profile));
        assert_eq!(said(&profile), " (exact: 400 MiB)");
        profile.backing.samples.push(Sample {
            size: 32 * MIB,
            points: 32,
            ..sample
        });
        assert_eq!(
            said(&profile),
            " (exact: 400 MiB, including 32.0 MiB that heaps took from malloc)"
        );
    }
}
