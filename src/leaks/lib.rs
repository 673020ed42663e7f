//! Which sites leak, and how sure that is.
//!
//! [`Findings::of`] looks at every site with live bytes: [`progress`] measures how far the program is, [`growth`] tests
//! whether the live bytes grow with it, [`verdict`] says what that means. [`text`] and [`json`] print it. The statistics
//! are explained in docs/leaks.md.
#![forbid(unsafe_code)]

mod blocks;
pub mod csv;
mod findings;
mod growth;
pub mod json;
mod pace;
mod parallel;
mod progress;
mod site;
pub mod text;
mod verdict;

pub use findings::{Finding, Findings};
pub use growth::{BINS, Growth, SignFlipTest};
pub use pace::Pace;
pub use verdict::Verdict;
