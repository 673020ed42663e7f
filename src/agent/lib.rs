//! The slow path on the program's threads: guard, capture, account, publish.
//!
//! Everything here runs inside somebody else's `malloc`. It does not allocate from their heap, takes no lock, does not
//! unwind, and uses a few hundred bytes of their stack: the work is done in a work area ([`os::scratch`]). While it
//! runs the thread is muted (`accounting::slow_path`): what a signal handler allocates meanwhile is counted, not sampled.
//!
//! ```text
//! on_alloc: counter -> sampler -> (sample due) work area -> stack -> live table -> ring -> drain thread, if needed
//! free:     block filter -> live table -> ring
//! ```
#![no_std]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
#![allow(
    clippy::new_without_default,
    reason = "`new` is const, for statics; `Default` cannot be"
)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may fail"))]

#[cfg(test)]
extern crate std;

mod accounting;
mod agent;
mod attach;
mod blocks;
mod capture;
pub mod config;
mod free;
pub mod hooks;
mod identity;
mod joining;
mod lifecycle;
mod live;
mod malloc;
mod mappings;
pub mod os;
mod pages;
mod path;
pub mod process_control;
mod publishing;
pub mod recording;
mod reentry;
mod requests;
mod sample;
mod setup;
mod shim;
#[cfg(test)]
#[path = "../../tests/support/skip.rs"]
mod skip;
mod spill;
pub mod stack;
mod switch;
mod ticks;
#[cfg(test)]
mod trial;
mod waiting;

pub use accounting::selection::Filter;
pub use accounting::thread::ShimThread;
pub use agent::Agent;
pub use allocsample_sampling::Interval;
pub use lifecycle::Forking;
pub use live::{BlockFilter, FILTER_GRANULES};
pub use os::clock::avoid_source as read_clock_by_system_calls;
pub use os::stack_room::make_room;
pub use path::Path;
pub use publishing::Publisher;
pub use setup::{Hooks, Start};
pub use shim::{Allocation, Caller, Interrupted, KeptMapping, MappingCall};
pub use switch::Switch;
