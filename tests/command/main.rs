//! The command: what it runs, reads, prints, writes, sends and serves.

#[path = "../support/mod.rs"]
mod support;

mod cli;
mod coverage;
mod diff;
mod filters;
mod formats;
mod held;
mod leaks;
mod malformed;
mod memory;
mod names;
mod outputs;
mod push;
mod push_otlp;
mod query;
mod report;
mod run;
mod run_summary;
mod schemas;
mod serve;
mod top;
mod viewers;
