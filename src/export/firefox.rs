//! The Firefox Profiler's processed profile.
//!
//! ```text
//! thread 0  the process: one row for each sampled allocation and one for its free, weighted, in the order of time
//!           ("Allocated", "Retained" and "Deallocated Memory" in the call tree's data source)
//! thread n  a thread of the program: its allocations as samples weighted in bytes, which draws its track
//! counters  estimated live bytes, resident set
//! ```
//! The viewer matches frees with allocations inside one thread's table, by a number that must be an exact JSON number:
//! that is why all rows are on thread 0, whoever freed, and why the "address" is the number of the sample. The crate
//! that makes the tables knows nothing of lines, inlined calls and libraries without addresses; `tables` puts them in.

mod counters;
mod object;
mod tables;

use std::collections::HashMap;
use std::io::Write;
use std::time::Duration;

use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, ProcessHandle, Profile,
    ReferenceTimestamp, SamplingInterval, StackHandle, ThreadHandle, Timestamp, WeightType,
};
use object::{Object, Part};
use serde_json::{Value, json};

use crate::ExportError;
use crate::view::{End, LocationIndex, Rounding, StackIndex, View, rounded};

/// Threads that are shown without being asked for, besides the process: those that allocated most.
const SHOWN_THREADS: usize = 10;

pub(crate) fn write(view: &View, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut builder = Builder::new(view);
    builder.allocations();
    builder.threads();
    let counters = counters::add(view, &mut builder.profile, builder.process);
    let text = serde_json::to_string(&builder.profile)?;
    drop(builder);
    let mut document = Object::parse(&text)?;
    document.set("libs", Part::Value(tables::libraries(view)));
    let mut threads = document.objects("threads")?;
    for thread in &mut threads {
        tables::fill(view, thread)?;
    }
    document.set("threads", Part::Array(threads));
    let mut documents = document.objects("counters")?;
    counters::describe(&mut documents, &counters);
    document.set("counters", Part::Array(documents));
    let mut meta = document.value("meta")?;
    describe(view, &mut meta);
    document.set("meta", Part::Value(meta));
    serde_json::to_writer(out, &document)?;
    Ok(())
}

/// Time since the start of the profile.
fn timestamp(view: &View, time_ns: u64) -> Timestamp {
    Timestamp::from_nanos_since_reference(time_ns.saturating_sub(view.about.start_ns))
}

struct Builder<'a> {
    view: &'a View,
    profile: Profile,
    process: ProcessHandle,
    /// Where the allocations and frees are.
    whole: ThreadHandle,
    categories: Categories,
    stacks: HashMap<(ThreadHandle, StackIndex), StackHandle>,
}

/// What the colours of frames tell.
struct Categories {
    program: CategoryHandle,
    library: CategoryHandle,
    generated: CategoryHandle,
}

impl<'a> Builder<'a> {
    fn new(view: &'a View) -> Self {
        let about = &view.about;
        let start = Duration::from_nanos(about.start_wall_ns);
        let mut profile = Profile::new(
            &about.program,
            ReferenceTimestamp::from_duration_since_unix_epoch(start),
            SamplingInterval::from_millis(1),
        );
        // Names are in the profile or they are nowhere: the viewer has no server to ask.
        profile.set_symbolicated(true);
        profile.set_os_name("Linux");
        let categories = Categories {
            program: profile.add_category("Program", CategoryColor::Blue),
            library: profile.add_category("Library", CategoryColor::Green),
            generated: profile.add_category("Code without a module", CategoryColor::Orange),
        };
        let zero = Timestamp::from_nanos_since_reference(0);
        let process = profile.add_process(&about.program, about.pid, zero);
        profile.set_process_end_time(process, timestamp(view, about.end_ns));
        // No thread of the program, so that none of its numbers is taken.
        let whole = profile.add_thread(process, 0, zero, true);
        profile.set_thread_end_time(whole, timestamp(view, about.end_ns));
        profile.add_initial_visible_thread(whole);
        profile.add_initial_selected_thread(whole);
        Self {
            view,
            profile,
            process,
            whole,
            categories,
            stacks: HashMap::new(),
        }
    }

