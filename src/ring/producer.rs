//! The writing end: reserve, write, commit.

use crate::layout::{MAX_RECORD_WORDS, PADDING, RecordHeader, State};
use crate::ring::Ring;
use crate::sync::{Ordering, WordsMut, compiler_fence};

/// Who may use the last eighth of the ring, and the last 64th.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Leaves an eighth of the capacity free.
    Sample,
    /// Leaves a 64th free. For what makes the records before it meaningful: frees, modules, threads.
    Essential,
    /// May fill the ring. For what is written once, when nobody may be left to make room: totals, and how it ended.
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
    /// With the header.
    total_words: u64,
    used_words: u64,
    kind: u8,
}

impl Ring {
    /// Reserves a record of `words` payload words (all zero). A record of up to a quarter of the capacity always fits
    /// into an empty ring; a longer one is always refused.
    ///
    /// Any thread, signal handlers included; lock-free, no system call.
    pub fn reserve(&self, words: usize, priority: Priority) -> Result<Reservation<'_>, RingFull> {
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
        let (head, tail) = (&header.head.0.position, &header.tail.0.released);
        // Acquire: pairs with the release store in `Consumer::release`. The words before it are zeroed, and the head
        // that we load next is not older than the tail: the consumer saw those records committed.
        let mut free_from = tail.load(Ordering::Acquire);
        // Relaxed: the exchange below decides.
        let mut start = head.load(Ordering::Relaxed);
        let (padding, position, used_words) = loop {
            let to_end = capacity - (start & (capacity - 1));
            let padding = if total_words > to_end { to_end } else { 0 };
            // Wrapping: positions that the program scribbled on look like a full ring, not like a panic.
            let end = start.wrapping_add(padding + total_words);
            let used_words = end.wrapping_sub(free_from);
            if used_words > limit {
                // The tail may have moved between the two loads.
                let current = tail.load(Ordering::Acquire);
                if current == free_from {
                    return Err(RingFull);
                }
                free_from = current;
                start = head.load(Ordering::Relaxed);
                continue;
            }
            // Relaxed: the head orders nothing but itself; words are published by their header.
            match head.compare_exchange_weak(start, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break (padding, start.wrapping_add(padding), used_words),
                Err(current) => start = current,
            }
        };
        if padding > 0 {
            let filler = RecordHeader {
                state: State::Committed,
                kind: PADDING,
                words: padding,
            };
            self.publish(start, filler);
        }
        // Relaxed: it tells only the length. The consumer stops at it, and who recovers reads it after our death.
        self.memory.header_word(position).store(
            RecordHeader {
                state: State::Reserved,
                kind: PADDING,
                words: total_words,
            }
            .encode(position),
            Ordering::Relaxed,
        );
        // Keeps the payload's stores after this one in the program, so that wherever a SIGKILL strikes, the length of a
        // record is there before any of its words.
        compiler_fence(Ordering::Release);
        Ok(Reservation {
            ring: self,
            position,
            total_words,
            used_words,
            kind: PADDING,
        })
    }

    /// Makes padding of a record of `words` payload words at `position` whose [`Reservation`] is forgotten: whoever had it
    /// will never come back. Does nothing if the record was committed after all, and returns false.
    pub fn abandon(&self, position: u64, words: usize) -> bool {
        let header = |state| {
            RecordHeader {
                state,
                kind: PADDING,
                words: (words as u64).saturating_add(1),
            }
            .encode(position)
        };
        // Release: as in `publish`. Only the owner changes the header of a reserved record, and it is the caller. What is at
        // this place of the ring later says another position.
        let abandoned = self.memory.header_word(position).compare_exchange(
            header(State::Reserved),
            header(State::Committed),
            Ordering::Release,
            Ordering::Relaxed,
        );
        abandoned.is_ok()
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

    /// Hands the record to the consumer. Kind 0 makes it padding.
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
