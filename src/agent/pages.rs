//! Page faults, sampled: who made memory resident, whatever allocator it is of.
//!
//! Every thread has an event of the kernel's that signals each n-th page fault of its own. The handler records the page as a
//! sample of a heap of its own, with the interrupted stack. The sample ends when the page is given back: by a call that the
//! program makes, or when a look at the page tables finds it gone. So what is live are pages that are resident.
//!
//! # One in n
//! A thread's faults are divided into rows of n, and one fault of each row is sampled, at the same place in all of them. That
//! place is drawn, so each fault is sampled with probability 1/n. A pattern of the program's could be in step with n, so after
//! some rows another n is drawn, and another place. The last row ends first, with its faults behind the sample: otherwise
//! these would be sampled by both, and estimates 0.8 % too large. A page of S bytes stands for n * S bytes.
//!
//! # Bias
//! What the kernel itself touches for the program (`read` into new memory), pages that come without a fault (`MAP_POPULATE`,
//! the rest of a page that is made huge later), and pages that were given back and touched again unseen: docs/pages.md.

mod table;

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use allocsample_record::{
    Figure, FreeRecord, HeapKind, LostReason, Note, RecordKind, SampleFlags, SampleId,
    SampleRecord, ThreadId,
};
use allocsample_ring::Priority;
use allocsample_sampling::Interval;

use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::capture::WorkArea;
use crate::hooks::{Callbacks, Description, Heap};
use crate::os::fault_events::{self, Fault, FaultRing};
use crate::os::memory::{self, StaticRef};
use crate::os::pagemap::Pagemap;
use crate::os::{self, Errno, clock};
use crate::path::Path;
use crate::recording::{self, Recording};
use crate::shim::Interrupted;
use crate::stack::vm::NativeCode;
use crate::stack::{Captured, From};
use crate::switch::Switch;
use table::PageTable;

/// Threads that are sampled at the same time.
const PLACES: usize = 1024;
/// Different n around the mean: each has intervals of its own in the profile.
const CHOICES: usize = 8;
/// Samples until another n is drawn.
const SAMPLES_PER_CHOICE: u32 = 64;
/// Faults that are taken from a ring at once. There is more than one if the signal was blocked.
const MOST_AT_ONCE: usize = 16;

/// A huge page, of the size that the kernel makes by itself.
const HUGE_BYTES: u64 = 2 << 20;

/// See the module.
pub(crate) struct Pages {
    /// 0 while nothing is sampled.
    signal: AtomicI32,
    /// The heap of the samples.
    heap: StaticRef<Heap>,
    choices: [Choice; CHOICES],
    /// Of the rings, one for each place.
    rings: AtomicU64,
    places: [Place; PLACES],
    live: PageTable,
    /// Why nothing is sampled: an error number, or [`IS_GO`].
    refused: AtomicI32,
    /// Threads that could not get an event.
    left_out: AtomicU32,
    /// Bytes that samples stood for which were not recorded before there was a recording.
    not_recorded: AtomicU64,
    /// The end of the heap of `brk` at the last fault.
    heap_end: AtomicU64,
    /// When the drain thread may look at the page tables again.
    next_look_ns: AtomicU64,
}

/// [`Pages::refused`]: Go handles every signal itself, past libc.
const IS_GO: i32 = -1;
/// [`Pages::refused`]: the signal is the program's.
const SIGNAL_IS_TAKEN: i32 = -2;

/// One n.
struct Choice {
    faults: AtomicU32,
    /// Number in the profile of the interval that small pages have, and that of huge ones.
    interval: AtomicU32,
    huge_interval: AtomicU32,
}

/// A thread that is sampled. Only its owner changes it, but for the ring.
struct Place {
    /// 0: nobody's.
    tid: AtomicU32,
    /// Index of its choice.
    choice: AtomicU32,
    /// Samples until the next choice; 0 while the first fault of this one is awaited.
    left: AtomicU32,
    /// Faults of a row behind its sample.
    rest: AtomicU32,
    /// How often it has drawn.
    draws: AtomicU32,
}

