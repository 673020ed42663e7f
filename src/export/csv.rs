//! One line for each sample, for spreadsheets and data frames.
//!
//! Columns: `sample,time_ns,thread,tid,size,bytes,objects,end,freed_ns,carried,stack`. Times count from the start of the
//! profile; `bytes` and `objects` are what the sample stands for: add those up. `end` is live, freed or unknown. `carried`
//! is 1 for a sample from before the file began: it counts among what is live, not among what was allocated. `stack` has
//! its functions outermost first, with ` ; ` between them. Quoted by RFC 4180.

use std::io::Write;

use crate::ExportError;
use crate::view::{End, View};

pub(crate) fn write(view: &View, out: &mut dyn Write) -> Result<(), ExportError> {
    writeln!(
        out,
        "sample,time_ns,thread,tid,size,bytes,objects,end,freed_ns,carried,stack"
    )?;
    let since_start = |time_ns: u64| time_ns.saturating_sub(view.about.start_ns);
    for sample in view.samples.iter() {
        let thread = &view.threads[sample.thread];
        let (end, freed_ns) = match sample.end {
            End::Live => ("live", String::new()),
            End::Freed(time_ns) => ("freed", since_start(time_ns).to_string()),
            End::Unknown => ("unknown", String::new()),
        };
        writeln!(
            out,
            "{},{},{},{},{},{},{},{end},{freed_ns},{},{}",
            sample.id,
            since_start(sample.time_ns),
            quoted(&thread.name),
            thread.tid,
            sample.size,
            sample.bytes,
            sample.objects,
            u8::from(sample.is_carried),
            quoted(&view.functions_of(sample.stack).join(" ; ")),
        )?;
    }
    Ok(())
}

/// In quotes, whatever is in it.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn every_sample_has_a_line_with_all_its_columns() {
        let view = fixture::view();
        let mut out = Vec::new();
        write(&view, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), view.samples.len() + 1);
        assert_eq!(
            lines[2],
            "2,20,\"worker\",4712,64,1499.6,2.5,freed,50,0,\"main ; outer ; inlined\""
        );
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
