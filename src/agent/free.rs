//! The slow path of free: the block may be a sample.

use allocsample_record::{
    Figure, FreeRecord, FreeStackRecord, LostReason, RecordKind, SampleId, ThreadId,
};
use allocsample_ring::Priority;

use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::blocks::BlocksOf;
use crate::capture::WorkArea;
use crate::os::clock;
use crate::os::stack_room::make_room;
use crate::recording::{self, Recording};
use crate::sample::{is_as_walked, is_timed};
use crate::shim::Caller;
use crate::switch::Switch;

impl Agent {
    /// Removes the block from the live samples. Returns 0 if it is none, otherwise its id plus one, and in the upper bits the
    /// epoch: if the epoch has changed when the block is freed (a signal handler has forked, and this is the child), the
    /// sample belongs to another profile.
    pub fn take_sampled(&self, address: u64) -> u64 {
        let taken = self.blocks.of_malloc().take(address);
        taken.map_or(0, |id| self.epoch_bits() | (id + 1))
    }

    /// Undoes [`Self::take_sampled`]: the block was not freed after all.
    pub fn put_back(&self, address: u64, taken: u64) {
        if let Some(id) = self.id_taken(taken)
            && !self.blocks.of_malloc().insert(address, id)
            && let Some(recording) = recording::current()
        {
            recording.count_lost(LostReason::LiveTableFull, 1, 0);
        }
    }

    /// The allocator has handed out this address. If it is still a live sample, that block was freed past us: through a pointer
    /// copied before an attach, or by another profiler's hook in a slot that was ours. Its life ends here. Left alone it
    /// would be live for ever, and every further sample at its address would take one more place in the table, which
    /// grows fourfold whenever the 16 places of an address are used up.
    ///
    /// In a slow path. Nobody waits here: a free without room in the ring is counted as lost.
    pub(crate) fn end_freed_past_us(
        &self,
        thread: &ShimThread,
        blocks: BlocksOf<'_>,
        address: u64,
        recording: &Recording,
    ) {
        let Some(id) = blocks.take(address) else {
            return;
        };
        let record = FreeRecord {
            time_ns: clock::monotonic_ns(),
            sample: SampleId(id),
            thread: ThreadId(thread.number()),
        };
        // Not noted on the thread: while an allocation is being sampled the noted record is the sample's.
        let is_written = recording.push(&record);
        if !is_written {
            recording.count_lost(LostReason::FreeRingFull, 1, 0);
        }
    }

    pub(crate) fn epoch_bits(&self) -> u64 {
        u64::from(self.epoch()) << ID_BITS
    }

    /// Decodes a result of [`Self::take_sampled`]. `None`: it is no sample, or one of another epoch.
    pub fn id_taken(&self, taken: u64) -> Option<u64> {
        let id = (taken & ID_MASK).checked_sub(1)?;
        (taken >> ID_BITS << ID_BITS == self.epoch_bits()).then_some(id)
    }

    /// Whether frees are no longer recorded. Finished: nobody reads them, and the program may have forbidden itself even the clock.
    /// Off: a detach has begun, and nothing is sampled any more. If frees were, blocks that a program replaces would end up missing.
    pub(crate) fn frees_are_over(&self) -> bool {
        matches!(self.switch.get(), Switch::Finished | Switch::Off)
    }

    /// Records the free of a sampled block. Any thread, also in a signal handler; waits for space only outside of slow paths.
    pub fn on_free(&self, thread: &ShimThread, taken: u64, caller: &Caller) {
        make_room();
        self.notice_fork_on(thread);
        if self.frees_are_over() {
            return;
        }
        let is_within = self.is_in_slow_path(thread, caller);
        let is_known = thread.epoch() == self.epoch() || self.joins_by_freeing(thread);
        let since_ns = clock::monotonic_ns();
        while let Written::NoRoom = self.write_free(thread, taken, is_known, since_ns, caller) {
            let recording = recording::current();
            let may_wait = |recording| !is_within && self.publisher.wait_for_space(recording, true);
            if !recording.is_some_and(may_wait) {
                self.publisher.count_lost(LostReason::FreeRingFull, 1, 0);
                break;
            }
        }
        if is_known && has_stack(taken & ID_MASK) {
            self.take_free(thread, taken, *caller);
        }
        if is_timed(taken & ID_MASK)
            && let Some(recording) = recording::current()
        {
            let elapsed_ns = clock::monotonic_ns().saturating_sub(since_ns);
            recording.count_time(Figure::TimedFrees, elapsed_ns);
        }
    }

