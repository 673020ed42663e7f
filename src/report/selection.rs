//! Which samples an answer is about.

use std::collections::HashMap;

use allocsample_profile::{Allowances, Frame, HeapId, PeakMoments, Profile, Sample, ThreadId};
use regex::Regex;

use crate::frames::{FrameId, Frames};

/// Stacks with a frame that matches.
#[derive(Clone, Debug, Default)]
pub struct Filter(Option<Regex>);

impl Filter {
    /// All stacks.
    pub fn all() -> Self {
        Self(None)
    }

    /// Stacks with a function, file or module that matches `pattern`.
    pub fn new(pattern: &str) -> Result<Self, regex::Error> {
        Regex::new(pattern).map(|regex| Self(Some(regex)))
    }

    /// Whether a stack with these frames passes.
    pub fn matches(&self, frames: &[Frame]) -> bool {
        self.0.is_none() || frames.iter().any(|frame| self.matches_frame(frame))
    }

    /// Tries each frame of a profile once.
    pub fn frames(&self, frames: &Frames<'_>) -> Matches {
        Matches(self.0.as_ref().map(|_| {
            let all = frames.all().iter();
            all.map(|frame| self.matches_frame(frame)).collect()
        }))
    }

    fn matches_frame(&self, frame: &Frame) -> bool {
        self.0.as_ref().is_none_or(|regex| {
            regex.is_match(&frame.function)
                || regex.is_match(&frame.module)
                || frame
                    .file
                    .as_deref()
                    .is_some_and(|file| regex.is_match(file))
        })
    }
}

/// Frames that a filter is looking for.
#[derive(Clone, Debug)]
pub struct Matches(Option<Vec<bool>>);

impl Matches {
    /// Whether every stack passes.
    pub fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a stack with these frames passes.
    pub fn any(&self, stack: &[FrameId]) -> bool {
        let is_match = |matches: &Vec<bool>| stack.iter().any(|id| matches[id.index()]);
        self.0.as_ref().is_none_or(is_match)
    }
}

/// Samples that pass all of these.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// With a matching frame anywhere.
    pub filter: Filter,
    /// Of a type whose name matches.
    pub only_type: Option<Regex>,
    /// Not of a type whose name matches.
    pub ignore_type: Option<Regex>,
    /// Called, directly or not, by a function whose name matches: a frame above the one that is charged.
    pub only_caller: Option<Regex>,
    /// By a thread whose name or kernel's number matches.
    pub only_thread: Option<Regex>,
    /// Not allocated before; nanoseconds since the start of the profile.
    pub since_ns: Option<u64>,
    /// Not allocated after, and live is what was alive then; nanoseconds since the start of the profile.
    pub until_ns: Option<u64>,
    /// Not allocated after the peak, and live is what was alive then.
    pub at_peak: Option<PeakMoments>,
}

impl From<Filter> for Selection {
    fn from(filter: Filter) -> Self {
        Self {
            filter,
            ..Self::default()
        }
    }
}

impl Selection {
    /// An expression that matches this name and no other, for types.
    ///
    /// # Errors
    /// Only if the name is too long for an expression (megabytes).
    pub fn exactly(name: &str) -> Result<Regex, regex::Error> {
        Regex::new(&format!("^{}$", regex::escape(name)))
    }

    /// Whether every sample passes.
    pub fn is_all(&self) -> bool {
        self.filter.0.is_none()
            && self.only_type.is_none()
            && self.ignore_type.is_none()
            && self.only_caller.is_none()
            && self.only_thread.is_none()
            && self.since_ns.is_none()
            && self.until_ns.is_none()
            && self.at_peak.is_none()
    }
}

/// What a sample was at the moments that are asked about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// CLOCK_MONOTONIC, like all here.
    since_ns: u64,
    middle_ns: u64,
    until_ns: u64,
    pub(crate) peak: Option<PeakMoments>,
    /// Whether all figures are those of the peak.
    pub(crate) is_at_peak: bool,
}

