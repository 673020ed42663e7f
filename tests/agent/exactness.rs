//! Promise: where sampling leaves nothing out, every figure is exact.

use crate::support::profile::Profile;
use crate::support::truth::{self, Truth};
use crate::support::{Agent, Program};

/// Every site of the truth, to the byte and the block.
#[track_caller]
fn assert_exact(profile: &Profile, truth: &Truth) {
    assert_eq!(profile.number("lost_samples"), 0.0);
    for (name, known) in truth {
        let site = profile.site(name);
        assert_eq!(
            (
                site.allocated_bytes,
                site.allocations,
                site.samples,
                site.live_bytes
            ),
            (
                known.bytes as f64,
                known.allocations as f64,
                known.allocations,
                known.live_bytes as f64
            ),
            "{name}"
        );
        assert_eq!(
            (site.allocated_bytes_stderr, site.live_bytes_stderr),
            (0.0, 0.0),
            "{name}"
        );
    }
}

#[test]
fn at_interval_1_every_allocation_is_recorded() {
    let program = Program::compiled("known_sites.cpp");
    for threads in ["1", "8"] {
        let run = program
            .run()
            .args(&["--threads", threads, "--kilobytes", "800"]);
        for on_full in ["wait", "drop"] {
            let outcome = run.observed(&Agent::at_interval(1).with("ALLOCSAMPLE_ON_FULL", on_full));
            let known = truth::printed(&outcome.assert_success().stdout);
            let profile = outcome.profile();
            if on_full == "drop" && profile.number("lost_samples") > 0.0 {
                // Then what is missing is counted, to the sample.
                let recorded: u64 = known.keys().map(|name| profile.site(name).samples).sum();
                let real: u64 = known.values().map(|site| site.allocations).sum();
                assert!(
                    recorded < real && profile.number("lost_samples") >= (real - recorded) as f64
                );
                assert!(profile.number("lost_bytes") > 0.0);
                continue;
            }
            assert_exact(&profile, &known);
        }
    }
}

#[test]
fn what_is_lost_before_the_drain_thread_can_start_is_counted() {
    // In a signal handler no thread may be started: the ring fills up before anybody empties it.
    let agent = Agent::at_interval(1).with("ALLOCSAMPLE_ON_FULL", "drop");
    let outcome = Program::compiled("burst_in_a_handler.c")
        .run()
        .observed(&agent);
    let printed = String::from_utf8_lossy(&outcome.assert_success().stdout);
    let made: f64 = printed.trim().parse().expect("a number");
    let profile = outcome.profile();
    let recorded = profile.site("allocate").samples as f64;
    assert!(recorded < made, "the ring must overflow");
    assert!(recorded + profile.number("lost_samples") >= made);
}

#[test]
fn waiting_is_the_default_at_interval_1() {
    let run =
        Program::compiled("known_sites.cpp")
            .run()
            .args(&["--threads", "4", "--kilobytes", "4000"]);
    let outcome = run.observed(&Agent::at_interval(1));
    let known = truth::printed(&outcome.assert_success().stdout);
    assert_exact(&outcome.profile(), &known);
}

#[test]
fn at_interval_1_the_estimate_is_the_exact_total() {
    let run =
        Program::compiled("known_sites.cpp")
            .run()
            .args(&["--threads", "2", "--kilobytes", "500"]);
    let profile = run.observed(&Agent::at_interval(1)).profile();
    assert_eq!(
        profile.total("allocated_bytes"),
        profile.total("allocated_bytes_exact")
    );
    assert_eq!(profile.total("allocated_bytes_stderr"), 0.0);
}

#[test]
fn the_exact_total_does_not_depend_on_the_interval() {
    let run = Program::compiled("known_sites.cpp").run().args(&[
        "--threads",
        "4",
        "--kilobytes",
        "20000",
    ]);
    let totals: Vec<f64> = ["1M", "64K", "4K", "512"]
        .iter()
        .map(|interval| {
            run.observed(&Agent::at_interval(interval))
                .profile()
                .total("allocated_bytes_exact")
        })
        .collect();
    assert!(totals.iter().all(|&total| total == totals[0]), "{totals:?}");
}

#[test]
fn an_interval_that_is_never_reached_still_gives_the_exact_total() {
    let run =
        Program::compiled("known_sites.cpp")
            .run()
            .args(&["--threads", "2", "--kilobytes", "2000"]);
    let often = run.observed(&Agent::at_interval(4096)).profile();
    let never = run
        .observed(&Agent::at_interval("9223372036854775807"))
        .profiles();
    for profile in never {
        assert_eq!(profile.number("samples"), 0.0);
        assert_eq!(
            profile.total("allocated_bytes_exact"),
            often.total("allocated_bytes_exact")
        );
    }
}

#[test]
fn periodic_sampling_counts_sample_points_exactly() {
    let run = Program::compiled("known_sites.cpp").run().args(&[
        "--threads",
        "1",
        "--kilobytes",
        "20000",
    ]);
    for interval in [4096.0, 65536.0] {
        let profile = run
            .observed(&Agent::at_interval(interval).with("ALLOCSAMPLE_SAMPLING", "periodic"))
            .profile();
        let exact = profile.total("allocated_bytes_exact");
        let estimate = profile.total("allocated_bytes");
        // Two threads have a first distance each; every other point is one interval after the last.
        assert!(
            (estimate - exact).abs() <= 2.0 * interval,
            "{estimate} of {exact} at {interval}"
        );
        assert_eq!(profile.report["sampling"], "periodic");
    }
}

#[test]
fn a_race_for_addresses_leaves_exactly_what_is_live() {
    let outcome = Program::compiled("realloc_race.c")
        .run()
        .observed(&Agent::at_interval(1));
    let truth = outcome.assert_success().complaints();
    let (blocks, bytes) = truth.trim().split_once(' ').expect("blocks and bytes");
    let profile = outcome.profile();
    let site = profile.site("resized_in_a_race");
    assert_eq!(profile.number("lost_samples"), 0.0);
    assert_eq!(
        (site.samples, site.live_bytes),
        (80_000, bytes.parse().expect("bytes")),
        "{blocks} blocks live"
    );
}

#[test]
fn the_same_seed_gives_the_same_profile() {
    let run =
        Program::compiled("known_sites.cpp")
            .run()
            .args(&["--threads", "1", "--kilobytes", "5000"]);
    let samples = |seed| {
        let profile = run
            .observed(&Agent::at_interval(4096).seeded(seed))
            .profile();
        let sites: Vec<u64> = truth::printed(&run.bare().stdout)
            .keys()
            .map(|name| profile.site(name).samples)
            .collect();
        sites
    };
    let first = samples(7);
    assert_eq!(samples(7), first);
    assert_ne!(samples(8), first);
}
