//! `liballocsample.so`: joins the C shim, the agent and the drain thread.
//!
//! `start` is the library's constructor; `attach` begins and ends in a process that runs already. The tables through which
//! the shim and virtual machines call the agent are in the room `boundary`.
//! Every Rust allocation of ours comes from `OwnAllocator`, and stays out of the program's heap.

mod attach;
mod go;
mod reserved;
mod start;

use allocsample_front::{OwnAllocator, on_shortage};

#[global_allocator]
static ALLOCATOR: OwnAllocator = OwnAllocator::new(on_shortage::<start::Preload>);
