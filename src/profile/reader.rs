//! Reads a profile from its file, and from the ring beside it.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{channel, sync_channel};

use allocsample_record::{
    CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, FILE_HEADER_BYTES, FileHeader, FormatVersion,
    HeaderError, LOST_REASONS, Packed, SampleId, Unpacker,
};

use crate::builder::ProfileBuilder;
use crate::chunks::{ChunkReader, Events, PackedChunk, Payload, Piece};
use crate::limits::{LARGEST_RING, Limits};
use crate::model::{Damage, Lost, Profile, Stopped};
use crate::parts::{self, Files};
use crate::uses::Uses;

/// Why a file is no profile that can be read. The path is for the caller to name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    /// A whole header, and nothing after it that can be used.
    #[error("{0}: nothing can be read from it")]
    Nothing(String),
    /// Made to take more than a profile of its size can.
    #[error(
        "its stacks and names expand to far more than a profile of its size holds (--no-limits reads it)"
    )]
    OutOfProportion,
    /// From the future.
    #[error("written in format {}.{} by a newer allocsample, this one reads up to {}.x: please update", .0.major, .0.minor, FormatVersion::CURRENT.major)]
    NewerVersion(FormatVersion),
    /// From the past.
    #[error("written in format {}.{} by an older allocsample, this one reads {}.x and later: use the one that wrote it", .0.major, .0.minor, FormatVersion::WHOLE.major)]
    OlderVersion(FormatVersion),
}

impl ReadError {
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Io(error) if parts::is_not_found(error))
    }
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

    /// The same; `read_bytes` grows by what was read of the file, for somebody who watches from another thread.
    pub fn open_watched(path: &Path, read_bytes: &AtomicU64) -> Result<Profile, ReadError> {
        read_watched(&profile_path(path), read_bytes).map(|(profile, _)| profile)
    }

    /// Reads a profile together with files of the same recording that were written before it: at least those that have
    /// something of since then (CLOCK_MONOTONIC), as long as they are there.
    pub fn open_since(path: &Path, since_ns: u64) -> Result<Profile, ReadError> {
        let path = profile_path(path);
        // Where files begin is known when they are read: twice as many each time, so that none is read often.
        let mut count = 0;
        loop {
            let (profile, all_before) = read_with(&path, count)?;
            let reaches_back = profile.part.before == 0 || profile.process.start_ns <= since_ns;
            if reaches_back || count >= all_before {
                return Ok(profile);
            }
            count = (count * 2).max(1);
        }
    }
}

/// `path` is a profile's, not a ring's.
pub(crate) fn read(path: &Path) -> Result<(Profile, Chunks), ReadError> {
    read_watched(path, &AtomicU64::new(0))
}

fn read_watched(path: &Path, read_bytes: &AtomicU64) -> Result<(Profile, Chunks), ReadError> {
    let ring = read_ring_of(path);
    read_files([File::open(path)], path, ring, read_bytes)
}

/// With so many files before it; and how many there are.
fn read_with(path: &Path, count_before: usize) -> Result<(Profile, usize), ReadError> {
    parts::read_whole(path, ReadError::is_not_found, || {
        let ring = read_ring_of(path);
        let Files { before, last } = Files::open(path)?;
        let wanted = before
            .iter()
            .skip(before.len().saturating_sub(count_before));
        let files = wanted.map(File::open).chain([Ok(last)]);
        let (profile, _) = read_files(files, path, ring, &AtomicU64::new(0))?;
        Ok((profile, before.len()))
    })
}

/// Comes before the file is opened: what moves from the ring into the file meanwhile, or the file that takes its place,
/// is in both then, and not in neither.
pub(crate) fn read_ring_of(path: &Path) -> Option<std::io::Result<Vec<u8>>> {
    match read_ring(path) {
        Err(error) if parts::is_not_found(&error) => None,
        ring => Some(ring),
    }
}

