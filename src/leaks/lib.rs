//! Which sites leak, and how sure that is.
//!
//! [`Findings::of`] looks at every site with live bytes: `span` says which of its blocks count, `progress` measures how far
//! the program is, `growth` tests whether the live bytes grow with it, `survival` asks whether old blocks are ever freed,
//! `trend` whether more come at a steady rate, `process` whether the whole process grows, `together` whether sites with few
//! samples grow below one caller, and [`Verdict`] says what that means. [`text`], [`json`] and [`csv`] print it.
//! The statistics are explained in docs/leaks.md.
#![forbid(unsafe_code)]

mod blocks;
#[cfg(test)]
mod calibration;
mod candidate;
pub mod csv;
mod evidence;
mod findings;
mod groups;
mod growth;
pub mod json;
mod pace;
mod process;
mod progress;
mod resident;
mod sentence;
mod sign_flip;
mod site;
mod span;
mod survival;
pub mod text;
mod together;
mod trend;
mod verdict;

pub use findings::{Finding, Findings};
pub use process::ProcessGrowth;
pub use resident::ResidentGrowth;
pub use verdict::{Reason, Verdict};
