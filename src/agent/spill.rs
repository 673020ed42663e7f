//! Writes the ring's records to the profile in a process without a drain thread: packed and compressed. Encoding them as the
//! drain thread does would take longer than the samples took, and save little more.
//!
//! No memory but our own, no lock that the program could hold, no thread: safe at `_exit` in a signal handler, where the
//! handler did not interrupt us. If anything fails, the ring file stays, and the reader finds the records there.

use core::ops::Range;

use allocsample_record::{
    CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, FIGURES, Figure, LOST_REASONS, MemoryTotals, Packer,
};
use allocsample_ring::Stretch;

use crate::os;
use crate::os::file::{self, File};
use crate::os::memory;
use crate::os::residency;
use crate::recording::Recording;

/// Compresses the first slice into the second, as long as [`most_compressed`], as one LZ4 block; its length. `None`: it
/// does not fit.
pub type Compress = fn(&[u8], &mut [u8]) -> Option<usize>;

/// Maximum length of an LZ4 block of this many bytes. The format adds at most one byte in 255, and sixteen; the crate asks for
/// room for a tenth.
const fn most_compressed(bytes: usize) -> usize {
    bytes + bytes / 10 + 32
}

/// Writes all records, if the profile stays below `most_bytes` with them, and removes the ring. Only while no drain thread
/// runs.
pub fn finish(recording: &Recording, compress: Compress, most_bytes: Option<u64>) -> bool {
    let is_written = write(recording, compress, most_bytes).is_some();
    if is_written {
        recording.ring.close();
        recording.remove_ring();
    }
    is_written
}

fn write(recording: &Recording, compress: Compress, most_bytes: Option<u64>) -> Option<()> {
    if os::is_filtered() {
        return None;
    }
    let ring = &recording.ring;
    let bytes = usize::try_from(ring.used_words()).ok()?.checked_mul(8)?;
    if bytes as u64 + 4096 > file::size_limit() {
        return None;
    }
    let file = File::open_to_append(recording.path.as_c_str()).ok()?;
    let length_before = file.length().ok()?;
    let length_after = length_before.saturating_add(bytes as u64 + 4096);
    if most_bytes.is_some_and(|most| length_after > most) {
        return None;
    }
    let is_written = write_ring(recording, &file, compress).is_some()
        && write_lost(recording, &file).is_some()
        && write_memory(recording, &file, compress).is_some()
        && write_figures(recording, &file).is_some();
    if !is_written {
        // No half chunk: the reader would stop there, and not see that the ring has the rest.
        file.truncate(length_before).ok()?;
        return None;
    }
    Some(())
}

fn write_ring(recording: &Recording, file: &File, compress: Compress) -> Option<()> {
    let ring = &recording.ring;
    // Others may go on: what they add from here on goes nowhere, as the process is at its end.
    let (from, head) = (ring.pending_from(), ring.head());
    let words = usize::try_from(head.checked_sub(from)?).ok()?;
    if words == 0 {
        return Some(());
    }
    let most = Packer::most_bytes(words);
    let written = with_memory(2 * most + most_compressed(most), |memory| {
        let (records, memory) = memory.split_at_mut_checked(most)?;
        let (frames, compressed) = memory.split_at_mut_checked(most)?;
        let mut packer = Packer::new(records, frames);
        let to = pack(recording, from..head, &mut packer)?;
        let (records_bytes, frames_bytes) = packer.used();
        let records = records.get(..records_bytes)?;
        let length = compress(frames.get(..frames_bytes)?, compressed)?;
        let records_bytes = u32::try_from(records_bytes).ok()?.to_le_bytes();
        let payload = [&records_bytes, records, compressed.get(..length)?];
        let raw_bytes = u32::try_from(frames_bytes).ok()?;
        let header = ChunkHeader::for_payload(ChunkKind::Packed, raw_bytes, from..to, &payload);
        file.write_all(&header.encode()).ok()?;
        payload
            .iter()
            .try_for_each(|part| file.write_all(part))
            .ok()
    });
    written.flatten()
}

