//! Promise: Mono's objects, their types, methods, lines, deaths and collections are in the profile, and the program is as it
//! was.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::support::profile::Profile;
use crate::support::room::stderr;
use crate::support::{Agent, Outcome, Room, Run, bridge, is_installed, skip};

fn has_mono() -> bool {
    let has = is_installed("mono") && is_installed("mcs");
    if !has {
        skip("no Mono (Debian: mono-runtime, mono-mcs)");
    }
    has
}

/// A compiled program with its table of lines; the room is where it is.
fn compiled(source: &str) -> (Room, PathBuf) {
    let room = Room::new();
    let output = Command::new("mcs")
        .args(["-debug", "-out:program.exe"])
        .arg(bridge::program(source))
        .current_dir(room.directory())
        .output()
        .expect("mcs");
    assert!(output.status.success(), "{}", stderr(&output));
    let program = room.path("program.exe");
    (room, program)
}

fn known_sites(times: u32, agent: &Agent) -> Outcome {
    let (_room, program) = compiled("KnownSites.cs");
    let run = Run::of("mono")
        .arg("--debug")
        .arg(&program)
        .arg(times.to_string());
    let outcome = run.unchanged(agent);
    outcome.assert_success();
    outcome
}

#[test]
fn each_site_is_within_its_error() {
    if !has_mono() {
        return;
    }
    for (interval, times) in [("4K", 1), ("64K", 4)] {
        let outcome = known_sites(times, &Agent::at_interval(interval).seeded(7));
        bridge::profile_near_truth(&outcome, 5);
    }
}

#[test]
fn types_methods_and_lines_are_named() {
    if !has_mono() {
        return;
    }
    let outcome = known_sites(1, &Agent::at_interval("4K").seeded(7));
    let profile = outcome.profile();
    let file = bridge::program("KnownSites.cs");
    bridge::assert_line(&profile, "KnownSites.SmallFreed", &file, "new byte[100];");
    bridge::assert_line(&profile, "KnownSites.SmallKept", &file, "new Node();");
    let stack = profile.stack_to("KnownSites.MiddleKept");
    let root = stack.first().expect("a root");
    assert!(root.starts_with("System.Threading.Thread"), "{stack:?}");
    let types = profile.report["types"].as_array().expect("types");
    for name in ["System.Byte[]", "System.Int64[]", "Node"] {
        assert!(
            types
                .iter()
                .any(|row| row["heap"] == "mono" && row["type"] == name),
            "{name}: {types:?}"
        );
    }
}

#[test]
fn collections_are_told_as_mono_counts_them() {
    if !has_mono() {
        return;
    }
    let (_room, program) = compiled("Collections.cs");
    let run = Run::of("mono").arg(&program);
    let outcome = run.observed(&Agent::at_interval("16K").seeded(7));
    outcome.assert_success();
    let counted: Vec<f64> = outcome
        .text()
        .lines()
        .map(|line| line.parse().expect("a count"))
        .collect();
    let profile = outcome.profile();
    let heap = bridge::heap(&profile, "mono");
    let told = |kind: &str| heap[kind].as_f64().expect("a count");
    // It collects once more when it ends.
    for (kind, counted) in ["minor_collections", "major_collections"]
        .iter()
        .zip(&counted)
    {
        let told = told(kind);
        assert!(
            (*counted..=counted + 2.0).contains(&told),
            "{kind}: {told} for {counted}"
        );
    }
    assert!(counted[0] >= 10.0 && counted[1] >= 5.0, "{counted:?}");
    assert!(told("gc_time_s") > 0.0, "{heap}");
}

/// The collection begins in one stop of the world and ends in another. The table is replaced many times in between, so nearly all
/// that was allocated before the first collection is dead when that ends.
#[test]
fn what_a_concurrent_collection_finds_dead_is_told_when_it_ends() {
    const QUESTION: &str = "
        WITH steps AS (SELECT begin_ns, row_number() OVER (ORDER BY begin_ns) AS number FROM gc WHERE kind = 'majorstep'),
             entries AS (SELECT time_ns, freed_ns FROM samples JOIN types USING (type_id) WHERE type = 'System.Byte[]')
        SELECT count(*) AS entries, sum(coalesce(freed_ns < later.begin_ns, 0)) AS told
        FROM entries JOIN steps AS first ON first.number = 1 JOIN steps AS later ON later.number = 2
        WHERE time_ns < first.begin_ns";
    if !has_mono() {
        return;
    }
    let (_room, program) = compiled("ConcurrentMarking.cs");
    let run = Run::of("mono").arg(&program);
    let outcome = run.observed(&Agent::at_interval("16K").seeded(7));
    outcome.assert_success();
    let profile = outcome.profile();
    let path = profile.path().to_string_lossy();
    let output = Room::new().output(&["query", "--format", "json", &path, QUESTION]);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let of = |column: &str| answer[0][column].as_f64().unwrap_or(0.0);
    let (entries, told) = (of("entries"), of("told"));
    // The table is 1.2 MB of some 20 MB.
    assert!(entries >= 100.0, "{answer}");
    assert!(told > 0.7 * entries, "{answer}");
}

#[test]
fn the_leak_is_found() {
    if has_mono() {
        let (_room, program) = compiled("Leaky.cs");
        let command = ["mono", &program.to_string_lossy(), "200000"];
        bridge::assert_leak(&command, "open_session");
    }
}

#[test]
fn threads_finalizers_domains_and_exceptions_are_no_trouble() {
    if !has_mono() {
        return;
    }
    let (_room, program) = compiled("Troubles.cs");
    for suspend in ["hybrid", "preemptive"] {
        let run = Run::of("mono")
            .arg("--debug")
            .arg(&program)
            .env("MONO_THREADS_SUSPEND", suspend);
        let outcome = run.unchanged(&Agent::at_interval("4K").seeded(7));
        assert_eq!(outcome.status.code(), Some(3), "{}", outcome.complaints());
        // There is one of its child, too.
        let samples = |profile: &Profile| {
            let has_heap = bridge::has_heap(profile, "mono");
            has_heap.then(|| bridge::heap(profile, "mono")["samples"].as_f64())
        };
        let most = outcome
            .profiles()
            .iter()
            .filter_map(samples)
            .flatten()
            .max_by(f64::total_cmp);
        assert!(most > Some(1000.0), "{suspend}: {most:?}");
    }
}

/// As on Android and iOS, where objects of two collectors hold each other.
#[test]
fn collections_that_ask_another_collector_end() {
    if !has_mono() {
        return;
    }
    let (_room, program) = compiled("Bridged.cs");
    let run = Run::of("mono")
        .arg("--gc-debug=bridge=Bridged")
        .arg("--gc-params=bridge-implementation=tarjan")
        .arg(&program);
    let outcome = run.unchanged(&Agent::at_interval("4K").seeded(7));
    outcome.assert_success();
    // Of 13.4 MB those 3.4 are alive that the program keeps.
    let profile = outcome.profile();
    let heap = bridge::heap(&profile, "mono");
    let live = heap["live_bytes"].as_f64();
    assert!(heap["allocated_bytes"].as_f64() > Some(12e6), "{heap}");
    assert!(live > Some(2.8e6) && live < Some(4e6), "{heap}");
}

#[test]
fn a_program_can_be_profiled_without_the_bridge() {
    if !has_mono() {
        return;
    }
    let agent = Agent::at_interval("4K").with("ALLOCSAMPLE_RUNTIME", "none");
    let profile = known_sites(1, &agent).profile();
    assert_eq!(profile.site("KnownSites.SmallKept").samples, 0);
    assert!(!bridge::has_heap(&profile, "mono"));
}
