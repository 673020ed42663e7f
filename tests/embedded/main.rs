//! Allocators that are part of a program or of a library.

#[path = "../support/mod.rs"]
mod support;

mod debug_files;
mod entries;
mod extensions;
mod instructions;
mod jemalloc_hooks;