    /// Rows of allocations and frees, in the order of time.
    fn allocations(&mut self) {
        let mut rows = Vec::new();
        let mut rounding = Rounding::default();
        for (number, sample) in self.view.samples.iter().enumerate() {
            let weight = rounding.next(sample.bytes);
            // An allocation of 0 bytes at interval 1: a row of weight 0 is neither allocation nor free.
            if weight == 0 {
                continue;
            }
            rows.push((sample.time_ns, number, weight));
            if let End::Freed(time_ns) = sample.end {
                // Clocks of two threads may disagree by a moment; a free must not come first.
                rows.push((time_ns.max(sample.time_ns), number, -weight));
            }
        }
        // Stable: an allocation stays before its own free.
        rows.sort_by_key(|&(time_ns, ..)| time_ns);
        for (time_ns, number, weight) in rows {
            let stack =
                (weight > 0).then(|| self.stack(self.whole, self.view.samples[number].stack));
            let time = timestamp(self.view, time_ns);
            self.profile
                .add_allocation_sample(self.whole, time, stack, number as u64, weight);
        }
    }

    /// A track for each thread that has samples.
    fn threads(&mut self) {
        let mut bytes = vec![0.0; self.view.threads.len()];
        for sample in &self.view.samples {
            bytes[sample.thread] += sample.bytes;
        }
        let mut handles = vec![None; bytes.len()];
        let mut heaviest_first: Vec<usize> = (0..bytes.len()).collect();
        heaviest_first.sort_by(|&a, &b| bytes[b].total_cmp(&bytes[a]));
        for (rank, thread) in heaviest_first.into_iter().enumerate() {
            if bytes[thread] == 0.0 {
                break;
            }
            let handle = self.thread(thread);
            if rank < SHOWN_THREADS {
                self.profile.add_initial_visible_thread(handle);
            }
            handles[thread] = Some(handle);
        }
        let mut rounding: Vec<Rounding> = bytes.iter().map(|_| Rounding::default()).collect();
        for sample in &self.view.samples {
            let Some(thread) = handles[sample.thread] else {
                continue;
            };
            let stack = Some(self.stack(thread, sample.stack));
            let time = timestamp(self.view, sample.time_ns);
            // Weights are 32-bit here: what is larger becomes several samples at the same moment.
            let mut weight = rounding[sample.thread].next(sample.bytes);
            while weight > 0 {
                let part = i32::try_from(weight).unwrap_or(i32::MAX);
                self.profile
                    .add_sample(thread, time, stack, CpuDelta::ZERO, part);
                weight -= i64::from(part);
            }
        }
    }

    fn thread(&mut self, number: usize) -> ThreadHandle {
        let thread = &self.view.threads[number];
        let start = timestamp(self.view, thread.start_ns);
        let handle = self
            .profile
            .add_thread(self.process, thread.tid, start, false);
        self.profile.set_thread_name(handle, &thread.name);
        let end_ns = thread.end_ns.unwrap_or(self.view.about.end_ns);
        self.profile
            .set_thread_end_time(handle, timestamp(self.view, end_ns));
        self.profile
            .set_thread_samples_weight_type(handle, WeightType::Bytes);
        handle
    }

    /// A stack in a thread's table. The tables are the threads' own: a stack of one means something else in another.
    fn stack(&mut self, thread: ThreadHandle, stack: StackIndex) -> StackHandle {
        let mut missing = Vec::new();
        let mut known = None;
        for stack in self.view.stacks_of(stack) {
            known = self.stacks.get(&(thread, stack)).copied();
            if known.is_some() {
                break;
            }
            missing.push(stack);
        }
        for stack in missing.into_iter().rev() {
            let location = self.view.stacks[stack].location;
            let lines = self.view.locations[location].lines.len();
            // Outermost first: callers are below their callees.
            for line in (0..lines).rev() {
                let frame = self.frame(location, line);
                let frame = self.profile.intern_frame(thread, frame);
                known = Some(self.profile.intern_stack(thread, known, frame));
            }
            if let Some(known) = known {
                self.stacks.insert((thread, stack), known);
            }
        }
        known.expect("a location has a line at least")
    }

