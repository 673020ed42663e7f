//! Promise: whatever a virtual machine does with the hook ABI, in whatever order, each answer is what the sample points
//! say, and the profile has every sample once, with its weight and its fate.
//!
//! Scripts are played by `tests/vms/script.c`, which holds each limit, each sample, each pending list and the collections
//! against a model, after each step; here its sums are held against the profile.

use std::cell::Cell;
use std::fmt;
use std::fs;
use std::sync::OnceLock;

use crate::support::directory::Directory;
use crate::support::profile::Profile;
use crate::support::{Agent, Outcome, Program};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::Value;

/// What a machine does. The letters are `script.c`'s.
#[derive(Clone, Debug)]
enum Operation {
    Allocate(u64, u32),
    Outside(u64, u32),
    Malloc(u64),
    Minor(u64, u64),
    Major(u64),
    /// What is pinned there stays: the nursery goes on behind it.
    Hole(u64),
    Interval(u64),
    Stop,
    Start,
    Disable,
    Enable,
    LeaveAndReturn,
    Discard,
    Fork,
}

impl fmt::Display for Operation {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocate(size, type_id) => write!(to, "a{size} {type_id}"),
            Self::Outside(size, type_id) => write!(to, "l{size} {type_id}"),
            Self::Malloc(size) => write!(to, "n{size}"),
            Self::Minor(seed, bytes) => write!(to, "c{seed} {bytes}"),
            Self::Major(seed) => write!(to, "m{seed}"),
            Self::Hole(bytes) => write!(to, "h{bytes}"),
            Self::Interval(bytes) => write!(to, "i{bytes}"),
            Self::Stop => to.write_str("s"),
            Self::Start => to.write_str("g"),
            Self::Disable => to.write_str("x"),
            Self::Enable => to.write_str("y"),
            Self::LeaveAndReturn => to.write_str("e"),
            Self::Discard => to.write_str("d"),
            Self::Fork => to.write_str("f"),
        }
    }
}

/// What the threads of a machine do; several do it at once.
type Sequence = Vec<Vec<Operation>>;

fn text(sequences: &[Sequence]) -> String {
    let mut text = String::new();
    for sequence in sequences {
        let threads: Vec<String> = sequence
            .iter()
            .map(|operations| {
                let words: Vec<String> = operations.iter().map(Operation::to_string).collect();
                words.join(" ")
            })
            .collect();
        text += &threads.join(" | ");
        text.push('\n');
    }
    text
}

/// 1, small, around the nursery's size, beyond it, and never.
fn intervals() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => Just(1_u64),
        2 => 2..16_u64,
        4 => 16..600_u64,
        4 => 600..20_000_u64,
        1 => Just(1 << 40),
        1 => Just(i64::MAX as u64),
    ]
}

/// Of one thread alone.
fn own_operations() -> impl Strategy<Value = Operation> {
    let types = 1..4_u32;
    prop_oneof![
        60 => (1..64_u64, types.clone()).prop_map(|(size, kind)| Operation::Allocate(size, kind)),
        15 => (1..900_u64, types.clone()).prop_map(|(size, kind)| Operation::Allocate(size, kind)),
        8 => (1..5_000_u64, types.clone()).prop_map(|(size, kind)| Operation::Outside(size, kind)),
        1 => (1..5_000_000_u64, types).prop_map(|(size, kind)| Operation::Outside(size, kind)),
        2 => (1..100_000_u64).prop_map(Operation::Malloc),
        5 => (any::<u32>(), 1..2_000_u64)
            .prop_map(|(seed, bytes)| Operation::Minor(seed.into(), bytes)),
        2 => (0..300_u64).prop_map(Operation::Hole),
        1 => Just(Operation::Disable),
        2 => Just(Operation::Enable),
        1 => Just(Operation::LeaveAndReturn),
    ]
}

/// Also of the heap.
fn operations() -> impl Strategy<Value = Operation> {
    prop_oneof![
        200 => own_operations(),
        6 => any::<u32>().prop_map(|seed| Operation::Major(seed.into())),
        4 => intervals().prop_map(Operation::Interval),
        3 => Just(Operation::Stop),
        5 => Just(Operation::Start),
        1 => Just(Operation::Discard),
    ]
}

