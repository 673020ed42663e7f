//! Which samples an answer is about.

use std::collections::HashMap;

use allocsample_profile::{
    Allowances, Frame, HeapId, PeakMoments, Profile, Sample, StackId, ThreadId, Tick,
};
use regex::Regex;

use crate::frames::{FrameId, Frames};
use crate::heaps;

/// Stacks with a frame that matches.
#[derive(Clone, Debug, Default)]
pub struct Filter(Option<Regex>);

impl Filter {
    /// All stacks.
    pub fn all() -> Self {
        Self(None)
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

/// Stacks with a function, file or module that matches.
impl From<Regex> for Filter {
    fn from(regex: Regex) -> Self {
        Self(Some(regex))
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
    /// In a heap whose name matches; malloc's is `malloc`.
    pub only_heap: Option<Regex>,
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

    /// Leaves in a profile only what passes. What is charged for it stays as it is.
    ///
    /// Every reader of a part of a profile gets it from here. The report is the exception: it shows what is selected beside
    /// the whole, so it asks a [`Selector`] while it adds up.
    pub fn narrow(&self, profile: &mut Profile) {
        let is_by_sample = Self {
            since_ns: None,
            until_ns: None,
            at_peak: None,
            ..self.clone()
        };
        if !is_by_sample.is_all() {
            is_by_sample.keep(profile);
        }
        self.narrow_time(profile);
    }

    /// The same, by time alone; the answer is what is left to be selected.
    pub fn narrow_time(&self, profile: &mut Profile) -> Self {
        let start_ns = profile.process.start_ns;
        let moment = |after_ns: u64| start_ns.saturating_add(after_ns);
        let until_ns = match &self.at_peak {
            Some(moments) => Some(moments.plain_ns()),
            None => self.until_ns.map(moment),
        };
        if self.since_ns.is_some() || until_ns.is_some() {
            keep_charging(profile);
        }
        if let Some(until_ns) = until_ns {
            profile.end_at(until_ns);
        }
        if let Some(since_ns) = self.since_ns {
            profile.begin_at(moment(since_ns));
        }
        Self {
            since_ns: None,
            until_ns: None,
            at_peak: None,
            ..self.clone()
        }
    }

    /// Drops the samples that do not pass, whenever they were allocated, and the ticks of threads and stacks that do not.
    fn keep(&self, profile: &mut Profile) {
        keep_charging(profile);
        let frames = Frames::of(profile);
        let window = Window::of(profile, self, None);
        let mut selector = Selector::new(&frames, profile, self, window);
        let mut room = Vec::new();
        let samples = profile.samples.iter();
        let is_kept: Vec<bool> = samples
            .map(|sample| selector.passes(&sample) && selector.passes_its_stack(&sample, &mut room))
            .collect();
        let ticks = profile.ticks.iter();
        let is_tick_kept: Vec<bool> = ticks
            .map(|tick| selector.passes_tick(tick, &mut room))
            .collect();
        drop(selector);
        drop(frames);
        let (mut is_kept, mut is_tick_kept) = (is_kept.into_iter(), is_tick_kept.into_iter());
        profile.retain(
            |_| is_kept.next().unwrap_or(false),
            |_| is_tick_kept.next().unwrap_or(false),
        );
    }

    /// Whether every sample passes.
    pub fn is_all(&self) -> bool {
        self.filter.0.is_none()
            && self.only_type.is_none()
            && self.ignore_type.is_none()
            && self.only_caller.is_none()
            && self.only_thread.is_none()
            && self.only_heap.is_none()
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
        // In the middle of what is left: see `Profile::begin_at`.
        let since_ns = start_ns + selection.since_ns.unwrap_or(0);
        let since_ns = since_ns.max(profile.span_ns().start);
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

    /// What may have been missed of what was allocated then, and so of what is alive of it.
    pub(crate) fn allowances<'a>(&self, profile: &'a Profile) -> Allowances<'a> {
        profile.allowances(self.since_ns, self.until_ns)
    }

    #[inline]
    fn contains(&self, sample: &Sample) -> bool {
        (self.since_ns..=self.until_ns).contains(&sample.time_ns)
    }

    #[inline]
    pub(crate) fn is_live(&self, sample: &Sample) -> bool {
        sample.is_live_at(self.until_ns)
    }

    /// 1 for what was added to the live bytes since the middle, -1 for what was taken away.
    #[inline]
    pub(crate) fn growth(&self, sample: &Sample) -> i8 {
        i8::from(self.is_live(sample)) - self.middle(sample)
    }

    /// 1 for what was alive in the middle.
    #[inline]
    pub(crate) fn middle(&self, sample: &Sample) -> i8 {
        sample.is_live_at(self.middle_ns).into()
    }
}

/// Has the parts of a profile charged as the whole is: fewer samples might not show that a function is a wrapper.
fn keep_charging(profile: &mut Profile) {
    if profile.charging.known.is_none() {
        let known = Frames::of(profile).into_passed_over();
        profile.charging.known = Some(known);
    }
}

/// A selection, ready for one profile's samples: each expression is tried once on each name.
pub struct Selector<'a> {
    profile: &'a Profile,
    frames_of: &'a Frames<'a>,
    selection: &'a Selection,
    pub(crate) window: Window,
    frames: Matches,
    callers: Matches,
    threads: HashMap<ThreadId, bool>,
    heaps: HashMap<HeapId, bool>,
    types: HashMap<(HeapId, u32), bool>,
    /// Whether stacks pass, by what tells them apart; filled by [`Selector::passes_its_stack`].
    stacks: HashMap<(StackId, HeapId), bool>,
}

impl<'a> Selector<'a> {
    /// For the samples of a profile, whenever they were allocated. Those of a part of its time are left by
    /// [`Selection::narrow_time`].
    pub fn of_samples(
        frames: &'a Frames<'a>,
        profile: &'a Profile,
        selection: &'a Selection,
    ) -> Self {
        let window = Window::of(profile, selection, None);
        Self::new(frames, profile, selection, window)
    }

