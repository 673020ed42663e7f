//! The agent at work on one of the program's threads: one token, which the outermost entry holds.
//!
//! A signal handler can interrupt a slow path at any instruction, and can allocate, free, fork, leave by `siglongjmp` or
//! end the process. So the thread's state must be whole at every instruction, and a slow path that was
//! interrupted must not be trusted to end. Three rules keep that:
//!
//! 1. Only the outermost entry owns the thread's counter, totals and sampler ([`SlowPath::is_outermost`]). An entry that
//!    finds another one under way gets a token that changes nothing and ends nothing.
//! 2. What an entry settles takes effect at once, in the store that sets [`Phase::Settled`]. Before it nothing has
//!    happened, after it everything has.
//! 3. A token knows the thread's serial number. Giving a slow path up (its handler has jumped out) counts the serial up: if
//!    the old slow path goes on all the same, it finds that it owns nothing. In a forked child, where it does go on, no
//!    other begins before it is over ([`ShimThread::drift`]): what its last instructions store is of no account.
//!
//! ```text
//!         mute                       commit                       drop
//! Quiet -------> Entering (compute) -------> Settled (at work) ------> Leaving -------> Quiet
//!                 give_up: as if it had not begun   give_up: settled, the sample is lost
//! ```

use core::sync::atomic::{Ordering, compiler_fence};

use allocsample_sampling::{SamplePoints, Sampler};

use super::thread::{Force, LARGEST_GRANT, ShimThread};
use crate::os::safe_read;
use crate::shim::Caller;

/// Value of `granted` while the counter counts muted bytes. No grant is this large.
const MUTED: u64 = 1 << 62;
/// Initial value of the counter while muted. Signal handlers count it down; at zero, the thread checks whether the slow path
/// still exists.
const MUTED_GRANT: u64 = 1 << 16;

/// Where the agent is on a thread. The lowest four bits are the shim's own, which counts there while it looks up functions
/// (`shim.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Phase {
    /// Not in the agent.
    Quiet = 0,
    /// At the beginning of a slow path: nothing has been settled.
    Entering = 0x10,
    /// In a slow path. The total is `settled_bytes`, and the counter counts muted bytes.
    Settled = 0x20,
    /// At the end of one: the counter is being set.
    Leaving = 0x30,
    /// In a tick. The total is `settled_bytes`.
    Tick = 0x40,
    /// At a record, with the counter left as it is.
    Brief = 0x50,
    /// Muted by code that no signal handler leaves by a jump: a thread of our own, or the shim.
    OfTheAgent = 0x60,
}

impl Phase {
    pub fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Quiet,
            0x10 => Self::Entering,
            0x20 => Self::Settled,
            0x30 => Self::Leaving,
            0x40 => Self::Tick,
            0x50 => Self::Brief,
            _ => Self::OfTheAgent,
        }
    }
}

/// The right to be the agent on a thread, which ends when the outermost token is dropped. While it exists no other slow
/// path is entered on this thread, and what is allocated (by a signal handler, by libc for us) is muted.
#[must_use]
pub struct SlowPath<'a> {
    thread: &'a ShimThread,
    /// `None`: another one is further up the stack.
    serial: Option<u32>,
}

/// While it exists, a tick is being recorded on this thread: allocations (a walker's that should not) are muted, and no
/// other tick is recorded. All signals are blocked meanwhile.
pub struct Tick<'a> {
    thread: &'a ShimThread,
    bytes_until_sample: u64,
}

/// The unfinished work of a slow path that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Bytes of the allocation that it was sampling.
    pub size: u64,
    /// Sample points in it; none if there was no such allocation.
    pub points: SamplePoints,
}

