//! Promise: a program steers its own agent through the header, and what it asked for is done when the call returns.

use std::fs;

use crate::support::profile::Profile;
use crate::support::{Agent, Program, Room, bridge};

#[test]
fn a_machine_hears_of_each_change_until_it_takes_its_heap_back() {
    let run = Program::compiled("../vms/changes.c").run();
    let outcome = run.observed(&Agent::at_interval("1"));
    let refused = outcome.assert_success().text();
    let refused = refused.strip_prefix("refused ");
    let refused = refused.and_then(|text| text.strip_suffix("\nheard\n"));
    let refused: u64 = refused.expect("its words").parse().expect("a number");
    // An object of 100 bytes that was drawn at 8 KiB stands for so many bytes.
    let drawn_at_8k = 100.0 / -(-100.0_f64 / 8192.0).exp_m1();
    let profile = outcome.profile();
    let heaps = profile.report["heaps"].as_array().expect("a table");
    for (name, expected) in [
        ("org.example.follows", 2.0 * drawn_at_8k + 100.0),
        ("org.example.stays", 2.0 * drawn_at_8k),
    ] {
        let heap = heaps.iter().find(|heap| heap["name"] == name);
        let bytes = heap.expect(name)["allocated_bytes"].as_f64().expect(name);
        assert!((bytes / expected - 1.0).abs() < 1e-6, "{name}: {bytes}");
    }
    let lost = &profile.report["lost"]["no memory for the agent"];
    assert_eq!(lost["events"], refused, "{lost}");
}

/// While it is stopped it has no sample by which it could hear of anything.
#[test]
fn a_machine_that_takes_nothing_from_malloc_hears_that_it_is_to_go_on() {
    const COUNT: u32 = 1_000_000;
    let program = Program::compiled("../vms/rests.c");
    let command = [&*program.path().to_string_lossy(), &COUNT.to_string()];
    let profile = bridge::steered(&Room::new(), &command, bridge::STOP_AND_START);
    let sites = ["first", "second", "third"].map(|name| profile.site(name));
    bridge::assert_rests(sites, f64::from(COUNT) * 64.0, 4e6);
}

fn allocations(profile: &Profile, function: &str) -> f64 {
    profile.site(function).allocations
}

#[test]
fn a_program_stops_starts_copies_rotates_and_resets_its_own_profile() {
    let program = Program::compiled("steers_itself.c").run();
    let alone = program.bare();
    assert_eq!(alone.assert_success().text(), "steered\n");
    let agent = Agent::at_interval("1").with("ALLOCSAMPLE_OUTPUT", "x.allocsample");
    let outcome = program.observed(&agent);
    outcome.assert_same_as(&alone);
    let read = |name: &str| Profile::read(&outcome.work().join(name));
    let names: Vec<_> = fs::read_dir(outcome.work())
        .expect("a directory")
        .map(|entry| entry.expect("a file").file_name())
        .collect();
    assert!(
        names.iter().any(|name| name == "x.allocsample"),
        "{names:?}"
    );
    for before in [
        read("x.snapshot-1.allocsample"),
        read("x.part-1.allocsample"),
    ] {
        assert_eq!(allocations(&before, "at_first"), 1000.0);
        assert_eq!(allocations(&before, "while_stopped"), 0.0);
        // In the main thread, and in the other one when it was in again.
        assert_eq!(allocations(&before, "again"), 2000.0);
        assert_eq!(allocations(&before, "left_out"), 0.0);
        assert_eq!(allocations(&before, "too_small"), 0.0);
    }
    // What was left out is told where all is counted.
    let part = read("x.part-1.allocsample");
    let threads = part.report["threads"].as_array().expect("threads");
    let muted = threads.iter().filter_map(|row| row["muted_bytes"].as_f64());
    assert!(muted.sum::<f64>() >= 2.0 * 1000.0 * 100.0);
    let last = read("x.allocsample");
    for function in ["at_first", "again", "before_reset"] {
        assert_eq!(allocations(&last, function), 0.0, "{function}");
    }
    assert_eq!(allocations(&last, "at_last"), 1000.0);
    assert!(last.is_complete());
}
