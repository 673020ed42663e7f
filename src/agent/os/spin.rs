//! A lock for short sections of the agent: during collections, or on muted threads.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use super::process;
use super::signals::Held;

/// A value under a lock that gives the processor away while it waits.
pub struct Spin<T> {
    is_locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is touched only under the lock.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    /// Unlocked.
    pub const fn new(value: T) -> Self {
        Self {
            is_locked: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Runs `work` alone. Not in a signal handler that may have interrupted `work`.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // Acquire and release: the previous owner is done.
        while self.is_locked.swap(true, Ordering::Acquire) {
            process::yield_now();
        }
        // SAFETY: the lock is ours.
        let result = work(unsafe { &mut *self.value.get() });
        self.is_locked.store(false, Ordering::Release);
        result
    }

    /// As [`Self::with`], unless the lock stays taken for about so many turns of other threads. Signals are blocked
    /// meanwhile: no handler can fork with the lock taken, or leave by a jump.
    pub fn with_patience<R>(&self, turns: u32, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let _held = Held::unless_filtered();
        let mut left = turns;
        // Acquire and release: as above.
        while self.is_locked.swap(true, Ordering::Acquire) {
            left = left.checked_sub(1)?;
            process::yield_now();
        }
        // SAFETY: the lock is ours.
        let result = work(unsafe { &mut *self.value.get() });
        self.is_locked.store(false, Ordering::Release);
        Some(result)
    }

    /// In a forked child, whose only thread does not hold it: whoever did does not exist.
    pub fn break_lock(&self) {
        self.is_locked.store(false, Ordering::Relaxed);
    }
}
