//! The comparison in a terminal.

use std::io::{self, Write};

use allocsample_report::origin::distinct_paths;
use allocsample_report::{Account, By, Row, Width, shorten, shorten_all, units};
use allocsample_sampling::Estimate;

use crate::{
    Change, Diff, FALSE_DISCOVERY_RATE, Lengths, Measure, MemoryChange, MemoryRow, Moment,
    NotCompared, Per, RowChange,
};

/// What is printed, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rows at most.
    pub top: usize,
    /// Noise too.
    pub all: bool,
    /// How wide it may be.
    pub width: Width,
    /// Whether the output may have colours.
    pub colour: bool,
}

/// What follows of a line that was broken.
const INDENT: usize = 2;

/// Prints what changed.
pub fn write(diff: &Diff, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let head = format!("{}: {}", title(diff), total(diff));
    writeln!(out, "{}", options.width.broken(&head, INDENT))?;
    if let Some(line) = diff.lengths.and_then(|it| length_note(diff.measure, it)) {
        writeln!(out, "{}", options.width.broken(&line, INDENT))?;
    }
    if let Some(line) = error_note(diff) {
        writeln!(out, "{}", options.width.broken(&line, INDENT))?;
    }
    // Of periodic profiles nobody can say what is noise: every difference is shown, and none is called one.
    let is_tested = diff.total.p_value.is_some();
    let shown = diff
        .rows
        .iter()
        .filter(|row| options.all || !is_tested || row.is_significant());
    let noise = diff.rows.len() - diff.rows.iter().filter(|row| row.is_significant()).count();
    let columns = Columns::for_width(options.width);
    if shown.clone().next().is_some() {
        let titles = ["change", "before", "after", "p"];
        writeln!(out, "\n{}", columns.line(titles.map(str::to_owned)))?;
    }
    let rows: Vec<&RowChange> = shown.clone().take(options.top).collect();
    let room = options.width.room_in_terminal(columns.width());
    let names = shorten_all(&names(diff.by, &rows), room);
    for (row, name) in rows.iter().zip(names) {
        write_row(row, &name, diff.measure, &columns, options, out)?;
    }
    let left_out = shown.count().saturating_sub(options.top);
    if left_out > 0 {
        writeln!(out, "... {left_out} more; --top N shows more")?;
    }
    if !is_tested {
        let line = "periodic sampling has no standard errors: which of these changes are noise is not known";
        writeln!(out, "{}", options.width.broken(line, INDENT))?;
    } else if !options.all && noise > 0 {
        let line = format!(
            "{noise} others did not change by more than {} (false discovery rate {FALSE_DISCOVERY_RATE}); --all shows them",
            explained_by(diff)
        );
        writeln!(out, "{}", options.width.broken(&line, INDENT))?;
    }
    Ok(())
}

