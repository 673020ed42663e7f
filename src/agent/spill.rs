//! How a process without a drain thread leaves its records: the ring's words, as they are, behind what the profile has.
//!
//! No allocation but one mapping, no lock, no thread: safe at `_exit` in a signal handler. If anything fails, the ring
//! file stays, and the reader finds the records there.

use allocsample_record::{CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, LOST_REASONS};

use crate::os::file::{self, File};
use crate::os::memory;
use crate::recording::Recording;

/// Writes all records and removes the ring. Only while no drain thread runs.
pub fn finish(recording: &Recording) -> bool {
    let is_written = write(recording).is_some();
    if is_written {
        recording.ring.close();
        file::unlink(recording.ring_path.as_c_str());
    }
    is_written
}

fn write(recording: &Recording) -> Option<()> {
    let ring = &recording.ring;
    let bytes = usize::try_from(ring.used_words()).ok()?.checked_mul(8)?;
    if bytes as u64 + 4096 > file::size_limit() {
        return None;
    }
    let file = File::open_to_append(recording.path.as_c_str()).ok()?;
    let length_before = file.length().ok()?;
    let is_written =
        write_ring(recording, &file, bytes).is_some() && write_lost(recording, &file).is_some();
    if !is_written {
        // No half chunk: the reader would stop there, and not see that the ring has the rest.
        file.truncate(length_before).ok()?;
        return None;
    }
    Some(())
}

fn write_ring(recording: &Recording, file: &File, bytes: usize) -> Option<()> {
    if bytes == 0 {
        return Some(());
    }
    let copy = memory::map(bytes)?;
    // SAFETY: fresh memory of this many bytes, zeroed and aligned to a page.
    let words = unsafe { core::slice::from_raw_parts_mut(copy.as_ptr().cast::<u64>(), bytes / 8) };
    let from = recording.ring.pending_from();
    // SAFETY: no drain thread runs, so there is no consumer.
    let to = unsafe { recording.ring.copy_pending(from, words) };
    let copied = usize::try_from(to - from).ok()?.checked_mul(8)?;
    // SAFETY: the same memory, as bytes; a file holds words in little-endian order, and so does this processor.
    let payload = unsafe { core::slice::from_raw_parts(copy.as_ptr(), copied) };
    let header = ChunkHeader::for_payload(
        ChunkKind::RawRing,
        u32::try_from(copied).ok()?,
        from..to,
        &[payload],
    );
    let result = file
        .write_all(&header.encode())
        .and_then(|()| file.write_all(payload));
    // SAFETY: mapped above; the slices are not used any more.
    unsafe { memory::unmap(copy, bytes) };
    result.ok()
}

fn write_lost(recording: &Recording, file: &File) -> Option<()> {
    let lost = recording.ring.lost();
    if lost.iter().all(|&(events, _)| events == 0) {
        return Some(());
    }
    let mut payload = [0; 16 * LOST_REASONS];
    for (place, value) in payload
        .chunks_exact_mut(8)
        .zip(lost.iter().flat_map(|&(events, bytes)| [events, bytes]))
    {
        place.copy_from_slice(&value.to_le_bytes());
    }
    let position = recording.ring.pending_from();
    let header = ChunkHeader::for_payload(
        ChunkKind::Lost,
        payload.len() as u32,
        position..position,
        &[&payload],
    );
    let mut chunk = [0; CHUNK_HEADER_BYTES + 16 * LOST_REASONS];
    chunk
        .get_mut(..CHUNK_HEADER_BYTES)?
        .copy_from_slice(&header.encode());
    chunk
        .get_mut(CHUNK_HEADER_BYTES..)?
        .copy_from_slice(&payload);
    file.write_all(&chunk).ok()
}

const _: () = assert!(
    cfg!(target_endian = "little"),
    "files hold little-endian words"
);
