//! Promise: the viewers that a format is for read the report's totals out of it, by their own code.

use std::path::Path;
use std::process::Command;

use crate::support::room::{stderr, stdout};
use crate::support::totals::{Case, cases};
use crate::support::{Program, Room, is_installed, skip, viewers};
use serde_json::Value;

/// What the Firefox Profiler computes.
fn in_firefox(file: &Path) -> Option<Vec<Value>> {
    let package = "@firefox-devtools/profiler-cli";
    let seen = viewers::seen("firefox.mjs", package, false, file, &[])?;
    let threads = seen["threads"].as_array().expect("threads").clone();
    // Shares of nothing, and bytes that are called samples, would be right by chance.
    for thread in &threads {
        let summaries = thread["strategies"].as_object().expect("summaries");
        for (name, summary) in summaries {
            let is_empty = summary["total"] == 0;
            assert!(is_empty || summary["unit"] == "bytes", "{name}: {summary}");
        }
    }
    Some(threads)
}

/// The sum over threads of one of the viewer's summaries, and how many threads have it.
fn summed(threads: &[Value], summary: &str) -> (f64, f64) {
    let totals = threads.iter().filter_map(|thread| {
        let summary = &thread["strategies"][summary];
        summary["total"].as_f64()
    });
    totals.fold((0.0, 0.0), |(sum, count), total| (sum + total, count + 1.0))
}

#[test]
fn the_firefox_profiler_reads_the_reports_totals() {
    for case in cases() {
        let file = case.convert("firefox", "firefox.json");
        let Some(threads) = in_firefox(&file) else {
            return;
        };
        let (allocated, tables) = summed(&threads, "native-allocations");
        let (freed, _) = summed(&threads, "native-deallocations-memory");
        let (retained, _) = summed(&threads, "native-retained-allocations");
        assert!(tables >= 1.0);
        // What stays is rounded for itself, and so is what is freed.
        case.assert_same(allocated, retained, 2.0 * tables);
        assert_eq!(allocated - freed, retained);
        // The tracks of the threads, which are all allocations once more, and those of heaps.
        let is_of_heap = |thread: &&Value| {
            let processes = [&case.report["heaps"][0], &case.report["heaps"][1]];
            let process = thread["processName"].as_str().expect("a name");
            processes.iter().any(|heap| {
                let name = heap["name"].as_str();
                name.is_some_and(|name| process.ends_with(&format!(": {name}")))
            })
        };
        let (of_heaps, of_threads): (Vec<&Value>, Vec<&Value>) =
            threads.iter().partition(is_of_heap);
        let timing = |threads: &[&Value]| -> f64 {
            let totals = threads
                .iter()
                .map(|it| &it["strategies"]["timing"]["total"]);
            totals.filter_map(Value::as_f64).sum()
        };
        case.assert_same(
            timing(&of_threads),
            case.total("live_bytes"),
            of_threads.len() as f64,
        );
        let in_heaps: f64 = of_heaps
            .iter()
            .filter_map(|it| it["strategies"]["native-allocations"]["total"].as_f64())
            .sum();
        assert_eq!(timing(&of_heaps), in_heaps);
    }
}

/// The second of two files of one recording: of a million bytes that were there when it began half is freed in it.
#[test]
fn the_firefox_profiler_keeps_what_was_alive_before_apart() {
    let room = Room::new();
    room.add(&Program::compiled("carried.c"), "carried");
    let run = ["run", "-q", "--interval", "1", "-o", "x.allocsample", "--"];
    let command = crate::support::command().to_str().expect("a path");
    let program = ["./carried", command, "x.allocsample"];
    let output = room.output(&[&run[..], &program].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let report = room.output(&["report", "x.allocsample", "--format", "json"]);
    let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let total = |name: &str| report["totals"][name].as_f64().expect("bytes");
    let output = room.output(&["convert", "x.allocsample", "--to", "firefox"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let Some(threads) = in_firefox(&room.path("x.firefox.json")) else {
        return;
    };
    let is_carried = |thread: &&Value| thread["processName"] == "carried (alive before)";
    let (carried, own): (Vec<Value>, Vec<Value>) =
        threads.into_iter().partition(|it| is_carried(&it));
    assert_eq!(carried.len(), 1);
    let (allocated, _) = summed(&own, "native-allocations");
    assert!((allocated - total("allocated_bytes")).abs() <= 1.0);
    let retained = [&carried, &own].map(|it| summed(it, "native-retained-allocations").0);
    assert!((5e5..6e5).contains(&retained[0]), "{retained:?}");
    let (before, _) = summed(&carried, "native-allocations");
    assert!((1e6..1.1e6).contains(&before), "{before}");
    assert_eq!(retained[0] + retained[1], total("live_bytes"));
}

#[test]
fn speedscope_reads_the_reports_totals() {
    for case in cases() {
        let file = case.convert("speedscope", "speedscope.json");
        let Some(seen) = viewers::seen("speedscope.mjs", "speedscope", true, &file, &[]) else {
            return;
        };
        assert_eq!(seen["errors"], Value::Array(Vec::new()));
        let profiles = seen["profiles"].as_array().expect("profiles");
        let total = |name: &str| {
            let profile = profiles.iter().find(|it| it["name"] == name);
            let profile = profile.unwrap_or_else(|| panic!("{name}: {seen}"));
            assert_eq!(
                (&profile["unit"], &profile["last"]),
                (&"bytes".into(), &profile["total"])
            );
            profile["total"].as_f64().expect("bytes")
        };
        case.assert_same(total("Allocated bytes"), total("Live bytes"), 2.0);
    }
}

/// `Showing nodes accounting for 2672814B, 100% of 2672814B total`
fn accounted_for(case: &Case, file: &Path, index: &str) -> f64 {
    let options = [
        "tool",
        "pprof",
        "-symbolize=none",
        "-top",
        "-unit=B",
        "-nodefraction=0",
    ];
    let output = Command::new("go")
        .args(options)
        .arg(format!("-sample_index={index}"))
        .arg(file)
        .env("HOME", case.room.directory())
        .env("PPROF_TMPDIR", case.room.directory())
        .output()
        .expect("go");
    let text = stdout(&output);
    let line = text.lines().find(|line| line.starts_with("Showing nodes"));
    let total = line.and_then(|line| line.split(" of ").nth(1)?.split("B total").next());
    let total = total.unwrap_or_else(|| panic!("{text} {}", stderr(&output)));
    total.trim().parse().unwrap_or_else(|_| panic!("{text}"))
}

#[test]
fn pprof_reads_the_reports_totals() {
    if !is_installed("go") {
        return skip("no Go, whose tool pprof reads profiles (Debian: golang-go)");
    }
    for case in cases() {
        let file = case.convert("pprof", "pb.gz");
        let bytes = ["alloc_space", "inuse_space"].map(|index| accounted_for(&case, &file, index));
        case.assert_same(bytes[0], bytes[1], 2.0);
    }
}
