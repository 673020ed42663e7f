//! The sampling state of one of the program's threads, in thread-local memory that the C shim owns.

use core::cell::{Cell, UnsafeCell};
use core::mem::MaybeUninit;
use core::sync::atomic::{Ordering, compiler_fence};

use allocsample_sampling::{Interval, Sampler};

use super::slow_path::Phase;

/// Sampling is stopped.
const PAUSED: u32 = 1;
/// Sampling is off for this thread, by a call of its own.
const DISABLED: u32 = 2;
/// Not sampled: a filter set from outside (`ctl filter`) leaves this thread out.
const LEFT_OUT: u32 = 4;

/// In the first word of a noted record: where it starts plus one, below the writer's number.
const RECORD_WRITER_SHIFT: u32 = 56;
/// In the second one: its words, whether it has begun, and above them the ring.
const RECORD_WORDS: u64 = (1 << 24) - 1;
const RECORD_HAS_BEGUN: u64 = 1 << 24;
const RECORD_RING_SHIFT: u32 = 25;

/// A thread looks at the agent's state after this many bytes at the latest.
pub(super) const LARGEST_GRANT: u64 = 1 << 20;

/// Bytes of a thread's state, as c_shim/shim.h reserves them.
pub const THREAD_BYTES: usize = 256;

/// Mirror of `struct shim_thread`. Shared references and cells only: a signal handler on the same thread comes by.
#[repr(C)]
pub struct ShimThread {
    pub(super) bytes_until_sample: Cell<u64>,
    /// A [`Phase`]. Not 0: the agent is at work on this thread.
    pub(super) phase: Cell<u32>,
    /// Counts the slow paths that will never end, or that belong to the parent process: see [`super::slow_path`].
    pub(super) serial: Cell<u32>,
    pub(super) muted_bytes: Cell<u64>,
    pub(super) state: ThreadState,
}

#[repr(C)]
pub(super) struct ThreadState {
    /// Which start of the agent this thread has joined; 0 for none. The fields below it mean nothing before.
    pub(super) epoch: Cell<u32>,
    pub(super) number: Cell<u32>,
    pub(super) is_announced: Cell<u32>,
    pub(super) slot: Cell<u32>,
    /// For the pool of work areas.
    pub(super) last_area: Cell<u32>,
    /// Number of the heap whose machine runs this thread; 0 for none.
    vm_heap: Cell<u32>,
    /// The change of the interval that this thread has adopted, and the number of that interval in the profile.
    pub(super) change: Cell<u32>,
    pub(super) interval_index: Cell<u32>,
    /// [`PAUSED`], [`DISABLED`], [`LEFT_OUT`]. If any: bytes are counted as muted.
    pub(super) is_paused: Cell<u32>,
    /// Index of its place among the threads whose page faults are sampled, plus one; 0 for none.
    fault_place: Cell<u32>,
    /// The value that the counter was last set to, or a marker of [`super::slow_path`] while the agent is at work.
    pub(super) granted: Cell<u64>,
    pub(super) total_bytes: Cell<u64>,
    /// The value that replaces `total_bytes` when a slow path settles.
    pub(super) settled_bytes: Cell<u64>,
    /// Its last sample's id plus one; 0 for none.
    pub(super) last_sample: Cell<u64>,
    stack_low: Cell<u64>,
    stack_high: Cell<u64>,
    /// Address of the slot with its timer; 0 for none.
    tick_place: Cell<u64>,
    /// A stack for signals that it got from us; 0 for none.
    signal_stack: Cell<u64>,
    /// Address of the machine's description of its own stack; 0 for none.
    shadow_stack: Cell<u64>,
    /// Not 0: the slow path that seems to be under way is the parent process's, or an ended profile's.
    pub(super) is_adrift: Cell<u32>,
    /// Where the outermost slow path was called: return address and stack pointer.
    pub(super) entered: (Cell<u64>, Cell<u64>),
    /// Address of its [`Caller`], which exists as long as the slow path.
    pub(super) entered_at: Cell<u64>,
    /// The allocation that is being sampled: its bytes, and the sample points in it. None: 0 points.
    pub(super) pending: (Cell<u64>, Cell<u64>),
    /// The record that it is writing, as [`NotedRecord`] has it in two words. None: 0.
    record: (Cell<u64>, Cell<u64>),
    sampler: UnsafeCell<MaybeUninit<Sampler>>,
}

const _: () = assert!(
    size_of::<ShimThread>() <= THREAD_BYTES,
    "c_shim/shim.h reserves as many"
);
const _: () = assert!(core::mem::offset_of!(ShimThread, phase) == 8);
const _: () = assert!(core::mem::offset_of!(ShimThread, state) == 24);

/// A record of the ring that a thread is writing, or is about to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotedRecord {
    /// Where its reservation starts: 48 bits.
    pub start: u64,
    /// Words of its payload.
    pub words: usize,
    /// Number of its writer: 8 bits.
    pub writer: usize,
    /// The ring's id, cut by [`NotedRecord::ring_bits`].
    pub ring: u64,
    /// Whether its header is written. If not, it may not even be reserved.
    pub has_begun: bool,
}

