//! A fault becomes a sample.

use core::sync::atomic::Ordering;

use allocsample_record::{Figure, RecordKind, SampleFlags, SampleRecord, ThreadId};
use allocsample_ring::Priority;

use super::ending::end_page;
use super::{Choice, HUGE_BYTES};
use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::capture::WorkArea;
use crate::hooks::Heap;
use crate::os::fault_events::Fault;
use crate::os::{clock, memory};
use crate::recording::{self, Recording};
use crate::shim::Interrupted;
use crate::stack::{Captured, From};
use crate::switch::Switch;

/// A page that was sampled.
struct Page {
    address: u64,
    size: u64,
    interval: u16,
    weight: u64,
}

/// Where it was touched.
enum Stack {
    Interrupted(Interrupted),
    Only([u64; 1]),
}

impl Agent {
    pub(super) fn take_fault(
        &self,
        thread: &ShimThread,
        interrupted: &Interrupted,
        fault: &Fault,
        choice: &Choice,
    ) {
        let Some(heap) = self.pages.heap.get().filter(|heap| heap.is_on()) else {
            return;
        };
        if self.switch.get() != Switch::On || !thread.is_enabled() || is_own(fault.address) {
            return;
        }
        let small = memory::page_bytes() as u64;
        let (size, interval) = match fault.page_bytes {
            HUGE_BYTES => (HUGE_BYTES, &choice.huge_interval),
            _ => (small, &choice.interval),
        };
        let page = Page {
            address: fault.address & !(size - 1),
            size,
            interval: interval.load(Ordering::Relaxed) as u16,
            weight: size * u64::from(choice.faults.load(Ordering::Relaxed)),
        };
        // Otherwise the signal was blocked, and the thread is elsewhere by now.
        let is_here = fault.pc == interrupted.pc;
        let from = if is_here {
            Stack::Interrupted(*interrupted)
        } else {
            Stack::Only([fault.pc.wrapping_add(1)])
        };
        let Some(_guard) = thread.tick() else {
            return self.count_page_not_recorded(page.weight);
        };
        let is_known = thread.epoch() == self.epoch()
            && self
                .capture
                .in_area_aside(thread, |area| {
                    self.record_page(thread, heap, &page, &from, area)
                })
                .unwrap_or(false);
        if !is_known {
            self.count_page_not_recorded(page.weight);
        }
    }

    /// Captures and records a page, on the area's stack. False: it was neither recorded nor counted.
    fn record_page(
        &self,
        thread: &ShimThread,
        heap: &Heap,
        page: &Page,
        from: &Stack,
        area: &mut WorkArea,
    ) -> bool {
        let Some(recording) = recording::current().or_else(|| self.begin_recording(area)) else {
            return false;
        };
        self.announce_in(thread, recording);
        match from {
            Stack::Only(frames) => self.publish_page(
                thread,
                heap,
                page,
                frames,
                SampleFlags::UNWIND_FAILED,
                recording,
            ),
            Stack::Interrupted(registers) => {
                let from = From::Interrupted(*registers);
                let mut captured = self.capture.walk(thread, &from, area, recording);
                let may_start_drain =
                    self.wants_drain(recording) && self.capture.may_start_thread(area, &captured);
                self.capture.strip_own(area, &mut captured);
                if let Some(machine) = self.heaps.walked_in_ticks(thread) {
                    self.capture
                        .add_vm_frames(thread, machine, area, &mut captured);
                    let others = self.heaps.others_in_ticks(Some(machine));
                    (self.capture).add_frames_of_others(thread, others, area, &mut captured);
                }
                let frames = area.captured(&captured);
                let Captured { flags, .. } = captured;
                self.publish_page(thread, heap, page, frames, flags, recording);
                if may_start_drain {
                    self.publisher.set_drain_to_work(recording, false);
                }
            }
        }
        true
    }

    fn publish_page(
        &self,
        thread: &ShimThread,
        heap: &Heap,
        page: &Page,
        frames: &[u64],
        flags: SampleFlags,
        recording: &Recording,
    ) {
        let time_ns = clock::monotonic_ns();
        // It was given back unseen.
        if let Some(id) = self.pages.live.take(page.address) {
            end_page(recording, id, time_ns);
        }
        let words = SampleRecord::words(frames.len());
        // No waiting in a signal handler: the drain thread may need what was interrupted.
        let Ok(mut reservation) = recording.ring.reserve(words, Priority::Sample) else {
            return self.count_page_not_recorded(page.weight);
        };
        let id = reservation.position();
        let mut flags = flags;
        if !self.pages.live.insert(page.address, id) {
            flags = flags.with(SampleFlags::UNTRACKED);
            self.count_page_not_recorded(page.weight);
        }
        let record = SampleRecord {
            time_ns,
            address: page.address,
            size: page.size,
            thread: ThreadId(thread.number()),
            heap: heap.id,
            flags,
            points: 1,
            interval: page.interval,
            thread_bytes: thread.total_bytes(),
            shared: 0,
            type_id: 0,
            frames,
        };
        // As long as it says.
        let _ = record.encode_into(reservation.words_mut());
        let used_words = reservation.used_words();
        reservation.commit(RecordKind::Sample as u8);
        // The next one of malloc shares no frames with the one before this.
        thread.set_last_sample(id);
        heap.samples.fetch_add(1, Ordering::Relaxed);
        recording.nudge_if_due(used_words);
    }

    fn count_page_not_recorded(&self, bytes: u64) {
        match recording::current() {
            Some(recording) => {
                let number = Figure::PagesNotRecordedBytes as usize;
                recording.ring.add_figure(number, bytes);
            }
            None => {
                self.pages.not_recorded.fetch_add(bytes, Ordering::Relaxed);
            }
        }
    }
}

fn is_own(address: u64) -> bool {
    memory::own_ranges().any(|range| is_within(address, range))
}

/// Whether an address lies in a range, given by its start and length.
fn is_within(address: u64, (start, bytes): (u64, u64)) -> bool {
    address.wrapping_sub(start) < bytes
}

#[cfg(test)]
mod tests {
    use super::is_within;

    #[test]
    fn a_range_has_its_first_byte_and_its_last_but_not_those_beside_them() {
        let range = (0x2000, 0x1000);
        let within = [0x1fff, 0x2000, 0x2fff, 0x3000].map(|address| is_within(address, range));
        assert_eq!(within, [false, true, true, false]);
        assert!(!is_within(0, (0, 0)), "a place without a range");
    }
}