/// Prints what changed of the resident memory, or why that is not known.
pub fn write_memory(
    memory: &Result<MemoryChange, NotCompared>,
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    let memory = match memory {
        Ok(memory) => memory,
        Err(reason) => {
            let line = format!("resident memory is not compared: {}", describe(*reason));
            return writeln!(out, "\n{}", options.width.broken(&line, INDENT));
        }
    };
    let head = format!(
        "resident memory {}: {} before, {} after: {}",
        match memory.moment {
            Moment::Largest => "at its largest reading",
            Moment::Last => "at the last reading",
        },
        units::bytes(memory.resident.before.value()),
        units::bytes(memory.resident.after.value()),
        difference(Measure::Live, &memory.resident),
    );
    writeln!(out, "\n{}", options.width.broken(&head, INDENT))?;
    if let Some(line) = missed_peak(memory) {
        let line = format!("warning: {line}");
        writeln!(out, "{}", options.width.broken(&line, INDENT))?;
    }
    let is_shown = |row: &&MemoryRow| options.all || memory.is_material(row) && !row.is_noise();
    let shown: Vec<&MemoryRow> = memory
        .rows
        .iter()
        .filter(is_shown)
        .take(options.top)
        .collect();
    let columns = Columns::for_width(options.width);
    for row in &shown {
        let p_value = row.change.p_value;
        let line = columns.line([
            difference(Measure::Live, &row.change),
            columns.amount(Measure::Live, &row.change.before),
            columns.amount(Measure::Live, &row.change.after),
            p_value.map_or_else(|| "-".to_owned(), units::p_value),
        ]);
        let room = options.width.room_in_terminal(columns.width());
        let line = format!("{line}{}", shorten(&row.name, room));
        writeln!(
            out,
            "{}",
            painted(&line, &row.change, !row.is_noise(), options)
        )?;
    }
    let others = memory.rows.len() - shown.len();
    if others > 0 {
        let of_shown: f64 = shown.iter().map(|row| row.change.difference()).sum();
        let rest = memory.resident.difference() - of_shown;
        let line = format!(
            "{others} other rows: {} together; --all shows them",
            signed(rest)
        );
        writeln!(out, "{}", options.width.broken(&line, INDENT))?;
    }
    let line = match memory.grew_most() {
        Some(row) => format!(
            "grew most: {}, by {}{}",
            row.name,
            units::bytes(row.change.difference()),
            next_step(row.account)
        ),
        None => "no row grew by more than its error and 1 % of the resident memory".to_owned(),
    };
    writeln!(out, "{}", options.width.broken(&line, INDENT))
}

/// What a peak had that no reading has, if that may be the difference.
pub fn missed_peak(memory: &MemoryChange) -> Option<String> {
    let [before, after] = memory.missed_bytes.map(|it| units::bytes(it as f64));
    memory.misses_a_peak().then(|| {
        format!(
            "{before} before and {after} after are missing: the processes had so much more resident while no list of mappings was read"
        )
    })
}

/// The reason in words.
pub fn describe(reason: NotCompared) -> String {
    match reason {
        NotCompared::Narrowed => {
            "a part of the samples was selected, and the kernel counts all memory".to_owned()
        }
        NotCompared::NoReadings { profiles, is_after } => format!(
            "{} no list of the process's mappings; `allocsample run` and the agent's thread read it in processes of 8 MiB and more",
            match (profiles, is_after) {
                (1, false) => "the profile before has".to_owned(),
                (1, true) => "the profile after has".to_owned(),
                (profiles, _) => format!("{profiles} profiles have"),
            }
        ),
    }
}

/// Where to look for the cause.
fn next_step(account: Account) -> &'static str {
    match account {
        Account::Malloc | Account::Objects => "; `diff --measure live` compares its sites",
        Account::MallocHeld => {
            "; `allocsample memory PID` shows of a running process why malloc keeps it"
        }
        Account::Mapped | Account::Stacks | Account::Shared => {
            "; `allocsample memory AFTER` shows the calls that mapped it"
        }
        Account::Files => ", which the kernel takes back when memory is short",
        _ => "",
    }
}

/// What rows are called.
fn names(by: By, rows: &[&RowChange]) -> Vec<String> {
    let files = rows.iter().filter_map(|row| row.row.file.as_deref());
    let paths = distinct_paths(files);
    let name = |row: &Row| match (by, row.file.as_deref(), row.module.as_str()) {
        (By::Line, Some(file), _) => {
            let path = paths.get(file).copied().unwrap_or(file);
            format!("{path}:{} {}", row.line, row.name)
        }
        (_, _, "") => row.label().into_owned(),
        (_, _, module) => format!("{} [{module}]", row.label()),
    };
    rows.iter().map(|row| name(&row.row)).collect()
}

fn write_row(
    row: &RowChange,
    name: &str,
    measure: Measure,
    columns: &Columns,
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    let change = &row.change;
    let p_value = row
        .adjusted_p_value
        .map_or_else(|| "-".to_owned(), units::p_value);
    let line = columns.line([
        difference(measure, change),
        columns.amount(measure, &change.before),
        columns.amount(measure, &change.after),
        p_value,
    ]);
    let used = line.chars().count();
    let line = format!("{line}{name}");
    writeln!(
        out,
        "{}",
        painted(&line, change, row.is_significant(), options)
    )?;
    for caller in row.row.stack.iter().skip(1) {
        let room = options.width.room_in_terminal(used + INDENT);
        writeln!(out, "{:used$}< {}", "", shorten(caller, room))?;
    }
    Ok(())
}

