//! Takes a request that was left for the process before it had a ring.
//!
//! Before the first sample there is no ring that `ctl` could write to, so it leaves a file. The agent looks for the file when
//! it begins the recording, and, in a process without a sample, in its slow path at most ten times a second.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};

use allocsample_ring::{WAITING_BYTES, WAITING_DIRECTORY, WAITING_NAME, WaitingRequest};

use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::os::file::{self, File};
use crate::os::{self, clock, process};
use crate::path::decimal;
use crate::recording::{self, Recording};

const LOOK_NS: u64 = 100_000_000;

/// When the slow path last looked for the file.
pub(crate) struct LastLook(AtomicU64);

impl LastLook {
    /// Never.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns true on one thread once the time has come.
    fn is_due(&self, now_ns: u64) -> bool {
        let last_ns = self.0.load(Ordering::Relaxed);
        now_ns.saturating_sub(last_ns) >= LOOK_NS
            && (self.0)
                .compare_exchange(last_ns, now_ns, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

impl Agent {
    /// Begins the recording of a process without a sample if a request waits for it. Inlined: most processes have a recording.
    #[inline]
    pub(crate) fn begin_if_asked(&self, thread: &ShimThread) {
        if recording::current().is_none() {
            self.look_for_request(thread);
        }
    }

    /// A function of its own, to keep the frame of its caller small: that is on the program's stack.
    #[cold]
    #[inline(never)]
    fn look_for_request(&self, thread: &ShimThread) {
        // Without a recording nobody could ask for samples.
        let is_stopped = self.config().is_stopped;
        let is_due = !os::is_filtered() && self.last_look.is_due(clock::monotonic_ns());
        if !is_stopped && !is_due {
            return;
        }
        let begun = self.capture.in_area(thread, |area| {
            (is_stopped || read().is_some())
                .then(|| self.begin_recording(area))
                .flatten()
        });
        if let Some(recording) = begun.flatten().filter(|_| is_stopped) {
            self.publisher
                .write_interval(recording, None, None, self.seed());
        }
    }

    /// Enters the waiting request into the ring, where all requests are.
    #[cold]
    pub(crate) fn take_waiting_request(&self, recording: &Recording) {
        if os::is_filtered() {
            return;
        }
        if let Some(request) = read() {
            recording
                .ring
                .ask(request.what, request.value, request.more);
            // Whoever asked sees that it is gone, and looks for the answer in the ring.
            file::unlink(name(&mut [0; NAME_BYTES]));
        }
    }
}

/// Room for the file's path, with NUL.
const NAME_BYTES: usize = WAITING_DIRECTORY.len() + WAITING_NAME.len() + 10 + 1;

fn name(buffer: &mut [u8; NAME_BYTES]) -> &CStr {
    let mut digits = [0; 20];
    let parts = [
        WAITING_DIRECTORY.as_bytes(),
        WAITING_NAME.as_bytes(),
        decimal(u64::from(process::pid()), &mut digits),
    ];
    for (place, byte) in buffer.iter_mut().zip(parts.iter().copied().flatten()) {
        *place = *byte;
    }
    CStr::from_bytes_until_nul(buffer).unwrap_or(c"")
}

fn read() -> Option<WaitingRequest> {
    let mut buffer = [0; WAITING_BYTES];
    let path = &mut [0; NAME_BYTES];
    let request = WaitingRequest::decode(File::read_own(name(path), &mut buffer)?)?;
    (process::start_ticks() == Some(request.start_ticks)).then_some(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{Trial, agent};
    use allocsample_ring::request;

    /// A request that waits for this process; removed in the end. Only with the trial that is to find it.
    struct Waiting(std::string::String);

    impl Waiting {
        fn leave(start_ticks: u64) -> Self {
            let request = WaitingRequest {
                start_ticks,
                what: request::SET_INTERVAL,
                value: 5000,
                more: [0; 4],
            };
            let pid = std::process::id();
            let path = std::format!("{WAITING_DIRECTORY}{WAITING_NAME}{pid}");
            assert_eq!(name(&mut [0; NAME_BYTES]).to_str(), Ok(path.as_str()));
            std::fs::write(&path, request.encode()).unwrap();
            Self(path)
        }

        fn is_there(&self) -> bool {
            std::path::Path::new(&self.0).exists()
        }
    }

    impl Drop for Waiting {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn is_own() -> u64 {
        process::start_ticks().unwrap()
    }

    #[test]
    fn a_waiting_request_is_obeyed_by_the_first_sample_and_removed() {
        let trial = Trial::begin(agent!(), &[("INTERVAL", "1")]);
        let thread = trial.thread();
        let waiting = Waiting::leave(is_own());
        trial.alloc(thread, 0x1000, 24).unwrap();
        assert!(!waiting.is_there());
        assert_eq!(trial.agent.interval_in_force().unwrap().bytes(), 5000);
    }

    #[test]
    fn a_waiting_request_begins_the_recording_of_a_process_without_a_sample() {
        let trial = Trial::begin(agent!(), &[("INTERVAL", "1G")]);
        let thread = trial.thread();
        trial.alloc(thread, 0x1000, 2 << 20);
        assert!(recording::current().is_none());
        let waiting = Waiting::leave(is_own());
        // The slow path has just looked, and does so again after a tenth of a second.
        trial.agent.last_look.0.store(0, Ordering::Relaxed);
        trial.alloc(thread, 0x2000, 2 << 20);
        assert!(recording::current().is_some());
        assert!(!waiting.is_there());
        trial.alloc(thread, 0x3000, 2 << 20);
        assert_eq!(trial.agent.interval_in_force().unwrap().bytes(), 5000);
    }

    #[test]
    fn a_request_to_an_earlier_process_of_this_number_is_ignored() {
        let trial = Trial::begin(agent!(), &[("INTERVAL", "1")]);
        let waiting = Waiting::leave(is_own() - 1);
        trial.alloc(trial.thread(), 0x1000, 24).unwrap();
        assert!(waiting.is_there());
        assert_eq!(trial.agent.interval_in_force().unwrap().bytes(), 1);
    }

    #[test]
    fn one_thread_looks_every_tenth_of_a_second() {
        let last = LastLook::new();
        assert!(!last.is_due(LOOK_NS - 1));
        assert!(last.is_due(LOOK_NS));
        assert!(!last.is_due(LOOK_NS));
        assert!(!last.is_due(2 * LOOK_NS - 1));
        assert!(last.is_due(2 * LOOK_NS));
        // Of a thread that read the time earlier.
        assert!(!last.is_due(LOOK_NS));
    }
}
