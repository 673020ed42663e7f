//! The largest number of bytes that were alive at once.
//!
//! The largest value of an estimated curve is not an estimate of the largest value of the curve: of many moments it takes
//! the one at which luck was best. A program that always has 1 MiB alive, sampled once in a MiB, would show a peak of
//! four. So the samples are split at random into two halves, which are independent: the points inside each block go to
//! either side, and each side is a sampling of its own, at twice the interval. One half says when the peak was, and the
//! other, which knows nothing of the luck of the first, how much was alive then; and the same with the halves exchanged.
//! The mean of both is the estimate. It is unbiased for the moments that were chosen, and so not above the peak in the
//! mean. This is cross-fitting, or sample splitting: D. R. Cox, "A note on data-splitting for the evaluation of
//! significance levels", Biometrika 62 (1975), 441-444; V. Chernozhukov et al., "Double/debiased machine learning for
//! treatment and structural parameters", Econometrics Journal 21 (2018), C1-C68.

use std::num::NonZeroU64;
use std::ops::Range;

use allocsample_record::{ExitHow, SampleFlags, Sampling};
use allocsample_sampling::{Estimate, GapLaw, Interval, SamplePoints, Weight};

use crate::model::{Profile, Sample};
use crate::samples::Samples;
use crate::weights::Weights;

/// When most bytes were alive, and how many.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peak {
    /// Live bytes then.
    pub bytes: Estimate,
    /// When the estimated curve was highest, in nanoseconds since the start of the profile.
    pub after_ns: u64,
    /// The moments at which the halves of the samples are counted.
    pub moments: PeakMoments,
}

/// For each half of the samples the moment that the other half takes for the peak, and the one that all samples take for
/// it (CLOCK_MONOTONIC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeakMoments {
    halves: [u64; 2],
    whole: u64,
}

impl PeakMoments {
    /// Whether a sample was alive at the peak of the plain curve.
    #[inline]
    pub fn is_live(&self, sample: &Sample) -> bool {
        sample.is_live_at(self.whole)
    }

    /// For each half whether a sample was alive at its moment.
    #[inline]
    pub fn live(&self, sample: &Sample) -> [i8; 2] {
        self.halves.map(|moment| sample.is_live_at(moment).into())
    }

    /// For each half whether a sample was allocated by its moment.
    #[inline]
    pub fn allocated(&self, sample: &Sample) -> [i8; 2] {
        self.halves.map(|moment| (sample.time_ns <= moment).into())
    }

    /// Nothing that came later is in any figure of the peak.
    pub fn last_ns(&self) -> u64 {
        self.halves.into_iter().fold(self.whole, u64::max)
    }

    /// When the plain curve was highest.
    pub fn plain_ns(&self) -> u64 {
        self.whole
    }
}

/// The moment at which a reader asks what a program holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// At the end of the profile: the process was running then, or was killed and freed nothing.
    AtEnd,
    /// At the peak: the process ended by itself, and what it still held then is what it did not bother to free.
    AtPeak,
}

impl Profile {
    /// The moment at which to show what the program holds.
    pub fn held(&self) -> Held {
        match &self.exit {
            Some(exit) if exit.how != ExitHow::Detached => Held::AtPeak,
            _ => Held::AtEnd,
        }
    }
}

/// A figure at the peak with the error of not knowing when it was. `distance` is by how much the plain curve, at its
/// highest point, exceeds the bytes that were found: the curve is too high in the mean, and the estimate, whose moments may
/// have missed the peak, too low. The truth is between them, so their distance is taken for one more standard deviation.
pub fn with_error_of_moment(estimate: Estimate, distance: f64) -> Estimate {
    match estimate.is_exact() {
        true => estimate,
        false => estimate.with_more_variance(distance * distance),
    }
}

/// A moment at which a curve was highest.
#[derive(Clone, Copy, Debug, Default)]
struct Top {
    bytes: f64,
    time_ns: u64,
}

impl Peak {
    /// Finds it.
    pub fn of(profile: &Profile) -> Self {
        let mut weights = Weights::of(profile);
        let top = largest(profile, |sample| weights.get(sample).0.value());
        let mut halves = Halves::of(profile);
        let moments = match halves.is_split() {
            false => [top.time_ns; 2],
            true => [1, 0].map(|other| {
                let top = largest(profile, |sample| halves.weight(sample, other));
                halves.last_moment(other, &top)
            }),
        };
        let moments = PeakMoments {
            halves: moments,
            whole: top.time_ns,
        };
        let allowance = profile.allowances(0, u64::MAX).of_process();
        let mut bytes = Estimate::ZERO.allowing_for(allowance.bytes);
        for sample in &profile.samples {
            bytes += halves.at(&sample, &moments);
        }
        Self {
            bytes: with_error_of_moment(bytes, top.bytes - bytes.value()),
            after_ns: top.time_ns.saturating_sub(profile.process.start_ns),
            moments,
        }
    }
}

