//! Promise: it can be left on. However long a program runs, the agent's memory has the same bound, the profile stays below
//! its size, and nothing is lost uncounted.
//!
//! ALLOCSAMPLE_TEST_SECONDS sets how long it runs: 5 by default; a release wants 1800.

use crate::support::{Agent, Program};

#[test]
fn a_long_run_takes_no_more_memory_and_no_more_disk_than_a_short_one() {
    const MOST_BYTES: u64 = 16 << 20;
    const INTERVAL: f64 = 4096.0;
    let seconds = match std::env::var("ALLOCSAMPLE_TEST_SECONDS") {
        Ok(text) => text.parse().expect("ALLOCSAMPLE_TEST_SECONDS is a number"),
        Err(_) => 5_u64,
    };
    let agent = Agent::at_interval("4K")
        .with("ALLOCSAMPLE_MAX_SIZE", MOST_BYTES)
        .seeded(6);
    let outcome = Program::compiled("soak.c")
        .run()
        .arg(seconds.to_string())
        .patience(120 + 2 * seconds)
        .observed(&agent);
    assert_eq!(outcome.assert_success().text(), "soaked\n");
    let path = &outcome.profile_paths()[0];
    let length = std::fs::metadata(path).expect("a profile").len();
    assert!(length <= MOST_BYTES, "{length}");
    let profile = outcome.profile();
    assert!(profile.is_complete());
    // What was recorded and lost adds up to what went through the counters, for each interval that was in force.
    let z = profile.report["audit"]["z"].as_f64().expect("a deviation");
    assert!(z.abs() < 4.0, "{z}");
    let figure = |name: &str| profile.report["agent"][name].as_f64().expect("a figure");
    eprintln!(
        "{seconds} s: {} samples, {} lost, z {z:+.1}; {} bytes of address space, {length} of disk; {} ns a sample, overhead {:.4}",
        profile.number("samples"),
        profile.number("lost_samples"),
        figure("mapped_bytes"),
        figure("sample_ns"),
        figure("overhead"),
    );
    // Work areas for 32 threads that have come and gone, tables for 8,000 live blocks, the drain thread's. Most of it is
    // never touched.
    assert!(figure("mapped_bytes") < f64::from(40 << 20));
    let exact = profile.total("allocated_bytes_exact");
    assert!(exact > 1000.0 * INTERVAL);
}
