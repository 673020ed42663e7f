//! The verdict on a site, with the reason for it.

use crate::evidence::Evidence;
use crate::growth::WARM_UP;
use crate::survival::Old;
use crate::together::Joint;

/// The verdict on a site, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Its live bytes grow to the end of the run at a steady rate. Most blocks are freed soon; old ones never.
    Leak,
    /// They grow to the end, and nothing, or nothing that is old, is freed. A cache that is not full yet, or entries that
    /// expire after the end of the run, look the same.
    PossibleLeak,
    /// They grow to the end, but old blocks are freed too, or growth is slowing, or all is freed when the program ends.
    Growing,
    /// They may grow: the run does not show it. [`Reason`] says why.
    Undecided,
    /// They grew during the run, and have stopped or nearly stopped.
    CacheLike,
    /// They were allocated at the beginning of the run, and stay.
    StartUp,
    /// They do not grow.
    Steady,
}

impl Verdict {
    /// As it is printed.
    pub fn word(self) -> &'static str {
        match self {
            Self::Leak => "leak",
            Self::PossibleLeak => "possible leak",
            Self::Growing => "growing",
            Self::Undecided => "undecided",
            Self::CacheLike => "cache-like",
            Self::StartUp => "start-up",
            Self::Steady => "steady",
        }
    }

    /// Whether it says that the site grows.
    pub fn is_finding(self) -> bool {
        self <= Self::Growing
    }
}

/// The observation that a verdict rests on, or that it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Old blocks are kept although others are freed, and more come at a steady rate.
    OldBlocksKept,
    /// Nothing is freed.
    NothingFreed,
    /// Old blocks are kept; whether more come at a steady rate is not sure.
    CourseUnknown,
    /// It has too few blocks by itself, and grows with others below a common caller.
    Together,
    /// Old blocks are kept, but growth began so late that it may be a backlog.
    BeganLate,
    /// All is freed, but only when the program ends.
    FreedAtEnd,
    /// Old blocks are freed too.
    OldBlocksFreed,
    /// More comes, but ever less.
    Slowing,
    /// Nothing more comes.
    Stopped,
    /// There are too few blocks for a verdict.
    FewBlocks,
    /// Recording began when the program ran: blocks of before may be freed unseen.
    UnseenFrees,
    /// No full collection has looked at its objects: they may be garbage.
    Unexamined,
    /// No block is old enough to say what becomes of old ones.
    NoOldBlocks,
    /// It rises and falls, and is no higher than before.
    Swings,
    /// It belongs to the beginning of the run.
    Start,
    /// It is freed soon, or no more than before.
    Steady,
}

impl Reason {
    /// For scripts.
    pub fn word(self) -> &'static str {
        match self {
            Self::OldBlocksKept => "old blocks kept",
            Self::NothingFreed => "nothing freed",
            Self::CourseUnknown => "course unknown",
            Self::Together => "together",
            Self::BeganLate => "began late",
            Self::FreedAtEnd => "freed at end",
            Self::OldBlocksFreed => "old blocks freed",
            Self::Slowing => "slowing",
            Self::Stopped => "stopped",
            Self::FewBlocks => "few blocks",
            Self::UnseenFrees => "unseen frees",
            Self::Unexamined => "unexamined",
            Self::NoOldBlocks => "no old blocks",
            Self::Swings => "swings",
            Self::Start => "start",
            Self::Steady => "steady",
        }
    }
}

/// Growth with a smaller adjusted p-value is real.
const SIGNIFICANT: f64 = 0.01;
/// Growth with a larger p-value, before adjustment, is none.
const CONCEIVABLE: f64 = 0.05;
/// Of the live bytes, those that were allocated during the warm-up: at least so many for a start-up table.
const START_UP_SHARE: f64 = 0.8;
/// Of the live bytes, those that were there after the warm-up already: with fewer it was filled since.
const FILLED_SHARE: f64 = 0.75;
/// Of the live bytes, what came since the warm-up, less what went: with less nothing points to growth.
const GROWN_SHARE: f64 = 0.5;
/// Freed at the end is what mostly is.
const FREED_AT_END_SHARE: f64 = 0.5;
/// Of a steady rate, the share that is left in the last third: with less, growth has nearly stopped.
const NEARLY_STOPPED: f64 = 0.5;
/// Of the mean rate, what is left when a level has been reached.
const LEVELLED_OFF: f64 = 0.4;
/// Growth that began after this part of the run has not been seen for long enough.
const LATE: f64 = 0.5;

