//! How far a program is at each moment, from 0 to 1: by time, and by work.
//!
//! A leak grows with the requests that are served, and an idle program serves none. Work is what the program allocates
//! and frees again: tables that it builds when it starts, and leaks themselves, are none.

use allocsample_profile::{Profile, SampleFlags};

/// Fewer freed samples than this say too little of work.
const ENOUGH_WORK: usize = 100;

/// Of the time, the end that is left out: programs free then what nobody counts as freed.
const END_SHARE: f64 = 0.03;

/// A clock from 0 (the profile's beginning) to 1 (its horizon).
#[derive(Clone, Debug)]
pub enum Clock {
    /// Seconds.
    Time {
        /// 0.
        start_ns: u64,
        /// 1.
        horizon_ns: u64,
    },
    /// Births of samples that were freed before the horizon, sorted.
    Work(Vec<u64>),
}

impl Clock {
    /// How far the program is at a time.
    pub fn at(&self, time_ns: u64) -> f64 {
        match self {
            Self::Time {
                start_ns,
                horizon_ns,
            } => {
                let length = horizon_ns.saturating_sub(*start_ns).max(1);
                time_ns.saturating_sub(*start_ns) as f64 / length as f64
            }
            Self::Work(births) => {
                births.partition_point(|&birth| birth <= time_ns) as f64 / births.len() as f64
            }
        }
    }
}

/// The moment from which on nothing counts: the last allocation that was sampled, or the last hundredths of the run,
/// whichever is earlier. What is freed later is freed at the end.
pub fn horizon_ns(profile: &Profile) -> u64 {
    let (start, end) = (profile.process.start_ns, profile.process.end_ns);
    let length = end.saturating_sub(start) as f64;
    let late = start + (length * (1.0 - END_SHARE)) as u64;
    let last_birth = profile.samples.iter().map(|sample| sample.time_ns).max();
    late.min(last_birth.unwrap_or(end)).max(start)
}

/// The clocks by which growth is looked for.
pub fn clocks(profile: &Profile, horizon_ns: u64) -> Vec<Clock> {
    let mut clocks = vec![Clock::Time {
        start_ns: profile.process.start_ns,
        horizon_ns,
    }];
    let mut births: Vec<u64> = profile
        .samples
        .iter()
        .filter(|sample| !sample.flags.contains(SampleFlags::UNTRACKED))
        .filter(|sample| {
            sample
                .freed()
                .is_some_and(|freed| freed.time_ns <= horizon_ns)
        })
        .map(|sample| sample.time_ns)
        .collect();
    if births.len() >= ENOUGH_WORK {
        births.sort_unstable();
        clocks.push(Clock::Work(births));
    }
    clocks
}