/// The ring beside a profile.
pub(crate) fn read_ring(path: &Path) -> std::io::Result<Vec<u8>> {
    let path = ring_path(path);
    // A pipe may have nobody at its other end, and a device or a sparse file no end.
    if !std::fs::metadata(&path)?.is_file() {
        return Err(std::io::Error::other("not a file"));
    }
    let mut bytes = Vec::new();
    File::open(&path)?
        .take(LARGEST_RING)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the files of a recording, in the order of time, and what was in its ring. `read_bytes` grows by what was read of
/// the files.
pub(crate) fn read_files(
    files: impl IntoIterator<Item = std::io::Result<File>>,
    path: &Path,
    ring: Option<std::io::Result<Vec<u8>>>,
    read_bytes: &AtomicU64,
) -> Result<(Profile, Chunks), ReadError> {
    let mut builder = ProfileBuilder::default();
    let mut last = None;
    let mut bytes_in_all = match &ring {
        Some(Ok(ring)) => ring.len() as u64,
        _ => 0,
    };
    for file in files {
        let file = file?;
        bytes_in_all += file.metadata()?.len();
        let (file, mut chunks) = behind_header(file)?;
        let limits = Limits::of(bytes_in_all);
        read_chunks(file, &limits, &mut builder, &mut chunks, read_bytes)?;
        last = Some(chunks);
    }
    let chunks = last.ok_or(ReadError::Empty)?;
    let limits = Limits::of(bytes_in_all);
    if let Some(ring) = ring {
        add_ring(&ring_path(path), ring, &limits, &mut builder, &chunks);
    }
    let held_bytes = builder.held_bytes();
    let mut profile = builder.finish();
    // The process is the first that a profile tells of, and every chunk or ring that can be read has told it.
    let Profile {
        process,
        intervals,
        recovery,
        ..
    } = &profile;
    if process.pid == 0 && intervals.is_empty() {
        let why = match (&recovery.stopped, &recovery.ring_error) {
            (Some(stopped), _) => stopped.to_string(),
            (None, Some(error)) => error.clone(),
            (None, None) => {
                return Err(ReadError::Nothing("the file ends after its header".into()));
            }
        };
        return Err(ReadError::Nothing(why));
    }
    if !profile.is_shallow() {
        return Err(ReadError::OutOfProportion);
    }
    profile.name_code_again();
    let uses = Uses::of(&profile);
    if !profile.is_proportionate(&limits, held_bytes, &uses) {
        return Err(ReadError::OutOfProportion);
    }
    profile.end_stacks(uses);
    Ok((profile, chunks))
}

/// A file behind its header.
pub(crate) fn behind_header(mut file: File) -> Result<(File, Chunks), ReadError> {
    let mut start = Vec::with_capacity(FILE_HEADER_BYTES);
    file.by_ref()
        .take(FILE_HEADER_BYTES as u64)
        .read_to_end(&mut start)?;
    let header = FileHeader::decode(&start).map_err(|error| match error {
        HeaderError::Empty => ReadError::Empty,
        HeaderError::Truncated => ReadError::Truncated,
        HeaderError::Foreign => ReadError::Foreign(start.iter().copied().take(8).collect()),
        HeaderError::BadChecksum => ReadError::BadHeader,
        HeaderError::NewerVersion(version) => ReadError::NewerVersion(version),
        HeaderError::OlderVersion(version) => ReadError::OlderVersion(version),
    })?;
    let chunks = Chunks {
        profile_id: header.profile_id,
        ring_to: 0,
        end: FILE_HEADER_BYTES as u64,
    };
    Ok((file, chunks))
}

/// Reads, unpacks and decodes chunks on a thread of its own while this one adds what it has.
fn read_chunks(
    file: File,
    limits: &Limits,
    builder: &mut ProfileBuilder,
    chunks: &mut Chunks,
    read_bytes: &AtomicU64,
) -> Result<(), ReadError> {
    /// So many pieces may wait.
    const WAITING: usize = 4;
    let (send, pieces) = sync_channel(WAITING);
    let (send_back, used) = channel();
    let reader = ChunkReader::new(file, builder.numbers());
    std::thread::scope(|scope| {
        scope.spawn(move || reader.send_all(&send, &used, read_bytes));
        for piece in pieces {
            let chunk = match piece? {
                Piece::Events(Events {
                    mut batch,
                    is_carried,
                    begins_anew,
                    chunk,
                    offset,
                }) => {
                    builder.set_before(is_carried);
                    if begins_anew {
                        builder.forget_numbers();
                    }
                    builder.add_batch(&mut batch);
                    builder.set_before(false);
                    // The other side is gone when it has read all.
                    let _ = send_back.send(batch);
                    if builder.is_too_large(limits) {
                        builder.profile.recovery.stopped = Some(Stopped {
                            damage: Damage::TooLarge,
                            chunk,
                            offset,
                        });
                        break;
                    }
                    continue;
                }
                Piece::Chunk(chunk) => chunk,
            };
            let damage = match chunk.content {
                Err(damage) => Some(damage),
                Ok((header, payload)) => {
                    let added = add_chunk(&header, &payload, limits, builder);
                    if added.is_ok() {
                        chunks.ring_to = chunks.ring_to.max(header.ring_to);
                        chunks.end = chunk.offset
                            + CHUNK_HEADER_BYTES as u64
                            + u64::from(header.stored_bytes);
                    }
                    added.err()
                }
            };
            if let Some(damage) = damage {
                builder.profile.recovery.stopped = Some(Stopped {
                    damage,
                    chunk: chunk.number,
                    offset: chunk.offset,
                });
                break;
            }
        }
        Ok(())
    })
}

/// Adds a chunk, and says what is wrong with it. One of an unknown kind is from a newer version, and skipped.
fn add_chunk(
    header: &ChunkHeader,
    payload: &Payload,
    limits: &Limits,
    builder: &mut ProfileBuilder,
) -> Result<(), Damage> {
    let payload: &[u8] = match payload {
        Payload::Raw(Some(raw)) => raw,
        Payload::Raw(None) | Payload::Packed(None) => return Err(Damage::Malformed),
        Payload::Stored(payload) => payload,
        Payload::Packed(Some(packed)) => {
            return add_packed(header.ring_from, packed, limits, builder);
        }
        Payload::Events { is_sound: true } => return Ok(()),
        Payload::Events { is_sound: false } => return Err(Damage::Malformed),
    };
    match header.kind {
        kind if kind == ChunkKind::Definitions as u16 => {
            let words = allocsample_ring::recover_words(0, u64::MAX, payload);
            for (number, record) in words.records.into_iter().enumerate() {
                builder.add_record(SampleId(0), record.kind, &record.words);
                builder.check(limits, number)?;
            }
            Ok(())
        }
        kind if kind == ChunkKind::Symbols as u16 => builder
            .add_symbols(payload, limits)
            .ok_or(Damage::Malformed),
        kind if kind == ChunkKind::Memory as u16 => builder.add_memory(payload, limits),
        kind if kind == ChunkKind::Inspected as u16 => builder.add_inspected(payload, limits),
        kind if kind == ChunkKind::Lost as u16 || kind == ChunkKind::LostBefore as u16 => {
            let mut words = payload.chunks_exact(8).map(|word| {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(word);
                u64::from_le_bytes(bytes)
            });
            let mut lost = [(0, 0); LOST_REASONS];
            for reason in &mut lost {
                *reason = (words.next().unwrap_or(0), words.next().unwrap_or(0));
            }
            if kind == ChunkKind::LostBefore as u16 {
                builder.set_lost_before(Lost(lost));
            }
            builder.profile.lost = Lost(lost);
            Ok(())
        }
        kind if kind == ChunkKind::Figures as u16 || kind == ChunkKind::FiguresBefore as u16 => {
            let figures = &mut builder.profile.own_cost.figures;
            for (figure, word) in figures.iter_mut().zip(payload.chunks_exact(8)) {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(word);
                *figure = u64::from_le_bytes(bytes);
            }
            if kind == ChunkKind::FiguresBefore as u16 {
                builder.set_figures_before();
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Adds packed records. Those before one that is malformed are in.
fn add_packed(
    from: u64,
    packed: &PackedChunk,
    limits: &Limits,
    builder: &mut ProfileBuilder,
) -> Result<(), Damage> {
    let mut unpacker = Unpacker::new(&packed.records, &packed.frames);
    let mut position = from;
    for (number, item) in unpacker.by_ref().enumerate() {
        builder.check(limits, number)?;
        let ring_words = match item {
            Packed::Record { kind, words } => {
                builder.add_record(SampleId(position), kind, &words);
                words.len() as u64 + 1
            }
            Packed::Gap {
                words,
                is_unfinished,
            } => {
                builder.profile.recovery.unfinished_records += u64::from(is_unfinished);
                words
            }
        };
        position = position.saturating_add(ring_words);
    }
    if unpacker.is_malformed() {
        return Err(Damage::Malformed);
    }
    Ok(())
}

fn add_ring(
    path: &Path,
    bytes: std::io::Result<Vec<u8>>,
    limits: &Limits,
    builder: &mut ProfileBuilder,
    chunks: &Chunks,
) {
    let recovery = &mut builder.profile.recovery;
    recovery.ring_found = true;
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(error) => {
            recovery.ring_error = Some(format!("{}: {error}", path.display()));
            return;
        }
    };
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
    if ring.missing_words > 0 {
        let path = path.display();
        let bytes = ring.missing_words * 8;
        recovery.ring_error = Some(format!(
            "{path}: {bytes} bytes of records are missing at its end: it was cut short"
        ));
    }
    // What the writer was writing when it died, or is writing now, it has not released: all of it is in the ring.
    let is_cut_short = (recovery.stopped).is_some_and(|stopped| stopped.damage == Damage::CutShort);
    let is_whole = |from| (from..=ring.head).contains(&chunks.ring_to);
    if is_cut_short && ring.whole_from.is_some_and(is_whole) {
        recovery.stopped = None;
    }
    builder.profile.lost = Lost(ring.lost);
    builder.profile.own_cost.figures = ring.figures;
    let new = ring.records.iter();
    let new = new.filter(|record| record.position >= chunks.ring_to);
    for (number, record) in new.enumerate() {
        if builder.check(limits, number).is_err() {
            builder.profile.recovery.ring_error = Some(format!(
                "{}: it needs more memory than a profile of this size may take",
                path.display()
            ));
            return;
        }
        builder.profile.recovery.ring_records += 1;
        builder.add_record(SampleId(record.position), record.kind, &record.words);
    }
}