impl Pages {
    /// Nothing is sampled.
    pub const fn new() -> Self {
        Self {
            signal: AtomicI32::new(0),
            heap: StaticRef::new(),
            choices: [const {
                Choice {
                    faults: AtomicU32::new(0),
                    interval: AtomicU32::new(0),
                    huge_interval: AtomicU32::new(0),
                }
            }; CHOICES],
            rings: AtomicU64::new(0),
            places: [const {
                Place {
                    tid: AtomicU32::new(0),
                    choice: AtomicU32::new(0),
                    left: AtomicU32::new(0),
                    rest: AtomicU32::new(0),
                    draws: AtomicU32::new(0),
                }
            }; PLACES],
            live: PageTable::new(),
            refused: AtomicI32::new(0),
            left_out: AtomicU32::new(0),
            not_recorded: AtomicU64::new(0),
            heap_end: AtomicU64::new(0),
            next_look_ns: AtomicU64::new(0),
        }
    }

    /// In a forked child, which inherits no event, no ring, and none of the other threads.
    pub(crate) fn forget(&self) {
        for place in &self.places {
            place.tid.store(0, Ordering::Relaxed);
        }
        self.left_out.store(0, Ordering::Relaxed);
        self.not_recorded.store(0, Ordering::Relaxed);
        // Where rings were there may be anything by now.
        if self.rings.load(Ordering::Relaxed) != 0 {
            let rings = FaultRing::reserve(PLACES).unwrap_or(0);
            self.rings.store(rings, Ordering::Relaxed);
        }
    }

    /// The profile is complete: its samples are nobody's.
    pub(crate) fn clear(&self) {
        self.live.clear();
    }

    /// Tells in the profile that pages were to be sampled and are not; and what could not be recorded before.
    pub(crate) fn begin_recording(&self, recording: &Recording) {
        let number = Figure::PagesNotRecordedBytes as usize;
        let before = self.not_recorded.swap(0, Ordering::Relaxed);
        recording.ring.add_figure(number, before);
        if let Some(detail) = why_not(self.refused.load(Ordering::Relaxed)) {
            recording.note(Note::PagesNotSampled, detail);
        }
    }

    /// Tells in the profile that some threads were not sampled.
    pub(crate) fn end_recording(&self, recording: &Recording) {
        let count = self.left_out.load(Ordering::Relaxed);
        if count > 0 {
            let mut detail = Path::new();
            detail
                .push(b"not on ")
                .push_decimal(count.into())
                .push(b" threads, for which the kernel had no event or the agent no place");
            recording.note(Note::PagesNotSampled, detail.as_bytes());
        }
    }

    fn ring(&self, index: usize) -> Option<FaultRing> {
        let base = self.rings.load(Ordering::Acquire);
        // SAFETY: reserved in this process for all places.
        (base != 0)
            .then(|| unsafe { FaultRing::at(base, index) })
            .flatten()
    }

    /// Nothing is sampled from now on.
    fn refuse(&self, reason: i32) {
        self.refused.store(reason, Ordering::Relaxed);
        if let (Some(recording), Some(detail)) = (recording::current(), why_not(reason)) {
            recording.note(Note::PagesNotSampled, detail);
        }
    }
}

impl Agent {
    /// Prepares the sampling of page faults, if it was asked for and is possible. Before the program's code runs. `is_go`: the
    /// program is written in Go. False: nothing will be sampled, for a reason that the profile tells.
    pub fn prepare_pages(&self, is_go: bool) -> bool {
        let Some(interval) = self.config().pages_interval else {
            return false;
        };
        if is_go {
            self.pages.refuse(IS_GO);
            return false;
        }
        let prepared = fault_events::probe()
            .and_then(|()| Pagemap::open().map(drop).ok_or(Errno(libc::ENOENT)))
            .and_then(|()| self.prepare_pages_of(interval).ok_or(Errno(libc::ENOMEM)));
        if let Err(Errno(reason)) = prepared {
            self.pages.refuse(reason);
        }
        prepared.is_ok()
    }

