//! Promise: what lives in CPython's heap, and what dies, has the type that Python calls it by, in every version.

mod support;

use serde_json::Value;
use support::profile::Profile;
use support::python::interpreters;
use support::{Agent, Outcome, Room, Run, bridge, truth};

const TYPES: usize = 11;

/// Objects of each type, made and alive, with the variances of the estimates.
#[derive(Debug)]
struct Objects {
    made: f64,
    made_variance: f64,
    live: f64,
    live_variance: f64,
}

fn ask(profile: &Profile, question: &str) -> Vec<Value> {
    let room = Room::new();
    let path = profile.path().to_string_lossy();
    let output = room.output(&["query", "--format", "json", &path, question]);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn objects_of(profile: &Profile, type_name: &str) -> Objects {
    let rows = ask(
        profile,
        &format!(
            "SELECT sum(objects) AS made, sum(objects_variance) AS made_variance,
                sum(objects * live) AS live, sum(objects_variance * live) AS live_variance
            FROM samples JOIN types USING (type_id) WHERE type = '{type_name}'"
        ),
    );
    let figure = |name: &str| rows[0][name].as_f64().unwrap_or(0.0);
    Objects {
        made: figure("made"),
        made_variance: figure("made_variance"),
        live: figure("live"),
        live_variance: figure("live_variance"),
    }
}

/// The profile, and the names of the types, of each of which there have been `count` objects.
fn known_types(python: &std::path::Path, interval: &str, count: u32) -> (Outcome, Vec<String>) {
    let outcome = Run::of(python)
        .arg(bridge::program("known_types.py"))
        .arg(count.to_string())
        .patience(120)
        .unchanged(&Agent::at_interval(interval).seeded(7));
    outcome.assert_success();
    let names: Vec<String> = outcome.text().lines().map(str::to_owned).collect();
    assert_eq!(names.len(), TYPES);
    (outcome, names)
}

/// One in two is kept, and asked for its type while it lives; the others are asked when they are freed.
#[test]
fn where_each_object_is_a_sample_all_are_told_with_their_types() {
    const COUNT: u32 = 500;
    for python in interpreters() {
        let (outcome, names) = known_types(&python, "1", COUNT);
        let profile = outcome.profile();
        for name in &names {
            let found = objects_of(&profile, name);
            let what = format!("{} {name} {found:?}", python.display());
            assert_eq!(found.made, f64::from(COUNT), "{what}");
            assert_eq!(found.live, f64::from(COUNT / 2), "{what}");
        }
    }
}

/// Within 4 standard errors: once in 16,000 figures that is luck, and seeds are fixed.
#[test]
fn each_type_is_within_its_error() {
    const COUNT: u32 = 30_000;
    for python in interpreters() {
        let (outcome, names) = known_types(&python, "8K", COUNT);
        let profile = outcome.profile();
        for name in &names {
            let found = objects_of(&profile, name);
            let z = [
                truth::z(found.made, f64::from(COUNT), found.made_variance.sqrt()),
                truth::z(found.live, f64::from(COUNT / 2), found.live_variance.sqrt()),
            ];
            let what = format!("{} {name} {found:?}: z {z:?}", python.display());
            assert!(z.iter().all(|z| z.abs() <= 4.0), "{what}");
        }
        // What is left are parts of objects: lists' items, attributes.
        let types = profile.report["types"].as_array().expect("types");
        let types: Vec<_> = types.iter().filter(|row| row["heap"] == "python").collect();
        let bytes = |row: &Value| row["allocated_bytes"].as_f64().expect("bytes");
        let all: f64 = types.iter().map(|row| bytes(row)).sum();
        let unknown: f64 = types
            .iter()
            .filter(|row| row["type"] == "(unknown)")
            .map(|row| bytes(row))
            .sum();
        assert!(
            unknown < 0.25 * all,
            "{}: {unknown} of {all}",
            python.display()
        );
        let heap = bridge::heap(&profile, "python")["allocated_bytes"].as_f64();
        assert!((heap.expect("bytes") - all).abs() < 1.0, "{heap:?}, {all}");
    }
}
