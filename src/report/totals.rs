//! What the whole process allocated.

use std::collections::{BTreeMap, BTreeSet};

use std::num::NonZeroU64;

use allocsample_profile::{HeapId, LostReason, Profile, Sample, SampleFlags, ThreadId};
use allocsample_sampling::Estimate;
use rustc_hash::FxHashMap;

use allocsample_profile::Weights;

/// Sums over all samples.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Bytes that were allocated.
    pub allocated: Estimate,
    /// Allocations.
    pub allocations: Estimate,
    /// Bytes alive at the end.
    pub live: Estimate,
    /// When most bytes were alive.
    pub peak: Peak,
    /// The estimate against the exact count, for the process and for each thread.
    pub audit: Audit,
    /// Bytes that went through the threads' counters.
    pub exact_bytes: u64,
}

/// The moment at which the estimated live bytes were largest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peak {
    /// Live bytes then.
    pub bytes: f64,
    /// Nanoseconds since the start of the profile.
    pub after_ns: u64,
}

/// How far the estimates are from the exact counts, in standard errors. Within 5 is luck, beyond it a defect: of the
/// profile, or of the program's counting (many blocks of 0 bytes).
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
        let mut totals = Self {
            allocated: Estimate::default(),
            allocations: Estimate::default(),
            live: Estimate::default(),
            peak: peak(profile),
            audit: Audit::default(),
            exact_bytes: profile.exact_bytes(),
        };
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
        for sample in &profile.samples {
            let (bytes, objects) = weights.get(sample);
            if sample.is_live() {
                totals.live += bytes;
            }
            if sample.is_carried() {
                continue;
            }
            totals.allocated += bytes;
            if counted_heaps.contains(&sample.heap) {
                counted += bytes;
            }
            totals.allocations += objects;
            // A thread's counter is malloc's.
            if sample.heap == HeapId::MALLOC {
                *by_thread.entry(sample.thread).or_default() += bytes;
            }
        }
        let (_, lost_bytes) = profile.lost.samples();
        let (_, left_bytes) = profile.lost.of(LostReason::LeftOut);
        // Each sample of S bytes adds (S/p)^2 (1 - p), of which the mean over the law is S^2 (1 - p) / p, at most S times
        // the interval.
        let left_stderr = (left_bytes as f64 * profile.interval_bytes() as f64).sqrt();
        let left_out = Estimate::from_parts(left_bytes as f64, Some(left_stderr), 0);
        // What was lost is missing from the estimate for a known reason.
        totals.audit.z = match counted.samples() {
            0 if lost_bytes + left_bytes == 0 => z_of_nothing(profile, totals.exact_bytes),
            _ => (counted + constant(lost_bytes as f64) + left_out)
                .z_against(totals.exact_bytes as f64),
        };
        if lost_bytes + left_bytes == 0 {
            /// With fewer samples the standard error is itself too uncertain.
            const ENOUGH_SAMPLES: u64 = 30;
            totals.audit.threads = by_thread
                .into_iter()
                .filter(|(_, estimate)| estimate.samples() >= ENOUGH_SAMPLES)
                .filter_map(|(id, estimate)| {
                    Some((
                        id,
                        estimate.z_against(profile.threads.get(&id)?.exact_bytes as f64)?,
                    ))
                })
                .collect();
        }
        totals
    }

    /// Length of the profile in seconds.
    pub fn duration_s(profile: &Profile) -> f64 {
        profile
            .process
            .end_ns
            .saturating_sub(profile.process.start_ns) as f64
            / 1e9
    }
}

/// How odd it is that nothing was sampled of so many bytes. Under the law the bytes of samples have the variance
/// bytes * interval (that of small objects, which is the largest), so z = -bytes / sqrt(bytes * interval).
fn z_of_nothing(profile: &Profile, exact_bytes: u64) -> Option<f64> {
    let interval = profile.interval_bytes();
    let is_judged = exact_bytes > 0 && interval > 1 && !profile.is_periodic();
    is_judged.then(|| -(exact_bytes as f64 / interval as f64).sqrt())
}

fn constant(value: f64) -> Estimate {
    Estimate::from_parts(value, Some(0.0), 0)
}

