//! A record that a thread writes where a signal handler may leave it by a jump.
//!
//! A record that is reserved and never committed stops the drain thread. So the thread notes the record in its own state,
//! and whoever finds out about the jump (`reentry.rs`) makes padding of it. The note precedes the reservation; the ring can
//! tell whether the reservation was made. Two cases are not covered: a thread outside the first 191 slots that is left
//! between the reservation and the record's header, and the record of a signal handler that interrupted another record. In
//! these cases the ring fills up, and further samples are counted as lost.

use core::sync::atomic::{Ordering, compiler_fence};

use allocsample_ring::{Priority, Progress, Reservation, RingFull, Writer};

use super::Recording;
use crate::accounting::thread::{NotedRecord, ShimThread};

/// A reserved record.
#[must_use]
pub struct Noted<'a> {
    /// Committed or dropped before the note is.
    pub reservation: Reservation<'a>,
    note: Note<'a>,
}

/// Removes the note. `None`: there is one about another record, which the thread was at when it was interrupted.
struct Note<'a>(Option<&'a ShimThread>);

impl Recording {
    /// Reserves a record of `words` payload words on the calling thread.
    #[inline]
    pub fn reserve_on<'a>(
        &'a self,
        thread: &'a ShimThread,
        words: usize,
        priority: Priority,
    ) -> Result<Noted<'a>, RingFull> {
        if thread.has_record() {
            let reservation = self.ring.reserve(words, priority)?;
            let note = Note(None);
            return Ok(Noted { reservation, note });
        }
        // Removes the note also where there is no room.
        let note = Note(Some(thread));
        // A thread has its slot to itself while it belongs to us.
        let slot = if thread.epoch() == 0 {
            0
        } else {
            thread.slot()
        };
        let writer = Writer::new(slot as usize);
        let ring = NotedRecord::ring_bits(self.ring.id());
        let tell = |progress| match progress {
            Progress::Intended(start) => thread.note_record(NotedRecord {
                start,
                words,
                writer: writer.number(),
                ring,
                has_begun: false,
            }),
            Progress::Begun => thread.record_has_begun(),
        };
        let reservation = self.ring.reserve_by(writer, words, priority, tell)?;
        Ok(Noted { reservation, note })
    }

    /// Makes padding of the record that the calling thread was at, and will not be again. True: it was written after all.
    pub fn abandon_record_of(&self, thread: &ShimThread) -> bool {
        let Some(record) = thread.take_record() else {
            return false;
        };
        let NotedRecord { start, words, .. } = record;
        let is_here = record.ring == NotedRecord::ring_bits(self.ring.id());
        match record.has_begun {
            true => !(is_here && self.ring.abandon(start, words)),
            false => {
                let writer = Writer::new(record.writer);
                let _not_reserved = is_here && self.ring.abandon_intended(writer, start, words);
                false
            }
        }
    }
}

impl Noted<'_> {
    /// Hands it to the drain thread.
    #[inline]
    pub fn commit(self, kind: u8) {
        self.commit_and(kind, || {});
    }

    /// The same, and does what goes with it while the record is still noted: whoever finds out about a jump in between sees
    /// that it was written.
    #[inline]
    pub fn commit_and(self, kind: u8, then: impl FnOnce()) {
        let Self { reservation, note } = self;
        reservation.commit(kind);
        compiler_fence(Ordering::SeqCst);
        then();
        compiler_fence(Ordering::SeqCst);
        drop(note);
    }
}

impl Drop for Note<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(thread) = self.0 {
            thread.take_record();
        }
    }
}