/// Packs the records in this range of positions. Returns the position that it came to.
fn pack(recording: &Recording, range: Range<u64>, packer: &mut Packer<'_>) -> Option<u64> {
    let mut position = range.start;
    // SAFETY: no drain thread runs, so there is no consumer; the head was read before.
    for stretch in unsafe { recording.ring.pending(range.start, range.end) } {
        match stretch {
            Stretch::Record { kind, payload } => packer.record(kind, payload)?,
            Stretch::Padding(words) => packer.gap(words, false)?,
            Stretch::Unfinished(words) => packer.gap(words, true)?,
        }
        position += stretch.words();
    }
    Some(position)
}

/// Runs `work` with zeroed working memory. `None`: there is no memory.
fn with_memory<R>(bytes: usize, work: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
    let place = memory::map(bytes)?;
    // SAFETY: fresh memory of this many bytes, zeroed.
    let buffer = unsafe { core::slice::from_raw_parts_mut(place.as_ptr(), bytes) };
    let result = work(buffer);
    // SAFETY: mapped above; the slice is not used any more.
    unsafe { memory::unmap(place, bytes) };
    Some(result)
}

fn write_lost(recording: &Recording, file: &File) -> Option<()> {
    let lost = recording.ring.lost();
    if lost.iter().all(|&(events, _)| events == 0) {
        return Some(());
    }
    let mut words = [0; 2 * LOST_REASONS];
    let counts = lost.iter().flat_map(|&(events, bytes)| [events, bytes]);
    for (place, value) in words.iter_mut().zip(counts) {
        *place = value;
    }
    write_words(recording, file, ChunkKind::Lost, &words)
}

/// Writes how much memory the process has at its end. Reading the kernel's file takes some microseconds, however large the
/// process is. If it cannot be read, the chunk is left out.
fn write_memory(recording: &Recording, file: &File, compress: Compress) -> Option<()> {
    const MOST: usize = MemoryTotals::MAX_BYTES;
    let Some(totals) = residency::at_end() else {
        return Some(());
    };
    let mut payload = [0; MOST];
    let length = totals.encode_into(&mut payload)?;
    let mut chunk = [0; CHUNK_HEADER_BYTES + most_compressed(MOST)];
    let (head, tail) = chunk.split_at_mut_checked(CHUNK_HEADER_BYTES)?;
    let bytes = compress(payload.get(..length)?, tail)?;
    let position = recording.ring.pending_from();
    let raw_bytes = u32::try_from(length).ok()?;
    let parts = [tail.get(..bytes)?];
    let header = ChunkHeader::for_payload(ChunkKind::Memory, raw_bytes, position..position, &parts);
    head.copy_from_slice(&header.encode());
    file.write_all(chunk.get(..CHUNK_HEADER_BYTES + bytes)?)
        .ok()
}

/// Writes the agent's figures about itself. The length of the profile includes this chunk.
fn write_figures(recording: &Recording, file: &File) -> Option<()> {
    let chunk_bytes = CHUNK_HEADER_BYTES + 8 * FIGURES;
    let length = file.length().ok()? + chunk_bytes as u64;
    recording.update_figures();
    recording
        .ring
        .set_figure(Figure::WrittenBytes as usize, length);
    let figures = recording.ring.figures();
    write_words(recording, file, ChunkKind::Figures, &figures)
}

/// Writes a chunk of at most [`FIGURES`] words.
fn write_words(recording: &Recording, file: &File, kind: ChunkKind, words: &[u64]) -> Option<()> {
    let mut payload = [0; 8 * FIGURES];
    for (place, value) in payload.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    let payload = payload.get(..8 * words.len())?;
    let position = recording.ring.pending_from();
    let bytes = u32::try_from(payload.len()).ok()?;
    let header = ChunkHeader::for_payload(kind, bytes, position..position, &[payload]);
    let mut chunk = [0; CHUNK_HEADER_BYTES + 8 * FIGURES];
    let (head, tail) = chunk.split_at_mut_checked(CHUNK_HEADER_BYTES)?;
    head.copy_from_slice(&header.encode());
    tail.get_mut(..payload.len())?.copy_from_slice(payload);
    file.write_all(chunk.get(..CHUNK_HEADER_BYTES + payload.len())?)
        .ok()
}

