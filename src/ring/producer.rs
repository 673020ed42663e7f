//! The writing end: reserve, write, commit.

use crate::layout::{
    MAX_RECORD_WORDS, PADDING, RecordHeader, State, WRITERS, head_position, head_word, head_writer,
};
use crate::ring::Ring;
use crate::sync::{Ordering, WordsMut, compiler_fence};

/// How full the ring may become by a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Leaves an eighth of the capacity free.
    Sample,
    /// Leaves a 64th free. For records that give others their meaning: frees, modules, threads.
    Essential,
    /// May fill the ring. For records written once at the end, when no drain thread may be left to make room: totals, the
    /// exit.
    Last,
}

/// There is no room for the record now (or, longer than a quarter of the capacity, ever).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFull;

impl core::fmt::Display for RingFull {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the ring has no room for the record")
    }
}

impl core::error::Error for RingFull {}

/// A record that is being written. Dropped without [`Reservation::commit`] it becomes padding, so that the consumer
/// never waits for it; forgotten, it stops the consumer for good.
#[must_use]
pub struct Reservation<'a> {
    ring: &'a Ring,
    position: u64,
    /// Length in words, header included.
    total_words: u64,
    used_words: u64,
    kind: u8,
}

/// Identifies who reserves, so that a reservation can be resolved after a jump. A number must not be used by two threads at the
/// same time, nor by a signal handler that interrupted its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer(usize);

impl Writer {
    /// A writer whose reservations cannot be resolved.
    pub const OTHER: Self = Self(0);

    /// The writer with this number, from 1 to 191; otherwise [`Self::OTHER`].
    pub fn new(number: usize) -> Self {
        Self(if number < WRITERS { number } else { 0 })
    }

    /// The number; 0 for [`Self::OTHER`].
    pub fn number(self) -> usize {
        self.0
    }
}

/// How far a reservation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The writer is about to move the head from this position. The attempt may fail.
    Intended(u64),
    /// The record is reserved from the last position reported, and its header is written.
    Begun,
}

/// A part of the ring.
#[derive(Clone, Copy)]
struct Place {
    start: u64,
    /// Words of padding in front of a record that would have crossed the end of the data.
    padding: u64,
    /// Length of the record in words, header included.
    total_words: u64,
}

impl Place {
    fn position(&self) -> u64 {
        self.start.wrapping_add(self.padding)
    }

    fn end(&self) -> u64 {
        self.position().wrapping_add(self.total_words)
    }
}

/// A reserved part of the ring whose header is not written yet.
struct Taken {
    place: Place,
    used_words: u64,
}

