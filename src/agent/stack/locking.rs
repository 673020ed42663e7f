//! Decides by its stack whether an interrupted thread may start another one.
//!
//! To start a thread takes locks of libc, of the dynamic loader and of the allocator, which a signal may have come in the
//! middle of. Who holds one is inside that code, so it is on the stack; but so is libc where each thread begins:
//!
//! ```text
//! f <- main <- libc <- libc <- _start          f <- the program's thread <- us <- libc <- libc
//! ```

use core::sync::atomic::{AtomicU64, Ordering};

use super::modules::Modules;

/// Libc, its library of threads (part of libc since glibc 2.34), the loader, the next allocator, and our own library.
const MODULES: usize = 5;

/// `__libc_start_call_main` and `__libc_start_main`, or our wrapper, `start_thread` and `clone`. More is something else, such
/// as handlers of `exit`.
const MOST_AT_ROOT: usize = 3;

/// The modules that contain such locks.
pub struct LockingCode {
    /// Start and end of each module, 0 if it is not known.
    ranges: [(AtomicU64, AtomicU64); MODULES],
}

impl LockingCode {
    /// No module is known.
    pub const fn new() -> Self {
        Self {
            ranges: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; MODULES],
        }
    }

    /// Sets the modules, each by an address in it. Once, at start.
    pub fn set(&self, modules: &Modules, addresses: [u64; MODULES]) {
        for ((start, end), address) in self.ranges.iter().zip(addresses) {
            if let Some(range) = modules.range_of(address) {
                start.store(range.start, Ordering::Relaxed);
                end.store(range.end, Ordering::Relaxed);
            }
        }
    }

    /// Modules at 1000, 2000, 3000, 4000 and 5000, of ten bytes each.
    #[cfg(test)]
    pub(crate) fn set_one_to_five(&self) {
        for ((start, end), number) in self.ranges.iter().zip(1..) {
            start.store(1000 * number, Ordering::Relaxed);
            end.store(1000 * number + 10, Ordering::Relaxed);
        }
    }

    fn contains(&self, frame: u64) -> bool {
        self.ranges.iter().any(|(start, end)| {
            (start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed))
                .contains(&frame.wrapping_sub(1))
        })
    }

    /// Whether a whole stack, leaf first, has no frame in these modules except at its root. In a signal handler.
    pub(crate) fn is_left_by(&self, frames: &[u64]) -> bool {
        let mut ranges = self.ranges.iter();
        if !ranges.all(|(start, _)| start.load(Ordering::Relaxed) != 0) {
            return false;
        }
        // The program's entry point; nothing, in other threads.
        let frames = match frames {
            [rest @ .., entry] if !self.contains(*entry) => rest,
            all => all,
        };
        let from_root = frames.iter().rev();
        let start = from_root.take_while(|&&frame| self.contains(frame)).count();
        let (rest, _) = frames
            .split_at_checked(frames.len() - start)
            .unwrap_or((&[], &[]));
        // A thread that libc did not start cannot start one by libc.
        (1..=MOST_AT_ROOT).contains(&start)
            && !rest.is_empty()
            && !rest.iter().any(|&frame| self.contains(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::modules::FoundObject;

    const LIBC: u64 = 1005;
    const LOADER: u64 = 2005;
    const ALLOCATOR: u64 = 3005;
    const OURS: u64 = 4005;
    const THREADS: u64 = 5005;
    const PROGRAM: u64 = 77;

    fn locking_code() -> LockingCode {
        let code = LockingCode::new();
        code.set_one_to_five();
        code
    }

    #[test]
    fn the_modules_of_these_addresses_are_meant() {
        unsafe extern "C" {
            fn _dl_find_object(
                at: *const core::ffi::c_void,
                to: *mut FoundObject,
            ) -> core::ffi::c_int;
        }
        let modules = std::boxed::Box::new(Modules::new());
        modules.set_find_object(_dl_find_object);
        let of_libc = (libc::malloc as *const ()).expose_provenance() as u64;
        let of_ours = (LockingCode::new as *const ()).expose_provenance() as u64;
        let code = LockingCode::new();
        code.set(&modules, [of_libc; MODULES]);
        assert!(code.contains(of_libc) && !code.contains(of_ours));
        // Where one of them is not known, nobody may.
        assert!(code.is_left_by(&[of_ours, of_libc]));
        let code = LockingCode::new();
        code.set(&modules, [of_libc, of_libc, of_libc, of_libc, 1]);
        assert!(!code.is_left_by(&[of_ours, of_libc]));
    }

    #[test]
    fn a_thread_in_its_own_code_may_start_another() {
        let code = locking_code();
        assert!(code.is_left_by(&[PROGRAM, PROGRAM, LIBC, LIBC, PROGRAM]));
        assert!(code.is_left_by(&[PROGRAM, LIBC, LIBC]));
        assert!(code.is_left_by(&[PROGRAM, PROGRAM, OURS, LIBC, LIBC]));
    }

    #[test]
    fn a_thread_that_may_hold_a_lock_must_not() {
        let code = locking_code();
        for inner in [LIBC, LOADER, ALLOCATOR, OURS, THREADS] {
            assert!(!code.is_left_by(&[inner, PROGRAM, LIBC, LIBC, PROGRAM]));
            assert!(!code.is_left_by(&[PROGRAM, inner, PROGRAM, LIBC, LIBC, PROGRAM]));
        }
        // All of it is libc's, or none; handlers of `exit`; nothing.
        assert!(!code.is_left_by(&[LIBC, LIBC]));
        assert!(!code.is_left_by(&[PROGRAM, PROGRAM, PROGRAM]));
        assert!(!code.is_left_by(&[PROGRAM, LIBC, LIBC, LIBC, LIBC, PROGRAM]));
        assert!(!code.is_left_by(&[]));
        assert!(!code.is_left_by(&[PROGRAM]));
        // Where it is not known which code has locks.
        assert!(!LockingCode::new().is_left_by(&[PROGRAM, LIBC, LIBC, PROGRAM]));
    }
}