    fn prepare_pages_of(&self, interval: Interval) -> Option<()> {
        let pages = &self.pages;
        if pages.heap.get().is_some() {
            return Some(());
        }
        let heap = self.register_heap(&Description {
            kind: HeapKind::Pages,
            name: b"pages",
            interval: Some(interval),
            is_walked_in_malloc: false,
            is_walked_in_free: false,
            is_walked_everywhere: false,
            is_walked_in_ticks: false,
            scans_stacks: false,
            is_freed_by_malloc: false,
            loop_has_thunks: false,
            is_walk_whole: false,
            native_code: NativeCode::Loop,
            callbacks: Callbacks {
                user: core::ptr::null_mut(),
                walk: None,
                on_sample: None,
                on_change: None,
                collect: None,
            },
        })?;
        heap.set_samples_by_itself();
        let page_bytes = memory::page_bytes() as u64;
        let mean = u32::try_from(interval.bytes() / page_bytes).unwrap_or(u32::MAX >> 2);
        for (index, choice) in (0..).zip(&pages.choices) {
            let faults = nth_of(mean.max(1), index);
            let number_of = |bytes| match Interval::of_one_in(faults, bytes) {
                Some(interval) => self.publisher.interval_of_heaps(interval, self.seed()),
                None => self
                    .publisher
                    .interval_of_heaps(Interval::EVERY_ALLOCATION, self.seed()),
            };
            choice.faults.store(faults, Ordering::Relaxed);
            choice
                .interval
                .store(number_of(page_bytes)?.into(), Ordering::Relaxed);
            choice
                .huge_interval
                .store(number_of(HUGE_BYTES)?.into(), Ordering::Relaxed);
        }
        pages
            .rings
            .store(FaultRing::reserve(PLACES)?, Ordering::Release);
        pages.live.prepare().then_some(())?;
        pages.heap.set(Some(heap));
        Some(())
    }

    /// Threads that start from now on, and those that have a place, are signalled by this signal.
    pub(crate) fn start_faults(&self, signal: i32) {
        if self.pages.heap.get().is_none() {
            return;
        }
        if signal != libc::SIGSTKFLT {
            return self.pages.refuse(SIGNAL_IS_TAKEN);
        }
        self.pages.signal.store(signal, Ordering::Release);
    }

    /// Ends the events of all threads, for good. No signal of theirs is sent any more.
    pub(crate) fn stop_faults(&self) {
        let pages = &self.pages;
        // In a child of a bare clone, where the parent's rings were there may be anything.
        let is_child = self.identity.is_forked_child();
        if pages.signal.swap(0, Ordering::AcqRel) == 0 || is_child {
            return;
        }
        for (index, place) in pages.places.iter().enumerate() {
            if place.tid.swap(0, Ordering::AcqRel) != 0
                && let Some(ring) = pages.ring(index)
            {
                ring.disarm();
            }
        }
    }

