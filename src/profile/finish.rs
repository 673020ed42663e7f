//! Makes a profile whole: what a killed process left in the ring goes into the file, and the names with it.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use allocsample_record::{
    ChunkHeader, ChunkKind, FILE_HEADER_BYTES, FileHeader, Inspected, MemoryMap, Note, NoteRecord,
    Packer, RecordKind, readable,
};
use allocsample_ring::RecoveredRecord;

use crate::chunks::PackedChunk;
use crate::model::{Damage, Profile};
use crate::new_file;
use crate::reader::{self, ReadError};
use crate::symbolize::root_of;

/// What was done.
#[derive(Debug)]
#[non_exhaustive]
pub struct Finished {
    /// The profile, with its names.
    pub profile: Profile,
    /// Whether the process is still running: then the file and its ring were left alone.
    pub is_running: bool,
    /// Whether the file could take more. Not while the process writes to it, nor after damage in its middle.
    pub is_written: bool,
}

/// Why a profile could not be finished; it is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FinishError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It cannot be written.
    #[error("cannot be written: {0}")]
    Write(#[source] std::io::Error),
}

/// Folds a ring that was left behind into the file and removes it, names all locations if `symbolize`, and writes the
/// names into the file. A chunk that was cut short at the end is replaced. Nothing is removed before what replaces it
/// is on its way to the disk.
pub fn finish(path: &Path, symbolize: bool) -> Result<Finished, FinishError> {
    finish_with(path, symbolize, &Seen::default())
}

/// What somebody saw of processes from outside.
#[derive(Clone, Debug, Default)]
pub struct Seen<'a> {
    /// Readings of their memory, by pid.
    pub memory: Option<&'a HashMap<u32, Vec<MemoryMap>>>,
    /// The pid of one that a signal killed, and the signal's name.
    pub killed: Option<(u32, String)>,
}

/// The same, with what was seen from outside: what is of the profile's process and time goes into the file.
pub fn finish_with(path: &Path, symbolize: bool, seen: &Seen<'_>) -> Result<Finished, FinishError> {
    complete_with(path, symbolize, false, root_of(path), seen)
}

/// Copies what a process has recorded so far into a profile of its own, `to`, with names. The process may be running:
/// it does not notice. `to` must not exist; its ring is made beside it and goes again.
pub fn snapshot(path: &Path, to: &Path) -> Result<Finished, FinishError> {
    let path = &reader::profile_path(path);
    // First: what is written from the ring into the file meanwhile is in both then, and not in neither.
    copy_ring(path, to)?;
    copy(path, to)?;
    complete(to, true, true, root_of(path))
}

/// Copies the ring beside a profile, if there is one, to beside `to`.
pub(crate) fn copy_ring(path: &Path, to: &Path) -> Result<(), FinishError> {
    match reader::read_ring(path) {
        Ok(ring) => new_file::create(&reader::ring_path(to))
            .and_then(|mut copy| copy.write_all(&ring))
            .map_err(FinishError::Write),
        // The process may end at any time: all is in its file then.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(ReadError::from(error).into()),
    }
}

/// Copies a file, and tells what cannot be read from what cannot be written.
fn copy(from: &Path, to: &Path) -> Result<(), FinishError> {
    let mut file = File::open(from).map_err(ReadError::from)?;
    if file.metadata().map_err(ReadError::from)?.is_dir() {
        let error = std::io::Error::from(std::io::ErrorKind::IsADirectory);
        return Err(ReadError::from(error).into());
    }
    new_file::create(to)
        .and_then(|mut copy| std::io::copy(&mut file, &mut copy))
        .map_err(FinishError::Write)?;
    Ok(())
}

/// Makes a copy of ours whole, with names; for `root` see [`root_of`].
pub(crate) fn complete_copy(path: &Path, root: Option<&Path>) -> Result<Finished, FinishError> {
    complete(path, true, true, root)
}

fn complete(
    path: &Path,
    symbolize: bool,
    is_copy: bool,
    root: Option<&Path>,
) -> Result<Finished, FinishError> {
    complete_with(path, symbolize, is_copy, root, &Seen::default())
}

