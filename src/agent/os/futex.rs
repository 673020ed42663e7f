//! Waiting for, and waking, another thread of this process.

use core::sync::atomic::AtomicU32;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// By somebody, by a signal, because the word had changed already, or for no reason.
    Perhaps,
    /// The time is over.
    TimedOut,
}

/// Sleeps until woken, unless `word` no longer holds `expected`; at most `timeout_ms`.
pub fn wait(word: &AtomicU32, expected: u32, timeout_ms: Option<u32>) -> Woken {
    let time = timeout_ms.map(|ms| libc::timespec {
        tv_sec: i64::from(ms / 1000),
        tv_nsec: i64::from(ms % 1000) * 1_000_000,
    });
    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: the kernel reads `word` and `time`, both alive across the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            time,
        )
    };
    // SAFETY: errno is always readable.
    if result == -1 && unsafe { *libc::__errno_location() } == libc::ETIMEDOUT {
        return Woken::TimedOut;
    }
    Woken::Perhaps
}

/// Wakes everyone who waits on `word`.
pub fn wake_all(word: &AtomicU32) {
    // SAFETY: only the address of `word` is used.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            i32::MAX,
        )
    };
}
