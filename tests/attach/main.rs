//! Running processes: `attach`, `detach` and `ctl`.

#[path = "../support/mod.rs"]
mod support;

mod beside_others;
mod ctl;
mod killed;
mod memory_before;
mod programs;
mod refused;
mod rendezvous;
mod running;
mod starved;
