//! The slow path of malloc: an allocation has borrowed from its thread's counter.

use allocsample_record::{
    Figure, HeapId, HeapKind, LostReason, RecordKind, SampleFlags, SampleId, SampleRecord, ThreadId,
};
use allocsample_ring::Priority;
use allocsample_sampling::{GapLaw, Interval, SamplePoints, Sampler, Weight};

use crate::agent::{Agent, WorkArea};
use crate::config::OnFull;
use crate::hooks::Heap;
use crate::live::LiveSamples;
use crate::os::scratch::Zeroed;
use crate::os::signals::Held;
use crate::os::slow_path::SlowPath;
use crate::os::thread::{Allocation, Caller, ShimThread};
use crate::os::{self, clock};
use crate::recording::{self, DrainState, Recording};
use crate::stack::Captured;
use crate::stack::vm::RawFrame;
use crate::switch::Switch;

impl Agent {
    /// An allocation has borrowed. Any thread, also in a signal handler.
    pub fn on_alloc(&self, thread: &ShimThread, allocation: &Allocation) -> Option<SampleId> {
        self.notice_fork_on(thread);
        if thread.is_muted() && !self.goes_on(thread, allocation) {
            return None;
        }
        if self.switch.get() != Switch::On {
            thread.look_again_later();
            return None;
        }
        let since_ns = start_of_timed(thread, allocation.address);
        let (slow_path, points) = self.enter(thread, allocation.charged, &allocation.caller)?;
        let mut sampled = None;
        if points.is_sampled() {
            let flags = match allocation.is_realloc {
                0 => SampleFlags::default(),
                _ => SampleFlags::REALLOC,
            };
            let due = Due {
                thread,
                address: allocation.address,
                size: allocation.size,
                points,
                heap: HeapId::MALLOC,
                interval: thread
                    .interval()
                    .map_or((None, 0), |(interval, index)| (Some(interval), index)),
                flags,
                type_id: 0,
                caller: allocation.caller,
                walked: self.heaps.walked_in_malloc(thread),
                stack: None,
                has_own_frame: allocation.has_own_frame != 0,
            };
            sampled = match recording::current() {
                Some(recording) if !self.selection.has_size(due.size) => {
                    self.leave_out(recording, weight_bytes(&due, self.law()));
                    None
                }
                _ => self.run_and_tell(&due, since_ns),
            };
            thread.pending_is_done();
        }
        self.begin_if_asked(thread);
        self.obey_requests(thread, &slow_path);
        sampled
    }

    /// Whether an allocation on a muted thread is to be looked at: the slow path that muted it is no more, and the grant does
    /// not suffice.
    #[cold]
    #[inline(never)]
    fn goes_on(&self, thread: &ShimThread, allocation: &Allocation) -> bool {
        if self.is_in_slow_path(thread, &allocation.caller) {
            thread.count_muted(allocation.charged);
            return false;
        }
        !thread.charge(allocation.charged)
    }

    /// An object of a virtual machine's heap is a sample. Returns its id, unless it was lost (which is counted).
    pub(crate) fn on_heap_sample(&self, due: &Due<'_>) -> Option<SampleId> {
        self.notice_fork_on(due.thread);
        if self.switch.get() != Switch::On {
            return None;
        }
        if self.is_in_slow_path(due.thread, &due.caller) {
            self.count_lost(LostReason::Reentered, 1, weight_bytes(due, self.law()));
            return None;
        }
        let since_ns = start_of_timed(due.thread, due.address);
        let _slow_path = self.enter(due.thread, 0, &due.caller)?;
        self.run_and_tell(due, since_ns)
    }

