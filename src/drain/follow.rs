//! Reads back the file that the drain thread writes.

use std::io::{Error, ErrorKind};

use allocsample_record::{
    CHUNK_HEADER_BYTES, ChunkDecoder, ChunkHeader, ChunkKind, FILE_HEADER_BYTES,
};

use crate::carry::Carry;
use crate::writer::ChunkWriter;

/// The state of the file up to some chunk. It is only built when another file begins, so that processes without
/// rotation do not pay for it.
#[derive(Default)]
pub struct Follower {
    offset: u64,
    /// The facts from the file's events.
    pub carry: Carry,
    /// Payloads of the chunks with definitions from before the recording began.
    pub definitions: Vec<Vec<u8>>,
}

impl Follower {
    /// Processes the next chunk; false at the end of the file.
    pub fn step(&mut self, file: &ChunkWriter) -> std::io::Result<bool> {
        let offset = self.offset.max(FILE_HEADER_BYTES as u64);
        if offset >= file.length() {
            return Ok(false);
        }
        let mut head = [0; CHUNK_HEADER_BYTES];
        file.read_at(offset, &mut head)?;
        let header = ChunkHeader::decode(&head).ok_or_else(|| damaged("not a chunk"))?;
        let payload_at = offset + CHUNK_HEADER_BYTES as u64;
        self.offset = payload_at + u64::from(header.stored_bytes);
        if self.offset > file.length() {
            return Err(damaged("a chunk beyond the end"));
        }
        let is_events = [ChunkKind::Events as u16, ChunkKind::Carried as u16];
        let is_definitions = header.kind == ChunkKind::Definitions as u16;
        if header.kind == ChunkKind::Packed as u16 {
            return Err(damaged("the ring as it was: recording has ended before"));
        }
        if !is_events.contains(&header.kind) && !is_definitions {
            return Ok(true);
        }
        let mut payload = vec![0; header.stored_bytes as usize];
        file.read_at(payload_at, &mut payload)?;
        if !header.matches(&payload) {
            return Err(damaged("a bad checksum"));
        }
        if is_definitions {
            self.definitions.push(payload);
            return Ok(true);
        }
        let raw = lz4_flex::block::decompress(&payload, header.raw_bytes as usize)
            .map_err(Error::other)?;
        let mut decoder = ChunkDecoder::new(&raw, self.carry.nodes());
        for event in decoder.by_ref() {
            self.carry.add(event);
        }
        match decoder.is_malformed() {
            true => Err(damaged("a malformed event")),
            false => Ok(true),
        }
    }
}

fn damaged(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests;
