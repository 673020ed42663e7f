//! Captures the stack of a sample: native frames, and a virtual machine's frames among them.

mod own_code;
#[cfg(test)]
mod tests;
mod work_area;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use allocsample_record::{Note, SampleFlags, VmFrame};

use crate::accounting::thread::ShimThread;
use crate::config::{Config, Unwind};
use crate::hooks::Heap;
use crate::os;
use crate::os::scratch::Pool;
use crate::os::signals::Held;
use crate::path::Path;
use crate::recording::Recording;
use crate::setup::Setup;
use crate::shim::Caller;
use crate::stack::locking::LockingCode;
use crate::stack::modules::Modules;
use crate::stack::shadow::{Ending, ShadowStack};
use crate::stack::vm::{self, NativeCode, RawFrame};
use crate::stack::{Captured, From, MemoKey, RuleCache, Walk, WrittenKey};
pub(crate) use work_area::WorkArea;

/// The memory for stack walks, and the modules known so far.
pub(crate) struct Capture {
    pub setup: Setup,
    areas: Pool<WorkArea>,
    pub modules: Modules,
    pub locking_code: LockingCode,
    /// The agent's, as [`Self::after_epoch`] gave it.
    epoch: AtomicU32,
    /// Number of times that compiled code was added, moved or removed.
    code_changes: AtomicU32,
    compared: Compared,
}

/// Counts of the stacks that were walked twice, see [`Unwind::Verify`].
struct Compared {
    known: AtomicU64,
    different: AtomicU64,
}

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

impl Capture {
    /// In epoch 1.
    pub const fn new() -> Self {
        Self {
            setup: Setup::new(),
            areas: Pool::new(),
            modules: Modules::new(),
            locking_code: LockingCode::new(),
            epoch: AtomicU32::new(1),
            code_changes: AtomicU32::new(0),
            compared: Compared {
                known: AtomicU64::new(0),
                different: AtomicU64::new(0),
            },
        }
    }

    /// Runs `work` with a work area, on the area's stack unless [`Self::stay_on_threads_stacks`]. `None`: there is no memory
    /// for one.
    #[inline]
    pub fn in_area<R>(
        &self,
        thread: &ShimThread,
        work: impl FnOnce(&mut WorkArea) -> R,
    ) -> Option<R> {
        let _held = self.hold_signals();
        self.areas.run(thread.last_area(), work)
    }

    /// No signal finds the thread on the stack of an area, from where a garbage collector would scan memory that is not there.
    /// Where the system calls for it are not allowed it may.
    #[inline]
    fn hold_signals(&self) -> Option<Held> {
        let is_needed = (self.setup.hooks().may_stop_threads)() && !self.areas.stays();
        if is_needed {
            Held::unless_filtered()
        } else {
            None
        }
    }

    /// The same in a signal handler, which may have interrupted the thread in its own area.
    pub fn in_area_aside<R>(
        &self,
        thread: &ShimThread,
        work: impl FnOnce(&mut WorkArea) -> R,
    ) -> Option<R> {
        self.areas.run_aside(thread.last_area(), work)
    }

    /// The same on a thread that will not take samples.
    pub fn in_area_once<R>(&self, work: impl FnOnce(&mut WorkArea) -> R) -> Option<R> {
        let _held = self.hold_signals();
        self.areas.run_once(work)
    }

    /// Takes back the area of a slow path that a signal handler has left by a jump.
    pub fn give_up_area(&self, thread: &ShimThread) {
        self.areas.leave(thread.last_area());
    }

    /// Whether the stack pointer `sp` is in the area that the thread works in.
    pub fn is_in_area(&self, thread: &ShimThread, sp: u64) -> bool {
        self.areas.is_at_work_at(thread.last_area(), sp)
    }

    /// From now on samples run on the stacks of the threads that take them, not beside them.
    pub fn stay_on_threads_stacks(&self) {
        self.areas.stay();
    }

