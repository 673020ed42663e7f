//! Bounds on what sampling can have missed: the bytes that were allocated under each interval.
//!
//! Every sample carries the exact bytes of its thread. Between two samples of a thread, those bytes were allocated under
//! the intervals that were in force meanwhile. Their sum bounds what an interval can have hidden: one that was in force
//! while 100 KiB were allocated has missed at most 100 KiB, even if it is 4 MiB.

use std::collections::{BTreeMap, BTreeSet};

use allocsample_record::{HeapId, ThreadId};
use allocsample_sampling::{GapLaw, Interval, Weight};
use rustc_hash::FxHashMap;

use crate::model::{IntervalInfo, Profile, Sample};

/// The bytes, at most, that were allocated under each interval, and which intervals each heap was sampled with.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// By interval in bytes. One that is missing has no known bound.
    bytes: BTreeMap<u64, u64>,
    /// Heaps and indices of intervals that have samples.
    sampled: BTreeSet<(HeapId, u16)>,
    /// The size of the smallest sampled block.
    smallest: Option<u64>,
}

/// Collects a [`Reach`] sample by sample.
#[derive(Default)]
pub(crate) struct ReachBuilder {
    reach: Reach,
    last: Option<(HeapId, u16)>,
    threads: FxHashMap<ThreadId, Mark>,
}

/// Where a thread was at its last sample.
#[derive(Clone, Copy, Default)]
struct Mark {
    /// Its exact bytes.
    bytes: u64,
    /// The index in the history of the interval that was in force.
    change: usize,
}

impl ReachBuilder {
    /// Bytes of memory that it takes, about.
    pub(crate) fn held_bytes(&self) -> u64 {
        /// An entry of a tree or of a table, with its room.
        const ENTRY: usize = 48;
        let entries = self.reach.bytes.len() + self.reach.sampled.len() + self.threads.len();
        (ENTRY * entries) as u64
    }

    /// How many pairs of a heap and an interval have samples so far.
    pub(crate) fn pairs(&self) -> usize {
        self.reach.sampled.len()
    }

    /// A sample, whatever file it comes from.
    pub(crate) fn add_size(&mut self, sample: &Sample) {
        let key = (sample.heap, sample.interval);
        if self.last != Some(key) {
            self.last = Some(key);
            self.reach.sampled.insert(key);
        }
        let smallest = &mut self.reach.smallest;
        *smallest = Some(smallest.map_or(sample.size, |least| least.min(sample.size)));
    }

    /// A sample of malloc's that was taken when its thread had allocated `bytes`, of which `before` precede the file.
    pub(crate) fn add_bytes(
        &mut self,
        thread: ThreadId,
        bytes: u64,
        before: u64,
        history: &[IntervalInfo],
    ) {
        let first = Mark {
            bytes: before,
            change: 0,
        };
        let mark = self.threads.entry(thread).or_insert(first);
        let since = mark.bytes;
        let change = std::mem::replace(&mut mark.change, history.len().saturating_sub(1));
        mark.bytes = bytes.max(since);
        charge(
            &mut self.reach.bytes,
            &history[change.min(history.len())..],
            bytes.saturating_sub(since),
        );
    }

    /// When all samples are in, and before what precedes the file is taken off the totals of threads.
    pub(crate) fn finish(mut self, profile: &Profile, before: impl Fn(ThreadId) -> u64) -> Reach {
        let history = &profile.interval_history[..];
        for (&id, thread) in &profile.threads {
            let mark = self.threads.get(&id).copied().unwrap_or(Mark {
                bytes: before(id),
                change: 0,
            });
            let rest = match profile.exit {
                Some(_) => thread.exact_bytes.saturating_sub(mark.bytes),
                // How much it has allocated since its last sample, nobody has said yet.
                None => u64::MAX,
            };
            charge(
                &mut self.reach.bytes,
                &history[mark.change.min(history.len())..],
                rest,
            );
        }
        self.reach
    }
}

