//! The agent's own thread: empties the ring, interns stacks, writes the profile.
//!
//! It sleeps until a quarter of the ring is used, or somebody asks it to end. Then it reads what is committed, turns it
//! into one chunk, writes the chunk, and only then gives the ring's space back: at every moment each record is in the
//! file or in the ring, whoever kills the process. It has its own memory, its own table of file descriptors, and all
//! signals blocked.

mod carry;
mod follow;
mod handover;
mod intern;
mod keeper;
mod nodes;
mod places;
mod residency;
mod rotation;
mod thread;
#[cfg(test)]
mod trial;
mod writer;

pub use thread::{DrainError, run};
pub use writer::compress;