fn complete_with(
    path: &Path,
    symbolize: bool,
    is_copy: bool,
    root: Option<&Path>,
    seen: &Seen<'_>,
) -> Result<Finished, FinishError> {
    let path = &reader::profile_path(path);
    let length = || std::fs::metadata(path).map(|metadata| metadata.len()).ok();
    let length_before = length();
    let (mut profile, mut chunks) = reader::read(path)?;
    let is_open = !is_copy && profile.recovery.ring_found && profile.exit.is_none();
    let is_running = is_open && is_alive(&profile);
    let has_ended_meanwhile = || length() != length_before || !reader::ring_path(path).exists();
    if is_open && !is_running && has_ended_meanwhile() {
        // What it wrote last came behind what was read. Nobody writes any more.
        (profile, chunks) = reader::read(path)?;
    }
    let readings = readings_of(&profile, seen);
    profile.memory.extend(readings.iter().copied().cloned());
    profile.memory.sort_by_key(|map| map.totals.time_ns);
    // Behind the readings, which name modules that no sample has met.
    if symbolize {
        profile.symbolize_below(root);
    }
    // A damaged chunk in the middle is left for somebody who can read more of it than we.
    let is_appendable = profile
        .recovery
        .stopped
        .is_none_or(|stopped| stopped.damage == Damage::CutShort);
    if is_running || !is_appendable {
        return Ok(Finished {
            profile,
            is_running,
            is_written: false,
        });
    }
    let killed = seen.killed.as_ref().filter(|killed| {
        let is_known = profile.notes.iter().any(|(note, _)| *note == Note::Killed);
        let is_open = profile.exit.is_none() && !profile.part.is_continued;
        killed.0 == profile.process.pid && is_open && !is_known
    });
    let write = || -> std::io::Result<()> {
        let mut file = open_again(path, chunks.profile_id)?;
        file.set_len(chunks.end)?;
        file.seek(SeekFrom::End(0))?;
        let mut end = chunks.ring_to;
        if profile.recovery.ring_found && profile.recovery.ring_error.is_none() {
            end = fold_ring(path, &chunks, &mut file)?;
        }
        if let Some((_, signal)) = killed {
            append_killed(&mut file, end, profile.process.end_ns, signal)?;
        }
        for reading in &readings {
            let raw = reading.encode();
            append(
                &mut file,
                ChunkKind::Memory,
                raw.len(),
                chunks.ring_to..chunks.ring_to,
                &lz4_flex::block::compress(&raw),
            )?;
        }
        if symbolize {
            let raw = profile.symbols.encode();
            append(
                &mut file,
                ChunkKind::Symbols,
                raw.len(),
                chunks.ring_to..chunks.ring_to,
                &lz4_flex::block::compress(&raw),
            )?;
            let raw = Inspected::encode_all(&profile.inspected);
            append(
                &mut file,
                ChunkKind::Inspected,
                raw.len(),
                chunks.ring_to..chunks.ring_to,
                &lz4_flex::block::compress(&raw),
            )?;
        }
        file.sync_data()?;
        if profile.recovery.ring_found && profile.recovery.ring_error.is_none() {
            std::fs::remove_file(reader::ring_path(path))?;
        }
        Ok(())
    };
    write().map_err(FinishError::Write)?;
    let killed = killed.map(|(_, signal)| (Note::Killed, signal.clone()));
    profile.notes.extend(killed);
    Ok(Finished {
        profile,
        is_running,
        is_written: true,
    })
}

/// Those of the profile's process, while it recorded or shortly before: an agent that takes no sample begins at the exit.
/// A process that has become another program has several profiles.
fn readings_of<'a>(profile: &Profile, seen: &'a Seen<'_>) -> Vec<&'a MemoryMap> {
    let process = &profile.process;
    let is_late = profile.samples.is_empty();
    // Nobody wrote when it ended: it was killed, or left by a system call of its own, as Go's programs do. Without a ring it is a
    // snapshot, whose process went on, unless no agent was there.
    let has_ring = profile.recovery.ring_found || profile.sampled_by().is_some();
    let is_open = profile.exit.is_none() && has_ring;
    let is_own = |map: &&MemoryMap| {
        let time_ns = map.totals.time_ns;
        (is_open || time_ns <= process.end_ns) && (is_late || time_ns >= process.start_ns)
    };
    let readings = seen.memory.and_then(|readings| readings.get(&process.pid));
    let own = readings.into_iter().flatten();
    own.filter(is_own).collect()
}

