//! A table in a terminal.

use std::io::{self, Write};

use super::{Options, paint};
use crate::table::{By, Row, Sort, Table};
use crate::units;

const BAR: usize = 8;

/// What there is room for besides the figures with their errors, which a narrow terminal has too.
struct Columns {
    bar: bool,
    total: bool,
    count: bool,
}

impl Columns {
    /// Leaves out what tells least, until names have room.
    fn for_width(options: &Options, by: By, has_extra: bool) -> Self {
        const NAME: usize = 26;
        let mut columns = Self {
            bar: options.colour,
            total: by.has_total(),
            count: true,
        };
        let figures = 7 + 23 + 23 + if has_extra { 23 } else { 0 } + 1;
        let has_room = |it: &Self| {
            let others = [(it.bar, BAR + 1), (it.total, 11), (it.count, 23)];
            let others = others.iter().filter(|(is_there, _)| *is_there);
            figures + others.map(|(_, width)| width).sum::<usize>() + NAME
                <= options.width.columns()
        };
        columns.bar &= has_room(&columns);
        columns.count &= has_room(&columns);
        columns.total &= has_room(&columns);
        columns
    }
}

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
    let columns = Columns::for_width(options, by, extra.is_some());
    let mut head = format!("{:>6} ", "self");
    if columns.bar {
        head += &" ".repeat(BAR + 1);
    }
    head += &format!("{:>22} ", "allocated");
    if columns.total {
        head += &format!("{:>10} ", "total");
    }
    head += &format!("{:>22} ", "live");
    if let Some(extra) = extra {
        head += &format!("{extra:>22} ");
    }
    if columns.count {
        head += &format!("{:>22} ", "count");
    }
    head += &format!(" {}", by.name());
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
        if columns.bar {
            line += &(units::bar(figure, largest, BAR) + " ");
        }
        line += &format!("{:>22} ", units::bytes_with_error(&row.self_allocated));
        if columns.total {
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
        if columns.count {
            line += &format!("{:>22} ", units::short_count_with_error(&row.allocations));
        }
        line.push(' ');
        let room = options.width.room(line.chars().count());
        let name = units::shorten(&describe(by, row), room);
        writeln!(out, "{line}{name}")?;
        for function in row.stack.iter().skip(row.charged + 1) {
            const INDENT: usize = 30;
            let room = options.width.room(INDENT);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Shape;

    fn widths(width: usize, sort: Sort) -> Vec<usize> {
        let row = Row {
            name: "a::function<with, a, name::that::is>::very_long_indeed_and_longer_than_lines"
                .into(),
            module: "module.so".into(),
            ..Row::default()
        };
        let table = Table {
            rows: vec![row],
            row_count: 1,
            ..Table::default()
        };
        let options = Options {
            shape: Shape::Table(By::Function),
            sort,
            top: 20,
            selection: crate::Selection::default(),
            width: crate::Width::new(Some(width)),
            colour: true,
        };
        let mut out = Vec::new();
        write(By::Function, &table, &options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let text = text.replace("\x1b[1m", "").replace("\x1b[0m", "");
        text.lines().map(|line| line.chars().count()).collect()
    }

    #[test]
    fn lines_are_not_wider_than_the_terminal() {
        for width in [80, 90, 100, 120, 200] {
            let widths = widths(width, Sort::Allocated);
            assert!(widths.iter().all(|&it| it <= width), "{width}: {widths:?}");
        }
        // One more column of figures.
        let widths = widths(100, Sort::Growth);
        assert!(widths.iter().all(|&it| it <= 100), "{widths:?}");
    }

    #[test]
    fn what_has_room_is_shown() {
        let options = |width| Options {
            shape: Shape::Table(By::Function),
            sort: Sort::Allocated,
            top: 20,
            selection: crate::Selection::default(),
            width: crate::Width::new(Some(width)),
            colour: true,
        };
        let columns = |width| {
            let columns = Columns::for_width(&options(width), By::Function, false);
            [columns.bar, columns.total, columns.count]
        };
        assert_eq!(columns(130), [true, true, true]);
        assert_eq!(columns(115), [false, true, true]);
        assert_eq!(columns(100), [false, true, false]);
        assert_eq!(columns(80), [false, false, false]);
    }
}
