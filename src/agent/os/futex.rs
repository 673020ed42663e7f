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

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;
    use std::time::Instant;

    #[test]
    fn who_waits_wakes_when_the_word_has_changed() {
        let word = AtomicU32::new(0);
        // No time limit: the test ends only because it is woken. A call for the other side may come before it sleeps.
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    wait(&word, 0, None);
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            word.store(1, Ordering::Release);
            wake_all(&word);
            waiter.join().unwrap();
        });
        // The word is another one already.
        wait(&word, 0, None);
    }

    #[test]
    fn a_time_limit_has_seconds_and_milliseconds() {
        const LIMIT_MS: u32 = 1030;
        let word = AtomicU32::new(7);
        let waited = || {
            let began = Instant::now();
            wait(&word, 7, Some(LIMIT_MS));
            began.elapsed().as_millis()
        };
        // It may wake early for no reason, but not each time.
        assert!((0..3).any(|_| waited() >= u128::from(LIMIT_MS)));
    }
}