    pub(crate) fn new(
        frames: &'a Frames<'a>,
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
            frames_of: frames,
            selection,
            window,
            frames: selection.filter.frames(frames),
            callers: Matches(callers),
            threads: HashMap::new(),
            heaps: HashMap::new(),
            types: HashMap::new(),
            stacks: HashMap::new(),
        }
    }

    /// Whether a sample passes, leaving its stack aside.
    #[inline]
    pub fn passes(&mut self, sample: &Sample) -> bool {
        self.window.contains(sample)
            && self.passes_thread(sample.thread)
            && self.passes_heap(sample.heap)
            && self.passes_type(sample)
    }

    #[inline]
    fn passes_thread(&mut self, thread: ThreadId) -> bool {
        let Some(regex) = &self.selection.only_thread else {
            return true;
        };
        let threads = &self.profile.threads;
        *self.threads.entry(thread).or_insert_with(|| {
            threads.get(&thread).is_some_and(|thread| {
                regex.is_match(&thread.name) || regex.is_match(&thread.tid.to_string())
            })
        })
    }

    #[inline]
    fn passes_heap(&mut self, heap: HeapId) -> bool {
        let Some(regex) = &self.selection.only_heap else {
            return true;
        };
        let profile = self.profile;
        let is_match = || regex.is_match(heaps::name(profile, heap));
        *self.heaps.entry(heap).or_insert_with(is_match)
    }

    #[inline]
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

    /// Whether the stack of a sample passes. `room` is working memory.
    pub fn passes_its_stack(&mut self, sample: &Sample, room: &mut Vec<FrameId>) -> bool {
        if self.frames.is_all() && self.callers.is_all() {
            return true;
        }
        let key = (sample.stack, sample.heap);
        if let Some(&passes) = self.stacks.get(&key) {
            return passes;
        }
        self.frames_of.fill(sample.stack, room);
        let charged = self.frames_of.charged(sample.heap, room);
        let passes = self.passes_stack(room, charged);
        self.stacks.insert(key, passes);
        passes
    }

    /// Whether a tick passes: it has a thread and a stack, and neither a heap nor a type.
    fn passes_tick(&mut self, tick: &Tick, room: &mut Vec<FrameId>) -> bool {
        let is_of_objects =
            self.selection.only_type.is_some() || self.selection.only_heap.is_some();
        if is_of_objects || !self.passes_thread(tick.thread) {
            return false;
        }
        if self.frames.is_all() && self.callers.is_all() {
            return true;
        }
        self.frames_of.fill(tick.stack, room);
        // Where the thread was is what it is charged to.
        self.passes_stack(room, Some(0))
    }

