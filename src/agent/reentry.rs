//! Whether a slow path that seems to be under way on the calling thread still exists.
//!
//! A signal handler that interrupts a slow path finds the thread muted, and so does everything that runs after the handler
//! has left by `siglongjmp`: then the slow path never ends, and the thread would be muted for good. The stack tells the two
//! apart. Wherever the answer is not certain the slow path is taken to exist. If it is taken to be gone and goes on all
//! the same (a handler has switched to another coroutine, and back), its token owns nothing any more.
//!
//! A walk that comes out of a signal frame is not certain to go on right: the interrupted instruction may be one whose
//! call-frame information no walker understands (a loop that touches a large frame page by page has its frame's address in
//! a register that is not followed). It may end early there, as if at the root. Then the slow path is gone only if the stack
//! itself says so: what was interrupted is above the frame that entered it, or that frame has been overwritten.

use allocsample_record::LostReason;
use allocsample_sampling::Weight;

use crate::accounting::slow_path::GivenUp;
use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::os::signals::Held;
use crate::recording;
use crate::shim::Caller;

impl Agent {
    /// Whether a slow path is under way further up this thread's stack. `caller` is where the thread has called us now. A
    /// slow path that is no more is ended here, and what it leaves undone is counted.
    #[inline]
    pub(crate) fn is_in_slow_path(&self, thread: &ShimThread, caller: &Caller) -> bool {
        thread.is_muted() && self.is_still_in_slow_path(thread, caller)
    }

    #[cold]
    #[inline(never)]
    fn is_still_in_slow_path(&self, thread: &ShimThread, caller: &Caller) -> bool {
        // No handler gets in between: it could jump out of this, too.
        let _held = Held::unless_filtered();
        if self.may_be_under_way(thread, caller) {
            return true;
        }
        self.give_up_slow_path(thread);
        false
    }

    /// A sample that was being taken by a slow path that will not end.
    pub(crate) fn count_given_up(&self, thread: &ShimThread, undone: GivenUp) {
        if undone.points.is_sampled()
            && let Some((interval, _)) = thread.interval()
        {
            let weight = Weight::new(self.setup.law(), interval);
            // Saturates, which `as` does from floats.
            let bytes = weight.bytes(undone.size, undone.points) as u64;
            self.publisher.count_lost(LostReason::Reentered, 1, bytes);
        }
    }

    /// The thread's counter may have borrowed. If so, either a signal handler has interrupted an allocation function
    /// at its very beginning, or one has left it there by a jump.
    pub fn on_borrowed(&self, thread: &ShimThread, caller: &Caller) {
        if thread.is_muted() || !thread.has_borrowed() {
            return;
        }
        let _held = Held::unless_filtered();
        if thread.has_borrowed() && self.capture.finds_own_code(caller, thread, None) == Some(false)
        {
            self.settle_borrowed(thread);
        }
    }

    /// Lets a thread allocate again whose counter was left as it had borrowed. Signals are blocked.
    pub(crate) fn settle_borrowed(&self, thread: &ShimThread) {
        let bytes = thread.settle_borrowed();
        if bytes > 0 {
            self.publisher.count_lost(LostReason::Reentered, 1, bytes);
        }
    }

    /// Ends the slow path that was left by a jump on this thread; what it leaves undone is counted. Signals are blocked.
    pub(crate) fn give_up_slow_path(&self, thread: &ShimThread) {
        self.capture.give_up_area(thread);
        let current = recording::current();
        let is_written = current.is_some_and(|recording| recording.abandon_record_of(thread));
        let undone = thread.give_up();
        if !is_written {
            self.count_given_up(thread, undone);
        }
    }

    fn may_be_under_way(&self, thread: &ShimThread, caller: &Caller) -> bool {
        if thread.is_of_the_agent() || self.capture.is_in_area(thread, caller.sp) {
            return true;
        }
        let (pc, sp) = thread.entered();
        self.capture
            .finds_own_code(caller, thread, Some(pc))
            .unwrap_or_else(|| {
                // A stack grows down: a handler that interrupts a slow path is below the call of it, unless the handler has a
                // stack of its own inside of this one.
                let own = thread.stack();
                !(own.contains(&sp) && own.contains(&caller.sp) && caller.sp >= sp)
            })
    }
}
