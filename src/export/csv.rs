//! One line for each sample, for spreadsheets and data frames.
//!
//! Columns: `sample,time_ns,thread,tid,size,bytes,objects,end,freed_ns,carried,stack`. Times count from the start of the
//! profile; `bytes` and `objects` are what the sample stands for: add those up. `end` is live, freed or unknown. `carried`
//! is 1 for a sample from before the file began: it counts among what is live, not among what was allocated. `stack` has
//! its functions outermost first, with ` ; ` between them. Quoted by RFC 4180.

use std::io::Write;

use allocsample_profile::{Sample, Weights};

use crate::blocks;
use crate::source::{LocationIndex, Source, thread_name};
use crate::{ExportError, text};

pub(crate) fn write(source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
    writeln!(
        out,
        "sample,time_ns,thread,tid,size,bytes,objects,end,freed_ns,carried,stack"
    )?;
    let names = Names::of(source);
    blocks::write(source.samples.len(), out, |rows, text| {
        let mut weights = Weights::of(source.profile);
        let mut places = Vec::new();
        for sample in source.samples.range(rows) {
            names.put_sample(source, &sample, &mut weights, &mut places, text);
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
    fn of(source: &Source) -> Self {
        let functions = |location: &crate::source::Location| {
            let lines = location.lines.iter().rev();
            let names: Vec<String> = lines.map(|line| doubled(&line.function)).collect();
            names.join(SEPARATOR)
        };
        let threads = source.threads.iter();
        Self {
            threads: threads
                .map(|thread| format!("\"{}\",{}", doubled(&thread_name(thread)), thread.tid))
                .collect(),
            locations: source.locations.iter().map(functions).collect(),
        }
    }

    /// A line. `places` is for working.
    fn put_sample(
        &self,
        source: &Source,
        sample: &Sample,
        weights: &mut Weights,
        places: &mut Vec<LocationIndex>,
        text: &mut Vec<u8>,
    ) {
        let since_start = |time_ns: u64| source.since_start(time_ns);
        let (bytes, objects) = weights.get(sample);
        let comma = |text: &mut Vec<u8>| text.push(b',');
        text::put(sample.id.0, text);
        comma(text);
        text::put(since_start(sample.time_ns), text);
        comma(text);
        text.extend_from_slice(self.threads[source.thread(sample.thread)].as_bytes());
        comma(text);
        text::put(sample.size, text);
        comma(text);
        text::put_f64(bytes.value(), text);
        comma(text);
        text::put_f64(objects.value(), text);
        match sample.freed() {
            Some(freed) => {
                text.extend_from_slice(b",freed,");
                text::put(since_start(freed.time_ns), text);
                comma(text);
            }
            None if sample.is_live() => text.extend_from_slice(b",live,,"),
            None => text.extend_from_slice(b",unknown,,"),
        }
        text.push(b'0' + u8::from(sample.is_carried()));
        text.extend_from_slice(b",\"");
        places.clear();
        places.extend(source.locations_of(sample.stack));
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
        let source = fixture::source();
        let (bytes, objects) = Weights::of(source.profile).get(&source.samples.at(1));
        let (bytes, objects) = (bytes.value(), objects.value());
        let mut out = Vec::new();
        write(&source, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), source.samples.len() + 1);
        assert_eq!(
            lines[2],
            format!(
                "2,20,\"worker\",4712,1000,{bytes},{objects},freed,50,0,\"main ; outer ; inlined\""
            )
        );
        assert_eq!(doubled("a\"b"), "a\"\"b");
    }
}
