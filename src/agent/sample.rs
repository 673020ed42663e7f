//! Takes a sample: captures the stack, writes the record to the ring, adds the block to the live table.
//!
//! Samples of malloc come from `malloc.rs`, those of virtual machines' heaps from `hooks/nursery.rs`.

use allocsample_record::{
    Figure, HeapId, HeapKind, LostReason, RecordKind, SampleFlags, SampleId, SampleRecord, ThreadId,
};
use allocsample_ring::Priority;
use allocsample_sampling::{GapLaw, Interval, SamplePoints, Weight};

use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::blocks::BlocksOf;
use crate::capture::WorkArea;
use crate::config::OnFull;
use crate::hooks::Heap;
use crate::os::{self, clock};
use crate::recording::{self, DrainState, Recording};
use crate::shim::Caller;
use crate::stack::Captured;
use crate::stack::vm::RawFrame;
use crate::switch::Switch;

impl Agent {
    /// An object of a virtual machine's heap is a sample. Returns its id, unless it was lost (which is counted).
    pub(crate) fn on_heap_sample(&self, due: &Due<'_>) -> Option<SampleId> {
        self.notice_fork_on(due.thread);
        if self.switch.get() != Switch::On {
            return None;
        }
        if self.is_in_slow_path(due.thread, &due.caller) {
            self.publisher.count_lost(
                LostReason::Reentered,
                1,
                weight_bytes(due, self.setup.law()),
            );
            return None;
        }
        let since_ns = start_of_timed(due.thread, due.address);
        let _slow_path = self.enter(due.thread, 0, &due.caller)?;
        self.take_and_report(due, since_ns)
    }

    /// Takes the sample and reports it to listeners. `since_ns` is the time at which it began, if it is timed.
    pub(crate) fn take_and_report(&self, due: &Due<'_>, since_ns: Option<u64>) -> Option<SampleId> {
        let id = self.take_when_free(due);
        if let (Some(since_ns), Some(recording)) = (since_ns, recording::current()) {
            let elapsed_ns = clock::monotonic_ns().saturating_sub(since_ns);
            recording.count_time(Figure::TimedSamples, elapsed_ns);
        }
        let id = id?;
        if (self.setup.hooks().has_listener)() {
            let weight = weight_bytes(due, self.setup.law());
            // Its end is reported by the same number.
            let address = match due.owner {
                Some(heap) if heap.ends_by_id => self.name_of(heap, id),
                _ => due.address,
            };
            (self.setup.hooks().on_sampled)(address, due.size, weight);
        }
        Some(id)
    }

