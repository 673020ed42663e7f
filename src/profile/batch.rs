//! Events of a chunk, decoded before they are added.

use std::ops::Range;

use allocsample_record::{
    ChunkDecoder, Event, FileFreeStackRecord, FreeRecord, RecordKind, StackNode,
};

use crate::samples::FileSamples;

/// Events that go into the profile together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Stack nodes, which no other event comes between as far as they are concerned.
    pub(crate) nodes: Vec<StackNode>,
    pub(crate) samples: FileSamples,
    pub(crate) frees: Vec<FreeRecord>,
    /// Where samples were freed, which are there when all others are.
    pub(crate) free_stacks: Vec<FileFreeStackRecord>,
    /// Other records: their kinds and words.
    pub(crate) records: Vec<(u8, Vec<u64>)>,
    /// For each record how many samples and frees come before it.
    before: Vec<(usize, usize)>,
    is_full: bool,
}

/// Samples, the frees among and behind them, and the record that comes then.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) samples: Range<usize>,
    pub(crate) frees: Range<usize>,
    /// Index of the record; past the last one at the end.
    pub(crate) record: usize,
}

impl Batch {
    /// Of all events together: as many as two threads can hand to each other within a processor's cache.
    const MOST: usize = 1 << 11;
    /// Words of records among them: most have a few, and all may have as many as a ring.
    const MOST_WORDS: usize = 1 << 16;

    /// Takes the place of what was in it.
    pub(crate) fn fill(&mut self, decoder: &mut ChunkDecoder<'_>) {
        self.nodes.clear();
        self.samples.clear();
        self.frees.clear();
        self.free_stacks.clear();
        self.records.clear();
        self.before.clear();
        self.is_full = false;
        let (mut count, mut words_in_all) = (0, 0);
        while count < Self::MOST && words_in_all < Self::MOST_WORDS {
            match decoder.next() {
                None => return,
                Some(Event::Node(node)) => self.nodes.push(node),
                Some(Event::Sample(sample)) => self.samples.push(&sample),
                Some(Event::Free(free)) => self.frees.push(free),
                Some(Event::FreeStack(free)) => self.free_stacks.push(free),
                Some(Event::Words { kind, words }) => {
                    words_in_all += words.len();
                    self.before.push((self.samples.len(), self.frees.len()));
                    self.records.push((kind, words));
                }
            }
            count += 1;
        }
        self.is_full = true;
    }

    /// All but the nodes. The order is that of the events, but for frees: those between two records come behind the samples.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Run> + use<> {
        let end = (self.samples.len(), self.frees.len());
        let mut ends = self.before.clone();
        ends.push(end);
        let mut start = (0, 0);
        (0..).zip(ends).map(move |(record, end)| {
            let (samples, frees) = std::mem::replace(&mut start, end);
            Run {
                samples: samples..end.0,
                frees: frees..end.1,
                record,
            }
        })
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
