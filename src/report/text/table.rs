//! A table in a terminal.

use std::collections::HashMap;
use std::io::{self, Write};

use super::{Options, paint};
use allocsample_sampling::Estimate;

use crate::elide::{shorten, shorten_all};
use crate::origin::distinct_paths;
use crate::table::{By, Row, Sort, Table};
use crate::units;

const BAR: usize = 8;

/// A figure of a row, as a column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Allocated,
    Live,
    Peak,
    Growth,
    Count,
}

impl Column {
    const WIDTH: usize = 23;

    /// The one that rows are ordered by, and the others, those first that tell most beside it.
    fn all(sort: Sort) -> [Self; 3] {
        match sort {
            Sort::Allocated => [Self::Allocated, Self::Live, Self::Count],
            Sort::Live => [Self::Live, Self::Allocated, Self::Count],
            Sort::Peak => [Self::Peak, Self::Allocated, Self::Live],
            Sort::Growth => [Self::Growth, Self::Live, Self::Allocated],
            Sort::Count => [Self::Count, Self::Allocated, Self::Live],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Live => "live",
            Self::Peak => "at peak",
            Self::Growth => "growth",
            Self::Count => "count",
        }
    }

    fn of(self, row: &Row) -> &Estimate {
        match self {
            Self::Allocated => &row.self_allocated,
            Self::Live => &row.self_live,
            Self::Peak => &row.self_peak,
            Self::Growth => &row.self_growth,
            Self::Count => &row.allocations,
        }
    }

    /// The same with what the row called, if a row has that.
    fn total_of(self, row: &Row) -> Option<&Estimate> {
        match self {
            Self::Allocated => Some(&row.total_allocated),
            Self::Live => Some(&row.total_live),
            Self::Peak => Some(&row.total_peak),
            Self::Growth | Self::Count => None,
        }
    }

    fn text(self, row: &Row) -> String {
        match self {
            Self::Count => units::short_count_with_error(self.of(row)),
            _ => units::bytes_with_error(self.of(row)),
        }
    }
}

/// What there is room for besides the figures that rows are ordered by, which a narrow terminal has too.
struct Columns {
    bar: bool,
    first: Column,
    total: bool,
    others: Vec<Column>,
}

impl Columns {
    /// Leaves out what tells least, until names have room.
    fn for_width(options: &Options, by: By) -> Self {
        /// Characters of names, beside more figures, and beside the fewest.
        const NAME: usize = 40;
        const SHORT_NAME: usize = 34;
        let [first, second, third] = Column::all(options.sort);
        let has_total = by.has_total() && first.total_of(&Row::default()).is_some();
        let mut columns = Self {
            bar: false,
            first,
            total: has_total,
            others: vec![second, third],
        };
        let has_room = |it: &Self, name: usize| {
            let figures = 7 + Column::WIDTH * (1 + it.others.len()) + 1;
            let extra = [(it.bar, BAR + 1), (it.total, 11)];
            let extra = extra.iter().filter(|(is_there, _)| *is_there);
            let extra: usize = extra.map(|(_, width)| width).sum();
            figures + extra + name <= options.width.columns()
        };
        if !has_room(&columns, NAME) {
            columns.others.truncate(1);
        }
        columns.total &= has_room(&columns, SHORT_NAME);
        columns.bar = options.colour;
        columns.bar &= has_room(&columns, NAME);
        columns
    }

    fn head(&self, by: By) -> String {
        let mut head = format!("{:>6} ", "self");
        if self.bar {
            head += &" ".repeat(BAR + 1);
        }
        head += &format!("{:>22} ", self.first.name());
        if self.total {
            head += &format!("{:>10} ", "total");
        }
        for column in &self.others {
            head += &format!("{:>22} ", column.name());
        }
        head + &format!(" {}", by.name())
    }
}

