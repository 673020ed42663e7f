//! What a query answers, printed as a table, JSON or CSV.

use std::io::{self, Write};

use allocsample_profile::readable;
use allocsample_report::csv;
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
            Cell::Real(number) => shown(*number),
            other => readable(other.text().as_bytes()).into_owned(),
        }
    }

    fn is_number(&self) -> bool {
        !matches!(self, Cell::Text(_))
    }
}

/// A number for people, with one decimal, or as many as show four digits of a small one.
fn shown(number: f64) -> String {
    let size = number.abs();
    if size == 0.0 || size >= 100.0 || !number.is_finite() {
        return format!("{number:.1}");
    }
    if size < 1e-6 {
        return format!("{number:.3e}");
    }
    let decimals = (3.0 - size.log10().floor()).max(1.0) as usize;
    let text = format!("{number:.decimals$}");
    match text.trim_end_matches('0') {
        whole if whole.ends_with('.') => format!("{whole}0"),
        short => short.to_owned(),
    }
}

/// Names as keys of an object: one that comes again has its number behind it.
fn keys(columns: &[String]) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for column in columns {
        let numbered = (2..).map(|number| format!("{column}_{number}"));
        let mut names = std::iter::once(column.clone()).chain(numbered);
        let free = names.find(|name| !keys.contains(name));
        keys.push(free.expect("there are more names than columns"));
    }
    keys
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
        let keys = keys(&self.columns);
        for (position, row) in self.rows.iter().enumerate() {
            let cells = keys.iter().cloned();
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
        let mut lines = csv::Lines::new(out);
        lines.line(&self.columns)?;
        for row in &self.rows {
            lines.line(row.iter().map(Cell::text))?;
        }
        lines.finish()
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
        let expected = "function  bytes\na,\"b\"\u{fffd}     1.25\n              7\n";
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

    #[test]
    fn small_numbers_keep_four_digits() {
        let texts = [0.0, 0.001, -0.5, 1.0, 12.3456, 123.456, 1e9, 2.5e-9].map(shown);
        let expected = [
            "0.0",
            "0.001",
            "-0.5",
            "1.0",
            "12.35",
            "123.5",
            "1000000000.0",
            "2.500e-9",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn columns_of_one_name_are_all_in_the_json() {
        let mut answer = Answer::new(["a", "a", "a_2", "a"].map(String::from).to_vec());
        answer.push((1..=4).map(Cell::Integer).collect());
        let mut out = Vec::new();
        answer.write(Format::Json, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "[\n{\"a\":1,\"a_2\":2,\"a_2_2\":3,\"a_3\":4}\n]\n");
    }
}
