//! The ring as everyone sees it: its counters and its state.

#[cfg(not(loom))]
use core::ptr::NonNull;

use crate::layout::{Collecting, FIGURES, LOST_REASONS, MAGIC, VERSION, head_position};
use crate::sync::{Memory, Ordering};

/// A mapped ring. Copies are the same ring; every method may be called from any thread and from signal handlers.
#[derive(Clone, Copy)]
pub struct Ring {
    pub(crate) memory: Memory,
}

impl Ring {
    /// Makes a ring of `capacity_words` words in fresh memory.
    ///
    /// # Safety
    /// 1. `base..base + file_bytes(capacity_words)` is zeroed, aligned to 64 bytes, and mapped readable and writable
    ///    for as long as any copy of the ring (or a reservation or consumer of it) is used.
    /// 2. `capacity_words` is a power of two, at least 8.
    /// 3. Nothing else writes to the mapping, a forked child that still shares it included.
    #[cfg(not(loom))]
    pub unsafe fn create(base: NonNull<u8>, capacity_words: u64, profile_id: u128) -> Ring {
        debug_assert!(capacity_words.is_power_of_two() && capacity_words >= 8);
        // SAFETY: the caller's promises are the invariant of `Memory`.
        let memory = unsafe { Memory::new(base, capacity_words) };
        Self::initialise(memory, profile_id)
    }

    /// Makes a ring in modelled memory.
    ///
    /// # Safety
    /// `model` outlives every copy of the ring.
    #[cfg(loom)]
    pub unsafe fn create(model: &crate::ModelMemory, profile_id: u128) -> Ring {
        // SAFETY: the caller's promise.
        let memory = unsafe { Memory::new(model) };
        Self::initialise(memory, profile_id)
    }

    fn initialise(memory: Memory, profile_id: u128) -> Ring {
        let header = memory.header();
        let [low, high] = &header.profile_id;
        // Truncations by intent: the two halves.
        low.store(profile_id as u64, Ordering::Relaxed);
        high.store((profile_id >> 64) as u64, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header
            .capacity_words
            .store(memory.capacity_words(), Ordering::Relaxed);
        header
            .data_offset
            .store(crate::layout::DATA_OFFSET as u64, Ordering::Relaxed);
        // Last: a file that bears the magic number is complete. Nobody acquires it; the process that may die between
        // these stores is the one that makes them in this order.
        header.magic.store(MAGIC, Ordering::Release);
        Ring { memory }
    }

    /// Distinguishes this ring from others of the same process: the lower half of the profile's id.
    pub fn id(&self) -> u64 {
        let [low, _] = &self.memory.header().profile_id;
        // Relaxed: written once, before anybody had the ring.
        low.load(Ordering::Relaxed)
    }

    /// First position that is not reserved, in words.
    pub fn head(&self) -> u64 {
        // Relaxed: a figure; whoever needs the words behind it looks at their headers.
        head_position(self.memory.header().head.0.word.load(Ordering::Relaxed))
    }

    /// First position that is not yet released, in words.
    pub fn tail(&self) -> u64 {
        // Relaxed: a figure, as above.
        self.memory.header().tail.0.released.load(Ordering::Relaxed)
    }

    /// Words between tail and head. Exact only while nobody uses the ring.
    pub fn used_words(&self) -> u64 {
        let tail = self.tail();
        self.head().saturating_sub(tail).min(self.capacity_words())
    }

    /// Capacity in words: a power of two.
    pub fn capacity_words(&self) -> u64 {
        self.memory.capacity_words()
    }

    /// Counts lost events. `reason` is the number of a `record::LostReason`; a number that does not exist counts as the first.
    pub fn count_lost(&self, reason: usize, events: u64, bytes: u64) {
        let counters = &self.memory.header().lost.0;
        if let Some(counter) = counters.get(reason).or(counters.first()) {
            // Relaxed: plain sums.
            counter.events.fetch_add(events, Ordering::Relaxed);
            counter.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// (events, bytes) for each reason.
    pub fn lost(&self) -> [(u64, u64); LOST_REASONS] {
        self.memory.header().lost.0.each_ref().map(|counter| {
            (
                counter.events.load(Ordering::Relaxed),
                counter.bytes.load(Ordering::Relaxed),
            )
        })
    }

    /// Adds to a figure. `figure` is the number of a `record::Figure`; a number that does not exist is ignored.
    pub fn add_figure(&self, figure: usize, value: u64) {
        if let Some(place) = self.memory.header().figures.0.get(figure) {
            // Relaxed, as in all of these: plain figures.
            place.fetch_add(value, Ordering::Relaxed);
        }
    }

    /// Replaces a figure.
    pub fn set_figure(&self, figure: usize, value: u64) {
        if let Some(place) = self.memory.header().figures.0.get(figure) {
            place.store(value, Ordering::Relaxed);
        }
    }

    /// Raises a figure to a value that was reached. If two threads do so at the same time, one value may be lost.
    pub fn raise_figure(&self, figure: usize, value: u64) {
        if let Some(place) = self.memory.header().figures.0.get(figure)
            && place.load(Ordering::Relaxed) < value
        {
            place.store(value, Ordering::Relaxed);
        }
    }

    /// All figures.
    pub fn figures(&self) -> [u64; FIGURES] {
        let figures = &self.memory.header().figures.0;
        figures
            .each_ref()
            .map(|place| place.load(Ordering::Relaxed))
    }

    /// The last request from outside: generation (0: there was none), kind ([`crate::request`]), and argument.
    pub fn request(&self) -> (u64, u64, u64) {
        let request = &self.memory.header().request.0;
        // Acquire: the others were written before. It is another process that wrote both.
        let generation = request.generation.load(Ordering::Acquire);
        (
            generation,
            request.what.load(Ordering::Relaxed),
            request.interval.load(Ordering::Relaxed),
        )
    }

    /// Further arguments of the last request.
    pub fn request_more(&self) -> [u64; 4] {
        let more = &self.memory.header().request.0.more;
        // Relaxed: read after the generation, which was written after them.
        more.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// Enters a request that was left in a file before there was a ring.
    pub fn ask(&self, what: u64, value: u64, more: [u64; 4]) {
        let request = &self.memory.header().request.0;
        request.what.store(what, Ordering::Relaxed);
        request.interval.store(value, Ordering::Relaxed);
        for (place, word) in request.more.iter().zip(more) {
            place.store(word, Ordering::Relaxed);
        }
        // Release: pairs with the acquire in `request`.
        request.generation.fetch_add(1, Ordering::Release);
    }

    /// Publishes the progress of a heap's collection on request. A heap without a word for it is ignored.
    pub fn set_collecting(&self, heap: usize, generation: u64, state: Collecting) {
        if let Some(place) = self.memory.header().collecting.0.get(heap) {
            // Release: whoever sees that it is done finds what it told before. Another process, which reads the file.
            place.store(state.word(generation), Ordering::Release);
        }
    }

    /// Publishes that this request and all earlier ones are carried out.
    pub fn set_obeyed(&self, generation: u64) {
        // Relaxed: a figure for whoever asked.
        let request = &self.memory.header().request.0;
        request.obeyed.fetch_max(generation, Ordering::Relaxed);
    }

    /// Notes that the process ended in order: everything is in the profile. It does not stop producers.
    pub fn close(&self) {
        self.memory.header().closed.store(1, Ordering::Relaxed);
    }

    /// Whether [`Ring::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.memory.header().closed.load(Ordering::Relaxed) != 0
    }
}
