//! The whole profile as one JSON object, for scripts.
//!
//! ```text
//! { "schema": "allocsample-profile/1",
//!   "program", "command": [..], "pid", "start_unix_ns", "duration_ns", "interval_bytes",
//!   "sampling": "poisson" | "periodic", "complete", "lost_samples", "lost_bytes", "allocated_bytes_exact",
//!   "modules":   [{ "path", "build_id", "start", "end", "bias" }],
//!   "threads":   [{ "name", "tid", "start_ns", "end_ns" | null }],
//!   "locations": [{ "module" | null, "address" | null, "lines": [{ "function", "file" | null, "line" }] }],
//!   "stacks":    [{ "parent" | null, "location" }],
//!   "samples":   [{ "id", "time_ns", "thread", "address", "size", "stack", "bytes", "objects",
//!                   "end": "live" | "freed" | "unknown", "freed_ns" | null, "carried" }],
//!   "resident":  [{ "time_ns", "bytes" }] }
//! ```
//! Times count from the start of the profile. "module", "thread", "location", "parent" and "stack" are indices into
//! the arrays of these names. A stack is a location on top of its parent; the lines of a location begin with the
//! innermost inlined call; "line" is 0 if unknown. "size" is what was asked for, "bytes" and "objects" what the sample
//! stands for: add those up. A "carried" sample is from before the file began: it counts among what is live, not among
//! what was allocated. The object is written as it is read, without a second copy in memory.

use std::io::Write;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::ExportError;
use crate::view::{End, Line, Location, Module, Sample, Stack, StackIndex, Thread, View};

pub(crate) fn write(view: &View, out: &mut dyn Write) -> Result<(), ExportError> {
    serde_json::to_writer(&mut *out, &Document(view))?;
    writeln!(out)?;
    Ok(())
}

struct Document<'a>(&'a View<'a>);

#[derive(Serialize)]
struct ModuleRow<'a> {
    path: &'a str,
    build_id: String,
    start: u64,
    end: u64,
    bias: u64,
}

#[derive(Serialize)]
struct ThreadRow<'a> {
    name: &'a str,
    tid: u32,
    start_ns: u64,
    end_ns: Option<u64>,
}

#[derive(Serialize)]
struct LocationRow<'a> {
    module: Option<usize>,
    address: Option<u64>,
    lines: Vec<LineRow<'a>>,
}

#[derive(Serialize)]
struct LineRow<'a> {
    function: &'a str,
    file: Option<&'a str>,
    line: u32,
}

#[derive(Serialize)]
struct StackRow {
    parent: Option<StackIndex>,
    location: usize,
}

#[derive(Serialize)]
struct SampleRow {
    id: u64,
    time_ns: u64,
    thread: usize,
    address: u64,
    size: u64,
    stack: StackIndex,
    bytes: f64,
    objects: f64,
    end: &'static str,
    freed_ns: Option<u64>,
    carried: bool,
}

#[derive(Serialize)]
struct ResidentRow {
    time_ns: u64,
    bytes: u64,
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Document(view) = self;
        let about = &view.about;
        let since_start = |time_ns: u64| time_ns.saturating_sub(about.start_ns);
        let sampling = if about.is_periodic {
            "periodic"
        } else {
            "poisson"
        };
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("schema", "allocsample-profile/1")?;
        map.serialize_entry("program", &about.program)?;
        map.serialize_entry("command", &about.command)?;
        map.serialize_entry("pid", &about.pid)?;
        map.serialize_entry("start_unix_ns", &about.start_wall_ns)?;
        map.serialize_entry("duration_ns", &since_start(about.end_ns))?;
        map.serialize_entry("interval_bytes", &about.interval_bytes)?;
        map.serialize_entry("sampling", sampling)?;
        map.serialize_entry("complete", &about.is_complete)?;
        map.serialize_entry("lost_samples", &about.lost_samples)?;
        map.serialize_entry("lost_bytes", &about.lost_bytes)?;
        map.serialize_entry("allocated_bytes_exact", &about.exact_bytes)?;
        map.serialize_entry("modules", &Rows(|| view.modules.iter().map(module_row)))?;
        map.serialize_entry(
            "threads",
            &Rows(|| view.threads.iter().map(|it| thread_row(it, since_start))),
        )?;
        map.serialize_entry(
            "locations",
            &Rows(|| view.locations.iter().map(location_row)),
        )?;
        map.serialize_entry("stacks", &Rows(|| view.stacks.iter().map(stack_row)))?;
        map.serialize_entry(
            "samples",
            &Rows(|| view.samples.iter().map(|it| sample_row(&it, since_start))),
        )?;
        let resident_row = |&(time_ns, bytes): &(u64, u64)| ResidentRow {
            time_ns: since_start(time_ns),
            bytes,
        };
        map.serialize_entry("resident", &Rows(|| view.resident.iter().map(resident_row)))?;
        map.end()
    }
}

