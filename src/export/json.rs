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
//! what was allocated. Rows are made as they are written, without a second copy in memory.

use std::borrow::Cow;
use std::io::Write;

use allocsample_profile::{Module, Thread};
use serde::Serialize;

use crate::ExportError;
use crate::object::Object;
use crate::view::{
    End, Line, Location, Sample, Stack, StackIndex, View, build_id_hex, thread_name,
};

pub(crate) fn write(view: &View, out: &mut dyn Write) -> Result<(), ExportError> {
    let profile = view.profile;
    let process = &profile.process;
    let since_start = |time_ns: u64| view.since_start(time_ns);
    let sampling = if profile.is_periodic() {
        "periodic"
    } else {
        "poisson"
    };
    let mut object = Object::begin(out)?;
    object.entry("schema", "allocsample-profile/1")?;
    object.entry("program", view.program())?;
    object.entry("command", &process.command_line)?;
    object.entry("pid", &process.pid)?;
    object.entry("start_unix_ns", &process.start_wall_ns)?;
    object.entry("duration_ns", &since_start(process.end_ns))?;
    object.entry("interval_bytes", &profile.interval_bytes())?;
    object.entry("sampling", sampling)?;
    object.entry("complete", &profile.is_complete())?;
    let (lost_samples, lost_bytes) = profile.lost.samples();
    object.entry("lost_samples", &lost_samples)?;
    object.entry("lost_bytes", &lost_bytes)?;
    object.entry("allocated_bytes_exact", &profile.exact_bytes())?;
    object.rows("modules", profile.modules.len(), |rows| {
        profile.modules[rows].iter().map(module_row)
    })?;
    object.rows("threads", view.threads.len(), |rows| {
        let threads = view.threads[rows].iter();
        threads.map(|thread| thread_row(thread, since_start))
    })?;
    object.rows("locations", view.locations.len(), |rows| {
        view.locations[rows].iter().map(location_row)
    })?;
    object.rows("stacks", view.stacks.len(), |rows| {
        rows.map(|index| stack_row(view.stacks.get(index)))
    })?;
    object.rows("samples", view.samples.len(), |rows| {
        let samples = view.samples.range(rows);
        samples.map(|sample| sample_row(&sample, since_start))
    })?;
    object.rows("resident", profile.resident_bytes.len(), |rows| {
        let resident = profile.resident_bytes[rows].iter();
        resident.map(|&(time_ns, bytes)| ResidentRow {
            time_ns: since_start(time_ns),
            bytes,
        })
    })?;
    object.end()?;
    Ok(writeln!(out)?)
}

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
    name: Cow<'a, str>,
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

fn module_row(module: &Module) -> ModuleRow<'_> {
    ModuleRow {
        path: &module.path,
        build_id: build_id_hex(module),
        start: module.start,
        end: module.end,
        bias: module.bias,
    }
}

fn thread_row(thread: &Thread, since_start: impl Fn(u64) -> u64) -> ThreadRow<'_> {
    ThreadRow {
        name: thread_name(thread),
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