/// Prints the rows of a table that has some, as wide as the terminal.
pub(super) fn write(
    by: By,
    table: &Table,
    options: &Options,
    out: &mut dyn Write,
) -> io::Result<()> {
    let columns = Columns::for_width(options, by);
    writeln!(out, "{}", paint(&columns.head(by), "1", options.colour))?;
    let whole = options.sort.of(&table.selected).value();
    // What a share of a sum that may be negative would be, nobody knows.
    let largest = columns.first.of(&table.rows[0]).value();
    let mut lines: Vec<String> = Vec::with_capacity(table.rows.len());
    for row in &table.rows {
        let figure = columns.first.of(row).value();
        let share = match options.sort {
            Sort::Growth => units::percent(figure, largest),
            _ => units::percent(figure, whole),
        };
        let mut line = format!("{share:>6} ");
        if columns.bar {
            line += &(units::bar(figure, largest, BAR) + " ");
        }
        line += &format!("{:>22} ", columns.first.text(row));
        if let (true, Some(total)) = (columns.total, columns.first.total_of(row)) {
            line += &format!("{:>10} ", units::bytes(total.value()));
        }
        for column in &columns.others {
            line += &format!("{:>22} ", column.text(row));
        }
        lines.push(line + " ");
    }
    let used = lines.iter().map(|line| line.chars().count()).max();
    let room = options.width.room(used.unwrap_or(0));
    let names = shorten_all(&describe(by, &table.rows), room);
    for ((row, line), name) in table.rows.iter().zip(lines).zip(names) {
        writeln!(out, "{line}{name}")?;
        for function in row.stack.iter().skip(row.charged + 1) {
            const INDENT: usize = 30;
            let room = options.width.room(INDENT);
            writeln!(out, "{:INDENT$}{}", "", shorten(function, room))?;
        }
    }
    if table.row_count > table.rows.len() {
        let more = table.row_count - table.rows.len();
        writeln!(out, "... {more} more; --top N shows more")?;
    }
    Ok(())
}

/// What rows are called.
fn describe(by: By, rows: &[Row]) -> Vec<String> {
    let paths = match by {
        By::Line => distinct_paths(rows.iter().filter_map(|row| row.file.as_deref())),
        _ => HashMap::new(),
    };
    let name = |row: &Row| match (by, &row.file) {
        (By::Line, Some(file)) => {
            let path = paths.get(file.as_str()).copied().unwrap_or(file);
            format!("{path}:{} {}", row.line, row.name)
        }
        (By::Function | By::Site, _) if !row.module.is_empty() && !row.name.contains('+') => {
            format!("{} [{}]", row.label(), row.module)
        }
        (By::Type, _) if !row.module.is_empty() => format!("{} [{}]", row.name, row.module),
        _ => row.name.clone(),
    };
    rows.iter().map(name).collect()
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
            let columns = Columns::for_width(&options(width), By::Function);
            (columns.bar, columns.total, columns.others.len())
        };
        assert_eq!(columns(140), (true, true, 2));
        assert_eq!(columns(130), (false, true, 2));
        assert_eq!(columns(120), (true, true, 1));
        assert_eq!(columns(100), (false, true, 1));
        assert_eq!(columns(80), (false, false, 1));
    }

    #[test]
    fn the_column_that_rows_are_ordered_by_comes_first() {
        for (sort, head) in [
            (Sort::Peak, "self at peak total allocated function"),
            (Sort::Live, "self live total allocated function"),
            (Sort::Allocated, "self allocated total live function"),
            (Sort::Growth, "self growth live allocated function"),
            (Sort::Count, "self count allocated live function"),
        ] {
            let options = Options {
                shape: Shape::Table(By::Function),
                sort,
                top: 20,
                selection: crate::Selection::default(),
                width: crate::Width::new(None),
                colour: false,
            };
            let words = Columns::for_width(&options, By::Function).head(By::Function);
            let words: Vec<&str> = words.split_whitespace().collect();
            assert_eq!(words.join(" "), head);
        }
    }
}
