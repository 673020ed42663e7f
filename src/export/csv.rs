//! One line for each sample, for spreadsheets and data frames.
//!
//! Columns: `sample,time_ns,thread,tid,size,bytes,objects,end,freed_ns,carried,stack`. Times count from the start of the
//! profile; `bytes` and `objects` are what the sample stands for: add those up. `end` is live, freed or unknown. `carried`
//! is 1 for a sample from before the file began: it counts among what is live, not among what was allocated. `stack` has
//! its functions outermost first, with ` ; ` between them. Quoted by RFC 4180.

use std::io::Write;

use crate::blocks;
use crate::view::{End, Sample, View, thread_name};
use crate::{ExportError, text};

pub(crate) fn write(view: &View, out: &mut dyn Write) -> Result<(), ExportError> {
    writeln!(
        out,
        "sample,time_ns,thread,tid,size,bytes,objects,end,freed_ns,carried,stack"
    )?;
    let names = Names::of(view);
    blocks::write(view.samples.len(), out, |rows, text| {
        let mut places = Vec::new();
        for sample in view.samples.range(rows) {
            names.put_sample(view, &sample, &mut places, text);
        }
    })?;
    Ok(())
}

/// What is in many lines, as it stands there.
struct Names {
    /// Of each thread: the name in quotes, and the tid.
    threads: Vec<String>,
    /// Of each location: its functions, outermost first.
    locations: Vec<String>,
}

impl Names {
    fn of(view: &View) -> Self {
        let functions = |location: &crate::view::Location| {
            let lines = location.lines.iter().rev();
            let names: Vec<String> = lines.map(|line| doubled(&line.function)).collect();
            names.join(SEPARATOR)
        };
        let threads = view.threads.iter();
        Self {
            threads: threads
                .map(|thread| format!("\"{}\",{}", doubled(&thread_name(thread)), thread.tid))
                .collect(),
            locations: view.locations.iter().map(functions).collect(),
        }
    }

    /// A line. `places` is for working.
    fn put_sample(
        &self,
        view: &View,
        sample: &Sample,
        places: &mut Vec<usize>,
        text: &mut Vec<u8>,
    ) {
        let since_start = |time_ns: u64| view.since_start(time_ns);
        let comma = |text: &mut Vec<u8>| text.push(b',');
        text::put(sample.id, text);
        comma(text);
        text::put(since_start(sample.time_ns), text);
        comma(text);
        text.extend_from_slice(self.threads[sample.thread].as_bytes());
        comma(text);
        text::put(sample.size, text);
        comma(text);
        text::put_f64(sample.bytes, text);
        comma(text);
        text::put_f64(sample.objects, text);
        match sample.end {
            End::Live => text.extend_from_slice(b",live,,"),
            End::Unknown => text.extend_from_slice(b",unknown,,"),
            End::Freed(time_ns) => {
                text.extend_from_slice(b",freed,");
                text::put(since_start(time_ns), text);
                comma(text);
            }
        }
        text.push(b'0' + u8::from(sample.is_carried));
        text.extend_from_slice(b",\"");
        places.clear();
        let stacks = view.stacks_of(sample.stack);
        places.extend(stacks.map(|stack| view.stacks.get(stack).location));
        for (number, &place) in places.iter().rev().enumerate() {
            if number > 0 {
                text.extend_from_slice(SEPARATOR.as_bytes());
            }
            text.extend_from_slice(self.locations[place].as_bytes());
        }
        text.extend_from_slice(b"\"\n");
    }
}

/// Between two functions of a stack.
const SEPARATOR: &str = " ; ";

/// As it stands between quotes.
fn doubled(text: &str) -> String {
    text.replace('"', "\"\"")
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
        assert_eq!(doubled("a\"b"), "a\"\"b");
    }
}
