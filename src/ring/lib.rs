//! A many-producer one-consumer ring in mapped memory, and its recovery.
//!
//! Records of a few 64-bit words go from the program's threads to the drain thread through a file-backed shared
//! mapping, so that what a killed process left there can still be read (`recover`, feature `alloc`).
//!
//! ```text
//! position (words, never wraps):   tail ........... consumed ........... head ........... tail + capacity
//!                                   | consumed,      | committed, reserved | zero           |
//!                                   | not yet zeroed | or padding          |                |
//! ```
//!
//! Invariants:
//! 1. `tail <= consumed <= head <= tail + capacity`; all three only grow.
//! 2. Every word in `[head, tail + capacity)` is zero, so a zero header word means "reserved, header not yet written".
//! 3. A record is contiguous: one that does not fit before the end of the data is preceded by a padding record that
//!    fills it, reserved in the same step.
//! 4. `[tail, head)` is tiled by records; a record's first word is its header, which tells its length from the moment
//!    it is reserved.
//!
//! Producers never wait: no lock, no system call, no allocation. A signal handler may reserve and commit while the
//! thread it interrupted stands anywhere between another record's reservation and its commit. A process forked from
//! this one shares the mapping, and must not produce into it.
#![no_std]
#![cfg_attr(
    not(any(test, loom)),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(any(test, loom))]
extern crate std;

#[cfg(target_endian = "big")]
compile_error!("the ring file is little-endian, and its words are written as they are");

mod consumer;
mod layout;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod pending;
mod producer;
#[cfg(feature = "alloc")]
mod recover;
mod ring;
mod sync;
mod waiting;

pub use consumer::{Consumer, Record};
pub use layout::{Collecting, FIGURES, HEAPS, LOST_REASONS, file_bytes, request};
#[cfg(not(loom))]
pub use pending::Stretch;
pub use producer::{Priority, Progress, Reservation, RingFull, Writer};
#[cfg(feature = "alloc")]
pub use recover::{
    RecoverError, Recovered, RecoveredRecord, RecoveredWords, recover, recover_words,
};
pub use ring::Ring;
#[cfg(loom)]
pub use sync::ModelMemory;
pub use waiting::{
    BYTES as WAITING_BYTES, DIRECTORY as WAITING_DIRECTORY, NAME as WAITING_NAME, WaitingRequest,
    start_ticks,
};
