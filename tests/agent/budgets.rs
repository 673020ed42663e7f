//! Promise: what a user allows is what is used, and estimates stay right while the interval is adapted.

use std::collections::BTreeMap;

use crate::support::profile::Profile;
use crate::support::{Agent, Outcome, Program, truth};
use serde_json::Value;

/// A tenth of a second of calm and one of storm, in turns.
fn changing_load(variable: &'static str, value: &str, seed: u64) -> Outcome {
    let agent = Agent::by_default().with(variable, value);
    let run = Program::compiled("load_changes.c")
        .run()
        .args(&["12", "100"]);
    let outcome = run.observed(&agent.seeded(seed));
    outcome.assert_success();
    outcome
}

fn intervals(profile: &Profile) -> Vec<u64> {
    let history = profile.report["intervals"].as_array().expect("intervals");
    history
        .iter()
        .map(|change| change["interval_bytes"].as_u64().expect("bytes"))
        .collect()
}

/// Each site is within 4 standard errors of what it allocated.
#[track_caller]
fn assert_right(outcome: &Outcome, profile: &Profile) {
    let known: BTreeMap<String, f64> = serde_json::from_slice(&outcome.stdout).expect("the truth");
    let longest = intervals(profile).into_iter().max().expect("intervals") as f64;
    let functions = profile.report["functions"].as_array().expect("functions");
    let found = |name: &str| {
        let row = functions.iter().find(|row| row["function"] == name);
        let figure = |which: &str| row.and_then(|row| row[which].as_f64()).unwrap_or(0.0);
        (
            figure("total_allocated_bytes"),
            figure("total_allocated_bytes_stderr"),
        )
    };
    for (name, bytes) in known {
        let (estimate, error) = found(&name);
        // The variance is the sum of the bytes, each times its interval. After a storm the calm has an interval under which it
        // may have no sample, and then nothing of that is in the error: what is sure is the longest interval.
        let error = match name.as_str() {
            "in_the_calm" => (bytes * longest).sqrt(),
            // An estimate that is low by chance has an error that is low by the same chance.
            _ => error * (bytes / estimate).sqrt(),
        };
        let z = truth::z(estimate, bytes, error);
        assert!(z.abs() < 4.0, "{name}: {estimate} for {bytes}, z {z:+.1}");
    }
    let z = profile.report["audit"]["z"].as_f64().expect("a deviation");
    assert!(z.abs() < 4.0, "{z}");
}

#[test]
fn estimates_are_right_while_a_budget_of_time_adapts_the_interval_to_a_load_that_changes_a_hundredfold()
 {
    for seed in 1..=3 {
        let outcome = changing_load("ALLOCSAMPLE_MAX_OVERHEAD", "1%", seed);
        let profile = outcome.profile();
        assert_right(&outcome, &profile);
        let intervals = intervals(&profile);
        let (least, most) = (intervals.iter().min(), intervals.iter().max());
        let ratio = *most.expect("some") as f64 / *least.expect("some") as f64;
        assert!(intervals.len() > 4 && ratio > 4.0, "{intervals:?}");
        // How much it cost depends on the machine; that it is told does not.
        let agent = &profile.report["agent"];
        assert!(agent["overhead"].as_f64().expect("a share") > 0.0);
        assert!(agent["timed_samples"].as_u64().expect("a number") > 0);
    }
}

#[test]
fn samples_per_second_stay_near_what_is_allowed() {
    const MOST: f64 = 2000.0;
    let outcome = changing_load("ALLOCSAMPLE_MAX_SAMPLES_PER_SECOND", &MOST.to_string(), 4);
    let profile = outcome.profile();
    assert_right(&outcome, &profile);
    let taken = profile.number("samples") + profile.number("lost_samples");
    // On an unwatched run it is a hundred times as many in the storm. A storm is noticed when it fills a quarter of the
    // ring: some 4,000 samples, once a round; after that half of what is allowed is paid back at most.
    let allowed = MOST * profile.number("duration_s") + 6.0 * 6000.0;
    assert!(taken < allowed, "{taken} of {allowed}");
    assert!(taken > 100.0, "{taken}");
}

