//! What the blocks of a site show, before it gets a verdict.

use crate::blocks::{Blocks, Life};
use crate::growth::{self, Mean, WARM_UP, Window};
use crate::progress::Clock;
use crate::sign_flip::SignFlipTest;
use crate::survival::Survival;
use crate::trend::{self, Trend};
use allocsample_sampling::Estimate;

/// Trends are looked for from here on: tables that are built when a program starts say nothing of later growth.
const SETTLED: f64 = 0.05;

/// The present rate is that of the last third of the growth. A site with nothing of the last third of the run has stopped.
pub(crate) const PRESENT: f64 = 1.0 / 3.0;

/// Levels that are compared with each other.
const LEVELS: usize = 64;
/// A fall by less than this part of the level is none.
const FALL: f64 = 0.3;
/// Standard errors by which a fall, or a new height, must be more than chance.
const SURE: f64 = 3.0;

/// Memory to work in, for one site after the other.
#[derive(Default)]
pub(crate) struct Room {
    pub blocks: Blocks,
    pub test: SignFlipTest,
    ages: Vec<f64>,
    moments: Vec<f64>,
}

/// How a site's live bytes developed. Times are parts of the run, rates bytes in the whole of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    /// Growth without the warm-up.
    pub mean: Mean,
    /// The same by the blocks that came and went.
    pub window: Window,
    /// When the growth began, if it did so at once.
    pub onset: Option<f64>,
    /// The rate in the last third of the growth, with 95 % confidence limits.
    pub present: (f64, f64, f64),
    /// How long blocks live.
    pub survival: Survival,
    /// Blocks that are alive although they are old, or any if lifetimes are not known.
    pub kept: usize,
    /// Their course: by the clock under which it is the steadiest.
    pub trend: Trend,
    /// Whether the level fell on the way, and is not above its earlier height now.
    pub is_swinging: bool,
    /// Bytes alive at the horizon.
    pub live: f64,
    /// Whether no live block is of the last third of the run, by any clock.
    pub is_quiet: bool,
    /// Whether enough blocks came at enough different times, and none was freed, that lifetimes within the run are excluded.
    pub is_never_freed: bool,
    /// Of the live bytes, the share that is freed when the program ends.
    pub freed_at_end: f64,
    /// Of the live bytes, the share that was allocated during the warm-up, by every clock.
    pub of_start: f64,
    /// Live bytes after the warm-up over those at the horizon, by the clock with the least.
    pub level_after_start: f64,
}

impl Evidence {
    /// Of the blocks in `room`, by these clocks, of which the first is that of time.
    pub fn of(room: &mut Room, clocks: &[Clock]) -> Self {
        let Room {
            blocks,
            ages,
            moments,
            ..
        } = room;
        let lives = blocks.by_clock(0);
        let window = Window::of(lives, WARM_UP);
        let whole = Survival::of(lives, 0.0, ages);
        fill_moments(moments, lives, lives, &whole);
        let onset = trend::onset(moments, 1.0 - whole.old_age).or_else(|| late_start(moments));
        // What was freed before a late beginning says how long blocks live, so it counts.
        let survival = whole;
        let kept = moments.len();
        let end = 1.0 - survival.old_age;
        let trends = clocks.iter().enumerate().map(|(clock, it)| {
            let at = |part: f64| match clock {
                0 => part,
                _ => it.at(clocks[0].time_ns(part)),
            };
            fill_moments(moments, lives, blocks.by_clock(clock), &survival);
            Trend::of(
                moments,
                at(onset.unwrap_or(SETTLED)),
                at(end),
                onset.is_some(),
            )
        });
        let trend = trends.reduce(Trend::steadier).unwrap_or_default();
        let live: f64 = lives
            .iter()
            .filter(|it| it.is_live())
            .map(|it| it.bytes)
            .sum();
        // The beginning is over when the first of the clocks says so: a slow start is little work.
        let least = |share: &dyn Fn(usize) -> f64| {
            let shares = (0..clocks.len()).map(share);
            shares.fold(f64::INFINITY, f64::min)
        };
        Self {
            mean: Mean::of(lives),
            window,
            onset,
            present: present(lives, onset.unwrap_or(0.0)),
            survival,
            kept,
            trend,
            is_swinging: is_swinging(lives),
            is_quiet: (0..clocks.len()).all(|clock| {
                let mut lives = blocks.by_clock(clock).iter();
                !lives.any(|it| it.is_live() && it.birth >= 1.0 - PRESENT)
            }),
            is_never_freed: is_never_freed(lives, moments),
            live,
            freed_at_end: blocks.freed_at_end().unwrap_or(0.0),
            of_start: least(&|clock| blocks.live_since(clock, WARM_UP).unwrap_or(0.0)),
            level_after_start: least(&|clock| blocks.alive_at(clock, WARM_UP) / live),
        }
    }
}

