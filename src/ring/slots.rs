//! One cache line for each running thread, in which its exact byte count survives the process.

use core::ops::Deref;
// Never modelled by loom: a slot has one writer at a time, and claiming one is a single exchange.
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Threads that can have a slot at the same time. More threads than that run unharmed, without one.
pub const THREAD_SLOTS: usize = 2048;

/// Counters of one thread. Written by that thread (or by whoever claimed the slot for it), read by anyone.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ThreadSlot {
    /// Our number of the thread; 0 = the slot is free.
    pub thread: AtomicU32,
    /// The kernel's number of the thread.
    pub tid: AtomicU32,
    /// Bytes that went through the thread's counter.
    pub bytes: AtomicU64,
    /// Bytes allocated by the agent's own work on the thread.
    pub muted_bytes: AtomicU64,
    /// Where the thread's counter lies in the process, for a change of interval; 0 = unknown.
    pub counter_address: AtomicU64,
    /// Interval in bytes that the thread's next sample was drawn with; 0 = none yet.
    pub interval_bytes: AtomicU64,
    spare: [AtomicU64; 3],
}

const _: () = assert!(size_of::<ThreadSlot>() == 64);

impl ThreadSlot {
    fn clear(&self) {
        self.tid.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.muted_bytes.store(0, Ordering::Relaxed);
        self.counter_address.store(0, Ordering::Relaxed);
        self.interval_bytes.store(0, Ordering::Relaxed);
    }
}

/// All slots of a ring. Safe to use from any thread and from signal handlers.
#[derive(Debug)]
#[repr(transparent)]
pub struct ThreadSlots([ThreadSlot; THREAD_SLOTS]);

impl ThreadSlots {
    /// Takes a free slot for `thread` (not 0); its counters are zero. `None`: all are taken, or `thread` is 0.
    ///
    /// The search begins at the thread's own number, so that it seldom takes more than one step.
    pub fn claim(&self, thread: u32, tid: u32) -> Option<usize> {
        let start = thread as usize % THREAD_SLOTS;
        let order = (start..THREAD_SLOTS).chain(0..start);
        for (index, slot) in order.filter_map(|index| Some((index, self.0.get(index)?))) {
            let is_free = slot.thread.load(Ordering::Relaxed) == 0;
            // Acquire: pairs with the release store in `release`, so that the zeros written there come first.
            if thread != 0
                && is_free
                && slot
                    .thread
                    .compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                slot.tid.store(tid, Ordering::Relaxed);
                return Some(index);
            }
        }
        None
    }

    /// Gives a slot back. Only whoever claimed it may call this, once; an index out of range does nothing.
    pub fn release(&self, index: usize) {
        if let Some(slot) = self.0.get(index) {
            slot.clear();
            // Release: pairs with the acquire exchange in `claim`.
            slot.thread.store(0, Ordering::Release);
        }
    }

    /// All free, outside of any mapping.
    #[cfg(any(test, loom))]
    pub(crate) fn zeroed() -> std::boxed::Box<Self> {
        std::boxed::Box::new(Self(core::array::from_fn(|_| ThreadSlot::default())))
    }
}

impl Deref for ThreadSlots {
    type Target = [ThreadSlot];

    fn deref(&self) -> &[ThreadSlot] {
        &self.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    #[test]
    fn every_slot_can_be_claimed_once() {
        let slots = ThreadSlots::zeroed();
        assert_eq!(slots.claim(0, 7), None);
        let taken: BTreeSet<_> = (1..=2048)
            .map(|thread| slots.claim(thread, thread + 1))
            .collect();
        assert_eq!(taken, (0..THREAD_SLOTS).map(Some).collect());
        assert_eq!(slots.claim(5000, 1), None);
        slots[17].bytes.store(99, Ordering::Relaxed);
        slots.release(17);
        assert_eq!(slots.claim(5000, 6), Some(17));
        assert_eq!(slots[17].thread.load(Ordering::Relaxed), 5000);
        assert_eq!(slots[17].tid.load(Ordering::Relaxed), 6);
        assert_eq!(slots[17].bytes.load(Ordering::Relaxed), 0);
        slots.release(THREAD_SLOTS);
    }

    #[test]
    fn no_two_threads_share_a_slot() {
        let slots = ThreadSlots::zeroed();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|worker| {
                    let slots = &slots;
                    scope.spawn(move || {
                        for round in 0..2000 {
                            let thread = 1 + worker + 4 * (round % 3);
                            let index = slots.claim(thread, 1).unwrap();
                            assert_eq!(slots[index].bytes.fetch_add(1, Ordering::Relaxed), 0);
                            assert_eq!(slots[index].thread.load(Ordering::Relaxed), thread);
                            slots.release(index);
                        }
                    })
                })
                .collect();
            workers
                .into_iter()
                .for_each(|worker| worker.join().unwrap());
        });
        assert!(
            slots
                .iter()
                .all(|slot| slot.thread.load(Ordering::Relaxed) == 0)
        );
    }
}
