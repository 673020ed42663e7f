//! One file per command.

pub mod attach;
pub mod convert;
pub mod ctl;
pub mod diff;
pub mod install;
pub mod join;
pub mod leaks;
pub mod memory;
pub mod push;
pub mod query;
pub mod report;
pub mod run;
pub mod serve;
pub mod symbolize;
pub mod top;
pub mod view;
