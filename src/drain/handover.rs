//! A place where one drain thread leaves a value for the next.
//!
//! There is no lock. If the program forks while a drain thread holds one, the child's drain thread would wait forever
//! for a thread that only the parent has. The value changes hands in one exchange of a pointer, so a child finds all
//! of it or nothing.

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The place; see the module. It is a static, so what is left in the end is never dropped.
pub struct Handover<T> {
    /// From `Box::into_raw`, or null.
    left: AtomicPtr<T>,
    owns: PhantomData<T>,
}

// SAFETY: a value is owned by the one thread that put it in or took it out; no reference to it is given away.
unsafe impl<T: Send> Sync for Handover<T> {}

impl<T> Handover<T> {
    /// Nothing is left.
    pub const fn new() -> Self {
        Self {
            left: AtomicPtr::new(ptr::null_mut()),
            owns: PhantomData,
        }
    }

    /// Replaces what was left before.
    pub fn leave(&self, value: T) {
        drop(self.exchange(Some(Box::new(value))));
    }

    /// Takes the value that was left, which leaves none.
    pub fn take(&self) -> Option<T> {
        self.exchange(None).map(|value| *value)
    }

    fn exchange(&self, value: Option<Box<T>>) -> Option<Box<T>> {
        let value = value.map_or(ptr::null_mut(), Box::into_raw);
        // Acquire and release: the thread that takes the value sees all of it.
        let before = self.left.swap(value, Ordering::AcqRel);
        // SAFETY: 1. it came from `Box::into_raw` above; 2. the exchange has taken it out, so nobody else has it.
        (!before.is_null()).then(|| unsafe { Box::from_raw(before) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_is_taken_once() {
        let place = Handover::new();
        assert_eq!(place.take(), None);
        place.leave(1);
        place.leave(2);
        assert_eq!(place.take(), Some(2));
        assert_eq!(place.take(), None);
    }

    static PLACE: Handover<ForksWhenDropped> = Handover::new();

    struct ForksWhenDropped(bool);

    impl Drop for ForksWhenDropped {
        fn drop(&mut self) {
            if !self.0 {
                return;
            }
            // SAFETY: the child makes calls that are safe in a signal handler, takes the value, and ends.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                // One that waits for its parent's thread ends by SIGALRM.
                // SAFETY: has no other effect.
                unsafe { libc::alarm(20) };
                let is_there = PLACE.take().is_some();
                // SAFETY: ends the child, which has no other thread.
                unsafe { libc::_exit(i32::from(is_there)) };
            }
            let mut status = 0;
            // SAFETY: our child; `status` is writable.
            let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(ended, child);
            assert!(libc::WIFEXITED(status), "{status:#x}");
            assert_eq!(libc::WEXITSTATUS(status), 1);
        }
    }

    #[test]
    fn a_fork_while_a_value_is_left_does_not_stop_the_child() {
        PLACE.leave(ForksWhenDropped(true));
        // Drops the first one: the middle of a handover.
        PLACE.leave(ForksWhenDropped(false));
    }
}