    /// Another epoch has begun: what was remembered of stacks belongs to an earlier one.
    pub fn after_epoch(&self, epoch: u32) {
        self.epoch.store(epoch, Ordering::Relaxed);
        self.modules.after_epoch(epoch);
    }

    /// In a forked child, where the other threads and what they were at do not exist.
    pub fn restart(&self) {
        self.areas.forget();
        self.modules.restart();
    }

    /// Compiled code is added, moved or removed: addresses in it may mean something else from now on. To be called before
    /// the change is recorded.
    pub fn code_changed(&self) {
        self.code_changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Describes the module that has this code in the ring, unless that was done. False: there is none, or it may be unloaded
    /// meanwhile. `is_alone`: there is no other thread that could do so; the program itself stays anyway.
    pub fn announce_module_of(
        &self,
        code: u64,
        is_alone: bool,
        area: &mut WorkArea,
        recording: &Recording,
    ) -> bool {
        if !is_alone && !self.modules.is_in_program(code) {
            return false;
        }
        let Some(module) = self.modules.find(code) else {
            return false;
        };
        if module.must_announce(self.epoch.load(Ordering::Relaxed)) {
            recording.push(&module.record(&mut area.path));
        }
        true
    }

    /// Removes the frames of our own code from what was found.
    pub fn strip_own(&self, area: &mut WorkArea, captured: &mut Captured) {
        area.strip_own(&self.modules, captured);
    }

    /// Writes how many stacks were walked twice, if any were to be.
    pub fn write_compared(&self, recording: &Recording) {
        if self.setup.config().unwind != Unwind::Verify {
            return;
        }
        let mut detail = Path::new();
        detail
            .push_decimal(self.compared.known.load(Ordering::Relaxed))
            .push(b" with a known rest, ")
            .push_decimal(self.compared.different.load(Ordering::Relaxed))
            .push(b" different");
        recording.note(Note::StacksCompared, detail.as_bytes());
    }

    /// Whether the interrupted thread can start another one: its stack, our own frames among it, shows that no lock is held
    /// which that takes. A malloc that stands before ours may have some of the program's own.
    pub fn may_start_thread(&self, area: &WorkArea, captured: &Captured) -> bool {
        let frames = area.frames.get(..captured.depth).unwrap_or(&[]);
        captured.flags == SampleFlags::default()
            && !captured.may_hold_loader_locks
            && !self.setup.has_malloc_elsewhere()
            && self.locking_code.is_left_by(frames)
    }

    /// The stack above a call of malloc, free or a hook, with the frames of the machine that `walked` belongs to.
    pub fn call(
        &self,
        thread: &ShimThread,
        caller: Caller,
        walked: Option<&Heap>,
        area: &mut WorkArea,
        recording: &Recording,
    ) -> Captured {
        let from = From::Call(caller);
        let Some(heap) = walked else {
            return self.walk(thread, &from, area, recording);
        };
        self.whole_walk(thread, heap, area).unwrap_or_else(|| {
            let mut captured = self.walk(thread, &from, area, recording);
            self.strip_own(area, &mut captured);
            self.add_vm_frames(thread, heap, area, &mut captured);
            captured
        })
    }

    /// The machine's own view of the stack, which is all there is.
    pub fn given(&self, heap: &Heap, stack: &[RawFrame], area: &mut WorkArea) -> Captured {
        let merged = area.merged.get_mut(..self.setup.config().max_depth);
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
    fn whole_walk(
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

    /// Adds the frames of other machines whose native code is on the stack: Perl's beside Python's in a function of PostgreSQL.
    /// Whoever is asked runs on this thread, in a call that the one before may be in.
    pub fn add_frames_of_others<'a>(
        &self,
        thread: &ShimThread,
        others: impl Iterator<Item = &'a Heap>,
        area: &mut WorkArea,
        captured: &mut Captured,
    ) {
        if !captured.is_merged {
            return;
        }
        for heap in others {
            let (from, to) = (&area.merged, &mut area.full_frames);
            let found = from.get(..captured.depth).unwrap_or(&[]);
            let is_its_code = |&frame: &u64| {
                VmFrame::decode(frame).is_none() && heap.is_interpreter(frame.wrapping_sub(1))
            };
            if found.iter().any(is_its_code)
                && let Some(to) = to.get_mut(..found.len())
            {
                to.copy_from_slice(found);
                self.add_vm_frames(thread, heap, area, captured);
            }
        }
    }

    /// Asks the machine for its frames and puts them where they belong. They are in `merged` then. Those of other machines are
    /// kept, in `full_frames`, if some were added.
    pub fn add_vm_frames(
        &self,
        thread: &ShimThread,
        heap: &Heap,
        area: &mut WorkArea,
        captured: &mut Captured,
    ) {
        let WorkArea {
            frames,
            full_frames,
            vm_frames,
            merged,
            pages,
            ..
        } = area;
        let depth = self.setup.config().max_depth;
        let vm_frames = vm_frames.get_mut(..depth).unwrap_or(&mut []);
        let found = match captured.is_merged {
            true => full_frames,
            false => frames,
        };
        let native = found.get(..captured.depth).unwrap_or(&[]);
        let is_outside = |pc| VmFrame::decode(pc).is_none() && self.modules.find(pc).is_none();
        let end_in_modules = match heap.native_code {
            NativeCode::WholeAndOutsideModules => {
                native.iter().position(|pc| is_outside(pc.wrapping_sub(1)))
            }
            NativeCode::Loop | NativeCode::Whole | NativeCode::OutsideModules => None,
        };
        if let Some(first) = vm_frames.first_mut() {
            *first = RawFrame::of_address(end_in_modules.and_then(|at| native.get(at).copied()));
        }
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
        let machine = vm_frames.get(..walked.min(depth)).unwrap_or(&[]);
        let merged = merged.get_mut(..depth).unwrap_or(&mut []);
        // Code of the machine's own may call another library, past all of its native functions.
        let calls_directly = end_in_modules.is_some_and(|end| {
            let mut native = native.iter().take(end);
            !native.any(|pc| heap.is_interpreter(pc.wrapping_sub(1)))
        });
        let underlaid = match heap.native_code == NativeCode::OutsideModules || calls_directly {
            true => vm::underlay(heap.id, native, machine, is_outside, merged),
            false => None,
        };
        let native = match end_in_modules.filter(|_| !machine.is_empty()) {
            Some(end) => native.get(..end).unwrap_or(native),
            None => native,
        };
        if underlaid.is_some() || native.len() < captured.depth {
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

    pub fn walk(
        &self,
        thread: &ShimThread,
        from: &From,
        area: &mut WorkArea,
        recording: &Recording,
    ) -> Captured {
        let Config {
            unwind,
            max_depth,
            joins_embedded,
            ..
        } = *self.setup.config();
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
        let frames = frames.get_mut(..max_depth).unwrap_or(&mut []);
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
                recording.push(&record);
                if joins_embedded {
                    recording.nudge_drain();
                } else if !os::is_filtered() && (self.setup.hooks().awaits_module)(record.path) {
                    recording.await_module(record.start);
                }
            }
        });
        if unwind == Unwind::Verify {
            full_memo.forget();
            let found = walk.frames.get(..captured.depth).unwrap_or(&[]);
            let mut full_walk = Walk {
                memo: full_memo,
                frames: full_frames.get_mut(..max_depth).unwrap_or(&mut []),
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

    fn memo_key(&self, thread: &ShimThread) -> MemoKey {
        MemoKey {
            thread: thread.number(),
            epoch: self.epoch.load(Ordering::Relaxed),
            dlclose_count: self.modules.dlclose_count(),
        }
    }

    pub fn written_key(&self, thread: &ShimThread) -> WrittenKey {
        WrittenKey {
            walk: self.memo_key(thread),
            code_changes: self.code_changes.load(Ordering::Relaxed),
        }
    }
}
