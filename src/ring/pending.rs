//! Reads the ring in place, for a process that ends without a drain thread.

use crate::layout::{PADDING, RecordHeader, State};
use crate::ring::Ring;
use crate::sync::Ordering;

/// A contiguous part of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stretch<'a> {
    /// A committed record.
    Record {
        /// The kind that the producer committed; never 0.
        kind: u8,
        /// Its payload.
        payload: &'a [u64],
    },
    /// Padding of this many words.
    Padding(u64),
    /// A record of this many words that was reserved and not committed.
    Unfinished(u64),
}

impl Stretch<'_> {
    /// Length in words, header included.
    pub fn words(&self) -> u64 {
        match self {
            // A slice's length fits.
            Self::Record { payload, .. } => payload.len() as u64 + 1,
            Self::Padding(words) | Self::Unfinished(words) => *words,
        }
    }
}

/// Number of times that [`Ring::copy_pending`] reads a header again that its writer is about to store.
const HEADER_ATTEMPTS: usize = 1000;

impl Ring {
    /// Position from which [`Ring::copy_pending`] starts: the tail.
    pub fn pending_from(&self) -> u64 {
        // Acquire: pairs with the release store in `Consumer::release`, as if this were the next consumer.
        self.memory.header().tail.0.released.load(Ordering::Acquire)
    }

    /// Returns the parts of the ring between the positions `from` and `to`, in order, while producers may be running. Ends
    /// before `to` at a record that was reserved and has no header yet.
    ///
    /// Async-signal-safe, lock-free.
    ///
    /// # Safety
    /// No consumer exists while the iterator and its items do; `from` is [`Ring::pending_from`], `to` at most the head.
    pub unsafe fn pending(&self, from: u64, to: u64) -> impl Iterator<Item = Stretch<'_>> {
        let memory = &self.memory;
        let mut position = from;
        core::iter::from_fn(move || {
            if position >= to {
                return None;
            }
            let to_end = memory.capacity_words() - (position & (memory.capacity_words() - 1));
            let (_, header) = self.header_soon(position)?;
            if header.words > to_end {
                return None;
            }
            let at = position;
            position += header.words;
            Some(match header.state {
                State::Reserved => Stretch::Unfinished(header.words),
                State::Committed if header.kind == PADDING => Stretch::Padding(header.words),
                State::Committed => Stretch::Record {
                    kind: header.kind,
                    // SAFETY: committed, as `header_soon` saw with acquire, and inside the data; nobody releases it. At most
                    // a quarter of the capacity, so the length fits.
                    payload: unsafe { memory.payload(at + 1, (header.words - 1) as usize) },
                },
            })
        })
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
        while position != self.head() {
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

    /// Waits briefly for the header at a reserved position.
    fn header_soon(&self, position: u64) -> Option<(u64, RecordHeader)> {
        (0..HEADER_ATTEMPTS).find_map(|_| {
            // Acquire: pairs with the release store in `Ring::publish`.
            let word = self.memory.header_word(position).load(Ordering::Acquire);
            let header = RecordHeader::decode(word, position);
            if header.is_none() {
                core::hint::spin_loop();
            }
            Some((word, header?))
        })
    }
}
