//! Time, through the vDSO: no system call.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::os::vdso;

/// `clock_gettime`.
pub type ClockGetTime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

/// Address of the vDSO's function; 0: use a system call. The symbol of that name in the process may be a sanitizer's that is
/// not ready, or a library's that fakes the time.
static SOURCE: AtomicUsize = AtomicUsize::new(0);

/// Sets the function. Before that, reading the time costs a system call.
pub fn set_source(source: ClockGetTime) {
    SOURCE.store(source as usize, Ordering::Release);
}

/// Reads the time by system calls from now on. The program is about to forbid reading the time stamp counter (`PR_SET_TSC`),
/// which the vDSO uses.
pub fn avoid_source() {
    SOURCE.store(0, Ordering::Release);
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let source = SOURCE.load(Ordering::Acquire);
    if source == 0 {
        vdso::kernel_clock_gettime(clock, &mut time);
    } else {
        // SAFETY: only a `ClockGetTime` is ever stored, as a number.
        let source = unsafe { core::mem::transmute::<usize, ClockGetTime>(source) };
        // SAFETY: `time` is writable; clock_gettime is async-signal-safe.
        unsafe { source(clock, &raw mut time) };
    }
    time.tv_sec
        .cast_unsigned()
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec.cast_unsigned())
}

/// CLOCK_MONOTONIC, the clock of all records.
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME in nanoseconds, read once to relate the other clock to it.
pub fn wall_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

/// CPU time of this process, in nanoseconds.
pub fn process_ns() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of the calling thread, in nanoseconds.
pub fn thread_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// A time limit for a wait that is made of several. Signals end single waits early, and a timer of the program may send them
/// for ever.
pub struct Patience {
    since_ns: u64,
    ms: u32,
}

impl Patience {
    /// A time limit that starts now.
    pub fn of_ms(ms: u32) -> Self {
        Self {
            since_ns: monotonic_ns(),
            ms,
        }
    }

    /// Remaining milliseconds, more than 0; `None`: the limit is over.
    pub fn left_ms(&self) -> Option<u32> {
        let waited_ms = monotonic_ns().saturating_sub(self.since_ns) / 1_000_000;
        let left_ms = u64::from(self.ms).saturating_sub(waited_ms);
        u32::try_from(left_ms).ok().filter(|&left_ms| left_ms > 0)
    }
}

/// Sleeps by a system call that is no cancellation point.
pub fn sleep_ms(ms: u32) {
    let time = libc::timespec {
        tv_sec: i64::from(ms / 1000),
        tv_nsec: i64::from(ms % 1000) * 1_000_000,
    };
    // SAFETY: the kernel reads `time`; how much was left after a signal is not asked for.
    unsafe {
        libc::syscall(
            libc::SYS_nanosleep,
            &raw const time,
            core::ptr::null_mut::<libc::timespec>(),
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn clocks_agree_with_those_of_the_standard_library() {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let difference = Duration::from_nanos(wall_ns()).abs_diff(since_1970.unwrap());
        assert!(difference < Duration::from_secs(86_400), "{difference:?}");
        let first_ns = monotonic_ns();
        assert!(monotonic_ns() >= first_ns);
        // This thread is one of the process's.
        let thread_ns = thread_ns();
        assert!(thread_ns > 0 && process_ns() >= thread_ns);
    }

    #[test]
    fn a_limit_that_is_over_has_nothing_left() {
        let now_ns = monotonic_ns();
        let left = |since_ns, ms| Patience { since_ns, ms }.left_ms();
        assert_eq!(left(now_ns - 5_000_000, 5), None);
        assert_eq!(left(now_ns + 60_000_000_000, 5), Some(5));
        let of_a_day = left(now_ns - 1_000_000_000, 86_400_000).unwrap();
        assert!((1..=86_399_000).contains(&of_a_day), "{of_a_day}");
        assert_eq!(Patience::of_ms(0).left_ms(), None);
    }
}
