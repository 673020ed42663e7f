//! The mapped memory of a ring.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

use crate::layout::{DATA_OFFSET, Header};

/// Payload of a record that is being written.
pub(crate) type WordsMut<'a> = &'a mut [u64];
/// Payload of a record that is being read.
pub(crate) type Words<'a> = &'a [u64];

/// Base and capacity of a mapped ring.
///
/// Invariant, promised to [`Memory::new`]: `base..base + file_bytes(capacity_words)` is mapped readable and writable
/// while any copy of this value is used, is aligned to 64 bytes, and nothing else than this crate writes there.
/// `capacity_words` is a power of two, so a masked position is an index into the data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    capacity_words: u64,
}

// SAFETY: a pointer into memory that belongs to no thread; what is shared there is accessed through atomics, and
// payload words by one thread at a time: the record's writer, then (release/acquire through its header) the consumer.
unsafe impl Send for Memory {}
// SAFETY: as above; `Memory` itself is never changed.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Safety
    /// The invariant of [`Memory`].
    pub unsafe fn new(base: NonNull<u8>, capacity_words: u64) -> Self {
        Self {
            base,
            capacity_words,
        }
    }

    pub fn capacity_words(&self) -> u64 {
        self.capacity_words
    }

    pub fn header(&self) -> &Header {
        // SAFETY: the first 4096 bytes are mapped and aligned (invariant); a header is atomics only, for which any
        // bytes are a value and which other threads may change under a shared reference.
        unsafe { self.base.cast().as_ref() }
    }

    /// The word at `position`, to be used as a record header.
    pub fn header_word(&self, position: u64) -> &AtomicU64 {
        // SAFETY: `word` points to 8 mapped, aligned bytes. A word that starts a record is accessed only as an atomic
        // from its reservation until the consumer has taken the record and zeroes it.
        unsafe { self.word(position).cast().as_ref() }
    }

    /// `words` payload words from `position`.
    ///
    /// # Safety
    /// They lie in a record that the caller reserved and has not committed, and no other reference to them exists.
    pub unsafe fn payload_mut(&self, position: u64, words: usize) -> WordsMut<'_> {
        // SAFETY: a record never crosses the end of the data, so the words are contiguous and mapped; they are zero or
        // what the caller wrote, hence initialised; exclusive by the caller's promise.
        unsafe { core::slice::from_raw_parts_mut(self.word(position).as_ptr(), words) }
    }

    /// `words` payload words from `position`.
    ///
    /// # Safety
    /// They lie in a record whose commit the caller has seen (with acquire), and which is not released meanwhile.
    pub unsafe fn payload(&self, position: u64, words: usize) -> Words<'_> {
        // SAFETY: contiguous and mapped as above; after the commit nobody writes them until the release.
        unsafe { core::slice::from_raw_parts(self.word(position).as_ptr(), words) }
    }

    /// Sets the words of `[from, to)` to zero.
    ///
    /// # Safety
    /// `from <= to <= from + capacity`; all records there are committed, the caller is the only consumer, and the
    /// released position is at most `from`.
    pub unsafe fn zero(&self, from: u64, to: u64) {
        for (position, words) in self.pieces(from, to) {
            // SAFETY: `pieces` stay inside the data; no reference to the words exists: their writers are done, and no
            // producer reserves them before they are released.
            unsafe { self.word(position).write_bytes(0, words) };
        }
    }

    /// `[from, to)` cut at the end of the data: (position, words) of both pieces, the second one possibly empty.
    fn pieces(&self, from: u64, to: u64) -> [(u64, usize); 2] {
        let words = to.saturating_sub(from).min(self.capacity_words);
        let before_end = words.min(self.capacity_words - (from & (self.capacity_words - 1)));
        // Both are at most the capacity, which was mapped, so they fit into usize.
        [
            (from, before_end as usize),
            (from + before_end, (words - before_end) as usize),
        ]
    }

    fn word(&self, position: u64) -> NonNull<u64> {
        let index = (position & (self.capacity_words - 1)) as usize;
        // SAFETY: the index is below the capacity, so the result is inside the mapping.
        unsafe { self.base.add(DATA_OFFSET + index * size_of::<u64>()) }.cast()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Ring;
    use crate::layout::file_bytes;

    #[repr(C, align(4096))]
    struct Page([u8; DATA_OFFSET]);

    #[test]
    fn a_range_is_cut_at_the_end_of_the_data_and_never_longer_than_it() {
        const CAPACITY: u64 = 64;
        const { assert!(file_bytes(CAPACITY) <= 2 * size_of::<Page>()) };
        let mut pages = [Page([0; DATA_OFFSET]), Page([0; DATA_OFFSET])];
        let base = NonNull::from(&mut pages).cast();
        // SAFETY: 1. zeroed, aligned, and longer than the ring, which does not leave this function. 2. 64. 3. Nobody
        // else has it.
        let ring = unsafe { Ring::create(base, CAPACITY, 7) };
        let pieces = |from, to| ring.memory.pieces(from, to);
        assert_eq!(pieces(0, 64), [(0, 64), (64, 0)]);
        assert_eq!(pieces(60, 64), [(60, 4), (64, 0)]);
        assert_eq!(pieces(60, 70), [(60, 4), (64, 6)]);
        assert_eq!(pieces(190, 194), [(190, 2), (192, 2)]);
        assert_eq!(pieces(64, 64), [(64, 0), (64, 0)]);
        assert_eq!(pieces(10, 1000), [(10, 54), (64, 10)]);
        assert_eq!(pieces(10, 9), [(10, 0), (10, 0)]);
    }
}