impl ShimThread {
    /// Begins a slow path that was called at `from`: settles what was allocated since the last grant, and mutes the thread.
    /// The allocation at hand comes last: `charged` bytes, for which the grant does not suffice (0 if there is none).
    /// Returns the sample points in it.
    pub fn mute(&self, charged: u64, from: &Caller) -> (SlowPath<'_>, SamplePoints) {
        if self.has_borrowed() {
            // A signal handler is here, in the middle of an allocation function that will take its charge back: nothing can be
            // settled now.
            return (self.begin_record(from), SamplePoints(0));
        }
        let Some(slow_path) = self.begin(Phase::Entering, from) else {
            return (SlowPath::within(self), SamplePoints(0));
        };
        let state = &self.state;
        let counter = self.bytes_until_sample.get();
        let before = state.granted.get().wrapping_sub(counter);
        let consumed = before.wrapping_add(charged);
        let mut points = SamplePoints(0);
        let mut muted = 0;
        let mut settled = state.total_bytes.get();
        if let Some(mut sampler) = self.sampler() {
            if state.is_paused.get() != 0 {
                muted = consumed;
            } else {
                settled = settled.wrapping_add(consumed);
                // Without signal handlers in between this is at most the distance.
                sampler.advance(before.min(sampler.bytes_until_sample()));
                if charged > 0 {
                    points = sampler.on_alloc(charged);
                }
                state.pending.0.set(charged);
                state.pending.1.set(points.0);
                self.set_sampler(sampler);
            }
        }
        state.settled_bytes.set(settled);
        compiler_fence(Ordering::SeqCst);
        self.phase.set(Phase::Settled as u32);
        compiler_fence(Ordering::SeqCst);
        self.count(MUTED_GRANT.wrapping_sub(counter));
        state.granted.set(MUTED);
        state.total_bytes.set(settled);
        self.muted_bytes
            .set(self.muted_bytes.get().wrapping_add(muted));
        (slow_path, points)
    }

