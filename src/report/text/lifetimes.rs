//! Lifetimes in a terminal.

use std::io::{self, Write};

use super::{Options, paint};
use crate::elide::shorten;
use crate::lifetimes::{Answer, Class, Lifetimes};
use crate::units;

/// Prints histograms of all, then a line for each type and site.
pub(super) fn write(answer: &Answer, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let all = &answer.all;
    let freed = all.allocated.value() - all.not_freed.value();
    writeln!(
        out,
        "{} allocated, {} not freed ({})",
        units::bytes_with_error(&all.allocated),
        units::bytes_with_error(&all.not_freed),
        units::percent(all.not_freed.value(), all.allocated.value()),
    )?;
    histogram("lived up to", &all.by_seconds, freed, seconds, options, out)?;
    histogram(
        "allocated meanwhile",
        &all.by_bytes,
        freed,
        units::bytes,
        options,
        out,
    )?;
    let is_collected = |class: &Class| class.bytes.samples() > 0;
    if all.by_collections.iter().any(is_collected) {
        histogram(
            "collections",
            &all.by_collections,
            freed,
            |count| format!("{count:.0}"),
            options,
            out,
        )?;
    }
    for (what, groups) in [("type", &answer.types), ("site", &answer.sites)] {
        if !groups.is_empty() {
            table(what, groups, options, out)?;
        }
    }
    Ok(())
}

fn histogram(
    title: &str,
    classes: &[Class],
    freed: f64,
    print: fn(f64) -> String,
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    const BAR: usize = 30;
    let head = format!("\n{title:>20} {:>7} {:>22}", "freed", "bytes");
    writeln!(out, "{}", paint(&head, "1", options.colour))?;
    let largest = classes
        .iter()
        .map(|class| class.bytes.value())
        .fold(0.0, f64::max);
    // Nothing lived longer than the last of these.
    let used = classes.iter().rposition(|class| class.bytes.samples() > 0);
    for class in classes.iter().take(used.map_or(0, |last| last + 1)) {
        let bound = if class.to.is_finite() {
            print(class.to)
        } else {
            "more".to_owned()
        };
        let value = class.bytes.value();
        let bar = if options.colour {
            format!("  {}", units::bar(value, largest, BAR).trim_end())
        } else {
            String::new()
        };
        writeln!(
            out,
            "{bound:>20} {:>7} {:>22}{bar}",
            units::percent(value, freed),
            units::bytes_with_error(&class.bytes),
        )?;
    }
    Ok(())
}

fn table(
    what: &str,
    groups: &[Lifetimes],
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    let head = format!(
        "\n{:>22} {:>9} {:>9} {:>9} {:>9} {:>9}  {what}",
        "allocated", "not freed", "50 %", "90 %", "50 %", "90 %"
    );
    writeln!(out, "{}", paint(&head, "1", options.colour))?;
    for group in groups {
        let text = |quantiles: Option<[f64; 3]>, print: fn(f64) -> String| {
            let [_, half, most] = quantiles.map_or([None; 3], |all| all.map(Some));
            let text = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), print);
            format!("{:>9} {:>9}", text(half), text(most))
        };
        let line = format!(
            "{:>22} {:>9} {} {}  ",
            units::bytes_with_error(&group.allocated),
            units::percent(group.not_freed.value(), group.allocated.value()),
            text(group.quantiles_s, seconds),
            text(group.quantiles_bytes, units::bytes),
        );
        let room = options.width.room(line.chars().count());
        writeln!(out, "{line}{}", shorten(&group.name, room))?;
    }
    Ok(())
}

/// From microseconds up.
fn seconds(value: f64) -> String {
    if value < 0.9995e-3 {
        format!("{:.0} µs", value * 1e6)
    } else {
        units::duration(value)
    }
}
