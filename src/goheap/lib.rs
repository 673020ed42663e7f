//! The heap profile that a Go runtime keeps of itself, read from outside its process.
//!
//! A Go runtime samples its own allocations with the law that we use: exponential gaps, `runtime.MemProfileRate` bytes on
//! average, 512 KiB by default. It counts allocations and frees in *buckets*, one for every stack and size. Counts become
//! visible when a collection has ended, so what is live is live by the collector's account.
//!
//! ```text
//! bucket  at +0   next in the hash chain      at +8   next of all
//!         at +16  1: allocations              at +24  hash
//!         at +32  size of the object          at +40  frames
//!         at +48  frames, leaf first
//!         behind  allocations, frees, bytes of both (without these from Go 1.27 on); then 3 times the same, of collections
//!                 that have not ended
//! ```
//!
//! Buckets never move and are never freed. Which of the two layouts a process has follows from its counts; every field is
//! checked. Reading takes the right of a debugger. It runs no code in the process and stops none of its threads. Only
//! `runtime.MemProfileRate` is ever written, and in a program that has not begun to run also what its start would set this
//! to, all if the caller asks for it.
//!
//! Names come from the tables that the runtime itself uses for its stack traces (`functions.rs`), which are in every Go
//! executable, also in a stripped one.
#![forbid(unsafe_code)]

mod buckets;
mod functions;
mod image;
mod memory;
mod module;
mod profile;
mod runtime;
#[cfg(test)]
mod tests;
mod variables;

pub use buckets::{Bucket, Buckets, Counts, Unreadable};
pub use functions::Place;
pub use profile::{Moment, Recorder, Since};
pub use runtime::{GoError, Runtime};
