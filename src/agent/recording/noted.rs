//! A record that a thread writes where a signal handler may leave it by a jump.
//!
//! A record that is reserved and never committed stops the drain thread. So the thread notes the record in its own state,
//! and whoever finds out about the jump (`reentry.rs`) makes padding of it. A jump in the few instructions between the
//! reservation and the note goes unnoticed: then the ring fills, and what no longer fits is counted as lost.

use core::sync::atomic::{Ordering, compiler_fence};

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

    /// Makes padding of the record that the calling thread was at, and will not be again. True: it was written after all.
    pub fn abandon_record_of(&self, thread: &ShimThread) -> bool {
        thread
            .take_record()
            .is_some_and(|(position, words)| !self.ring.abandon(position, words))
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
