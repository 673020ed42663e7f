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

impl Batch {
    /// Of nodes and others together: as many as two threads can hand to each other within a processor's cache.
    const MOST: usize = 1 << 14;

    /// Takes the place of what was in it.
    pub(crate) fn fill(&mut self, decoder: &mut ChunkDecoder<'_>) {
        self.nodes.clear();
        self.events.clear();
        for event in decoder.take(Self::MOST) {
            match event {
                Event::Node(node) => self.nodes.push(node),
                event => self.events.push(event),
            }
        }
    }

    /// Whether the decoder may have more.
    pub(crate) fn is_full(&self) -> bool {
        self.nodes.len() + self.events.len() >= Self::MOST
    }
}

/// Whether a chunk of before the file is the first of a file of its own: numbers of nodes begin anew.
pub(crate) fn begins_anew(carried: &[u8]) -> bool {
    carried.first() == Some(&(RecordKind::Part as u8))
}
