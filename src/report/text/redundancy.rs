//! Redundancy in a terminal.

use std::io::{self, Write};

use super::{Options, paint};
use crate::elide::shorten;
use crate::redundancy::{Answer, Redundancy};
use crate::units;

/// Prints a line for all, then one for each type and site.
pub(super) fn write(answer: &Answer, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    if answer.all.hashed == 0 {
        return writeln!(
            out,
            "no object has a hash of its content: a virtual machine gives them with the fates of its objects"
        );
    }
    let all = Redundancy {
        name: "all".to_owned(),
        ..answer.all.clone()
    };
    table("", std::slice::from_ref(&all), options, out)?;
    for (what, groups) in [("type", &answer.types), ("site", &answer.sites)] {
        writeln!(out)?;
        table(what, groups, options, out)?;
    }
    Ok(())
}

fn table(
    what: &str,
    groups: &[Redundancy],
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    let head = format!(
        "{:>10} {:>9} {:>9} {:>8} {:>12} {:>21}  {what}",
        "hashed", "distinct", "share", "alike", "bytes", "repeated, at least"
    );
    writeln!(out, "{}", paint(head.trim_end(), "1", options.colour))?;
    for group in groups {
        let share = units::percent(group.distinct as f64, group.hashed as f64);
        let alike = group
            .alike
            .map_or("-".to_owned(), |it| units::percent(it, 1.0));
        let repeated = format!(
            "{} {:>7}",
            units::bytes(group.repeated_bytes),
            units::percent(group.repeated_bytes, group.bytes)
        );
        let line = format!(
            "{:>10} {:>9} {share:>9} {alike:>8} {:>12} {repeated:>21}  ",
            units::count(group.hashed as f64),
            units::count(group.distinct as f64),
            units::bytes(group.bytes),
        );
        let room = options.width.room(line.chars().count());
        writeln!(out, "{line}{}", shorten(&group.name, room))?;
    }
    Ok(())
}