    /// Marks that the thread is writing a record. Its counter keeps counting.
    pub fn begin_record(&self, from: &Caller) -> SlowPath<'_> {
        self.begin(Phase::Brief, from)
            .unwrap_or(SlowPath::within(self))
    }

    #[inline]
    fn begin(&self, phase: Phase, from: &Caller) -> Option<SlowPath<'_>> {
        if self.is_muted() {
            return None;
        }
        self.phase.set(phase as u32);
        // A handler that comes in here sees the phase first, and where it was entered before. If it takes that for a slow
        // path which has been left, it gives it up: this one has done nothing yet, and takes the new serial.
        compiler_fence(Ordering::SeqCst);
        self.state.entered.0.set(from.pc);
        self.state.entered.1.set(from.sp);
        let at = core::ptr::from_ref(from).expose_provenance() as u64;
        self.state.entered_at.set(at);
        compiler_fence(Ordering::SeqCst);
        let serial = self.serial.get();
        // In case it was.
        self.phase.set(phase as u32);
        Some(SlowPath {
            thread: self,
            serial: Some(serial),
        })
    }

    /// The calling thread is one of our own: nothing that it allocates is the program's.
    pub fn mute_for_good(&self) {
        self.phase.set(Phase::OfTheAgent as u32);
    }

    /// Whether the shim has muted the calling thread, in no slow path and on no thread of our own: the program's functions that it
    /// calls there may map memory for the program.
    #[inline]
    pub fn is_muted_by_the_shim_alone(&self) -> bool {
        (1..Phase::Entering as u32).contains(&self.phase.get())
    }

    /// As `shim_mute` and `shim_unmute`, which C code calls.
    #[cfg(test)]
    pub fn mute_by_the_shim(&self, begins: bool) {
        let phase = self.phase.get();
        self.phase.set(if begins { phase + 1 } else { phase - 1 });
    }

    /// Whether the calling thread is one of our own, or muted by the shim.
    #[inline]
    pub fn is_of_the_agent(&self) -> bool {
        self.phase() == Phase::OfTheAgent
    }

    /// Whether a slow path, or the writing of a record, is under way on this thread; or was, when a handler jumped out.
    #[inline]
    pub fn is_muted(&self) -> bool {
        self.phase.get() != Phase::Quiet as u32
    }

    /// Return address and stack pointer of the call that entered the slow path.
    pub fn entered(&self) -> (u64, u64) {
        (self.state.entered.0.get(), self.state.entered.1.get())
    }

    /// Whether the frame from which the slow path was entered may exist: what was noted there is still there, or cannot be
    /// looked at. A frame that exists is not overwritten; one that does not may not be overwritten yet.
    pub fn may_have_entry(&self) -> bool {
        let mut found = [0; size_of::<[u64; 2]>()];
        if !safe_read::copy_if_mapped(self.state.entered_at.get(), &mut found) {
            // It is gone, unless nothing can be copied.
            let here = 0_u64;
            let here = core::ptr::from_ref(&here).expose_provenance() as u64;
            return !safe_read::copy_if_mapped(here, &mut [0; 8]);
        }
        let (pc, sp) = self.entered();
        let (found_pc, rest) = found.split_at(size_of::<u64>());
        found_pc == pc.to_ne_bytes() && rest.starts_with(&sp.to_ne_bytes())
    }

    /// The allocation that is being sampled is in the ring, or is counted as lost.
    pub fn pending_is_done(&self) {
        self.state.pending.1.set(0);
    }

    /// The allocation that is being sampled by whoever is further up this thread's stack.
    pub fn pending(&self) -> GivenUp {
        let (size, points) = &self.state.pending;
        let points = match self.phase() {
            Phase::Settled | Phase::Leaving => points.get(),
            _ => 0,
        };
        GivenUp {
            size: size.get(),
            points: SamplePoints(points),
        }
    }

    /// A signal handler has allocated more than the counter had, while a slow path was under way.
    pub fn count_muted(&self, charged: u64) {
        let mut muted = charged;
        if self.state.granted.get() == MUTED {
            let counter = self.bytes_until_sample.get();
            muted = muted.wrapping_add(MUTED_GRANT.wrapping_sub(counter));
            self.count(MUTED_GRANT.wrapping_sub(counter));
        }
        self.muted_bytes
            .set(self.muted_bytes.get().wrapping_add(muted));
    }

    /// Charges an allocation, if the grant suffices.
    #[inline]
    pub fn charge(&self, charged: u64) -> bool {
        let suffices = charged <= self.bytes_until_sample.get();
        if suffices {
            self.count(charged.wrapping_neg());
        }
        suffices
    }

    /// Whether the counter has borrowed: the thread is at the very beginning of an allocation function, or a signal handler
    /// has left it there by a jump, and then nothing would ever borrow again.
    pub fn has_borrowed(&self) -> bool {
        self.bytes_until_sample.get().cast_signed() < 0
    }

    /// Settles a counter that was left borrowed by a jump. Returns the bytes allocated since the last grant, the abandoned
    /// allocation's included; they are not sampled.
    pub fn settle_borrowed(&self) -> u64 {
        let state = &self.state;
        let counter = self.bytes_until_sample.get();
        let since = state.granted.get().wrapping_sub(counter);
        self.set_grant(0);
        if self.epoch() == 0 {
            return 0;
        }
        if state.is_paused.get() != 0 {
            self.add_muted(since);
            return 0;
        }
        let total = state.total_bytes.get().wrapping_add(since);
        state.total_bytes.set(total);
        since
    }

    /// Ends the slow path that is under way on this thread, in which nobody is any more, or which is not this process's. If
    /// it goes on all the same it finds that it has ended. Signals are blocked.
    pub fn give_up(&self) -> GivenUp {
        let state = &self.state;
        let undone = self.pending();
        let phase = self.phase();
        self.serial.set(self.serial.get().wrapping_add(1));
        let counter = self.bytes_until_sample.get();
        match phase {
            Phase::Quiet | Phase::Entering | Phase::Brief => {}
            Phase::Settled => {
                state.total_bytes.set(state.settled_bytes.get());
                if state.granted.get() == MUTED {
                    self.add_muted(MUTED_GRANT.wrapping_sub(counter));
                }
                self.set_grant(self.next_grant());
            }
            // What the tick has put aside is gone.
            Phase::Leaving | Phase::Tick | Phase::OfTheAgent => self.set_grant(self.next_grant()),
        }
        state.pending.1.set(0);
        self.take_record();
        state.is_adrift.set(0);
        compiler_fence(Ordering::SeqCst);
        self.phase.set(Phase::Quiet as u32);
        undone
    }

    /// Makes the thread join again, in a forked child or after the end of a profile. It is not in a slow path, or in one that
    /// ends here.
    pub fn begin_anew(&self) {
        self.give_up();
        self.state.last_area.set(0);
        self.forget();
    }

    /// The same while a signal handler has interrupted a slow path, to which the handler may return. That goes on with a token
    /// that owns nothing, and until it is over (or is given up) the thread stays muted: nobody uses its state meanwhile.
    pub fn drift(&self) {
        let state = &self.state;
        state.is_adrift.set(1);
        self.serial.set(self.serial.get().wrapping_add(1));
        state.last_area.set(0);
        state.pending.1.set(0);
        self.take_record();
        state.epoch.set(0);
    }

    /// For a signal handler that may have interrupted anything. `None`: it is a slow path, or the beginning or the end of
    /// one. Nothing is accounted, so that the interrupted code finds all as it was.
    pub fn tick(&self) -> Option<Tick<'_>> {
        if self.is_muted() {
            return None;
        }
        let state = &self.state;
        let bytes_until_sample = self.bytes_until_sample.get();
        let since = state.granted.get().wrapping_sub(bytes_until_sample);
        let since = if state.is_paused.get() == 0 { since } else { 0 };
        state
            .settled_bytes
            .set(state.total_bytes.get().wrapping_add(since));
        self.phase.set(Phase::Tick as u32);
        compiler_fence(Ordering::SeqCst);
        self.bytes_until_sample.set(MUTED_GRANT);
        Some(Tick {
            thread: self,
            bytes_until_sample,
        })
    }

    fn add_muted(&self, bytes: u64) {
        let muted = self.muted_bytes.get().wrapping_add(bytes);
        self.muted_bytes.set(muted);
    }

    fn set_grant(&self, grant: u64) {
        self.state.granted.set(grant);
        self.bytes_until_sample.set(grant);
    }

    /// The bytes that the thread may allocate before its next slow path.
    #[inline]
    fn next_grant(&self) -> u64 {
        match self.sampler() {
            Some(_) if self.state.is_paused.get() != 0 => LARGEST_GRANT,
            Some(sampler) => sampler.bytes_until_sample().min(LARGEST_GRANT),
            None => 0,
        }
    }

    /// Adds to the counter in one instruction: what a signal handler subtracts meanwhile is kept.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn count(&self, delta: u64) {
        // SAFETY: adds to a word of our own, which only this thread changes.
        unsafe {
            core::arch::asm!(
                "add qword ptr [{counter}], {delta}",
                counter = in(reg) self.bytes_until_sample.as_ptr(),
                delta = in(reg) delta,
                options(nostack),
            );
        }
    }

    /// Adds to the counter so that what a signal handler subtracts meanwhile is kept.
    #[cfg(not(target_arch = "x86_64"))]
    #[inline]
    fn count(&self, delta: u64) {
        let counter = self.bytes_until_sample.as_ptr();
        // SAFETY: a word of our own, aligned, which nobody accesses in another way meanwhile: only this thread does.
        unsafe { core::sync::atomic::AtomicU64::from_ptr(counter) }
            .fetch_add(delta, Ordering::Relaxed);
    }
}