/// Opens the profile that was read, to write to it. In a directory of somebody else's the name may be another file's by now,
/// which the reader may overwrite and that somebody may not.
fn open_again(path: &Path, profile_id: u128) -> std::io::Result<File> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut header = [0; FILE_HEADER_BYTES];
    let is_same = file.read_exact(&mut header).is_ok()
        && FileHeader::decode(&header).is_ok_and(|header| header.profile_id == profile_id);
    if is_same {
        Ok(file)
    } else {
        Err(std::io::Error::other(
            "it is another file than a moment ago",
        ))
    }
}

/// Appends the ring's records that the file lacks, in the form of the ring, and its counts of losses. The answer is where
/// the ring ends.
fn fold_ring(path: &Path, chunks: &reader::Chunks, file: &mut File) -> std::io::Result<u64> {
    let bytes = reader::read_ring(path)?;
    let ring = allocsample_ring::recover(&bytes).map_err(std::io::Error::other)?;
    let records: Vec<_> = ring
        .records
        .iter()
        .filter(|record| record.position >= chunks.ring_to)
        .collect();
    let last = records
        .last()
        .map(|record| record.position + record.words.len() as u64 + 1);
    let (from, to) = (chunks.ring_to, last.unwrap_or(chunks.ring_to));
    if !records.is_empty() {
        append_records(file, from..to, &records, ring.unfinished)?;
    }
    let lost: Vec<u8> = ring
        .lost
        .iter()
        .flat_map(|&(events, bytes)| [events, bytes])
        .flat_map(u64::to_le_bytes)
        .collect();
    append(file, ChunkKind::Lost, lost.len(), to..to, &lost)?;
    let figures: Vec<u8> = ring
        .figures
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect();
    append(file, ChunkKind::Figures, figures.len(), to..to, &figures)?;
    Ok(to)
}

/// Appends that a signal killed the process, behind all that it wrote.
fn append_killed(file: &mut File, from: u64, time_ns: u64, signal: &str) -> std::io::Result<()> {
    let note = NoteRecord {
        time_ns,
        note: Note::Killed,
        detail: signal.as_bytes(),
    };
    let mut words = vec![0; note.words()];
    note.encode_into(&mut words);
    let to = from + words.len() as u64 + 1;
    let record = RecoveredRecord {
        position: from,
        kind: RecordKind::Note as u8,
        words,
    };
    append_records(file, from..to, &[&record], 0)
}

fn append_records(
    file: &mut File,
    ring: std::ops::Range<u64>,
    records: &[&RecoveredRecord],
    unfinished: u64,
) -> std::io::Result<()> {
    let packed = pack(ring.start, records, unfinished);
    let packed = packed.ok_or_else(|| std::io::Error::other("a record of no kind"))?;
    let records_bytes = u32::try_from(packed.records.len()).map_err(std::io::Error::other)?;
    let compressed = lz4_flex::block::compress(&packed.frames);
    let payload = [&records_bytes.to_le_bytes(), &*packed.records, &compressed].concat();
    append(file, ChunkKind::Packed, packed.frames.len(), ring, &payload)
}

/// Records of the ring, the first at `from` or behind it, and so many that were not finished.
fn pack(from: u64, records: &[&RecoveredRecord], unfinished: u64) -> Option<PackedChunk> {
    let ring_words: usize = records.iter().map(|record| record.words.len() + 2).sum();
    let most = Packer::most_bytes(ring_words.checked_add(usize::try_from(unfinished).ok()?)?);
    let mut packed = PackedChunk {
        records: vec![0; most],
        frames: vec![0; most],
    };
    let mut packer = Packer::new(&mut packed.records, &mut packed.frames);
    let mut position = from;
    for record in records {
        if record.position > position {
            packer.gap(record.position - position, false)?;
        }
        packer.record(record.kind, &record.words)?;
        position = record.position + record.words.len() as u64 + 1;
    }
    for _ in 0..unfinished {
        packer.gap(0, true)?;
    }
    let (records_bytes, frames_bytes) = packer.used();
    packed.records.truncate(records_bytes);
    packed.frames.truncate(frames_bytes);
    Some(packed)
}

