//! Answers from a profile: totals, functions, sites.
//!
//! [`Totals`] adds up, [`Table`] groups; [`text`] and [`json`] print both. Every figure is an [`Estimate`] and keeps its
//! standard error until it is printed.
#![forbid(unsafe_code)]

mod allocator;
pub mod cost;
pub mod heaps;
pub mod json;
mod stacks;
mod table;
pub mod text;
mod totals;
mod tree;
pub mod units;

pub use allocator::charged_frame;
pub use allocsample_sampling::Estimate;
pub use table::{By, Filter, Row, Sort, Table};
pub use totals::{Audit, Peak, Totals};
