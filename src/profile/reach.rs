//! Bounds on what sampling can have missed: the bytes that were allocated under each interval.
//!
//! Every sample carries the exact bytes of its thread. Between two samples of a thread, those bytes were allocated under
//! the intervals that were in force meanwhile. Their sum bounds what an interval can have hidden: one that was in force
//! while 100 KiB were allocated has missed at most 100 KiB, even if it is 4 MiB.
//!
//! A profile can have 65,000 intervals and as many threads and heaps. So nothing here takes a step for every pair of them.

use std::collections::{BTreeMap, BTreeSet};

use allocsample_record::{HeapId, ThreadId};
use allocsample_sampling::{GapLaw, Interval, Weight};
use rustc_hash::FxHashMap;

use crate::limits::make_room;
use crate::model::{IntervalInfo, Profile, Sample};

/// The bytes, at most, that were allocated under each interval, and which intervals each heap was sampled with.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// By interval in bytes. One that is missing has no known bound.
    bytes: BTreeMap<u64, u64>,
    /// Heaps and indices of intervals that have samples.
    sampled: BTreeSet<(HeapId, u16)>,
    /// Indices of intervals that are some heap's, and not malloc's.
    of_heaps: BTreeSet<u16>,
    /// The size of the smallest sampled block.
    smallest: Option<u64>,
}

/// Collects a [`Reach`] sample by sample: in one step for every sample, thread and interval.
#[derive(Default)]
pub struct ReachBuilder {
    reach: Reach,
    last: Option<(HeapId, u16)>,
    threads: FxHashMap<ThreadId, Mark>,
    /// By index in the history: how many more bytes may have been allocated under this interval than under the one before.
    steps: Vec<i128>,
    /// From this index in the history on, nobody knows how many.
    unbounded: Option<usize>,
}

/// Where a thread was at its last sample.
#[derive(Clone, Copy, Default)]
struct Mark {
    /// Its exact bytes.
    bytes: u64,
    /// The index in the history of the interval that was in force.
    change: usize,
}

impl Reach {
    /// Of heaps without malloc's, with intervals of numbers below `count`.
    pub(crate) fn of_other_heaps(count: usize) -> Self {
        Self {
            of_heaps: (0..=u16::MAX).take(count).collect(),
            ..Self::default()
        }
    }

    /// Whether the interval with this index is some heap's, and not malloc's.
    pub(crate) fn is_of_heaps(&self, index: u16) -> bool {
        self.of_heaps.contains(&index)
    }
}

impl ReachBuilder {
    /// Bytes of memory that it takes, about.
    pub(crate) fn held_bytes(&self) -> u64 {
        /// An entry of a tree or of a table, with its room.
        const ENTRY: usize = 48;
        let entries = self.reach.sampled.len() + self.threads.len();
        (ENTRY * entries + size_of::<i128>() * self.steps.capacity()) as u64
    }

    /// A sample, whatever file it comes from.
    pub fn add_size(&mut self, sample: &Sample) {
        self.add_size_of(sample.heap, sample.interval, sample.size);
    }

    #[inline]
    pub(crate) fn add_size_of(&mut self, heap: HeapId, interval: u16, size: u64) {
        let key = (heap, interval);
        if self.last != Some(key) {
            self.last = Some(key);
            self.reach.sampled.insert(key);
        }
        let smallest = &mut self.reach.smallest;
        *smallest = Some(smallest.map_or(size, |least| least.min(size)));
    }

    /// The interval with this index is some heap's, and not malloc's.
    pub fn add_heaps_interval(&mut self, index: u16) {
        self.reach.of_heaps.insert(index);
    }