/// When the kept blocks were born, by a clock.
fn fill_moments(moments: &mut Vec<f64>, by_time: &[Life], by_clock: &[Life], survival: &Survival) {
    moments.clear();
    let each = by_time.iter().zip(by_clock);
    let kept = each.filter(|(life, _)| survival.is_kept(life));
    moments.extend(kept.map(|(_, life)| life.birth));
}

/// When the kept blocks begin, if nine in ten of them are of the second half of the run.
fn late_start(moments: &[f64]) -> Option<f64> {
    let start = *moments.get(moments.len() / 10)?;
    (start > 0.5).then_some(start)
}

fn present(lives: &[Life], onset: f64) -> (f64, f64, f64) {
    let length = PRESENT * (1.0 - onset);
    let window = Window::of(lives, 1.0 - length);
    let per_run = |bytes: f64| bytes / length;
    let error = 1.96 * window.error();
    let limits = if window.died == 0.0 && window.born > 0.0 {
        let variance = window.dispersion * window.squares;
        let unit = variance / window.born;
        let born = Estimate::from_parts(window.born, Some(variance), window.blocks as u64);
        let limits = born.allowing_for(unit).limits_95();
        limits.map_or((0.0, window.born), |limits| (limits.low, limits.high))
    } else {
        (window.net() - error, window.net() + error)
    };
    (per_run(window.net()), per_run(limits.0), per_run(limits.1))
}

/// Whether the level fell after the warm-up by more than chance, and is not above its earlier height at the horizon.
fn is_swinging(lives: &[Life]) -> bool {
    let mut changes = [0.0; LEVELS + 1];
    let place = |progress: f64| ((progress * LEVELS as f64).ceil() as usize).min(LEVELS);
    let (mut bytes, mut squares) = (0.0, 0.0);
    for life in lives.iter().filter(|life| !life.is_transient) {
        changes[place(life.birth)] += life.bytes;
        if let Some(death) = life.death {
            changes[place(death)] -= life.bytes;
        }
        bytes += life.bytes;
        squares += life.bytes * life.bytes;
    }
    let unit = if bytes > 0.0 { squares / bytes } else { 0.0 };
    let error = |a: f64, b: f64| SURE * (unit * (a + b).max(0.0)).sqrt();
    let mut level = 0.0;
    let levels = changes.map(|change| {
        level += change;
        level
    });
    let last = levels[LEVELS];
    let (mut height, mut fallen_from) = (0.0f64, 0.0f64);
    for level in levels {
        height = height.max(level);
        let fall = height - level;
        if fall > FALL * height && fall > error(height, level) {
            fallen_from = fallen_from.max(height);
        }
    }
    fallen_from > 0.0 && last < fallen_from + error(fallen_from, last)
}

/// Whether blocks came in enough parts of the run, and none went. Blocks of one burst may go together, so a burst counts once:
/// if lifetimes had a mean of the run's length, no death in parts with together n runs of age has the probability e^-n.
fn is_never_freed(lives: &[Life], moments: &mut Vec<f64>) -> bool {
    const PARTS: f64 = 24.0;
    const FEWEST: usize = 24;
    /// e^-4 is 2 in 100.
    const RUNS: f64 = 4.0;
    if lives.len() < FEWEST || lives.iter().any(|life| !life.is_live()) {
        return false;
    }
    moments.clear();
    moments.extend(lives.iter().map(|life| (life.birth * PARTS).floor()));
    moments.dedup();
    moments.iter().map(|part| 1.0 - part / PARTS).sum::<f64>() >= RUNS
}

/// Probability of such growth in a steady state, before correction for the number of sites; `None` if there are too few
/// blocks for a test. `is_large` says that few blocks are enough, because what they stand for is nearly certain.
pub(crate) fn p_value(room: &mut Room, clocks: usize, is_large: bool) -> Option<f64> {
    let Room { blocks, test, .. } = room;
    if growth::is_testable(blocks.by_clock(0)) {
        let by_clock: Vec<&[Life]> = (0..clocks).map(|clock| blocks.by_clock(clock)).collect();
        return Some(growth::p_value(&by_clock, test).min(1.0));
    }
    // A buffer that grows by `realloc` is one block at any time.
    is_large.then(|| growth::sign_flip(&[blocks.by_clock(0)], test))
}
