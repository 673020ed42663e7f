//! The comparison as comma-separated values: a line for each row, largest differences first, and then one for each row of the
//! ledger, whose account is in the last column.

use std::io::{self, Write};

use allocsample_report::csv::{Lines, number, optional};

use crate::{Diff, MemoryChange, MemoryRow};

/// Prints all rows, those of memory if it was compared.
pub fn diff(diff: &Diff, memory: Option<&MemoryChange>, out: &mut dyn Write) -> io::Result<()> {
    let head = [
        "name",
        "module",
        "file",
        "line",
        "stack",
        "before",
        "before_stderr",
        "after",
        "after_stderr",
        "difference",
        "z",
        "p_value",
        "adjusted_p_value",
        "significant",
        "detectable",
        "account",
    ];
    let mut lines = Lines::new(out);
    lines.line(head)?;
    for RowFields(fields) in diff.rows.iter().map(RowFields::of) {
        lines.line(fields)?;
    }
    if let Some(memory) = memory {
        for row in &memory.rows {
            let is_significant = memory.is_material(row) && !row.is_noise();
            let RowFields(fields) = RowFields::of_ledger(row, is_significant);
            lines.line(fields)?;
        }
    }
    lines.finish()
}

struct RowFields([String; 16]);

impl RowFields {
    fn of(each: &crate::RowChange) -> Self {
        let (row, change) = (&each.row, &each.change);
        let file_line = (row.line > 0).then(|| row.line.to_string());
        Self([
            row.name.clone(),
            row.module.clone(),
            row.file.clone().unwrap_or_default(),
            file_line.unwrap_or_default(),
            row.stack.join(";"),
            number(change.before.value()),
            optional(change.before.stderr()),
            number(change.after.value()),
            optional(change.after.stderr()),
            number(change.difference()),
            optional(change.z),
            optional(change.p_value),
            optional(each.adjusted_p_value),
            each.is_significant().to_string(),
            optional(change.detectable),
            String::new(),
        ])
    }

    fn of_ledger(row: &MemoryRow, is_significant: bool) -> Self {
        let (change, none) = (&row.change, String::new);
        Self([
            row.name.clone(),
            none(),
            none(),
            none(),
            none(),
            number(change.before.value()),
            optional(change.before.stderr()),
            number(change.after.value()),
            optional(change.after.stderr()),
            number(change.difference()),
            optional(change.z),
            optional(change.p_value),
            none(),
            is_significant.to_string(),
            optional(change.detectable),
            row.account.name().to_owned(),
        ])
    }
}
