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
