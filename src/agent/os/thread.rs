//! The state of one of the program's threads, in thread-local memory that the C shim owns.

use core::cell::{Cell, UnsafeCell};
use core::mem::MaybeUninit;
use core::sync::atomic::{Ordering, compiler_fence};

use allocsample_sampling::{Interval, SamplePoints, Sampler};

/// What an exhausted counter is set to while the thread is muted: nothing borrows from it, and what is missing from it
/// afterwards is what was allocated meanwhile.
const MUTED_GRANT: u64 = 1 << 62;

/// Sampling is stopped.
const PAUSED: u32 = 1;
/// It is off for this thread.
const DISABLED: u32 = 2;
/// Not sampled, because somebody outside wants others.
const LEFT_OUT: u32 = 4;

/// A thread looks at the agent's state after this many bytes at the latest.
const LARGEST_GRANT: u64 = 1 << 20;

/// Mirror of `struct shim_thread`. Shared references and cells only: a signal handler on the same thread comes by.
#[repr(C)]
pub struct ShimThread {
    bytes_until_sample: Cell<u64>,
    muted: Cell<u32>,
    reserved: u32,
    muted_bytes: Cell<u64>,
    state: ThreadState,
}

#[repr(C)]
struct ThreadState {
    /// Which start of the agent this thread has joined; 0 for none. The fields below it mean nothing before.
    epoch: Cell<u32>,
    number: Cell<u32>,
    is_announced: Cell<u32>,
    slot: Cell<u32>,
    /// For the pool of work areas.
    last_area: Cell<u32>,
    /// Number of the heap whose machine runs this thread; 0 for none.
    vm_heap: Cell<u32>,
    /// The change of the interval that this thread has adopted, and the number of that interval in the profile.
    change: Cell<u32>,
    interval_index: Cell<u32>,
    /// [`PAUSED`], [`DISABLED`], [`LEFT_OUT`]. If any: bytes are counted as muted.
    is_paused: Cell<u32>,
    granted: Cell<u64>,
    total_bytes: Cell<u64>,
    /// Its last sample's id plus one; 0 for none.
    last_sample: Cell<u64>,
    stack_low: Cell<u64>,
    stack_high: Cell<u64>,
    /// Where its timer is noted; 0 for nowhere.
    tick_place: Cell<u64>,
    /// A stack for signals that it got from us; 0 for none.
    signal_stack: Cell<u64>,
    /// Address of the machine's description of its own stack; 0 for none.
    shadow_stack: Cell<u64>,
    sampler: UnsafeCell<MaybeUninit<Sampler>>,
}

const _: () = assert!(
    size_of::<ShimThread>() <= 256,
    "c_shim/shim.h reserves 256 bytes"
);
const _: () = assert!(core::mem::offset_of!(ShimThread, muted) == 8);
const _: () = assert!(core::mem::offset_of!(ShimThread, state) == 24);

/// Mirror of `struct shim_caller`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "documented in shim.h")]
pub struct Caller {
    pub pc: u64,
    pub sp: u64,
    pub fp: u64,
}

/// Mirror of `struct shim_registers`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "documented in shim.h")]
pub struct Interrupted {
    pub pc: u64,
    pub sp: u64,
    pub fp: u64,
    pub link: u64,
}

const _: () = assert!(size_of::<Interrupted>() == 32, "shim.h asserts the same");

/// Mirror of `struct shim_allocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "documented in shim.h")]
pub struct Allocation {
    pub address: u64,
    pub size: u64,
    pub charged: u64,
    pub is_realloc: u32,
    pub reserved: u32,
    pub caller: Caller,
}

const _: () = assert!(
    size_of::<Allocation>() == 56,
    "c_shim/shim.h asserts the same"
);

/// What a thread has allocated, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Counted bytes.
    pub bytes: u64,
    /// Bytes allocated while muted.
    pub muted_bytes: u64,
}

/// The sampling that is in force for malloc.
#[derive(Clone, Copy, Debug)]
pub struct Force {
    /// `None`: stopped.
    pub interval: Option<Interval>,
    /// Its number in the profile.
    pub index: u16,
    /// Differs from that of any other time.
    pub change: u32,
}

/// While it exists, a tick is being recorded on this thread: allocations (a walker's that should not) are muted, and no
/// other tick is recorded.
pub struct Tick<'a> {
    thread: &'a ShimThread,
    bytes_until_sample: u64,
}

