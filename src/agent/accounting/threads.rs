//! Which threads have joined, for their exact totals when the process ends.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::accounting::thread::{ShimThread, THREAD_BYTES, Totals};
use crate::os::memory;

const SLOTS: usize = 4096;

struct Slot {
    /// 0 while free.
    number: AtomicU32,
    /// Where the thread's state is.
    address: AtomicU64,
}

/// The threads that are running now; those beyond 4,096 are counted at their own end only.
pub struct Threads {
    slots: [Slot; SLOTS],
    /// Slots from here on were never used.
    used_slots: AtomicUsize,
    next_number: AtomicU32,
    ended_bytes: AtomicU64,
    ended_muted_bytes: AtomicU64,
}

impl Threads {
    /// None.
    pub const fn new() -> Self {
        Self {
            slots: [const {
                Slot {
                    number: AtomicU32::new(0),
                    address: AtomicU64::new(0),
                }
            }; SLOTS],
            used_slots: AtomicUsize::new(0),
            next_number: AtomicU32::new(1),
            ended_bytes: AtomicU64::new(0),
            ended_muted_bytes: AtomicU64::new(0),
        }
    }

    /// Adds what a thread allocated that ended while there was no recording to say so in.
    pub fn add_ended(&self, totals: Totals) {
        self.ended_bytes.fetch_add(totals.bytes, Ordering::Relaxed);
        self.ended_muted_bytes
            .fetch_add(totals.muted_bytes, Ordering::Relaxed);
    }

    /// Bytes that threads which have ended allocated, in sum.
    pub fn ended(&self) -> Totals {
        Totals {
            bytes: self.ended_bytes.load(Ordering::Relaxed),
            muted_bytes: self.ended_muted_bytes.load(Ordering::Relaxed),
        }
    }

    /// A new number, and a slot (plus one, 0 for none).
    pub fn join(&self, thread: &ShimThread) -> (u32, u32) {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.number.load(Ordering::Relaxed) == 0
                && slot
                    .number
                    .compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            {
                self.used_slots.fetch_max(index + 1, Ordering::Relaxed);
                slot.address
                    .store(core::ptr::from_ref(thread).addr() as u64, Ordering::Release);
                // Below 4,096.
                return (number, index as u32 + 1);
            }
        }
        (number, 0)
    }

    /// Frees a thread's slot.
    pub fn leave(&self, slot: u32) {
        if let Some(slot) = (slot as usize)
            .checked_sub(1)
            .and_then(|index| self.slots.get(index))
        {
            slot.address.store(0, Ordering::Relaxed);
            slot.number.store(0, Ordering::Release);
        }
    }

    /// Number and totals of each running thread but `except`. A thread may be ending just now: its memory is copied by
    /// the kernel, which tells if it is gone.
    pub fn for_each_other(&self, except: u32, mut visit: impl FnMut(u32, Totals)) {
        let used = self.used_slots.load(Ordering::Relaxed);
        for slot in self.slots.iter().take(used) {
            let number = slot.number.load(Ordering::Acquire);
            let address = slot.address.load(Ordering::Acquire);
            if number == 0 || number == except || address == 0 {
                continue;
            }
            let mut copy = [0; THREAD_BYTES];
            if memory::copy_if_mapped(address, &mut copy)
                && slot.number.load(Ordering::Acquire) == number
            {
                visit(number, ShimThread::totals_of_copy(&copy));
            }
        }
    }

    /// Number and totals of each thread that allocates nothing just now: what it has allocated is in its samples. Of one
    /// that does, some of the figures are from before and some from after.
    pub fn for_each_quiet(&self, mut visit: impl FnMut(u32, Totals)) {
        let used = self.used_slots.load(Ordering::Relaxed);
        for slot in self.slots.iter().take(used) {
            let number = slot.number.load(Ordering::Acquire);
            let address = slot.address.load(Ordering::Acquire);
            if number == 0 || address == 0 {
                continue;
            }
            let (mut copy, mut again) = ([0; THREAD_BYTES], [0; THREAD_BYTES]);
            if memory::copy_if_mapped(address, &mut copy)
                && memory::copy_if_mapped(address, &mut again)
                && copy == again
                && slot.number.load(Ordering::Acquire) == number
                && !ShimThread::is_copy_at_work(&copy)
            {
                visit(number, ShimThread::totals_of_copy(&copy));
            }
        }
    }

    /// Whether a running thread but `except` is in a slow path.
    pub fn is_any_muted(&self, except: u32) -> bool {
        let used = self.used_slots.load(Ordering::Relaxed);
        self.slots.iter().take(used).any(|slot| {
            let number = slot.number.load(Ordering::Acquire);
            let address = slot.address.load(Ordering::Acquire);
            let mut copy = [0; THREAD_BYTES];
            number != 0
                && number != except
                && address != 0
                && memory::copy_if_mapped(address, &mut copy)
                && ShimThread::is_copy_muted(&copy)
        })
    }

    /// Forgets all: in a forked child.
    pub fn clear(&self) {
        for slot in &self.slots {
            slot.address.store(0, Ordering::Relaxed);
            slot.number.store(0, Ordering::Relaxed);
        }
        self.next_number.store(1, Ordering::Relaxed);
        self.ended_bytes.store(0, Ordering::Relaxed);
        self.ended_muted_bytes.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_threads_allocated_is_kept_with_what_was_muted() {
        let threads = std::boxed::Box::new(Threads::new());
        for (bytes, muted_bytes) in [(10, 1), (0, 200), (3000, 0)] {
            threads.add_ended(Totals { bytes, muted_bytes });
        }
        let sum = Totals {
            bytes: 3010,
            muted_bytes: 201,
        };
        assert_eq!(threads.ended(), sum);
        threads.clear();
        assert_eq!(threads.ended().muted_bytes, 0);
    }
}
