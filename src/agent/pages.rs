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

mod ending;
mod samples;
mod table;
mod threads;

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use allocsample_record::{Figure, HeapKind, Note};
use allocsample_sampling::Interval;

use crate::agent::Agent;
use crate::hooks::{Callbacks, Description, Heap};
use crate::os::Errno;
use crate::os::fault_events::{self, FaultRing};
use crate::os::leaked::StaticRef;
use crate::os::memory;
use crate::os::pagemap::Pagemap;
use crate::path::Path;
use crate::recording::{self, Recording};
use crate::stack::vm::NativeCode;
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
            ends_by_id: false,
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

/// The number of faults of the choice with this index: odd if there is room, from three quarters of the mean on, with the mean
/// as their mean.
fn nth_of(mean: u32, index: u32) -> u32 {
    // The middles of eighths of the range from 3/4 to 5/4.
    let nth = u64::from(mean) * u64::from(25 + 2 * index) / 32;
    u32::try_from(nth).unwrap_or(u32::MAX).max(1) | u32::from(mean > 16)
}

#[cfg(test)]
mod tests;