/// Splits samples at random, but always in the same way.
#[derive(Debug)]
pub struct Halves<'a> {
    profile: &'a Profile,
    /// By index of the interval; `None` where there is nothing to split: every allocation was recorded, or periodically.
    intervals: Vec<Option<Interval>>,
    weights: Weights,
}

impl<'a> Halves<'a> {
    /// Of a profile's samples.
    pub fn of(profile: &'a Profile) -> Self {
        let intervals = profile.intervals.iter();
        let intervals = intervals.map(|info| {
            let is_split = info.sampling == Sampling::Poisson && info.interval_bytes > 1;
            // Up to 2^62: twice the interval is one as well.
            let interval = Interval::new(info.interval_bytes.saturating_mul(2));
            interval.filter(|_| is_split && !profile.is_periodic())
        });
        Self {
            profile,
            intervals: intervals.collect(),
            weights: Weights::of(profile),
        }
    }

    fn is_split(&self) -> bool {
        self.intervals.iter().any(Option::is_some)
    }

    #[inline]
    fn interval(&self, sample: &Sample) -> Option<Interval> {
        self.intervals
            .get(usize::from(sample.interval))
            .copied()
            .flatten()
    }

    /// The bytes that a sample stands for in a half alone; 0 if it is not in it.
    fn weight(&mut self, sample: &Sample, half: usize) -> f64 {
        match self.interval(sample) {
            None => self.weights.get(sample).0.value(),
            Some(interval) if is_in_half(sample, half, interval) => {
                Weight::new(GapLaw::Poisson, interval).bytes(sample.size, SamplePoints(1))
            }
            Some(_) => 0.0,
        }
    }

    /// Until when a half stayed as high as that: until one of its blocks was freed. What had been allocated by then in
    /// between its samples is then alive too.
    fn last_moment(&self, half: usize, top: &Top) -> u64 {
        let ends = tracked(&self.profile.samples, 0..usize::MAX).filter_map(|(_, sample)| {
            let freed_ns = sample.freed_ns?.get();
            let is_in = match self.interval(&sample) {
                Some(interval) => is_in_half(&sample, half, interval),
                None => true,
            };
            (is_in && freed_ns > top.time_ns).then_some(freed_ns - 1)
        });
        ends.min()
            .unwrap_or(self.profile.process.end_ns.max(top.time_ns))
    }

    /// What a sample adds to the bytes at the peak.
    #[inline]
    pub fn at(&mut self, sample: &Sample, moments: &PeakMoments) -> Estimate {
        self.bytes(sample, moments.live(sample))
    }

    /// What a sample adds to a sum of bytes if the halves count it so often: once, not at all, or taken away.
    #[inline]
    pub fn bytes(&mut self, sample: &Sample, counts: [i8; 2]) -> Estimate {
        if counts == [0; 2] {
            return Estimate::ZERO;
        }
        let whole = self.weights.get(sample).0;
        self.split(sample, counts, whole, |weight| {
            weight.bytes_estimate(sample.size, SamplePoints(1))
        })
    }

    /// The same of a number of allocations.
    pub fn objects(&mut self, sample: &Sample, counts: [i8; 2]) -> Estimate {
        if counts == [0; 2] {
            return Estimate::ZERO;
        }
        let whole = self.weights.get(sample).1;
        self.split(sample, counts, whole, |weight| {
            weight.objects_estimate(sample.size, SamplePoints(1), sample.size)
        })
    }

    #[inline]
    fn split(
        &self,
        sample: &Sample,
        counts: [i8; 2],
        whole: Estimate,
        of_half: impl Fn(Weight) -> Estimate,
    ) -> Estimate {
        let signed = |estimate: Estimate, count: i8| match count {
            1.. => estimate,
            0 => Estimate::ZERO,
            _ => estimate.negated(),
        };
        let Some(interval) = self.interval(sample) else {
            return match counts {
                [a, b] if a == b => signed(whole, a),
                _ => counts
                    .map(|count| signed(whole.divided_by(2.0), count))
                    .into_iter()
                    .sum(),
            };
        };
        let one = of_half(Weight::new(GapLaw::Poisson, interval)).divided_by(2.0);
        let halves = (0..).zip(counts);
        let sum: Estimate = halves
            .filter(|&(half, count)| count != 0 && is_in_half(sample, half, interval))
            .map(|(_, count)| signed(one, count))
            .sum();
        // One sample, be it in both.
        let samples = sum.samples().min(1);
        Estimate::from_parts(sum.value(), sum.variance(), samples)
            .with_drawn(sum.drawn())
            .allowing_for(whole.allowance())
    }
}

