//! Promise: tools outside of the process hear of each sample and its end through the otel_memory probes.
#![cfg(target_arch = "x86_64")]

use crate::support::profile::figure;
use crate::support::{Agent, Program};
use serde_json::Value;

const INTERVAL: f64 = 16_384.0;

#[test]
fn listeners_get_every_sample_with_its_weight_and_its_free() {
    let outcome = Program::compiled("probes.c")
        .run()
        .observed(&Agent::at_interval("16K").seeded(5));
    outcome.assert_success();
    let profile = outcome.profile();
    let site = profile.site("probed");
    let heap = profile.row("heaps", "name", "org.example.probed");
    let recorded = [
        (site.samples as f64, site.allocated_bytes),
        (figure(heap, "samples"), figure(heap, "allocated_bytes")),
    ];
    let text = outcome.text();
    assert_eq!(text.lines().count(), recorded.len());
    for (line, (samples, bytes)) in text.lines().zip(recorded) {
        let heard: Value = serde_json::from_str(line).expect("JSON");
        assert_agrees(&heard, samples, bytes);
    }
}

/// What was heard, with what the profile has.
#[track_caller]
fn assert_agrees(heard: &Value, samples: f64, bytes: f64) {
    let number = |name: &str| heard[name].as_f64().expect("a number");
    // The contract: weights add up to the allocated bytes on average. Under the Poisson law the standard error is about
    // the root of bytes times interval; seeds are fixed.
    let error = (number("bytes") * INTERVAL).sqrt();
    let deviation = number("weights") - number("bytes");
    assert!(deviation.abs() < 4.0 * error, "{heard}");
    // Exactly what the profile has, but for less than a byte a sample.
    assert_eq!(samples, number("allocs"));
    let rounding = bytes - number("weights");
    assert!((0.0..number("allocs")).contains(&rounding), "{rounding}");
    assert_eq!(number("frees"), number("allocs"));
    assert_eq!(number("foreign_frees"), 0.0);
}
