//! The blocks that are live samples: malloc's, and those of heaps whose blocks are freed by their address.

use crate::hooks::Heap;
use crate::live::{BlockFilter, LiveSamples};

/// malloc's samples, and the filter that all heaps share.
pub(crate) struct SampledBlocks {
    live: LiveSamples,
    filter: BlockFilter,
}

/// The samples of one heap.
#[derive(Clone, Copy)]
pub(crate) struct BlocksOf<'a> {
    live: &'a LiveSamples,
    filter: &'a BlockFilter,
}

impl SampledBlocks {
    /// No samples.
    pub const fn new(filter: BlockFilter) -> Self {
        Self {
            live: LiveSamples::new(),
            filter,
        }
    }

    /// malloc's samples.
    #[inline]
    pub fn of_malloc(&self) -> BlocksOf<'_> {
        BlocksOf {
            live: &self.live,
            filter: &self.filter,
        }
    }

    /// The samples of a heap; malloc's if its blocks are.
    pub fn of<'a>(&'a self, heap: &'a Heap) -> BlocksOf<'a> {
        BlocksOf {
            live: heap.own_blocks().unwrap_or(&self.live),
            filter: &self.filter,
        }
    }

    /// Makes the memory that a first sample would need.
    pub fn prepare(&self) {
        self.live.prepare();
    }
}

impl BlocksOf<'_> {
    /// The block at this address is the sample `id`. False: there is no memory to keep that.
    #[inline]
    pub fn insert(self, address: u64, id: u64) -> bool {
        self.live.insert(self.filter, address, id)
    }

    /// Takes the block out; its id, if it is a sample.
    #[inline]
    pub fn take(self, address: u64) -> Option<u64> {
        self.live.take(self.filter, address)
    }

    /// Takes the block out if it is the sample `id`.
    pub fn take_as(self, address: u64, id: u64) {
        self.live.take_as(self.filter, address, id);
    }

    /// Forgets all samples.
    pub fn clear(self) {
        self.live.clear(self.filter);
    }
}
