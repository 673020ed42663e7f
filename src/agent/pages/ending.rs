//! When a sampled page is no longer the program's, or is elsewhere.

use core::sync::atomic::Ordering;

use allocsample_record::{FreeRecord, LostReason, SampleId, ThreadId};

use crate::agent::Agent;
use crate::os::pagemap::Pagemap;
use crate::os::{self, clock};
use crate::recording::{self, Recording};

impl Agent {
    /// The program gives this memory back, or (`moved_to`) moves it elsewhere.
    pub fn on_pages(&self, start: u64, bytes: u64, moved_to: Option<u64>) {
        let pages = &self.pages;
        if pages.heap.get().is_none() {
            return;
        }
        let Some(recording) = recording::current() else {
            return;
        };
        let time_ns = clock::monotonic_ns();
        let range = start..start.saturating_add(bytes);
        pages.live.take_range(range, |address, id| {
            let moved_to = moved_to.map(|to| to.wrapping_add(address.wrapping_sub(start)));
            if !moved_to.is_some_and(|to| pages.live.insert(to, id)) {
                end_page(recording, id, time_ns);
            }
        });
    }

    /// Looks which sampled pages are still resident, unless the last look was a short time ago for what it took. The others end
    /// at `time_ns`. On the drain thread.
    pub fn look_at_pages(&self, recording: &Recording, time_ns: u64) {
        let begin_ns = clock::monotonic_ns();
        if begin_ns >= self.pages.next_look_ns.load(Ordering::Relaxed) {
            self.look_at_pages_now(recording, time_ns);
            let next_ns = next_look_ns(begin_ns, clock::monotonic_ns());
            self.pages.next_look_ns.store(next_ns, Ordering::Relaxed);
        }
    }

    /// The same at any time. Any thread that may make system calls.
    pub(crate) fn look_at_pages_now(&self, recording: &Recording, time_ns: u64) {
        let pages = &self.pages;
        if pages.heap.get().is_none() || os::is_filtered() {
            return;
        }
        let Some(pagemap) = Pagemap::open() else {
            return;
        };
        for page in pages.live.all() {
            let Some(state) = pagemap.state(page.address) else {
                return;
            };
            // The page of zeros is nobody's; but what a process shares with its child after a fork is in the memory of both.
            let is_resident = state.is_anonymous() && (page.is_confirmed || state.is_exclusive());
            if !is_resident {
                if pages.live.take(page.address) == Some(page.id) {
                    end_page(recording, page.id, time_ns);
                }
            } else if !page.is_confirmed {
                pages.live.confirm(page);
            }
        }
    }
}

pub(super) fn end_page(recording: &Recording, id: u64, time_ns: u64) {
    let record = FreeRecord {
        time_ns,
        sample: SampleId(id),
        thread: ThreadId(0),
    };
    if !recording.push(&record) {
        recording.count_lost(LostReason::FreeRingFull, 1, 0);
    }
}

/// When the look after this one is due: looks take a hundredth of the time at most.
pub(super) fn next_look_ns(begin_ns: u64, end_ns: u64) -> u64 {
    end_ns + 100 * (end_ns - begin_ns)
}
