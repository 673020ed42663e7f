//! A profile in other people's formats.
//!
//! One file per format, and [`write()`] to choose one. Each of them sees the profile through the same view (`view`), so
//! that all agree on names, weights and on what is live. Sums are rounded when they are printed, never before.
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
mod object;
mod otlp;
mod pprof;
mod speedscope;
mod text;
mod view;

pub use format::{ExportError, Format, Options, UnknownFormat, write};
pub use otlp::write_otlp;
pub use view::Metric;
