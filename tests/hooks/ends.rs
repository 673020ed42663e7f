//! Promise: a machine that reports the ends of its objects by id, many in a call, gets the same profile as one that reports each
//! by its address.

use crate::support::room::stderr;
use crate::support::{Program, Room};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::Value;

/// All samples as they ended, in the order of their allocation, from each file of the recording. In place of the time of an end stands
/// how many samples were taken before it, from which the live set at any moment follows.
fn samples(room: &Room) -> Vec<Vec<Value>> {
    let mut names: Vec<_> = (std::fs::read_dir(room.path(".")).expect("a directory"))
        .map(|entry| {
            entry
                .expect("a file")
                .file_name()
                .into_string()
                .expect("a name")
        })
        .filter(|name| name.ends_with(".allocsample"))
        .collect();
    // A child's name has a pid.
    names.sort_by_key(|name| (name.contains("part"), name.len()));
    names.iter().map(|name| samples_of(room, name)).collect()
}

fn samples_of(room: &Room, name: &str) -> Vec<Value> {
    let sql = "SELECT size, type, round(samples.bytes) AS bytes, live, survived, carried, stack, time_ns, freed_ns \
        FROM samples LEFT JOIN types USING (type_id) JOIN stacks USING (stack_id) ORDER BY sample_id";
    let output = room.output(&["query", name, sql, "--format", "json"]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{name}: {said}");
    let mut rows: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(!rows.is_empty(), "{name}");
    let times: Vec<u64> = (rows.iter())
        .map(|row| row["time_ns"].as_u64().expect("a time"))
        .collect();
    for row in &mut rows {
        row["time_ns"] = Value::Null;
        if let Some(freed_ns) = row["freed_ns"].as_u64() {
            row["freed_ns"] = times.partition_point(|&time_ns| time_ns <= freed_ns).into();
        }
    }
    rows
}

/// The report's figures that have nothing to do with time.
fn figures(room: &Room) -> Vec<Value> {
    let output = room.output(&["report", "x.allocsample", "--format", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let total = |name: &str| report["totals"][name].clone();
    let names = [
        "allocated_bytes",
        "live_bytes",
        "live_bytes_stderr",
        "live_unexamined_bytes",
    ];
    let figures = names.map(total).to_vec();
    assert!(figures.iter().all(Value::is_number), "{figures:?}");
    figures
}

fn play(
    program: &Program,
    how: &str,
    seed: u64,
    steps: u64,
    then: &str,
) -> (Vec<Vec<Value>>, Vec<Value>) {
    let room = Room::new();
    let program = program.path().to_string_lossy();
    let (seed, steps) = (seed.to_string(), steps.to_string());
    let options = [
        "run",
        "-q",
        "-o",
        "x.allocsample",
        "--on-full",
        "wait",
        "--",
        &*program,
    ];
    let output = room.output(&[&options[..], &[how, &seed, &steps, then]].concat());
    let is_killed = then == "kill";
    assert_eq!(output.status.success(), !is_killed, "{output:?}");
    (samples(&room), figures(&room))
}

#[test]
fn ends_reported_together_make_the_same_profile_as_ends_reported_one_by_one() {
    let program = Program::compiled("../vms/ends.c");
    let config = Config {
        cases: 12,
        failure_persistence: None,
        max_shrink_iters: 40,
        ..Config::default()
    };
    let input = (
        any::<u32>(),
        // Without a drain thread, and with one.
        prop_oneof![1 => 1..4000_u64, 1 => 20_000..30_000_u64],
        prop::sample::select(vec!["exit", "kill", "rotate", "fork"]),
    );
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(config, rng)
        .run(&input, |(seed, steps, then)| {
            let [one_by_one, together] =
                ["freed", "died"].map(|how| play(&program, how, seed.into(), steps, then));
            prop_assert_eq!(one_by_one, together);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}