    /// A stand-in that `tables` recognises by its name.
    fn frame(&mut self, location: LocationIndex, line: usize) -> FrameInfo {
        let category = match &self.view.locations[location] {
            place if place.address.is_none() => CategoryHandle::OTHER,
            place => match place.module {
                None => self.categories.generated,
                Some(module) if self.view.modules[module].is_program => self.categories.program,
                Some(_) => self.categories.library,
            },
        };
        let name = tables::name_of_stand_in(location, line);
        FrameInfo {
            frame: Frame::Label(self.profile.intern_string(&name)),
            category_pair: category.into(),
            flags: FrameFlags::empty(),
        }
    }
}

/// What the viewer's information panel and its title bar show.
fn describe(view: &View, meta: &mut Value) {
    let about = &view.about;
    let milliseconds = about.end_ns.saturating_sub(about.start_ns) as f64 / 1e6;
    meta["stackwalk"] = json!(1);
    // Fixes the range: a quiet end belongs to the profile.
    meta["profilingStartTime"] = json!(0);
    meta["profilingEndTime"] = json!(milliseconds);
    meta["arguments"] = json!(about.command.join(" "));
    meta["importedFrom"] = json!("allocsample");
    meta["keepProfileThreadOrder"] = json!(true);
    let allocated: f64 = view.samples.iter().map(|sample| sample.bytes).sum();
    let mut entries = vec![
        entry(
            "Mean bytes between samples",
            "bytes",
            json!(about.interval_bytes),
        ),
        entry("Samples", "integer", json!(view.samples.len())),
        entry("Allocated (estimate)", "bytes", json!(rounded(allocated))),
    ];
    if let Some(stderr) = about.allocated_stderr {
        entries.push(entry("Standard error", "bytes", json!(rounded(stderr))));
    }
    entries.push(entry(
        "Allocated (exact)",
        "bytes",
        json!(about.exact_bytes),
    ));
    entries.push(entry("Lost samples", "integer", json!(about.lost_samples)));
    entries.push(entry(
        "Bytes of lost samples",
        "bytes",
        json!(about.lost_bytes),
    ));
    if !about.is_complete {
        entries.push(entry(
            "Incomplete",
            "string",
            json!("the profile ends before the process did"),
        ));
    }
    meta["extra"] = json!([{ "label": "Allocation sampling", "entries": entries }]);
}

