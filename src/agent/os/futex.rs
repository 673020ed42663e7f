//! Waiting for, and waking, another thread of this process.

use core::sync::atomic::AtomicU32;

/// Sleeps until woken, by somebody, a signal or for no reason, unless `word` no longer holds `expected`; at most `timeout_ms`.
pub fn wait(word: &AtomicU32, expected: u32, timeout_ms: Option<u32>) {
    let time = timeout_ms.map(|ms| libc::timespec {
        tv_sec: i64::from(ms / 1000),
        tv_nsec: i64::from(ms % 1000) * 1_000_000,
    });
    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: the kernel reads `word` and `time`, both alive across the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            time,
        )
    };
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
