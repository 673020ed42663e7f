//! A global allocator for Rust programs that profiles any other one.
//!
//! `LD_PRELOAD` reaches neither static programs nor an allocator that is linked into the program. [`Sampled`] is a part of
//! the program: it wraps the allocator that the program uses, and contains the same sampler, stacks, ring and files as
//! `liballocsample.so`.
//!
//! ```
//! use std::alloc::System;
//!
//! #[global_allocator]
//! static ALLOCATOR: allocsample_global::Sampled<System> = allocsample_global::Sampled::new(System);
//! ```
//!
//! It is off unless the program is started by `allocsample run`, or with `ALLOCSAMPLE_OUTPUT` or `ALLOCSAMPLE_INTERVAL` in its
//! environment. docs/rust.md in the repository has the costs and the limits.

mod sampled;
mod start;
mod thread;

pub use sampled::Sampled;

use allocsample_agent::{Agent, BlockFilter, FILTER_GRANULES};
use allocsample_front::{OwnAllocator, on_shortage};
use std::sync::atomic::AtomicU8;

static FILTER_BYTES: [AtomicU8; FILTER_GRANULES] = [const { AtomicU8::new(0) }; FILTER_GRANULES];

// `dealloc` reads it from the beginning: there is nothing to switch on.
static FILTER: BlockFilter = BlockFilter::new(&FILTER_BYTES, || {});

/// The agent of this process.
static AGENT: Agent = Agent::new(BlockFilter::new(&FILTER_BYTES, || {}));

/// Memory of the drain thread. Nothing of it is ever passed to the program, nor the other way round.
static MEMORY: OwnAllocator = OwnAllocator::new(on_shortage::<start::Global>);
