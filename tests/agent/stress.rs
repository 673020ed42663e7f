//! Promise: no crash, no hang, nothing lost uncounted, whatever 64 threads do at once, on any allocator.
//!
//! ALLOCSAMPLE_TEST_SECONDS sets how long each allocator is under stress: 2 by default; a release wants 120.

use std::path::Path;

use crate::support::{Agent, Program, allocators};

fn seconds() -> u64 {
    match std::env::var("ALLOCSAMPLE_TEST_SECONDS") {
        Ok(text) => text.parse().expect("ALLOCSAMPLE_TEST_SECONDS is a number"),
        Err(_) => 2,
    }
}

#[track_caller]
fn survives_stress(allocator: Option<&Path>) {
    let plugin = Program::library("plugin.c", "libplugin.so", &[]);
    let mut run = Program::compiled("stress.cpp")
        .run()
        .arg(seconds().to_string())
        .arg(plugin.path())
        .patience(120 + 4 * seconds());
    if let Some(allocator) = allocator {
        run = run.preload_after_agent(allocator);
    }
    let outcome = run.observed(&Agent::at_interval(4096));
    outcome.assert_success();
    assert_eq!(
        outcome.text(),
        "every block held what was written into it\n"
    );
    assert_eq!(outcome.complaints(), "");
    let mut whole = 0;
    for profile in outcome.profiles() {
        assert!(profile.is_complete(), "{}", profile.path().display());
        let lost_samples = profile.number("lost_samples");
        assert_eq!(lost_samples > 0.0, profile.number("lost_bytes") > 0.0);
        // What was recorded and what was lost add up to what went through the counters.
        let exact = profile.total("allocated_bytes_exact");
        let found = profile.total("allocated_bytes") + profile.number("lost_bytes");
        // The standard error of few samples is itself uncertain: a child that took one among ten intervals' bytes is luck.
        // Under the Poisson law it is at most about the root of the bytes times the interval.
        let law = (exact * 4096.0).sqrt();
        let stderr = profile.total("allocated_bytes_stderr").max(law);
        let share_lost = 1.0 + profile.number("lost_bytes") / exact.max(1.0);
        assert!(
            (found - exact).abs() < 6.0 * stderr * share_lost,
            "{found} of {exact} bytes, standard error {stderr}: {}",
            profile.path().display()
        );
        whole += u32::from(profile.number("samples") > 1000.0);
    }
    assert!(whole >= 1, "nobody took samples");
}

#[test]
fn stress_on_glibc() {
    survives_stress(None);
}

#[test]
fn stress_on_other_allocators() {
    for (name, library) in allocators::installed() {
        eprintln!("{name}");
        survives_stress(Some(&library));
    }
}
