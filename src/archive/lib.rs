//! `liballocsample.a`: the agent for C and C++ programs that it is linked into.
//!
//! `LD_PRELOAD` does not reach a static program. The linker's option `--wrap` sends the program's calls of `malloc` and its kin
//! to the functions of the C shim, under names of their own (`c_shim/archive/wrapped.def`), and these call the functions that
//! the program would have called. So the archive replaces no allocator. Every Rust allocation of ours comes from
//! `OwnAllocator`, and stays out of the program's heap.
//!
//! scripts/archive makes one object of it, with the shim's and the hook ABI's names alone.

mod start;

use allocsample_front::{OwnAllocator, on_shortage};

#[global_allocator]
static ALLOCATOR: OwnAllocator = OwnAllocator::new(on_shortage::<start::Archive>);
