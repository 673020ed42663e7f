//! Answers from a profile: totals, functions, sites.
//!
//! [`Totals`] adds up, [`Table`] groups; [`text`] and [`json`] print both. Every figure is an [`Estimate`] and keeps its
//! standard error until it is printed.
#![forbid(unsafe_code)]

mod allocator;
mod arenas;
pub mod breakdown;
pub mod cost;
pub mod coverage;
pub mod csv;
mod document;
mod elide;
mod frames;
pub mod heaps;
pub mod jars;
pub mod json;
pub mod ledger;
pub mod lifetimes;
mod numbering;
pub mod origin;
mod pages;
mod pairs;
#[cfg(test)]
mod random_profile;
pub mod redundancy;
pub mod runtimes;
mod selection;
mod shares;
pub mod significance;
mod steps;
mod sums;
mod table;
pub mod text;
pub mod time;
mod totals;
mod tree;
pub mod units;
pub mod versions;
mod width;
mod wrappers;

pub use allocator::charged_frame;
pub use allocsample_profile::{Halves, Peak, PeakMoments, Weights};
pub use allocsample_sampling::Estimate;
pub use coverage::Coverage;
pub use document::Document;
pub use elide::{shorten, shorten_all};
pub use frames::{FrameId, Frames, Names, Paths};
pub use ledger::{Account, Ledger, LedgerRow};
pub use numbering::{NONE, Numbering};
pub use pairs::{Kinds, Pairs};
pub use regex::Regex;
pub use selection::{Filter, Matches, Selection, Selector};
pub use sums::Figures;
pub use table::{By, Grouped, Request, Row, Sort, Table};
pub use totals::{Audit, Totals};
pub use tree::{Direction, Tree};
pub use width::Width;
pub use wrappers::Skipped;
