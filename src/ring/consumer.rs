//! The reading end.

use crate::layout::{PADDING, RecordHeader, State};
use crate::ring::Ring;
use crate::sync::{Ordering, Words, compiler_fence};

/// Reads a ring in the order of reservation. Records that it has read stay in the ring until [`Consumer::release`]: a
/// process killed before that, or a consumer dropped before that, leaves them to be read again.
pub struct Consumer {
    ring: Ring,
    /// Position of the next record to read.
    position: u64,
    /// Everything before this position is released.
    released: u64,
    /// The head as last read. Producers write it all the time, so it is read again only when everything before it was
    /// consumed.
    head: u64,
}

/// A committed record.
pub struct Record<'a> {
    /// Position of its reservation, in words.
    pub position: u64,
    /// The kind that the producer committed; never 0, which is padding.
    pub kind: u8,
    /// The payload.
    pub words: Words<'a>,
}

impl Ring {
    /// The reading end, from the first record that is not released.
    ///
    /// # Safety
    /// At most one consumer of a ring (all copies of it, all processes that map it) exists at a time.
    pub unsafe fn consumer(&self) -> Consumer {
        // Acquire: pairs with the release store of an earlier consumer, perhaps on another thread.
        let released = self.memory.header().tail.0.released.load(Ordering::Acquire);
        Consumer {
            ring: *self,
            position: released,
            released,
            head: released,
        }
    }
}

impl Consumer {
    /// The next committed record; padding is skipped. `None`: the next one is not committed yet, or there is none.
    ///
    /// It stops for good at a record that its writer never commits, or that has a header overwritten by the program. The ring
    /// then fills up, records that do not fit are counted as lost, and `recover` finds the rest.
    #[expect(
        clippy::should_implement_trait,
        reason = "a record borrows the consumer, which an Iterator cannot express"
    )]
    pub fn next(&mut self) -> Option<Record<'_>> {
        let memory = &self.ring.memory;
        let (position, header) = loop {
            let position = self.position;
            if position == self.head {
                // Relaxed: the loads of headers so far (acquire) are later than the moves of the head before them, so
                // the value is not below `position`. Without this test a full ring would be read round and round.
                self.head = self.ring.head();
                if position == self.head {
                    return None;
                }
            }
            // Acquire: pairs with the release store in `Ring::publish`. The payload is visible.
            let word = memory.header_word(position).load(Ordering::Acquire);
            let header = RecordHeader::decode(word, position)?;
            let to_end = memory.capacity_words() - (position & (memory.capacity_words() - 1));
            if header.state != State::Committed || header.words > to_end {
                return None;
            }
            self.position = position + header.words;
            if header.kind != PADDING {
                break (position, header);
            }
        };
        // SAFETY: committed, as seen above with acquire; inside the data, as its length was compared with the distance
        // to the end. `release` needs `&mut self`, so the record lives no longer than its words.
        let words = unsafe { memory.payload(position + 1, (header.words - 1) as usize) };
        Some(Record {
            position,
            kind: header.kind,
            words,
        })
    }

    /// Position of the next record to read, in words.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Gives the space of everything read so far back to the producers.
    pub fn release(&mut self) {
        if self.position == self.released {
            return;
        }
        let memory = &self.ring.memory;
        let tail = &memory.header().tail.0;
        // Relaxed plus a compiler fence: for who reads the file after a kill, not for another thread. The words are
        // zeroed after this store in the program, so a record found destroyed is one that was read.
        tail.consumed.store(self.position, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // SAFETY: everything up to `position` was committed and we were its only reader; `released` is the tail.
        unsafe { memory.zero(self.released, self.position) };
        // Release: pairs with the acquire loads of the tail in `reserve` and `Ring::consumer`. The zeros come first.
        tail.released.store(self.position, Ordering::Release);
        self.released = self.position;
    }
}
