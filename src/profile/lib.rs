//! A profile as data: read, recovered, symbolised.
//!
//! [`Profile::open`] reads `X.allocsample`, together with the ring `X.allocsample.ring` that a killed (or running)
//! process left beside it. [`finish()`] folds such a ring into the file, and writes the symbols into it, so that the
//! file can leave the machine.
#![forbid(unsafe_code)]

mod batch;
mod before;
mod builder;
mod chunks;
mod counts;
mod examined;
mod finish;
mod folding;
mod frames;
mod inspect;
mod join;
mod limits;
mod missing_root;
mod model;
mod new_file;
mod nodes;
mod numbers;
mod parts;
mod peak;
mod reach;
mod reader;
mod sample_index;
mod samples;
mod series;
mod stacks;
mod symbolize;
mod vm;
mod weights;

pub use allocsample_record::{
    ExitHow, Fate, Figure, GcKind, HeapId, HeapKind, Inspected, Location, LostReason, MemoryMap,
    MemoryMapping, MemoryTotals, ModuleId, Note, SampleFlags, SampleId, Sampling, StackId,
    StackNode, SymbolFrame, SymbolTable, ThreadId, is_plain, readable, readable_char,
};
pub use allocsample_ring::{
    Collecting, HEAPS, WAITING_DIRECTORY, WAITING_NAME, WaitingRequest, request, start_ticks,
};
pub use allocsample_sampling::{Estimate, Limits};
pub use examined::Examined;
pub use finish::{FinishError, Finished, Seen, finish, finish_with, snapshot};
pub use folding::{Runtimes, is_of_system};
pub use frames::Frame;
pub use inspect::{Runtime, Support};
pub use join::{JoinError, join, join_recording, joined_name};
pub use limits::{lift_limits, limits_are_lifted};
pub use missing_root::MissingRoot;
pub use model::{
    Charging, Exit, Freed, IntervalInfo, Lost, Module, OwnCost, Part, ProcessInfo, Profile,
    Recovery, Sample, Thread, Tick,
};
pub use parts::parts_before;
pub use peak::{Halves, Held, Peak, PeakMoments, with_error_of_moment};
pub use reach::{Allowance, Allowances, Reach, ReachBuilder};
pub use reader::ReadError;
pub use samples::Samples;
pub use series::SeriesError;
pub use stacks::StackTable;
pub use symbolize::root_of;
pub use vm::{Function, Gc, Heap, Marker, Outcome, Statistic, Type, Value, VirtualMachines};
pub use weights::Weights;
