//! What a query answers, printed as a table, JSON or CSV.

use std::io::{self, Write};

use allocsample_profile::readable;
use serde_json::{Map, json};

/// How an answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Format {
    /// Columns for people.
    #[default]
    Table,
    /// An array of objects.
    Json,
    /// Comma-separated values with a header.
    Csv,
}

/// Rows under named columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
    held_bytes: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Cell::Null => String::new(),
            Cell::Integer(number) => number.to_string(),
            Cell::Real(number) => number.to_string(),
            Cell::Text(text) => text.clone(),
        }
    }

    fn json(&self) -> serde_json::Value {
        match self {
            Cell::Null => json!(null),
            Cell::Integer(number) => json!(number),
            Cell::Real(number) => json!(number),
            Cell::Text(text) => json!(text),
        }
    }

    /// For people: no line break or control character of a name reaches the terminal.
    fn shown(&self) -> String {
        match self {
            Cell::Real(number) => format!("{number:.1}"),
            other => readable(other.text().as_bytes()).into_owned(),
        }
    }

    fn is_number(&self) -> bool {
        !matches!(self, Cell::Text(_))
    }
}

impl Answer {
    pub(crate) fn new(columns: Vec<String>) -> Self {
        Self {
            columns,
            rows: Vec::new(),
            held_bytes: 0,
        }
    }

    pub(crate) fn push(&mut self, row: Vec<Cell>) {
        let texts = row.iter().map(|cell| match cell {
            Cell::Text(text) => text.len(),
            _ => 0,
        });
        self.held_bytes += size_of_val(&row) + size_of_val(&*row) + texts.sum::<usize>();
        self.rows.push(row);
    }

    /// Bytes of memory that its rows take.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// How many rows there are.
    pub fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// A number in the answer; `None` if there is none at that place.
    pub fn number(&self, row: usize, column: usize) -> Option<f64> {
        match self.rows.get(row)?.get(column)? {
            Cell::Integer(number) => Some(*number as f64),
            Cell::Real(number) => Some(*number),
            Cell::Null | Cell::Text(_) => None,
        }
    }

    /// Prints it.
    pub fn write(&self, format: Format, out: &mut dyn Write) -> io::Result<()> {
        match format {
            Format::Table => self.write_table(out),
            Format::Json => self.write_json(out),
            Format::Csv => self.write_csv(out),
        }
    }

    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let shown: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| row.iter().map(Cell::shown).collect())
            .collect();
        let width = |column: usize| {
            let cells = shown.iter().map(|row| row[column].chars().count());
            cells
                .chain([self.columns[column].chars().count()])
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let is_number: Vec<bool> = (0..self.columns.len())
            .map(|column| self.rows.iter().all(|row| row[column].is_number()))
            .collect();
        let line = |cells: &[String]| {
            let cells: Vec<String> = (0..cells.len())
                .map(|column| {
                    let (cell, width) = (&cells[column], widths[column]);
                    if is_number[column] {
                        format!("{cell:>width$}")
                    } else {
                        format!("{cell:<width$}")
                    }
                })
                .collect();
            cells.join("  ").trim_end().to_owned()
        };
        writeln!(out, "{}", line(&self.columns))?;
        for row in &shown {
            writeln!(out, "{}", line(row))?;
        }
        Ok(())
    }

    fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "[")?;
        for (position, row) in self.rows.iter().enumerate() {
            let cells = self.columns.iter().cloned();
            let object: Map<_, _> = cells.zip(row.iter().map(Cell::json)).collect();
            serde_json::to_writer(&mut *out, &object)?;
            let comma = if position + 1 < self.rows.len() {
                ","
            } else {
                ""
            };
            writeln!(out, "{comma}")?;
        }
        writeln!(out, "]")
    }

    fn write_csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut writer = csv::Writer::from_writer(out);
        writer.write_record(&self.columns).map_err(io_error)?;
        for row in &self.rows {
            writer
                .write_record(row.iter().map(Cell::text))
                .map_err(io_error)?;
        }
        writer.flush()
    }
}

/// What fails is the writer; its kind is kept, a broken pipe for one.
fn io_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Answer {
        let mut answer = Answer::new(vec!["function".into(), "bytes".into()]);
        answer.push(vec![Cell::Text("a,\"b\"\x1b".into()), Cell::Real(1.25)]);
        answer.push(vec![Cell::Null, Cell::Integer(7)]);
        answer
    }

    fn printed(format: Format) -> String {
        let mut out = Vec::new();
        answer().write(format, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn people_get_columns_and_no_control_characters() {
        let expected = "function  bytes\na,\"b\"\u{fffd}      1.2\n              7\n";
        assert_eq!(printed(Format::Table), expected);
    }

    #[test]
    fn scripts_get_every_digit_and_every_character() {
        let expected = "function,bytes\n\"a,\"\"b\"\"\x1b\",1.25\n,7\n";
        assert_eq!(printed(Format::Csv), expected);
        let rows: serde_json::Value = serde_json::from_str(&printed(Format::Json)).unwrap();
        assert_eq!(rows[0]["bytes"], 1.25);
        assert_eq!(rows[1]["function"], json!(null));
    }
}
