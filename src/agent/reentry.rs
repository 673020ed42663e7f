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

use crate::agent::{Agent, WorkArea};
use crate::config::LARGEST_MAX_DEPTH;
use crate::os::signals::Held;
use crate::os::slow_path::GivenUp;
use crate::os::thread::{Caller, ShimThread};
use crate::recording;
use crate::stack::{From, RuleCache, Walk};

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
            let weight = Weight::new(self.law(), interval);
            // Saturates, which `as` does from floats.
            let bytes = weight.bytes(undone.size, undone.points) as u64;
            self.count_lost(LostReason::Reentered, 1, bytes);
        }
    }

    /// The thread's counter may have borrowed. If so, either a signal handler has interrupted an allocation function
    /// at its very beginning, or one has left it there by a jump.
    pub fn on_borrowed(&self, thread: &ShimThread, caller: &Caller) {
        if thread.is_muted() || !thread.has_borrowed() {
            return;
        }
        let _held = Held::unless_filtered();
        if thread.has_borrowed() && self.walk_finds(caller, thread, None) == Some(false) {
            self.settle_borrowed(thread);
        }
    }

    /// Lets a thread allocate again whose counter was left as it had borrowed. Signals are blocked.
    pub(crate) fn settle_borrowed(&self, thread: &ShimThread) {
        let bytes = thread.settle_borrowed();
        if bytes > 0 {
            self.count_lost(LostReason::Reentered, 1, bytes);
        }
    }

    /// Ends the slow path that was left by a jump on this thread; what it leaves undone is counted. Signals are blocked.
    pub(crate) fn give_up_slow_path(&self, thread: &ShimThread) {
        self.areas.leave(thread.last_area());
        let current = recording::current();
        let is_written = current.is_some_and(|recording| recording.abandon_record_of(thread));
        let undone = thread.give_up();
        if !is_written {
            self.count_given_up(thread, undone);
        }
    }

    fn may_be_under_way(&self, thread: &ShimThread, caller: &Caller) -> bool {
        if thread.is_of_the_agent() || self.areas.is_at_work_at(thread.last_area(), caller.sp) {
            return true;
        }
        let (pc, sp) = thread.entered();
        self.walk_finds(caller, thread, Some(pc))
            .unwrap_or_else(|| {
                // A stack grows down: a handler that interrupts a slow path is below the call of it, unless the handler has a
                // stack of its own inside of this one.
                let own = thread.stack();
                !(own.contains(&sp) && own.contains(&caller.sp) && caller.sp >= sp)
            })
    }

    /// Whether code of ours is on the stack above `caller`, called from `pc` if that is known. `None`: the walk does not come
    /// to the root. Signals are blocked.
    fn walk_finds(&self, caller: &Caller, thread: &ShimThread, pc: Option<u64>) -> Option<bool> {
        // A place in our own code, which a function of the hook ABI gives for its caller, is no return address.
        let pc = pc.filter(|&pc| pc != 0 && !self.modules.is_own(pc));
        // Not in the area that the slow path may be at work in, nor in the one where the thread is at home.
        let no_area = core::cell::Cell::new(u32::MAX >> 1);
        let found = self.areas.run(&no_area, |area| {
            area.forget_all();
            let WorkArea {
                cache,
                memo,
                full_frames,
                pages,
                ..
            } = area;
            let frames: &mut [u64; LARGEST_MAX_DEPTH] = full_frames;
            let mut walk = Walk {
                modules: &self.modules,
                cache: cache.get_or_insert_with(self.modules.examined(), RuleCache::new_in),
                memo,
                key: self.memo_key(thread),
                only_frame_pointers: false,
                without_rules: true,
                frames,
                pages: Some(pages),
            };
            let captured = walk.capture(thread, &From::Call(*caller), |_| {});
            memo.forget();
            let mut below_is_ours = false;
            let frames = frames.get(..captured.depth)?.iter();
            // Those at the leaf are what we have been called by just now.
            for &frame in frames.skip_while(|frame| self.modules.is_own(**frame)) {
                let is_ours = self.modules.is_own(frame);
                let is_it = match pc {
                    Some(pc) => below_is_ours && frame == pc,
                    None => is_ours,
                };
                if is_it {
                    return Some(true);
                }
                below_is_ours = is_ours;
            }
            let is_whole = captured.flags == allocsample_record::SampleFlags::default();
            let is_sure = captured.interrupted_sp == 0
                || pc.is_none()
                || has_left_entry(thread, captured.interrupted_sp);
            (is_whole && is_sure).then_some(false)
        });
        found.flatten()
    }
}

/// Whether the frame that entered the slow path is certain to be gone, where a signal handler has interrupted something at
/// `interrupted_sp`.
fn has_left_entry(thread: &ShimThread, interrupted_sp: u64) -> bool {
    let ((_, entered_sp), own) = (thread.entered(), thread.stack());
    let is_above =
        own.contains(&entered_sp) && own.contains(&interrupted_sp) && interrupted_sp >= entered_sp;
    is_above || !thread.may_have_entry()
}
