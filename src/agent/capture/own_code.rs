//! Looks for our own code on a thread's stack.

use allocsample_record::SampleFlags;

use super::{Capture, WorkArea};
use crate::accounting::thread::ShimThread;
use crate::config::LARGEST_MAX_DEPTH;
use crate::shim::Caller;
use crate::stack::{From, RuleCache, Walk};

impl Capture {
    /// Whether code of ours is on the stack above `caller`, called from `pc` if that is known. `None`: the walk does not come
    /// to the root. Signals are blocked.
    pub fn finds_own_code(
        &self,
        caller: &Caller,
        thread: &ShimThread,
        pc: Option<u64>,
    ) -> Option<bool> {
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
            let is_whole = captured.flags == SampleFlags::default();
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