#[test]
fn a_profile_does_not_outgrow_its_size() {
    const MOST: u64 = 1 << 20;
    let agent = Agent::at_interval("4K")
        .with("ALLOCSAMPLE_MAX_SIZE", "1M")
        .seeded(5);
    let outcome = Program::compiled("load_changes.c")
        .run()
        .args(&["10", "100"])
        .observed(&agent);
    outcome.assert_success();
    let paths = outcome.profile_paths();
    let length = std::fs::metadata(&paths[0]).expect("a profile").len();
    assert!(length <= MOST, "{length}");
    let profile = outcome.profile();
    let intervals = intervals(&profile);
    assert!(
        intervals.len() > 1 && intervals.last() > Some(&4096),
        "{intervals:?}"
    );
    assert_right(&outcome, &profile);
}

#[test]
fn a_report_tells_what_the_agent_cost() {
    let outcome = Program::compiled("load_changes.c")
        .run()
        .args(&["2", "100"])
        .observed(&Agent::at_interval("4K"));
    let profile = outcome.profile();
    let agent = &profile.report["agent"];
    let figure = |name: &str| agent[name].as_f64().unwrap_or_else(|| panic!("{name}"));
    let samples = profile.number("samples");
    let timed = figure("timed_samples");
    // One in sixteen: 5 standard errors of a count.
    let expected = samples / 16.0;
    assert!(
        (timed - expected).abs() < 5.0 * expected.sqrt() + 5.0,
        "{timed} of {samples}"
    );
    assert!(figure("sample_ns") > 10.0 && figure("free_ns") > 10.0);
    assert!(figure("program_ns") > 1e8, "0.2 s were used");
    let path = &outcome.profile_paths()[0];
    let length = std::fs::metadata(path).expect("a profile").len() as f64;
    assert!(figure("written_bytes") <= length && figure("written_bytes") > 0.5 * length);
    assert!(figure("most_ring_bytes") <= figure("ring_bytes"));
    assert!(figure("mapped_bytes") > 1e5);
    assert_eq!(intervals(&profile), [4096]);
    let text = crate::support::Run::of(crate::support::command())
        .args(&["report", "--summary"])
        .arg(path)
        .bare()
        .text();
    assert!(
        text.lines()
            .any(|line| line.starts_with("agent ") && line.contains("per sample")),
        "{text}"
    );
}

#[test]
fn a_profile_of_a_killed_process_tells_what_the_agent_cost() {
    let run = Program::compiled("exits.c").run().arg("sigkill");
    let profile = run.observed(&Agent::at_interval(1)).profile();
    let agent: &Value = &profile.report["agent"];
    assert!(agent["timed_samples"].as_u64().expect("a number") > 0);
    assert!(agent["ring_bytes"].as_u64().expect("a number") > 0);
}

#[test]
fn a_leak_stays_within_the_samples_that_may_live_and_is_estimated_all_the_same() {
    const MOST: u64 = 5000;
    let agent = Agent::at_interval("256")
        .with("ALLOCSAMPLE_MAX_LIVE", MOST)
        .seeded(11);
    let outcome = Program::compiled("keeps.c")
        .run()
        .args(&["1000000", "100"])
        .observed(&agent);
    let profile = outcome.assert_success().profile();
    let site = profile.site("kept");
    assert_eq!(profile.number("lost_samples"), 0.0);
    // At 256 bytes it would be some 320,000. A drain thread that gets no processor looks late: a full ring is 40,000.
    assert!(
        site.samples > MOST / 2 && site.samples < 100_000,
        "{site:?}"
    );
    let told = intervals(&profile);
    assert!(told.len() > 2 && told.is_sorted(), "{told:?}");
    // The variance of a sum of bytes is at most these times the interval.
    let longest = told.last().copied().unwrap_or(0) as f64;
    let error = (1e8 * longest).sqrt();
    assert!(
        (site.live_bytes - 1e8).abs() < 4.0 * error,
        "{site:?}, {told:?}"
    );
}
