//! The comparison as comma-separated values: a line for each row, largest differences first.

use std::io::{self, Write};

use allocsample_report::csv::{Lines, number, optional};

use crate::Diff;

/// Prints all rows.
pub fn diff(diff: &Diff, out: &mut dyn Write) -> io::Result<()> {
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
    ];
    let mut lines = Lines::new(out);
    lines.line(head)?;
    for RowFields(fields) in diff.rows.iter().map(RowFields::of) {
        lines.line(fields)?;
    }
    lines.finish()
}

struct RowFields([String; 15]);

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
        ])
    }
}