/// Any of these intervals may have been in force for all of the bytes.
fn charge(reach: &mut BTreeMap<u64, u64>, intervals: &[IntervalInfo], bytes: u64) {
    for info in intervals {
        let most = reach.entry(info.interval_bytes).or_default();
        *most = most.saturating_add(bytes);
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

impl Profile {
    /// The smallest block that a count allows for. Requests below 8 bytes, which every common allocator rounds up, are
    /// rare; where one was sampled, it is the size of that.
    pub(crate) fn smallest_expected(&self) -> u64 {
        const COMMON: u64 = 8;
        self.reach.smallest.unwrap_or(COMMON).clamp(1, COMMON)
    }

    /// What may have been missed in a heap from one moment to another (CLOCK_MONOTONIC): a block under the longest interval
    /// that was in force then, unless fewer bytes than that were allocated under it.
    pub fn allowance(&self, heap: HeapId, from_ns: u64, until_ns: u64) -> Allowance {
        let smallest = self.smallest_expected();
        let mut most = Allowance::default();
        let in_force = self.in_force(from_ns, until_ns);
        let sampled = self.sampled_with(heap);
        for (index, info) in (0..=u16::MAX).zip(&self.intervals) {
            let Some(interval) = Interval::new(info.interval_bytes) else {
                continue;
            };
            // A heap's own, or one that a forked child brought along, is not in the history.
            let was_in_force = in_force.get(&info.interval_bytes).copied().unwrap_or(true);
            if !was_in_force || !sampled(index) {
                continue;
            }
            let weight = Weight::new(GapLaw::Poisson, interval);
            let known = self.reach.bytes.get(&info.interval_bytes);
            let reach = match known {
                // To f64: far below 2^53, or a bound that does not matter.
                Some(&bytes) if heap == HeapId::MALLOC => bytes as f64,
                _ => f64::INFINITY,
            };
            let fewest = weight.unit_bytes().min(reach) / smallest as f64;
            most.bytes = most.bytes.max(weight.unit_bytes().min(reach));
            most.objects = most
                .objects
                .max(weight.unit_objects(smallest).min(fewest.ceil()));
        }
        most
    }

    /// Whether a heap is sampled with an interval: its samples say so, or no other heap's do.
    fn sampled_with(&self, heap: HeapId) -> impl Fn(u16) -> bool {
        let sampled = &self.reach.sampled;
        let own: BTreeSet<u16> = sampled
            .iter()
            .filter(|it| it.0 == heap)
            .map(|it| it.1)
            .collect();
        let all: BTreeSet<u16> = sampled.iter().map(|it| it.1).collect();
        let may_have_others = heap == HeapId::MALLOC || own.is_empty();
        move |index| own.contains(&index) || (may_have_others && !all.contains(&index))
    }

    /// The intervals of the history, in bytes, and whether they were in force between two moments.
    fn in_force(&self, from_ns: u64, until_ns: u64) -> BTreeMap<u64, bool> {
        let history = &self.interval_history;
        let ends = history.iter().skip(1).map(|next| next.time_ns);
        let mut intervals = BTreeMap::new();
        for (change, end_ns) in history.iter().zip(ends.chain([u64::MAX])) {
            let was_in_force = intervals.entry(change.interval_bytes).or_default();
            *was_in_force |= change.time_ns <= until_ns && end_ns >= from_ns;
        }
        intervals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Exit, Thread};
    use allocsample_record::{ExitHow, Sampling};

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
            builder.add_bytes(ThreadId(1), bytes, 0, &history[..=changes]);
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
        builder.add_bytes(ThreadId(1), 10 << 20, 0, &running.interval_history[..1]);
        let reach = builder.finish(&running, |_| 0);
        let running = Profile { reach, ..running };
        assert_eq!(running.allowance(malloc, 0, u64::MAX).bytes, 4_194_304.0);
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
}
