//! How far a program is at each moment, from 0 to 1: by time, and by work.
//!
//! A leak grows with the requests that are served, and an idle program serves none. Work is what the program allocates
//! and frees again: tables that it builds when it starts, and leaks themselves, are none.

use allocsample_profile::{ExitHow, Profile, SampleFlags};

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
    /// Births of samples that were freed before the horizon.
    Work(Births),
}

/// Moments, and how many there are up to any time. There may be ten millions, and each is asked for several times: so a
/// directory says where to look.
#[derive(Clone, Debug)]
pub struct Births {
    /// Sorted; not empty.
    times: Vec<u64>,
    /// For each stretch of time how many are before it; one more says how many there are.
    before: Vec<u32>,
    /// Nanoseconds of a stretch, as a power of two.
    stretch_log2: u32,
}

impl Births {
    fn of(mut times: Vec<u64>) -> Self {
        /// Moments in a stretch, if they come evenly.
        const PER_STRETCH: u64 = 8;
        times.sort_unstable();
        let (first, last) = (times.first().copied(), times.last().copied());
        let length = last.unwrap_or(0) - first.unwrap_or(0);
        let stretches = times.len() as u64 / PER_STRETCH + 1;
        let stretch_log2 = (length / stretches + 1).ilog2() + 1;
        let mut before = Vec::with_capacity((length >> stretch_log2) as usize + 2);
        for (index, time) in (0..).zip(&times) {
            let stretch = (time - first.unwrap_or(0)) >> stretch_log2;
            while before.len() as u64 <= stretch {
                before.push(index);
            }
        }
        // A profile has no more samples than 32 bits can number: they would not fit into memory.
        before.push(times.len() as u32);
        Self {
            times,
            before,
            stretch_log2,
        }
    }

    /// How many there are up to a time.
    fn up_to(&self, time_ns: u64) -> usize {
        let Some(after) = self
            .times
            .first()
            .and_then(|first| time_ns.checked_sub(*first))
        else {
            return 0;
        };
        let stretch = (after >> self.stretch_log2) as usize;
        let [start, end] = match self.before.get(stretch..stretch + 2) {
            Some(&[start, end]) => [start as usize, end as usize],
            _ => return self.times.len(),
        };
        start + self.times[start..end].partition_point(|&birth| birth <= time_ns)
    }
}

impl Clock {
    /// The moment at which the program is so far, by the clock of time; the beginning by any other.
    pub fn time_ns(&self, progress: f64) -> u64 {
        match self {
            Self::Time {
                start_ns,
                horizon_ns,
            } => {
                let length = horizon_ns.saturating_sub(*start_ns) as f64;
                start_ns + (length * progress) as u64
            }
            Self::Work(births) => births.times.first().copied().unwrap_or(0),
        }
    }

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
            Self::Work(births) => births.up_to(time_ns) as f64 / births.times.len() as f64,
        }
    }
}

/// The moment from which on nothing counts: the last allocation that was sampled or mapping that was made, or the last hundredths of the run,
/// whichever is earlier. What is freed later is freed at the end. If the program goes on, every free counts: a collection that was requested
/// just before a snapshot frees what had long been garbage.
pub fn horizon_ns(profile: &Profile) -> u64 {
    let std::ops::Range { start, end } = profile.span_ns();
    let length = end.saturating_sub(start) as f64;
    let late = start + (length * (1.0 - END_SHARE)) as u64;
    let births = profile.samples.iter().map(|sample| sample.time_ns);
    let calls = profile.mappings.iter().map(|call| call.mapped);
    let mapped = calls.filter(|it| it.change.maps() && !it.change.is_own());
    let last_birth = births.chain(mapped.map(|it| it.time_ns)).max();
    if has_ended(profile) {
        return late.min(last_birth.unwrap_or(end)).max(start);
    }
    let deaths = profile.samples.iter().filter_map(|sample| sample.freed());
    let last_death = deaths.map(|freed| freed.time_ns).max();
    let last = last_birth.max(last_death);
    last.unwrap_or(end).min(end).max(start)
}

/// Whether the program ended with the recording, as far as is known. A detach, a snapshot and a SIGKILL free nothing.
pub fn has_ended(profile: &Profile) -> bool {
    let exit = profile.exit.as_ref();
    exit.is_some_and(|exit| exit.how != ExitHow::Detached)
}

