//! What the figures of a site mean, in one word and in one sentence.

use allocsample_report::units;

use crate::findings::Finding;
use crate::pace::Pace;

/// What a site is, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Its live bytes grow to the end of the run, and what is not freed soon is never freed.
    Leak,
    /// They grow to the end of the run, but older blocks are freed too, or all are freed at the end.
    Growing,
    /// They grew during the run, and have stopped.
    CacheLike,
    /// They were allocated at the beginning of the run, and stay.
    StartUp,
    /// They neither grow nor are they of the beginning.
    Steady,
}

impl Verdict {
    /// As it is printed.
    pub fn word(self) -> &'static str {
        match self {
            Self::Leak => "leak",
            Self::Growing => "growing",
            Self::CacheLike => "cache-like",
            Self::StartUp => "start-up",
            Self::Steady => "steady",
        }
    }
}

/// Of the samples that could have been seen to die, those that are still there: at least so many for a leak.
const LEAK_SURVIVAL: f64 = 0.9;
/// Of the live bytes, those that were allocated during the warm-up: at least so many for a start-up table.
const START_UP_SHARE: f64 = 0.8;
/// Of the live bytes, those that were there after the warm-up already: with fewer it was filled since.
const FILLED_SHARE: f64 = 0.75;
/// Freed at the end is what mostly is.
const FREED_AT_END_SHARE: f64 = 0.5;

/// What the verdict rests on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence {
    /// Whether growth is significant, all sites and clocks considered.
    pub is_growing: bool,
    /// Whether it goes on to the end.
    pub is_lasting: bool,
    /// Of the bytes that were alive in the middle of the run, the share that is at its horizon; `None` if none were.
    pub middle_survival: Option<f64>,
    /// Of the live bytes, the share that is freed at the end.
    pub freed_at_end: f64,
    /// Of the live bytes, the share that was allocated during the warm-up.
    pub of_start: f64,
    /// Live bytes after the warm-up over those at the horizon.
    pub level_after_start: f64,
}

impl Evidence {
    pub(crate) fn verdict(&self) -> Verdict {
        match *self {
            Self {
                is_growing: true,
                is_lasting: true,
                ..
            } => {
                let stays = self
                    .middle_survival
                    .is_none_or(|share| share >= LEAK_SURVIVAL);
                if stays && self.freed_at_end < FREED_AT_END_SHARE {
                    Verdict::Leak
                } else {
                    Verdict::Growing
                }
            }
            Self {
                is_growing: true, ..
            } => Verdict::CacheLike,
            _ if self.of_start >= START_UP_SHARE => Verdict::StartUp,
            _ if self.level_after_start < FILLED_SHARE => Verdict::CacheLike,
            _ => Verdict::Steady,
        }
    }
}

/// The verdict in plain words.
pub(crate) fn sentence(finding: &Finding, evidence: &Evidence, pace: Pace) -> String {
    let live = units::bytes(finding.live.value());
    let rate = pace.rate(finding.growth_per_s);
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    match finding.verdict {
        Verdict::Leak if finding.never_freed > LEAK_SURVIVAL => {
            format!("Nothing that is allocated here is freed: {live} so far, {rate} more.")
        }
        Verdict::Leak => format!(
            "{} of what is allocated here is never freed, the rest soon: {live} so far, {rate} more.",
            percent(finding.never_freed)
        ),
        Verdict::Growing if evidence.freed_at_end >= FREED_AT_END_SHARE => format!(
            "Grows by {rate} while the program runs, and is freed only when it ends{}.",
            match finding.freed_by.first() {
                Some((thread, _)) => format!(", by {thread}"),
                None => String::new(),
            }
        ),
        Verdict::Growing => format!(
            "Grows by {rate}, though {} of what was there half-way has been freed since.",
            percent(1.0 - evidence.middle_survival.unwrap_or(1.0))
        ),
        Verdict::CacheLike if !evidence.is_growing && evidence.is_lasting => format!(
            "Was filled during the run: {live}. Whether it goes on, {rate}, cannot be told from so few samples ({}).",
            finding.live.samples()
        ),
        Verdict::CacheLike => {
            format!("Was filled during the run, and grows little or no more: {live}.")
        }
        Verdict::StartUp => format!("Allocated when the program began, and kept: {live}."),
        Verdict::Steady if finding.live.samples() < FEW_SAMPLES => {
            format!("Too few samples ({}) to tell.", finding.live.samples())
        }
        Verdict::Steady => format!("Holds about {live}, no more than before."),
    }
}

/// No growth could be significant with fewer.
pub(crate) const FEW_SAMPLES: u64 = 8;
