//! Records of virtual machines on the timeline: collections, phases, markers, readings.

use core::sync::atomic::Ordering;

use allocsample_record::{CodeRecord, GcRecord, MAX_NAME_BYTES, MarkerRecord, ValueRecord};

use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::hooks::heap::Heap;
use crate::os::clock;
use crate::publishing::Publisher;
use crate::recording;
use crate::switch::Switch;

impl Agent {
    /// Begins the profile if there is none, so that what happens before the first sample is in it too.
    pub fn begin_time_line(&self, thread: &ShimThread) {
        self.notice_fork();
        if recording::current().is_none() && self.switch.get() == Switch::On {
            // If it cannot begin there is nothing to tell of.
            self.announce(thread);
        }
    }

    /// Writes a collection that has ended, and the exact bytes up to it.
    pub fn write_gc(&self, record: &GcRecord<'_>) -> bool {
        if let Some(heap) = self.heaps.get(record.heap) {
            self.publisher.write_exact_bytes(heap);
        }
        self.publisher.push_or_wait(record)
    }

    /// Writes a change of compiled code, and keeps it for later profiles.
    pub fn write_code(&self, record: &CodeRecord) -> bool {
        self.capture.code_changed();
        self.publisher.define(record)
    }
}

impl Publisher {
    /// Writes the exact bytes of a heap, up to the last call of each thread.
    pub(crate) fn write_exact_bytes(&self, heap: &Heap) {
        self.write_value(
            heap,
            ValueRecord::EXACT_BYTES,
            heap.exact_bytes.load(Ordering::Relaxed),
        );
    }

    /// Writes a reading of a statistic.
    pub fn write_value(&self, heap: &Heap, statistic: u32, value: u64) -> bool {
        let record = ValueRecord {
            time_ns: clock::monotonic_ns(),
            heap: heap.id,
            statistic,
            value,
        };
        self.push_or_wait(&record)
    }

    /// Writes a named span, or a phase.
    pub fn write_marker(&self, record: &MarkerRecord<'_>) -> bool {
        let name = record.name.get(..MAX_NAME_BYTES).unwrap_or(record.name);
        let record = MarkerRecord { name, ..*record };
        self.push_or_wait(&record)
    }
}
