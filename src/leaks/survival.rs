//! Whether blocks that outlive the others are ever freed.
//!
//! A site that leaks some of its blocks has two kinds: most are freed soon, the others never. The lifetimes of those that
//! were freed say what "soon" is: nine in ten died at most [`Survival::usual`] old. A block is *old* when it has reached
//! three times that age, and at least a fiftieth of the run. The share of old blocks that were freed decides; its limits are
//! E. B. Wilson's (Journal of the American Statistical Association 22 (1927), 209-212).
//!
//! A cache that replaces its oldest entries frees few of all blocks, but all that are old enough. So the oldest quarter
//! is asked by itself too.

use crate::blocks::Life;

/// Fewer deaths say nothing of lifetimes.
const FEWEST_DEATHS: usize = 5;
/// Deaths of less than this part of the blocks are exceptions, not the usual end.
const EXCEPTIONAL: f64 = 0.05;
/// Age from which on a block is old, in usual lifetimes.
const OLD: f64 = 3.0;
/// Part of the run below which no block is old: some lifetimes are a thousand times the usual one, and short all the same.
const LEAST_OLD: f64 = 0.02;
/// Of the old blocks of a leak, at most this share is freed.
const FREED_SHARE: f64 = 0.1;
/// The normal quantile of one-sided 98 %.
const Z: f64 = 2.05;

/// What becomes of old blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Old {
    /// They are kept.
    Kept,
    /// They are freed too.
    Freed,
    /// There are too few to tell.
    Unknown,
}

/// How long blocks of a site live.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Survival {
    /// Nine in ten of the blocks that were freed had at most this age, as a part of the run; `None` if hardly any were.
    pub usual: Option<f64>,
    /// What becomes of blocks that are older than three times that, or of all.
    pub old: Old,
    /// From which age on a block is old.
    pub old_age: f64,
}

impl Survival {
    /// Of a site's blocks by the clock of time, in the order of their births, those born since `onset`.
    pub fn of(lives: &[Life], onset: f64, ages: &mut Vec<f64>) -> Self {
        let recent = || lives.iter().filter(|life| life.birth >= onset);
        ages.clear();
        ages.extend(recent().filter(|life| !life.is_live()).map(Life::age));
        let all = recent().count();
        let is_usual = ages.len() >= FEWEST_DEATHS && ages.len() as f64 >= EXCEPTIONAL * all as f64;
        let usual = is_usual.then(|| {
            let place = (0.9 * ages.len() as f64) as usize;
            *ages.select_nth_unstable_by(place, f64::total_cmp).1
        });
        let old_age = usual.map_or(0.0, |usual| (OLD * usual).max(LEAST_OLD));
        let reached = || recent().filter(|life| life.age() > old_age);
        let (old, freed) = (
            reached().count(),
            reached().filter(|life| !life.is_live()).count(),
        );
        let oldest = old.div_ceil(4);
        let freed_oldest = reached()
            .take(oldest)
            .filter(|life| !life.is_live())
            .count();
        let is_freed = |freed: usize, of: usize| wilson(freed, of).0 > FREED_SHARE;
        let old = if is_freed(freed, old) || is_freed(freed_oldest, oldest) {
            Old::Freed
        } else if wilson(freed, old).1 < 0.5 && freed as f64 <= FREED_SHARE * old as f64 {
            Old::Kept
        } else {
            Old::Unknown
        };
        Self {
            usual,
            old,
            old_age,
        }
    }

    /// Whether a block is alive although it is old.
    pub fn is_kept(&self, life: &Life) -> bool {
        life.is_live() && life.age() > self.old_age
    }
}

/// Limits of a share of which `part` of `whole` were seen; 0 to 1 without any.
fn wilson(part: usize, whole: usize) -> (f64, f64) {
    if whole == 0 {
        return (0.0, 1.0);
    }
    let (n, share) = (whole as f64, part as f64 / whole as f64);
    let centre = share + Z * Z / (2.0 * n);
    let half = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + Z * Z / n;
    ((centre - half) / scale, (centre + half) / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lives(count: usize, life: impl Fn(usize, f64) -> Option<f64>) -> Vec<Life> {
        let at = |n: usize| {
            let birth = n as f64 / count as f64;
            Life {
                birth,
                death: life(n, birth).filter(|&death| death < 1.0),
                is_transient: false,
                bytes: 1.0,
            }
        };
        (0..count).map(at).collect()
    }

    fn old(lives: &[Life]) -> Old {
        Survival::of(lives, 0.0, &mut Vec::new()).old
    }

    #[test]
    fn old_blocks_are_kept_by_leaks_and_freed_by_caches() {
        assert_eq!(old(&lives(50, |_, _| None)), Old::Kept);
        // One in ten is kept, the others live for a hundredth of the run.
        let some = lives(500, |n, birth| (n % 10 > 0).then_some(birth + 0.01));
        let survival = Survival::of(&some, 0.0, &mut Vec::new());
        assert_eq!(survival.old, Old::Kept);
        assert!((survival.usual.unwrap() - 0.01).abs() < 1e-9);
        assert_eq!(
            some.iter().filter(|life| survival.is_kept(life)).count(),
            49
        );
        // A cache that was full after a quarter of the run: no block gets old.
        assert_eq!(
            old(&lives(100, |_, birth| Some(birth + 0.25))),
            Old::Unknown
        );
        // One in twenty of the blocks is freed, but those are the oldest.
        assert_eq!(old(&lives(500, |_, birth| Some(birth + 0.955))), Old::Freed);
        // Lifetimes like the run's.
        let long = lives(100, |n, birth| Some(birth + 0.05 * (1 + n % 20) as f64));
        assert_ne!(old(&long), Old::Kept);
        assert_eq!(old(&lives(2, |_, _| None)), Old::Unknown);
    }
}
