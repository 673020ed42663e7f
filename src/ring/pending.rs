//! What lies in the ring, as it lies there, for a process that ends without a drain thread.

use crate::layout::{RecordHeader, State};
use crate::ring::Ring;
use crate::sync::Ordering;

/// How often [`Ring::copy_pending`] looks again at a record whose header is due within nanoseconds.
const HEADER_ATTEMPTS: usize = 1000;

impl Ring {
    /// Position from which [`Ring::copy_pending`] starts: the tail.
    pub fn pending_from(&self) -> u64 {
        // Acquire: pairs with the release store in `Consumer::release`, as if this were the next consumer.
        self.memory.header().tail.0.released.load(Ordering::Acquire)
    }

    /// Copies whole records from position `from` on into `words`, headers included, while producers may be running.
    /// Returns the position after the last of them; there the next call goes on. It is `from` itself when nothing more
    /// can be copied: the head is reached, or `words` is shorter than the next record, or that record's writer has
    /// stopped between its reservation and its header. An unfinished record is copied as its header and zeros.
    ///
    /// Async-signal-safe, lock-free.
    ///
    /// # Safety
    /// No consumer exists; `from` is [`Ring::pending_from`] or what the last call returned.
    pub unsafe fn copy_pending(&self, from: u64, words: &mut [u64]) -> u64 {
        let memory = &self.memory;
        let mut position = from;
        let mut rest = words;
        // Relaxed: as in `Consumer::next`.
        while position != memory.header().head.0.position.load(Ordering::Relaxed) {
            let to_end = memory.capacity_words() - (position & (memory.capacity_words() - 1));
            let Some((word, header)) = self.header_soon(position) else {
                break;
            };
            if header.words > to_end {
                break;
            }
            // At most a quarter of the capacity, so it fits.
            let Some((record, next)) =
                core::mem::take(&mut rest).split_at_mut_checked(header.words as usize)
            else {
                break;
            };
            rest = next;
            if let Some((first, payload)) = record.split_first_mut() {
                *first = word;
                if header.state == State::Committed {
                    // SAFETY: committed, as `header_soon` saw with acquire, and inside the data; nobody releases it.
                    payload.copy_from_slice(unsafe { memory.payload(position + 1, payload.len()) });
                } else {
                    // Its writer may be at work on these words.
                    payload.fill(0);
                }
            }
            position += header.words;
        }
        position
    }

    /// The header at a position that is reserved, which its writer may be about to store.
    fn header_soon(&self, position: u64) -> Option<(u64, RecordHeader)> {
        (0..HEADER_ATTEMPTS).find_map(|_| {
            // Acquire: pairs with the release store in `Ring::publish`.
            let word = self.memory.header_word(position).load(Ordering::Acquire);
            core::hint::spin_loop();
            Some((word, RecordHeader::decode(word, position)?))
        })
    }
}