/// Replays allocations and frees in the order of time. At equal times frees first: a block that is replaced is not alive
/// twice.
///
/// Sorting all of them at once would take a second and 300 MB for ten million samples. So they are put into bins of
/// time first, each of which is sorted by itself.
fn peak(profile: &Profile) -> Peak {
    /// Samples in a bin, if they come evenly.
    const PER_BIN: usize = 64;
    let samples = &profile.samples;
    let tracked = || {
        let all = (0u32..).zip(samples);
        all.filter(|(_, sample)| !sample.flags.contains(SampleFlags::UNTRACKED))
    };
    let times = |sample: &Sample| {
        let death = sample.freed_ns.map(NonZeroU64::get);
        std::iter::once(sample.time_ns).chain(death)
    };
    let (first, last) = tracked()
        .flat_map(|(_, sample)| times(sample))
        .fold((u64::MAX, 0), |(first, last), time| {
            (first.min(time), last.max(time))
        });
    if first > last {
        return Peak::default();
    }
    let bins = samples.len() / PER_BIN + 1;
    // Rounding keeps the order, which is all that matters.
    let scale = bins as f64 / ((last - first) as f64 + 1.0);
    let bin_of = |time: u64| (((time - first) as f64 * scale) as usize).min(bins - 1);
    const DEATH: u32 = 1 << 31;
    // Where the next event of each bin goes; when all are there, where the next bin begins.
    let mut ends = vec![0u32; bins + 1];
    for (_, sample) in tracked() {
        for time in times(sample) {
            ends[bin_of(time) + 1] += 1;
        }
    }
    for bin in 0..bins {
        ends[bin + 1] += ends[bin];
    }
    let mut events = vec![0u32; ends[bins] as usize];
    for (index, sample) in tracked() {
        for (time, mark) in times(sample).zip([0, DEATH]) {
            let place = &mut ends[bin_of(time)];
            events[*place as usize] = index | mark;
            *place += 1;
        }
    }
    let mut weights = Weights::of(profile);
    let (mut live, mut peak) = (0.0, Peak::default());
    let mut changes: Vec<(u64, bool, f64)> = Vec::new();
    let mut start = 0;
    for &end in &ends[..bins] {
        changes.clear();
        for &event in &events[start..end as usize] {
            let sample = &samples[(event & !DEATH) as usize];
            let bytes = weights.get(sample).0.value();
            let is_birth = event & DEATH == 0;
            let time = match sample.freed_ns {
                Some(freed_ns) if !is_birth => freed_ns.get(),
                _ => sample.time_ns,
            };
            changes.push((time, is_birth, bytes));
        }
        start = end as usize;
        changes.sort_by_key(|&(time, is_birth, _)| (time, is_birth));
        for &(time_ns, is_birth, bytes) in &changes {
            if !is_birth {
                live -= bytes;
                continue;
            }
            live += bytes;
            if live > peak.bytes {
                peak = Peak {
                    bytes: live,
                    after_ns: time_ns.saturating_sub(profile.process.start_ns),
                };
            }
        }
    }
    peak
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{Freed, IntervalInfo, SampleId, StackId};
    use allocsample_sampling::Random;

    /// Samples of 1 to 100 bytes at interval 1, at times below `times`.
    fn random(count: u64, times: u64, seed: u64) -> Profile {
        let mut random = Random::from_seed(seed);
        let mut profile = Profile::default();
        profile.intervals.push(IntervalInfo {
            time_ns: 0,
            sampling: allocsample_profile::Sampling::Poisson,
            interval_bytes: 1,
            seed,
        });
        for id in 0..count {
            let time_ns = 1 + random.below(times);
            let is_freed = random.below(4) > 0;
            let mut sample = Sample {
                id: SampleId(id),
                time_ns,
                address: id,
                size: 1 + random.below(100),
                thread: ThreadId(1),
                heap: HeapId::MALLOC,
                flags: SampleFlags(if random.below(20) == 0 { 4 } else { 0 }),
                points: 1,
                interval: 0,
                stack: StackId::EMPTY,
                ..Sample::default()
            };
            if is_freed {
                sample.set_freed(Freed {
                    time_ns: time_ns + random.below(times + 1 - time_ns),
                    thread: ThreadId(1),
                });
            }
            profile.samples.push(sample);
        }
        profile
    }

    #[test]
    fn the_peak_is_the_largest_sum_of_all_moments() {
        for (count, times, seed) in [(1, 1, 1), (5, 3, 2), (300, 50, 3), (2000, 1 << 40, 4)] {
            let profile = random(count, times, seed);
            let mut changes: Vec<(u64, i64)> = Vec::new();
            for sample in &profile.samples {
                if !sample.flags.contains(SampleFlags::UNTRACKED) {
                    let size = i64::try_from(sample.size).unwrap();
                    changes.push((sample.time_ns, size));
                    changes.extend(sample.freed().map(|freed| (freed.time_ns, -size)));
                }
            }
            // Deaths are below births.
            changes.sort_unstable_by_key(|&(time, size)| (time, size > 0));
            let (mut live, mut largest) = (0, (0, 0));
            for (time, size) in changes {
                live += size;
                if live > largest.0 {
                    largest = (live, time);
                }
            }
            let found = peak(&profile);
            assert_eq!((found.bytes, found.after_ns), (largest.0 as f64, largest.1));
        }
        assert_eq!(peak(&Profile::default()), Peak::default());
    }

    #[test]
    fn that_nothing_was_sampled_is_odd_only_where_much_was_allocated() {
        let mut profile = random(0, 1, 1);
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
}
