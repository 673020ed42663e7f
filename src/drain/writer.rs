//! Appends chunks to the profile.

use std::ffi::CStr;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use allocsample_record::{
    CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, FILE_HEADER_BYTES, FileHeader, FormatVersion,
};
use lz4_flex::block::{compress_into, get_maximum_output_size};

/// Compresses `raw` into `to` as one block and returns its length; `None` if it does not fit.
pub fn compress(raw: &[u8], to: &mut [u8]) -> Option<usize> {
    compress_into(raw, to).ok()
}

/// The profile, open for appending.
pub struct ChunkWriter {
    file: std::fs::File,
    length: u64,
    most_bytes: u64,
    /// Buffer for the current chunk. It is reused: mapping and unmapping large memory slows down all threads of the
    /// process.
    chunk: Vec<u8>,
}

impl ChunkWriter {
    /// Opens a profile that the agent has created. Writes beyond `most_bytes` fail.
    pub fn open(path: &CStr, most_bytes: Option<u64>) -> std::io::Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let path = Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
        let file = std::fs::OpenOptions::new()
            .read(true)
            .append(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)?;
        let length = file.metadata()?.len();
        Ok(Self {
            file,
            length,
            most_bytes: most_bytes.unwrap_or(u64::MAX),
            chunk: Vec::new(),
        })
    }

    /// Creates the file that follows this one, with the same profile id.
    pub fn create_next(&self, path: &Path) -> std::io::Result<Self> {
        let mut header = [0; FILE_HEADER_BYTES];
        self.read_at(0, &mut header)?;
        let header = FileHeader::decode(&header)
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::InvalidData))?;
        let header = FileHeader {
            version: FormatVersion::CURRENT,
            ..header
        }
        .encode();
        // A file that a killed process left behind.
        drop(std::fs::remove_file(path));
        let mut file = std::fs::OpenOptions::new()
            .read(true)
            .append(true)
            .create_new(true)
            .mode(self.file.metadata()?.mode() & 0o777)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)?;
        file.write_all(&header)?;
        Ok(Self {
            file,
            length: header.len() as u64,
            most_bytes: u64::MAX,
            chunk: Vec::new(),
        })
    }

    /// Copies the file to `path`, by way of `aside`, so that `path` is complete or absent.
    pub fn copy(&self, aside: &Path, path: &Path) -> std::io::Result<()> {
        drop(std::fs::remove_file(aside));
        let write = || -> std::io::Result<()> {
            let mut to = std::fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(self.file.metadata()?.mode() & 0o777)
                .custom_flags(libc::O_NOFOLLOW)
                .open(aside)?;
            let mut buffer = vec![0; 1 << 16];
            let mut offset = 0;
            while offset < self.length {
                let left = usize::try_from(self.length - offset).unwrap_or(usize::MAX);
                let part = &mut buffer[..left.min(1 << 16)];
                self.file.read_exact_at(part, offset)?;
                to.write_all(part)?;
                offset += part.len() as u64;
            }
            synced(to.sync_data())?;
            std::fs::rename(aside, path)
        };
        write().inspect_err(|_| drop(std::fs::remove_file(aside)))
    }

    /// Waits until everything written so far is on the disk.
    pub fn sync(&self) -> std::io::Result<()> {
        synced(self.file.sync_data())
    }

    /// Sets the maximum length of the file.
    pub fn set_most_bytes(&mut self, most_bytes: Option<u64>) {
        self.most_bytes = most_bytes.unwrap_or(u64::MAX);
    }

    /// Reads what was written.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    /// Truncates the file to `length`.
    pub fn cut(&mut self, length: u64) -> std::io::Result<()> {
        self.file.set_len(length)?;
        self.length = length;
        Ok(())
    }

    /// Bytes of the profile.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Writes one chunk of events that stands for the ring's words `ring`.
    pub fn append_events(&mut self, raw: &[u8], ring: std::ops::Range<u64>) -> std::io::Result<()> {
        self.append_packed(ChunkKind::Events, raw, ring)
    }

    /// Writes one chunk of facts from before the file.
    pub fn append_carried(&mut self, raw: &[u8], position: u64) -> std::io::Result<()> {
        self.append_packed(ChunkKind::Carried, raw, position..position)
    }

    /// Writes a chunk of definitions unchanged from another file.
    pub fn append_definitions(&mut self, payload: &[u8], position: u64) -> std::io::Result<()> {
        self.append(ChunkKind::Definitions, payload, position)
    }

    /// Writes the lost counters: `Lost`, or `LostBefore` at the beginning of a file.
    pub fn append_lost(
        &mut self,
        kind: ChunkKind,
        lost: &[(u64, u64)],
        position: u64,
    ) -> std::io::Result<()> {
        let payload: Vec<u8> = lost
            .iter()
            .flat_map(|&(events, bytes)| [events, bytes])
            .flat_map(u64::to_le_bytes)
            .collect();
        self.append(kind, &payload, position)
    }

    /// Writes the agent's figures about itself: `Figures`, or `FiguresBefore` at the beginning of a file.
    pub fn append_figures(
        &mut self,
        kind: ChunkKind,
        figures: &[u64],
        position: u64,
    ) -> std::io::Result<()> {
        let payload: Vec<u8> = figures.iter().copied().flat_map(u64::to_le_bytes).collect();
        self.append(kind, &payload, position)
    }

    /// Writes a reading of the process's memory.
    pub fn append_memory(&mut self, payload: &[u8], position: u64) -> std::io::Result<()> {
        self.append_packed(ChunkKind::Memory, payload, position..position)
    }

    /// Writes a chunk without compression.
    fn append(&mut self, kind: ChunkKind, payload: &[u8], position: u64) -> std::io::Result<()> {
        let body = self.room_for(payload.len());
        body[..payload.len()].copy_from_slice(payload);
        self.write_chunk(kind, payload.len(), payload.len(), position..position)
    }

    /// Compresses and writes a chunk.
    fn append_packed(
        &mut self,
        kind: ChunkKind,
        raw: &[u8],
        ring: std::ops::Range<u64>,
    ) -> std::io::Result<()> {
        let body = self.room_for(get_maximum_output_size(raw.len()));
        let stored = compress_into(raw, body).map_err(std::io::Error::other)?;
        self.write_chunk(kind, raw.len(), stored, ring)
    }

    /// Returns the buffer for a chunk's payload.
    fn room_for(&mut self, payload_bytes: usize) -> &mut [u8] {
        let needed = CHUNK_HEADER_BYTES + payload_bytes;
        if self.chunk.len() < needed {
            // Not `resize`, which would copy the old content.
            self.chunk = vec![0; needed.next_power_of_two()];
        }
        &mut self.chunk[CHUNK_HEADER_BYTES..]
    }

    /// Writes the chunk whose payload has been put there.
    fn write_chunk(
        &mut self,
        kind: ChunkKind,
        raw_bytes: usize,
        stored_bytes: usize,
        ring: std::ops::Range<u64>,
    ) -> std::io::Result<()> {
        let raw_bytes = u32::try_from(raw_bytes).map_err(std::io::Error::other)?;
        let (header, body) = self.chunk.split_at_mut(CHUNK_HEADER_BYTES);
        let payload = &body[..stored_bytes];
        header
            .copy_from_slice(&ChunkHeader::for_payload(kind, raw_bytes, ring, &[payload]).encode());
        let chunk = &self.chunk[..CHUNK_HEADER_BYTES + stored_bytes];
        if self.length.saturating_add(chunk.len() as u64) > self.most_bytes {
            return Err(std::io::Error::from(std::io::ErrorKind::FileTooLarge));
        }
        if let Err(error) = self.file.write_all(chunk) {
            // No half chunk may stay in the middle: readers could not read anything after it.
            self.file.set_len(self.length)?;
            return Err(error);
        }
        self.length += chunk.len() as u64;
        Ok(())
    }
}

/// Continue if the file system, or a filter of system calls, does not know this call.
fn synced(result: std::io::Result<()>) -> std::io::Result<()> {
    result.or_else(|error| match error.raw_os_error() {
        Some(libc::EIO | libc::ENOSPC | libc::EDQUOT) => Err(error),
        _ => Ok(()),
    })
}

#[cfg(test)]
mod tests;