/// A table whose rows are made one at a time.
struct Rows<F>(F);

impl<R: Serialize, I: ExactSizeIterator<Item = R>, F: Fn() -> I> Serialize for Rows<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Rows(rows) = self;
        serializer.collect_seq(rows())
    }
}

fn module_row(module: &Module) -> ModuleRow<'_> {
    ModuleRow {
        path: &module.path,
        build_id: module.build_id_hex(),
        start: module.start,
        end: module.end,
        bias: module.bias,
    }
}

fn thread_row(thread: &Thread, since_start: impl Fn(u64) -> u64) -> ThreadRow<'_> {
    ThreadRow {
        name: &thread.name,
        tid: thread.tid,
        start_ns: since_start(thread.start_ns),
        end_ns: thread.end_ns.map(since_start),
    }
}

fn location_row(location: &Location) -> LocationRow<'_> {
    LocationRow {
        module: location.module,
        address: location.address,
        lines: location.lines.iter().map(line_row).collect(),
    }
}

fn line_row(line: &Line) -> LineRow<'_> {
    LineRow {
        function: &line.function,
        file: line.file.as_deref(),
        line: line.line,
    }
}

fn stack_row(stack: Stack) -> StackRow {
    StackRow {
        parent: stack.parent,
        location: stack.location,
    }
}

fn sample_row(sample: &Sample, since_start: impl Fn(u64) -> u64) -> SampleRow {
    let (end, freed_ns) = match sample.end {
        End::Live => ("live", None),
        End::Freed(time_ns) => ("freed", Some(since_start(time_ns))),
        End::Unknown => ("unknown", None),
    };
    SampleRow {
        id: sample.id,
        time_ns: since_start(sample.time_ns),
        thread: sample.thread,
        address: sample.address,
        size: sample.size,
        stack: sample.stack,
        bytes: sample.bytes,
        objects: sample.objects,
        end,
        freed_ns,
        carried: sample.is_carried,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use serde_json::Value;

    #[test]
    fn nothing_is_missing_and_indices_lead_somewhere() {
        let view = fixture::view();
        let mut out = Vec::new();
        write(&view, &mut out).unwrap();
        let document: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(document["schema"], "allocsample-profile/1");
        let rows = |table: &str| document[table].as_array().unwrap();
        assert_eq!(rows("samples").len(), view.samples.len());
        for (row, sample) in rows("samples").iter().zip(view.samples.iter()) {
            assert_eq!(row["bytes"], sample.bytes);
            assert_eq!(row["objects"], sample.objects);
            assert_eq!(row["end"] == "live", sample.end == End::Live);
            assert_eq!(row["end"] == "freed", row["freed_ns"].is_u64());
        }
        for (table, column, of) in [
            ("samples", "stack", "stacks"),
            ("samples", "thread", "threads"),
            ("stacks", "parent", "stacks"),
            ("stacks", "location", "locations"),
            ("locations", "module", "modules"),
        ] {
            for row in rows(table) {
                let is_index = |index: u64| (index as usize) < rows(of).len();
                let value = &row[column];
                assert!(
                    value.is_null() || value.as_u64().is_some_and(is_index),
                    "{row}"
                );
            }
        }
    }
}