    /// Samples of malloc's that were taken one after the other when their thread had allocated so many `bytes`, of which
    /// `before` precede the file, and the interval had changed so many times as `history` says.
    pub fn add_bytes(
        &mut self,
        thread: ThreadId,
        bytes: &[u64],
        before: u64,
        history: &[IntervalInfo],
    ) {
        let first = Mark {
            bytes: before,
            change: 0,
        };
        // Between the first of them and the last the interval did not change.
        let (one, others) = bytes.split_at(bytes.len().min(1));
        for bytes in [one, others] {
            let Some(&bytes) = bytes.iter().max() else {
                continue;
            };
            let mark = self.threads.entry(thread).or_insert(first);
            let last = std::mem::replace(
                mark,
                Mark {
                    bytes: bytes.max(mark.bytes),
                    change: history.len().saturating_sub(1),
                },
            );
            self.charge(last.change, history.len(), bytes.saturating_sub(last.bytes));
        }
    }

    /// When all samples are in, and before what precedes the file is taken off the totals of threads.
    pub fn finish(mut self, profile: &Profile, before: impl Fn(ThreadId) -> u64) -> Reach {
        let history = &profile.interval_history[..];
        for (&id, thread) in &profile.threads {
            let mark = self.threads.get(&id).copied().unwrap_or(Mark {
                bytes: before(id),
                change: 0,
            });
            match profile.exit {
                Some(_) => {
                    let rest = thread.exact_bytes.saturating_sub(mark.bytes);
                    self.charge(mark.change, history.len(), rest);
                }
                // How much it has allocated since its last sample, nobody has said yet.
                None => {
                    let from = self.unbounded.map_or(mark.change, |it| it.min(mark.change));
                    self.unbounded = Some(from);
                }
            }
        }
        let is_known = !self.steps.is_empty() || self.unbounded.is_some();
        let mut most = 0_i128;
        for (index, info) in history.iter().enumerate().filter(|_| is_known) {
            most += self.steps.get(index).copied().unwrap_or(0);
            let bytes = match self.unbounded {
                Some(from) if from <= index => u64::MAX,
                _ => u64::try_from(most).unwrap_or(u64::MAX),
            };
            let known = self.reach.bytes.entry(info.interval_bytes).or_default();
            *known = known.saturating_add(bytes);
        }
        self.reach
    }

    /// Any interval of the history from one index up to another may have been in force for all of the bytes.
    fn charge(&mut self, from: usize, to: usize, bytes: u64) {
        if from >= to {
            return;
        }
        if self.steps.len() <= to {
            let more = to + 1 - self.steps.len();
            make_room(&mut self.steps, more);
            self.steps.resize(to + 1, 0);
        }
        self.steps[from] += i128::from(bytes);
        self.steps[to] -= i128::from(bytes);
    }
}

/// What one block more that was not drawn would add to an estimate: see
/// [`Estimate::allowing_for`](crate::Estimate::allowing_for).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Allowance {
    /// To bytes.
    pub bytes: f64,
    /// To a number of allocations.
    pub objects: f64,
}

impl Allowance {
    fn max(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.max(other.bytes),
            objects: self.objects.max(other.objects),
        }
    }
}

impl Profile {
    /// The smallest block that a count allows for. Requests below 8 bytes, which every common allocator rounds up, are
    /// rare; where one was sampled, it is the size of that.
    pub(crate) fn smallest_expected(&self) -> u64 {
        const COMMON: u64 = 8;
        self.reach.smallest.unwrap_or(COMMON).clamp(1, COMMON)
    }

    /// What may have been missed in a heap from one moment to another (CLOCK_MONOTONIC): a block under the longest interval
    /// that was in force then, unless fewer bytes than that were allocated under it. Whoever asks for many heaps, asks
    /// [`Profile::allowances`].
    pub fn allowance(&self, heap: HeapId, from_ns: u64, until_ns: u64) -> Allowance {
        self.allowances(from_ns, until_ns).of(heap)
    }

