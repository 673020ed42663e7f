//! Collections on request (`allocsample ctl PID gc`).
//!
//! The agent does not run a collection itself: the heap's callback notes the request, and the machine collects at a safe
//! point. Its answer goes into the ring's first page, where the command waits for it, and onto the timeline.

use core::sync::atomic::{AtomicU64, Ordering};

use allocsample_record::MarkerRecord;
use allocsample_ring::Collecting;

use crate::agent::Agent;
use crate::hooks::heap::Heap;
use crate::os::clock;
use crate::recording::{self, Recording};

/// A request that the heap has not answered yet.
pub(crate) struct Wanted {
    /// Generation of the request; 0 for none.
    generation: AtomicU64,
    since_ns: AtomicU64,
}

impl Wanted {
    /// Nothing.
    pub const fn new() -> Self {
        Self {
            generation: AtomicU64::new(0),
            since_ns: AtomicU64::new(0),
        }
    }

    /// Forgets the request, in a forked child: the command waits for the parent.
    pub fn forget(&self) {
        self.generation.store(0, Ordering::Relaxed);
    }
}

impl Agent {
    /// Asks each machine for a collection of its heap.
    pub(crate) fn ask_to_collect(&self, recording: &Recording, generation: u64) {
        for heap in self.heaps.all().filter(|heap| !heap.is_gone()) {
            let tell = |state| {
                recording
                    .ring
                    .set_collecting(heap.id.0.into(), generation, state);
            };
            let Some(collect) = heap.callbacks.collect else {
                tell(Collecting::Impossible);
                continue;
            };
            heap.wanted
                .since_ns
                .store(clock::monotonic_ns(), Ordering::Relaxed);
            // Release: pairs with `heap_collected`. Before the call, since the answer may come on another thread meanwhile.
            heap.wanted.generation.store(generation, Ordering::Release);
            tell(Collecting::Asked);
            // SAFETY: the machine's function, with what it wants to be passed; the header says where it is called.
            if unsafe { collect(heap.callbacks.user) } < 0 {
                heap.wanted.forget();
                tell(Collecting::Declined);
            }
        }
    }

    /// Records that the machine has collected on request, or declined. False: there was no request.
    pub fn heap_collected(&self, heap: &Heap, is_done: bool) -> bool {
        let generation = heap.wanted.generation.swap(0, Ordering::AcqRel);
        if generation == 0 {
            return false;
        }
        let (state, name) = match is_done {
            true => (Collecting::Done, &b"collection on request"[..]),
            false => (
                Collecting::Declined,
                &b"collection on request: declined"[..],
            ),
        };
        self.publisher.write_marker(&MarkerRecord {
            heap: heap.id,
            is_phase: false,
            begin_ns: heap.wanted.since_ns.load(Ordering::Relaxed),
            end_ns: clock::monotonic_ns(),
            name,
        });
        // Last: whoever waits for it then reads the profile.
        if let Some(recording) = recording::current() {
            recording
                .ring
                .set_collecting(heap.id.0.into(), generation, state);
        }
        true
    }
}
