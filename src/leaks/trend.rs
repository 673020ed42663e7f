//! Whether blocks go on being kept at the rate at which they were.
//!
//! A leak adds at a rate that follows the load; a cache that fills, or a table of names, adds ever less. With n moments in
//! a span, scaled to 0 to 1, at a constant rate their mean is 1/2 with the variance 1/(12 n): Laplace's test for a trend (D.
//! R. Cox and P. A. W. Lewis, "The Statistical Analysis of Series of Events" (1966), chapter 3). Growth like the square
//! root of time, as of a table of things that come again, has the mean 1/3. Both are tested, each at 1 %: a trend is
//! *slowing* if a constant rate is excluded, *sustained* if the square root is.

use crate::growth::dispersion;

/// The normal quantile of one-sided 99 %.
const Z_99: f64 = 2.326;

/// A sudden beginning must be e^8 times as likely as none.
const ONSET_LOG_RATIO: f64 = 8.0;

/// A shorter time without a new one is no end, even if chance excludes it: programs pause, and take time to exit.
const LEAST_PAUSE: f64 = 0.1;

const BINS: usize = 16;

/// The course of the moments at which kept blocks were born.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trend {
    /// Slower at the end than in the beginning.
    pub is_slowing: bool,
    /// Not so much slower as the square root of time is.
    pub is_sustained: bool,
    /// So long without a new one that it has ended.
    pub is_stopped: bool,
    /// Share of the moments in the last third over a third.
    pub last_third: f64,
}

impl Trend {
    /// Of moments in their order, of which those from `start` to `end` count. `is_from_onset` says that the growth began
    /// at `start`, and not at the beginning of the run.
    pub fn of(moments: &[f64], start: f64, end: f64, is_from_onset: bool) -> Self {
        let scaled = moments
            .iter()
            .map(|moment| (moment - start) / (end - start))
            .filter(|place| (0.0..=1.0).contains(place));
        let mut bins = [0.0; BINS];
        let (mut count, mut sum, mut late, mut last) = (0.0, 0.0, 0.0, 0.0f64);
        for place in scaled {
            count += 1.0;
            sum += place;
            last = last.max(place);
            late += f64::from(u8::from(place >= 2.0 / 3.0));
            bins[((place * BINS as f64) as usize).min(BINS - 1)] += 1.0;
        }
        if count == 0.0 {
            return Self::default();
        }
        let effective = count / dispersion(&bins, count);
        let root = (12.0 * effective).sqrt();
        let z = (sum / count - 0.5) * root;
        // The mean of the density t^(-1/2) from `start` to `end`, scaled.
        let square_root = if is_from_onset {
            1.0 / 3.0
        } else {
            let (a, b) = (start.max(0.0), end);
            let mean = (b.powf(1.5) - a.powf(1.5)) / 3.0 / (b.sqrt() - a.sqrt());
            (mean - a) / (b - a)
        };
        Self {
            is_slowing: z < -Z_99,
            is_sustained: z > (square_root - 0.5) * root + Z_99,
            is_stopped: last < 1.0 - LEAST_PAUSE && last.powf(effective) < 0.01,
            last_third: late / count * 3.0,
        }
    }
}

impl Trend {
    /// Of the same growth by two clocks: a leak follows the one or the other.
    pub fn steadier(self, other: Self) -> Self {
        Self {
            is_slowing: self.is_slowing && other.is_slowing,
            is_sustained: self.is_sustained || other.is_sustained,
            is_stopped: self.is_stopped && other.is_stopped,
            last_third: self.last_third.max(other.last_third),
        }
    }
}

/// When moments, in their order and from 0 to `end`, became more frequent, if they did so at once: the most likely
/// moment, if that is likely enough (a likelihood ratio of two rates against one).
pub(crate) fn onset(moments: &[f64], end: f64) -> Option<f64> {
    const STEPS: usize = 40;
    let all = moments.iter().filter(|&&moment| moment <= end).count() as f64;
    let mut bins = [0.0; BINS];
    for moment in moments.iter().filter(|&&moment| moment <= end) {
        bins[((moment / end * BINS as f64) as usize).min(BINS - 1)] += 1.0;
    }
    let dispersion = dispersion(&bins, all);
    let mut best = (ONSET_LOG_RATIO, None);
    for step in 2..STEPS {
        let moment = end * step as f64 / STEPS as f64;
        let before = moments.partition_point(|&it| it < moment) as f64;
        let after = all - before;
        let part = moment / end;
        if after / (1.0 - part) <= before / part {
            continue;
        }
        let term = |count: f64, part: f64| {
            if count > 0.0 {
                count * (count / part / all).ln()
            } else {
                0.0
            }
        };
        let ratio = (term(before, part) + term(after, 1.0 - part)) / dispersion;
        if ratio > best.0 {
            best = (ratio, Some(moment));
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(count: usize, law: impl Fn(f64) -> f64) -> Vec<f64> {
        let place = |n: usize| law((n as f64 + 0.5) / count as f64);
        (0..count).map(place).collect()
    }

    #[test]
    fn a_constant_rate_is_sustained_and_a_square_root_is_slowing() {
        let constant = Trend::of(&moments(200, |u| u), 0.05, 1.0, false);
        assert!(constant.is_sustained && !constant.is_slowing && !constant.is_stopped);
        let root = Trend::of(&moments(200, |u| u * u), 0.05, 1.0, false);
        assert!(root.is_slowing && !root.is_sustained, "{root:?}");
        let stopped = Trend::of(&moments(100, |u| 0.8 * u), 0.05, 1.0, false);
        assert!(stopped.is_stopped && stopped.is_slowing, "{stopped:?}");
        let paused = Trend::of(&moments(5000, |u| 0.95 * u), 0.05, 1.0, false);
        assert!(!paused.is_stopped, "{paused:?}");
        let few = Trend::of(&moments(8, |u| u), 0.05, 1.0, false);
        assert!(!few.is_sustained && !few.is_slowing, "{few:?}");
    }

    #[test]
    fn a_sudden_beginning_is_found() {
        let late = onset(&moments(60, |u| 0.7 + 0.3 * u), 1.0).unwrap();
        assert!((late - 0.7).abs() < 0.03, "{late}");
        assert_eq!(onset(&moments(60, |u| u), 1.0), None);
        assert_eq!(onset(&[], 1.0), None);
    }
}
