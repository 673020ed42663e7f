//! The running threads, for their exact totals when the process ends.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::accounting::thread::{ShimThread, THREAD_BYTES, Totals};
use crate::os::safe_read;

const SLOTS: usize = 4096;

struct Slot {
    /// 0 while free.
    number: AtomicU32,
    /// Address of the thread's state.
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

    /// Adds the totals of a thread that ended while there was no recording.
    pub fn add_ended(&self, totals: Totals) {
        self.ended_bytes.fetch_add(totals.bytes, Ordering::Relaxed);
        self.ended_muted_bytes
            .fetch_add(totals.muted_bytes, Ordering::Relaxed);
    }

    /// Sum of the totals of those threads.
    pub fn ended(&self) -> Totals {
        Totals {
            bytes: self.ended_bytes.load(Ordering::Relaxed),
            muted_bytes: self.ended_muted_bytes.load(Ordering::Relaxed),
        }
    }

    /// Gives the thread a new number and a slot. Returns the number, and the slot plus one; 0: there is no slot.
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

    /// Visits the number and totals of each running thread except `except`. A thread may be ending: the kernel copies its
    /// memory, and fails if it is gone.
    pub fn for_each_other(&self, except: u32, mut visit: impl FnMut(u32, Totals)) {
        let used = self.used_slots.load(Ordering::Relaxed);
        for slot in self.slots.iter().take(used) {
            let number = slot.number.load(Ordering::Acquire);
            let address = slot.address.load(Ordering::Acquire);
            if number == 0 || number == except || address == 0 {
                continue;
            }
            let mut copy = [0; THREAD_BYTES];
            if safe_read::copy_if_mapped(address, &mut copy)
                && slot.number.load(Ordering::Acquire) == number
            {
                visit(number, ShimThread::totals_of_copy(&copy));
            }
        }
    }

    /// Visits the number and totals of each thread that is not allocating at the moment. The figures of one that is could be
    /// inconsistent; its total is in its samples.
    pub fn for_each_quiet(&self, mut visit: impl FnMut(u32, Totals)) {
        let used = self.used_slots.load(Ordering::Relaxed);
        for slot in self.slots.iter().take(used) {
            let number = slot.number.load(Ordering::Acquire);
            let address = slot.address.load(Ordering::Acquire);
            if number == 0 || address == 0 {
                continue;
            }
            let (mut copy, mut again) = ([0; THREAD_BYTES], [0; THREAD_BYTES]);
            if safe_read::copy_if_mapped(address, &mut copy)
                && safe_read::copy_if_mapped(address, &mut again)
                && copy == again
                && slot.number.load(Ordering::Acquire) == number
                && !ShimThread::is_copy_at_work(&copy)
            {
                visit(number, ShimThread::totals_of_copy(&copy));
            }
        }
    }

    /// Whether a running thread other than `except` is in a slow path.
    pub fn is_any_muted(&self, except: u32) -> bool {
        let used = self.used_slots.load(Ordering::Relaxed);
        self.slots.iter().take(used).any(|slot| {
            let number = slot.number.load(Ordering::Acquire);
            let address = slot.address.load(Ordering::Acquire);
            let mut copy = [0; THREAD_BYTES];
            number != 0
                && number != except
                && address != 0
                && safe_read::copy_if_mapped(address, &mut copy)
                && ShimThread::is_copy_muted(&copy)
        })
    }

    /// Removes all threads, in a forked child.
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
    use crate::os::memory;

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

    fn new_thread() -> ShimThread {
        // SAFETY: all zero bytes are a thread that has not joined.
        unsafe { core::mem::zeroed() }
    }

    fn seen(threads: &Threads, except: u32) -> std::vec::Vec<u32> {
        let mut numbers = std::vec::Vec::new();
        threads.for_each_other(except, |number, _| numbers.push(number));
        numbers
    }

    #[test]
    fn numbers_are_never_used_again_but_slots_are() {
        let threads = std::boxed::Box::new(Threads::new());
        let states = [new_thread(), new_thread(), new_thread()];
        let [first, second, third] = &states;
        assert_eq!(threads.join(first), (1, 1));
        assert_eq!(threads.join(second), (2, 2));
        assert_eq!(seen(&threads, 0), [1, 2]);
        assert_eq!(seen(&threads, 2), [1]);
        threads.leave(1);
        assert_eq!(seen(&threads, 0), [2]);
        assert_eq!(threads.join(third), (3, 1));
        assert_eq!(seen(&threads, 0), [3, 2]);
        // A thread without a slot leaves none.
        threads.leave(0);
        assert_eq!(seen(&threads, 0), [3, 2]);
        threads.clear();
        assert_eq!(seen(&threads, 0), []);
        assert_eq!(threads.join(first).0, 1, "a child's threads begin at 1");
    }

    #[test]
    fn a_thread_without_a_free_slot_joins_all_the_same() {
        let threads = std::boxed::Box::new(Threads::new());
        let state = new_thread();
        for number in 1..=SLOTS as u32 {
            assert_eq!(threads.join(&state), (number, number));
        }
        assert_eq!(threads.join(&state), (SLOTS as u32 + 1, 0));
        threads.leave(7);
        assert_eq!(threads.join(&state), (SLOTS as u32 + 2, 7));
    }

    #[test]
    fn a_thread_in_a_slow_path_is_muted_and_not_quiet() {
        let threads = std::boxed::Box::new(Threads::new());
        let states = [new_thread(), new_thread()];
        let [busy, quiet] = &states;
        threads.join(busy);
        threads.join(quiet);
        let quiet_numbers = || {
            let mut numbers = std::vec::Vec::new();
            threads.for_each_quiet(|number, _| numbers.push(number));
            numbers
        };
        assert_eq!(quiet_numbers(), [1, 2]);
        assert!(!threads.is_any_muted(0));
        let (slow_path, _) = busy.mute(0, &crate::shim::Caller::UNKNOWN);
        assert_eq!(quiet_numbers(), [2]);
        assert!(threads.is_any_muted(0) && threads.is_any_muted(2));
        assert!(!threads.is_any_muted(1), "its own does not count");
        drop(slow_path);
        // A thread of our own is at work, but in no slow path.
        busy.mute_for_good();
        assert!(!threads.is_any_muted(0));
        assert_eq!(quiet_numbers(), [2]);
    }

    #[test]
    fn a_thread_whose_memory_is_gone_is_left_out() {
        let threads = std::boxed::Box::new(Threads::new());
        let page = memory::map(4096).unwrap();
        // SAFETY: a page of zeros, which are a thread that has not joined.
        threads.join(unsafe { page.cast::<ShimThread>().as_ref() });
        assert_eq!(seen(&threads, 0), [1]);
        // SAFETY: mapped above; nothing refers to it any more.
        unsafe { memory::make_unreadable(page, 4096) };
        assert_eq!(seen(&threads, 0), []);
        assert!(!threads.is_any_muted(0));
    }
}
