//! When the next sample is due, and what one stands for.
//!
//! Think of all bytes that a thread allocates as one long row, in the order of the allocations. Some bytes of the row
//! are *sample points*; an allocation is sampled if at least one of its bytes is one. [`Sampler`] walks along the row,
//! [`Weight`] tells how many bytes and objects a sampled allocation stands for, [`Estimate`] adds them up and knows its
//! error.
//!
//! ```text
//! row    ........x....|...|.........x..x..|.........
//!                 d = 4 before this block
//! block              [  ]                  d >= size: not sampled, d -= size
//! block                   [             ]  d < size: sampled, 2 points
//! ```
//!
//! Pure arithmetic: no I/O, no clock, no globals, no allocation. The same code decides on the program's threads and
//! unbiases in the offline tools, so the two cannot drift apart.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

#[cfg(test)]
extern crate std;

mod budget;
mod estimate;
mod gamma;
mod gap;
mod interval;
mod limits;
mod live_limit;
mod nursery;
mod random;
mod sampler;
mod weight;

pub use budget::{Budget, Controller, Window, parse_percent};
pub use estimate::{Estimate, Limits};
pub use gap::{GapLaw, draw_gap};
pub use interval::{Interval, IntervalError, IntervalSetting};
pub use limits::{
    parse_decimal, parse_max_size, parse_max_size_rotated, parse_rotate_size, parse_time_ms,
};
pub use live_limit::LiveLimit;
pub use nursery::{Nursery, NurseryLimit, Overflow};
pub use random::{Random, Seed};
pub use sampler::{MAX_COUNTED_POINTS, SamplePoints, Sampler};
pub use weight::{Weight, inclusion_probability};