/// While it exists, no slow path runs on this thread; what is allocated (by a signal handler, by libc for us) is muted.
pub struct Muted<'a> {
    thread: &'a ShimThread,
}

impl ShimThread {
    /// Settles what was allocated since the last grant and mutes the thread. `charged` of it is the allocation at hand
    /// (0 if there is none), which is looked at last. Returns the sample points in it.
    pub fn mute(&self, charged: u64) -> (Muted<'_>, SamplePoints) {
        let state = &self.state;
        let consumed = state
            .granted
            .get()
            .wrapping_sub(self.bytes_until_sample.get());
        self.bytes_until_sample.set(MUTED_GRANT);
        state.granted.set(MUTED_GRANT);
        self.muted.set(self.muted.get() + 1);
        // For ticks, which come in between.
        compiler_fence(Ordering::SeqCst);
        let mut points = SamplePoints(0);
        if let Some(sampler) = self.sampler() {
            if state.is_paused.get() != 0 {
                let muted = self.muted_bytes.get().wrapping_add(consumed);
                self.muted_bytes.set(muted);
                return (Muted { thread: self }, points);
            }
            state
                .total_bytes
                .set(state.total_bytes.get().wrapping_add(consumed));
            // Without signal handlers in between this is at most the distance.
            sampler.advance(
                consumed
                    .saturating_sub(charged)
                    .min(sampler.bytes_until_sample()),
            );
            if charged > 0 {
                points = sampler.on_alloc(charged);
            }
        }
        (Muted { thread: self }, points)
    }

    /// Whether a slow path is running, further up this thread's stack.
    pub fn is_muted(&self) -> bool {
        self.muted.get() != 0
    }