impl NotedRecord {
    /// The part of a ring's id that is noted: 39 bits.
    #[inline]
    pub fn ring_bits(id: u64) -> u64 {
        id << RECORD_RING_SHIFT >> RECORD_RING_SHIFT
    }
}

/// The exact number of bytes that a thread has allocated.
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
    /// Number of the change that put it in force.
    pub change: u32,
}

impl ShimThread {
    /// The state of a thread that has allocated nothing yet: all zero, as in the shim's thread-local memory.
    pub const fn new() -> Self {
        // SAFETY: it consists of cells of numbers, and of uninitialised memory.
        unsafe { core::mem::zeroed() }
    }

    /// Sets the address of the timer slot that belongs to this thread.
    pub fn set_tick_place(&self, address: u64) {
        self.state.tick_place.set(address);
    }

    /// Returns and clears the address of the timer slot; 0: there was none.
    pub fn take_tick_place(&self) -> u64 {
        self.state.tick_place.replace(0)
    }

    /// Its place among the threads whose page faults are sampled, plus one; 0 for none.
    pub fn fault_place(&self) -> u32 {
        self.state.fault_place.get()
    }

    /// See [`Self::fault_place`].
    pub fn set_fault_place(&self, place: u32) {
        self.state.fault_place.set(place);
    }

    /// Where the machine describes its own stack on this thread; 0 for nowhere.
    pub fn shadow_stack(&self) -> u64 {
        self.state.shadow_stack.get()
    }

    /// See [`Self::shadow_stack`].
    pub fn set_shadow_stack(&self, address: u64) {
        self.state.shadow_stack.set(address);
    }

    /// Whether the thread is neither disabled nor excluded by the selection.
    pub fn is_enabled(&self) -> bool {
        self.state.is_paused.get() & (DISABLED | LEFT_OUT) == 0
    }

    /// Whether the selection includes this thread.
    pub fn is_selected(&self) -> bool {
        self.state.is_paused.get() & LEFT_OUT == 0
    }

    /// A stack for signals, to be given back at its end.
    pub fn set_signal_stack(&self, address: u64) {
        self.state.signal_stack.set(address);
    }

    /// Returns and clears the address of the stack for signals; 0: there was none.
    pub fn take_signal_stack(&self) -> u64 {
        self.state.signal_stack.replace(0)
    }

    /// The phase of the agent on this thread.
    pub(super) fn phase(&self) -> Phase {
        Phase::from_number(self.phase.get())
    }

    /// Whether the thread has noted a record that it is writing.
    #[inline]
    pub fn has_record(&self) -> bool {
        self.state.record.0.get() != 0
    }

    /// Notes a record that it is about to reserve: another one than before, or from another place on. It has not begun.
    #[inline]
    pub fn note_record(&self, record: NotedRecord) {
        let (start, rest) = &self.state.record;
        rest.set(record.words as u64 & RECORD_WORDS | record.ring << RECORD_RING_SHIFT);
        // A handler that comes in between finds none, or all; or the one of before, at which it is no more.
        compiler_fence(Ordering::SeqCst);
        let writer = (record.writer as u64) << RECORD_WRITER_SHIFT;
        start.set(record.start.wrapping_add(1) | writer);
    }

    /// The header of the noted record is written.
    #[inline]
    pub fn record_has_begun(&self) {
        let rest = &self.state.record.1;
        rest.set(rest.get() | RECORD_HAS_BEGUN);
    }

    /// Returns and clears the noted record.
    #[inline]
    pub fn take_record(&self) -> Option<NotedRecord> {
        let (start, rest) = &self.state.record;
        let start = start.replace(0).checked_sub(1)?;
        let rest = rest.get();
        Some(NotedRecord {
            start: start & ((1 << RECORD_WRITER_SHIFT) - 1),
            words: (rest & RECORD_WORDS) as usize,
            writer: (start >> RECORD_WRITER_SHIFT) as usize,
            ring: rest >> RECORD_RING_SHIFT,
            has_begun: rest & RECORD_HAS_BEGUN != 0,
        })
    }

    /// Gives the thread a grant that is not counted, while the agent is off.
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

    /// Whether the thread has joined before and must join again: it is ending, or its process is a forked child.
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

    /// The work area that it used last, for [`crate::os::scratch::Pool::run`].
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

    /// Notes that its start is in the profile.
    pub fn set_announced(&self) {
        self.state.is_announced.set(1);
    }

    /// The last sample that it has in the ring, as its id plus one; 0 for none.
    pub fn last_sample(&self) -> u64 {
        self.state.last_sample.get()
    }

    /// Notes the last sample that is in the ring.
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

    /// Sets the range that [`Self::stack`] returns.
    pub fn set_stack(&self, stack: core::ops::Range<u64>) {
        self.state.stack_low.set(stack.start);
        self.state.stack_high.set(stack.end);
    }

