//! Chunks: the pieces of a profile that follow its header.

/// Length of a chunk's header.
pub const CHUNK_HEADER_BYTES: usize = 40;

const MAGIC: u32 = u32::from_le_bytes(*b"ASCK");

/// The content of a chunk. The numbers are part of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum ChunkKind {
    /// Events as the drain thread encodes them, compressed as one LZ4 block.
    Events = 1,
    /// Packed ring records ([`crate::Packer`]), whose frames are compressed as one LZ4 block. A process without a drain thread
    /// writes them at its end, and so does a reader that keeps the records of a killed process.
    Packed = 2,
    /// Symbols, compressed as one LZ4 block; the last such chunk counts.
    Symbols = 3,
    /// The lost counters of the ring's header at this moment, 16 bytes (events, bytes) a [`crate::LostReason`]; the
    /// last such chunk counts.
    Lost = 4,
    /// Definitions of virtual machines from before the profile began: ring words, at positions that start at 0 and have
    /// nothing to do with the ring.
    Definitions = 5,
    /// Figures of the agent about itself at this moment, 8 bytes a [`crate::Figure`]; the last such chunk counts.
    Figures = 6,
    /// Events from before the file began, compressed like `Events`: all that the file needs to be read alone. The first such
    /// chunk begins with a [`crate::PartRecord`], and stack nodes are numbered from there.
    Carried = 7,
    /// The lost counters when the file began, as in `Lost`: earlier losses are in the file before.
    LostBefore = 8,
    /// The figures when the file began, as in `Figures`.
    FiguresBefore = 9,
    /// The process's memory by the kernel's account at one moment, compressed as one LZ4 block: a
    /// [`crate::MemoryTotals`], or a whole `MemoryMap`. Written by the drain thread, by a process at its end, or by a
    /// command that watched the process from outside.
    Memory = 10,
    /// Runtimes and allocators that are linked into the modules, as their files say, compressed as one LZ4 block. The last
    /// such chunk counts. Written together with the symbols, by a command.
    Inspected = 11,
}

/// The header in front of each chunk's payload.
///
/// ```text
/// 0..4 "ASCK" | 4..6 kind | 6..8 reserved | 8..12 stored bytes | 12..16 raw bytes | 16..24 ring from | 24..32 ring to
/// 32..36 reserved | 36..40 CRC-32 of 0..36 and the stored bytes
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Number of the kind; one that a newer version added is skipped by the reader.
    pub kind: u16,
    /// Payload bytes that follow.
    pub stored_bytes: u32,
    /// Payload bytes after decompression.
    pub raw_bytes: u32,
    /// The chunk holds the ring's records from this position (in words) ...
    pub ring_from: u64,
    /// ... up to this one. Records of a ring left behind that lie before the last chunk's `ring_to` are duplicates.
    pub ring_to: u64,
    /// CRC-32 of the header before this field, then the stored payload.
    pub crc: u32,
}

impl ChunkHeader {
    /// A header for a payload given in `parts` (one slice, or the two halves of a wrapped ring).
    pub fn for_payload(
        kind: ChunkKind,
        raw_bytes: u32,
        ring: core::ops::Range<u64>,
        parts: &[&[u8]],
    ) -> Self {
        let stored = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut header = Self {
            kind: kind as u16,
            // A payload is at most a ring or a batch of it, far below 4 GiB; a larger one would fail its checksum.
            stored_bytes: stored as u32,
            raw_bytes,
            ring_from: ring.start,
            ring_to: ring.end,
            crc: 0,
        };
        header.crc = header.checksum(parts);
        header
    }

    /// Whether the payload is the one this header was made for.
    pub fn matches(&self, payload: &[u8]) -> bool {
        self.checksum(&[payload]) == self.crc
    }

    /// The bytes of the header.
    pub fn encode(&self) -> [u8; CHUNK_HEADER_BYTES] {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        bytes[..36].copy_from_slice(&self.encode_body());
        bytes[36..].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    /// Reads a header from the front of `bytes`; `None` if they are cut short or something else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let header = bytes.first_chunk::<CHUNK_HEADER_BYTES>()?;
        let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        (u32_at(0) == MAGIC).then(|| Self {
            kind: u16_at(4),
            stored_bytes: u32_at(8),
            raw_bytes: u32_at(12),
            ring_from: u64_at(16),
            ring_to: u64_at(24),
            crc: u32_at(36),
        })
    }

    fn encode_body(&self) -> [u8; 36] {
        let mut bytes = [0; 36];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.stored_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.raw_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.ring_from.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.ring_to.to_le_bytes());
        bytes
    }

    fn checksum(&self, parts: &[&[u8]]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.encode_body());
        for part in parts {
            hasher.update(part);
        }
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_covers_every_bit() {
        let payload = *b"hello, chunk";
        let header = ChunkHeader::for_payload(
            ChunkKind::Events,
            99,
            5..1 << 40,
            &[&payload[..5], &payload[5..]],
        );
        let bytes = header.encode();
        assert_eq!(ChunkHeader::decode(&bytes), Some(header));
        assert!(header.matches(&payload));
        for bit in 0..CHUNK_HEADER_BYTES * 8 {
            let (byte, mask) = (bit / 8, 1 << (bit % 8));
            let reserved = (6..8).contains(&byte) || (32..36).contains(&byte);
            let mut damaged = bytes;
            damaged[byte] ^= mask;
            let accepted =
                ChunkHeader::decode(&damaged).is_some_and(|header| header.matches(&payload));
            assert_eq!(accepted, reserved, "bit {bit}");
        }
        assert_eq!(ChunkHeader::decode(&bytes[..39]), None);
    }
}
