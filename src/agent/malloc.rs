//! The slow path of malloc: an allocation has borrowed from its thread's counter.

use allocsample_record::{HeapId, LostReason, SampleFlags, SampleId};

use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::recording;
use crate::sample::{Due, start_of_timed, weight_bytes};
use crate::shim::Allocation;
use crate::switch::Switch;

impl Agent {
    /// Handles an allocation that has borrowed from the counter. Any thread, also in a signal handler.
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
                owner: None,
                walked: self.heaps.walked_in_malloc(thread),
                stack: None,
                has_own_frame: allocation.has_own_frame != 0,
                time_ns: None,
            };
            sampled = match recording::current() {
                Some(recording) if !self.accounting.selection.has_size(due.size) => {
                    recording.count_lost(
                        LostReason::LeftOut,
                        1,
                        weight_bytes(&due, self.setup.law()),
                    );
                    None
                }
                _ => self.take_and_report(&due, since_ns),
            };
            thread.pending_is_done();
        }
        self.begin_if_asked(thread);
        self.apply_requests(thread, &slow_path);
        sampled
    }

    /// Whether an allocation on a muted thread needs a slow path: the one that muted it is gone, and the grant does not
    /// suffice.
    #[cold]
    #[inline(never)]
    fn goes_on(&self, thread: &ShimThread, allocation: &Allocation) -> bool {
        if self.is_in_slow_path(thread, &allocation.caller) {
            thread.count_muted(allocation.charged);
            return false;
        }
        !thread.charge(allocation.charged)
    }
}

#[cfg(test)]
mod tests;
