//! Everything that virtual machines have defined, for profiles that begin later.

use allocsample_record::{CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, RingRecord};
use allocsample_ring::{Priority, Ring};

use crate::os::file::File;
use crate::os::leaked::{self, StaticRef};
use crate::os::memory;

/// 32 MiB of address space, of which only what is used becomes memory.
const CAPACITY_WORDS: u64 = 1 << 22;

/// A ring that is never drained.
pub struct Definitions {
    ring: StaticRef<Ring>,
}

impl Definitions {
    /// None.
    pub const fn new() -> Self {
        Self {
            ring: StaticRef::new(),
        }
    }

    fn ring(&self) -> Option<&'static Ring> {
        if let Some(ring) = self.ring.get() {
            return Some(ring);
        }
        let base = memory::map(allocsample_ring::file_bytes(CAPACITY_WORDS))?;
        // SAFETY: fresh and zeroed, mapped for ever, aligned to a page; a forked child has a copy of its own.
        let ring = unsafe { Ring::create(base, CAPACITY_WORDS, 0) };
        Some(self.ring.set_if_empty(leaked::leak(ring)?))
    }

    /// Keeps a record. False: there is no room for it.
    pub(crate) fn keep<R: RingRecord>(&self, record: &R) -> bool {
        let reserve = |ring: &'static Ring| ring.reserve(record.words(), Priority::Last);
        let Some(Ok(mut reservation)) = self.ring().map(reserve) else {
            return false;
        };
        if record.encode_into(reservation.words_mut()).is_none() {
            return false;
        }
        reservation.commit(R::KIND as u8);
        true
    }

    /// Writes all that was defined as one chunk, unless what there is up to position `known` is in the file; returns the
    /// position after it. A reader knows records by their positions, which begin at 0 in each chunk: so it is all of them,
    /// which changes nothing for those that it has. The chunk goes out in one write, so that it may stand between those of
    /// others.
    pub(crate) fn write(&self, file: &File, known: u64) -> Option<u64> {
        let Some(ring) = self.ring.get() else {
            return Some(known);
        };
        let head = ring.head();
        if head <= known {
            return Some(known);
        }
        let words = usize::try_from(head).ok()?;
        let bytes = CHUNK_HEADER_BYTES + words * 8;
        let copy = memory::map(bytes)?;
        // SAFETY: fresh memory of this many bytes, aligned to a page, and so its tail behind a header of 40 bytes to 8.
        let (header, payload) = unsafe {
            (
                core::slice::from_raw_parts_mut(copy.as_ptr(), CHUNK_HEADER_BYTES),
                core::slice::from_raw_parts_mut(
                    copy.as_ptr().add(CHUNK_HEADER_BYTES).cast::<u64>(),
                    words,
                ),
            )
        };
        // SAFETY: nobody consumes this ring.
        let to = unsafe { ring.copy_pending(0, payload) };
        let copied = usize::try_from(to).ok()? * 8;
        // SAFETY: the same memory as bytes.
        let payload =
            unsafe { core::slice::from_raw_parts(copy.as_ptr().add(CHUNK_HEADER_BYTES), copied) };
        let chunk = ChunkHeader::for_payload(
            ChunkKind::Definitions,
            u32::try_from(copied).ok()?,
            0..0,
            &[payload],
        );
        header.copy_from_slice(&chunk.encode());
        // SAFETY: as above: the header and what was copied.
        let all =
            unsafe { core::slice::from_raw_parts(copy.as_ptr(), CHUNK_HEADER_BYTES + copied) };
        let is_written = file.write_all(all).is_ok();
        // SAFETY: mapped above; the slices are not used any more.
        unsafe { memory::unmap(copy, bytes) };
        is_written.then_some(to)
    }
}