    /// Makes the thread known in the profile, which is begun if there is none. False: it cannot be.
    pub(crate) fn announce(&self, thread: &ShimThread) -> bool {
        let Some(_slow_path) = self.enter(thread, 0, &Caller::UNKNOWN) else {
            return false;
        };
        let recording = self
            .areas
            .run(thread.last_area(), |area| {
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

    /// Counts what a hook lost, wherever that can be said.
    pub(crate) fn count_lost(&self, reason: LostReason, events: u64, bytes: u64) {
        match recording::current() {
            Some(recording) => recording.count_lost(reason, events, bytes),
            None if reason.is_sample_missing() => self.count_lost_before_recording(bytes),
            None => {}
        }
    }

    /// Gives the thread a number, unless it has one.
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
        let force = self.control.force();
        let interval = force.interval.or(self.config().interval)?;
        let (number, slot) = self.threads.join(thread);
        let sampler = Sampler::new(self.law(), interval, self.seed().thread(number));
        slow_path.join(self.epoch(), number, slot, sampler, &force);
        self.select(thread, slow_path);
        (self.hooks().on_thread_joined)();
        Some(match charged {
            0 => SamplePoints(0),
            _ => slow_path.first_alloc(charged),
        })
    }

    /// `since_ns` is when it began, if this one is timed.
    fn run_and_tell(&self, due: &Due<'_>, since_ns: Option<u64>) -> Option<SampleId> {
        let id = self.run_sample(due);
        if let (Some(since_ns), Some(recording)) = (since_ns, recording::current()) {
            let elapsed_ns = clock::monotonic_ns().saturating_sub(since_ns);
            recording.count_time(Figure::TimedSamples, elapsed_ns);
        }
        let id = id?;
        if (self.hooks().has_listener)() {
            let weight = weight_bytes(due, self.law());
            (self.hooks().on_sampled)(due.address, due.size, weight);
        }
        Some(id)
    }

    fn run_sample(&self, due: &Due<'_>) -> Option<SampleId> {
        /// Where samples wait, this long for others to finish theirs: more threads may be at one than there can be areas.
        const PATIENCE_MS: u32 = 10_000;
        let patience_ms = match self.config().on_full {
            OnFull::Wait if !os::is_filtered() => PATIENCE_MS,
            _ => 0,
        };
        for waited_ms in 0..=patience_ms {
            if self.is_over_for(due.thread) {
                return None;
            }
            let taken = self
                .areas
                .run(due.thread.last_area(), |area| self.take_sample(due, area));
            if let Some(taken) = taken {
                return taken;
            }
            if waited_ms < patience_ms {
                clock::sleep_ms(1);
            }
        }
        self.count_lost(LostReason::NoMemory, 1, weight_bytes(due, self.law()));
        None
    }

    /// Whether what the thread, which is in a slow path, is at belongs to no profile any more: a signal handler has forked, and
    /// this is the child; or an exec has ended the profile, and has failed.
    fn is_over_for(&self, thread: &ShimThread) -> bool {
        thread.epoch() != self.epoch()
    }

    /// On the area's stack.
    fn take_sample(&self, due: &Due<'_>, area: &mut WorkArea) -> Option<SampleId> {
        if self.is_over_for(due.thread) {
            return None;
        }
        let Some(recording) = recording::current().or_else(|| self.begin_recording(area)) else {
            if !self.is_over_for(due.thread) {
                self.count_lost_before_recording(weight_bytes(due, self.law()));
                due.thread.pending_is_done();
            }
            return None;
        };
        self.announce_in(due.thread, recording);
        let mut captured = match (due.walked, due.stack) {
            (Some(heap), Some(stack)) => self.take_given(heap, stack, area),
            _ => self.capture_call(due.thread, due.caller, due.walked, area, recording),
        };
        if due.has_own_frame && due.walked.is_none() {
            area.strip_own(&self.modules, &mut captured);
        }
        self.publish(due, area, recording, &captured)
    }

    /// The calling thread is sampled from now on, or not: malloc's blocks and time. Its nurseries have a switch of their
    /// own. False: the agent is off.
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

    /// Where the sample's block will be, if it is freed by its address.
    fn live_by_address<'a>(&'a self, due: &'a Due<'_>) -> Option<&'a LiveSamples> {
        if due.heap == HeapId::MALLOC {
            return Some(&self.live);
        }
        let heap = due.walked?;
        matches!(heap.kind, HeapKind::Malloc | HeapKind::External).then(|| self.live_of(heap))
    }

