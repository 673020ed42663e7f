//! The numbers that sampling intervals have in a profile.
//!
//! A sample names its interval by a number. Number 0 is the one that the profile began with. Intervals of virtual machines'
//! heaps keep their number for the life of the process; every change of malloc's gets a new one.

use core::sync::atomic::{AtomicU32, Ordering};

use allocsample_record::{HeapId, IntervalRecord};
use allocsample_sampling::{Interval, Seed};

use super::Publisher;
use crate::hooks::Heap;
use crate::os::clock;
use crate::os::spin::Spin;
use crate::recording::Recording;

/// Different intervals of heaps whose numbers are used again.
const KEPT: usize = 512;

/// The numbers that are in use.
pub(super) struct Intervals {
    next: AtomicU32,
    /// Intervals of heaps, which every profile of the process defines: bytes, 0 for none, and number.
    of_heaps: Spin<[(u64, u16); KEPT]>,
}

impl Intervals {
    /// Number 0 is the first interval's.
    pub const fn new() -> Self {
        Self {
            next: AtomicU32::new(1),
            of_heaps: Spin::new([(0, 0); KEPT]),
        }
    }

    /// In a forked child, where the thread that held the lock may not exist.
    pub fn restart(&self) {
        self.of_heaps.break_lock();
    }

    /// A number that no interval of this process has had. `None`: all 65,536 are in use.
    fn next(&self) -> Option<u16> {
        u16::try_from(self.next.fetch_add(1, Ordering::Relaxed)).ok()
    }
}

impl Publisher {
    /// Returns the number that this interval of a heap has in every profile of the process, and defines it at its first use.
    /// `None`: there is no number left, or no room for the definition.
    pub(crate) fn interval_of_heaps(&self, interval: Interval, seed: Seed) -> Option<u16> {
        self.intervals.of_heaps.with(|kept| {
            let mut places = kept.iter_mut();
            let place = places.find(|(bytes, _)| *bytes == 0 || *bytes == interval.bytes());
            if let Some(&(bytes, index)) = place.as_deref()
                && bytes != 0
            {
                return Some(index);
            }
            let index = self.intervals.next()?;
            let record = IntervalRecord {
                heap: IntervalRecord::SOME_HEAP,
                ..self.interval_record(Some(interval), index, seed)
            };
            let is_defined = self.define(&record);
            if let Some(place) = place.filter(|_| is_defined) {
                *place = (interval.bytes(), index);
            }
            is_defined.then_some(index)
        })
    }

    /// Writes the interval that a heap has from now on.
    pub(crate) fn write_interval_of(&self, heap: &Heap, seed: Seed) {
        let (interval, index) = heap.interval();
        let record = IntervalRecord {
            heap: heap.id,
            ..self.interval_record(interval, index, seed)
        };
        self.push_or_wait(&record);
    }

    /// Writes that malloc is sampled at this interval from now on (`None`: not at all). Returns its number, which is a new one
    /// unless `index` gives one.
    pub(crate) fn write_interval(
        &self,
        recording: &Recording,
        interval: Option<Interval>,
        index: Option<u16>,
        seed: Seed,
    ) -> Option<u16> {
        let index = match index {
            Some(index) => index,
            None => self.intervals.next()?,
        };
        let record = self.interval_record(interval, index, seed);
        recording.push(&record).then_some(index)
    }

    fn interval_record(
        &self,
        interval: Option<Interval>,
        index: u16,
        seed: Seed,
    ) -> IntervalRecord {
        IntervalRecord {
            time_ns: clock::monotonic_ns(),
            index,
            sampling: self.setup.config().sampling,
            interval_bytes: interval.map_or(0, Interval::bytes),
            seed: seed.process,
            heap: HeapId::MALLOC,
        }
    }
}
