//! Ledgers as comma-separated values: a line for each row of each moment.

use std::io::{self, Write};

use super::Ledger;
use crate::csv::{Lines, number, optional};

/// Prints all rows; the columns are the keys of the JSON.
pub fn write_csv(peak: &Ledger, last: &Ledger, out: &mut dyn Write) -> io::Result<()> {
    let mut lines = Lines::new(out);
    lines.line([
        "moment",
        "account",
        "name",
        "resident_bytes",
        "anonymous_bytes",
        "stderr_bytes",
    ])?;
    for (moment, ledger) in [("peak", peak), ("last", last)] {
        for row in &ledger.rows {
            lines.line([
                moment,
                row.account.name(),
                &row.name,
                &number(row.resident_bytes),
                &number(row.anonymous_bytes),
                &optional(row.stderr_bytes),
            ])?;
        }
    }
    lines.finish()
}
