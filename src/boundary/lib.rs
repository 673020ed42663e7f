//! The tables by which C calls the agent: `slow_path` is the shim's, `hooks` the one that virtual machines get.
//!
//! `liballocsample.so` (`preload`) and `liballocsample.a` (`archive`) have the same C under names of their own, and this on
//! top of it. Neither table exists without the shim's variables, so the agent that both call is here.

mod hooks;
mod slow_path;

pub use hooks::allocsample_get_hooks;
pub use slow_path::{install, this_thread};

use allocsample_agent::Agent;

/// The agent of this process.
pub static AGENT: Agent = Agent::new(slow_path::block_filter());