const _: () = assert!(2 * LOST_REASONS <= FIGURES, "the buffers are as long");

const _: () = assert!(
    cfg!(target_endian = "little"),
    "files hold little-endian words"
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::process;
    use crate::path::Path;
    use crate::recording::tests::recording_at;
    use allocsample_record::{ForkRecord, LostReason};
    use core::sync::atomic::{AtomicU32, Ordering};
    use std::vec::Vec;

    #[test]
    fn there_is_room_for_bytes_that_cannot_be_compressed() {
        // The format's own bound: literals take one byte more for each 255, and the block 16 more.
        for bytes in [0, 1, 254, 255, 256, 4096, 1 << 20] {
            assert!(
                most_compressed(bytes) >= bytes + bytes / 255 + 16,
                "{bytes}"
            );
        }
    }

    #[test]
    fn working_memory_is_zero_and_as_long_as_asked() {
        let found = with_memory(5000, |memory| {
            let is_zero = memory.iter().all(|&byte| byte == 0);
            memory.fill(1);
            (memory.len(), is_zero)
        });
        assert_eq!(found, Some((5000, true)));
        assert_eq!(with_memory(usize::MAX / 2, |_| ()), None);
    }

    /// A recording with files of its own in a new directory, whose profile begins with these bytes.
    struct Files {
        recording: Recording,
        profile: std::path::PathBuf,
        ring: std::path::PathBuf,
    }

    const BEGINNING: &[u8] = b"the header";

    fn files(name: &str) -> Files {
        let directory = std::env::temp_dir().join(std::format!("spill-{name}-{}", process::pid()));
        std::fs::create_dir_all(&directory).unwrap();
        let (profile, ring) = (directory.join("profile"), directory.join("profile.ring"));
        std::fs::write(&profile, BEGINNING).unwrap();
        std::fs::write(&ring, b"").unwrap();
        let mut path = Path::new();
        path.push(profile.as_os_str().as_encoded_bytes());
        let recording = recording_at(path);
        for child_pid in 0..10 {
            assert!(recording.push(&ForkRecord {
                time_ns: 5,
                child_pid
            }));
        }
        Files {
            recording,
            profile,
            ring,
        }
    }

    impl Files {
        /// The kinds of the chunks that were appended.
        fn chunks(&self) -> Vec<u16> {
            self.payloads().into_iter().map(|(kind, _)| kind).collect()
        }

        /// The words of the only chunk of a kind.
        fn words(&self, kind: ChunkKind) -> Vec<u64> {
            let mut payloads = self.payloads().into_iter();
            let (_, payload) = payloads.find(|it| it.0 == kind as u16).unwrap();
            let words = payload.chunks(8);
            words
                .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
                .collect()
        }

        /// Kinds and contents of the chunks that were appended, each of which is whole.
        fn payloads(&self) -> Vec<(u16, Vec<u8>)> {
            let bytes = std::fs::read(&self.profile).unwrap();
            let mut rest = bytes.strip_prefix(BEGINNING).unwrap();
            let mut found = Vec::new();
            while let Some((header, behind)) = rest.split_at_checked(CHUNK_HEADER_BYTES) {
                let header = ChunkHeader::decode(header).unwrap();
                let (payload, behind) = behind.split_at(header.stored_bytes as usize);
                assert!(header.matches(payload));
                found.push((header.kind, payload.to_vec()));
                rest = behind;
            }
            assert!(rest.is_empty());
            found
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(self.profile.parent().unwrap());
        }
    }

    /// No compression, which the reader would notice, but not this test.
    fn copy(from: &[u8], to: &mut [u8]) -> Option<usize> {
        to.get_mut(..from.len())?.copy_from_slice(from);
        Some(from.len())
    }

    /// Fails from the second chunk on.
    fn copy_once(from: &[u8], to: &mut [u8]) -> Option<usize> {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        match CALLS.fetch_add(1, Ordering::Relaxed) {
            0 => copy(from, to),
            _ => None,
        }
    }

    #[test]
    fn records_losses_and_figures_are_appended_and_the_ring_is_removed() {
        let files = files("whole");
        assert!(finish(&files.recording, copy, None));
        let chunks = files.chunks();
        let expected = [ChunkKind::Packed, ChunkKind::Memory, ChunkKind::Figures];
        assert_eq!(chunks, expected.map(|kind| kind as u16));
        assert!(files.recording.ring.is_closed());
        assert!(!files.ring.exists());
    }

    #[test]
    fn losses_are_written_only_if_there_are_any() {
        let files = files("lost");
        files.recording.count_lost(LostReason::RingFull, 1, 100);
        assert!(finish(&files.recording, copy, None));
        assert!(files.chunks().contains(&(ChunkKind::Lost as u16)));
    }

    #[test]
    fn all_losses_and_figures_are_written_with_the_length_of_the_file() {
        let files = files("figures");
        for (reason, number) in LostReason::ALL.into_iter().zip(1..) {
            files.recording.count_lost(reason, number, 100 * number);
        }
        assert!(finish(&files.recording, copy, None));
        let lost = files.recording.ring.lost().into_iter();
        let lost: Vec<u64> = lost.flat_map(|(events, bytes)| [events, bytes]).collect();
        assert_eq!(files.words(ChunkKind::Lost), lost);
        assert!(lost.last().is_some_and(|&bytes| bytes > 0));
        let figures = files.words(ChunkKind::Figures);
        assert_eq!(figures, files.recording.ring.figures());
        let length = std::fs::metadata(&files.profile).unwrap().len();
        assert_eq!(figures.get(Figure::WrittenBytes as usize), Some(&length));
    }

    #[test]
    fn a_failure_leaves_the_profile_as_it_was_and_the_ring_for_the_reader() {
        let files = files("failing");
        let bytes = std::fs::metadata(&files.profile).unwrap().len();
        // The frames cannot be compressed, or the profile would be longer than it may be.
        assert!(!finish(&files.recording, |_, _| None, None));
        assert!(
            !finish(&files.recording, copy_once, None),
            "half of the chunks"
        );
        assert!(!finish(&files.recording, copy, Some(bytes + 4096)));
        assert_eq!(files.chunks(), []);
        assert!(files.ring.exists() && !files.recording.ring.is_closed());
        assert!(finish(&files.recording, copy, Some(1 << 20)));
    }

    #[test]
    fn a_ring_without_records_has_no_chunk_of_them() {
        let files = files("empty");
        // SAFETY: the only consumer.
        let mut consumer = unsafe { files.recording.ring.consumer() };
        while consumer.next().is_some() {}
        consumer.release();
        assert!(finish(&files.recording, copy, None));
        assert!(!files.chunks().contains(&(ChunkKind::Packed as u16)));
    }

    #[test]
    fn records_that_were_left_are_gaps_of_their_length() {
        let files = files("gaps");
        let ring = &files.recording.ring;
        let reserve = || ring.reserve(7, allocsample_ring::Priority::Last).unwrap();
        drop(reserve());
        core::mem::forget(reserve());
        let (mut records, mut frames) = ([0; 4096], [0; 4096]);
        let mut packer = Packer::new(&mut records, &mut frames);
        let range = ring.pending_from()..ring.head();
        let to = pack(&files.recording, range.clone(), &mut packer);
        assert_eq!(to, Some(range.end));
        // Of each gap its kind and its words, the header's included.
        let (records_bytes, _) = packer.used();
        let end = records.get(records_bytes - 4..records_bytes).unwrap();
        assert_eq!(end, [0, 8, 127, 8]);
    }
}
