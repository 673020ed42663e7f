//! Captures the stack of a sample: native frames, and a virtual machine's frames among them.

use core::sync::atomic::Ordering;

use allocsample_record::{RecordKind, SampleFlags};

use crate::agent::{Agent, WorkArea};
use crate::config::Unwind;
use crate::hooks::Heap;
use crate::os::thread::{Caller, ShimThread};
use crate::recording::Recording;
use crate::stack::shadow::{Ending, ShadowStack};
use crate::stack::vm::{self, NativeCode, RawFrame};
use crate::stack::{Captured, From, MemoKey, RuleCache, Walk, WrittenKey};

/// The machine's own stack on this thread, if it has told where that is.
fn shadow_stack_of(thread: &ShimThread, heap: &Heap) -> Option<ShadowStack> {
    let address = thread.shadow_stack();
    if address == 0 || thread.vm_heap() != u32::from(heap.id.0) {
        return None;
    }
    let pointer: *const ShadowStack = core::ptr::with_exposed_provenance(address as usize);
    // SAFETY: the machine's, which keeps it there until it tells of another one; plain numbers.
    Some(unsafe { pointer.read() })
}

impl Agent {
    /// The stack above a call of malloc, free or a hook, with the frames of the machine that `walked` belongs to.
    pub(crate) fn capture_call(
        &self,
        thread: &ShimThread,
        caller: Caller,
        walked: Option<&Heap>,
        area: &mut WorkArea,
        recording: &Recording,
    ) -> Captured {
        let from = From::Call(caller);
        let Some(heap) = walked else {
            return self.capture(thread, &from, area, recording);
        };
        self.take_whole_walk(thread, heap, area).unwrap_or_else(|| {
            let mut captured = self.capture(thread, &from, area, recording);
            area.strip_own(&self.modules, &mut captured);
            self.add_vm_frames(thread, heap, area, &mut captured);
            captured
        })
    }

    /// The machine's own view of the stack, which is all there is.
    pub(crate) fn take_given(
        &self,
        heap: &Heap,
        stack: &[RawFrame],
        area: &mut WorkArea,
    ) -> Captured {
        let merged = area.merged.get_mut(..self.config().max_depth);
        let (depth, has_room) = vm::interleave(
            heap.id,
            &[],
            stack,
            NativeCode::Loop,
            |_| false,
            |_| false,
            merged.unwrap_or(&mut []),
        );
        Captured {
            depth,
            is_merged: true,
            flags: match has_room {
                true => SampleFlags::default(),
                false => SampleFlags::TRUNCATED,
            },
            ..Captured::default()
        }
    }

    /// The stack as the heap's walker gives it, if that is all there is; `None` if it is not, or the walker finds nothing.
    fn take_whole_walk(
        &self,
        thread: &ShimThread,
        heap: &Heap,
        area: &mut WorkArea,
    ) -> Option<Captured> {
        if !heap.is_walk_whole {
            return None;
        }
        let mut captured = Captured::default();
        self.add_vm_frames(thread, heap, area, &mut captured);
        (captured.depth > 0).then_some(captured)
    }

