//! What the whole process allocated.

use std::collections::{BTreeMap, BTreeSet};

use allocsample_profile::{Examined, HeapId, LostReason, Peak, Profile, ThreadId, Weights};
use allocsample_sampling::Estimate;
use rustc_hash::FxHashMap;

use crate::coverage::Coverage;

/// Sums over all samples.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Bytes that were allocated.
    pub allocated: Estimate,
    /// Allocations.
    pub allocations: Estimate,
    /// Bytes alive at the end.
    pub live: Estimate,
    /// Those of them that no full collection has looked at yet: of a collected heap, since its last one.
    pub unexamined: Estimate,
    /// When most bytes were alive.
    pub peak: Peak,
    /// The estimate against the exact count, for the process and for each thread.
    pub audit: Audit,
    /// Bytes that went through the threads' counters.
    pub exact_bytes: u64,
    /// The part of them that other heaps took from malloc. The objects in that memory count as allocated instead.
    pub backing: Estimate,
    /// How much of the process's memory the profile accounts for, if that is known.
    pub coverage: Option<Coverage>,
}

/// How far the estimates are from the exact counts, in standard errors. Within 5 is luck, beyond it a defect of the profile.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    /// Of the whole process; `None` if there is no standard error.
    pub z: Option<f64>,
    /// Of threads.
    pub threads: BTreeMap<ThreadId, f64>,
}

impl Audit {
    /// Beyond this many standard errors something is wrong.
    pub const LIMIT: f64 = 5.0;

    /// Whether all is within bounds.
    pub fn is_passed(&self) -> bool {
        self.z
            .into_iter()
            .chain(self.threads.values().copied())
            .all(|z| z.abs() <= Self::LIMIT)
    }
}

impl Totals {
    /// Adds up a profile.
    pub fn of(profile: &Profile) -> Self {
        let (totals, (peak, coverage)) = rayon::join(
            || Self::without_peak(profile),
            || rayon::join(|| Peak::of(profile), || Coverage::of(profile)),
        );
        Self {
            peak,
            coverage,
            ..totals
        }
    }

    fn without_peak(profile: &Profile) -> Self {
        let mut totals = Self {
            allocated: Estimate::default(),
            allocations: Estimate::default(),
            live: Estimate::default(),
            unexamined: Estimate::default(),
            peak: Peak::default(),
            audit: Audit::default(),
            exact_bytes: profile.exact_bytes(),
            backing: Estimate::default(),
            coverage: None,
        };
        let allowances = profile.allowances(0, u64::MAX);
        let allowance = allowances.of_process();
        totals.allocated = totals.allocated.allowing_for(allowance.bytes);
        totals.live = totals.live.allowing_for(allowance.bytes);
        totals.allocations = totals.allocations.allowing_for(allowance.objects);
        let mut by_thread: FxHashMap<ThreadId, Estimate> = FxHashMap::default();
        let mut counted = Estimate::default();
        // Looked up before: it adds up all threads.
        let counted_heaps: BTreeSet<HeapId> = profile
            .vm
            .heaps
            .keys()
            .copied()
            .chain([HeapId::MALLOC])
            .filter(|heap| profile.is_counted(*heap))
            .collect();
        let mut weights = Weights::of(profile);
        // Of the thread of the last sample, which most often is that of the next.
        let (mut last_thread, mut of_thread) = (ThreadId(0), Estimate::default());
        let examined = Examined::of(profile);
        for sample in &profile.samples {
            let (bytes, objects) = weights.get(&sample);
            if sample.is_live() {
                totals.live += bytes;
                if examined.is_unexamined(&sample) {
                    totals.unexamined += bytes;
                }
            }
            if sample.is_carried() {
                continue;
            }
            totals.allocated += bytes;
            // malloc's counters charge a byte for a block of none.
            let is_charged_one = sample.size == 0 && sample.heap == HeapId::MALLOC;
            let charged = if is_charged_one { objects } else { bytes };
            if sample.heap == HeapId::MALLOC || counted_heaps.contains(&sample.heap) {
                counted += charged;
            }
            totals.allocations += objects;
            // A thread's counter is malloc's.
            if sample.heap == HeapId::MALLOC {
                if sample.thread != last_thread {
                    by_thread.insert(last_thread, of_thread);
                    last_thread = sample.thread;
                    of_thread = by_thread.get(&last_thread).copied().unwrap_or_default();
                }
                of_thread += charged;
            }
        }
        by_thread.insert(last_thread, of_thread);
        for block in profile.backing.as_mallocs().filter(|it| !it.is_carried()) {
            let (bytes, _) = weights.get(&block);
            counted += bytes;
            totals.backing += bytes;
            *by_thread.entry(block.thread).or_default() += bytes;
        }
        // The exact counts are those of the whole process.
        if profile.narrowed.is_some() {
            return totals;
        }
        let (_, lost_bytes) = profile.lost.samples();
        let (_, left_bytes) = profile.lost.of(LostReason::LeftOut);
        // What was lost, or left out, is missing from the estimate for a known reason.
        let missing_bytes = lost_bytes.saturating_add(left_bytes);
        totals.audit.z = match counted.samples() {
            0 if missing_bytes == 0 => z_of_nothing(profile, totals.exact_bytes),
            _ => {
                let told = counted + not_taken(profile, missing_bytes);
                z_of(profile, told, totals.exact_bytes as f64)
            }
        };
        if missing_bytes == 0 {
            /// With fewer samples the standard error is itself too uncertain.
            const ENOUGH_SAMPLES: u64 = 30;
            totals.audit.threads = by_thread
                .into_iter()
                .filter(|(_, estimate)| estimate.samples() >= ENOUGH_SAMPLES)
                .filter_map(|(id, estimate)| {
                    let exact_bytes = profile.threads.get(&id)?.exact_bytes;
                    Some((id, z_of(profile, estimate, exact_bytes as f64)?))
                })
                .collect();
        }
        totals
    }