    fn take_when_free(&self, due: &Due<'_>) -> Option<SampleId> {
        /// Time to wait for a work area if samples may wait: there may be more threads than areas.
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
                .capture
                .in_area(due.thread, |area| self.take_sample(due, area));
            if let Some(taken) = taken {
                return taken;
            }
            if waited_ms < patience_ms {
                clock::sleep_ms(1);
            }
        }
        self.publisher
            .count_lost(LostReason::NoMemory, 1, weight_bytes(due, self.setup.law()));
        None
    }

    /// Whether the profile that the slow path belongs to has ended: a signal handler has forked and this is the child, or a
    /// failed exec has ended the profile.
    fn is_over_for(&self, thread: &ShimThread) -> bool {
        thread.epoch() != self.epoch()
    }

    /// Captures and publishes the sample, on the area's stack.
    fn take_sample(&self, due: &Due<'_>, area: &mut WorkArea) -> Option<SampleId> {
        if self.is_over_for(due.thread) {
            return None;
        }
        let Some(recording) = recording::current().or_else(|| self.begin_recording(area)) else {
            if !self.is_over_for(due.thread) {
                self.publisher
                    .count_lost_before_recording(weight_bytes(due, self.setup.law()));
                due.thread.pending_is_done();
            }
            return None;
        };
        self.announce_in(due.thread, recording);
        let mut captured = match (due.walked, due.stack) {
            (Some(heap), Some(stack)) => self.capture.given(heap, stack, area),
            _ => self
                .capture
                .call(due.thread, due.caller, due.walked, area, recording),
        };
        if due.stack.is_none() {
            let others = self.heaps.others_in_malloc(due.walked);
            (self.capture).add_frames_of_others(due.thread, others, area, &mut captured);
        }
        if due.has_own_frame && due.walked.is_none() {
            self.capture.strip_own(area, &mut captured);
        }
        if let Some(allocator) = due.owner.filter(|heap| heap.kind == HeapKind::Allocator) {
            area.strip_leaf(&mut captured, |pc| allocator.is_interpreter(pc));
        }
        self.publish(due, area, recording, &captured)
    }

    /// The blocks that the sample belongs to, if it is freed by its address.
    fn blocks_of<'a>(&'a self, due: &'a Due<'_>) -> Option<BlocksOf<'a>> {
        if due.heap == HeapId::MALLOC {
            return Some(self.blocks.of_malloc());
        }
        let heap = due.owner?;
        let is_by_address = matches!(
            heap.kind,
            HeapKind::Malloc | HeapKind::External | HeapKind::Allocator
        );
        (is_by_address && !heap.ends_by_id).then(|| self.blocks.of(heap))
    }

    fn publish(
        &self,
        due: &Due<'_>,
        area: &mut WorkArea,
        recording: &Recording,
        captured: &Captured,
    ) -> Option<SampleId> {
        let key = self.capture.written_key(due.thread);
        let is_as_walked = is_as_walked(captured, due.walked) && !due.has_own_frame;
        let (shared, fresh) =
            area.delta_from_last(captured, is_as_walked, key, due.thread.last_sample());
        if let Some(blocks) = self.blocks_of(due) {
            self.end_freed_past_us(due.thread, blocks, due.address, recording);
        }
        let words = SampleRecord::words(fresh.len());
        let mut noted = loop {
            match recording.reserve_on(due.thread, words, Priority::Sample) {
                Ok(noted) => break noted,
                Err(_)
                    if self
                        .publisher
                        .wait_for_space(recording, captured.may_hold_loader_locks) => {}
                Err(_) => {
                    recording.count_lost(
                        LostReason::RingFull,
                        1,
                        weight_bytes(due, self.setup.law()),
                    );
                    due.thread.pending_is_done();
                    return None;
                }
            }
        };
        let id = noted.reservation.position();
        let mut flags = captured.flags.with(due.flags);
        if due.heap == HeapId::MALLOC && !self.blocks.of_malloc().insert(due.address, id) {
            flags = flags.with(SampleFlags::UNTRACKED);
            recording.count_lost(
                LostReason::LiveTableFull,
                1,
                weight_bytes(due, self.setup.law()),
            );
        }
        let record = SampleRecord {
            time_ns: due.time_ns.unwrap_or_else(clock::monotonic_ns),
            address: due.address,
            size: due.size,
            thread: ThreadId(key.walk.thread),
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
                self.blocks.of_malloc().take_as(due.address, id);
            }
            return None;
        }
        noted.commit_and(RecordKind::Sample as u8, || due.thread.pending_is_done());
        due.thread.set_last_sample(id);
        let walk = if is_as_walked { captured.walk } else { 0 };
        area.note_written(captured, shared, walk, key, due.thread.last_sample());
        let is_wanted_early = recording.drain_state() == DrainState::None
            && (self.config().is_attended() || recording.is_asked());
        if is_wanted_early || recording.is_module_awaited() {
            self.publisher
                .set_drain_to_work(recording, captured.may_hold_loader_locks);
        }
        if recording.is_worth_draining(used_words) {
            let ring = &recording.ring;
            ring.raise_figure(Figure::MostRingWords as usize, used_words);
            self.publisher
                .set_drain_to_work(recording, captured.may_hold_loader_locks);
        }
        Some(SampleId(id))
    }
}

/// A sample that is due.
pub(crate) struct Due<'a> {
    pub thread: &'a ShimThread,
    pub address: u64,
    /// Requested size in bytes.
    pub size: u64,
    pub points: SamplePoints,
    pub heap: HeapId,
    /// The interval, with its number in the profile.
    pub interval: (Option<Interval>, u16),
    pub flags: SampleFlags,
    /// Type of the object; 0 if it is not known.
    pub type_id: u32,
    pub caller: Caller,
    /// The heap that `heap` is the number of; none for malloc, and for one that is gone.
    pub owner: Option<&'a Heap>,
    /// The heap of the virtual machine that adds its frames to the native ones.
    pub walked: Option<&'a Heap>,
    /// The whole stack, if the virtual machine passed it: frames of `walked`, leaf first.
    pub stack: Option<&'a [RawFrame]>,
    /// A frame of our operators may be on the stack: see `shim_allocation`.
    pub has_own_frame: bool,
    /// When it was allocated, CLOCK_MONOTONIC in nanoseconds; when the record is written if `None`.
    pub time_ns: Option<u64>,
}

