//! What somebody outside asks of the process while it runs: another interval, or none.
//!
//! The request lies in the first page of the ring, which is a file that only the same user may write. No socket, no
//! thread, no signal: the slow path looks there, at each sample and at least once a mebibyte of each thread, and whoever
//! finds a new request puts it in force. The other threads adopt it at their next slow path.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use allocsample_sampling::Interval;

use crate::agent::Agent;
use crate::os::thread::{Force, Muted, ShimThread};
use crate::recording::{self, Recording};

/// The sampling that is in force.
pub struct Control {
    /// The last request that was seen.
    seen: AtomicU64,
    /// 0 while stopped.
    interval_bytes: AtomicU64,
    index: AtomicU32,
    change: AtomicU32,
}

impl Control {
    /// Stopped.
    pub const fn new() -> Self {
        Self {
            seen: AtomicU64::new(0),
            interval_bytes: AtomicU64::new(0),
            index: AtomicU32::new(0),
            change: AtomicU32::new(0),
        }
    }

    /// As the settings say; `None` is stopped. At the start, and in a forked child, where no other thread is.
    pub fn reset(&self, interval: Option<Interval>) {
        self.seen.store(0, Ordering::Relaxed);
        self.set(interval, 0);
    }

    fn set(&self, interval: Option<Interval>, index: u16) {
        let bytes = interval.map_or(0, Interval::bytes);
        self.index.store(u32::from(index), Ordering::Relaxed);
        self.interval_bytes.store(bytes, Ordering::Relaxed);
        // Release: who sees the change sees the rest, or what came later, which it then adopts too.
        self.change.fetch_add(1, Ordering::Release);
    }

    /// Now.
    pub fn force(&self) -> Force {
        let change = self.change.load(Ordering::Acquire);
        Force {
            interval: Interval::new(self.interval_bytes.load(Ordering::Relaxed)),
            index: self.index.load(Ordering::Relaxed) as u16,
            change,
        }
    }
}

impl Agent {
    /// Looks for a request, and lets the thread adopt what is in force. Its own allocation has been dealt with.
    pub(crate) fn obey_requests(&self, thread: &ShimThread, muted: &Muted<'_>) {
        if let Some(recording) = recording::current() {
            let (generation, interval) = recording.ring.request();
            let seen = self.control.seen.load(Ordering::Relaxed);
            // One thread puts it in force.
            if generation > seen
                && (self.control.seen)
                    .compare_exchange(seen, generation, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            {
                self.put_in_force(recording, Interval::new(interval));
                recording.ring.obey(generation);
            }
        }
        let force = self.control.force();
        if thread.change() != force.change {
            muted.adopt(&force);
        }
    }

    fn put_in_force(&self, recording: &Recording, interval: Option<Interval>) {
        // Written even if it is the one that was there: it says when sampling went on.
        let Some(index) = self.write_interval(recording, interval) else {
            return;
        };
        self.control.set(interval, index);
        for heap in self.heaps.all() {
            if let Some(interval) = interval.filter(|_| !heap.samples_by_itself()) {
                self.set_heap_interval(heap, interval);
            }
            self.switch_heap(heap, interval.is_some());
        }
    }
}