    /// For a signal handler that may have interrupted anything. `None`: it is a slow path, or the beginning or the end of
    /// one. Nothing is accounted, so that the interrupted code finds all as it was.
    pub fn tick(&self) -> Option<Tick<'_>> {
        let bytes_until_sample = self.bytes_until_sample.get();
        // A counter this high is that of a muted thread. One that has borrowed is above 2^63.
        if self.is_muted() || (MUTED_GRANT / 2..=MUTED_GRANT).contains(&bytes_until_sample) {
            return None;
        }
        self.bytes_until_sample.set(MUTED_GRANT);
        self.muted.set(1);
        compiler_fence(Ordering::SeqCst);
        Some(Tick {
            thread: self,
            bytes_until_sample,
        })
    }

    /// Where its timer is noted.
    pub fn set_tick_place(&self, address: u64) {
        self.state.tick_place.set(address);
    }

    /// That, which is forgotten.
    pub fn take_tick_place(&self) -> u64 {
        self.state.tick_place.replace(0)
    }

    /// Where the machine describes its own stack on this thread; 0 for nowhere.
    pub fn shadow_stack(&self) -> u64 {
        self.state.shadow_stack.get()
    }

    /// See [`Self::shadow_stack`].
    pub fn set_shadow_stack(&self, address: u64) {
        self.state.shadow_stack.set(address);
    }

    /// Whether this thread is sampled, if any is.
    pub fn is_enabled(&self) -> bool {
        self.state.is_paused.get() & (DISABLED | LEFT_OUT) == 0
    }

    /// Whether the selection has this thread.
    pub fn is_selected(&self) -> bool {
        self.state.is_paused.get() & LEFT_OUT == 0
    }

    /// A stack for signals, to be given back at its end.
    pub fn set_signal_stack(&self, address: u64) {
        self.state.signal_stack.set(address);
    }

    /// That, which is forgotten.
    pub fn take_signal_stack(&self) -> u64 {
        self.state.signal_stack.replace(0)
    }

    /// Gives the thread bytes to allocate before it asks again, without counting them: the agent is off.
    pub fn look_again_later(&self) {
        self.state.epoch.set(0);
        self.bytes_until_sample.set(LARGEST_GRANT);
    }

    /// Which start of the agent this thread has joined.
    pub fn epoch(&self) -> u32 {
        self.state.epoch.get()
    }

    /// The interval that the next sample is drawn with, and its number in the profile. `None` before the thread joined.
    pub fn interval(&self) -> Option<(Interval, u16)> {
        let interval = self.sampler()?.interval();
        Some((interval, self.state.interval_index.get() as u16))
    }

    /// The change of the interval that it has adopted.
    pub fn change(&self) -> u32 {
        self.state.change.get()
    }

    /// Whether it joined once and does not belong to us now: it is ending, or its process is a forked child.
    pub fn has_left(&self) -> bool {
        self.epoch() == 0 && self.state.number.get() != 0
    }

    /// Our number of this thread; 0 before it joined.
    pub fn number(&self) -> u32 {
        if self.epoch() == 0 {
            0
        } else {
            self.state.number.get()
        }
    }

    /// Number of the heap whose machine runs this thread; 0 for none.
    pub fn vm_heap(&self) -> u32 {
        self.state.vm_heap.get()
    }

    /// See [`Self::vm_heap`].
    pub fn set_vm_heap(&self, heap: u32) {
        self.state.vm_heap.set(heap);
    }

    /// Which work area it used last, for [`super::scratch::Pool::run`].
    pub fn last_area(&self) -> &Cell<u32> {
        &self.state.last_area
    }

    /// Index of its totals' slot plus one, 0 for none.
    pub fn slot(&self) -> u32 {
        self.state.slot.get()
    }

    /// Whether its start is in the profile.
    pub fn is_announced(&self) -> bool {
        self.state.is_announced.get() != 0
    }

    /// Its start is in the profile now.
    pub fn set_announced(&self) {
        self.state.is_announced.set(1);
    }

    /// The last sample that it has in the ring, as its id plus one; 0 for none.
    pub fn last_sample(&self) -> u64 {
        self.state.last_sample.get()
    }

    /// This sample is in the ring now.
    pub fn set_last_sample(&self, id: u64) {
        self.state.last_sample.set(id + 1);
    }

    /// Bytes counted so far.
    pub fn total_bytes(&self) -> u64 {
        self.state.total_bytes.get()
    }

    /// Addresses of this thread's stack that are known to stay readable while it runs: none if empty.
    pub fn stack(&self) -> core::ops::Range<u64> {
        self.state.stack_low.get()..self.state.stack_high.get()
    }

    /// Remembers the answer of a look at the stack.
    pub fn set_stack(&self, stack: core::ops::Range<u64>) {
        self.state.stack_low.set(stack.start);
        self.state.stack_high.set(stack.end);
    }

    /// Ends what a forgotten [`Muted`] began.
    pub fn unmute(&self) {
        drop(Muted { thread: self });
    }

    /// The next allocation joins anew.
    pub fn forget(&self) {
        self.state.epoch.set(0);
        self.bytes_until_sample.set(0);
    }

    /// The totals of this thread, which must be muted (so that nothing is under way).
    pub fn totals(&self) -> Totals {
        Totals {
            bytes: self.total_bytes(),
            muted_bytes: self.muted_bytes.get(),
        }
    }
    /// Whether the thread of which this is a copy is in a slow path, or on its way there with its counter exhausted.
    pub fn is_copy_at_work(bytes: &[u8; 256]) -> bool {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(bytes.get(at..at + 8).unwrap_or(&[0; 8]));
            u64::from_ne_bytes(word)
        };
        let granted =
            core::mem::offset_of!(ShimThread, state) + core::mem::offset_of!(ThreadState, granted);
        let counter = word(core::mem::offset_of!(ShimThread, bytes_until_sample));
        Self::is_copy_muted(bytes) || counter > word(granted)
    }

    /// The totals of a thread from a copy of its memory.
    pub fn totals_of_copy(bytes: &[u8; 256]) -> Totals {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(bytes.get(at..at + 8).unwrap_or(&[0; 8]));
            u64::from_ne_bytes(word)
        };
        let state = core::mem::offset_of!(ShimThread, state);
        let granted = word(state + core::mem::offset_of!(ThreadState, granted));
        let counter = word(core::mem::offset_of!(ShimThread, bytes_until_sample));
        let total = word(state + core::mem::offset_of!(ThreadState, total_bytes));
        let muted = word(core::mem::offset_of!(ShimThread, muted_bytes));
        let since = granted.wrapping_sub(counter);
        let paused = state + core::mem::offset_of!(ThreadState, is_paused);
        let is_paused = bytes
            .get(paused..paused + 4)
            .is_some_and(|word| word != [0; 4]);
        if granted == MUTED_GRANT || is_paused {
            return Totals {
                bytes: total,
                muted_bytes: muted.wrapping_add(since),
            };
        }
        Totals {
            bytes: total.wrapping_add(since),
            muted_bytes: muted,
        }
    }

    /// Whether the thread was muted when its memory was copied.
    pub fn is_copy_muted(bytes: &[u8; 256]) -> bool {
        let at = core::mem::offset_of!(ShimThread, muted);
        bytes.get(at..at + 4).is_some_and(|word| word != [0; 4])
    }

    fn set_paused(&self, is_paused: bool) {
        let disabled = self.state.is_paused.get() & (DISABLED | LEFT_OUT);
        let paused = if is_paused { PAUSED } else { 0 };
        self.state.is_paused.set(paused | disabled);
    }

    #[expect(clippy::mut_from_ref, reason = "exclusive for the reason given inside")]
    fn sampler(&self) -> Option<&mut Sampler> {
        if self.epoch() == 0 {
            return None;
        }
        // SAFETY: initialised before `epoch` was set. Only the owning thread comes here, and only through `mute` and
        // `Muted`, whose uses do not overlap: a signal handler that interrupts one finds a counter that does not
        // borrow, and so does not come here itself.
        Some(unsafe { (*self.state.sampler.get()).assume_init_mut() })
    }
}