impl Window {
    pub(crate) fn of(profile: &Profile, selection: &Selection, peak: Option<PeakMoments>) -> Self {
        let start_ns = profile.process.start_ns;
        let since_ns = start_ns + selection.since_ns.unwrap_or(0);
        let until_ns = selection
            .until_ns
            .map_or(u64::MAX, |until| start_ns.saturating_add(until));
        let peak = selection.at_peak.or(peak);
        let (until_ns, end_ns) = match &selection.at_peak {
            Some(moments) => (moments.last_ns(), moments.plain_ns()),
            None => (until_ns, until_ns.min(profile.process.end_ns)),
        };
        Self {
            since_ns: if selection.since_ns.is_some() {
                since_ns
            } else {
                0
            },
            middle_ns: since_ns + end_ns.saturating_sub(since_ns) / 2,
            until_ns,
            peak,
            is_at_peak: selection.at_peak.is_some(),
        }
    }

    /// What may have been missed of what was allocated.
    pub(crate) fn allowances<'a>(&self, profile: &'a Profile) -> Allowances<'a> {
        profile.allowances(self.since_ns, self.until_ns)
    }

    /// What may have been missed of what is alive.
    pub(crate) fn live_allowances<'a>(&self, profile: &'a Profile) -> Allowances<'a> {
        profile.allowances(0, self.until_ns)
    }

    fn contains(&self, sample: &Sample) -> bool {
        (self.since_ns..=self.until_ns).contains(&sample.time_ns)
    }

    pub(crate) fn is_live(&self, sample: &Sample) -> bool {
        sample.is_live_at(self.until_ns)
    }

    /// 1 for what was added to the live bytes since the middle, -1 for what was taken away.
    pub(crate) fn growth(&self, sample: &Sample) -> i8 {
        i8::from(self.is_live(sample)) - self.middle(sample)
    }

    /// 1 for what was alive in the middle.
    pub(crate) fn middle(&self, sample: &Sample) -> i8 {
        sample.is_live_at(self.middle_ns).into()
    }
}

/// A selection, ready for one profile's samples: each expression is tried once on each name.
pub(crate) struct Selector<'a> {
    profile: &'a Profile,
    selection: &'a Selection,
    pub(crate) window: Window,
    frames: Matches,
    callers: Matches,
    threads: HashMap<ThreadId, bool>,
    types: HashMap<(HeapId, u32), bool>,
}

impl<'a> Selector<'a> {
    pub(crate) fn new(
        frames: &Frames<'a>,
        profile: &'a Profile,
        selection: &'a Selection,
        window: Window,
    ) -> Self {
        let callers = selection.only_caller.as_ref().map(|regex| {
            let all = frames.all().iter();
            all.map(|frame| regex.is_match(&frame.function)).collect()
        });
        Self {
            profile,
            selection,
            window,
            frames: selection.filter.frames(frames),
            callers: Matches(callers),
            threads: HashMap::new(),
            types: HashMap::new(),
        }
    }

    /// Whether a sample passes, leaving its stack aside.
    pub(crate) fn passes(&mut self, sample: &Sample) -> bool {
        self.window.contains(sample) && self.passes_thread(sample) && self.passes_type(sample)
    }

    fn passes_thread(&mut self, sample: &Sample) -> bool {
        let Some(regex) = &self.selection.only_thread else {
            return true;
        };
        let threads = &self.profile.threads;
        *self.threads.entry(sample.thread).or_insert_with(|| {
            threads.get(&sample.thread).is_some_and(|thread| {
                regex.is_match(&thread.name) || regex.is_match(&thread.tid.to_string())
            })
        })
    }

    fn passes_type(&mut self, sample: &Sample) -> bool {
        let Selection {
            only_type,
            ignore_type,
            ..
        } = self.selection;
        if only_type.is_none() && ignore_type.is_none() {
            return true;
        }
        let Some(outcome) = sample.outcome() else {
            // Without a type.
            return only_type.is_none();
        };
        let profile = self.profile;
        let key = (sample.heap, outcome.type_id);
        *self.types.entry(key).or_insert_with(|| {
            let name = profile.vm.type_name(sample.heap, &outcome);
            let matches = |regex: &Regex| name.is_some_and(|name| regex.is_match(name));
            only_type.as_ref().is_none_or(matches) && !ignore_type.as_ref().is_some_and(matches)
        })
    }

    /// Whether a stack passes that is charged to its frame at `charged`.
    pub(crate) fn passes_stack(&self, stack: &[FrameId], charged: Option<usize>) -> bool {
        let callers = charged.map_or(0, |charged| charged + 1).min(stack.len());
        self.frames.any(stack) && self.callers.any(&stack[callers..])
    }
}