    /// Length of the profile in seconds, or of the part that is left of it.
    pub fn duration_s(profile: &Profile) -> f64 {
        let span = profile.span_ns();
        (span.end - span.start) as f64 / 1e9
    }
}

/// How odd it is that nothing was sampled of so many bytes. Under the law the bytes of samples have the variance
/// bytes * interval (that of small objects, which is the largest), so z = -bytes / sqrt(bytes * interval).
fn z_of_nothing(profile: &Profile, exact_bytes: u64) -> Option<f64> {
    let (_, longest) = intervals(profile);
    let is_judged = exact_bytes > 0 && longest > 1 && !profile.is_periodic();
    is_judged.then(|| -(exact_bytes as f64 / longest as f64).sqrt())
}

/// How far an estimate is from the exact bytes, in standard errors.
///
/// That of the samples knows nothing of an interval under which there was none. Where several were in force, what is
/// missing may have been allocated under the longest: it then has the variance missing * interval, as above. With one
/// interval that would be, on the whole, what the samples say themselves.
fn z_of(profile: &Profile, estimate: Estimate, exact_bytes: f64) -> Option<f64> {
    let (shortest, longest) = intervals(profile);
    let missing = exact_bytes - estimate.value();
    if shortest == longest || missing <= 0.0 || profile.is_periodic() {
        return estimate.z_against(exact_bytes);
    }
    let variance = missing * longest as f64;
    (estimate + Estimate::from_parts(0.0, Some(variance), 0)).z_against(exact_bytes)
}

/// The shortest and the longest that was in force.
fn intervals(profile: &Profile) -> (u64, u64) {
    let bytes = profile.intervals.iter().map(|it| it.interval_bytes);
    let bytes = bytes.filter(|&bytes| bytes > 0);
    let shortest = bytes.clone().min();
    (shortest.unwrap_or(0), bytes.max().unwrap_or(0))
}