impl<'a> SlowPath<'a> {
    /// The token of a nested entry, which changes nothing.
    fn within(thread: &'a ShimThread) -> Self {
        Self {
            thread,
            serial: None,
        }
    }

    /// Whether the thread is ours: this is the outermost token, and has not been given up.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.serial == Some(self.thread.serial.get())
    }

    /// Whether it is the outermost token, given up or not.
    pub fn is_outermost(&self) -> bool {
        self.serial.is_some()
    }

    /// The thread joins the agent's current start.
    pub fn join(&self, epoch: u32, number: u32, slot: u32, sampler: Sampler, force: &Force) {
        if !self.is_ours() {
            return;
        }
        let state = &self.thread.state;
        state.epoch.set(0);
        self.thread.set_sampler(sampler);
        state.number.set(number);
        state.slot.set(slot);
        state.is_announced.set(0);
        state.total_bytes.set(0);
        state.settled_bytes.set(0);
        state.last_sample.set(0);
        state.change.set(force.change);
        state.interval_index.set(u32::from(force.index));
        state.is_adrift.set(0);
        // Of the profile before this one.
        self.thread.select(true);
        self.thread.set_paused(force.interval.is_none());
        self.thread.muted_bytes.set(0);
        // Epoch 0 hides the sampler until it is there.
        compiler_fence(Ordering::SeqCst);
        state.epoch.set(epoch);
    }

    /// Counts an allocation that made the thread join; returns the sample points in it.
    pub fn first_alloc(&self, charged: u64) -> SamplePoints {
        let thread = self.thread;
        let state = &thread.state;
        if !self.is_ours() {
            return SamplePoints(0);
        }
        if state.is_paused.get() != 0 {
            thread.muted_bytes.set(charged);
            return SamplePoints(0);
        }
        let Some(mut sampler) = thread.sampler() else {
            return SamplePoints(0);
        };
        let points = sampler.on_alloc(charged);
        thread.set_sampler(sampler);
        state.pending.0.set(charged);
        state.pending.1.set(points.0);
        let total = state.total_bytes.get().wrapping_add(charged);
        state.settled_bytes.set(total);
        state.total_bytes.set(total);
        points
    }

    /// Turns sampling of this thread on or off.
    pub fn enable(&self, is_on: bool) {
        if self.is_ours() {
            self.thread.enable(is_on);
        }
    }

    /// Includes this thread in the selection, or excludes it.
    pub fn select(&self, is_in: bool) {
        if self.is_ours() {
            self.thread.select(is_in);
        }
    }

    /// Switches the thread to another interval. Everything that it allocated before is settled.
    pub fn adopt(&self, force: &Force) {
        if !self.is_ours() {
            return;
        }
        let state = &self.thread.state;
        state.change.set(force.change);
        self.thread.set_paused(force.interval.is_none());
        if let (Some(interval), Some(mut sampler)) = (force.interval, self.thread.sampler()) {
            state.interval_index.set(u32::from(force.index));
            // Unbiased: the moment was chosen without a look at the distance.
            sampler.redraw(interval);
            self.thread.set_sampler(sampler);
        }
    }

    /// Makes the thread join again at its next allocation.
    pub fn leave(&self) {
        if self.is_ours() {
            self.thread.state.epoch.set(0);
        }
    }

    /// Lets the slow path go on without a token, until [`Self::again`].
    pub fn leave_open(self) -> bool {
        let is_outermost = self.is_outermost();
        core::mem::forget(self);
        is_outermost
    }

    /// The token of a slow path that [`Self::leave_open`] left open on this thread.
    pub fn again(thread: &'a ShimThread) -> Self {
        Self {
            thread,
            serial: Some(thread.serial.get()),
        }
    }
}