fn sequences() -> impl Strategy<Value = Sequence> {
    prop_oneof![
        200 => prop::collection::vec(operations(), 1..60).prop_map(|operations| vec![operations]),
        20 => prop::collection::vec(prop::collection::vec(own_operations(), 1..40), 2..=4),
        // A child that plays the rest.
        1 => (
            prop::collection::vec(operations(), 1..30),
            prop::collection::vec(operations(), 1..30)
        )
            .prop_map(|(mut before, after)| {
                before.push(Operation::Fork);
                before.extend(after);
                vec![before]
            }),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Law {
    Periodic,
    Poisson,
}

impl Law {
    fn name(self) -> &'static str {
        match self {
            Law::Periodic => "periodic",
            Law::Poisson => "poisson",
        }
    }
}

fn play(law: Law, interval: u64, seed: u64, script: &str) -> Outcome {
    static PROGRAM: OnceLock<Program> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| Program::compiled_with("../vms/script.c", &["-lm"]));
    let directory = Directory::new();
    let file = directory.join("script");
    fs::write(&file, script).expect("a file");
    let agent = Agent::at_interval(interval)
        .with("ALLOCSAMPLE_SAMPLING", law.name())
        .seeded(seed);
    program
        .run()
        .arg(&file)
        .arg(law.name())
        .arg(interval.to_string())
        .observed(&agent)
}

fn close(what: &str, found: f64, wanted: f64) -> Result<(), String> {
    // Sums of the same floating-point numbers in another order.
    if (found - wanted).abs() <= 1e-9 * wanted.abs().max(1.0) {
        return Ok(());
    }
    Err(format!("{what}: {found} in the profile, {wanted} in truth"))
}

fn find<'a>(profile: &'a Profile, table: &str, keys: &[(&str, &str)]) -> Option<&'a Value> {
    profile.report[table]
        .as_array()?
        .iter()
        .find(|row| keys.iter().all(|(key, name)| row[key] == *name))
}

fn figure(row: Option<&Value>, name: &str) -> f64 {
    row.and_then(|row| row[name].as_f64()).unwrap_or(0.0)
}

/// The sums of each process and heap, as the machine printed them, against the profiles.
fn judge(outcome: &Outcome) -> Result<u64, String> {
    if !outcome.status.success() {
        return Err(outcome.complaints());
    }
    let profiles = outcome.profiles();
    let mut samples = 0;
    let said = outcome.complaints();
    for line in said.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [process, heap, numbers @ ..] = &words[..] else {
            return Err(line.to_owned());
        };
        let numbers: Vec<f64> = numbers
            .iter()
            .filter_map(|word| word.parse().ok())
            .collect();
        let [exact, recorded, weights, minor, major, fates @ ..] = &numbers[..] else {
            return Err(line.to_owned());
        };
        let children: Vec<&str> = said
            .lines()
            .filter_map(|line| line.split(' ').next())
            .filter(|&process| process != "main")
            .collect();
        let profile = profiles
            .iter()
            .find(|profile| {
                let pid = profile.report["pid"].to_string();
                match *process {
                    "main" => !children.contains(&pid.as_str()),
                    child => pid == child,
                }
            })
            .ok_or_else(|| format!("no profile of {process}"))?;
        if profile.number("lost_samples") != 0.0 {
            return Err(format!("{} lost", profile.number("lost_samples")));
        }
        let row = find(profile, "heaps", &[("name", heap)]);
        for (name, wanted) in [
            ("samples", *recorded),
            ("allocated_bytes", *weights),
            ("minor_collections", *minor),
            ("major_collections", *major),
        ] {
            close(&format!("{name} of {heap}"), figure(row, name), wanted)?;
        }
        // A child does not know of how many bytes since its last call are its own.
        if *process == "main" {
            let found = figure(row, "allocated_bytes_exact");
            close(&format!("exact bytes of {heap}"), found, *exact)?;
        }
        for (fates, name) in fates.chunks(2).zip(["One", "Two", "Three"]) {
            let row = find(profile, "types", &[("heap", heap), ("type", name)]);
            for (name, wanted) in [("survived_bytes", fates[0]), ("died_young_bytes", fates[1])] {
                close(&format!("{name} of {heap}"), figure(row, name), wanted)?;
            }
        }
        samples += *recorded as u64;
    }
    Ok(samples)
}

/// The same ones in every run; `ALLOCSAMPLE_TEST_SEQUENCES=1000000` for more of them.
fn wanted_sequences() -> usize {
    std::env::var("ALLOCSAMPLE_TEST_SEQUENCES")
        .ok()
        .and_then(|number| number.parse().ok())
        .unwrap_or(25_000)
}

