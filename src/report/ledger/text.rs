//! Ledgers for people: two moments side by side.

use std::io::{self, Write};

use allocsample_profile::{Frame, GroupFigure, OwnFigure, Profile};

use super::{
    Account, Agreement, Held, Holder, Ledger, OwnCount, Reason, Site, advice, earlier, frames_of,
    not_recorded, seconds_into,
};
use crate::{Width, elide, origin, units};

/// A larger part of the peak that no reading has is worth a warning.
const WORTH_A_WARNING: f64 = 0.05;
/// Characters of a function's name.
const LONGEST_NAME: usize = 40;

/// What is printed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Places in each row that has calls.
    pub sites: usize,
    /// Frames of each of these.
    pub frames: usize,
    /// Of the lines.
    pub width: Width,
    /// Whether the last reading is of the process as it is now.
    pub is_now: bool,
}

impl Options {
    /// As many places and frames as fit on a screen.
    pub fn new(width: Width) -> Self {
        Self {
            sites: 2,
            frames: 3,
            width,
            is_now: false,
        }
    }
}

/// Prints the ledgers of the peak and of the last reading, with what changed between.
pub fn write(
    profile: &Profile,
    peak: &Ledger,
    last: &Ledger,
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    let is_one = peak.totals.time_ns == last.totals.time_ns;
    let of = |bytes: f64| units::bytes(bytes);
    let moment = |ledger: &Ledger| {
        let totals = &ledger.totals;
        format!(
            "{} resident, {} of it anonymous{}{}",
            of(totals.resident_bytes as f64),
            of(totals.anonymous_bytes as f64),
            also(ledger.swapped_bytes, "swapped out"),
            also(ledger.huge_bytes, "in huge pages"),
        )
    };
    let last_name = if options.is_now { "now" } else { "last" };
    let time = |ledger: &Ledger| units::duration(seconds_into(profile, ledger.totals.time_ns));
    writeln!(out, "peak       {}, after {}", moment(peak), time(peak))?;
    if !is_one {
        writeln!(
            out,
            "{last_name:<10} {}, after {}",
            moment(last),
            time(last)
        )?;
    }
    write_group(last, out)?;
    let missed = Ledger::missed_bytes(profile) as f64;
    if missed > WORTH_A_WARNING * peak.totals.resident_bytes as f64 {
        let advice = match options.is_now {
            true => "",
            false => "; `allocsample memory PID` reads them while it runs",
        };
        writeln!(
            out,
            "warning: the process had up to {} more resident while no list of its mappings was read: the rows lack that{advice}",
            of(missed)
        )?;
    }
    if let Some(lost) = not_recorded(profile).checked_sub(1) {
        writeln!(
            out,
            "warning: {} calls that map or unmap memory were not recorded; owners of mappings may be wrong",
            units::count((lost + 1) as f64)
        )?;
    }
    writeln!(out)?;
    let figures = if is_one { 1 } else { 3 };
    let room = options.width.room(12 * figures + 16);
    let mut header = format!("{:>12}", "peak");
    if !is_one {
        header += &format!("{last_name:>12}{:>12}", "change");
    }
    writeln!(out, "{header}   memory of")?;
    for (account, name) in names(peak, last) {
        let (before, after) = (peak.of_row(account, &name), last.of_row(account, &name));
        let mut line = format!("{:>12}", of(before));
        if !is_one {
            line += &format!("{:>12}{:>12}", of(after), change(after - before));
        }
        let error = (last.rows.iter())
            .find(|row| row.account == account && row.name == name)
            .and_then(|row| row.stderr_bytes)
            .filter(|error| *error > 0.0)
            .map(|error| format!(" (± {})", of(error)));
        let name_shown = elide::shorten(&name, room);
        writeln!(out, "{line}   {name_shown}{}", error.unwrap_or_default())?;
        write_reasons(last, account, &name, options, out)?;
        write_sites(profile, last, account, &name, options, out)?;
    }
    let (before, after) = (
        peak.totals.resident_bytes as f64,
        last.totals.resident_bytes as f64,
    );
    let mut line = format!("{:>12}", of(before));
    if !is_one {
        line += &format!("{:>12}{:>12}", of(after), change(after - before));
    }
    let unexplained = |ledger: &Ledger| {
        let bytes = ledger.of_account(Account::Unexplained);
        units::percent(bytes, ledger.totals.anonymous_bytes as f64)
    };
    let shares = match is_one {
        true => unexplained(last),
        false => format!(
            "{} (peak) and {} ({last_name})",
            unexplained(peak),
            unexplained(last)
        ),
    };
    writeln!(
        out,
        "{line}   resident; unexplained: {shares} of anonymous memory"
    )?;
    let moments = [(peak, "peak"), (last, last_name)];
    for (ledger, moment) in moments.into_iter().skip(usize::from(is_one)) {
        for own in &ledger.own_counts {
            write_own(ledger, own, moment, out)?;
        }
    }
    let mut advice = last.held.as_ref().map(advice::of).unwrap_or_default();
    let earlier = last.of_account(Account::Earlier);
    if !options.is_now && earlier > WORTH_A_WARNING * last.totals.anonymous_bytes as f64 {
        advice.extend(earlier::advice(profile, earlier));
    }
    for (number, sentence) in advice.iter().enumerate() {
        let heading = if number == 0 {
            "\nadvice     "
        } else {
            "           "
        };
        writeln!(out, "{heading}{sentence}")?;
    }
    Ok(())
}