    /// Samples the calling thread from now on.
    pub(crate) fn start_faults_of(&self, thread: &ShimThread) {
        let pages = &self.pages;
        if pages.signal.load(Ordering::Acquire) == 0 {
            return;
        }
        let tid = os::process::tid();
        let mut places = pages.places.iter().enumerate();
        let found = places.find(|(_, place)| {
            place
                .tid
                .compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        let Some((index, place)) = found else {
            pages.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.join(thread);
        thread.set_fault_place(index as u32 + 1);
        place.rest.store(0, Ordering::Relaxed);
        self.draw(thread, index, place);
    }

    /// The calling thread ends.
    pub(crate) fn end_faults_of(&self, thread: &ShimThread) {
        let index = thread.fault_place();
        thread.set_fault_place(0);
        let Some(index) = (index as usize).checked_sub(1) else {
            return;
        };
        let place = self.pages.places.get(index);
        // Not of another thread: in a child of a bare clone all places were free again.
        let place = place.filter(|place| place.tid.load(Ordering::Acquire) == os::process::tid());
        if let (Some(place), Some(ring)) = (place, self.pages.ring(index)) {
            ring.disarm();
            place.tid.store(0, Ordering::Release);
        }
    }

    /// Draws another n, and waits for a fault of its first row.
    fn draw(&self, thread: &ShimThread, index: usize, place: &Place) {
        let draws = place.draws.fetch_add(1, Ordering::Relaxed);
        let stream = thread.number() ^ draws.rotate_right(10);
        let mut random = self.seed().faults_of_thread(stream);
        let choice = random.below(CHOICES as u64);
        let Some(of_choice) = self.pages.choices.get(choice as usize) else {
            return;
        };
        place.choice.store(choice as u32, Ordering::Relaxed);
        place.left.store(0, Ordering::Relaxed);
        let faults = u64::from(of_choice.faults.load(Ordering::Relaxed));
        let first = 1 + random.below(faults);
        // Below n.
        let rest = place.rest.swap((faults - first) as u32, Ordering::Relaxed);
        self.arm(thread, index, u64::from(rest) + first);
    }

    fn arm(&self, thread: &ShimThread, index: usize, period: u64) {
        let signal = self.pages.signal.load(Ordering::Acquire);
        let Some(ring) = self.pages.ring(index).filter(|_| signal != 0) else {
            return;
        };
        if ring.arm(signal, period).is_err() {
            self.pages.left_out.fetch_add(1, Ordering::Relaxed);
            thread.set_fault_place(0);
            return;
        }
        // Stopped meanwhile: who stopped them may have come before this one was there.
        if self.pages.signal.load(Ordering::Acquire) != signal {
            ring.disarm();
        }
    }

    /// A signal that may be of the calling thread's event has come. False: there was no fault.
    pub fn on_faults(&self, thread: &ShimThread, interrupted: &Interrupted) -> bool {
        let Some(index) = (thread.fault_place() as usize).checked_sub(1) else {
            return false;
        };
        if self.identity.is_forked_child() {
            return false;
        }
        let (Some(place), Some(ring)) = (self.pages.places.get(index), self.pages.ring(index))
        else {
            return false;
        };
        let mut faults = [None; MOST_AT_ONCE];
        let mut count = 0;
        ring.take(|fault| {
            if let Some(free) = faults.get_mut(count) {
                *free = Some(fault);
            }
            count += 1;
        });
        if count == 0 {
            return false;
        }
        // libc's malloc makes its heap smaller past our sbrk.
        let now = memory::heap_end();
        let before = self.pages.heap_end.swap(now, Ordering::Relaxed);
        if now < before {
            self.on_pages(now, before - now, None);
        }
        let choice = place.choice.load(Ordering::Relaxed) as usize;
        if let Some(choice) = self.pages.choices.get(choice) {
            for fault in faults.into_iter().flatten() {
                self.take_fault(thread, interrupted, &fault, choice);
            }
            self.go_on(thread, index, place, choice, count as u32);
        }
        true
    }

    /// After `count` more samples.
    fn go_on(&self, thread: &ShimThread, index: usize, place: &Place, choice: &Choice, count: u32) {
        match place.left.load(Ordering::Relaxed) {
            0 => {
                place.left.store(SAMPLES_PER_CHOICE, Ordering::Relaxed);
                let faults = choice.faults.load(Ordering::Relaxed);
                self.arm(thread, index, u64::from(faults));
            }
            left if left <= count => self.draw(thread, index, place),
            left => place.left.store(left - count, Ordering::Relaxed),
        }
    }

    fn take_fault(
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
        /// Of the time.
        const SHARE: u64 = 100;
        let begin_ns = clock::monotonic_ns();
        if begin_ns >= self.pages.next_look_ns.load(Ordering::Relaxed) {
            self.look_at_pages_now(recording, time_ns);
            let end_ns = clock::monotonic_ns();
            let next_ns = end_ns + SHARE * (end_ns - begin_ns);
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

/// Why pages are not sampled, in words; `None`: they are.
fn why_not(reason: i32) -> Option<&'static [u8]> {
    Some(match reason {
        0 => return None,
        IS_GO => b"Go handles all signals itself",
        SIGNAL_IS_TAKEN => b"the program uses SIGSTKFLT itself",
        libc::EACCES | libc::EPERM => {
            b"the kernel refuses perf events (kernel.perf_event_paranoid is above 2, or a filter of system calls forbids them)"
        }
        libc::ENOMEM => b"there is no memory",
        libc::ENOENT => b"/proc/self/pagemap cannot be read",
        _ => b"this kernel has no such events",
    })
}

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

/// The number of faults of the choice with this index: odd if there is room, from three quarters of the mean on, with the mean
/// as their mean.
fn nth_of(mean: u32, index: u32) -> u32 {
    // The middles of eighths of the range from 3/4 to 5/4.
    let nth = u64::from(mean) * u64::from(25 + 2 * index) / 32;
    u32::try_from(nth).unwrap_or(u32::MAX).max(1) | u32::from(mean > 16)
}

fn is_own(address: u64) -> bool {
    memory::own_ranges().any(|(start, bytes)| address.wrapping_sub(start) < bytes)
}

fn end_page(recording: &Recording, id: u64, time_ns: u64) {
    let record = FreeRecord {
        time_ns,
        sample: SampleId(id),
        thread: ThreadId(0),
    };
    if !recording.push(&record) {
        recording.count_lost(LostReason::FreeRingFull, 1, 0);
    }
}

#[cfg(test)]
mod tests;
