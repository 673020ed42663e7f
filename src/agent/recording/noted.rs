//! A record that a thread writes where a signal handler may leave it by a jump.
//!
//! A record that is reserved and never committed stops the drain thread. So the thread notes the record in its own state,
//! and whoever finds out about the jump (`reentry.rs`) makes padding of it. A jump in the few instructions between the
//! reservation and the note goes unnoticed: then the ring fills, and what no longer fits is counted as lost.

use allocsample_ring::{Priority, Reservation, RingFull};

use super::Recording;
use crate::os::thread::ShimThread;

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
        let reservation = self.ring.reserve(words, priority)?;
        let is_noted = thread.note_record(reservation.position(), words);
        Ok(Noted {
            reservation,
            note: Note(is_noted.then_some(thread)),
        })
    }

    /// Makes padding of the record that the calling thread was at, and will not be again.
    pub fn abandon_record_of(&self, thread: &ShimThread) {
        if let Some((position, words)) = thread.take_record() {
            self.ring.abandon(position, words);
        }
    }
}

impl Noted<'_> {
    /// Hands it to the drain thread.
    #[inline]
    pub fn commit(self, kind: u8) {
        let Self { reservation, note } = self;
        reservation.commit(kind);
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
