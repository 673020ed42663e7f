//! Carries out requests from outside, and changes of the interval by the drain thread.
//!
//! A request from outside lies in the first page of the ring, which is a file that only the same user may write. The slow path
//! looks there, at each sample and at least once per MiB of each thread. The first thread that finds a new request applies it;
//! the others adopt the result at their next slow path.

use allocsample_record::Note;
use allocsample_ring::request;
use allocsample_sampling::Interval;

use crate::accounting::selection::Filter;
use crate::accounting::slow_path::SlowPath;
use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::recording::{self, Recording};
use crate::shim::Caller;

impl Agent {
    /// Looks for a request, and applies the present interval and selection to the thread. Its own allocation has been dealt
    /// with.
    pub(crate) fn apply_requests(&self, thread: &ShimThread, slow_path: &SlowPath<'_>) {
        if let Some(recording) = recording::current() {
            let (generation, what, interval) = recording.ring.request();
            if self.accounting.control.take(generation) {
                self.carry_out(recording, generation, what, interval);
            }
        }
        self.accounting.selection.select(thread, slow_path);
        let force = self.accounting.control.force();
        if thread.change() != force.change {
            slow_path.adopt(&force);
        }
    }

    /// The same on a thread of a virtual machine, which may never call malloc: only if there is a new request.
    pub fn apply_new_request(&self, thread: &ShimThread) {
        let is_asked = recording::current()
            .is_some_and(|recording| self.accounting.control.is_new(recording.ring.request().0));
        if is_asked && let Some((slow_path, _)) = self.enter(thread, 0, &Caller::UNKNOWN) {
            self.apply_requests(thread, &slow_path);
        }
    }

    /// A function of its own, to keep the frame of its caller small: that is on the program's stack.
    #[cold]
    #[inline(never)]
    fn carry_out(&self, recording: &Recording, generation: u64, what: u64, value: u64) {
        match what {
            request::SET_INTERVAL => {
                self.apply_interval(recording, Interval::new(value), |_| true);
            }
            request::START => {
                let before = self.accounting.control.interval_before();
                let interval = before.or(self.config().interval);
                self.apply_interval(recording, interval, |_| true);
            }
            request::COLLECT => self.ask_to_collect(recording, generation),
            request::SELECT_THREAD => {
                let tid = u32::try_from(value >> 1).unwrap_or(0);
                if !self
                    .accounting
                    .selection
                    .select_thread(recording, tid, value & 1 != 0)
                {
                    recording.note(
                        Note::Selection,
                        b"as before: too many threads are told apart",
                    );
                }
            }
            request::FILTER => {
                let [most_bytes, low, high, _] = recording.ring.request_more();
                let filter = Filter {
                    least_bytes: value,
                    most_bytes,
                    name: [low, high],
                };
                self.accounting.selection.filter(recording, &filter);
            }
            // The drain thread obeys when it has done it. If it does not run yet, the next sample starts it.
            request::FLUSH | request::SNAPSHOT | request::ROTATE | request::RESET => {
                return recording.ask_for_file_work(what, generation);
            }
            // A request that this version does not know, from a newer command or a foreign writer.
            _ => {}
        }
        recording.ring.set_obeyed(generation);
    }

    /// The interval of malloc that is in force now; `None` while sampling is stopped.
    pub fn interval_in_force(&self) -> Option<Interval> {
        self.accounting.control.force().interval
    }

    /// Replaces the interval `from` (`None`: stops sampling). Returns false if another interval applies by now. For the drain
    /// thread; may be called on any thread.
    pub fn change_interval(
        &self,
        recording: &Recording,
        from: Interval,
        to: Option<Interval>,
    ) -> bool {
        self.apply_interval(recording, to, |now| now == Some(from))
    }

    /// Puts an interval in force if the present one is `right`.
    pub(crate) fn apply_interval(
        &self,
        recording: &Recording,
        interval: Option<Interval>,
        right: impl FnOnce(Option<Interval>) -> bool,
    ) -> bool {
        let record =
            |index| (self.publisher).write_interval(recording, interval, index, self.seed());
        if !self.accounting.control.change(interval, right, record) {
            return false;
        }
        for heap in self.heaps.all() {
            self.let_heap_follow(heap, interval);
        }
        true
    }
}

#[cfg(test)]
mod tests;
