//! The chunks of a file, read, unpacked and decoded for another thread to add.

use std::fs::File;
use std::io::{BufReader, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};

use allocsample_record::{
    CHUNK_HEADER_BYTES, ChunkDecoder, ChunkHeader, ChunkKind, FILE_HEADER_BYTES,
};

use crate::batch::{Batch, begins_anew};
use crate::limits::Limits;
use crate::model::Damage;

/// What comes next in the file.
pub(crate) enum Piece {
    /// Events of the chunk that comes next.
    Events(Events),
    /// A chunk; if it holds events they came before.
    Chunk(Chunk),
}

/// Events, some of a chunk's.
pub(crate) struct Events {
    pub(crate) batch: Box<Batch>,
    /// They are of before the file began.
    pub(crate) is_carried: bool,
    /// Numbers of nodes begin anew.
    pub(crate) begins_anew: bool,
    /// Number of the chunk.
    pub(crate) chunk: u32,
    /// Its offset.
    pub(crate) offset: u64,
}

/// A chunk as it stands in the file, or what stands there instead.
pub(crate) struct Chunk {
    /// From 1.
    pub(crate) number: u32,
    /// Of its first byte.
    pub(crate) offset: u64,
    pub(crate) content: Content<Payload>,
}

/// A chunk's header and payload, or what is wrong with it.
type Content<P> = Result<(ChunkHeader, P), Damage>;

/// A chunk's payload.
pub(crate) enum Payload {
    /// It was compressed, and this is what came out; nothing if that failed.
    Raw(Option<Vec<u8>>),
    /// It was packed; nothing if it is malformed.
    Packed(Option<PackedChunk>),
    /// As it was stored.
    Stored(Vec<u8>),
    /// Events that came before.
    Events {
        /// Whether they ended at the chunk's end, and not at something that is no event.
        is_sound: bool,
    },
}

/// Nobody listens any more: there was damage that only the other side could see.
struct Unheard;

/// Reads the chunks of a file.
pub(crate) struct ChunkReader {
    file: BufReader<File>,
    /// Of the next chunk.
    number: u32,
    offset: u64,
    /// Stack nodes so far.
    nodes: u32,
    /// The last payload of events, unpacked.
    raw: Vec<u8>,
}

impl ChunkReader {
    /// Over a file behind its header; so many stack nodes are known from files before it.
    pub(crate) fn new(file: File, nodes: u32) -> Self {
        Self {
            file: BufReader::with_capacity(1 << 16, file),
            number: 1,
            offset: FILE_HEADER_BYTES as u64,
            nodes,
            raw: Vec::new(),
        }
    }

    /// Sends all that there is, to the end or the first damage. Batches that come back as `used` are filled again;
    /// `read_bytes` grows by what was read.
    pub(crate) fn send_all(
        mut self,
        pieces: &SyncSender<std::io::Result<Piece>>,
        used: &Receiver<Box<Batch>>,
        read_bytes: &AtomicU64,
    ) {
        loop {
            let piece = match self.next(pieces, used) {
                Ok(Ok(Some(chunk))) => Ok(Piece::Chunk(chunk)),
                Ok(Err(error)) => Err(error),
                Ok(Ok(None)) | Err(Unheard) => return,
            };
            let is_last = match &piece {
                Ok(Piece::Chunk(Chunk {
                    content: Ok((header, _)),
                    ..
                })) => {
                    // For a display alone, which may be late.
                    read_bytes.fetch_add(u64::from(header.stored_bytes), Ordering::Relaxed);
                    false
                }
                _ => true,
            };
            if pieces.send(piece).is_err() || is_last {
                return;
            }
        }
    }

    /// The next chunk, of which the events have been sent; `None` at the end of the file.
    fn next(
        &mut self,
        pieces: &SyncSender<std::io::Result<Piece>>,
        used: &Receiver<Box<Batch>>,
    ) -> Result<std::io::Result<Option<Chunk>>, Unheard> {
        let stored = match self.read() {
            Ok(None) => return Ok(Ok(None)),
            Err(error) => return Ok(Err(error)),
            Ok(Some(stored)) => stored,
        };
        let (number, offset) = (self.number, self.offset);
        let content = match stored {
            Err(damage) => Err(damage),
            Ok((header, stored)) => {
                let content = self.unpack(&header, stored, pieces, used)?;
                self.offset += CHUNK_HEADER_BYTES as u64 + u64::from(header.stored_bytes);
                content.map(|payload| (header, payload))
            }
        };
        self.number += 1;
        Ok(Ok(Some(Chunk {
            number,
            offset,
            content,
        })))
    }

