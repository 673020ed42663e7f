//! The slow path of free: the block may be a sample.

use allocsample_record::{
    Figure, FreeRecord, FreeStackRecord, LostReason, RecordKind, SampleId, ThreadId,
};
use allocsample_ring::Priority;

use crate::agent::{Agent, WorkArea};
use crate::os::clock;
use crate::os::stack_room::make_room;
use crate::os::thread::{Caller, ShimThread};
use crate::recording::{self, Recording};
use crate::sample::{is_as_walked, is_timed};
use crate::switch::Switch;

impl Agent {
    /// Takes the block out of the live samples; its id plus one, or 0.
    pub fn take_sampled(&self, address: u64) -> u64 {
        self.live.take(&self.filter, address).map_or(0, |id| id + 1)
    }

    /// The block was not freed after all.
    pub fn put_back(&self, address: u64, taken: u64) {
        if !self.live.insert(&self.filter, address, taken - 1)
            && let Some(recording) = recording::current()
        {
            recording.count_lost(LostReason::LiveTableFull, 1, 0);
        }
    }

    /// A sampled block has ended. Any thread, also in a signal handler; waits for space only outside of slow paths.
    pub fn on_free(&self, thread: &ShimThread, taken: u64, caller: &Caller) {
        make_room();
        let epoch = self.epoch();
        self.notice_fork();
        let Some(recording) = recording::current().filter(|_| epoch == self.epoch()) else {
            return;
        };
        if self.switch.get() == Switch::Finished {
            // Nobody reads it any more, and the program may have forbidden itself even the time.
            return;
        }
        let is_known = thread.epoch() == epoch || self.joins_by_freeing(thread);
        let record = FreeRecord {
            time_ns: clock::monotonic_ns(),
            sample: SampleId(taken - 1),
            thread: ThreadId(if is_known { thread.number() } else { 0 }),
        };
        loop {
            if recording.push(RecordKind::Free, FreeRecord::WORDS, |words| {
                record.encode_into(words)
            }) {
                if is_known && has_stack(taken) {
                    self.take_free(thread, record.sample, *caller, recording);
                }
                break;
            }
            if thread.is_muted() || !self.wait_for_space(recording, true) {
                recording.count_lost(LostReason::FreeRingFull, 1, 0);
                break;
            }
        }
        if is_timed(taken) {
            let elapsed_ns = clock::monotonic_ns().saturating_sub(record.time_ns);
            recording.count_time(Figure::TimedFrees, elapsed_ns);
        }
    }

    /// A thread that has never allocated while the agent was on frees for others; it joins now. One that has ended does not
    /// come back for what its last destructors free.
    fn joins_by_freeing(&self, thread: &ShimThread) -> bool {
        !thread.has_left() && self.switch.get() == Switch::On && self.announce(thread)
    }

    /// Writes where a block was freed: no more than a help to the reader, for which nobody waits.
    fn take_free(
        &self,
        thread: &ShimThread,
        sample: SampleId,
        caller: Caller,
        recording: &Recording,
    ) {
        if thread.is_muted() || self.switch.get() != Switch::On {
            return;
        }
        let (_muted, _) = thread.mute(0);
        let _none_free = self.areas.run(thread.last_area(), |area| {
            self.publish_free(thread, sample, caller, area, recording);
        });
    }

    /// On the area's stack.
    fn publish_free(
        &self,
        thread: &ShimThread,
        sample: SampleId,
        caller: Caller,
        area: &mut WorkArea,
        recording: &Recording,
    ) {
        let walked = self.heaps.walked_in_free(thread);
        let captured = self.capture_call(thread, caller, walked, area, recording);
        if captured.depth == 0 {
            return;
        }
        let key = self.written_key(thread);
        let is_as_walked = is_as_walked(&captured, walked);
        let (shared, frames) = area.told(&captured, is_as_walked, key, thread.last_sample());
        let record = FreeStackRecord {
            sample,
            thread: ThreadId(thread.number()),
            // No more than `LARGEST_MAX_DEPTH`.
            shared: shared as u32,
            frames,
        };
        let words = FreeStackRecord::words(frames.len());
        let Ok(mut reservation) = recording.ring.reserve(words, Priority::Sample) else {
            return;
        };
        // As long as it says.
        let _ = record.encode_into(reservation.words_mut());
        reservation.commit(RecordKind::FreeStack as u8);
    }
}

/// Whether the stack of this free is taken: one in eight, which tells what usually frees the blocks of a site for an eighth
/// of what all would cost. Nothing else may depend on the sample's number in the same way, [`is_timed`] least of all. The
/// finish of splitmix64 (Steele, Lea and Flood 2014), of which each bit depends on all of the number.
fn has_stack(taken: u64) -> bool {
    let mixed = (taken ^ taken >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed ^ mixed >> 31) & 7 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of samples are positions in the ring, whose distances repeat.
    #[test]
    fn one_in_eight_has_a_stack_whatever_the_pattern_of_the_numbers() {
        const COUNT: u32 = 80_000;
        for stride in 1..200 {
            let taken = (0..u64::from(COUNT)).map(|at| 1 + stride * at);
            let with_stack = taken.filter(|&taken| has_stack(taken)).count() as f64;
            // Five standard deviations of a fair draw.
            let expected = f64::from(COUNT) / 8.0;
            let bound = 5.0 * (expected * 7.0 / 8.0).sqrt();
            assert!(
                (with_stack - expected).abs() < bound,
                "{stride}: {with_stack}"
            );
        }
    }
}
