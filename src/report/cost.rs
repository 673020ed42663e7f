//! What the agent itself cost the process.

use allocsample_profile::{Figure, HeapId, Profile};
use rayon::prelude::*;
use serde_json::{Value, json};

use crate::units;

/// Figures of the agent about itself, and what follows from them.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Mean time of a sample on the thread that allocates, in nanoseconds.
    pub sample_ns: f64,
    /// Mean time of the free of a sampled block, in nanoseconds.
    pub free_ns: f64,
    /// Time of the drain thread, in nanoseconds.
    pub drain_ns: f64,
    /// All of it: samples, frees, drain thread.
    pub total_ns: f64,
    /// Time of the program without it.
    pub program_ns: f64,
    /// The drain thread reads the time of the process when it empties the ring. Much is in the ring still, so that time is older than
    /// the samples.
    pub is_ahead: bool,
    /// Address space that the agent has taken.
    pub mapped_bytes: u64,
    /// Bytes written to the profile by the process.
    pub written_bytes: u64,
    /// Largest used part of the ring, 0 to 1.
    pub ring_share: f64,
}

impl Cost {
    /// `None`: the profile does not say.
    pub fn of(profile: &Profile) -> Option<Self> {
        let own = &profile.own_cost;
        let figure = |figure| own.of(figure) as f64;
        if own.of(Figure::RingWords) == 0 {
            return None;
        }
        let (lost, _) = profile.lost.samples();
        let (taken, freed) = samples_and_frees(profile);
        let samples = taken as f64 + lost as f64;
        let is_ahead = is_ahead(profile, taken + freed);
        let frees = freed as f64;
        let sample_ns = own.sample_ns().unwrap_or(0.0);
        // Where no free was timed, few were there.
        let free_ns = own.free_ns().unwrap_or(0.0);
        let drain_ns = figure(Figure::DrainNs);
        let total_ns = samples * sample_ns + frees * free_ns + drain_ns;
        Some(Self {
            sample_ns,
            free_ns,
            drain_ns,
            total_ns,
            program_ns: (figure(Figure::ProcessNs) - total_ns).max(0.0),
            is_ahead,
            mapped_bytes: own.of(Figure::MappedBytes),
            written_bytes: own.of(Figure::WrittenBytes),
            ring_share: (figure(Figure::MostRingWords) / figure(Figure::RingWords)).min(1.0),
        })
    }

    /// Time of the agent over time of the program; `None` if that is not known.
    pub fn overhead(&self) -> Option<f64> {
        let is_known = self.program_ns > 0.0 && !self.is_ahead;
        is_known.then(|| self.total_ns / self.program_ns)
    }
}

/// How many samples of the profile's own time there are, and how many frees of malloc's blocks.
fn samples_and_frees(profile: &Profile) -> (u64, u64) {
    /// Rows that one thread counts together.
    const BLOCK: usize = 1 << 16;
    let count = |block: usize| {
        let rows = block * BLOCK..(block + 1) * BLOCK;
        (profile.samples.range(rows)).fold((0, 0), |(taken, freed), sample| {
            let is_freed = sample.heap == HeapId::MALLOC && sample.freed_ns.is_some();
            (
                taken + u64::from(!sample.is_carried()),
                freed + u64::from(is_freed),
            )
        })
    };
    let blocks = 0..profile.samples.len().div_ceil(BLOCK);
    let add = |(taken, freed), (more_taken, more_freed)| (taken + more_taken, freed + more_freed);
    blocks.into_par_iter().map(count).reduce(|| (0, 0), add)
}

/// Whether many of the samples and frees, so many in all, are newer than the time of the process that is known.
fn is_ahead(profile: &Profile, samples_and_frees: u64) -> bool {
    const MOST: f64 = 0.25;
    profile.recovery.ring_records as f64 > MOST * samples_and_frees as f64
}

