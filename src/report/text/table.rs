//! A table in a terminal.

use std::io::{self, Write};

use super::{Options, paint};
use crate::table::{By, Row, Sort, Table};
use crate::units;

const BAR: usize = 8;

/// Prints the rows of a table, as wide as the terminal.
pub(super) fn write(
    by: By,
    table: &Table,
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    let extra = match options.sort {
        Sort::Peak => Some("at peak"),
        Sort::Growth => Some("growth"),
        _ => None,
    };
    let mut head = format!("{:>6} ", "self");
    if options.colour {
        head += &" ".repeat(BAR + 1);
    }
    head += &format!("{:>22} ", "allocated");
    if by.has_total() {
        head += &format!("{:>10} ", "total");
    }
    head += &format!("{:>22} ", "live");
    if let Some(extra) = extra {
        head += &format!("{extra:>22} ");
    }
    head += &format!("{:>12}  {}", "count", by.name());
    writeln!(out, "{}", paint(&head, "1", options.colour))?;
    let whole = options.sort.of(&table.selected).value();
    // What a share of a sum that may be negative would be, nobody knows.
    let largest = table
        .rows
        .first()
        .map_or(0.0, |row| sorted(row, options.sort));
    for row in &table.rows {
        let figure = sorted(row, options.sort);
        let share = match options.sort {
            Sort::Growth => units::percent(figure, largest),
            _ => units::percent(figure, whole),
        };
        let mut line = format!("{share:>6} ");
        if options.colour {
            line += &(units::bar(figure, largest, BAR) + " ");
        }
        line += &format!("{:>22} ", units::bytes_with_error(&row.self_allocated));
        if by.has_total() {
            line += &format!("{:>10} ", units::bytes(row.total_allocated.value()));
        }
        line += &format!("{:>22} ", units::bytes_with_error(&row.self_live));
        match options.sort {
            Sort::Peak => line += &format!("{:>22} ", units::bytes_with_error(&row.self_peak)),
            Sort::Growth => {
                line += &format!("{:>22} ", units::bytes_with_error(&row.self_growth));
            }
            _ => {}
        }
        line += &format!("{:>12}  ", units::count(row.allocations.value()));
        let room = options.width.saturating_sub(line.chars().count()).max(20);
        let name = units::shorten(&describe(by, row), room);
        writeln!(out, "{line}{name}")?;
        for function in row.stack.iter().skip(row.charged + 1) {
            const INDENT: usize = 30;
            let room = options.width.saturating_sub(INDENT).max(20);
            writeln!(out, "{:INDENT$}{}", "", units::shorten(function, room))?;
        }
    }
    if table.row_count > table.rows.len() {
        let more = table.row_count - table.rows.len();
        writeln!(out, "... {more} more; --top N shows more")?;
    }
    Ok(())
}

fn sorted(row: &Row, sort: Sort) -> f64 {
    match sort {
        Sort::Allocated => &row.self_allocated,
        Sort::Live => &row.self_live,
        Sort::Count => &row.allocations,
        Sort::Peak => &row.self_peak,
        Sort::Growth => &row.self_growth,
    }
    .value()
}

fn describe(by: By, row: &Row) -> String {
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
        (By::Type, _) if !row.module.is_empty() => format!("{} [{}]", row.name, row.module),
        _ => row.name.clone(),
    }
}
