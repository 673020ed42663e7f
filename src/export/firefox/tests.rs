//! The document as the viewer reads it.

use super::*;
use crate::fixture;
use allocsample_profile::{Freed, Profile, SampleFlags, SampleId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

fn document(source: &Source) -> Value {
    let mut out = Vec::new();
    write_samples(source, counters::levels(source), &mut out).unwrap();
    serde_json::from_slice(&out).unwrap()
}

fn live_bytes(source: &Source) -> f64 {
    let samples = source.samples.with_bytes();
    let live = samples.filter(|(sample, _)| sample.is_live());
    live.map(|(_, bytes)| bytes).sum()
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
    let document = document(&fixture::source());
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
    let source = fixture::source();
    let document = document(&source);
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
    let sum = |is_in: &dyn Fn(&Sample) -> bool| -> f64 {
        let samples = source.samples.with_bytes();
        let samples = samples.filter(|(sample, _)| is_in(sample));
        samples.map(|(_, bytes)| bytes).sum()
    };
    let allocated: f64 = weights.iter().filter(|weight| **weight > 0.0).sum();
    assert!((allocated - sum(&|_| true)).abs() <= 0.5);
    let retained: f64 = live.values().sum();
    let expected = sum(&|sample| sample.freed().is_none());
    assert!((retained - expected).abs() <= live.len() as f64);
    for thread in &document["threads"].as_array().unwrap()[1..] {
        assert!(thread["nativeAllocations"].is_null());
    }
}

#[test]
fn what_was_alive_before_is_retained_and_not_allocated() {
    let source = fixture::source_with(|profile| {
        for row in 0..2 {
            let mut sample = profile.samples.at(row);
            sample.flags = SampleFlags::CARRIED;
            profile.samples.set(row, sample);
        }
    });
    let bytes: Vec<f64> = source.samples.with_bytes().map(|it| it.1).collect();
    let before: f64 = bytes[..2].iter().sum();
    let since: f64 = bytes[2..].iter().sum();
    let document = document(&source);
    let sum = |rows: &Value, is_allocated: bool| -> f64 {
        let weights = numbers(column(rows, "weight")).into_iter();
        weights
            .filter(|weight| (*weight > 0.0) == is_allocated)
            .sum()
    };
    let rows = &document["threads"][0]["nativeAllocations"];
    assert!((sum(rows, true) - since).abs() < 0.501);
    let of_process = |it: &&Value| it["processName"] == "app (alive before)";
    let carried = document["threads"]
        .as_array()
        .unwrap()
        .iter()
        .find(of_process)
        .unwrap();
    let rows = &carried["nativeAllocations"];
    assert!((sum(rows, true) - before).abs() < 0.501);
    // One of the two is freed.
    assert!((sum(rows, false) + bytes[1]).abs() <= 1.0);
    assert_eq!(carried["samples"]["length"], 0);
    let threads = document["threads"].as_array().unwrap();
    let samples = threads.iter().filter(|it| it["samples"]["length"] != 0);
    let tracks: f64 = samples
        .flat_map(|thread| numbers(column(&thread["samples"], "weight")))
        .sum();
    assert!((tracks - since).abs() <= 1.0, "{tracks} {since}");
}

#[test]
fn the_threads_samples_add_up_to_what_was_allocated() {
    let source = fixture::source();
    let document = document(&source);
    assert_eq!(document["threads"][0]["samples"]["length"], 0);
    let sum: f64 = document["threads"].as_array().unwrap()[1..]
        .iter()
        .inspect(|thread| assert_eq!(thread["samples"]["weightType"], "bytes"))
        .flat_map(|thread| numbers(column(&thread["samples"], "weight")))
        .sum();
    let expected: f64 = source.samples.with_bytes().map(|it| it.1).sum();
    assert!(
        expected > f64::from(i32::MAX),
        "the fixture needs a weight beyond 32 bits"
    );
    // Half a byte for each of the two threads.
    assert!((sum - expected).abs() <= 1.0, "{sum} {expected}");
}

#[test]
fn stacks_name_functions_files_lines_and_libraries_with_inlined_calls() {
    let document = document(&fixture::source());
    let thread = &document["threads"][0];
    let at = |table: &str, column_name: &str, index: &Value| {
        thread[table][column_name][index.as_u64().unwrap() as usize].clone()
    };
    let string = |index: &Value| thread["stringArray"][index.as_u64().unwrap() as usize].clone();
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
    let source = fixture::source();
    let document = document(&source);
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
    let live = live_bytes(&source);
    assert!((level - live).abs() < 1.0, "{level} {live}");
    let resident: f64 = numbers(column(&counters[1]["samples"], "count"))
        .iter()
        .sum();
    assert_eq!(
        resident,
        source.profile.resident_bytes.last().unwrap().1 as f64
    );
}

#[test]
fn meta_has_what_the_viewer_asks_for() {
    let document = document(&fixture::source());
    let meta = &document["meta"];
    assert_eq!(meta["symbolicated"], true);
    assert_eq!(meta["preprocessedProfileVersion"], 55);
    assert_eq!(meta["initialSelectedThreads"], json!([0]));
    assert_eq!(meta["categories"][0]["color"], "grey");
    let library = &document["libs"][0];
    assert_eq!(library["name"], "app");
    assert!(library["breakpadId"].as_str().unwrap().len() >= 33);
}

/// The chain of names from the leaf, with the category of the leaf.
fn stack_of(document: &Value, thread: &Value, stack: &Value) -> (Vec<String>, String) {
    let at = |table: &str, column: &str, index: &Value| {
        thread[table][column][index.as_u64().unwrap() as usize].clone()
    };
    let mut names = Vec::new();
    let leaf = at("stackTable", "frame", stack);
    let category = at("frameTable", "category", &leaf).as_u64().unwrap() as usize;
    let color = document["meta"]["categories"][category]["color"].as_str();
    let mut stack = stack.clone();
    while !stack.is_null() {
        let frame = at("stackTable", "frame", &stack);
        let name = at("funcTable", "name", &at("frameTable", "func", &frame));
        let name = &thread["stringArray"][name.as_u64().unwrap() as usize];
        names.push(name.as_str().unwrap().to_owned());
        stack = at("stackTable", "prefix", &stack);
    }
    (names, color.unwrap().to_owned())
}

fn thread_named<'a>(document: &'a Value, name: &str) -> &'a Value {
    let mut threads = document["threads"].as_array().unwrap().iter();
    threads.find(|thread| thread["name"] == name).unwrap()
}

