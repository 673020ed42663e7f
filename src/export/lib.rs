//! A profile in other people's formats.
//!
//! One file per format, and [`write()`] to choose one. Each of them reads the profile's own samples and stacks, with the names of `source`,
//! so that all agree on names, weights and on what is live. Sums are rounded when they are printed, never before.
#![forbid(unsafe_code)]

mod blocks;
mod by_stack;
mod collapsed;
mod csv;
mod firefox;
#[cfg(test)]
mod fixture;
mod flamegraph;
mod format;
mod json;
mod merged;
mod metric;
mod object;
mod otlp;
mod pprof;
mod rounding;
mod series;
mod source;
mod speedscope;
mod text;

pub use format::{ExportError, Format, Options, UnknownFormat, write};
pub use metric::Metric;
pub use otlp::write_otlp;
