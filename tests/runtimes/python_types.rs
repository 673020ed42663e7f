//! Promise: what lives in CPython's heap, and what dies, has the type that Python calls it by, in every version.

use crate::support::profile::Profile;
use crate::support::python::interpreters;
use crate::support::{Agent, Outcome, Room, Run, bridge, truth};
use serde_json::Value;

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

/// The deviation in standard errors that an estimate of `known` has: a variance grows with what was drawn.
fn z_of(found: f64, known: f64, variance: f64) -> f64 {
    truth::z(found, known, (variance * known / found.max(1.0)).sqrt())
}

/// Within 5 standard errors of what was drawn for the true number of objects, not of what was found: too small an estimate has
/// too small an error. About 60 samples of a type live, and a figure is outside by luck once in some 100,000 times. Draws are
/// not the same in every run: a program's addresses decide where some of its memory comes from.
#[test]
fn each_type_is_within_its_error() {
    const COUNT: u32 = 30_000;
    for python in interpreters() {
        let (outcome, names) = known_types(&python, "8K", COUNT);
        let profile = outcome.profile();
        for name in &names {
            let found = objects_of(&profile, name);
            let z = [
                z_of(found.made, f64::from(COUNT), found.made_variance),
                z_of(found.live, f64::from(COUNT / 2), found.live_variance),
            ];
            let what = format!("{} {name} {found:?}: z {z:?}", python.display());
            assert!(z.iter().all(|z| z.abs() <= 5.0), "{what}");
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
