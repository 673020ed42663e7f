//! The ends of samples whose machine reports them by name, many in one call.
//!
//! Such a sample is in no table of live blocks: entering it there and finding it again costs as much as the rest of its end. Its
//! name is its id, with the epoch above it: names of an ended recording, or of a forked child's parent, mean nothing later.

use allocsample_record::{DeathsRecord, LostReason, SampleId, ThreadId};

use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::free::ID_MASK;
use crate::hooks::heap::Heap;
use crate::os::clock;
use crate::os::stack_room::make_room;
use crate::recording;

/// Samples of one record: enough that its head counts for little, and few enough for a small stack.
const MOST: usize = 64;

impl Agent {
    /// What the machine calls the sample.
    pub fn name_of(&self, heap: &Heap, id: SampleId) -> u64 {
        match heap.ends_by_id {
            true => self.epoch_bits() | id.0,
            false => id.0,
        }
    }

    /// The sample with this name; `None` if it is one of another epoch.
    pub fn sample_named(&self, heap: &Heap, name: u64) -> Option<SampleId> {
        if !heap.ends_by_id {
            return Some(SampleId(name));
        }
        (name & !ID_MASK == self.epoch_bits()).then_some(SampleId(name & ID_MASK))
    }

    /// Records that the objects with these names are dead, all at the present time. Waits for space.
    pub fn heap_died(&self, thread: &ShimThread, heap: &Heap, names: &[u64]) {
        make_room();
        self.notice_fork_on(thread);
        if !heap.ends_by_id || names.is_empty() || self.frees_are_over() {
            return;
        }
        let is_known = thread.epoch() == self.epoch();
        let thread = ThreadId(if is_known { thread.number() } else { 0 });
        let time_ns = clock::monotonic_ns();
        for names in names.chunks(MOST) {
            let mut samples = [0; MOST];
            let mut places = samples.iter_mut();
            for &name in names {
                if let Some(id) = self.sample_named(heap, name)
                    && let Some(place) = places.next()
                {
                    *place = id.0;
                    (self.setup.hooks().on_heap_freed)(name);
                }
            }
            let left = places.len();
            self.write_deaths(&DeathsRecord {
                time_ns,
                thread,
                samples: samples.get(..MOST - left).unwrap_or_default(),
            });
        }
    }

    fn write_deaths(&self, deaths: &DeathsRecord<'_>) {
        if deaths.samples.is_empty() {
            return;
        }
        let Some(recording) = recording::current() else {
            return;
        };
        if !self.publisher.push_waiting(recording, deaths) {
            let count = deaths.samples.len() as u64;
            recording.count_lost(LostReason::FreeRingFull, count, 0);
        }
    }
}