#[test]
fn any_order_of_calls_gives_each_object_its_points_and_each_sample_one_fate() {
    const AT_ONCE: usize = 1000;
    // A compiler that complains is no counter-example.
    play(Law::Periodic, 1, 1, "").assert_success();
    for law in [Law::Periodic, Law::Poisson] {
        // A batch has as many on average; of batches there are enough for the number to be reached for certain.
        let batches = wanted_sequences() * 23 / 40 / AT_ONCE + 3;
        let config = Config {
            cases: batches as u32,
            failure_persistence: None,
            // Each step of it is a process.
            max_shrink_iters: 400,
            ..Config::default()
        };
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let (played, samples) = (Cell::new(0), Cell::new(0));
        let input = (
            intervals().prop_filter("an agent's interval", |&interval| interval <= 1 << 40),
            any::<u64>(),
            prop::collection::vec(sequences(), AT_ONCE / 2..AT_ONCE * 3 / 2),
        );
        TestRunner::new_with_rng(config, rng)
            .run(&input, |(interval, seed, sequences)| {
                let outcome = play(law, interval, seed, &text(&sequences));
                let recorded = judge(&outcome).map_err(TestCaseError::fail)?;
                played.set(played.get() + sequences.len());
                samples.set(samples.get() + recorded);
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{law:?}: {error}"));
        let played = played.get();
        assert!(played >= wanted_sequences() / 2, "{played} sequences");
        // The sequences are not idle.
        assert!(
            samples.get() > wanted_sequences() as u64,
            "{}",
            samples.get()
        );
    }
}

/// Plays a script at an interval by the periodic law; returns the samples of both heaps.
fn periodic(interval: u64, script: &str) -> u64 {
    let outcome = play(Law::Periodic, interval, 7, script);
    judge(&outcome).unwrap_or_else(|error| panic!("{error}\n{script}"))
}

#[test]
fn an_object_above_the_interval_is_one_sample_with_all_its_points() {
    // The model has each object's points, and the profile their bytes.
    assert_eq!(
        periodic(10, "c1 10000 a10 1 a11 2 a25 3 a100 1 a9000 2\n"),
        5
    );
}

#[test]
fn a_large_object_moves_the_point_without_being_a_sample() {
    // 40 x 100 bytes outside, at an interval of 1,000: 4 of them are samples, and the small ones are where they would be.
    let script = format!("c1 512 {}\n", "l90 1 a10 2 ".repeat(400));
    let samples = periodic(1000, &script);
    assert!((39..=41).contains(&samples), "{samples}");
}

#[test]
fn an_allocation_that_collects_and_crosses_a_point_does_both() {
    // Each tenth object opens a new nursery; an interval of 33 puts points at all places of it.
    let script = format!("c1 330 {}\n", "a33 1 ".repeat(2000));
    let samples = periodic(33, &script);
    assert_eq!(samples, 2000);
    let script = format!("c1 100 {}\n", "a33 1 ".repeat(2000));
    let samples = periodic(1000, &script);
    assert!((65..=67).contains(&samples), "{samples}");
}

#[test]
fn a_large_sample_brings_no_early_collection() {
    // The twin without sampling would collect later: the model compares addresses and collections.
    let script = format!("c1 512 {}\n", "a400 1 l1000000 2 a64 1 ".repeat(200));
    assert!(periodic(1 << 20, &script) > 100);
}

#[test]
fn disabling_comes_before_enabling() {
    assert_eq!(periodic(1, "s x a100 1 l100 1 c1 64 m1 a10 1\n"), 0);
    assert_eq!(periodic(1, "s x a100 1 g y a100 1 y g a100 1\n"), 2);
}

#[test]
fn more_than_65536_samples_are_pending_and_each_is_resolved() {
    let script = format!("c1 8000000 {} c9 512 m1\n", "a8 1 ".repeat(70_000));
    assert_eq!(periodic(1, &script), 70_000);
}

#[test]
fn a_child_has_its_own_samples_and_the_parents_are_left_alone() {
    let outcome = play(
        Law::Poisson,
        64,
        3,
        "a100 1 a100 2 f a100 3 a200 1 c1 512 m1 l400 1 a10 2\n",
    );
    assert_eq!(judge(&outcome).map(|samples| samples > 0), Ok(true));
    assert_eq!(outcome.profiles().len(), 2);
}
