use super::*;
use crate::os::{clock, process};

/// A signal that is blocked on the calling thread, which asks for those that wait.
pub(crate) struct Awaited {
    pub(crate) signal: i32,
    set: libc::sigset_t,
}

/// One signal that came: its value, and how many expiries of the timer it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Came {
    pub(crate) mark: u64,
    pub(crate) expiries: u64,
}

impl Awaited {
    /// Tests that use different numbers do not disturb each other; a thread's timer sends to that thread alone.
    pub(crate) fn new(number: i32) -> Self {
        let signal = libc::SIGRTMIN() + number;
        // SAFETY: plain data, which the next calls fill.
        let mut set: libc::sigset_t = unsafe { core::mem::zeroed() };
        // SAFETY: the set is valid for each call.
        unsafe {
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, signal);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, core::ptr::null_mut());
        }
        Self { signal, set }
    }

    fn poll(&self) -> Option<Came> {
        let none = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: plain data, which the call fills.
        let mut info: libc::siginfo_t = unsafe { core::mem::zeroed() };
        // SAFETY: all three places are valid for the call.
        let signal =
            unsafe { libc::sigtimedwait(&raw const self.set, &raw mut info, &raw const none) };
        // SAFETY: it came from a timer, and such signals have a value.
        let value = unsafe { info.si_value() };
        // SAFETY: as above; the overrun of a timer lies where other signals have the sender's user.
        let overrun = unsafe { info.si_uid() };
        (signal == self.signal).then(|| Came {
            mark: value.sival_ptr.addr() as u64,
            expiries: 1 + u64::from(overrun),
        })
    }

    /// Uses the processor until a signal comes, for so long at most.
    pub(crate) fn spin_for(&self, cpu_ns: u64) -> Option<Came> {
        let end_ns = clock::thread_ns() + cpu_ns;
        while clock::thread_ns() < end_ns {
            let came = self.poll();
            if came.is_some() {
                return came;
            }
        }
        self.poll()
    }
}

const MS: u64 = 1_000_000;
/// Longer than any timer of these tests, however seldom the kernel looks.
pub(crate) const LONG_NS: u64 = 2_000 * MS;

fn ticking(awaited: &Awaited) -> Ticking {
    Ticking {
        signal: awaited.signal,
        mark: 0x1234_5678_9ABC,
        first_ns: 3 * MS,
        period_ns: 2 * MS,
    }
}

#[test]
fn signals_come_with_their_mark_as_the_thread_uses_the_processor() {
    let awaited = Awaited::new(3);
    let began_ns = clock::thread_ns();
    let timer = start(process::tid(), &ticking(&awaited)).unwrap();
    let mut expiries = 0;
    for _ in 0..3 {
        let came = awaited.spin_for(LONG_NS).unwrap();
        assert_eq!(came.mark, 0x1234_5678_9ABC);
        expiries += came.expiries;
        let used_ns = clock::thread_ns() - began_ns;
        assert!(used_ns >= 3 * MS + (expiries - 1) * 2 * MS, "{used_ns}");
    }
    stop(timer);
    // One may have been sent before.
    awaited.spin_for(0);
    assert_eq!(awaited.spin_for(100 * MS), None);
}

#[test]
fn the_time_of_other_threads_does_not_count() {
    let awaited = Awaited::new(4);
    let timer = start(process::tid(), &ticking(&awaited)).unwrap();
    let spin = || {
        let end_ns = clock::thread_ns() + 100 * MS;
        while clock::thread_ns() < end_ns {}
    };
    // This one sleeps meanwhile.
    std::thread::spawn(spin).join().unwrap();
    assert_eq!(awaited.poll(), None);
    stop(timer);
}

#[test]
fn periods_of_seconds_are_possible_and_a_thread_that_is_gone_has_no_timer() {
    let awaited = Awaited::new(5);
    let long = Ticking {
        first_ns: 5_500 * MS,
        period_ns: 1_000 * MS,
        ..ticking(&awaited)
    };
    let timer = start(process::tid(), &long).unwrap();
    // SAFETY: plain data, which the call fills.
    let mut left: libc::itimerspec = unsafe { core::mem::zeroed() };
    // SAFETY: the place is valid for the call.
    let asked = unsafe {
        libc::syscall(
            libc::SYS_timer_gettime,
            libc::c_long::from(timer.0),
            &raw mut left,
        )
    };
    assert_eq!(asked, 0);
    assert_eq!((left.it_interval.tv_sec, left.it_interval.tv_nsec), (1, 0));
    assert_eq!(left.it_value.tv_sec, 5);
    stop(timer);
    // No process has so many threads.
    assert_eq!(start(u32::MAX >> 8, &long), None);
}
