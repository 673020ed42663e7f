//! What allocators hold in another process: glibc's malloc chunk by chunk, CPython's pool by pool.
//!
//! The other process runs no code of ours and is not stopped. Its memory is read through `/proc/PID/mem`, and only pages that
//! are resident, so a reading swaps nothing in. The walk follows the headers of the chunks, which lie back to back in the heap
//! of `brk` and in the heaps of arenas. A program that runs meanwhile changes them, and a faulty one may have overwritten them:
//! every header is checked against its successor, and where they do not agree, the walk reads again, or goes on at the next
//! place that looks like a row of chunks. It reports how many bytes it skipped.
//!
//! ```text
//! chunk  at +0   size of the chunk before, if that is free; otherwise the last 8 bytes of its block
//!        at +8   size of this one, a multiple of 16 | 1: the one before is in use | 2: a mapping | 4: not of the main arena
//!        at +16  the block
//! ```
//!
//! A chunk is free in a bin if its successor says so. Chunks in thread caches (tcache) and in fastbins look as if in use: the
//! lists of both are read besides. Works for glibc 2.26 and later on 64-bit machines; other allocators have no arena that is
//! found here. Blocks with mappings of their own, and the arenas of CPython, are known by their content instead ([`Contents`]).
#![forbid(unsafe_code)]

mod arena;
mod by_content;
mod caches;
mod chunk;
mod heap;
mod pages;
mod process;
mod segment;
mod window;

pub use by_content::{Content, Contents, Known};
pub use heap::{Arena, Block, Heap, Piece, Sizes};
pub use pages::{Holding, Parts};
pub use process::Process;
pub use window::{Mapping, Target};

#[cfg(test)]
mod tests;
