//! `liballocsample.so`: joins the C shim, the agent and the drain thread.
//!
//! `start` is the library's constructor; `attach` begins and ends in a process that runs already; `slow_path` is the
//! table through which the shim calls the agent; `hooks` is the one that virtual machines get, with a part for any program.
//! Every Rust allocation of ours comes from `OwnAllocator`, and stays out of the program's heap.

mod attach;
mod hooks;
mod slow_path;
mod start;

use allocsample_agent::Agent;
use allocsample_front::{OwnAllocator, on_shortage};

#[global_allocator]
static ALLOCATOR: OwnAllocator = OwnAllocator::new(on_shortage::<start::Preload>);

/// The agent of this process.
static AGENT: Agent = Agent::new(slow_path::block_filter());