/// Since when allocations are sampled: a program may be told to wait with it. What it allocated until it heard of that is
/// no beginning if nothing was sampled.
pub fn observed_from_ns(profile: &Profile) -> u64 {
    let first = profile.samples.iter().map(|sample| sample.time_ns).min();
    let first_ns = first.unwrap_or(u64::MAX);
    let history = &profile.interval_history;
    let stopped = history
        .iter()
        .any(|info| info.interval_bytes == 0 && info.time_ns <= first_ns);
    let before = history.iter().rev().find(|info| info.time_ns <= first_ns);
    let start_ns = profile.span_ns().start;
    match before {
        Some(info) if stopped => info.time_ns.max(start_ns),
        _ => start_ns,
    }
}

/// Nanoseconds before the horizon in which nothing was sampled.
pub fn unobserved_ns(profile: &Profile, horizon_ns: u64) -> u64 {
    let start_ns = profile.span_ns().start;
    let history = &profile.interval_history;
    let ends = history
        .iter()
        .skip(1)
        .map(|info| info.time_ns)
        .chain([horizon_ns]);
    let stopped = history
        .iter()
        .zip(ends)
        .filter(|(info, _)| info.interval_bytes == 0);
    let within = |time_ns: u64| time_ns.clamp(start_ns, horizon_ns.max(start_ns));
    stopped
        .map(|(info, end_ns)| within(end_ns).saturating_sub(within(info.time_ns)))
        .sum()
}

/// The clocks by which growth is looked for, that of time first.
pub fn clocks(profile: &Profile, horizon_ns: u64) -> Vec<Clock> {
    let mut clocks = vec![Clock::Time {
        start_ns: observed_from_ns(profile).min(horizon_ns),
        horizon_ns,
    }];
    let births: Vec<u64> = profile
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
        clocks.push(Clock::Work(Births::of(births)));
    }
    clocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_sampling::Random;

    /// `ctl gc` before a snapshot frees, after the last allocation, what had long been garbage.
    #[test]
    fn frees_at_the_end_count_unless_the_program_ended() {
        let horizon = |how: Option<ExitHow>| {
            let mut profile = Profile::default();
            profile.process.end_ns = 1000;
            let mut samples = [100, 950].map(|time_ns| allocsample_profile::Sample {
                time_ns,
                ..Default::default()
            });
            let thread = allocsample_profile::ThreadId(1);
            let time_ns = 990;
            samples[0].set_freed(allocsample_profile::Freed { time_ns, thread });
            profile.samples = samples.to_vec().into();
            profile.exit = how.map(|how| allocsample_profile::Exit {
                time_ns: 1000,
                how,
                status: None,
            });
            horizon_ns(&profile)
        };
        assert_eq!(horizon(Some(ExitHow::Exit)), 950);
        assert_eq!(horizon(Some(ExitHow::Detached)), 990);
        assert_eq!(horizon(None), 990);
    }

    #[test]
    fn a_run_that_waits_is_observed_from_its_first_sample_on() {
        let info = |time_ns, interval_bytes| allocsample_profile::IntervalInfo {
            time_ns,
            sampling: allocsample_profile::Sampling::Poisson,
            interval_bytes,
            seed: 1,
        };
        let mut profile = Profile::default();
        profile.process.end_ns = 1000;
        profile.interval_history = vec![
            info(0, 64),
            info(2, 0),
            info(200, 64),
            info(500, 0),
            info(600, 64),
        ];
        let sample_at = |time_ns| allocsample_profile::Sample {
            time_ns,
            ..Default::default()
        };
        profile.samples = vec![sample_at(210), sample_at(700)].into();
        assert_eq!(observed_from_ns(&profile), 200);
        assert_eq!(unobserved_ns(&profile, 550), 198 + 50);
        profile.samples = [sample_at(1)].into_iter().chain(&profile.samples).collect();
        assert_eq!(observed_from_ns(&profile), 0, "it began with the run");
        assert_eq!(unobserved_ns(&profile, 1000), 198 + 100);
    }

    #[test]
    fn births_are_counted_as_by_looking_at_all() {
        let mut random = Random::from_seed(5);
        for (count, length) in [(1, 1), (7, 3), (1000, 1 << 40), (5000, 50)] {
            // Half of them at one end.
            let time = |n: u64, random: &mut Random| 100 + random.below(length) * (n % 2);
            let times: Vec<u64> = (0..count).map(|n| time(n, &mut random)).collect();
            let births = Births::of(times.clone());
            let asked = times.iter().flat_map(|time| [time - 1, *time, time + 1]);
            for time in asked.chain([0, u64::MAX]) {
                let expected = times.iter().filter(|&&birth| birth <= time).count();
                assert_eq!(births.up_to(time), expected, "{count} {length} {time}");
            }
        }
    }
}
