//! Events of a chunk, decoded before they are added.

use allocsample_record::{ChunkDecoder, Event, RecordKind, StackNode};

/// Events that go into the profile together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Stack nodes, which no other event comes between as far as they are concerned.
    pub(crate) nodes: Vec<StackNode>,
    /// All others, in their order.
    pub(crate) events: Vec<Event>,
    is_full: bool,
}

impl Batch {
    /// Of nodes and others together: as many as two threads can hand to each other within a processor's cache.
    const MOST: usize = 1 << 14;
    /// Words of records among them: most have a few, and all may have as many as a ring.
    const MOST_WORDS: usize = 1 << 16;

    /// Takes the place of what was in it.
    pub(crate) fn fill(&mut self, decoder: &mut ChunkDecoder<'_>) {
        self.nodes.clear();
        self.events.clear();
        self.is_full = false;
        let (mut count, mut words_in_all) = (0, 0);
        while count < Self::MOST && words_in_all < Self::MOST_WORDS {
            match decoder.next() {
                None => return,
                Some(Event::Node(node)) => self.nodes.push(node),
                Some(event) => {
                    if let Event::Words { words, .. } = &event {
                        words_in_all += words.len();
                    }
                    self.events.push(event);
                }
            }
            count += 1;
        }
        self.is_full = true;
    }

    /// Whether the decoder may have more.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }
}

/// Whether a chunk of before the file is the first of a file of its own: numbers of nodes begin anew.
pub(crate) fn begins_anew(carried: &[u8]) -> bool {
    carried.first() == Some(&(RecordKind::Part as u8))
}