/// What else a verdict depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Circumstances {
    /// The test's p-value: before adjustment for the number of sites, and after it.
    pub p_value: Option<(f64, f64)>,
    /// What it is together with other sites below a common caller.
    pub joint: Option<Joint>,
    /// Recording began late, and the growth of the process does not confirm that of the site.
    pub is_unconfirmed: bool,
    /// No full collection has looked at its objects.
    pub is_unexamined: bool,
}

impl Evidence {
    /// The verdict, with what it rests on.
    pub fn verdict(&self, circumstances: &Circumstances) -> (Verdict, Reason) {
        let alone = self.alone(circumstances);
        match (alone, circumstances.joint) {
            ((Verdict::Undecided, Reason::FewBlocks), Some((verdict, _))) => {
                (verdict, Reason::Together)
            }
            _ => alone,
        }
    }

    fn alone(&self, circumstances: &Circumstances) -> (Verdict, Reason) {
        match circumstances.p_value {
            Some((_, p)) if p < SIGNIFICANT => self.of_growth(circumstances),
            Some(_) if self.is_never_freed && self.of_start < START_UP_SHARE => {
                self.of_growth(circumstances)
            }
            p => self.without_growth(p.map(|(p, _)| p)),
        }
    }

    fn of_growth(&self, circumstances: &Circumstances) -> (Verdict, Reason) {
        let Self {
            survival, trend, ..
        } = self;
        let is_known = !circumstances.is_unexamined && !circumstances.is_unconfirmed;
        if is_known && self.freed_at_end >= FREED_AT_END_SHARE {
            return (Verdict::Growing, Reason::FreedAtEnd);
        }
        if self.is_swinging {
            return (Verdict::Steady, Reason::Swings);
        }
        if survival.old != Old::Freed && trend.is_stopped {
            return (Verdict::CacheLike, Reason::Stopped);
        }
        if trend.is_slowing && trend.last_third < NEARLY_STOPPED {
            return (Verdict::CacheLike, Reason::Slowing);
        }
        if circumstances.is_unexamined {
            return (Verdict::Undecided, Reason::Unexamined);
        }
        if circumstances.is_unconfirmed {
            return (Verdict::Undecided, Reason::UnseenFrees);
        }
        if self.is_quiet {
            // It has grown, but not to the end; whether more follows, a few bursts do not show.
            return (Verdict::Undecided, Reason::FewBlocks);
        }
        match survival.old {
            Old::Freed | Old::Unknown if self.has_levelled_off() => {
                (Verdict::CacheLike, Reason::Stopped)
            }
            Old::Freed => (Verdict::Growing, Reason::OldBlocksFreed),
            Old::Unknown => (Verdict::Undecided, Reason::NoOldBlocks),
            Old::Kept if trend.is_slowing => (Verdict::Growing, Reason::Slowing),
            Old::Kept if survival.usual.is_none() => (Verdict::PossibleLeak, Reason::NothingFreed),
            Old::Kept if self.onset.is_some_and(|onset| onset > LATE) => {
                (Verdict::PossibleLeak, Reason::BeganLate)
            }
            Old::Kept if trend.is_sustained => (Verdict::Leak, Reason::OldBlocksKept),
            Old::Kept => (Verdict::PossibleLeak, Reason::CourseUnknown),
        }
    }

    /// Whether the level does not grow any more, as far as can be seen.
    fn has_levelled_off(&self) -> bool {
        let (present, low, _) = self.present;
        let mean = self.mean.bytes / (1.0 - WARM_UP);
        low <= 0.0 && present < LEVELLED_OFF * mean
    }

    fn without_growth(&self, p_value: Option<f64>) -> (Verdict, Reason) {
        if self.of_start >= START_UP_SHARE {
            return (Verdict::StartUp, Reason::Start);
        }
        if self.is_swinging {
            return (Verdict::Steady, Reason::Swings);
        }
        // Every block that could have been freed by now was.
        if self.survival.usual.is_some() && self.kept == 0 {
            return (Verdict::Steady, Reason::Steady);
        }
        if self.trend.is_stopped && self.level_after_start < FILLED_SHARE {
            return (Verdict::CacheLike, Reason::Stopped);
        }
        let has_grown = self.window.net() >= GROWN_SHARE * self.live;
        if has_grown && p_value.is_none_or(|p| p < CONCEIVABLE) {
            return (Verdict::Undecided, Reason::FewBlocks);
        }
        if self.level_after_start < FILLED_SHARE && has_grown {
            // One burst, or a few: their number says nothing.
            return (Verdict::Undecided, Reason::FewBlocks);
        }
        (Verdict::Steady, Reason::Steady)
    }
}
