//! The GC hook ABI, in machines that are made for the tests and in frameworks of collectors.

#[path = "../support/mod.rs"]
mod support;

mod ends;
mod jit;
mod machine_stacks;
mod machines;
mod mmtk;
mod pending;
mod process_control;
mod properties;
mod rpython;
mod thinning;
