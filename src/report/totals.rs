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
        std::thread::scope(|scope| {
            let peak = scope.spawn(|| peak(profile));
            let totals = Self::without_peak(profile);
            match peak.join() {
                Ok(peak) => Self { peak, ..totals },
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    fn without_peak(profile: &Profile) -> Self {
        let mut totals = Self {
            allocated: Estimate::default(),
            allocations: Estimate::default(),
            live: Estimate::default(),
            peak: Peak::default(),
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
        // What was lost, or left out, is missing from the estimate for a known reason.
        totals.audit.z = match counted.samples() {
            0 if lost_bytes + left_bytes == 0 => z_of_nothing(profile, totals.exact_bytes),
            _ => {
                let told = counted + not_taken(profile, lost_bytes + left_bytes);
                z_of(profile, told, totals.exact_bytes as f64)
            }
        };
        if lost_bytes + left_bytes == 0 {
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

/// Replays allocations and frees in the order of time. At equal times frees first: a block that is replaced is not alive
/// twice.
///
/// Sorting all of them would take a second and 300 MB for ten million samples. So they are put into bins of time first. A
/// bin's births, on top of what was alive before it, say how much can have been alive in it; only those bins are replayed
/// in which that is as much as was ever alive at the end of one.
fn peak(profile: &Profile) -> Peak {
    let bins = Bins::of(profile);
    let samples = &profile.samples;
    let most = bins.levels.iter().copied().fold(0.0, f64::max);
    // What rounding can make of equal sums.
    let bound = most - most * 1e-9;
    let may_have_peak: Vec<bool> = (bins.levels.iter().zip(&bins.born))
        .map(|(level, born)| level + born >= bound)
        .collect();
    // Where the next event of each bin goes; when all are there, where the next bin begins.
    let mut ends = vec![0u32; bins.count + 1];
    for bin in 0..bins.count {
        let events = if may_have_peak[bin] {
            bins.events[bin]
        } else {
            0
        };
        ends[bin + 1] = ends[bin] + events;
    }
    const DEATH: u32 = 1 << 31;
    let mut events = vec![0u32; ends[bins.count] as usize];
    for (index, sample) in tracked(samples) {
        for (time, mark) in times(sample).zip([0, DEATH]) {
            let bin = bins.of_time(time);
            if may_have_peak[bin] {
                let place = &mut ends[bin];
                events[*place as usize] = index | mark;
                *place += 1;
            }
        }
    }
    let mut weights = Weights::of(profile);
    let mut peak = Peak::default();
    let mut changes: Vec<(u64, bool, f64)> = Vec::new();
    let mut start = 0;
    for (&end, &level) in ends.iter().zip(&bins.levels) {
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
        let mut live = level;
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

/// Samples whose ends are seen, with their indices.
fn tracked(samples: &[Sample]) -> impl Iterator<Item = (u32, &Sample)> {
    let all = (0u32..).zip(samples);
    all.filter(|(_, sample)| !sample.flags.contains(SampleFlags::UNTRACKED))
}

/// Of birth, and of death.
fn times(sample: &Sample) -> impl Iterator<Item = u64> {
    let death = sample.freed_ns.map(NonZeroU64::get);
    std::iter::once(sample.time_ns).chain(death)
}

/// Births and deaths by time.
struct Bins {
    count: usize,
    first_ns: u64,
    /// Bins in a nanosecond.
    scale: f64,
    /// Bytes that were born in each.
    born: Vec<f64>,
    /// Bytes that were alive when it began.
    levels: Vec<f64>,
    /// Births and deaths.
    events: Vec<u32>,
}

impl Bins {
    fn of(profile: &Profile) -> Self {
        /// Samples in a bin, if they come evenly.
        const PER_BIN: usize = 64;
        let count = profile.samples.len() / PER_BIN + 1;
        let process = &profile.process;
        let length_ns = process.end_ns.saturating_sub(process.start_ns);
        let mut bins = Self {
            count,
            first_ns: process.start_ns,
            scale: count as f64 / (length_ns as f64 + 1.0),
            born: vec![0.0; count],
            levels: vec![0.0; count],
            events: vec![0; count],
        };
        let mut weights = Weights::of(profile);
        let mut died = vec![0.0; count];
        for (_, sample) in tracked(&profile.samples) {
            let bytes = weights.get(sample).0.value();
            let mut of_birth_and_death = [&mut bins.born, &mut died].into_iter();
            for time in times(sample) {
                let bin = bin_of(time, bins.first_ns, bins.scale, count);
                bins.events[bin] += 1;
                if let Some(sums) = of_birth_and_death.next() {
                    sums[bin] += bytes;
                }
            }
        }
        let mut level = 0.0;
        for ((at_begin, born), died) in bins.levels.iter_mut().zip(&bins.born).zip(died) {
            *at_begin = level;
            level += born - died;
        }
        bins
    }

    fn of_time(&self, time_ns: u64) -> usize {
        bin_of(time_ns, self.first_ns, self.scale, self.count)
    }
}

/// Rounding keeps the order, which is all that matters; what lies outside is in the first or the last.
fn bin_of(time_ns: u64, first_ns: u64, scale: f64, count: usize) -> usize {
    let bin = time_ns.saturating_sub(first_ns) as f64 * scale;
    (bin as usize).min(count - 1)
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
        // What lies behind the end is in the last bin.
        profile.process.end_ns = times / 2;
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

    #[test]
    fn what_an_interval_may_have_hidden_is_no_reason_for_distrust() {
        const LONG: u64 = 1 << 20;
        let mut profile = random(40, 100, 1);
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
        profile.samples.clear();
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
            let mut profile = random(40, 100, 1);
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
