//! Comma-separated values, as RFC 4180 has them (lines end in a line feed).

use std::io::{self, Write};

use allocsample_sampling::Estimate;

use crate::lifetimes::{Answer, Lifetimes};
use crate::redundancy;
use crate::table::{By, Grouped};

/// Lines of fields on their way out. [`Lines::finish`] sends the last of them.
pub struct Lines<'a>(::csv::Writer<&'a mut dyn Write>);

impl<'a> Lines<'a> {
    /// No line yet.
    pub fn new(out: &'a mut dyn Write) -> Self {
        Self(::csv::Writer::from_writer(out))
    }

    /// Writes a line; fields are quoted where they must be.
    pub fn line<S: AsRef<[u8]>>(&mut self, fields: impl IntoIterator<Item = S>) -> io::Result<()> {
        self.0
            .write_record(fields)
            .map_err(|error| match error.into_kind() {
                // A broken pipe, for one, is recognised by its kind.
                ::csv::ErrorKind::Io(error) => error,
                other => io::Error::other(format!("{other:?}")),
            })
    }

    /// Sends what has not been sent yet.
    pub fn finish(mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A number, unrounded.
pub fn number(value: f64) -> String {
    value.to_string()
}

/// Empty where there is none.
pub fn optional(value: Option<f64>) -> String {
    value.map_or_else(String::new, number)
}

/// A table, with a line for each row.
pub fn table(table: &Grouped<'_>, out: &mut dyn Write) -> io::Result<()> {
    let by = table.by();
    let head = [by.name(), "module", "file", "line"];
    let figures = [
        "allocated_bytes",
        "total_allocated_bytes",
        "live_bytes",
        "total_live_bytes",
        "peak_live_bytes",
        "growth_bytes",
        "allocations",
    ];
    let figures = figures
        .into_iter()
        .flat_map(|name| ["", "_stderr", "_low95", "_high95"].map(|end| format!("{name}{end}")));
    let head = head.into_iter().map(str::to_owned).chain(figures);
    let mut lines = Lines::new(out);
    lines.line(head.chain(["samples".to_owned()]))?;
    for row in table.rows() {
        let name = match by {
            // Leaf first, as in the JSON.
            By::Site => row.stack.join(";"),
            _ => row.name.clone(),
        };
        let place = [
            name,
            row.module.clone(),
            row.file.clone().unwrap_or_default(),
            match row.line {
                0 => String::new(),
                line => line.to_string(),
            },
        ];
        let figures = [
            &row.self_allocated,
            &row.total_allocated,
            &row.self_live,
            &row.total_live,
            &row.self_peak,
            &row.self_growth,
            &row.allocations,
        ];
        let figures = figures.into_iter().flat_map(with_error);
        let samples = row.self_allocated.samples().to_string();
        lines.line(place.into_iter().chain(figures).chain([samples]))?;
    }
    lines.finish()
}

/// Lifetimes, with a line for each class of each group.
pub fn lifetimes(answer: &Answer, out: &mut dyn Write) -> io::Result<()> {
    let head = [
        "of",
        "name",
        "unit",
        "from",
        "to",
        "bytes",
        "bytes_stderr",
        "bytes_low95",
        "bytes_high95",
        "samples",
    ];
    let mut lines = Lines::new(out);
    lines.line(head)?;
    for (of, group) in answer.each() {
        lifetimes_of(of, group, &mut lines)?;
    }
    lines.finish()
}

fn lifetimes_of(of: &str, group: &Lifetimes, lines: &mut Lines<'_>) -> io::Result<()> {
    let mut print = |unit: &str, from: String, to: String, bytes: &Estimate| {
        let name = [of, &group.name, unit].map(str::to_owned);
        let samples = bytes.samples().to_string();
        let fields = name.into_iter().chain([from, to]).chain(with_error(bytes));
        lines.line(fields.chain([samples]))
    };
    for (unit, classes) in [
        ("s", &group.by_seconds),
        ("bytes", &group.by_bytes),
        ("collections", &group.by_collections),
    ] {
        for class in classes {
            let to = class.to.is_finite().then_some(class.to);
            print(unit, number(class.from), optional(to), &class.bytes)?;
        }
    }
    print("not freed", String::new(), String::new(), &group.not_freed)
}

/// Redundancy, with a line for each group.
pub fn redundancy(answer: &redundancy::Answer, out: &mut dyn Write) -> io::Result<()> {
    let head = [
        "of",
        "name",
        "hashed_samples",
        "distinct_samples",
        "distinct_share",
        "hashed_bytes",
        "repeated_bytes_at_least",
        "alike",
    ];
    let mut lines = Lines::new(out);
    lines.line(head)?;
    for (of, group) in answer.each() {
        let fields = [
            of.to_owned(),
            group.name.clone(),
            group.hashed.to_string(),
            group.distinct.to_string(),
            optional(group.distinct_share()),
            number(group.bytes),
            number(group.repeated_bytes),
            optional(group.alike),
        ];
        lines.line(fields)?;
    }
    lines.finish()
}

/// A figure with its standard error and its 95 % limits.
pub(crate) fn with_error(figure: &Estimate) -> [String; 4] {
    let limits = figure.limits_95();
    [
        number(figure.value()),
        optional(figure.stderr()),
        optional(limits.map(|limits| limits.low)),
        optional(limits.map(|limits| limits.high)),
    ]
}

/// The lower one of the 95 % limits.
pub fn low(figure: &Estimate) -> Option<f64> {
    figure.limits_95().map(|limits| limits.low)
}

/// The upper one.
pub fn high(figure: &Estimate) -> Option<f64> {
    figure.limits_95().map(|limits| limits.high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        let mut out = Vec::new();
        let mut lines = Lines::new(&mut out);
        lines
            .line(["plain", "a,b", "say \"x\"", "two\nlines", "", "1.5"])
            .unwrap();
        lines.finish().unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "plain,\"a,b\",\"say \"\"x\"\"\",\"two\nlines\",,1.5\n"
        );
        assert_eq!(optional(None), "");
        assert_eq!(optional(Some(0.1)), "0.1");
    }
}
