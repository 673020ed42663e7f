//! Reads a profile from its file, and from the ring beside it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use allocsample_record::{
    CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, FILE_HEADER_BYTES, FileHeader, FormatVersion,
    HeaderError, LOST_REASONS, SampleId, SymbolTable,
};

use crate::builder::ProfileBuilder;
use crate::model::{Damage, Lost, Profile, Stopped};

/// Why a file is no profile that can be read. The path is for the caller to name.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system refused.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// No bytes.
    #[error("the file is empty: was the disk full, or the program killed before its first sample?")]
    Empty,
    /// Not even a header.
    #[error("the file ends within its header, nothing can be read from it")]
    Truncated,
    /// Something else.
    #[error("not an allocsample profile{}", looks_like(.0))]
    Foreign(Vec<u8>),
    /// A damaged header.
    #[error("the header is damaged (bad checksum), nothing can be read from it")]
    BadHeader,
    /// From the future.
    #[error("written in format {}.{} by a newer allocsample, this one reads up to {}.x: please update", .0.major, .0.minor, FormatVersion::CURRENT.major)]
    NewerVersion(FormatVersion),
}

fn looks_like(start: &[u8]) -> &'static str {
    match start {
        [0x1f, 0x8b, ..] => " (it looks like gzip, perhaps a pprof profile)",
        [0x7f, b'E', b'L', b'F', ..] => " (it is an ELF file; give the profile, not the program)",
        [b'{' | b'[', ..] => " (it looks like JSON)",
        [b'A', b'L', b'L', b'O', b'C', b'R', b'N', b'G', ..] => {
            " (it is a ring; give the profile beside it)"
        }
        _ => "",
    }
}

/// Path of the ring that belongs to a profile.
pub(crate) fn ring_path(profile: &Path) -> PathBuf {
    let mut path = OsString::from(profile);
    path.push(".ring");
    path.into()
}

/// Path of the profile that is meant: the ring's own path is as good, a user may have picked either.
pub(crate) fn profile_path(path: &Path) -> PathBuf {
    match path
        .to_str()
        .and_then(|text| text.strip_suffix(".allocsample.ring"))
    {
        Some(stem) => PathBuf::from(format!("{stem}.allocsample")),
        None => path.to_owned(),
    }
}

/// Where a reading of the file's chunks ended.
pub(crate) struct Chunks {
    /// Identity of the profile.
    pub(crate) profile_id: u128,
    /// Ring position after the last record that the file holds.
    pub(crate) ring_to: u64,
    /// Offset after the last whole chunk.
    pub(crate) end: u64,
}

impl Profile {
    /// Reads a profile. A file that was cut short, or damaged in the middle, gives what stands before that; see
    /// [`Profile::recovery`].
    pub fn open(path: &Path) -> Result<Profile, ReadError> {
        read(&profile_path(path)).map(|(profile, _)| profile)
    }
}

/// `path` is a profile's, not a ring's.
pub(crate) fn read(path: &Path) -> Result<(Profile, Chunks), ReadError> {
    let bytes = std::fs::read(path)?;
    let header = FileHeader::decode(&bytes).map_err(|error| match error {
        HeaderError::Empty => ReadError::Empty,
        HeaderError::Truncated => ReadError::Truncated,
        HeaderError::Foreign => ReadError::Foreign(bytes.iter().copied().take(8).collect()),
        HeaderError::BadChecksum => ReadError::BadHeader,
        HeaderError::NewerVersion(version) => ReadError::NewerVersion(version),
    })?;
    let mut builder = ProfileBuilder::default();
    let mut chunks = Chunks {
        profile_id: header.profile_id,
        ring_to: 0,
        end: 0,
    };
    read_chunks(&bytes, &mut builder, &mut chunks);
    read_ring(&ring_path(path), &mut builder, &chunks);
    Ok((builder.profile, chunks))
}