#[test]
fn a_heap_of_a_machine_has_a_track_with_types_in_green_and_red() {
    let source = fixture::source_with_machine();
    let document = document(&source);
    let heap = thread_named(&document, "app: org.example.vm");
    let rows = &heap["nativeAllocations"];
    assert_eq!(
        numbers(column(rows, "weight")),
        [6000.0, 7000.0, 8000.0, -6000.0]
    );
    assert_eq!(
        numbers(column(&heap["samples"], "weight")),
        [6000.0, 7000.0, 8000.0]
    );
    let stacks: Vec<_> = column(&heap["samples"], "stack")
        .iter()
        .map(|stack| stack_of(&document, heap, stack))
        .collect();
    let stack = |leaf: &str, color: &str| {
        let names = [leaf, "interpreted", "main"].map(str::to_owned);
        (names.to_vec(), color.to_owned())
    };
    let expected = [
        stack("Node (died young)", "green"),
        stack("Node (survived)", "red"),
        stack("Text", "grey"),
    ];
    assert_eq!(stacks, expected);
    // malloc's track is without them.
    let whole = column(&document["threads"][0]["nativeAllocations"], "weight");
    let alone = self::document(&fixture::source());
    let expected = column(&alone["threads"][0]["nativeAllocations"], "weight");
    assert_eq!(whole, expected);
    // The threads' own have them.
    let worker = thread_named(&document, "worker");
    let sum: f64 = numbers(column(&worker["samples"], "weight")).iter().sum();
    let before = thread_named(&alone, "worker");
    let before: f64 = numbers(column(&before["samples"], "weight")).iter().sum();
    assert_eq!(sum - before, 21_000.0);
}

