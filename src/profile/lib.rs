//! A profile of `allocsample` as data: read, recovered, symbolised.
//!
//! Open a file, and walk over its samples. Each stands for [`Profile::bytes`] and [`Profile::objects`], which are estimates
//! with a standard error; [`Weights`] computes the same faster.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use allocsample_profile::{Estimate, Profile, Weights};
//!
//! let profile = Profile::open(Path::new("app.allocsample"))?;
//! let mut weights = Weights::of(&profile);
//! let mut live = Estimate::default();
//! for sample in profile.samples.iter().filter(|sample| sample.is_live()) {
//!     live += weights.get(&sample).0;
//! }
//! println!("{:.0} bytes are live, ± {:.0}", live.value(), live.stderr().unwrap_or(0.0));
//! # Ok::<(), allocsample_profile::ReadError>(())
//! ```
//!
//! A profile can also be made in memory, for tests of what reads one:
//!
//! ```
//! use allocsample_profile::{
//!     Frame, HeapId, IntervalInfo, Location, ModuleId, Profile, Sample, Sampling, StackId, StackNode,
//! };
//!
//! let mut profile = Profile::default();
//! profile.intervals.push(IntervalInfo {
//!     time_ns: 0,
//!     sampling: Sampling::Poisson,
//!     interval_bytes: 1, // every allocation
//!     seed: 0,
//! });
//! let location = Location { module: ModuleId::NONE, offset: 0x1235 };
//! let stack = profile.stacks.push(StackNode { parent: StackId::EMPTY, location });
//! profile.samples.push(Sample { size: 100, points: 1, stack, ..Sample::default() });
//!
//! let sample = profile.samples.at(0);
//! assert_eq!(profile.bytes(&sample).value(), 100.0);
//! let frames: Vec<Frame> = profile.stack_frames(&sample);
//! assert_eq!(frames[0].function, "0x1234"); // the call is before the address that it returns to
//! ```
//!
//! # Where things are
//! | question | answer |
//! |---|---|
//! | What was allocated, and when was it freed? | [`Profile::samples`], a [`Sample`] each |
//! | Where? | [`Profile::stack_frames`]; [`Profile::stacks`] is the tree of all stacks, [`Profile::frames`] has names |
//! | What are the names? | [`Profile::symbols`]; empty before [`Profile::symbolize`], unless `allocsample run` stored them |
//! | Of which type, in which heap? | [`Profile::vm`] |
//! | What is missing? | [`Profile::lost`], [`Profile::recovery`], and [`Profile::allowances`] for blocks between samples |
//! | How do I look at a part? | [`Profile::begin_at`], [`Profile::end_at`], [`Profile::retain`] |
//!
//! The directory `examples` has two programs: the functions that allocate most, and live bytes over time. Structures that get
//! fields as recordings tell more are `#[non_exhaustive]`: make them with `Default`.
//!
//! # Files
//! [`Profile::open`] reads `X.allocsample`, together with the ring `X.allocsample.ring` that a killed (or running)
//! process left beside it. [`finish()`] folds such a ring into the file, and writes the symbols into it, so that the
//! file can leave the machine.
#![forbid(unsafe_code)]

mod backing;
mod batch;
mod before;
mod builder;
mod chunks;
mod counts;
mod events;
mod examined;
mod finish;
mod folding;
mod frames;
mod inspect;
mod join;
mod limits;
mod mappings;
mod model;
mod narrow;
mod new_file;
mod nodes;
mod numbers;
mod pages;
mod parts;
mod peak;
mod reach;
mod reader;
mod roots;
mod same_names;
mod sample_index;
mod samples;
mod series;
mod stacks;
mod symbolize;
mod uses;
mod vm;
mod weights;

pub use allocsample_record::{
    EventRecord, ExitHow, Fate, Figure, GcKind, GroupFigure, HeapId, HeapKind, Inspected, Location,
    LostReason, Mapped, MappedRanges, MappingChange, MemoryMap, MemoryMapping, MemoryTotals,
    ModuleId, Note, OwnFigure, SampleFlags, SampleId, Sampling, StackId, StackNode, SymbolFrame,
    SymbolTable, ThreadId, event_records, is_plain, readable, readable_char,
};
pub use allocsample_ring::{
    Collecting, HEAPS, WAITING_DIRECTORY, WAITING_NAME, WaitingRequest, request, start_ticks,
};
pub use allocsample_sampling::{Estimate, Limits};
pub use backing::Backing;
pub use events::Events;
pub use examined::Examined;
pub use finish::{FinishError, Finished, Seen, finish, finish_with, snapshot};
pub use folding::{Runtimes, is_of_system};
pub use frames::{Frame, labelled};
pub use inspect::{Runtime, Support};
pub use join::{JoinError, join, join_recording, joined_name};
pub use limits::{lift_limits, limits_are_lifted};
pub use mappings::{MAPPINGS, MappingCall};
pub use model::{
    Charging, Exit, Freed, IntervalInfo, Lost, Module, Narrowed, OwnCost, Part, ProcessInfo,
    Profile, Recovery, Sample, Thread, Tick,
};
pub use pages::{PAGES, Pages};
pub use parts::parts_before;
pub use peak::{Halves, Held, Peak, PeakMoments, with_error_of_moment};
pub use reach::{Allowance, Allowances, Reach, ReachBuilder};
pub use reader::ReadError;
pub use same_names::align_function_names;
pub use samples::Samples;
pub use series::SeriesError;
pub use stacks::StackTable;
pub use symbolize::root_of;
pub use vm::{Function, Gc, Heap, Marker, Outcome, Statistic, Type, Value, VirtualMachines};
pub use weights::Weights;
