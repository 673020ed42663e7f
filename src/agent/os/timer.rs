//! Timers that run while a thread has a processor.

/// A timer of the kernel's. It is gone after a fork (in the child) and after an exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer(pub u32);

/// The signal of a timer, and its times.
#[derive(Clone, Copy, Debug)]
pub struct Ticking {
    /// The signal.
    pub signal: i32,
    /// The value that every signal of this timer carries.
    pub mark: u64,
    /// CPU time until the first signal.
    pub first_ns: u64,
    /// CPU time between two signals.
    pub period_ns: u64,
}

/// Makes a timer for a thread of this process that runs on that thread's own processor time, and sends its signal to it
/// alone. `None`: the kernel has none left, or the thread is gone.
pub fn start(tid: u32, ticking: &Ticking) -> Option<Timer> {
    let mut id: libc::c_int = 0;
    // SAFETY: all zero bytes are a value of this type of plain data.
    let mut event: libc::sigevent = unsafe { core::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = ticking.signal;
    event.sigev_value.sival_ptr = core::ptr::with_exposed_provenance_mut(ticking.mark as usize);
    event.sigev_notify_thread_id = tid.cast_signed();
    // SAFETY: both places are valid for the call.
    let made = unsafe {
        libc::syscall(
            libc::SYS_timer_create,
            libc::c_long::from(cpu_clock_of(tid)),
            &raw const event,
            &raw mut id,
        )
    };
    let timer = Timer(u32::try_from(id).ok().filter(|_| made == 0)?);
    let times = libc::itimerspec {
        it_interval: timespec(ticking.period_ns),
        it_value: timespec(ticking.first_ns.max(1)),
    };
    // SAFETY: `times` is readable; the time before is not asked for.
    let set = unsafe {
        libc::syscall(
            libc::SYS_timer_settime,
            libc::c_long::from(timer.0),
            0_i64,
            &raw const times,
            core::ptr::null_mut::<libc::itimerspec>(),
        )
    };
    if set != 0 {
        stop(timer);
        return None;
    }
    Some(timer)
}

/// Ends a timer. A signal that it has sent may still come.
pub fn stop(timer: Timer) {
    // SAFETY: touches no memory.
    unsafe { libc::syscall(libc::SYS_timer_delete, libc::c_long::from(timer.0)) };
}

/// The kernel's number for the clock of one thread: all bits of the tid turned, then "of a thread" and "as scheduled".
fn cpu_clock_of(tid: u32) -> libc::clockid_t {
    const OF_A_THREAD: i32 = 4;
    const AS_SCHEDULED: i32 = 2;
    (!tid.cast_signed()) << 3 | OF_A_THREAD | AS_SCHEDULED
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        // Below 2^35, and below 10^9.
        tv_sec: (ns / 1_000_000_000).cast_signed(),
        tv_nsec: (ns % 1_000_000_000).cast_signed(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
