//! The profile that is being written: its two files, its ring, and how the drain thread is told.
//!
//! A recording starts with the first sample of a process (one without a sample leaves no file) and ends at its exit.
//! `NAME.allocsample` gets a header at once, and chunks from the drain thread; `NAME.allocsample.ring` is the ring,
//! which outlives a killed process and is removed when everything in it is in the profile.

mod beginning;
mod draining;
mod holding;
mod noted;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use allocsample_record::{
    ExitRecord, Figure, LostReason, Note, NoteRecord, RingRecord, THREAD_NAME_BYTES,
    ThreadStartRecord,
};
use allocsample_ring::{Priority, Ring};

use crate::os::leaked::StaticRef;
use crate::os::memory;
use crate::os::signals::Held;
use crate::os::{self, clock, process};
use crate::path::Path;
pub use beginning::{Beginning, begin};
pub use draining::{DrainRequest, DrainState};
pub use holding::with_drain_thread;
pub(crate) use holding::{bequeath_rings, leave_rings};

/// A profile that is being written.
pub struct Recording {
    /// The ring that all threads write.
    pub ring: Ring,
    /// Path of the profile.
    pub path: Path,
    /// Counts the reasons to wake the drain thread.
    pub wake: AtomicU32,
    /// Whether the drain thread sleeps, or is about to. A thread that finds work for it clears this and wakes it once.
    is_drain_asleep: AtomicBool,
    /// Number of words in the ring that are worth waking the drain thread: see [`Self::drain_from`].
    enough_words: AtomicU64,
    /// Counts the times that the drain thread has given space back.
    pub space: AtomicU32,
    /// Address and length of the ring's mapping.
    ring_place: (NonNull<u8>, usize),
    given_up_at: AtomicU32,
    /// Whether forked children inherit the ring.
    is_bequeathed: AtomicBool,
    /// Number of users of the ring: the program, until the recording ends, and the drain thread. See [`Self::let_go`].
    holders: AtomicU32,
    /// Tid of the drain thread, and its pthread_t until it is joined; 0 for none.
    drain_tid: AtomicU32,
    drain_thread: AtomicU64,
    /// Position up to which definitions are in the file.
    pub(crate) definitions_to: u64,
    state: AtomicU32,
    request: AtomicU32,
    main_exited: AtomicU32,
    /// The requested work on the files, and in the upper bits the generation of the request; 0 for none.
    asked: AtomicU64,
    /// See [`Self::await_module`].
    awaited_module: AtomicU64,
    /// The last ticket that a thread waiting for such work has taken.
    pub(crate) tickets: AtomicU32,
    /// The last ticket whose work is done.
    pub(crate) tickets_done: AtomicU32,
    /// The number of declined bridges that are noted in it.
    pub(crate) noted_bridges: AtomicUsize,
}

// SAFETY: of its fields only the place of the ring is a pointer, and that is only passed to the kernel.
unsafe impl Sync for Recording {}

/// Why a recording cannot be begun.
#[derive(Clone, Copy, Debug)]
pub struct CannotRecord {
    /// The reason in one line, for the user.
    pub reason: &'static str,
}

static CURRENT: StaticRef<Recording> = StaticRef::new();

/// The recording of this process, if it has one.
pub fn current() -> Option<&'static Recording> {
    CURRENT.get()
}

/// Forgets the recording: it is the parent's, or it is finished. Only while the process has a single thread.
pub fn forget() {
    CURRENT.set(None);
    beginning::forget();
}

impl Recording {
    /// Writes an essential record; false if even the reserve for those is used up. Any thread, also in a signal handler. No
    /// other handler gets in between, which could leave the record by a jump.
    pub fn push(&self, record: &impl RingRecord) -> bool {
        self.push_as(Priority::Essential, record)
    }

    /// The same for a record that is written once, at an end. There is room for it also where frees have filled the ring,
    /// and a filter of system calls lets nobody wait.
    pub fn push_at_end(&self, record: &impl RingRecord) -> bool {
        self.push_as(Priority::Last, record)
    }

    fn push_as<R: RingRecord>(&self, priority: Priority, record: &R) -> bool {
        let _held = Held::unless_filtered();
        let Ok(mut reservation) = self.ring.reserve(record.words(), priority) else {
            return false;
        };
        if record.encode_into(reservation.words_mut()).is_none() {
            return false;
        }
        let used_words = reservation.used_words();
        reservation.commit(R::KIND as u8);
        self.nudge_if_due(used_words);
        true
    }

    /// Wakes the drain thread, if it is there and so many words in the ring are worth it.
    pub(crate) fn nudge_if_due(&self, used_words: u64) {
        if self.is_worth_draining(used_words) && self.drain_state() == DrainState::Running {
            self.nudge_drain();
        }
    }

    /// Writes a note.
    pub fn note(&self, note: Note, detail: &[u8]) {
        let record = NoteRecord {
            time_ns: clock::monotonic_ns(),
            note,
            detail,
        };
        self.push(&record);
    }

    /// Writes the start of the calling thread.
    pub fn announce_thread(&self, number: u32) -> bool {
        // Behind a filter a thread has no name: asking for it may end the process.
        let (tid, name) = match os::is_filtered() {
            true => (0, [0; THREAD_NAME_BYTES]),
            false => (process::tid(), process::thread_name()),
        };
        let record = ThreadStartRecord {
            time_ns: clock::monotonic_ns(),
            thread: allocsample_record::ThreadId(number),
            tid,
            name,
        };
        self.push(&record)
    }

    /// Writes the end of the process.
    pub fn announce_exit(&self, record: &ExitRecord) {
        self.push_at_end(record);
    }

    /// Counts lost events and the bytes that they stand for.
    pub fn count_lost(&self, reason: LostReason, events: u64, bytes: u64) {
        self.ring.count_lost(reason as usize, events, bytes);
    }

    /// Updates the figures that come from outside the recording. Any thread.
    pub fn update_figures(&self) {
        if os::is_filtered() {
            return;
        }
        let tell = |figure: Figure, value| self.ring.set_figure(figure as usize, value);
        let used = self.ring.used_words();
        self.ring.raise_figure(Figure::MostRingWords as usize, used);
        tell(Figure::RingWords, self.ring.capacity_words());
        tell(Figure::MappedBytes, memory::mapped_bytes());
        tell(Figure::ProcessNs, clock::process_ns());
    }

    /// Adds the time of a slow path that took or ended a sample. `timed` is the figure that counts them, and the next figure
    /// sums up their time.
    pub(crate) fn count_time(&self, timed: Figure, elapsed_ns: u64) {
        /// A slow path that takes this many times the mean was waiting for a CPU, which is not its cost.
        const LONGEST: u64 = 16;
        const ENOUGH_FOR_A_MEAN: u64 = 16;
        let number = timed as usize;
        let figures = self.ring.figures();
        let of = |number: usize| figures.get(number).copied().unwrap_or(0);
        let longest = match of(number) {
            ..ENOUGH_FOR_A_MEAN => 1_000_000,
            timed => LONGEST * (of(number + 1) / timed).max(100),
        };
        self.ring.add_figure(number, 1);
        self.ring.add_figure(number + 1, elapsed_ns.min(longest));
    }

    /// Makes all of the ring present in memory: see [`memory::populate`].
    pub fn populate_ring(&self) {
        let (base, bytes) = self.ring_place;
        memory::populate(base, bytes);
    }

    /// Whether it is still the one that the process writes: not after a failed exec, nor in a forked child.
    pub fn is_current(&self) -> bool {
        current().is_some_and(|current| core::ptr::eq(self, current))
    }
}

#[cfg(test)]
pub(crate) mod tests;