fn read_chunks(bytes: &[u8], builder: &mut ProfileBuilder, chunks: &mut Chunks) {
    let mut offset = FILE_HEADER_BYTES;
    let mut number = 0u32;
    while let Some(rest) = bytes.get(offset..).filter(|rest| !rest.is_empty()) {
        number += 1;
        let stopped = |damage| {
            Some(Stopped {
                damage,
                chunk: number,
                offset: offset as u64,
            })
        };
        let Some(header) = ChunkHeader::decode(rest) else {
            builder.profile.recovery.stopped = if rest.len() < CHUNK_HEADER_BYTES {
                stopped(Damage::CutShort)
            } else {
                stopped(Damage::NoChunk)
            };
            break;
        };
        let end = CHUNK_HEADER_BYTES + header.stored_bytes as usize;
        let Some(payload) = rest.get(CHUNK_HEADER_BYTES..end) else {
            builder.profile.recovery.stopped = stopped(Damage::CutShort);
            break;
        };
        if !header.matches(payload) {
            builder.profile.recovery.stopped = stopped(Damage::BadChecksum);
            break;
        }
        if !read_chunk(&header, payload, builder) {
            builder.profile.recovery.stopped = stopped(Damage::Malformed);
            break;
        }
        chunks.ring_to = chunks.ring_to.max(header.ring_to);
        offset += end;
    }
    chunks.end = offset.min(bytes.len()) as u64;
}

/// Adds a chunk; false if its content makes no sense. One of an unknown kind is from a newer version, and skipped.
fn read_chunk(header: &ChunkHeader, payload: &[u8], builder: &mut ProfileBuilder) -> bool {
    /// The drain thread's chunks are far smaller: whatever claims more is not one of them.
    const LARGEST_RAW_BYTES: u32 = 1 << 30;
    let unpack = || {
        (header.raw_bytes <= LARGEST_RAW_BYTES
            && u64::from(header.raw_bytes) <= 255 * (payload.len() as u64 + 1))
            .then(|| lz4_flex::block::decompress(payload, header.raw_bytes as usize).ok())
            .flatten()
    };
    match header.kind {
        kind if kind == ChunkKind::Events as u16 => {
            unpack().is_some_and(|raw| builder.add_events(&raw))
        }
        kind if kind == ChunkKind::RawRing as u16 => {
            let unpacked = match header.raw_bytes as usize == payload.len() {
                true => None,
                false => match unpack() {
                    Some(raw) => Some(raw),
                    None => return false,
                },
            };
            let raw = unpacked.as_deref().unwrap_or(payload);
            let words = allocsample_ring::recover_words(header.ring_from, header.ring_to, raw);
            builder.profile.recovery.unfinished_records += words.unfinished;
            for record in words.records {
                builder.add_record(SampleId(record.position), record.kind, &record.words);
            }
            true
        }
        kind if kind == ChunkKind::Definitions as u16 => {
            let words = allocsample_ring::recover_words(0, u64::MAX, payload);
            for record in words.records {
                builder.add_record(SampleId(0), record.kind, &record.words);
            }
            true
        }
        kind if kind == ChunkKind::Symbols as u16 => {
            match unpack().and_then(|raw| SymbolTable::decode(&raw)) {
                Some(symbols) => {
                    builder.profile.symbols = symbols;
                    true
                }
                None => false,
            }
        }
        kind if kind == ChunkKind::Lost as u16 => {
            let mut words = payload.chunks_exact(8).map(|word| {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(word);
                u64::from_le_bytes(bytes)
            });
            let mut lost = [(0, 0); LOST_REASONS];
            for reason in &mut lost {
                *reason = (words.next().unwrap_or(0), words.next().unwrap_or(0));
            }
            builder.profile.lost = Lost(lost);
            true
        }
        kind if kind == ChunkKind::Figures as u16 => {
            let figures = &mut builder.profile.own_cost.figures;
            for (figure, word) in figures.iter_mut().zip(payload.chunks_exact(8)) {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(word);
                *figure = u64::from_le_bytes(bytes);
            }
            true
        }
        _ => true,
    }
}

fn read_ring(path: &Path, builder: &mut ProfileBuilder, chunks: &Chunks) {
    let Ok(bytes) = std::fs::read(path) else {
        return;
    };
    let recovery = &mut builder.profile.recovery;
    recovery.ring_found = true;
    let ring = match allocsample_ring::recover(&bytes) {
        Ok(ring) if ring.profile_id == chunks.profile_id => ring,
        Ok(_) => {
            recovery.ring_error = Some(format!("{} belongs to another profile", path.display()));
            return;
        }
        Err(error) => {
            recovery.ring_error = Some(format!("{}: {error}", path.display()));
            return;
        }
    };
    recovery.unfinished_records += ring.unfinished;
    builder.profile.lost = Lost(ring.lost);
    builder.profile.own_cost.figures = ring.figures;
    for record in ring
        .records
        .iter()
        .filter(|record| record.position >= chunks.ring_to)
    {
        builder.profile.recovery.ring_records += 1;
        builder.add_record(SampleId(record.position), record.kind, &record.words);
    }
}
