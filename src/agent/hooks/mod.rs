//! The hook ABI's logic: the heaps of virtual machines beside malloc's.
//!
//! ```text
//! nursery_point, alloc --(sample point)--> work area -> stack + VM frames -> ring; young list of the nursery
//! pending, resolve: young list --alive--> old list of the heap --dead--> fate record
//! ```
//! A nursery and its young list belong to one thread (`nursery`); the old samples of a heap to whoever collects it
//! (`heap`). What a machine defines once (`publishing/definitions.rs`) is kept, so that a profile that begins later, or in a
//! forked child, has it too.

mod collect;
mod deaths;
mod heap;
mod nursery;
mod on_request;
mod timeline;

pub use collect::{Pending, Resolution};
pub use heap::{Callbacks, Description, Heap, Heaps};
pub use nursery::{Drawn, HookSlot, Object};

#[cfg(test)]
pub(crate) mod tests;
