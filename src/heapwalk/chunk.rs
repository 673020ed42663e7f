//! The header of a chunk, as glibc lays it out on 64-bit machines.

/// Of all chunks but fence posts.
pub const LEAST_BYTES: u64 = 32;
/// Chunks and blocks are aligned to this.
pub const ALIGNMENT: u64 = 16;
/// From a chunk to its block.
pub const TO_BLOCK: u64 = 16;
/// From a chunk to the word with its size: from there on its memory is its own, up to the same place of the next chunk.
pub const TO_SIZE: u64 = 8;
/// What a block costs besides its own bytes.
pub const OVERHEAD: u64 = 8;

const PREVIOUS_IN_USE: u64 = 1;
const MAPPED: u64 = 2;
const OTHER_ARENA: u64 = 4;
const FLAGS: u64 = PREVIOUS_IN_USE | MAPPED | OTHER_ARENA;

/// The word with the size of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header(pub u64);

impl Header {
    /// Of the whole chunk.
    pub fn size(self) -> u64 {
        self.0 & !FLAGS
    }

    /// Whether the chunk before is in use, or in a cache.
    pub fn is_previous_in_use(self) -> bool {
        self.0 & PREVIOUS_IN_USE != 0
    }

    /// Whether it is a mapping of its own.
    pub fn is_mapped(self) -> bool {
        self.0 & MAPPED != 0
    }

    /// Whether a chunk in a heap could have this header. In the main arena no chunk belongs to another one; elsewhere only
    /// chunks in use have the flag.
    pub fn is_plausible(self, is_main: bool) -> bool {
        let size = self.size();
        size >= LEAST_BYTES
            && size.is_multiple_of(ALIGNMENT)
            && !self.is_mapped()
            && !(is_main && self.0 & OTHER_ARENA != 0)
    }

    /// Two of these end a heap that is followed by memory of others: they look like chunks in use of the least size possible.
    pub fn is_fence_post(self) -> bool {
        self.size() == 16 && !self.is_mapped()
    }

    /// The very last header of an arena's full heap.
    pub fn is_end(self) -> bool {
        self.0 == PREVIOUS_IN_USE
    }
}