    /// What may have been missed in each heap from one moment to another (CLOCK_MONOTONIC). It takes a step for every
    /// interval; then every heap takes one for every interval that it has samples of. Of what was left out nothing is missed.
    pub fn allowances(&self, from_ns: u64, until_ns: u64) -> Allowances<'_> {
        let narrowed = self.narrowed.unwrap_or_default();
        let (from_ns, until_ns) = (
            from_ns.max(narrowed.from_ns),
            until_ns.min(narrowed.until_ns),
        );
        let sampled: BTreeSet<u16> = self.reach.sampled.iter().map(|it| it.1).collect();
        let in_force = |history: &[IntervalInfo]| in_force(history, from_ns, until_ns);
        let own = self.vm.intervals.iter();
        let mut all = Allowances {
            profile: self,
            in_force: in_force(&self.interval_history),
            own: own.map(|(&heap, own)| (heap, in_force(own))).collect(),
            unsampled: [Allowance::default(); 2],
            history: Allowance::default(),
        };
        for index in (0..=u16::MAX).take(self.intervals.len()) {
            if all.is_of_history(index) {
                all.history = all.history.max(all.under(ANY_OTHER, index));
            }
            if sampled.contains(&index) {
                continue;
            }
            for (place, heap) in [HeapId::MALLOC, ANY_OTHER].into_iter().enumerate() {
                if heap == HeapId::MALLOC && self.reach.of_heaps.contains(&index) {
                    continue;
                }
                all.unsampled[place] = all.unsampled[place].max(all.under(heap, index));
            }
        }
        all
    }
}

/// The intervals of a history, in bytes, and whether they were in force between two moments.
fn in_force(history: &[IntervalInfo], from_ns: u64, until_ns: u64) -> BTreeMap<u64, bool> {
    let ends = history.iter().skip(1).map(|next| next.time_ns);
    let mut intervals = BTreeMap::new();
    for (change, end_ns) in history.iter().zip(ends.chain([u64::MAX])) {
        let was_in_force = intervals.entry(change.interval_bytes).or_default();
        *was_in_force |= change.time_ns <= until_ns && end_ns >= from_ns;
    }
    intervals
}

/// A heap whose exact bytes say nothing of intervals.
const ANY_OTHER: HeapId = HeapId(u16::MAX);

/// What may have been missed in each heap: see [`Profile::allowances`].
#[derive(Clone, Debug)]
pub struct Allowances<'a> {
    profile: &'a Profile,
    /// The intervals of the history, in bytes, and whether they were in force.
    in_force: BTreeMap<u64, bool>,
    /// The same of the heaps that tell of theirs.
    own: BTreeMap<HeapId, BTreeMap<u64, bool>>,
    /// Of intervals under which nothing was sampled in any heap: in malloc's, in another.
    unsampled: [Allowance; 2],
    /// Of the intervals of the history, in a heap that follows it.
    history: Allowance,
}

