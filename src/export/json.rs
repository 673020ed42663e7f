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

use allocsample_profile::{Frame, Module, Sample, StackId, Thread, Weights};
use serde::Serialize;

use crate::ExportError;
use crate::object::Object;
use crate::source::{Location, LocationIndex, Source, build_id_hex, thread_name};

pub(crate) fn write(source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
    let profile = source.profile;
    let process = &profile.process;
    let since_start = |time_ns: u64| source.since_start(time_ns);
    let sampling = if profile.is_periodic() {
        "periodic"
    } else {
        "poisson"
    };
    let mut object = Object::begin(out)?;
    object.entry("schema", "allocsample-profile/1")?;
    object.entry("program", source.program())?;
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
    object.rows("threads", source.threads.len(), |rows| {
        let threads = source.threads[rows].iter();
        threads.map(|thread| thread_row(thread, since_start))
    })?;
    object.rows("locations", source.locations.len(), |rows| {
        source.locations[rows].iter().map(location_row)
    })?;
    let nodes = &profile.stacks;
    object.rows("stacks", nodes.count() as usize, |rows| {
        rows.filter_map(|row| {
            // A profile's stacks have 32-bit numbers, from 1.
            let (parent, place) = nodes.parent_and_place(StackId(row as u32 + 1))?;
            Some(StackRow {
                parent: parent.0.checked_sub(1),
                location: place as LocationIndex,
            })
        })
    })?;
    object.rows("samples", source.samples.len(), |rows| {
        let mut weights = Weights::of(profile);
        let samples = source.samples.range(rows);
        samples.map(move |sample| sample_row(source, &sample, &mut weights))
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
    parent: Option<u32>,
    location: LocationIndex,
}

#[derive(Serialize)]
struct SampleRow {
    id: u64,
    time_ns: u64,
    thread: usize,
    address: u64,
    size: u64,
    stack: u32,
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

fn line_row(line: &Frame) -> LineRow<'_> {
    LineRow {
        function: &line.function,
        file: line.file.as_deref(),
        line: line.line,
    }
}

fn sample_row(source: &Source, sample: &Sample, weights: &mut Weights) -> SampleRow {
    let (bytes, objects) = weights.get(sample);
    let freed = sample.freed();
    SampleRow {
        id: sample.id.0,
        time_ns: source.since_start(sample.time_ns),
        thread: source.thread(sample.thread),
        address: sample.address,
        size: sample.size,
        // The empty stack has no row, and a sample's ends in a pseudo-frame at least.
        stack: sample.stack.0.saturating_sub(1),
        bytes: bytes.value(),
        objects: objects.value(),
        end: match freed {
            Some(_) => "freed",
            None if sample.is_live() => "live",
            None => "unknown",
        },
        freed_ns: freed.map(|freed| source.since_start(freed.time_ns)),
        carried: sample.is_carried(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use serde_json::Value;

    #[test]
    fn nothing_is_missing_and_indices_lead_somewhere() {
        let source = fixture::source();
        let mut out = Vec::new();
        write(&source, &mut out).unwrap();
        let document: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(document["schema"], "allocsample-profile/1");
        let rows = |table: &str| document[table].as_array().unwrap();
        assert_eq!(rows("samples").len(), source.samples.len());
        for (row, sample) in rows("samples").iter().zip(source.samples.iter()) {
            assert_eq!(row["bytes"], source.profile.bytes(&sample).value());
            assert_eq!(row["objects"], source.profile.objects(&sample).value());
            assert_eq!(row["end"] == "live", sample.is_live());
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
