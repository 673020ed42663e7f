//! The agent in programs of every kind, by itself.

#[path = "../support/mod.rs"]
mod support;

mod accuracy;
mod budgets;
mod charging;
mod continuous;
mod counted_once;
mod crowd;
mod deepbind;
mod exactness;
mod fast_path;
mod foreign_memory;
mod full_disk;
mod guest;
mod interpose;
mod mappings;
mod operators;
mod pages;
mod platforms;
mod probes;
mod reentry;
mod reliability;
mod selection;
mod shared_object;
mod soak;
mod stacks;
mod stress;
mod survival;
mod time;