    /// The next chunk as it is stored.
    fn read(&mut self) -> std::io::Result<Option<Content<Vec<u8>>>> {
        // A length in a header may be anything: memory is taken for what is there, not for what is claimed.
        let mut take = |bytes: u64| -> std::io::Result<Vec<u8>> {
            let mut taken = Vec::new();
            self.file.by_ref().take(bytes).read_to_end(&mut taken)?;
            Ok(taken)
        };
        let head = take(CHUNK_HEADER_BYTES as u64)?;
        if head.is_empty() {
            return Ok(None);
        }
        Ok(Some(match ChunkHeader::decode(&head) {
            None if head.len() < CHUNK_HEADER_BYTES => Err(Damage::CutShort),
            None => Err(Damage::NoChunk),
            Some(header) => {
                let payload = take(u64::from(header.stored_bytes))?;
                if payload.len() < header.stored_bytes as usize {
                    Err(Damage::CutShort)
                } else if !header.matches(&payload) {
                    Err(Damage::BadChecksum)
                } else {
                    Ok((header, payload))
                }
            }
        }))
    }

    /// What was packed, unpacked; events are sent.
    fn unpack(
        &mut self,
        header: &ChunkHeader,
        stored: Vec<u8>,
        pieces: &SyncSender<std::io::Result<Piece>>,
        used: &Receiver<Box<Batch>>,
    ) -> Result<Result<Payload, Damage>, Unheard> {
        let is_packed = [
            ChunkKind::Events,
            ChunkKind::Carried,
            ChunkKind::Packed,
            ChunkKind::Symbols,
            ChunkKind::Memory,
            ChunkKind::Inspected,
        ];
        if is_packed.iter().any(|&kind| header.kind == kind as u16)
            && can_expand_to(header.raw_bytes, &stored)
            && u64::from(header.raw_bytes) > Limits::raw_bytes(header.kind, stored.len())
        {
            return Ok(Err(Damage::TooLarge));
        }
        self.unpack_sized(header, stored, pieces, used).map(Ok)
    }

    fn unpack_sized(
        &mut self,
        header: &ChunkHeader,
        stored: Vec<u8>,
        pieces: &SyncSender<std::io::Result<Piece>>,
        used: &Receiver<Box<Batch>>,
    ) -> Result<Payload, Unheard> {
        let is = |kind: ChunkKind| header.kind == kind as u16;
        if is(ChunkKind::Symbols) || is(ChunkKind::Memory) || is(ChunkKind::Inspected) {
            return Ok(Payload::Raw(unpack(header, &stored)));
        }
        if is(ChunkKind::Packed) {
            return Ok(Payload::Packed(PackedChunk::unpack(header, &stored)));
        }
        if !is(ChunkKind::Events) && !is(ChunkKind::Carried) {
            return Ok(Payload::Stored(stored));
        }
        if !unpack_into(header, &stored, &mut self.raw) {
            return Ok(Payload::Raw(None));
        }
        let is_carried = is(ChunkKind::Carried);
        let mut begins_anew = is_carried && begins_anew(&self.raw);
        if begins_anew {
            self.nodes = 0;
        }
        let mut decoder = ChunkDecoder::new(&self.raw, self.nodes);
        loop {
            let mut batch = used.try_recv().unwrap_or_default();
            batch.fill(&mut decoder);
            let is_last = !batch.is_full();
            let events = Events {
                batch,
                is_carried,
                begins_anew,
                chunk: self.number,
                offset: self.offset,
            };
            pieces
                .send(Ok(Piece::Events(events)))
                .map_err(|_| Unheard)?;
            if is_last {
                break;
            }
            begins_anew = false;
        }
        self.nodes = decoder.nodes();
        Ok(Payload::Events {
            is_sound: !decoder.is_malformed(),
        })
    }
}

/// The two rows of bytes of a [`ChunkKind::Packed`] chunk.
pub(crate) struct PackedChunk {
    /// For [`allocsample_record::Unpacker`].
    pub(crate) records: Vec<u8>,
    /// For it, too.
    pub(crate) frames: Vec<u8>,
}

impl PackedChunk {
    fn unpack(header: &ChunkHeader, payload: &[u8]) -> Option<Self> {
        let (records_bytes, payload) = payload.split_first_chunk()?;
        let records_bytes = u32::from_le_bytes(*records_bytes) as usize;
        let (records, frames) = payload.split_at_checked(records_bytes)?;
        Some(Self {
            records: records.to_vec(),
            frames: unpack(header, frames)?,
        })
    }
}

/// What was packed in a chunk's payload; `None` if that is malformed, or larger than it may be.
pub(crate) fn unpack(header: &ChunkHeader, payload: &[u8]) -> Option<Vec<u8>> {
    let mut raw = Vec::new();
    if u64::from(header.raw_bytes) > Limits::raw_bytes(header.kind, payload.len()) {
        return None;
    }
    unpack_into(header, payload, &mut raw).then_some(raw)
}

/// The same into memory that was used before; whether it is good.
fn unpack_into(header: &ChunkHeader, payload: &[u8], raw: &mut Vec<u8>) -> bool {
    if !can_expand_to(header.raw_bytes, payload) {
        return false;
    }
    raw.resize(header.raw_bytes as usize, 0);
    match lz4_flex::block::decompress_into(payload, raw) {
        Ok(bytes) => {
            raw.truncate(bytes);
            true
        }
        Err(_) => false,
    }
}

/// Whether LZ4 could have made these bytes of so many.
fn can_expand_to(raw_bytes: u32, payload: &[u8]) -> bool {
    u64::from(raw_bytes) <= 255 * (payload.len() as u64 + 1)
}