    /// Records the death of a sample that a machine reports, on the thread that does so. Waits for space.
    pub(crate) fn write_death(&self, thread: &ShimThread, id: u64, time_ns: u64, caller: &Caller) {
        let taken = self.epoch_bits() | (id + 1);
        let is_known = thread.epoch() == self.epoch();
        while let Written::NoRoom = self.write_free(thread, taken, is_known, time_ns, caller) {
            let recording = recording::current();
            let has_room = |recording| self.publisher.wait_for_space(recording, true);
            if !recording.is_some_and(has_room) {
                self.publisher.count_lost(LostReason::FreeRingFull, 1, 0);
                return;
            }
        }
    }

    /// Writes the free record. If a signal handler forks meanwhile, the child finds memory in place of the ring.
    fn write_free(
        &self,
        thread: &ShimThread,
        taken: u64,
        is_known: bool,
        time_ns: u64,
        caller: &Caller,
    ) -> Written {
        let _at_a_record = thread.begin_record(caller);
        let (Some(id), Some(recording)) = (self.id_taken(taken), recording::current()) else {
            return Written::NotWanted;
        };
        let record = FreeRecord {
            time_ns,
            sample: SampleId(id),
            thread: ThreadId(if is_known { thread.number() } else { 0 }),
        };
        let reserved = recording.reserve_on(thread, FreeRecord::WORDS, Priority::Essential);
        let Ok(mut noted) = reserved else {
            return Written::NoRoom;
        };
        // As long as it says.
        let _ = record.encode_into(noted.reservation.words_mut());
        let used_words = noted.reservation.used_words();
        noted.commit(RecordKind::Free as u8);
        recording.nudge_if_due(used_words);
        Written::Yes
    }

    /// Lets a thread join that only frees. A thread that has ended does not join again for frees of its last destructors.
    fn joins_by_freeing(&self, thread: &ShimThread) -> bool {
        !thread.has_left() && self.switch.get() == Switch::On && self.announce(thread)
    }

    /// Writes the stack of a free. It is an extra: nobody waits for space.
    fn take_free(&self, thread: &ShimThread, taken: u64, caller: Caller) {
        let (slow_path, _) = thread.mute(0, &caller);
        if !slow_path.is_ours() || self.switch.get() != Switch::On {
            return;
        }
        let (Some(id), Some(recording)) = (self.id_taken(taken), recording::current()) else {
            return;
        };
        let _none_free = self.capture.in_area(thread, |area| {
            self.publish_free(thread, SampleId(id), caller, area, recording);
        });
    }

    /// Captures and writes the stack of a free, on the area's stack.
    fn publish_free(
        &self,
        thread: &ShimThread,
        sample: SampleId,
        caller: Caller,
        area: &mut WorkArea,
        recording: &Recording,
    ) {
        let walked = self.heaps.walked_in_free(thread);
        let mut captured = self.capture.call(thread, caller, walked, area, recording);
        let others = self.heaps.others_in_free(walked);
        (self.capture).add_frames_of_others(thread, others, area, &mut captured);
        if captured.depth == 0 {
            return;
        }
        let key = self.capture.written_key(thread);
        let is_as_walked = is_as_walked(&captured, walked);
        let (shared, frames) =
            area.delta_from_last(&captured, is_as_walked, key, thread.last_sample());
        let record = FreeStackRecord {
            sample,
            thread: ThreadId(thread.number()),
            // No more than `LARGEST_MAX_DEPTH`.
            shared: shared as u32,
            frames,
        };
        let words = FreeStackRecord::words(frames.len());
        let Ok(mut noted) = recording.reserve_on(thread, words, Priority::Sample) else {
            return;
        };
        // As long as it says.
        let _ = record.encode_into(noted.reservation.words_mut());
        noted.commit(RecordKind::FreeStack as u8);
    }
}

/// A sample's id is a position in the ring, in words: below this many bits for longer than any disk is written to. Above them
/// there is room for the lowest bits of an epoch.
const ID_BITS: u32 = 48;
pub(crate) const ID_MASK: u64 = (1 << ID_BITS) - 1;

/// Whether a record was written.
enum Written {
    Yes,
    /// The ring is full.
    NoRoom,
    /// The profile has ended.
    NotWanted,
}

/// Whether this free is recorded with its stack: one in eight, which shows the usual callers of free for an eighth of the
/// cost. The choice must be independent of other choices by the sample's number, such as [`is_timed`]. Uses the finalizer of
/// splitmix64 (Steele, Lea and Flood 2014), in which each bit depends on the whole number.
fn has_stack(taken: u64) -> bool {
    let mixed = (taken ^ taken >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed ^ mixed >> 31) & 7 == 0
}

#[cfg(test)]
mod tests;