impl Allowances<'_> {
    /// In all heaps together.
    pub fn of_process(&self) -> Allowance {
        let heaps = self.profile.vm.heaps.keys();
        heaps.fold(self.of(HeapId::MALLOC), |most, &heap| {
            most.max(self.of(heap))
        })
    }

    /// In one heap. It may have missed objects under each of its own intervals that was in force, whether it has samples of it
    /// or not, and under each that a machine drew its samples with.
    ///
    /// In a recording that does not tell heaps' intervals, a heap is sampled with an interval if its samples say so, or if no
    /// other heap's do. One whose samples are all of intervals in the history follows it, so it may have missed objects under
    /// every interval that was in force.
    pub fn of(&self, heap: HeapId) -> Allowance {
        let sampled = &self.profile.reach.sampled;
        let own = sampled.range((heap, 0)..=(heap, u16::MAX));
        if let Some(told) = self.own.get(&heap).filter(|_| heap != HeapId::MALLOC) {
            let infos = own.filter_map(|it| self.profile.intervals.get(usize::from(it.1)));
            let drawn = infos.map(|info| info.interval_bytes);
            let in_force = told.iter().filter(|it| *it.1).map(|it| *it.0);
            let all = in_force.chain(drawn.filter(|bytes| told.get(bytes) != Some(&false)));
            return all.fold(Allowance::default(), |most, bytes| {
                most.max(self.at(heap, bytes))
            });
        }
        let others = match own.clone().next() {
            _ if heap == HeapId::MALLOC => self.unsampled[0],
            None => self.unsampled[1],
            Some(_) if own.clone().all(|it| self.is_of_history(it.1)) => self.history,
            Some(_) => Allowance::default(),
        };
        own.fold(others, |most, &(_, index)| {
            most.max(self.under(heap, index))
        })
    }

    /// Whether an interval is one of the history, be it malloc's or that of a heap that follows it.
    fn is_of_history(&self, index: u16) -> bool {
        let info = self.profile.intervals.get(usize::from(index));
        info.is_some_and(|info| self.in_force.contains_key(&info.interval_bytes))
    }

    /// Under one interval.
    fn under(&self, heap: HeapId, index: u16) -> Allowance {
        let info = self.profile.intervals.get(usize::from(index));
        let bytes = info.map_or(0, |info| info.interval_bytes);
        // A heap's own, or one that a forked child brought along, is not in the history.
        match self.in_force.get(&bytes) {
            Some(false) => Allowance::default(),
            _ => self.at(heap, bytes),
        }
    }

    /// With an interval of so many bytes; 0 is none.
    fn at(&self, heap: HeapId, interval_bytes: u64) -> Allowance {
        let Some(interval) = Interval::new(interval_bytes) else {
            return Allowance::default();
        };
        let profile = self.profile;
        let smallest = profile.smallest_expected();
        let weight = Weight::new(GapLaw::Poisson, interval);
        let reach = match profile.reach.bytes.get(&interval.bytes()) {
            // To f64: far below 2^53, or a bound that does not matter.
            Some(&bytes) if heap == HeapId::MALLOC => bytes as f64,
            _ => f64::INFINITY,
        };
        let bytes = weight.unit_bytes().min(reach);
        let fewest = (bytes / smallest as f64).ceil();
        Allowance {
            bytes,
            objects: weight.unit_objects(smallest).min(fewest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Exit, Thread};
    use allocsample_record::{ExitHow, Sampling};
    use allocsample_sampling::Random;

    fn interval(time_ns: u64, interval_bytes: u64) -> IntervalInfo {
        IntervalInfo {
            time_ns,
            sampling: Sampling::Poisson,
            interval_bytes,
            seed: 1,
        }
    }

    /// 4 KiB until 100 ns, then 4 MiB; what the thread had allocated at samples before and after, and in all.
    fn profile(samples: &[(u64, usize)], exact_bytes: u64) -> Profile {
        let history = vec![interval(0, 4096), interval(100, 4 << 20)];
        let mut builder = ReachBuilder::default();
        for &(bytes, changes) in samples {
            builder.add_bytes(ThreadId(1), &[bytes], 0, &history[..=changes]);
        }
        let mut profile = Profile {
            intervals: history.clone(),
            interval_history: history,
            exit: Some(Exit {
                time_ns: 200,
                how: ExitHow::Exit,
                status: Some(0),
            }),
            ..Profile::default()
        };
        let thread = Thread {
            exact_bytes,
            ..Thread::default()
        };
        profile.threads.insert(ThreadId(1), thread);
        profile.reach = builder.finish(&profile, |_| 0);
        profile
    }

    #[test]
    fn an_interval_hides_no_more_than_was_allocated_under_it() {
        let malloc = HeapId::MALLOC;
        // The last 50 KiB may have been allocated under either.
        let short = profile(&[(10 << 20, 0)], (10 << 20) + (50 << 10));
        assert_eq!(short.allowance(malloc, 0, u64::MAX).bytes, 51_200.0);
        let long = profile(&[(10 << 20, 0)], 90 << 20);
        assert_eq!(long.allowance(malloc, 0, u64::MAX).bytes, 4_194_304.0);
        // Only the first was in force until then.
        assert_eq!(long.allowance(malloc, 0, 99).bytes, 4096.0);
        assert_eq!(long.allowance(malloc, 101, u64::MAX).bytes, 4_194_304.0);
        let objects = long.allowance(malloc, 0, 99).objects;
        assert!((objects - 512.0).abs() < 1.0, "{objects}");
        // It may have allocated any number of bytes since.
        let running = Profile {
            exit: None,
            ..profile(&[(10 << 20, 0), (11 << 20, 1)], 0)
        };
        let mut builder = ReachBuilder::default();
        builder.add_bytes(ThreadId(1), &[10 << 20], 0, &running.interval_history[..1]);
        let reach = builder.finish(&running, |_| 0);
        let running = Profile { reach, ..running };
        assert_eq!(running.allowance(malloc, 0, u64::MAX).bytes, 4_194_304.0);
    }

    #[test]
    fn a_heap_that_follows_the_history_may_have_missed_objects_under_all_of_it() {
        // Of intervals 0 and 1 of the history, and 2, which is a heap's own.
        let allowance = |own: &[u16], until_ns| {
            let mut profile = profile(&[(10 << 20, 0), (11 << 20, 1)], 12 << 20);
            profile.intervals.push(interval(0, 8192));
            let mut builder = ReachBuilder::default();
            for (heap, index) in [(0, 0), (0, 1)]
                .into_iter()
                .chain(own.iter().map(|&index| (1, index)))
            {
                builder.add_size(&Sample {
                    heap: HeapId(heap),
                    interval: index,
                    size: 64,
                    ..Sample::default()
                });
            }
            profile.reach.sampled = builder.reach.sampled;
            profile.allowance(HeapId(1), 0, until_ns).bytes
        };
        // It has no sample under 4 MiB, and was sampled with that for half of the time.
        assert_eq!(allowance(&[0], u64::MAX), 4_194_304.0);
        assert_eq!(allowance(&[0], 99), 4096.0);
        assert_eq!(allowance(&[2], u64::MAX), 8192.0);
    }

    #[test]
    fn a_heap_may_have_missed_objects_under_each_interval_that_it_told_and_malloc_under_none_of_them()
     {
        let mut profile = profile(&[(10 << 20, 0), (11 << 20, 0)], 12 << 20);
        profile.interval_history.truncate(1);
        let bytes = |profile: &Profile, heap, from_ns, until_ns| {
            profile.allowance(HeapId(heap), from_ns, until_ns).bytes
        };
        // Index 1 is the first interval of both heaps, 2 the second of one of them. Nothing was sampled under that.
        profile.intervals.truncate(1);
        profile.intervals.push(interval(0, 8192));
        profile.intervals.push(interval(100, 1 << 30));
        let told = [
            (1, vec![interval(0, 8192), interval(100, 1 << 30)]),
            (2, vec![interval(0, 8192)]),
        ];
        for (heap, own) in told {
            profile.vm.intervals.insert(HeapId(heap), own);
            profile
                .vm
                .heaps
                .insert(HeapId(heap), crate::Heap::default());
        }
        profile.reach.of_heaps.extend([1, 2]);
        profile
            .reach
            .sampled
            .extend([(HeapId(0), 0), (HeapId(1), 1)]);
        assert_eq!(bytes(&profile, 0, 0, u64::MAX), 4096.0);
        assert_eq!(bytes(&profile, 1, 0, u64::MAX), (1_u64 << 30) as f64);
        assert_eq!(bytes(&profile, 1, 0, 99), 8192.0);
        assert_eq!(bytes(&profile, 1, 101, u64::MAX), (1_u64 << 30) as f64);
        // It has no samples, and nothing to do with what the other was sampled with later.
        assert_eq!(bytes(&profile, 2, 0, u64::MAX), 8192.0);
        let of_process = profile.allowances(0, u64::MAX).of_process().bytes;
        assert_eq!(of_process, (1_u64 << 30) as f64);
        // In a recording that does not tell them, only samples say which intervals a heap had.
        profile.vm.intervals.clear();
        assert_eq!(bytes(&profile, 1, 0, u64::MAX), 8192.0);
    }

    #[test]
    fn what_every_allocation_was_recorded_under_hides_nothing() {
        let all = vec![interval(0, 1)];
        let profile = Profile {
            intervals: all.clone(),
            interval_history: all,
            ..Profile::default()
        };
        assert_eq!(
            profile.allowance(HeapId::MALLOC, 0, u64::MAX),
            Allowance::default()
        );
    }

    #[test]
    fn bounds_are_those_of_charging_every_interval_one_by_one() {
        let mut random = Random::from_seed(3);
        for _ in 0..200 {
            let changes = 1 + random.below(6) as usize;
            // Some come back.
            let history: Vec<IntervalInfo> = (0..changes)
                .map(|number| interval(number as u64, 1024 << random.below(4)))
                .collect();
            let mut builder = ReachBuilder::default();
            let mut slow: BTreeMap<u64, u64> = BTreeMap::new();
            let mut profile = Profile {
                interval_history: history.clone(),
                exit: Some(Exit {
                    time_ns: 200,
                    how: ExitHow::Exit,
                    status: Some(0),
                }),
                ..Profile::default()
            };
            let mut charge = |intervals: &[IntervalInfo], bytes: u64| {
                for info in intervals {
                    *slow.entry(info.interval_bytes).or_default() += bytes;
                }
            };
            for thread in 1..=3 {
                let (mut last, mut bytes) = (0, 0);
                for now in 0..changes {
                    if random.below(2) == 0 {
                        // One after the other under the interval that is in force now.
                        let several = (0..=random.below(3)).map(|_| {
                            let more = random.below(1 << 20);
                            bytes += more;
                            charge(&history[last..=now], more);
                            last = now;
                            bytes
                        });
                        let several: Vec<u64> = several.collect();
                        builder.add_bytes(ThreadId(thread), &several, 0, &history[..=now]);
                    }
                }
                let rest = random.below(1 << 20);
                charge(&history[last..], rest);
                let of_thread = Thread {
                    exact_bytes: bytes + rest,
                    ..Thread::default()
                };
                profile.threads.insert(ThreadId(thread), of_thread);
            }
            assert_eq!(builder.finish(&profile, |_| 0).bytes, slow);
        }
    }

    #[test]
    fn many_intervals_threads_and_heaps_take_a_step_each_and_not_for_every_pair() {
        // 65,000 of each: every pair of them would take hours.
        const COUNT: u16 = 65_000;
        let history: Vec<IntervalInfo> = (0..COUNT)
            .map(|number| interval(u64::from(number), 1 << 20 | u64::from(number)))
            .collect();
        let mut builder = ReachBuilder::default();
        let mut profile = Profile {
            intervals: history.clone(),
            interval_history: history.clone(),
            ..Profile::default()
        };
        for number in 1..COUNT {
            let thread = ThreadId(u32::from(number));
            builder.add_bytes(thread, &[1 << 30], 0, &history);
            profile.threads.insert(thread, Thread::default());
            builder.add_size(&Sample {
                heap: HeapId(number),
                interval: number,
                size: 8,
                ..Sample::default()
            });
        }
        profile.reach = builder.finish(&profile, |_| 0);
        let longest = (1 << 20 | u64::from(COUNT - 1)) as f64;
        let allowances = profile.allowances(0, u64::MAX);
        // Each follows the history, and was sampled with the longest of all, too.
        for number in 1..COUNT {
            assert_eq!(allowances.of(HeapId(number)).bytes, longest);
        }
    }
}