/// For people: one line on the cost, and one or more on the intervals if there was more than one.
pub fn lines(profile: &Profile) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(cost) = Cost::of(profile) {
        let share = cost.overhead().map_or_else(String::new, |share| {
            format!(" ({:.2} % of the program's own time)", share * 100.0)
        });
        lines.push(format!(
            "agent      {}{share}: {} per sample, {} per free, {} in its thread; ring {:.0} % full at most, {} of address space, {} written",
            time(cost.total_ns),
            time(cost.sample_ns),
            time(cost.free_ns),
            time(cost.drain_ns),
            cost.ring_share * 100.0,
            units::bytes(cost.mapped_bytes as f64),
            units::bytes(cost.written_bytes as f64),
        ));
    }
    lines.extend(interval_lines(profile));
    lines
}

fn interval_lines(profile: &Profile) -> Vec<String> {
    /// Of a controller that keeps a budget there may be thousands.
    const SHOWN: usize = 8;
    let history = &profile.interval_history;
    if history.len() < 2 {
        return Vec::new();
    }
    let hidden = history.len().saturating_sub(SHOWN);
    let mut lines = Vec::new();
    if hidden > 0 {
        lines.push(format!(
            "intervals  {} changes, the last ones:",
            history.len() - 1
        ));
    }
    for info in history.iter().skip(hidden) {
        let after_ns = info.time_ns.saturating_sub(profile.process.start_ns);
        let after = units::duration(after_ns as f64 / 1e9);
        let what = match info.interval_bytes {
            0 => "stopped".to_owned(),
            bytes => format!("one sample per {}", units::bytes(bytes as f64)),
        };
        lines.push(format!("interval   {what} after {after}"));
    }
    lines
}

/// Nanoseconds with a sensible unit.
pub(crate) fn time(ns: f64) -> String {
    match ns {
        ..1e3 => format!("{ns:.0} ns"),
        ..1e6 => format!("{:.1} us", ns / 1e3),
        ..1e9 => format!("{:.1} ms", ns / 1e6),
        _ => format!("{:.1} s", ns / 1e9),
    }
}

/// For scripts: `agent` and `intervals` of the report.
pub(crate) fn agent_json(profile: &Profile) -> Value {
    let Some(cost) = Cost::of(profile) else {
        return Value::Null;
    };
    let own = &profile.own_cost;
    json!({
        "sample_ns": cost.sample_ns,
        "free_ns": cost.free_ns,
        "timed_samples": own.of(Figure::TimedSamples),
        "timed_frees": own.of(Figure::TimedFrees),
        "drain_ns": cost.drain_ns,
        "total_ns": cost.total_ns,
        "program_ns": cost.program_ns,
        "overhead": cost.overhead(),
        "mapped_bytes": cost.mapped_bytes,
        "written_bytes": cost.written_bytes,
        "most_ring_bytes": own.of(Figure::MostRingWords).saturating_mul(8),
        "ring_bytes": own.of(Figure::RingWords).saturating_mul(8),
    })
}

pub(crate) fn intervals_json(profile: &Profile) -> Vec<Value> {
    profile
        .interval_history
        .iter()
        .map(|info| {
            let after_ns = info.time_ns.saturating_sub(profile.process.start_ns);
            json!({"after_s": after_ns as f64 / 1e9, "interval_bytes": info.interval_bytes})
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        for (ns, text) in [
            (12.4, "12 ns"),
            (1234.0, "1.2 us"),
            (56_700_000.0, "56.7 ms"),
            (2e9, "2.0 s"),
        ] {
            assert_eq!(time(ns), text);
        }
    }

    /// The process's time is read when the ring is emptied. Samples that lie in it still are of later.
    #[test]
    fn a_share_of_the_programs_time_is_told_only_where_both_are_of_one_moment() {
        let mut profile = Profile::default();
        let mut cost = Cost {
            sample_ns: 10_000.0,
            free_ns: 1000.0,
            drain_ns: 0.0,
            total_ns: 1e6,
            program_ns: 1e8,
            is_ahead: false,
            mapped_bytes: 0,
            written_bytes: 0,
            ring_share: 0.1,
        };
        for (ring_records, share) in [(0, Some(0.01)), (10, Some(0.01)), (90, None)] {
            profile.recovery.ring_records = ring_records;
            cost.is_ahead = is_ahead(&profile, 100);
            assert_eq!(cost.overhead(), share);
        }
    }

    #[test]
    fn a_profile_that_says_nothing_has_no_line() {
        assert!(lines(&Profile::default()).is_empty());
        assert!(agent_json(&Profile::default()).is_null());
    }
}