impl Drop for SlowPath<'_> {
    #[inline]
    fn drop(&mut self) {
        let thread = self.thread;
        if !self.is_ours() {
            if self.is_outermost() && thread.state.is_adrift.get() != 0 {
                thread.begin_anew();
            }
            return;
        }
        if thread.phase.get() == Phase::Brief as u32 {
            thread.phase.set(Phase::Quiet as u32);
            return;
        }
        thread.phase.set(Phase::Leaving as u32);
        compiler_fence(Ordering::SeqCst);
        let grant = thread.next_grant();
        // First: from here on `count_muted` leaves the counter alone.
        thread.state.granted.set(grant);
        compiler_fence(Ordering::SeqCst);
        let counter = thread.bytes_until_sample.get();
        thread.add_muted(MUTED_GRANT.wrapping_sub(counter));
        thread.count(grant.wrapping_sub(counter));
        thread.state.pending.1.set(0);
        compiler_fence(Ordering::SeqCst);
        thread.phase.set(Phase::Quiet as u32);
    }
}

impl Drop for Tick<'_> {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let thread = self.thread;
        if thread.phase() != Phase::Tick {
            // It has become another process's.
            return;
        }
        thread.add_muted(MUTED_GRANT.wrapping_sub(thread.bytes_until_sample.get()));
        thread.bytes_until_sample.set(self.bytes_until_sample);
        compiler_fence(Ordering::SeqCst);
        thread.phase.set(Phase::Quiet as u32);
    }
}

#[cfg(test)]
mod tests;