    /// Whether a stack passes that is charged to its frame at `charged`.
    pub(crate) fn passes_stack(&self, stack: &[FrameId], charged: Option<usize>) -> bool {
        let callers = charged.map_or(0, |charged| charged + 1).min(stack.len());
        self.frames.any(stack) && self.callers.any(&stack[callers..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random_profile::random_profile;
    use crate::table::{By, Grouped, Request, Row, Sort};
    use allocsample_profile::{IntervalInfo, Location, ModuleId, StackNode, Thread};
    use allocsample_sampling::Random;

    /// Random samples of three threads, in twenty stacks.
    fn profile(seed: u64) -> Profile {
        let mut profile = random_profile(2000, 1000, seed);
        profile.process.end_ns = 1200;
        // What may have been missed depends on the time.
        profile.intervals[0].interval_bytes = 64;
        let later = IntervalInfo {
            time_ns: 600,
            interval_bytes: 4096,
            ..profile.intervals[0]
        };
        profile.intervals.push(later);
        profile.interval_history = profile.intervals.clone();
        let mut random = Random::from_seed(seed);
        let mut stacks = vec![StackId::EMPTY];
        for offset in 0..20 {
            let parent = stacks[random.below(stacks.len() as u64) as usize];
            let location = Location {
                module: ModuleId::NONE,
                offset,
            };
            stacks.push(profile.stacks.push(StackNode { parent, location }));
        }
        for number in 1..=3 {
            let name = format!("worker {number}");
            let thread = Thread {
                tid: 100 + number,
                name,
                ..Thread::default()
            };
            profile.threads.insert(ThreadId(number), thread);
        }
        for row in 0..profile.samples.len() {
            let sample = Sample {
                thread: ThreadId(1 + random.below(3) as u32),
                stack: stacks[1 + random.below(20) as usize],
                ..profile.samples.at(row)
            };
            profile.samples.set(row, sample);
        }
        profile
    }

    fn rows(profile: &Profile, selection: &Selection, by: By) -> Vec<String> {
        let frames = Frames::of(profile);
        let request = Request {
            by,
            sort: Sort::Allocated,
            selection,
            peak: None,
            limit: usize::MAX,
        };
        let grouped = Grouped::of(profile, &frames, &request);
        let row = |row: Row| {
            let figures = [
                row.self_allocated,
                row.self_live,
                row.allocations,
                row.self_growth,
            ];
            format!("{} {figures:?}", row.name)
        };
        let mut rows: Vec<String> = grouped.rows().map(row).collect();
        rows.sort();
        rows.push(format!("{:?}", grouped.selected()));
        rows
    }

    #[test]
    fn a_narrowed_profile_adds_up_to_what_is_selected_of_the_whole() {
        let regex = |text: &str| Some(Regex::new(text).unwrap());
        let of_time = |since_ns, until_ns| Selection {
            since_ns,
            until_ns,
            ..Selection::default()
        };
        let selections = [
            Selection::default(),
            of_time(Some(300), None),
            of_time(None, Some(500)),
            of_time(Some(200), Some(700)),
            Selection {
                only_thread: regex("worker [12]"),
                ..of_time(None, Some(900))
            },
            Selection {
                only_heap: regex("^malloc$"),
                only_thread: regex("103"),
                ..of_time(Some(100), None)
            },
            Selection {
                filter: regex("0x[1-5]$").unwrap().into(),
                ..of_time(None, Some(600))
            },
            Selection {
                only_caller: regex("0x[0-9]$"),
                ..Selection::default()
            },
        ];
        for (seed, selection) in (1..).zip(&selections) {
            let whole = profile(seed);
            let mut part = whole.clone();
            selection.narrow(&mut part);
            let is_less = part.samples.len() < whole.samples.len();
            assert_eq!(is_less, seed > 1, "{selection:?}");
            for by in [By::Function, By::Site, By::Thread, By::Size, By::Heap] {
                let expected = rows(&whole, selection, by);
                assert_eq!(
                    rows(&part, &Selection::default(), by),
                    expected,
                    "{selection:?}"
                );
            }
        }
    }
}