    /// Asks the machine for its frames and puts them where they belong. They are in `merged` then.
    pub(crate) fn add_vm_frames(
        &self,
        thread: &ShimThread,
        heap: &Heap,
        area: &mut WorkArea,
        captured: &mut Captured,
    ) {
        let WorkArea {
            frames,
            vm_frames,
            merged,
            pages,
            ..
        } = area;
        let depth = self.config().max_depth;
        let vm_frames = vm_frames.get_mut(..depth).unwrap_or(&mut []);
        let (walked, ending) = match (shadow_stack_of(thread, heap), heap.callbacks.walk) {
            (Some(shadow), _) => shadow.read(vm_frames, pages),
            (None, Some(walk)) => {
                // SAFETY: the machine's own function with its own pointer; the buffer is as long as it says.
                let walked =
                    unsafe { walk(heap.callbacks.user, vm_frames.as_mut_ptr(), vm_frames.len()) };
                match walked >= depth {
                    true => (depth, Ending::Full),
                    false => (walked, Ending::Whole),
                }
            }
            (None, None) => (0, Ending::Whole),
        };
        let native = frames.get(..captured.depth).unwrap_or(&[]);
        let machine = vm_frames.get(..walked.min(depth)).unwrap_or(&[]);
        let merged = merged.get_mut(..depth).unwrap_or(&mut []);
        let is_outside = |pc| self.modules.find(pc).is_none();
        let underlaid = match heap.native_code {
            NativeCode::OutsideModules => {
                vm::underlay(heap.id, native, machine, is_outside, merged)
            }
            NativeCode::Loop | NativeCode::Whole => None,
        };
        if underlaid.is_some() {
            // The machine's frames are whole, and where the native walk ended behind them is none of the stack.
            captured.flags = captured.flags.without(SampleFlags::UNWIND_FAILED);
        }
        let (count, has_room) = underlaid.unwrap_or_else(|| {
            vm::interleave(
                heap.id,
                native,
                machine,
                heap.native_code,
                |pc| heap.is_interpreter(pc),
                |pc| heap.loop_has_thunks && is_outside(pc),
                merged,
            )
        });
        captured.depth = count;
        captured.is_merged = true;
        if !has_room || ending == Ending::Full {
            captured.flags = captured.flags.with(SampleFlags::TRUNCATED);
        }
        if ending == Ending::Broken {
            captured.flags = captured.flags.with(SampleFlags::UNWIND_FAILED);
        }
    }

    pub(crate) fn capture(
        &self,
        thread: &ShimThread,
        from: &From,
        area: &mut WorkArea,
        recording: &Recording,
    ) -> Captured {
        let unwind = self.config().unwind;
        if unwind == Unwind::None {
            return Captured::default();
        }
        let WorkArea {
            cache,
            memo,
            frames,
            full_memo,
            full_frames,
            path,
            pages,
            ..
        } = area;
        let cache = cache.get_or_insert_with(self.modules.examined(), RuleCache::new_in);
        let frames = frames.get_mut(..self.config().max_depth).unwrap_or(&mut []);
        let mut walk = Walk {
            modules: &self.modules,
            cache,
            memo,
            key: self.memo_key(thread),
            only_frame_pointers: unwind == Unwind::FramePointers,
            without_rules: false,
            frames,
            pages: Some(pages),
        };
        // In a forked child, in which this goes on, not of the epoch that has begun: it is 0 then.
        let epoch = thread.epoch();
        let captured = walk.capture(thread, from, |module| {
            if module.must_announce(epoch) {
                let record = module.record(path);
                recording.push(RecordKind::Module, record.words(), |words| {
                    record.encode_into(words)
                });
            }
        });
        if unwind == Unwind::Verify {
            full_memo.forget();
            let found = walk.frames.get(..captured.depth).unwrap_or(&[]);
            let depth = self.config().max_depth;
            let mut full_walk = Walk {
                memo: full_memo,
                frames: full_frames.get_mut(..depth).unwrap_or(&mut []),
                cache: walk.cache,
                without_rules: true,
                ..walk
            };
            let full = full_walk.capture(thread, from, |_| {});
            let is_same = (full.flags, full.may_hold_loader_locks)
                == (captured.flags, captured.may_hold_loader_locks)
                && full_walk.frames.get(..full.depth) == Some(found);
            self.compared
                .known
                .fetch_add(u64::from(captured.known > 0), Ordering::Relaxed);
            self.compared
                .different
                .fetch_add(u64::from(!is_same), Ordering::Relaxed);
        }
        captured
    }

    pub(crate) fn memo_key(&self, thread: &ShimThread) -> MemoKey {
        MemoKey {
            thread: thread.number(),
            epoch: self.epoch(),
            dlclose_count: self.modules.dlclose_count(),
        }
    }

    pub(crate) fn written_key(&self, thread: &ShimThread) -> WrittenKey {
        WrittenKey {
            walk: self.memo_key(thread),
            code_changes: self.heaps.code_changes(),
        }
    }
}