impl Ring {
    /// Reserves a record of `words` payload words (all zero). A record of up to a quarter of the capacity always fits
    /// into an empty ring; a longer one is always refused.
    ///
    /// Any thread, signal handlers included; lock-free, no system call.
    pub fn reserve(&self, words: usize, priority: Priority) -> Result<Reservation<'_>, RingFull> {
        self.reserve_by(Writer::OTHER, words, priority, |_| {})
    }

    /// Like [`Ring::reserve`], for a writer that a signal handler may abandon with `siglongjmp` at any instruction. The caller
    /// must store every reported [`Progress`] immediately. After a jump, pass the last one to [`Ring::abandon_intended`] or
    /// [`Ring::abandon`].
    ///
    /// No single instruction can both move the head and record that it did. Therefore the head contains the number of its last
    /// writer, and the next writer publishes how far that writer came before it moves the head again. This is the recoverable
    /// compare-and-swap of Attiya, Ben-Baruch and Hendler (2018), *Nesting-safe recoverable linearizability*.
    #[inline]
    pub fn reserve_by(
        &self,
        writer: Writer,
        words: usize,
        priority: Priority,
        mut tell: impl FnMut(Progress),
    ) -> Result<Reservation<'_>, RingFull> {
        let taken = self.take(writer, words, priority, &mut tell)?;
        Ok(self.begin(&taken, tell))
    }

    /// Moves the head.
    #[inline]
    fn take(
        &self,
        writer: Writer,
        words: usize,
        priority: Priority,
        mut tell: impl FnMut(Progress),
    ) -> Result<Taken, RingFull> {
        let capacity = self.memory.capacity_words();
        let total_words = (words as u64).saturating_add(1);
        if total_words > (capacity / 4).min(MAX_RECORD_WORDS) {
            return Err(RingFull);
        }
        let limit = match priority {
            Priority::Sample => capacity - capacity / 8,
            Priority::Essential => capacity - capacity / 64,
            Priority::Last => capacity,
        };
        let header = self.memory.header();
        let (head, tail) = (&header.head.0.word, &header.tail.0.released);
        // Acquire: pairs with the release store in `Consumer::release`. The words before it are zeroed, and the head
        // that we load next is not older than the tail: the consumer saw those records committed.
        let mut free_from = tail.load(Ordering::Acquire);
        // Relaxed: the exchange below decides.
        let mut before = head.load(Ordering::Relaxed);
        loop {
            let place = self.place(head_position(before), total_words);
            // Wrapping: positions that the program scribbled on look like a full ring, not like a panic.
            let used_words = place.end().wrapping_sub(free_from);
            if used_words > limit {
                // The tail may have moved between the two loads.
                let current = tail.load(Ordering::Acquire);
                if current == free_from {
                    return Err(RingFull);
                }
                free_from = current;
                before = head.load(Ordering::Relaxed);
                continue;
            }
            self.confirm(before, writer);
            tell(Progress::Intended(place.start));
            // A handler finds the intent wherever it finds the head moved.
            compiler_fence(Ordering::SeqCst);
            let after = head_word(place.end(), writer.0);
            // Release: pairs with the load in `has_reserved`, which sees what `confirm` has stored. The words are published
            // by their header.
            match head.compare_exchange_weak(before, after, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Ok(Taken { place, used_words }),
                Err(current) => before = current,
            }
        }
    }

    /// Moves the head and stops there, like a writer that is abandoned immediately afterwards. Only for tests.
    #[cfg(any(test, loom))]
    pub fn take_and_leave(
        &self,
        writer: Writer,
        words: usize,
        priority: Priority,
        tell: impl FnMut(Progress),
    ) -> Result<(), RingFull> {
        self.take(writer, words, priority, tell).map(|_| ())
    }

    /// Writes the headers of the record and of the padding in front of it.
    #[inline]
    fn begin(&self, taken: &Taken, mut tell: impl FnMut(Progress)) -> Reservation<'_> {
        let place = taken.place;
        if place.padding > 0 {
            self.store_reserved(place.start, place.padding);
        }
        self.store_reserved(place.position(), place.total_words);
        // Keeps the payload's stores after this one in the program, so that wherever a SIGKILL strikes, the length of a
        // record is there before any of its words. Nothing is committed before it is told that both headers are there.
        compiler_fence(Ordering::SeqCst);
        tell(Progress::Begun);
        compiler_fence(Ordering::SeqCst);
        if place.padding > 0 {
            self.publish_padding(place.start, place.padding);
        }
        Reservation {
            ring: self,
            position: place.position(),
            total_words: place.total_words,
            used_words: taken.used_words,
            kind: PADDING,
        }
    }

    /// Turns the reservation of an abandoned writer into padding, where the last progress was [`Progress::Intended`] from `start`.
    /// Returns false, and changes nothing, if the writer had not reserved it. Call at most once, on the writer's thread.
    pub fn abandon_intended(&self, writer: Writer, start: u64, words: usize) -> bool {
        let place = self.place(start, (words as u64).saturating_add(1));
        let is_reserved = self.has_reserved(writer, place.end());
        if is_reserved {
            // The headers are zero or say `Reserved`: nothing was committed, so nobody has gone past `start`.
            if place.padding > 0 {
                self.publish_padding(place.start, place.padding);
            }
            self.publish_padding(place.position(), place.total_words);
        }
        is_reserved
    }

    /// Turns an abandoned record of `words` payload words, reserved from `start` on, into padding, where the last progress was
    /// [`Progress::Begun`]. Returns false, and changes nothing, if the record was committed.
    pub fn abandon(&self, start: u64, words: usize) -> bool {
        let place = self.place(start, (words as u64).saturating_add(1));
        if place.padding > 0 {
            self.commit_reserved(place.start, place.padding);
        }
        self.commit_reserved(place.position(), place.total_words)
    }

    /// Returns where a record of `total_words` words, header included, lies that is reserved from `start` on.
    #[inline]
    fn place(&self, start: u64, total_words: u64) -> Place {
        let capacity = self.memory.capacity_words();
        let to_end = capacity - (start & (capacity - 1));
        let padding = if total_words > to_end { to_end } else { 0 };
        Place {
            start,
            padding,
            total_words,
        }
    }

    /// Publishes how far the head's last writer came, before `writer` moves the head. Not needed if both are the same.
    #[inline]
    fn confirm(&self, head: u64, writer: Writer) {
        let (number, position) = (head_writer(head), head_position(head));
        if number == Writer::OTHER.0 || number == writer.0 {
            return;
        }
        // Relaxed: the exchange of the head that follows releases it. The largest: others may store an earlier one late.
        if let Some(reserved) = self.memory.header().reserved_up_to.0.get(number)
            && reserved.load(Ordering::Relaxed) < position
        {
            reserved.fetch_max(position, Ordering::Relaxed);
        }
    }

    /// Returns whether `writer` moved the head to `end`. Only the calling thread may use that writer.
    fn has_reserved(&self, writer: Writer, end: u64) -> bool {
        if writer == Writer::OTHER {
            return false;
        }
        let header = self.memory.header();
        // Acquire: pairs with the exchange in `take`, by which another one has moved the head on, or with a later one. It
        // has confirmed before.
        let head = header.head.0.word.load(Ordering::Acquire);
        let confirmed = header.reserved_up_to.0.get(writer.0);
        head == head_word(end, writer.0)
            || confirmed.is_some_and(|up_to| up_to.load(Ordering::Relaxed) == end)
    }

    #[inline]
    fn store_reserved(&self, position: u64, words: u64) {
        let header = RecordHeader {
            state: State::Reserved,
            kind: PADDING,
            words,
        };
        // Relaxed: it tells only the length. The consumer stops at it, and who recovers reads it after our death.
        self.memory
            .header_word(position)
            .store(header.encode(position), Ordering::Relaxed);
    }

    fn commit_reserved(&self, position: u64, words: u64) -> bool {
        let header = |state| {
            RecordHeader {
                state,
                kind: PADDING,
                words,
            }
            .encode(position)
        };
        // Release: as in `publish`. Only the owner changes the header of a reserved record, and it is the caller. What is at
        // this place of the ring later says another position.
        let committed = self.memory.header_word(position).compare_exchange(
            header(State::Reserved),
            header(State::Committed),
            Ordering::Release,
            Ordering::Relaxed,
        );
        committed.is_ok()
    }

    fn publish_padding(&self, position: u64, words: u64) {
        let filler = RecordHeader {
            state: State::Committed,
            kind: PADDING,
            words,
        };
        self.publish(position, filler);
    }

    fn publish(&self, position: u64, header: RecordHeader) {
        // Release: pairs with the acquire load in `Consumer::next` (and `copy_pending`). The payload comes first.
        self.memory
            .header_word(position)
            .store(header.encode(position), Ordering::Release);
    }
}

