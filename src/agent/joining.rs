//! Threads join: each begins its first slow path by taking a number, a sampler and a place in the profile.

use allocsample_sampling::{SamplePoints, Sampler};

use crate::accounting::slow_path::SlowPath;
use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::os::signals::Held;
use crate::recording::{self, Recording};
use crate::shim::Caller;
use crate::switch::Switch;

impl Agent {
    /// Writes the thread's start to the profile, which is begun if there is none. False: that is impossible.
    pub(crate) fn announce(&self, thread: &ShimThread) -> bool {
        let Some(_slow_path) = self.enter(thread, 0, &Caller::UNKNOWN) else {
            return false;
        };
        let recording = self
            .capture
            .in_area(thread, |area| {
                recording::current().or_else(|| self.begin_recording(area))
            })
            .flatten();
        recording.is_some_and(|recording| self.announce_in(thread, recording))
    }

    pub(crate) fn announce_in(&self, thread: &ShimThread, recording: &Recording) -> bool {
        if !thread.is_announced()
            && recording.announce_thread(thread.number())
            && recording.is_current()
        {
            thread.set_announced();
        }
        thread.is_announced()
    }

    /// Gives the thread a number if it has none.
    pub(crate) fn join(&self, thread: &ShimThread) {
        drop(self.enter(thread, 0, &Caller::UNKNOWN));
    }

    /// Begins a slow path that was called at `from`, on a thread that joins if it has not. Returns the sample points in the
    /// `charged` bytes at hand. `None`: one is under way, or no interval is known.
    pub(crate) fn enter<'a>(
        &self,
        thread: &'a ShimThread,
        charged: u64,
        from: &Caller,
    ) -> Option<(SlowPath<'a>, SamplePoints)> {
        let (slow_path, points) = thread.mute(charged, from);
        if !slow_path.is_ours() {
            return None;
        }
        if thread.epoch() == self.epoch() {
            return Some((slow_path, points));
        }
        if thread.has_borrowed() {
            // Interrupted where it allocates: it joins there.
            return None;
        }
        let points = self.join_within(thread, &slow_path, charged)?;
        Some((slow_path, points))
    }

    /// Nothing from before counts: the thread is new, or the agent was off, or this is a forked child. A handler that jumped
    /// out of this would leave a thread that has joined twice.
    #[cold]
    #[inline(never)]
    fn join_within(
        &self,
        thread: &ShimThread,
        slow_path: &SlowPath<'_>,
        charged: u64,
    ) -> Option<SamplePoints> {
        let _held = Held::unless_filtered();
        if !slow_path.is_ours() {
            // A signal handler has just forked, and this is the child.
            return None;
        }
        let force = self.accounting.control.force();
        let interval = force.interval.or(self.config().interval)?;
        let (number, slot) = self.accounting.threads.join(thread);
        let sampler = Sampler::new(self.setup.law(), interval, self.seed().thread(number));
        slow_path.join(self.epoch(), number, slot, sampler, &force);
        self.accounting.selection.select(thread, slow_path);
        (self.setup.hooks().on_thread_joined)();
        Some(match charged {
            0 => SamplePoints(0),
            _ => slow_path.first_alloc(charged),
        })
    }

    /// Turns sampling of the calling thread on or off, for malloc and time. Its nurseries have a switch of their own. False:
    /// the agent is off.
    pub fn enable_thread(&self, thread: &ShimThread, is_on: bool) -> bool {
        self.notice_fork_on(thread);
        if self.switch.get() != Switch::On {
            return false;
        }
        let Some((slow_path, _)) = self.enter(thread, 0, &Caller::UNKNOWN) else {
            return false;
        };
        slow_path.enable(is_on);
        true
    }
}
