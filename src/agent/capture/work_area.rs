//! The memory that a thread works in while it takes a sample.

use crate::config::LARGEST_MAX_DEPTH;
use crate::os::scratch::Zeroed;
use crate::path::PATH_BYTES;
use crate::stack::modules::Modules;
use crate::stack::vm::RawFrame;
use crate::stack::{Captured, ForeignPages, FoundStack, Memo, RuleCache, WrittenKey, WrittenStack};

/// Memory of a sample in progress, behind its stack.
pub struct WorkArea {
    pub(crate) cache: LazyCache,
    pub(crate) memo: Memo,
    pub(crate) frames: [u64; LARGEST_MAX_DEPTH],
    /// For [`crate::config::Unwind::Verify`] only; untouched otherwise.
    pub(crate) full_memo: Memo,
    pub(crate) full_frames: [u64; LARGEST_MAX_DEPTH],
    pub(crate) vm_frames: [RawFrame; LARGEST_MAX_DEPTH],
    pub(crate) merged: [u64; LARGEST_MAX_DEPTH],
    pub(crate) pages: ForeignPages,
    pub(crate) written: WrittenStack,
    pub(crate) path: [u8; PATH_BYTES],
    pub(crate) texts: [u8; 8192],
}

impl WorkArea {
    /// Resets the area after a user that left it by a jump.
    pub(crate) fn forget_all(&mut self) {
        self.memo.forget();
        self.full_memo.forget();
        self.written.forget();
        self.cache.is_made = false;
    }

    /// The frames that were found, leaf first.
    pub(crate) fn captured(&self, captured: &Captured) -> &[u64] {
        let frames = match captured.is_merged {
            true => &self.merged,
            false => &self.frames,
        };
        frames.get(..captured.depth).unwrap_or(&[])
    }

    /// Takes the frames of our own code out of what was found.
    pub(crate) fn strip_own(&mut self, modules: &Modules, captured: &mut Captured) {
        let found = captured.depth;
        modules.strip_own(&mut self.frames, &mut captured.depth);
        if captured.depth < found {
            self.memo.invalidate_shown();
        }
    }

    /// Takes away the frames at the leaf up to the last one that `is_callee` knows, with those of functions without a name among
    /// them. Nothing, if no other frame would be left.
    pub(crate) fn strip_leaf(&mut self, captured: &mut Captured, is_callee: impl Fn(u64) -> bool) {
        /// An allocator calls no deeper before it calls us.
        const MOST: usize = 16;
        let frames = match captured.is_merged {
            true => &mut self.merged,
            false => &mut self.frames,
        };
        let Some(frames) = frames.get_mut(..captured.depth) else {
            return;
        };
        let mut callees = frames.iter().take(MOST);
        // A return address may be the first one behind a function.
        let last = callees.rposition(|&frame| is_callee(frame.wrapping_sub(1)));
        let Some(count) = last.map(|last| last + 1).filter(|it| *it < frames.len()) else {
            return;
        };
        frames.copy_within(count.., 0);
        captured.depth -= count;
        self.memo.invalidate_shown();
    }

    /// Splits a stack for its record: the number of frames, from the root on, that it shares with the stack of the thread's
    /// sample `last`, and the other frames.
    /// `is_as_walked`: the frames are those that the walk found.
    pub(crate) fn delta_from_last(
        &self,
        captured: &Captured,
        is_as_walked: bool,
        key: WrittenKey,
        last: u64,
    ) -> (usize, &[u64]) {
        let frames = self.captured(captured);
        let found = FoundStack {
            frames,
            walk: captured.walk,
            known: if is_as_walked { captured.known } else { 0 },
            known_from: captured.known_from,
        };
        let shared = self.written.shared(&found, key, last);
        (shared, frames.get(..frames.len() - shared).unwrap_or(&[]))
    }

    /// The thread's sample `last`, whose frames [`Self::delta_from_last`] has split, is in the ring. `walk` found its frames; 0 if
    /// no walk found just those.
    pub(crate) fn note_written(
        &mut self,
        captured: &Captured,
        shared: usize,
        walk: u64,
        key: WrittenKey,
        last: u64,
    ) {
        let frames = match captured.is_merged {
            true => &self.merged,
            false => &self.frames,
        };
        let fresh = frames.get(..captured.depth.saturating_sub(shared));
        (self.written).note(shared, fresh.unwrap_or(&[]), walk, key, last);
    }
}

/// The unwinder's cache, made in place at first use; all zero bytes are "not made yet".
pub(crate) struct LazyCache {
    is_made: bool,
    made_at: u32,
    cache: core::mem::MaybeUninit<RuleCache>,
}

impl LazyCache {
    /// Number of modules after which a cache is replaced: it identifies modules by numbers of 16 bits.
    const MODULES: u32 = 1 << 15;

    /// `examined` is the number of modules that have been examined.
    #[inline]
    pub(crate) fn get_or_insert_with(
        &mut self,
        examined: u32,
        make: impl FnOnce() -> RuleCache,
    ) -> &mut RuleCache {
        if !self.is_made || examined.wrapping_sub(self.made_at) > Self::MODULES {
            self.renew(examined, make);
        }
        // SAFETY: `renew` has written it, now or in an earlier call on the same area, which is never given back.
        unsafe { self.cache.assume_init_mut() }
    }

    #[cold]
    fn renew(&mut self, examined: u32, make: impl FnOnce() -> RuleCache) {
        if self.is_made {
            self.is_made = false;
            // SAFETY: written when it was made, and not dropped since.
            unsafe { self.cache.assume_init_drop() };
        }
        self.cache.write(make());
        self.is_made = true;
        self.made_at = examined;
    }
}

// SAFETY: numbers and bytes may be zero. The unwinder's cache is behind a `LazyCache`, for which zero means absent.
unsafe impl Zeroed for WorkArea {
    fn forget(&mut self) {
        self.forget_all();
    }
}