impl Reservation<'_> {
    /// Position of the record in words: unique in the life of the ring, ascending in the order of reservation.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Words between the tail and the end of this record, when it was reserved. Reading the counters again would fetch
    /// them from the caches of other producers.
    pub fn used_words(&self) -> u64 {
        self.used_words
    }

    /// The payload: zeros until written.
    pub fn words_mut(&mut self) -> WordsMut<'_> {
        // SAFETY: the record is ours and not committed, as this value exists; `&mut self` makes the slice unique. At
        // most a quarter of the capacity, the length fits into usize.
        unsafe {
            self.ring
                .memory
                .payload_mut(self.position + 1, (self.total_words - 1) as usize)
        }
    }

    /// Makes the record visible to the consumer. Kind 0 makes it padding.
    pub fn commit(mut self, kind: u8) {
        self.kind = kind;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.ring.publish(
            self.position,
            RecordHeader {
                state: State::Committed,
                kind: self.kind,
                words: self.total_words,
            },
        );
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::ptr::NonNull;
    use std::boxed::Box;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::vec::Vec;

    use super::*;
    use crate::layout::{DATA_OFFSET, file_bytes};

    #[repr(C, align(4096))]
    struct Page([u8; DATA_OFFSET]);

    /// A ring of 64 words.
    fn with_ring(body: impl FnOnce(Ring)) {
        const CAPACITY: u64 = 64;
        const { assert!(file_bytes(CAPACITY) <= 2 * size_of::<Page>()) };
        let mut pages = [Page([0; DATA_OFFSET]), Page([0; DATA_OFFSET])];
        let base = NonNull::from(&mut pages).cast();
        // SAFETY: 1. zeroed, aligned, and longer than the ring, which is gone when `body` is. 2. 64. 3. Nobody else has it.
        body(unsafe { Ring::create(base, CAPACITY, 7) });
    }

    /// (kind, position) of what the consumer gets.
    fn read(ring: &Ring) -> Vec<(u8, u64)> {
        // SAFETY: the last one is gone.
        let mut consumer = unsafe { ring.consumer() };
        let mut found = Vec::new();
        while let Some(record) = consumer.next() {
            found.push((record.kind, record.position));
        }
        consumer.release();
        found
    }

    /// Where the writer intends to reserve when it is left right after it has.
    fn left_after_the_exchange(ring: &Ring, writer: Writer, words: usize) -> u64 {
        let mut intended = None;
        let tell = |progress| intended = Some(progress);
        ring.take_and_leave(writer, words, Priority::Sample, tell)
            .unwrap();
        let Some(Progress::Intended(start)) = intended else {
            panic!("{intended:?}");
        };
        start
    }

    #[test]
    fn writers_have_numbers_below_192_and_0_stands_for_all_others() {
        let number = |number| Writer::new(number).number();
        assert_eq!([1, 150, 191, 192, 1000].map(number), [1, 150, 191, 0, 0]);
        assert_eq!(Writer::new(0), Writer::OTHER);
        assert_eq!(Writer::OTHER.number(), 0);
    }

    #[test]
    fn a_writer_left_right_after_the_exchange_holds_nobody_up() {
        // Alone, and with others behind it.
        for behind in [0, 1, 3] {
            with_ring(|ring| {
                let writer = Writer::new(3);
                let start = left_after_the_exchange(&ring, writer, 4);
                for number in 0..behind {
                    let mut record = ring
                        .reserve_by(Writer::new(number), 4, Priority::Sample, |_| {})
                        .unwrap();
                    record.words_mut().fill(1);
                    record.commit(9);
                }
                assert_eq!(read(&ring), [], "it holds them up");
                assert!(ring.abandon_intended(writer, start, 4));
                let expected: Vec<_> = (1..=behind as u64).map(|index| (9, 5 * index)).collect();
                assert_eq!(read(&ring), expected);
            });
        }
    }

    #[test]
    fn a_record_that_another_has_reserved_is_not_abandoned() {
        for (other, words) in [(Writer::new(4), 4), (Writer::OTHER, 4), (Writer::new(4), 5)] {
            with_ring(|ring| {
                let record = ring
                    .reserve_by(other, words, Priority::Sample, |_| {})
                    .unwrap();
                // It intended the same, and the exchange of the other came first.
                assert!(!ring.abandon_intended(Writer::new(3), 0, 4));
                assert_eq!(read(&ring), []);
                record.commit(9);
                assert_eq!(read(&ring), [(9, 0)]);
                ring.reserve(4, Priority::Sample).unwrap().commit(8);
                assert!(!ring.abandon_intended(Writer::new(3), 0, 4));
            });
        }
    }

    #[test]
    fn a_record_is_read_up_to_the_end_of_the_ring_and_not_past_it() {
        for (words, expected) in [(14, [(8, 50)].as_slice()), (15, &[])] {
            with_ring(|ring| {
                for _ in 0..5 {
                    ring.reserve(9, Priority::Last).unwrap().commit(9);
                }
                assert_eq!(read(&ring).len(), 5);
                ring.reserve(13, Priority::Sample).unwrap().commit(9);
                let header = RecordHeader {
                    state: State::Committed,
                    kind: 8,
                    words,
                };
                ring.publish(50, header);
                assert_eq!(read(&ring), expected);
            });
        }
    }

    #[test]
    fn padding_before_an_abandoned_record_is_passed_over() {
        enum Left {
            AfterTheExchange,
            BetweenTheHeaders,
            WithTheRecord,
        }
        for left in [
            Left::AfterTheExchange,
            Left::BetweenTheHeaders,
            Left::WithTheRecord,
        ] {
            with_ring(|ring| {
                for _ in 0..6 {
                    ring.reserve(9, Priority::Last).unwrap().commit(9);
                }
                assert_eq!(read(&ring).len(), 6);
                let writer = Writer::new(3);
                // 4 words are left before the end.
                match left {
                    Left::AfterTheExchange => {
                        assert_eq!(left_after_the_exchange(&ring, writer, 6), 60);
                        assert!(ring.abandon_intended(writer, 60, 6));
                    }
                    Left::BetweenTheHeaders => {
                        // Both headers are there, and that of the padding is not published yet.
                        let tell = |progress| {
                            if progress == Progress::Begun {
                                resume_unwind(Box::new(()));
                            }
                        };
                        let reserve = || {
                            let _ = ring.reserve_by(writer, 6, Priority::Sample, tell);
                        };
                        assert!(catch_unwind(AssertUnwindSafe(reserve)).is_err());
                        assert_eq!(read(&ring), []);
                        assert!(ring.abandon(60, 6));
                    }
                    Left::WithTheRecord => {
                        let tell = |_| {};
                        let record = ring.reserve_by(writer, 6, Priority::Sample, tell).unwrap();
                        core::mem::forget(record);
                        assert!(ring.abandon(60, 6));
                    }
                }
                ring.reserve(1, Priority::Sample).unwrap().commit(8);
                assert_eq!(read(&ring), [(8, 71)]);
            });
        }
    }
}
