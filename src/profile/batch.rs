//! Events of a chunk, decoded before they are added.

use allocsample_record::{ChunkDecoder, Event, RecordKind, StackNode};

/// Events that go into the profile together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Stack nodes, which no other event comes between as far as they are concerned.
    pub(crate) nodes: Vec<StackNode>,
    /// All others, in their order.
    pub(crate) events: Vec<Event>,
}

/// What a chunk says, part by part: a malformed file must not make us take more memory than the profile will.
#[derive(Debug)]
pub(crate) struct Batches<'a> {
    decoder: ChunkDecoder<'a>,
    is_at_end: bool,
}

impl<'a> Batches<'a> {
    /// Over a chunk's raw bytes, behind so many nodes of the file.
    pub(crate) fn new(raw: &'a [u8], nodes: u32) -> Self {
        Self {
            decoder: ChunkDecoder::new(raw, nodes),
            is_at_end: false,
        }
    }

    /// Whether they ended at something that is not an event.
    pub(crate) fn is_malformed(&self) -> bool {
        self.decoder.is_malformed()
    }

    /// Nodes so far in the whole file.
    pub(crate) fn nodes(&self) -> u32 {
        self.decoder.nodes()
    }
}

impl Iterator for Batches<'_> {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        /// Of nodes and others together; the drain thread's chunks have fewer.
        const MOST: usize = 1 << 18;
        if self.is_at_end {
            return None;
        }
        let mut batch = Batch::default();
        for event in self.decoder.by_ref() {
            match event {
                Event::Node(node) => batch.nodes.push(node),
                event => batch.events.push(event),
            }
            if batch.nodes.len() + batch.events.len() == MOST {
                return Some(batch);
            }
        }
        self.is_at_end = true;
        Some(batch)
    }
}

/// Whether a chunk of before the file is the first of a file of its own: numbers of nodes begin anew.
pub(crate) fn begins_anew(carried: &[u8]) -> bool {
    carried.first() == Some(&(RecordKind::Part as u8))
}
