//! mmap and its kin: all calls, with the stack of those that map or discard memory.
//!
//! They come from inside allocators, which may hold locks of their own: nothing here starts a thread or waits. A call without
//! room in the ring, or beyond the rate that a program may have for long, is counted and not recorded.

use core::sync::atomic::{AtomicU64, Ordering};

use allocsample_record::{
    Figure, Mapped, MappingChange, MappingRecord, RecordKind, SampleFlags, ThreadId,
};
use allocsample_ring::Priority;

use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::capture::WorkArea;
use crate::os::stack_room::make_room;
use crate::os::{clock, memory, process};
use crate::recording::{self, Recording};
use crate::shim::{Caller, KeptMapping, MappingCall};
use crate::switch::Switch;

/// So many calls a program may make at once. Those that were measured make 17 to 2,600 in a run.
const BURST: u64 = 8_192;
/// And one more in each such time.
const PERIOD_NS: u64 = 10_000_000;

/// A limit of the rate of calls: [`BURST`] at once, and one more in every [`PERIOD_NS`].
struct Limit {
    /// When the calls so far would have been made at the lasting rate: the "theoretical arrival time" of the generic cell rate
    /// algorithm (ITU-T I.371).
    due_ns: AtomicU64,
}

impl Limit {
    const fn new() -> Self {
        Self {
            due_ns: AtomicU64::new(0),
        }
    }

    /// Whether one more call may be recorded at this time.
    fn admits(&self, now_ns: u64) -> bool {
        let next = |due_ns: u64| {
            let from_ns = due_ns.max(now_ns);
            (from_ns - now_ns < BURST * PERIOD_NS).then_some(from_ns + PERIOD_NS)
        };
        self.due_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .is_ok()
    }
}

/// Which calls are recorded.
pub(crate) struct Mappings {
    /// For calls that change what is mapped or usable.
    changes: Limit,
    /// For calls that discard memory. Allocators make many, and must not use up the limit of the others.
    discards: Limit,
    /// Calls that were not recorded before there was a recording.
    not_recorded: AtomicU64,
    /// Bytes that were mapped before there was a recording.
    mapped_bytes: AtomicU64,
}

impl Mappings {
    /// None so far.
    pub const fn new() -> Self {
        Self {
            changes: Limit::new(),
            discards: Limit::new(),
            not_recorded: AtomicU64::new(0),
            mapped_bytes: AtomicU64::new(0),
        }
    }

    /// In a forked child, which has no recording yet.
    pub fn restart(&self) {
        self.not_recorded.store(0, Ordering::Relaxed);
        self.mapped_bytes.store(0, Ordering::Relaxed);
    }

    /// Writes what could not be recorded before there was a recording.
    pub fn begin_recording(&self, recording: &Recording) {
        let before = self.not_recorded.swap(0, Ordering::Relaxed);
        let number = Figure::MappingsNotRecorded as usize;
        recording.ring.add_figure(number, before);
    }
}

impl Agent {
    /// mmap or one of its kin was called, or is about to unmap. Any thread, also in a signal handler; keeps nothing of `call`.
    pub fn on_mapping(&self, thread: &ShimThread, call: &MappingCall, caller: Caller) {
        let Some(change) = MappingChange::from_number(call.change as u8) else {
            return;
        };
        make_room();
        self.notice_fork_on(thread);
        if change == MappingChange::Unmap {
            self.on_pages(call.start, call.bytes, None);
        }
        let is_stopped = self.accounting.control.force().interval.is_none();
        let is_wanted =
            self.switch.get() == Switch::On && self.config().records_mappings && !is_stopped;
        // While the shim calls functions of the program, what they map is the program's.
        let is_in_shim = thread.is_muted_by_the_shim_alone();
        if !is_wanted || thread.is_of_the_agent() && !is_in_shim {
            return;
        }
        let is_recording = recording::current().is_some();
        let begins = !is_recording && !is_in_shim && self.is_worth_a_recording(change, call.bytes);
        if !is_recording && !begins {
            return;
        }
        let time_ns = clock::monotonic_ns();
        let limit = match change {
            MappingChange::Discard => &self.mappings.discards,
            _ => &self.mappings.changes,
        };
        if !limit.admits(time_ns) {
            return self.count_mapping_not_recorded();
        }
        let mapped = Mapped {
            time_ns,
            start: call.start,
            bytes: call.bytes,
            thread: ThreadId(0),
            change,
            protection: call.protection as u8,
            flags: call.flags,
            stack_flags: SampleFlags::default(),
        };
        if change.has_stack() && self.record_with_stack(thread, mapped, caller) {
            return;
        }
        match recording::current() {
            Some(recording) => self.record_without_stack(thread, mapped, caller, recording),
            None => self.count_mapping_not_recorded(),
        }
    }

    /// Writes the calls that were made before there was a recording, as older than all others; but those whose caller is not
    /// known.
    pub(crate) fn write_kept_mappings(&self, area: &mut WorkArea, recording: &Recording) {
        if !self.config().records_mappings {
            return;
        }
        let is_alone = process::threads() == 1;
        let kept = |index| (self.setup.hooks().kept_mapping)(index);
        for KeptMapping { mapping, caller } in (0..).map_while(kept) {
            let change = MappingChange::from_number(mapping.change as u8);
            let Some(change) = change.filter(|_| mapping.bytes > 0) else {
                continue;
            };
            let capture = &self.capture;
            if !capture.announce_module_of(caller, is_alone, area, recording) {
                continue;
            }
            let mapped = Mapped {
                protection: mapping.protection as u8,
                flags: mapping.flags,
                change,
                ..Mapped::own(0, mapping.start, mapping.bytes)
            };
            write_with_frames(mapped, &[caller], recording);
        }
    }