/// Whether the frames are what the walk found: they are not if they were merged with a machine's, stripped of our own or cut
/// at the root.
pub(crate) fn is_as_walked(captured: &Captured, walked: Option<&Heap>) -> bool {
    !captured.is_merged && walked.is_none() && !captured.flags.contains(SampleFlags::TRUNCATED)
}

/// Returns the present time if the sample that may follow is to be timed. The first sample is not: it also creates the files.
pub(crate) fn start_of_timed(thread: &ShimThread, address: u64) -> Option<u64> {
    recording::current()?;
    // Of a machine's objects malloc counts no bytes; of malloc's blocks many have the same address.
    let number = thread.total_bytes().wrapping_add(address >> 3);
    is_timed(number).then(clock::monotonic_ns)
}

/// Whether the sample with this number is timed: one in sixteen, whatever the pattern of the numbers.
pub(crate) fn is_timed(number: u64) -> bool {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    number.wrapping_mul(GOLDEN) >> 60 == 0
}

/// The bytes that the sample stands for, rounded down.
pub(crate) fn weight_bytes(due: &Due<'_>, law: GapLaw) -> u64 {
    let Some(interval) = due.interval.0 else {
        return 0;
    };
    // Saturates, which `as` does from floats.
    Weight::new(law, interval).bytes(due.size, due.points) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(thread: &ShimThread, size: u64, interval_bytes: u64, points: u64) -> Due<'_> {
        Due {
            thread,
            address: 0x1000,
            size,
            points: SamplePoints(points),
            heap: HeapId::MALLOC,
            interval: (Interval::new(interval_bytes), 0),
            flags: SampleFlags::default(),
            type_id: 0,
            caller: Caller::UNKNOWN,
            owner: None,
            walked: None,
            stack: None,
            has_own_frame: false,
            time_ns: None,
        }
    }

    /// Addresses and totals grow by multiples of powers of two: those must not be all timed, or none of them.
    #[test]
    fn one_sample_in_sixteen_is_timed_at_any_stride() {
        const SAMPLES: u64 = 16_000;
        for stride in [1, 2, 8, 16, 64, 4096, 1 << 20, 24, 1000, 524_288 + 8] {
            let timed = (0..SAMPLES).filter(|n| is_timed(n * stride)).count() as u64;
            // The multiplier spreads a progression evenly: no stride here is off by more than a third.
            let expected = SAMPLES / 16;
            assert!(timed.abs_diff(expected) < expected / 3, "{stride}: {timed}");
        }
    }

    #[test]
    fn a_sample_weighs_its_size_over_the_chance_to_be_taken() {
        // SAFETY: zero is the right initial value.
        let thread: ShimThread = unsafe { core::mem::zeroed() };
        // size / (1 - exp(-size / interval)), rounded down: 1 byte stands for half a byte more than the interval.
        let weight = |size| weight_bytes(&due(&thread, size, 1000, 1), GapLaw::Poisson);
        assert_eq!(weight(1), 1000);
        assert_eq!(weight(1000), 1581);
        assert_eq!(weight(100_000), 100_000);
    }

    #[test]
    fn a_sample_without_an_interval_weighs_nothing() {
        // SAFETY: zero is the right initial value.
        let thread: ShimThread = unsafe { core::mem::zeroed() };
        let mut due = due(&thread, 64, 1000, 1);
        due.interval.0 = None;
        assert_eq!(weight_bytes(&due, GapLaw::Poisson), 0);
    }

    #[test]
    fn only_whole_unmerged_stacks_are_as_walked() {
        let whole = Captured::default();
        assert!(is_as_walked(&whole, None));
        let merged = Captured {
            is_merged: true,
            ..Captured::default()
        };
        assert!(!is_as_walked(&merged, None));
        let cut = Captured {
            flags: SampleFlags::TRUNCATED,
            ..Captured::default()
        };
        assert!(!is_as_walked(&cut, None));
    }
}