impl Muted<'_> {
    /// The thread joins the agent's current start.
    pub fn join(&self, epoch: u32, number: u32, slot: u32, sampler: Sampler, force: &Force) {
        let state = &self.thread.state;
        state.epoch.set(0);
        // SAFETY: epoch 0 hides the sampler from everyone; a `Sampler` needs no drop.
        unsafe { (*state.sampler.get()).write(sampler) };
        state.number.set(number);
        state.slot.set(slot);
        state.is_announced.set(0);
        state.total_bytes.set(0);
        state.last_sample.set(0);
        state.change.set(force.change);
        state.interval_index.set(u32::from(force.index));
        // Of the profile before this one.
        self.select(true);
        self.thread.set_paused(force.interval.is_none());
        self.thread.muted_bytes.set(0);
        state.epoch.set(epoch);
    }

    /// Counts an allocation that made the thread join; returns the sample points in it.
    pub fn first_alloc(&self, charged: u64) -> SamplePoints {
        let state = &self.thread.state;
        if state.is_paused.get() != 0 {
            self.thread.muted_bytes.set(charged);
            return SamplePoints(0);
        }
        state
            .total_bytes
            .set(state.total_bytes.get().wrapping_add(charged));
        self.thread
            .sampler()
            .map_or(SamplePoints(0), |sampler| sampler.on_alloc(charged))
    }

    /// From here on this thread is sampled, or not.
    pub fn enable(&self, is_on: bool) {
        self.set_flag(DISABLED, !is_on);
    }

    /// From here on the selection has this thread, or not.
    pub fn select(&self, is_in: bool) {
        self.set_flag(LEFT_OUT, !is_in);
    }

    fn set_flag(&self, flag: u32, is_set: bool) {
        let others = self.thread.state.is_paused.get() & !flag;
        let flag = if is_set { flag } else { 0 };
        self.thread.state.is_paused.set(others | flag);
    }

    /// From here on another interval is in force. All that was allocated before is settled.
    pub fn adopt(&self, force: &Force) {
        let state = &self.thread.state;
        state.change.set(force.change);
        self.thread.set_paused(force.interval.is_none());
        if let (Some(interval), Some(sampler)) = (force.interval, self.thread.sampler()) {
            state.interval_index.set(u32::from(force.index));
            // Unbiased: the moment was chosen without a look at the distance.
            sampler.redraw(interval);
        }
    }

    /// The thread leaves: its next allocation joins anew.
    pub fn leave(&self) {
        self.thread.state.epoch.set(0);
    }
}

impl Drop for Tick<'_> {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let thread = self.thread;
        let meanwhile = MUTED_GRANT.wrapping_sub(thread.bytes_until_sample.get());
        let muted = thread.muted_bytes.get().wrapping_add(meanwhile);
        thread.muted_bytes.set(muted);
        thread.bytes_until_sample.set(self.bytes_until_sample);
        thread.muted.set(0);
    }
}

impl Drop for Muted<'_> {
    fn drop(&mut self) {
        let thread = self.thread;
        let meanwhile = MUTED_GRANT.wrapping_sub(thread.bytes_until_sample.get());
        thread
            .muted_bytes
            .set(thread.muted_bytes.get().wrapping_add(meanwhile));
        let grant = match thread.sampler() {
            Some(_) if thread.state.is_paused.get() != 0 => LARGEST_GRANT,
            Some(sampler) => sampler.bytes_until_sample().min(LARGEST_GRANT),
            None => 0,
        };
        thread.state.granted.set(grant);
        thread.bytes_until_sample.set(grant);
        thread.muted.set(thread.muted.get().saturating_sub(1));
    }
}