/// Whether a sample is in a half, each of which is a sampling at `interval`. A block has Poisson numbers of points of the two
/// halves, independently, each of mean m = size / interval. Of those with any, it is in the first alone, and in the second
/// alone, with probability `(1 - e^-m) e^-m / (1 - e^-2m) = 1 / (e^m + 1)`, otherwise in both.
fn is_in_half(sample: &Sample, half: usize, interval: Interval) -> bool {
    // splitmix64's mixer, of what tells the sample from others. To f64: 53 bits.
    let mut mixed = (sample.id.0 ^ 0x5DEE_CE66_D1CE_4E5B).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    let uniform = ((mixed ^ mixed >> 31) >> 11) as f64 / (1_u64 << 53) as f64;
    let mean = sample.size.max(1) as f64 / interval.bytes() as f64;
    let alone = 1.0 / (mean.exp() + 1.0);
    match half {
        0 => uniform < 1.0 - alone,
        _ => uniform >= alone,
    }
}

/// Replays allocations and frees in the order of time. At equal times frees first: a block that is replaced is not alive
/// twice.
///
/// Sorting all of them would take a second and 300 MB for ten million samples. So they are put into bins of time first. A
/// bin's births, on top of what was alive before it, say how much can have been alive in it; only those bins are replayed
/// in which that is as much as was ever alive at the end of one.
fn largest(profile: &Profile, mut weight: impl FnMut(&Sample) -> f64) -> Top {
    const DEATH: u32 = 1 << 31;
    let bins = Bins::of(profile, &mut weight);
    let samples = &profile.samples;
    let most = bins.levels.iter().copied().fold(0.0, f64::max);
    // What rounding can make of equal sums.
    let bound = most - most * 1e-9;
    let may_have_peak: Vec<bool> = (bins.levels.iter().zip(&bins.born))
        .map(|(level, born)| level + born >= bound)
        .collect();
    let first = may_have_peak.iter().position(|may| *may);
    let last = may_have_peak.iter().rposition(|may| *may);
    let (first, last) = (first.unwrap_or(0) as u32, last.unwrap_or(0) as u32);
    let is_near = |span: &(u32, u32)| span.1 >= first && span.0 <= last;
    let blocks = (0..).zip(&bins.of_blocks);
    let blocks = blocks.filter(|(_, spans)| spans.iter().any(is_near));
    let samples_near = blocks.flat_map(|(block, _)| {
        let rows: Range<usize> = block * BLOCK..(block + 1) * BLOCK;
        tracked(samples, rows)
    });
    // The bins of the events that are to be replayed.
    let to_replay = samples_near.flat_map(|(index, sample)| {
        let events = times(&sample).zip([0, DEATH]);
        let events = events.map(move |(time, mark)| (time, index | mark));
        let bins = &bins;
        events.map(|(time, event)| (bins.of_time(time), event))
    });
    let to_replay = to_replay.filter(|&(bin, _)| may_have_peak[bin]);
    // Where the next event of each bin goes; when all are there, where the next bin begins.
    let mut ends = vec![0u32; bins.count + 1];
    to_replay.clone().for_each(|(bin, _)| ends[bin + 1] += 1);
    for bin in 0..bins.count {
        ends[bin + 1] += ends[bin];
    }
    let mut events = vec![0u32; ends[bins.count] as usize];
    to_replay.for_each(|(bin, event)| {
        let place = &mut ends[bin];
        events[*place as usize] = event;
        *place += 1;
    });
    let mut peak = Top::default();
    let mut changes: Vec<(u64, bool, f64)> = Vec::new();
    let mut start = 0;
    for (&end, &level) in ends.iter().zip(&bins.levels) {
        changes.clear();
        for &event in &events[start..end as usize] {
            let sample = samples.at((event & !DEATH) as usize);
            let bytes = weight(&sample);
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
                peak = Top {
                    bytes: live,
                    time_ns,
                };
            }
        }
    }
    peak
}

/// Samples whose ends are seen, with their indices, among some rows.
#[inline]
fn tracked(
    samples: &Samples,
    rows: Range<usize>,
) -> impl Iterator<Item = (u32, Sample)> + Clone + '_ {
    let rows = rows.start..rows.end.min(samples.len());
    // Their indices have 32 bits.
    let all = rows.map(|index| (index as u32, samples.at(index)));
    all.filter(|(_, sample)| !sample.flags.contains(SampleFlags::UNTRACKED))
}

/// Samples whose births and deaths are looked at together, or not at all.
const BLOCK: usize = 1 << 12;

/// Of birth, and of death.
fn times(sample: &Sample) -> impl Iterator<Item = u64> + Clone + use<> {
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
    /// For each [`BLOCK`] of samples the first and the last bin with births of it, and with deaths.
    of_blocks: Vec<[(u32, u32); 2]>,
}

