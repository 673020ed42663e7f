//! Samples grouped by function, site, line, module, thread, type, heap, size or lifetime.

mod by_frame;
mod classes;
mod group;

use std::borrow::Cow;

use allocsample_profile::{Profile, labelled};
use allocsample_sampling::Estimate;

use crate::selection::{Filter, Selection, Window};
use crate::sums::Figures;
use allocsample_profile::PeakMoments;

pub use group::Grouped;

/// What a row stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum By {
    /// A function: self is what it allocated, total includes what it called.
    #[default]
    Function,
    /// A whole stack.
    Site,
    /// A source line.
    Line,
    /// A module.
    Module,
    /// A thread.
    Thread,
    /// A type of objects in a heap; all that has none is one row.
    Type,
    /// A heap.
    Heap,
    /// Sizes from one power of two to the next.
    Size,
    /// Lifetimes from one power of ten to the next; what was not freed is a row of its own.
    Lifetime,
}

impl By {
    /// All of them.
    pub const ALL: [By; 9] = [
        By::Function,
        By::Site,
        By::Line,
        By::Module,
        By::Thread,
        By::Type,
        By::Heap,
        By::Size,
        By::Lifetime,
    ];

    /// What one row is called.
    pub fn name(self) -> &'static str {
        match self {
            By::Function => "function",
            By::Site => "site",
            By::Line => "line",
            By::Module => "module",
            By::Thread => "thread",
            By::Type => "type",
            By::Heap => "heap",
            By::Size => "size",
            By::Lifetime => "lifetime",
        }
    }

    /// Whether rows have more than what is charged to them: what they called.
    pub fn has_total(self) -> bool {
        matches!(self, By::Function | By::Line | By::Module)
    }
}

/// What rows are ordered by, largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Sort {
    /// Bytes allocated.
    #[default]
    Allocated,
    /// Bytes alive at the end.
    Live,
    /// Allocations.
    Count,
    /// Bytes alive when the process had most.
    Peak,
    /// What was added to the live bytes in the second half.
    Growth,
}

impl Sort {
    /// The figure that rows are ordered by.
    pub fn of(self, figures: &Figures) -> &Estimate {
        match self {
            Sort::Allocated => &figures.allocated,
            Sort::Live => &figures.live,
            Sort::Count => &figures.allocations,
            Sort::Peak => &figures.peak,
            Sort::Growth => &figures.growth,
        }
    }

    /// Whether that figure depends on when the peak was.
    pub(crate) fn is_of_peak(self, window: &Window) -> bool {
        match self {
            Sort::Peak => true,
            Sort::Live | Sort::Growth => window.is_at_peak,
            Sort::Allocated | Sort::Count => false,
        }
    }
}

/// One group of samples.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Function, module, thread, type, heap or class; for a site its charged function.
    pub name: String,
    /// Source file, if the group has one.
    pub file: Option<String>,
    /// Line, 0 for none.
    pub line: u32,
    /// See [`Frame::file_end`](allocsample_profile::Frame::file_end).
    pub file_end: Option<String>,
    /// Module of the function, or heap of the type.
    pub module: String,
    /// For a site: the functions of its stack, leaf first.
    pub stack: Vec<String>,
    /// For a site: the index in `stack` of the function that is charged.
    pub charged: usize,
    /// Our number of the thread, of a thread's row.
    pub thread: u32,
    /// Bytes allocated by the group itself.
    pub self_allocated: Estimate,
    /// Bytes allocated by the group and what it called.
    pub total_allocated: Estimate,
    /// Live part of `self_allocated`.
    pub self_live: Estimate,
    /// Live part of `total_allocated`.
    pub total_live: Estimate,
    /// Part of `total_allocated` that was alive at the peak.
    pub total_peak: Estimate,
    /// Allocations by the group itself.
    pub allocations: Estimate,
    /// Part of `self_allocated` that was alive at the peak.
    pub self_peak: Estimate,
    /// What the group itself added to the live bytes in the second half.
    pub self_growth: Estimate,
}

impl Row {
    /// The name as people read it: that of a function with the end of its file, if its name does not tell it from others.
    pub fn label(&self) -> Cow<'_, str> {
        match &self.file_end {
            Some(end) => Cow::Owned(labelled(&self.name, end)),
            None => Cow::Borrowed(&self.name),
        }
    }
}

/// Which table is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What rows are.
    pub by: By,
    /// Their order.
    pub sort: Sort,
    /// Which samples.
    pub selection: &'a Selection,
    /// When the process had most live bytes; without it `self_peak` is 0.
    pub peak: Option<PeakMoments>,
    /// Rows at most.
    pub limit: usize,
}

/// All rows, or the first of them.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Sorted, largest first.
    pub rows: Vec<Row>,
    /// How many there are, with those beyond the limit.
    pub row_count: usize,
    /// Over all samples that were selected: each is charged to exactly one row.
    pub selected: Figures,
}

impl Table {
    /// Groups the samples that pass `filter`.
    pub fn group(profile: &Profile, by: By, sort: Sort, filter: &Filter) -> Self {
        Self::group_samples(profile, by, sort, filter).0
    }

    /// Stands for no row.
    pub const NONE: u32 = u32::MAX;

    /// The same, and for each sample the index of the row that it is charged to; [`Table::NONE`] if it does not pass.
    pub fn group_samples(
        profile: &Profile,
        by: By,
        sort: Sort,
        filter: &Filter,
    ) -> (Self, Vec<u32>) {
        let selection = Selection::from(filter.clone());
        let request = Request {
            by,
            sort,
            selection: &selection,
            peak: None,
            limit: usize::MAX,
        };
        Self::of_samples(profile, &crate::Frames::of(profile), &request)
    }

    /// Groups what is selected, and says for each sample which row it is charged to, be that within the limit or not.
    pub fn of_samples(
        profile: &Profile,
        frames: &crate::Frames<'_>,
        request: &Request<'_>,
    ) -> (Self, Vec<u32>) {
        let grouped = Grouped::with_samples(profile, frames, request);
        let of_sample = grouped.of_sample();
        (grouped.table(), of_sample)
    }

    /// Groups what is selected.
    pub fn of(profile: &Profile, frames: &crate::Frames<'_>, request: &Request<'_>) -> Self {
        Grouped::of(profile, frames, request).table()
    }

    /// The same without rows that have nothing of the figure that they are ordered by.
    pub fn of_shown(profile: &Profile, frames: &crate::Frames<'_>, request: &Request<'_>) -> Self {
        let mut grouped = Grouped::of(profile, frames, request);
        grouped.drop_empty(request.sort);
        grouped.table()
    }
}