/// Growth in red, and noise pale.
fn painted(line: &str, change: &Change, is_significant: bool, options: &Options) -> String {
    let code = match (is_significant, change.difference() > 0.0) {
        (true, true) => "31",
        (true, false) => "32",
        _ => "2",
    };
    match options.colour {
        true => format!("\x1b[{code}m{line}\x1b[0m"),
        false => line.to_owned(),
    }
}

/// What stands before a name.
struct Columns {
    /// Errors would leave no room for names.
    is_narrow: bool,
}

impl Columns {
    fn for_width(width: Width) -> Self {
        const NARROW: usize = 110;
        Self {
            is_narrow: width.columns() < NARROW,
        }
    }

    fn line(&self, [change, before, after, p_value]: [String; 4]) -> String {
        let amount = if self.is_narrow { 11 } else { 22 };
        format!("{change:>22} {before:>amount$} {after:>amount$} {p_value:>7}  ")
    }

    fn width(&self) -> usize {
        self.line(Default::default()).chars().count()
    }

    fn amount(&self, measure: Measure, estimate: &Estimate) -> String {
        match self.is_narrow {
            true => number(measure, estimate.value()),
            false => with_error(measure, estimate),
        }
    }
}

fn title(diff: &Diff) -> &'static str {
    match (diff.measure, diff.per) {
        (Measure::Allocated, Per::Run) => "allocated bytes",
        (Measure::Allocated, Per::Second) => "allocated bytes per second",
        (Measure::Allocated, Per::Count(..)) => "allocated bytes per count",
        (Measure::Live, Per::Run) => "live bytes",
        (Measure::Live, Per::Second) => "live bytes per second",
        (Measure::Live, Per::Count(..)) => "live bytes per count",
        (Measure::Count, Per::Run) => "allocations",
        (Measure::Count, Per::Second) => "allocations per second",
        (Measure::Count, Per::Count(..)) => "allocations per count",
    }
}

fn total(diff: &Diff) -> String {
    let change = &diff.total;
    format!(
        "{} before, {} after: {}, {}",
        with_error(diff.measure, &change.before),
        with_error(diff.measure, &change.after),
        difference(diff.measure, change),
        match change.p_value {
            Some(p) if p < FALSE_DISCOVERY_RATE => format!("p {}", units::p_value(p)),
            Some(_) => format!("no more than {}", explained_by(diff)),
            None => "without a standard error".to_owned(),
        }
    )
}

/// Warns that the longer profile may have more for that reason alone. Live bytes need no warning: they do not add up over time.
fn length_note(measure: Measure, lengths: Lengths) -> Option<String> {
    let seconds = |seconds| units::duration(seconds);
    let (before, after) = (seconds(lengths.before_s), seconds(lengths.after_s));
    let advice = "--per-second compares rates";
    match (measure, lengths.are_of_one_recording) {
        (Measure::Live, _) => None,
        (_, true) => Some(format!(
            "note: both profiles are of one recording, {before} and {after} long: the longer one contains the allocations of the other; {advice}"
        )),
        (_, false) => Some(format!(
            "note: the profiles are {before} and {after} long; {advice}"
        )),
    }
}

/// Whether runs were repeated.
fn has_replicates(diff: &Diff) -> bool {
    diff.runs != (1, 1)
}

fn explained_by(diff: &Diff) -> &'static str {
    match has_replicates(diff) {
        true => "sampling and the differences between runs do",
        false => "sampling does",
    }
}