impl Bins {
    fn of(profile: &Profile, weight: &mut impl FnMut(&Sample) -> f64) -> Self {
        /// Samples in a bin, if they come evenly.
        const PER_BIN: usize = 64;
        let samples = &profile.samples;
        let count = samples.len() / PER_BIN + 1;
        let process = &profile.process;
        let length_ns = process.end_ns.saturating_sub(process.start_ns);
        let mut bins = Self {
            count,
            first_ns: process.start_ns,
            scale: count as f64 / (length_ns as f64 + 1.0),
            born: vec![0.0; count],
            levels: vec![0.0; count],
            of_blocks: Vec::new(),
        };
        let mut died = vec![0.0; count];
        for start in (0..samples.len()).step_by(BLOCK) {
            let mut spans = [(u32::MAX, 0); 2];
            for row in start..samples.len().min(start + BLOCK) {
                let sample = samples.at(row);
                if sample.flags.contains(SampleFlags::UNTRACKED) {
                    continue;
                }
                let bytes = weight(&sample);
                let mut of_birth_and_death = [&mut bins.born, &mut died].into_iter();
                for (time, span) in times(&sample).zip(&mut spans) {
                    let bin = bin_of(time, bins.first_ns, bins.scale, count);
                    // Fewer than samples.
                    *span = (span.0.min(bin as u32), span.1.max(bin as u32));
                    if let Some(sums) = of_birth_and_death.next() {
                        sums[bin] += bytes;
                    }
                }
            }
            bins.of_blocks.push(spans);
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
    use crate::{Exit, Freed, IntervalInfo, Part};
    use allocsample_record::{ExitHow, SampleId};
    use allocsample_sampling::Random;

    /// Samples of 1 to 100 bytes at interval 1, at times below `times`.
    fn random_profile(count: u64, times: u64, seed: u64) -> Profile {
        let mut random = Random::from_seed(seed);
        let mut profile = Profile::default();
        // What lies behind the end is in the last bin.
        profile.process.end_ns = times / 2;
        profile.intervals.push(IntervalInfo {
            time_ns: 0,
            sampling: Sampling::Poisson,
            interval_bytes: 1,
            seed,
        });
        // Of several blocks, which come and go one after the other.
        let is_long = count > BLOCK as u64;
        for id in 0..count {
            let time_ns = match is_long {
                true => 1 + id * (times / count),
                false => 1 + random.below(times),
            };
            let longest_ns = match is_long {
                true => times / 5,
                false => times + 1 - time_ns,
            };
            let mut sample = Sample {
                id: SampleId(id),
                time_ns,
                size: 1 + random.below(100),
                points: 1,
                flags: match random.below(20) {
                    0 => SampleFlags::UNTRACKED,
                    _ => SampleFlags::default(),
                },
                ..Sample::default()
            };
            if random.below(4) > 0 {
                sample.set_freed(Freed {
                    time_ns: time_ns + random.below(longest_ns),
                    thread: sample.thread,
                });
            }
            profile.samples.push(sample);
        }
        profile
    }

    #[test]
    fn a_program_that_ended_held_most_at_its_peak() {
        let mut profile = Profile::default();
        assert_eq!(profile.held(), Held::AtEnd);
        for (how, held) in [
            (ExitHow::Exit, Held::AtPeak),
            (ExitHow::Abort, Held::AtPeak),
            (ExitHow::Detached, Held::AtEnd),
        ] {
            profile.exit = Some(Exit {
                time_ns: 1,
                how,
                status: None,
            });
            assert_eq!(profile.held(), held, "{how:?}");
        }
        profile.exit = None;
        profile.part = Part {
            is_continued: true,
            ..Part::default()
        };
        assert_eq!(profile.held(), Held::AtEnd);
    }

    #[test]
    fn the_peak_is_the_largest_sum_of_all_moments() {
        for (count, times, seed) in [
            (1, 1, 1),
            (5, 3, 2),
            (300, 50, 3),
            (2000, 1 << 40, 4),
            (20_000, 1 << 40, 5),
        ] {
            let profile = random_profile(count, times, seed);
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
            let (mut live, mut most) = (0, (0, 0));
            for (time, size) in changes {
                live += size;
                if live > most.0 {
                    most = (live, time);
                }
            }
            let mut weights = Weights::of(&profile);
            let found = largest(&profile, |sample| weights.get(sample).0.value());
            assert_eq!((found.bytes, found.time_ns), (most.0 as f64, most.1));
            let peak = Peak::of(&profile);
            assert_eq!(
                (peak.bytes.value(), peak.after_ns),
                (found.bytes, found.time_ns)
            );
            assert!(peak.bytes.is_exact());
        }
        assert_eq!(Peak::of(&Profile::default()), Peak::default());
    }
}