    fn publish(
        &self,
        due: &Due<'_>,
        area: &mut WorkArea,
        recording: &Recording,
        captured: &Captured,
    ) -> Option<SampleId> {
        let key = self.written_key(due.thread);
        let is_as_walked = is_as_walked(captured, due.walked) && !due.has_own_frame;
        let (shared, fresh) = area.told(captured, is_as_walked, key, due.thread.last_sample());
        if let Some(live) = self.live_by_address(due) {
            self.end_freed_past_us(due.thread, live, due.address, recording);
        }
        let words = SampleRecord::words(fresh.len());
        let mut noted = loop {
            match recording.reserve_on(due.thread, words, Priority::Sample) {
                Ok(noted) => break noted,
                Err(_) if self.wait_for_space(recording, captured.may_hold_loader_locks) => {}
                Err(_) => {
                    recording.count_lost(LostReason::RingFull, 1, weight_bytes(due, self.law()));
                    due.thread.pending_is_done();
                    return None;
                }
            }
        };
        let id = noted.reservation.position();
        let mut flags = captured.flags.with(due.flags);
        if due.heap == HeapId::MALLOC && !self.live.insert(&self.filter, due.address, id) {
            flags = flags.with(SampleFlags::UNTRACKED);
            recording.count_lost(LostReason::LiveTableFull, 1, weight_bytes(due, self.law()));
        }
        let record = SampleRecord {
            time_ns: clock::monotonic_ns(),
            address: due.address,
            size: due.size,
            thread: ThreadId(due.thread.number()),
            heap: due.heap,
            flags,
            points: u32::try_from(due.points.0).unwrap_or(u32::MAX),
            interval: due.interval.1,
            thread_bytes: due.thread.total_bytes(),
            shared: u32::try_from(shared).ok()?,
            type_id: due.type_id,
            frames: fresh,
        };
        record.encode_into(noted.reservation.words_mut())?;
        let used_words = noted.reservation.used_words();
        if self.is_over_for(due.thread) {
            drop(noted);
            if due.heap == HeapId::MALLOC {
                self.live.take_as(&self.filter, due.address, id);
            }
            return None;
        }
        noted.commit_and(RecordKind::Sample as u8, || due.thread.pending_is_done());
        due.thread.set_last_sample(id);
        let walk = if is_as_walked { captured.walk } else { 0 };
        area.remember(captured, shared, walk, key, due.thread.last_sample());
        let is_wanted_early = self.config().is_attended() || recording.is_asked();
        if is_wanted_early && recording.drain_state() == DrainState::None {
            self.set_drain_to_work(recording, captured.may_hold_loader_locks);
        }
        if recording.is_worth_draining(used_words) {
            let ring = &recording.ring;
            ring.raise_figure(Figure::MostRingWords as usize, used_words);
            self.set_drain_to_work(recording, captured.may_hold_loader_locks);
        }
        Some(SampleId(id))
    }

    pub(crate) fn wait_for_space(
        &self,
        recording: &Recording,
        may_hold_loader_locks: bool,
    ) -> bool {
        self.set_drain_to_work(recording, may_hold_loader_locks);
        recording.wait_for_space(self.config().on_full)
    }
}

/// A sample that is due.
pub(crate) struct Due<'a> {
    pub thread: &'a ShimThread,
    pub address: u64,
    /// As asked for.
    pub size: u64,
    pub points: SamplePoints,
    pub heap: HeapId,
    /// With its number in the profile.
    pub interval: (Option<Interval>, u16),
    pub flags: SampleFlags,
    /// The object's, 0 if it is not known.
    pub type_id: u32,
    pub caller: Caller,
    /// Whose frames are to be among the native ones.
    pub walked: Option<&'a Heap>,
    /// Its whole stack, if the machine has given it: frames of `walked`, leaf first.
    pub stack: Option<&'a [RawFrame]>,
    /// A frame of our operators may be on the stack: see `shim_allocation`.
    pub has_own_frame: bool,
}

/// Whether the frames are what the walk found: they are not if they were merged with a machine's, stripped of our own or cut
/// at the root.
pub(crate) fn is_as_walked(captured: &Captured, walked: Option<&Heap>) -> bool {
    !captured.is_merged && walked.is_none() && !captured.flags.contains(SampleFlags::TRUNCATED)
}

/// When the sample that the thread may be about to take began, if its time is to be taken. The first one makes the files as
/// well, which is no part of what samples cost.
fn start_of_timed(thread: &ShimThread, address: u64) -> Option<u64> {
    recording::current()?;
    // Of a machine's objects malloc counts no bytes; of malloc's blocks many have the same address.
    let number = thread.total_bytes().wrapping_add(address >> 3);
    is_timed(number).then(clock::monotonic_ns)
}

/// Whether the time of this one is to be taken: one in sixteen, whatever the pattern of the numbers that tell them apart.
pub(crate) fn is_timed(number: u64) -> bool {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    number.wrapping_mul(GOLDEN) >> 60 == 0
}

/// What the sample stands for, rounded down.
pub(crate) fn weight_bytes(due: &Due<'_>, law: GapLaw) -> u64 {
    let Some(interval) = due.interval.0 else {
        return 0;
    };
    // Saturates, which `as` does from floats.
    Weight::new(law, interval).bytes(due.size, due.points) as u64
}

// SAFETY: numbers and bytes may be zero. The unwinder's cache is behind a `LazyCache`, for which zero means absent.
unsafe impl Zeroed for WorkArea {
    fn forget(&mut self) {
        self.forget_all();
    }
}