/// Which errors the p-values contain, and how small a change they can show.
fn error_note(diff: &Diff) -> Option<String> {
    let (before, after) = diff.runs;
    let change = &diff.total;
    let detectable = change.detectable.map(|bytes| {
        let of = change.before.value();
        let share = (of > 0.0).then(|| format!(" ({:.1} %)", 100.0 * bytes / of));
        format!(
            "smallest detectable change of the total: {}{} (80 % power at p 0.05)",
            number(diff.measure, bytes),
            share.unwrap_or_default()
        )
    });
    if has_replicates(diff) {
        let runs =
            format!("means of {before} and {after} runs; p includes the variation between runs");
        return Some(match detectable {
            Some(detectable) => format!("{runs}; {detectable}"),
            None => runs,
        });
    }
    let detectable = detectable?;
    Some(format!(
        "{detectable}; p includes sampling error only, not the variation between runs: compare several runs with diff A1 A2 A3 -- B1 B2 B3"
    ))
}

fn number(measure: Measure, value: f64) -> String {
    match measure {
        Measure::Count if value.abs() < 100.0 => format!("{value:.2}"),
        Measure::Count => format!("{value:.0}"),
        _ => units::bytes(value),
    }
}

fn with_error(measure: Measure, estimate: &Estimate) -> String {
    match measure {
        Measure::Count => units::short_count_with_error(estimate),
        _ => units::bytes_with_error(estimate),
    }
}

fn difference(measure: Measure, change: &Change) -> String {
    let difference = change.difference();
    let sign = sign_of(difference);
    let before = change.before.value();
    let share = if before > 0.0 {
        format!(" ({sign}{:.0} %)", 100.0 * difference / before)
    } else {
        " (new)".to_owned()
    };
    format!("{sign}{}{share}", number(measure, difference))
}

fn signed(bytes: f64) -> String {
    format!("{}{}", sign_of(bytes), units::bytes(bytes))
}

fn sign_of(difference: f64) -> &'static str {
    if difference > 0.0 { "+" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::Profile;

    fn profile(pid: u32, seconds: u64) -> Profile {
        let mut profile = Profile::default();
        profile.process.pid = pid;
        profile.process.start_wall_ns = 7;
        profile.process.end_ns = seconds * 1_000_000_000;
        profile
    }

    #[test]
    fn totals_of_profiles_of_unequal_lengths_are_called_so() {
        let printed = |before: &Profile, after: &Profile, measure, per| {
            let diff = Diff::of(before, after, By::Function, measure, per);
            let options = Options {
                top: 20,
                all: false,
                width: Width::new(None),
                colour: false,
            };
            let mut out = Vec::new();
            write(&diff, &options, &mut out).expect("memory to write to");
            let text = String::from_utf8(out).expect("text");
            text.lines()
                .find(|it| it.starts_with("note: "))
                .map(str::to_owned)
        };
        let (short, long) = (profile(1, 10), profile(1, 30));
        // The JSON carries the lengths, too.
        let of_json = |after: &Profile| {
            let diff = Diff::of(&short, after, By::Function, Measure::Allocated, Per::Run);
            crate::json::diff(&diff).into_value()["lengths"].take()
        };
        let lengths = serde_json::json!({
            "before_s": 10.0, "after_s": 30.0, "are_of_one_recording": true
        });
        assert_eq!(of_json(&long), lengths);
        assert_eq!(of_json(&profile(1, 11)), serde_json::Value::Null);
        let note = printed(&short, &long, Measure::Allocated, Per::Run).expect("a note");
        assert!(
            note.starts_with("note: both profiles are of one recording, 10.0 s and 30.0 s long")
        );
        let note = printed(&short, &profile(2, 30), Measure::Count, Per::Run).expect("a note");
        assert_eq!(
            note,
            "note: the profiles are 10.0 s and 30.0 s long; --per-second compares rates"
        );
        assert_eq!(printed(&short, &long, Measure::Live, Per::Run), None);
        assert_eq!(
            printed(&short, &long, Measure::Allocated, Per::Second),
            None
        );
        assert_eq!(
            printed(&short, &profile(2, 11), Measure::Allocated, Per::Run),
            None
        );
    }
}
