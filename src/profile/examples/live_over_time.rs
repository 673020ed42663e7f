//! Live bytes at twenty moments of a run: `cargo run -p allocsample-profile --example live_over_time -- FILE`.

use std::path::Path;

use allocsample_profile::{Profile, SampleFlags, Weights};

const MOMENTS: usize = 20;

fn main() {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: live_over_time FILE");
        std::process::exit(2);
    };
    let profile = match Profile::open(Path::new(&path)) {
        Ok(profile) => profile,
        Err(error) => {
            eprintln!("error: {}: {error}", Path::new(&path).display());
            std::process::exit(1);
        }
    };
    for (seconds, bytes) in live_over_time(&profile) {
        println!("{seconds:10.3} s {bytes:14.0} B");
    }
}

/// Seconds since the start, and the estimated live bytes then.
fn live_over_time(profile: &Profile) -> Vec<(f64, f64)> {
    let start_ns = profile.process.start_ns;
    let length_ns = profile.process.end_ns.saturating_sub(start_ns).max(1);
    let slot = |time_ns: u64| {
        let after = time_ns.saturating_sub(start_ns) as f64 / length_ns as f64;
        ((after * MOMENTS as f64).ceil() as usize).min(MOMENTS)
    };
    let mut weights = Weights::of(profile);
    // By slot, what was added to the live bytes and taken away since the slot before.
    let mut changes = [0.0; MOMENTS + 1];
    for sample in &profile.samples {
        // The end of these was not watched.
        if sample.flags.contains(SampleFlags::UNTRACKED) {
            continue;
        }
        let bytes = weights.get(&sample).0.value();
        changes[slot(sample.time_ns)] += bytes;
        if let Some(freed) = sample.freed() {
            changes[slot(freed.time_ns)] -= bytes;
        }
    }
    let seconds = |slot: usize| length_ns as f64 / 1e9 * slot as f64 / MOMENTS as f64;
    let mut live = 0.0;
    let levels = changes.iter().enumerate().map(|(slot, change)| {
        live += change;
        (seconds(slot), live)
    });
    levels.collect()
}