    /// Whether a process without a sample shall have a profile for this: one interval was mapped in all, and samples are taken.
    fn is_worth_a_recording(&self, change: MappingChange, bytes: u64) -> bool {
        let interval = self.accounting.control.force().interval;
        // What a thread touches of its stack is a small part.
        if !change.maps() || change.is_own() || change.is_thread() {
            return false;
        }
        let mapped_bytes = &self.mappings.mapped_bytes;
        let before = mapped_bytes.fetch_add(bytes, Ordering::Relaxed);
        interval.is_some_and(|interval| before.saturating_add(bytes) >= interval.bytes())
    }

    fn count_mapping_not_recorded(&self) {
        match recording::current() {
            Some(recording) => {
                let number = Figure::MappingsNotRecorded as usize;
                recording.ring.add_figure(number, 1);
            }
            None => {
                self.mappings.not_recorded.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// False: the thread is in a slow path, or there is no memory to work in.
    fn record_with_stack(&self, thread: &ShimThread, mapped: Mapped, caller: Caller) -> bool {
        if thread.is_muted_by_the_shim_alone() {
            // It is in no slow path, and no signal handler begins one on it. Its counters stay as they are, since the shim restores
            // them.
            let has_joined = thread.epoch() == self.epoch() && recording::current().is_some();
            let recorded = has_joined.then(|| {
                self.capture.in_area(thread, |area| {
                    self.capture_mapping(thread, mapped, caller, area)
                })
            });
            return recorded.flatten().unwrap_or(false);
        }
        if self.is_in_slow_path(thread, &caller) {
            return false;
        }
        let Some((_slow_path, _)) = self.enter(thread, 0, &caller) else {
            return false;
        };
        let recorded = self.capture.in_area(thread, |area| {
            self.capture_mapping(thread, mapped, caller, area)
        });
        recorded.unwrap_or(false)
    }

    /// Captures and writes a call, on the area's stack. False: it was neither written nor counted.
    fn capture_mapping(
        &self,
        thread: &ShimThread,
        mapped: Mapped,
        caller: Caller,
        area: &mut WorkArea,
    ) -> bool {
        let Some(recording) = recording::current().or_else(|| self.begin_recording(area)) else {
            return false;
        };
        self.announce_in(thread, recording);
        let walked = self.heaps.walked_in_malloc(thread);
        let mut captured = (self.capture).call(thread, caller, walked, area, recording);
        let others = self.heaps.others_in_malloc(walked);
        (self.capture).add_frames_of_others(thread, others, area, &mut captured);
        if walked.is_none() {
            // The entry, and the way from it to here.
            self.capture.strip_own(area, &mut captured);
        }
        let key = self.capture.written_key(thread);
        // Our own frames were taken off what the walk found.
        const IS_AS_WALKED: bool = false;
        let (shared, frames) =
            area.delta_from_last(&captured, IS_AS_WALKED, key, thread.last_sample());
        let record = MappingRecord {
            mapped: Mapped {
                thread: ThreadId(thread.number()),
                stack_flags: captured.flags,
                ..mapped
            },
            // No more than `LARGEST_MAX_DEPTH`.
            shared: shared as u32,
            frames,
        };
        let words = MappingRecord::words(frames.len());
        let Ok(mut noted) = recording.reserve_on(thread, words, Priority::Sample) else {
            self.count_mapping_not_recorded();
            return true;
        };
        // As long as it says.
        let _ = record.encode_into(noted.reservation.words_mut());
        let used_words = noted.reservation.used_words();
        noted.commit(RecordKind::Mapping as u8);
        recording.nudge_if_due(used_words);
        true
    }

    fn record_without_stack(
        &self,
        thread: &ShimThread,
        mapped: Mapped,
        caller: Caller,
        recording: &Recording,
    ) {
        let _at_a_record = thread.begin_record(&caller);
        let record = MappingRecord {
            mapped: Mapped {
                thread: ThreadId(match thread.epoch() == self.epoch() {
                    true => thread.number(),
                    false => 0,
                }),
                ..mapped
            },
            shared: 0,
            frames: &[],
        };
        let words = MappingRecord::words(0);
        let Ok(mut noted) = recording.reserve_on(thread, words, Priority::Essential) else {
            return self.count_mapping_not_recorded();
        };
        // As long as it says.
        let _ = record.encode_into(noted.reservation.words_mut());
        let used_words = noted.reservation.used_words();
        noted.commit(RecordKind::Mapping as u8);
        recording.nudge_if_due(used_words);
    }
}

/// Writes which mappings are the agent's own, at the end: a short program has no drain thread, which does it as it goes. A
/// reader takes them for older than all calls.
pub(crate) fn write_own_mappings(recording: &Recording) {
    for (start, bytes) in memory::own_ranges().filter(|(_, bytes)| *bytes > 0) {
        write_with_frames(Mapped::own(0, start, bytes), &[], recording);
    }
}

fn write_with_frames(mapped: Mapped, frames: &[u64], recording: &Recording) {
    let record = MappingRecord {
        mapped,
        shared: 0,
        frames,
    };
    let words = MappingRecord::words(frames.len());
    let Ok(mut reservation) = recording.ring.reserve(words, Priority::Essential) else {
        return;
    };
    // As long as it says.
    let _ = record.encode_into(reservation.words_mut());
    reservation.commit(RecordKind::Mapping as u8);
}

#[cfg(test)]
mod tests;