    /// Makes the thread join again at its next allocation.
    pub fn forget(&self) {
        self.state.epoch.set(0);
        // An allocation that a signal handler has interrupted at its very beginning will take its charge back, and joins.
        if !self.has_borrowed() {
            self.bytes_until_sample.set(0);
        }
    }

    /// The totals of this thread, which must be in a slow path (so that nothing else is under way).
    pub fn totals(&self) -> Totals {
        let bytes = match self.phase() {
            Phase::Settled => self.state.settled_bytes.get(),
            _ => self.total_bytes(),
        };
        Totals {
            bytes,
            muted_bytes: self.muted_bytes.get(),
        }
    }

    /// Whether the thread of which this is a copy is in a slow path, or on its way there with its counter exhausted.
    pub fn is_copy_at_work(bytes: &[u8; THREAD_BYTES]) -> bool {
        let copy = Copy::of(bytes);
        copy.phase != Phase::Quiet || copy.counter > copy.granted
    }

    /// Whether a slow path of the thread was under way when its memory was copied.
    pub fn is_copy_muted(bytes: &[u8; THREAD_BYTES]) -> bool {
        !matches!(Copy::of(bytes).phase, Phase::Quiet | Phase::OfTheAgent)
    }

    /// The totals of a thread from a copy of its memory.
    pub fn totals_of_copy(bytes: &[u8; THREAD_BYTES]) -> Totals {
        let copy = Copy::of(bytes);
        let since = copy.granted.wrapping_sub(copy.counter);
        let settled = Totals {
            bytes: copy.total,
            muted_bytes: copy.muted,
        };
        match copy.phase {
            Phase::Settled | Phase::Tick => Totals {
                bytes: copy.settled,
                ..settled
            },
            // Its counter is being set.
            Phase::Leaving => settled,
            _ if copy.is_paused => Totals {
                muted_bytes: copy.muted.wrapping_add(since),
                ..settled
            },
            _ => Totals {
                bytes: copy.total.wrapping_add(since),
                ..settled
            },
        }
    }

    pub(super) fn set_paused(&self, is_paused: bool) {
        let disabled = self.state.is_paused.get() & (DISABLED | LEFT_OUT);
        let paused = if is_paused { PAUSED } else { 0 };
        self.state.is_paused.set(paused | disabled);
    }

    /// A copy of its sampler, if it has joined.
    #[inline]
    pub(super) fn sampler(&self) -> Option<Sampler> {
        if self.epoch() == 0 {
            return None;
        }
        // SAFETY: written before `epoch` was set; plain numbers. Only this thread writes there, and nobody holds a reference
        // into it: a signal handler that comes in between leaves numbers of a sampler all the same.
        Some(unsafe { self.state.sampler.get().read().assume_init() })
    }

    /// Replaces the sampler.
    #[inline]
    pub(super) fn set_sampler(&self, sampler: Sampler) {
        // SAFETY: as above; a `Sampler` needs no drop.
        unsafe { self.state.sampler.get().write(MaybeUninit::new(sampler)) };
    }

    /// Sets or clears [`DISABLED`] or [`LEFT_OUT`].
    fn set_flag(&self, flag: u32, is_set: bool) {
        let others = self.state.is_paused.get() & !flag;
        let flag = if is_set { flag } else { 0 };
        self.state.is_paused.set(others | flag);
    }

    pub(super) fn enable(&self, is_on: bool) {
        self.set_flag(DISABLED, !is_on);
    }

    pub(super) fn select(&self, is_in: bool) {
        self.set_flag(LEFT_OUT, !is_in);
    }
}

/// The fields of a [`ShimThread`] in a copy that the kernel made.
struct Copy {
    phase: Phase,
    counter: u64,
    granted: u64,
    total: u64,
    settled: u64,
    muted: u64,
    is_paused: bool,
}

impl Copy {
    fn of(bytes: &[u8; THREAD_BYTES]) -> Self {
        const STATE: usize = core::mem::offset_of!(ShimThread, state);
        let word = |at: usize| {
            let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
            u64::from_ne_bytes(found.copied().unwrap_or_default())
        };
        let half = |at: usize| {
            let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
            u32::from_ne_bytes(found.copied().unwrap_or_default())
        };
        let of_state = |offset: usize| word(STATE + offset);
        Self {
            phase: Phase::from_number(half(core::mem::offset_of!(ShimThread, phase))),
            counter: word(core::mem::offset_of!(ShimThread, bytes_until_sample)),
            granted: of_state(core::mem::offset_of!(ThreadState, granted)),
            total: of_state(core::mem::offset_of!(ThreadState, total_bytes)),
            settled: of_state(core::mem::offset_of!(ThreadState, settled_bytes)),
            muted: word(core::mem::offset_of!(ShimThread, muted_bytes)),
            is_paused: half(STATE + core::mem::offset_of!(ThreadState, is_paused)) != 0,
        }
    }
}

#[cfg(test)]
mod tests;
