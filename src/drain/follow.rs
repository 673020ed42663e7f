//! Reads the file that we write, behind ourselves.

use std::io::{Error, ErrorKind};

use allocsample_record::{
    CHUNK_HEADER_BYTES, ChunkDecoder, ChunkHeader, ChunkKind, FILE_HEADER_BYTES,
};

use crate::carry::Carry;
use crate::writer::ChunkWriter;

/// What is known of the file up to some chunk. Nothing is kept of it in between: a process that never begins another file
/// pays nothing for being able to.
#[derive(Default)]
pub struct Follower {
    offset: u64,
    /// What the file's events come to.
    pub carry: Carry,
    /// What virtual machines had defined before recording began: payloads, as they stand in the file.
    pub definitions: Vec<Vec<u8>>,
}

impl Follower {
    /// Takes the next chunk in; false at the end of the file.
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
