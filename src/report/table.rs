//! Samples grouped by function, site, line, module or thread.

use std::collections::{BTreeSet, HashMap};

use allocsample_profile::{Frame, Profile};
use allocsample_sampling::Estimate;
use regex::Regex;

use crate::allocator::charged_frame;
use crate::stacks::{StackSum, by_stack};

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
}

/// Which samples are looked at: those with a frame that matches.
#[derive(Clone, Debug, Default)]
pub struct Filter(Option<Regex>);

impl Filter {
    /// All samples.
    pub fn all() -> Self {
        Self(None)
    }

    /// Samples with a function, file or module that matches `pattern`.
    pub fn new(pattern: &str) -> Result<Self, regex::Error> {
        Regex::new(pattern).map(|regex| Self(Some(regex)))
    }

    /// Whether a stack with these frames passes.
    pub fn matches(&self, frames: &[Frame]) -> bool {
        self.0.as_ref().is_none_or(|regex| {
            frames.iter().any(|frame| {
                regex.is_match(&frame.function)
                    || regex.is_match(&frame.module)
                    || frame
                        .file
                        .as_deref()
                        .is_some_and(|file| regex.is_match(file))
            })
        })
    }
}

/// One group of samples.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Function, module or thread name; for a site its charged function.
    pub name: String,
    /// Source file, if the group has one.
    pub file: Option<String>,
    /// Line, 0 for none.
    pub line: u32,
    /// Module of the function.
    pub module: String,
    /// For a site: the functions of its stack, leaf first.
    pub stack: Vec<String>,
    /// Bytes allocated by the group itself.
    pub self_allocated: Estimate,
    /// Bytes allocated by the group and what it called.
    pub total_allocated: Estimate,
    /// Live part of `self_allocated`.
    pub self_live: Estimate,
    /// Live part of `total_allocated`.
    pub total_live: Estimate,
    /// Allocations by the group itself.
    pub allocations: Estimate,
}

/// All rows.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Sorted, largest first.
    pub rows: Vec<Row>,
}

impl Table {
    /// Groups the samples that pass `filter`.
    pub fn group(profile: &Profile, by: By, sort: Sort, filter: &Filter) -> Self {
        let mut rows: HashMap<(String, String, u32), Row> = HashMap::new();
        for sum in by_stack(profile, by == By::Thread) {
            let frames = profile.stack_frames(sum.sample);
            if filter.matches(&frames) {
                add(profile, by, &sum, &frames, &mut rows);
            }
        }
        let mut rows: Vec<Row> = rows.into_values().collect();
        let size = |row: &Row| match sort {
            Sort::Allocated => (row.self_allocated.value(), row.total_allocated.value()),
            Sort::Live => (row.self_live.value(), row.total_live.value()),
            Sort::Count => (row.allocations.value(), row.total_allocated.value()),
        };
        rows.sort_by(|a, b| {
            let (a_size, b_size) = (size(a), size(b));
            b_size
                .0
                .total_cmp(&a_size.0)
                .then(b_size.1.total_cmp(&a_size.1))
                .then_with(|| a.name.cmp(&b.name))
        });
        Self { rows }
    }
}

fn add(
    profile: &Profile,
    by: By,
    sum: &StackSum<'_>,
    frames: &[Frame],
    rows: &mut HashMap<(String, String, u32), Row>,
) {
    let sample = sum.sample;
    let charged = charged_frame(profile, sample.heap, frames);
    match by {
        By::Thread => {
            let thread = profile.threads.get(&sample.thread);
            let name = thread.map_or("?", |thread| thread.name.as_str());
            let tid = thread.map_or(0, |thread| thread.tid);
            let row = rows
                .entry((name.to_owned(), String::new(), tid))
                .or_default();
            row.name = format!("{name} ({tid})");
            row.charge(sum);
            row.include(sum);
        }
        By::Site => {
            let stack: Vec<String> = frames.iter().map(|frame| frame.function.clone()).collect();
            let row = rows
                .entry((stack.join("\n"), String::new(), 0))
                .or_default();
            row.describe(charged);
            row.stack = stack;
            row.charge(sum);
            row.include(sum);
        }
        By::Function | By::Line | By::Module => {
            let mut seen = BTreeSet::new();
            for frame in frames {
                let key = key_of(by, frame);
                if !seen.insert(key.clone()) {
                    continue;
                }
                let row = rows.entry(key).or_default();
                if row.name.is_empty() {
                    row.describe(Some(frame));
                    if by == By::Module {
                        row.name = if frame.module.is_empty() {
                            "[no module]".to_owned()
                        } else {
                            frame.module.clone()
                        };
                        row.file = None;
                        row.line = 0;
                    }
                }
                row.include(sum);
            }
            if let Some(charged) = charged
                && let Some(row) = rows.get_mut(&key_of(by, charged))
            {
                row.charge(sum);
            }
        }
    }
}

fn key_of(by: By, frame: &Frame) -> (String, String, u32) {
    match by {
        By::Module => (String::new(), frame.module.clone(), 0),
        By::Line => (
            frame.function.clone(),
            frame.file.clone().unwrap_or_default(),
            frame.line,
        ),
        _ => (frame.function.clone(), frame.module.clone(), 0),
    }
}

impl Row {
    fn describe(&mut self, frame: Option<&Frame>) {
        if let Some(frame) = frame {
            self.name.clone_from(&frame.function);
            self.file.clone_from(&frame.file);
            self.line = frame.line;
            self.module.clone_from(&frame.module);
        }
    }

    fn charge(&mut self, sum: &StackSum<'_>) {
        self.self_allocated += sum.allocated;
        self.allocations += sum.allocations;
        self.self_live += sum.live;
    }

    fn include(&mut self, sum: &StackSum<'_>) {
        self.total_allocated += sum.allocated;
        self.total_live += sum.live;
    }
}
