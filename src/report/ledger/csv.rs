//! Ledgers as comma-separated values: a line for each row of each moment, and, where malloc's heap was walked, one for each
//! reason why it keeps memory and for each site that holds some.

use std::io::{self, Write};

use super::Ledger;
use crate::csv::{Lines, number, optional};

/// Prints all rows; the columns are the keys of the JSON. Rows of the account `held_by` are no part of the sum: they divide the
/// row of memory that blocks hold.
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
            let account = row.account.name();
            for (reason, bytes) in &row.reasons {
                let name = format!("malloc: {}", reason.describe());
                let bytes = number(*bytes);
                lines.line([moment, account, &name, &bytes, &bytes, ""])?;
            }
            if row.reasons.is_empty() {
                lines.line([
                    moment,
                    account,
                    &row.name,
                    &number(row.resident_bytes),
                    &number(row.anonymous_bytes),
                    &optional(row.stderr_bytes),
                ])?;
            }
        }
        for holder in ledger.held.iter().flat_map(|held| &held.holders) {
            let bytes = number(holder.free_bytes.value());
            let error = optional(holder.free_bytes.stderr());
            lines.line([moment, "held_by", &holder.name(), &bytes, &bytes, &error])?;
        }
    }
    lines.finish()
}