/// Samples that were due, of which only the bytes that they stood for are known. Each one of S bytes has the variance
/// (S/p)^2 (1 - p), of which the mean over the law is S^2 (1 - p) / p, at most S times the interval; at an interval of 1
/// it is 0.
fn not_taken(profile: &Profile, bytes: u64) -> Estimate {
    let (_, longest) = intervals(profile);
    let interval = if longest > 1 { longest } else { 0 };
    Estimate::from_parts(bytes as f64, Some(bytes as f64 * interval as f64), 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random_profile::random_profile;
    use allocsample_profile::IntervalInfo;

    #[test]
    fn that_nothing_was_sampled_is_odd_only_where_much_was_allocated() {
        let mut profile = random_profile(0, 1, 1);
        for (interval_bytes, exact_bytes, z, is_passed) in [
            (1 << 20, 4400, Some(-0.065), true),
            (1 << 20, 100 << 20, Some(-10.0), false),
            (1, 0, None, true),
        ] {
            profile.intervals[0].interval_bytes = interval_bytes;
            let thread = profile.threads.entry(ThreadId(1)).or_default();
            thread.exact_bytes = exact_bytes;
            let audit = Totals::of(&profile).audit;
            let difference = audit.z.unwrap_or(0.0) - z.unwrap_or(0.0);
            assert!(difference.abs() < 0.001, "{:?} {z:?}", audit.z);
            assert_eq!(
                (audit.z.is_some(), audit.is_passed()),
                (z.is_some(), is_passed)
            );
        }
    }

    #[test]
    fn counts_that_no_program_reaches_do_not_overflow() {
        let mut profile = random_profile(0, 1, 1);
        for id in [1, 2] {
            profile.threads.entry(ThreadId(id)).or_default().exact_bytes = u64::MAX;
        }
        profile.lost.0.fill((u64::MAX, u64::MAX));
        let totals = Totals::of(&profile);
        assert_eq!(totals.exact_bytes, u64::MAX);
        // As much is missing as there was.
        assert!(totals.audit.is_passed(), "{:?}", totals.audit);
    }

    #[test]
    fn what_an_interval_may_have_hidden_is_no_reason_for_distrust() {
        const LONG: u64 = 1 << 20;
        let mut profile = random_profile(40, 100, 1);
        profile.intervals[0].interval_bytes = 4096;
        let seen = Totals::of(&profile).allocated;
        let several = |profile: &Profile, missing: u64| {
            let mut profile = profile.clone();
            let thread = profile.threads.entry(ThreadId(1)).or_default();
            thread.exact_bytes = seen.value() as u64 + missing;
            let one = Totals::of(&profile).audit;
            let long = IntervalInfo {
                interval_bytes: LONG,
                ..profile.intervals[0]
            };
            profile.intervals.push(long);
            (one, Totals::of(&profile).audit)
        };
        let (one, two) = several(&profile, LONG);
        assert!(
            !one.is_passed() && two.is_passed(),
            "{:?} {:?}",
            one.z,
            two.z
        );
        // All of it under the longest, and nothing seen: e^-1.
        assert!(
            two.z.unwrap() > -1.1 && two.z.unwrap() < -0.8,
            "{:?}",
            two.z
        );
        assert!(two.threads.values().all(|z| *z > -1.1), "{:?}", two.threads);
        let (_, two) = several(&profile, 100 * LONG);
        assert!(!two.is_passed(), "{:?}", two.z);
        profile.samples = Default::default();
        let (one, two) = several(&profile, LONG / 2);
        assert!(
            !one.is_passed() && two.is_passed(),
            "{:?} {:?}",
            one.z,
            two.z
        );
    }

    #[test]
    fn samples_that_were_lost_or_left_out_are_drawn_like_those_that_were_not() {
        const INTERVAL: u64 = 4096;
        const LOST: u64 = 100_000;
        for reason in [LostReason::RingFull, LostReason::LeftOut] {
            let mut profile = random_profile(40, 100, 1);
            profile.intervals[0].interval_bytes = INTERVAL;
            let seen = Totals::of(&profile).allocated.value() as u64;
            profile.lost.0[reason as usize] = (LOST, LOST * INTERVAL);
            // Two standard errors of so many small ones; twenty.
            for (root, is_passed) in [(2 * 316, true), (20 * 316, false)] {
                let thread = profile.threads.entry(ThreadId(1)).or_default();
                thread.exact_bytes = seen + (LOST + root) * INTERVAL;
                let audit = Totals::of(&profile).audit;
                assert_eq!(audit.is_passed(), is_passed, "{reason:?}: {:?}", audit.z);
            }
            profile.intervals[0].interval_bytes = 1;
            assert!(!Totals::of(&profile).audit.is_passed());
        }
    }
}