fn append(
    file: &mut File,
    kind: ChunkKind,
    raw_bytes: usize,
    ring: std::ops::Range<u64>,
    payload: &[u8],
) -> std::io::Result<()> {
    let raw_bytes = u32::try_from(raw_bytes).map_err(std::io::Error::other)?;
    let header = ChunkHeader::for_payload(kind, raw_bytes, ring, &[payload]);
    file.write_all(&header.encode())?;
    file.write_all(payload)
}

impl Profile {
    /// Whether its process still writes it.
    pub fn is_being_written(&self) -> bool {
        self.recovery.ring_found && self.exit.is_none() && is_alive(self)
    }
}

/// Whether the process of the profile runs: its pid does, under the same program, and since before the profile began. (A
/// pid may have been given anew.)
fn is_alive(profile: &Profile) -> bool {
    /// The wall clock may have been set meanwhile, a little; a pid comes round later than that.
    const TOLERANCE_S: u64 = 60;
    let pid = profile.process.pid;
    let is_same_program = std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| {
        // The file may have been replaced since.
        let path = path.as_os_str().as_bytes();
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        // As the profile has it: a reader makes names readable.
        readable(path) == profile.process.executable
    });
    is_same_program
        && start_of_process_s(pid).is_none_or(|start| {
            start <= profile.process.start_wall_ns / 1_000_000_000 + TOLERANCE_S
        })
}

/// When a process began, in seconds since 1970, as proc(5) tells it: ticks (100 a second in every Linux ABI) after the
/// boot, behind the name, which may hold blanks and parentheses.
pub(crate) fn start_of_process_s(pid: u32) -> Option<u64> {
    const START_TIME: usize = 19; // field 22, counted behind the name
    const TICKS_PER_S: u64 = 100;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields.split_whitespace().nth(START_TIME)?.parse().ok()?;
    let system = std::fs::read_to_string("/proc/stat").ok()?;
    let boot = system
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?;
    Some(boot.trim().parse::<u64>().ok()? + ticks / TICKS_PER_S)
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_record::FormatVersion;

    /// A snapshot has no ring, and its process goes on.
    #[test]
    fn a_snapshot_gets_no_readings_of_later() {
        let mut profile = Profile::default();
        (profile.process.pid, profile.process.end_ns) = (7, 100);
        let reading = |time_ns| {
            let mut map = MemoryMap::default();
            map.totals.time_ns = time_ns;
            map
        };
        let readings = HashMap::from([(7, [50, 100, 150].map(reading).to_vec())]);
        let seen = Seen {
            memory: Some(&readings),
            killed: None,
        };
        assert_eq!(readings_of(&profile, &seen).len(), 2);
        profile.recovery.ring_found = true;
        assert_eq!(readings_of(&profile, &seen).len(), 3, "it was killed");
    }

    #[test]
    fn only_the_file_that_was_read_is_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.allocsample");
        let header = FileHeader {
            version: FormatVersion::CURRENT,
            profile_id: 7,
        };
        std::fs::write(&path, header.encode()).unwrap();
        assert!(open_again(&path, 7).is_ok());
        assert!(open_again(&path, 8).is_err());
        let other = directory.path().join("passwd");
        for text in ["", "root:x:0:0:root:/root:/bin/bash\\n"] {
            std::fs::write(&other, text.repeat(9)).unwrap();
            std::fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink(&other, &path).unwrap();
            let error = open_again(&path, 7).unwrap_err();
            assert!(error.to_string().contains("another file"), "{error}");
            assert_eq!(std::fs::read_to_string(&other).unwrap(), text.repeat(9));
        }
    }
}