fn entry(label: &str, format: &str, value: Value) -> Value {
    json!({ "label": label, "format": format, "value": value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn document(view: &View) -> Value {
        let mut out = Vec::new();
        write(view, &mut out).unwrap();
        serde_json::from_slice(&out).unwrap()
    }

    fn column<'a>(table: &'a Value, name: &str) -> &'a [Value] {
        let column = table[name]
            .as_array()
            .unwrap_or_else(|| panic!("no column {name}"));
        assert_eq!(table["length"], column.len(), "{name}");
        column
    }

    fn numbers(column: &[Value]) -> Vec<f64> {
        column.iter().map(|value| value.as_f64().unwrap()).collect()
    }

    /// Each value of `column` is an index into `table`, or is one of `none`.
    fn assert_indices(column: &[Value], table: &Value, none: &Value) {
        let length = table["length"].as_u64().unwrap();
        for value in column {
            let is_index = value.as_u64().is_some_and(|index| index < length);
            assert!(is_index || value == none, "{value} of {length}");
        }
    }

    #[test]
    fn tables_are_rectangular_and_indices_lead_somewhere() {
        let document = document(&fixture::view());
        let threads = document["threads"].as_array().unwrap();
        assert_eq!(threads.len(), 3);
        for thread in threads {
            let (frames, functions) = (&thread["frameTable"], &thread["funcTable"]);
            let (resources, stacks) = (&thread["resourceTable"], &thread["stackTable"]);
            let strings = json!({ "length": thread["stringArray"].as_array().unwrap().len() });
            let categories =
                json!({ "length": document["meta"]["categories"].as_array().unwrap().len() });
            let libs = json!({ "length": document["libs"].as_array().unwrap().len() });
            let (null, minus_one) = (Value::Null, json!(-1));
            assert_indices(column(stacks, "frame"), frames, &json!("never"));
            assert_indices(column(stacks, "prefix"), stacks, &null);
            assert_indices(column(frames, "func"), functions, &json!("never"));
            assert_indices(column(frames, "category"), &categories, &null);
            assert_indices(column(functions, "name"), &strings, &json!("never"));
            assert_indices(column(functions, "resource"), resources, &minus_one);
            assert_indices(column(functions, "fileName"), &strings, &null);
            assert_indices(column(resources, "lib"), &libs, &json!("never"));
            assert_indices(column(resources, "name"), &strings, &json!("never"));
            assert_indices(column(&thread["samples"], "stack"), stacks, &null);
            for (table, columns) in [
                (
                    frames,
                    &[
                        "address",
                        "inlineDepth",
                        "subcategory",
                        "nativeSymbol",
                        "innerWindowID",
                        "line",
                        "column",
                    ][..],
                ),
                (
                    functions,
                    &["isJS", "relevantForJS", "lineNumber", "columnNumber"],
                ),
                (resources, &["host", "type"]),
                (&thread["samples"], &["timeDeltas", "weight"]),
            ] {
                for name in columns {
                    column(table, name);
                }
            }
            assert!(thread["samples"]["threadCPUDelta"].is_null());
        }
    }

    #[test]
    fn frees_match_allocations_and_what_is_left_is_live() {
        let view = fixture::view();
        let document = document(&view);
        let rows = &document["threads"][0]["nativeAllocations"];
        let weights = numbers(column(rows, "weight"));
        let addresses = numbers(column(rows, "memoryAddress"));
        assert!(numbers(column(rows, "time")).is_sorted());
        column(rows, "threadId");
        let mut live = HashMap::new();
        for (weight, address) in weights.iter().zip(&addresses) {
            let key = address.to_bits();
            if *weight > 0.0 {
                assert!(live.insert(key, *weight).is_none(), "an address twice");
            } else {
                assert_eq!(live.remove(&key), Some(-weight));
            }
        }
        let sum = |is_in: &dyn Fn(End) -> bool| -> f64 {
            let samples = view.samples.iter().filter(|sample| is_in(sample.end));
            samples.map(|sample| sample.bytes).sum()
        };
        let allocated: f64 = weights.iter().filter(|weight| **weight > 0.0).sum();
        assert!((allocated - sum(&|_| true)).abs() <= 0.5);
        let retained: f64 = live.values().sum();
        let expected = sum(&|end| !matches!(end, End::Freed(_)));
        assert!((retained - expected).abs() <= live.len() as f64);
        for thread in &document["threads"].as_array().unwrap()[1..] {
            assert!(thread["nativeAllocations"].is_null());
        }
    }

    #[test]
    fn the_threads_samples_add_up_to_what_was_allocated() {
        let view = fixture::view();
        let document = document(&view);
        assert_eq!(document["threads"][0]["samples"]["length"], 0);
        let sum: f64 = document["threads"].as_array().unwrap()[1..]
            .iter()
            .inspect(|thread| assert_eq!(thread["samples"]["weightType"], "bytes"))
            .flat_map(|thread| numbers(column(&thread["samples"], "weight")))
            .sum();
        let expected: f64 = view.samples.iter().map(|sample| sample.bytes).sum();
        assert!(
            expected > f64::from(i32::MAX),
            "the fixture needs a weight beyond 32 bits"
        );
        // Half a byte for each of the two threads.
        assert!((sum - expected).abs() <= 1.0, "{sum} {expected}");
    }

    #[test]
    fn stacks_name_functions_files_lines_and_libraries_with_inlined_calls() {
        let document = document(&fixture::view());
        let thread = &document["threads"][0];
        let at = |table: &str, column_name: &str, index: &Value| {
            thread[table][column_name][index.as_u64().unwrap() as usize].clone()
        };
        let string =
            |index: &Value| thread["stringArray"][index.as_u64().unwrap() as usize].clone();
        let mut seen = Vec::new();
        for stack in column(&thread["nativeAllocations"], "stack") {
            let mut described = Vec::new();
            let mut stack = stack.clone();
            while !stack.is_null() {
                let frame = at("stackTable", "frame", &stack);
                let func = at("frameTable", "func", &frame);
                let file = at("funcTable", "fileName", &func);
                let resource = at("funcTable", "resource", &func);
                let library = if resource == -1 {
                    json!("none")
                } else {
                    string(&at("resourceTable", "name", &resource))
                };
                described.push(json!([
                    string(&at("funcTable", "name", &func)),
                    if file.is_null() { file } else { string(&file) },
                    at("frameTable", "line", &frame),
                    at("frameTable", "inlineDepth", &frame),
                    library,
                ]));
                stack = at("stackTable", "prefix", &stack);
            }
            seen.push(Value::from(described));
        }
        let inlined = json!([
            ["inlined", "src/app.c", 7, 1, "app"],
            ["outer", "src/app.c", 20, 0, "app"],
            ["main", "src/main.c", 3, 0, "app"]
        ]);
        assert!(seen.contains(&inlined), "{seen:#?}");
        let cut = json!([
            ["leaf; part", null, null, 0, "none"],
            ["(truncated)", null, null, 0, "none"]
        ]);
        assert!(seen.contains(&cut), "{seen:#?}");
    }

    #[test]
    fn the_live_counter_ends_at_the_live_bytes() {
        let view = fixture::view();
        let document = document(&view);
        let counters = document["counters"].as_array().unwrap();
        assert_eq!(counters.len(), 2);
        for counter in counters {
            assert_eq!(counter["pid"], document["threads"][0]["pid"]);
            assert_eq!(counter["samples"]["count"][0], 0.0);
            assert!(counter["display"]["tooltipRows"].is_array());
            column(&counter["samples"], "timeDeltas");
        }
        let level: f64 = numbers(column(&counters[0]["samples"], "count"))
            .iter()
            .sum();
        let live: f64 = view
            .samples
            .iter()
            .filter(|sample| sample.end == End::Live)
            .map(|sample| sample.bytes)
            .sum();
        assert!((level - live).abs() < 1.0, "{level} {live}");
        let resident: f64 = numbers(column(&counters[1]["samples"], "count"))
            .iter()
            .sum();
        assert_eq!(resident, view.resident.last().unwrap().1 as f64);
    }

    #[test]
    fn meta_has_what_the_viewer_asks_for() {
        let document = document(&fixture::view());
        let meta = &document["meta"];
        assert_eq!(meta["symbolicated"], true);
        assert_eq!(meta["preprocessedProfileVersion"], 55);
        assert_eq!(meta["initialSelectedThreads"], json!([0]));
        assert_eq!(meta["categories"][0]["color"], "grey");
        let library = &document["libs"][0];
        assert_eq!(library["name"], "app");
        assert!(library["breakpadId"].as_str().unwrap().len() >= 33);
    }

    #[test]
    fn an_empty_profile_has_no_allocation_table() {
        let document = document(&View::default());
        assert_eq!(document["threads"].as_array().unwrap().len(), 1);
        assert!(document["threads"][0]["nativeAllocations"].is_null());
    }
}