#[test]
fn collections_are_markers_with_their_statistics() {
    let document = document(&fixture::source_with_machine());
    let heap = thread_named(&document, "app: org.example.vm");
    let markers = &heap["markers"];
    let names: Vec<&Value> = column(markers, "name")
        .iter()
        .map(|name| &heap["stringArray"][name.as_u64().unwrap() as usize])
        .collect();
    let expected = [
        "start-up",
        "Minor collection",
        "Major collection",
        "request",
    ];
    assert_eq!(names, expected);
    let schemas = document["meta"]["markerSchema"].as_array().unwrap();
    let mut told = Vec::new();
    for data in column(markers, "data") {
        let schema = schemas.iter().find(|s| s["name"] == data["type"]).unwrap();
        let fields = schema["fields"].as_array().into_iter().flatten();
        told.push(
            fields
                .filter(|field| field["key"].is_string())
                .map(|field| {
                    let key = field["key"].as_str().unwrap();
                    json!([field["label"], field["format"], data[key].as_f64()])
                })
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(told[1], [json!(["survived", "bytes", 4096.0])]);
    let major = [
        json!(["survived", "bytes", 64.0]),
        json!(["roots", "integer", 7.0]),
    ];
    assert_eq!(told[2], major);
    assert!(told[0].is_empty() && told[3].is_empty());
    assert_eq!(heap["showMarkersInTimeline"], true);
    let starts = numbers(column(markers, "startTime"));
    let ends = numbers(column(markers, "endTime"));
    assert_eq!((starts[2], ends[2]), (0.001, 0.003));
}

#[test]
fn each_heap_has_a_memory_track_of_its_own_name() {
    let document = document(&fixture::source_with_machine());
    let counters = document["counters"].as_array().unwrap();
    let found: Vec<_> = counters
        .iter()
        .map(|counter| {
            let counts = numbers(column(&counter["samples"], "count"));
            (
                counter["display"]["label"].as_str().unwrap(),
                counts.iter().sum::<f64>(),
            )
        })
        .collect();
    let expected = [
        (
            "Live bytes in malloc (estimate)",
            live_bytes(&fixture::source()),
        ),
        ("Live bytes in org.example.vm (estimate)", 15_000.0),
        ("Resident set", f64::from(3 << 20)),
        ("org.example.vm: arena", f64::from(2 << 20)),
    ];
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.0, expected.0);
        assert!(
            (found.1 - expected.1).abs() < 1e-3,
            "{found:?} {expected:?}"
        );
    }
    assert_eq!(found.len(), expected.len());
}

#[test]
fn an_empty_profile_has_no_allocation_table() {
    let document = document(&fixture::source_of(Profile::default()));
    assert_eq!(document["threads"].as_array().unwrap().len(), 1);
    assert!(document["threads"][0]["nativeAllocations"].is_null());
}

/// What the rows of a thread add up to by stack, allocations and frees apart.
fn sums(document: &Value, thread: &Value) -> BTreeMap<(Vec<String>, bool), f64> {
    let rows = &thread["nativeAllocations"];
    let weights = numbers(column(rows, "weight"));
    let addresses = column(rows, "memoryAddress");
    let mut stacks = HashMap::new();
    let mut sums = BTreeMap::new();
    for ((stack, weight), address) in column(rows, "stack").iter().zip(weights).zip(addresses) {
        if weight > 0.0 {
            stacks.insert(address, stack_of(document, thread, stack).0);
        }
        let key = (stacks[address].clone(), weight > 0.0);
        *sums.entry(key).or_insert(0.0) += weight;
    }
    sums
}

#[test]
fn samples_that_stand_for_several_add_up_to_the_same() {
    let source = || {
        fixture::source_with(|profile| {
            // Before the last one, which is two seconds later: so that the peak lies between samples of one stack.
            for step in 0..100 {
                let mut sample = Sample {
                    id: SampleId(1000 + step),
                    time_ns: profile.process.start_ns + 100 + step,
                    size: 1000,
                    interval: fixture::EVERY_BYTE,
                    ..profile.samples.at(0)
                };
                if step % 2 == 1 {
                    sample.set_freed(Freed {
                        time_ns: sample.time_ns + 50,
                        thread: sample.thread,
                    });
                }
                profile.samples.push(sample);
            }
        })
    };
    let each = document(&source());
    let mut out = Vec::new();
    write_at_most(10, source(), &mut out).unwrap();
    let merged: Value = serde_json::from_slice(&out).unwrap();
    let (rows, fewer) = (
        &each["threads"][0]["nativeAllocations"],
        &merged["threads"][0]["nativeAllocations"],
    );
    assert!(column(fewer, "weight").len() * 4 < column(rows, "weight").len());
    let before = sums(&each, &each["threads"][0]);
    let after = sums(&merged, &merged["threads"][0]);
    assert_eq!(
        before.keys().collect::<Vec<_>>(),
        after.keys().collect::<Vec<_>>()
    );
    for (key, sum) in before {
        // Each row is whole bytes.
        assert!((after[&key] - sum).abs() <= 2.0, "{key:?}");
    }
    assert_eq!(merged["counters"], each["counters"]);
    let told = |document: &Value, label: &str| {
        let entries = document["meta"]["extra"][0]["entries"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["label"] == label);
        entry.map(|entry| entry["value"].clone())
    };
    assert_eq!(told(&merged, "Samples"), told(&each, "Samples"));
    assert_eq!(told(&each, "Merged into"), None);
    assert!(told(&merged, "Merged into").unwrap().as_u64().unwrap() < 30);
}
