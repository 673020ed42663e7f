//! Time, through the vDSO: no system call.

use core::sync::atomic::{AtomicUsize, Ordering};

/// `clock_gettime`.
pub type ClockGetTime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

/// The kernel's own, as a number. Not whoever has its name in this process: a sanitizer may not be ready yet, and others
/// tell the program a time that is not the time.
static SOURCE: AtomicUsize = AtomicUsize::new(0);

/// Tells it; before that time costs a system call.
pub fn set_source(source: ClockGetTime) {
    SOURCE.store(source as usize, Ordering::Release);
}

/// The processor's own clock is about to be forbidden on pain of death (`PR_SET_TSC`): the kernel's function reads it, and a
/// system call does not.
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
        // SAFETY: the kernel writes to `time`.
        unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut time) };
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

/// CLOCK_REALTIME, read once to tie the other to the calendar.
pub fn wall_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

/// Time of processors that this process has used.
pub fn process_ns() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Time of a processor that the calling thread has used.
pub fn thread_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// How long somebody is willing to wait, from its making on. Signals end single waits early, and a timer of the program's may
/// send them for ever.
pub struct Patience {
    since_ns: u64,
    ms: u32,
}

impl Patience {
    /// So many milliseconds.
    pub fn of_ms(ms: u32) -> Self {
        Self {
            since_ns: monotonic_ns(),
            ms,
        }
    }

    /// Milliseconds that are left, more than 0; `None`: it is over.
    pub fn left_ms(&self) -> Option<u32> {
        let waited_ms = monotonic_ns().saturating_sub(self.since_ns) / 1_000_000;
        let left_ms = u64::from(self.ms).saturating_sub(waited_ms);
        u32::try_from(left_ms).ok().filter(|&left_ms| left_ms > 0)
    }
}

/// Lets time pass, by a system call that is no cancellation point.
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