/// What an allocator counts itself, with the estimate beside it.
fn write_own(ledger: &Ledger, own: &OwnCount, moment: &str, out: &mut dyn Write) -> io::Result<()> {
    let bytes = |value: u64| units::bytes(value as f64);
    let parts = [
        (OwnFigure::Allocated, "allocated"),
        (OwnFigure::Active, "in pages with blocks"),
        (OwnFigure::Metadata, "metadata"),
        (OwnFigure::Resident, "resident"),
        (OwnFigure::Retained, "given back but mapped"),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter_map(|(figure, name)| Some(format!("{} {name}", bytes(own.of(figure)?))))
        .collect();
    let (before, after) = (ledger.totals.time_ns, own.time_ns);
    let when = match before.abs_diff(after) {
        0..100_000_000 => moment.to_owned(),
        apart => format!(
            "{} {} {moment}",
            units::duration(apart as f64 / 1e9),
            if after < before { "before" } else { "after" }
        ),
    };
    writeln!(out, "own count  {}, {when}: {}", own.name, parts.join(", "))?;
    let Some(agreement) = own.agreement() else {
        return Ok(());
    };
    let verdict = match agreement {
        Agreement::Reconciled => "which agrees",
        Agreement::NotSampled => {
            "which is less: some are older than the recording, or were not sampled"
        }
        Agreement::TooMany => "which cannot be: do not trust the rows of this heap",
        Agreement::Fits => "which fits; it does not count its blocks",
    };
    let error = own.live_rounded.stderr().filter(|error| *error > 0.0);
    let error = error.map_or_else(String::new, |it| format!(" (± {})", units::bytes(it)));
    writeln!(
        out,
        "           the samples have {} in live blocks, and {}{}{error} as the allocator rounds sizes, {verdict}",
        units::bytes(own.live.value()),
        if own.is_rounding_known { "" } else { "up to " },
        units::bytes(own.live_rounded.value()),
    )
}

/// Why malloc keeps memory without blocks, and which sites hold it.
fn write_reasons(
    ledger: &Ledger,
    account: Account,
    name: &str,
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    let row = (ledger.rows.iter()).find(|row| row.account == account && row.name == name);
    for (reason, bytes) in row.map_or(&[][..], |row| &row.reasons) {
        writeln!(out, "{:>27}   {}", units::bytes(*bytes), reason.describe())?;
        if let Some(held) = ledger.held.as_ref().filter(|_| *reason == Reason::Held) {
            write_holders(held, options, out)?;
        }
    }
    Ok(())
}

/// The sites that hold free memory, those with enough samples for a share.
pub(super) fn write_holders(held: &Held, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    const WORTH_A_LINE: f64 = 0.01;
    let worth = held.holders.iter();
    let worth = worth.filter(|it| held.share(it).0 >= WORTH_A_LINE);
    let (known, unknown): (Vec<&Holder>, Vec<&Holder>) = worth.partition(|it| held.is_known(it));
    for holder in known.into_iter().take(options.sites) {
        let (share, error) = held.share(holder);
        let error = error.map_or_else(String::new, |error| format!(" (± {:.0} %)", 100.0 * error));
        let blocks = holder.blocks.value();
        writeln!(
            out,
            "{:>33.0} %{error} by {}: {} blocks of {} on average",
            100.0 * share,
            elide::shorten(&holder.name(), 2 * LONGEST_NAME),
            units::count(blocks),
            units::bytes(holder.block_bytes.value() / blocks.max(1.0)),
        )?;
    }
    let of_unknown: f64 = unknown.iter().map(|it| held.share(it).0).sum();
    if of_unknown >= 0.1 {
        writeln!(
            out,
            "{:>35} by sites with too few samples for a figure: a smaller interval takes more",
            "some"
        )?;
    }
    let attributed = held.attributed.value() / (held.parts.held as f64).max(1.0);
    let error = held
        .attributed
        .stderr()
        .map_or(0.0, |it| it / (held.parts.held as f64).max(1.0));
    let rest = 1.0 - attributed;
    if rest > 0.1 && rest > 2.0 * error {
        writeln!(
            out,
            "{:>33.0} % by blocks older than the recording, freed during the walk, or never sampled",
            100.0 * rest
        )?;
    }
    Ok(())
}

fn also(bytes: u64, what: &str) -> String {
    match bytes {
        0 => String::new(),
        bytes => format!(", {} {what}", units::bytes(bytes as f64)),
    }
}

fn change(difference: f64) -> String {
    match difference {
        _ if difference.abs() < 0.5 => "0".to_owned(),
        _ if difference > 0.0 => format!("+{}", units::bytes(difference)),
        _ => units::bytes(difference),
    }
}

/// The rows of both, in the order of tables: by account, and by size at the last reading.
fn names(peak: &Ledger, last: &Ledger) -> Vec<(Account, String)> {
    let mut names: Vec<(Account, String)> = Vec::new();
    for row in last.rows.iter().chain(&peak.rows) {
        let name = (row.account, row.name.clone());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    // Stable: within an account in the order in which they came.
    names.sort_by_key(|(account, _)| *account);
    names
}

fn write_sites(
    profile: &Profile,
    ledger: &Ledger,
    account: Account,
    name: &str,
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    let row = (ledger.rows.iter()).find(|row| row.account == account && row.name == name);
    let row = row.filter(|_| account != Account::Agent);
    let sites = row.map_or(&[][..], |row| &row.sites);
    for site in sites.iter().take(options.sites) {
        let calls = match site.calls {
            1 => "1 call".to_owned(),
            calls => format!("{} calls", units::count(calls as f64)),
        };
        let line = format!(
            "{:>27}   {calls}: {}",
            units::bytes(site.resident_bytes),
            chain(profile, site, options.frames)
        );
        writeln!(out, "{line}")?;
    }
    if let Some(more) = sites.len().checked_sub(options.sites).filter(|it| *it > 0) {
        writeln!(out, "{:>27}   {more} more places", "")?;
    }
    Ok(())
}

/// The innermost functions of a stack, and the first one of the user's own.
fn chain(profile: &Profile, site: &Site, most: usize) -> String {
    let frames = frames_of(profile, site.stack);
    if frames.is_empty() {
        return "(no stack)".to_owned();
    }
    let jars = crate::jars::Jars::of(profile);
    let mut names: Vec<String> = (frames.iter().take(most))
        .map(|frame| elide::shorten(&frame.function, LONGEST_NAME))
        .collect();
    let is_own = |frame: &&Frame| frame.file.is_some() && origin::is_own(profile, &jars, frame);
    let own = match frames.iter().take(most).any(|frame| is_own(&frame)) {
        true => None,
        false => frames.iter().skip(most).find(is_own),
    };
    if let Some(own) = own {
        let place = origin::place(own).map_or_else(String::new, |place| format!(" ({place})"));
        names.push(format!("… ← {}{place}", own.function));
    }
    names.join(" ← ")
}

fn write_group(ledger: &Ledger, out: &mut dyn Write) -> io::Result<()> {
    let of = |figure| {
        let mut group = ledger.group.iter();
        group.find(|(it, _)| *it == figure).map(|(_, value)| *value)
    };
    let Some(current) = of(GroupFigure::Current) else {
        return Ok(());
    };
    let bytes = |value: u64| units::bytes(value as f64);
    let mut line = format!("group      {} in its control group", bytes(current));
    if let Some(max) = of(GroupFigure::Max) {
        line += &format!(" of at most {}", bytes(max));
    }
    let parts = [
        (GroupFigure::Anonymous, "anonymous"),
        (GroupFigure::File, "page cache"),
        (GroupFigure::Shared, "shared or tmpfs"),
        (GroupFigure::Kernel, "of the kernel"),
    ];
    let parts = parts
        .into_iter()
        .filter_map(|(figure, name)| Some(format!("{} {name}", bytes(of(figure)?))));
    let parts: Vec<String> = parts.collect();
    if !parts.is_empty() {
        line += &format!(": {}", parts.join(", "));
    }
    let own = ledger.totals.anonymous_bytes as f64;
    if let Some(anonymous) = of(GroupFigure::Anonymous).filter(|it| *it > 0) {
        line += &format!(
            "; this process has {} of the anonymous memory",
            units::percent(own.min(anonymous as f64), anonymous as f64).trim()
        );
    }
    if let Some(kills) = of(GroupFigure::OomKills).filter(|it| *it > 0) {
        line += &format!("; {kills} processes were killed for want of memory");
    }
    writeln!(out, "{line}")
}
