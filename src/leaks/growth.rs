//! Whether a site's live bytes grow.
//!
//! In a window from a moment s to the horizon, C are the bytes that were allocated in it and are alive at its end, and B
//! those that were alive at s and were freed in it. The live bytes grow by C - B. What is alive at both ends says nothing.
//!
//! **Test.** In a steady state (births at a constant rate, any law of lifetimes: the M/G/infinity queue) the numbers of
//! blocks behind C and B are independent Poisson variables with equal means, and sampling keeps that. So, given their
//! sum, C has a binomial distribution with p = 1/2: J. Przyborowski and H. Wilenski, "Homogeneity of results in testing
//! samples from Poisson series", Biometrika 31 (1940), 313-323. Blocks that stand for unequal bytes count as
//! `(sum w)^2 / sum w^2` equal ones.
//!
//! **Bursts.** Programs allocate and free in bursts, and then the counts vary more than Poisson's law lets them. The window
//! is cut into [`BINS`] parts. The increments of parts that are neighbours, or two apart, differ by a variance that is the
//! dispersion times Poisson's (J. von Neumann's mean square successive difference, Annals of Mathematical Statistics 12
//! (1941), 367-395, which a trend does not disturb). Counts are divided by it (quasi-likelihood: R. W. M. Wedderburn,
//! Biometrika 61 (1974), 439-447). Where it is large, it is itself uncertain, and Student's t takes the place of the
//! binomial law if that is more careful.
//!
//! **Windows.** A leak that begins late is found in a short window, a slow one in the longest. Each window and clock has
//! its part of the level (a weighted Bonferroni correction: C. R. Genovese et al., Biometrika 93 (2006), 509-524), and so has
//! [`SignFlipTest`], which needs no variance but cannot go below 2^-24.

use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::function::beta::beta_reg;

use crate::blocks::Life;
use crate::sign_flip::SignFlipTest;

/// Of the run, the beginning that no test looks at.
pub(crate) const WARM_UP: f64 = 0.2;

/// Parts of a window.
const BINS: usize = 16;

/// Parts of the run for the sign-flip test and for the limits of the mean growth.
const INCREMENTS: usize = 24;

/// Where windows begin, with their parts of the level by the clock of time and by that of work.
const WINDOWS: [(f64, [f64; 2]); 5] = [
    (WARM_UP, [0.26, 0.18]),
    (0.4, [0.08, 0.04]),
    (0.6, [0.08, 0.04]),
    (0.8, [0.08, 0.04]),
    (0.9, [0.05, 0.02]),
];
/// The sign-flip test's part, by the clock of time.
const SIGN_FLIP_PART: f64 = 0.13;

/// Fewer blocks that came or went cannot show anything: 2^-6 is more than one in a hundred.
pub(crate) const FEWEST: usize = 7;

/// The 0.975 quantile of Student's t with `INCREMENTS - 1` degrees of freedom.
const T_975: f64 = 2.0687;

/// From this dispersion on it is not what chance makes of Poisson's law.
const BURSTY: f64 = 2.0;
/// Degrees of freedom of the mean square successive difference of 16 increments.
const BURSTY_FREEDOM: f64 = 9.0;

/// What came and went in a window that ends at the horizon.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    /// Bytes that were allocated in it and are alive.
    pub born: f64,
    /// Bytes that were alive before it and were freed in it.
    pub died: f64,
    /// Sum of the squares of both.
    pub squares: f64,
    /// How many blocks these are.
    pub blocks: usize,
    /// How much more they vary than Poisson's law says; at least 1.
    pub dispersion: f64,
}

impl Window {
    /// Of blocks, from `start` to 1.
    pub fn of(lives: &[Life], start: f64) -> Self {
        Self::of_each(lives.iter().copied(), start)
    }

    /// The same, of blocks that come one by one.
    pub fn of_each(lives: impl Iterator<Item = Life>, start: f64) -> Self {
        let mut window = Self::default();
        let mut increments = [0.0; BINS];
        let mut activity = 0.0;
        let bin = |progress: f64| bin(progress, start, BINS);
        let counts = |life: &Life| !life.is_transient && life.death.is_none_or(|it| it >= start);
        for life in lives.filter(counts) {
            let (birth, death) = (bin(life.birth), life.death.and_then(bin));
            if birth.is_some() == death.is_some() && birth == death {
                continue;
            }
            let square = life.bytes * life.bytes;
            if birth.is_some() != death.is_some() {
                let side = if birth.is_some() {
                    &mut window.born
                } else {
                    &mut window.died
                };
                *side += life.bytes;
                window.squares += square;
                window.blocks += 1;
            }
            if let Some(bin) = birth {
                increments[bin] += life.bytes;
                activity += square;
            }
            if let Some(bin) = death {
                increments[bin] -= life.bytes;
                activity += square;
            }
        }
        window.dispersion = dispersion(&increments, activity);
        window
    }

    /// Bytes by which the live bytes grew.
    pub fn net(&self) -> f64 {
        self.born - self.died
    }

    /// Standard error of that.
    pub fn error(&self) -> f64 {
        (self.dispersion * self.squares).sqrt()
    }

    /// Probability of at least this growth in a steady state.
    pub fn p_value(&self) -> f64 {
        let all = self.born + self.died;
        if self.blocks < FEWEST || self.net() <= 0.0 {
            return 1.0;
        }
        let effective = all * all / self.squares / self.dispersion;
        let (born, died) = (effective * self.born / all, effective * self.died / all);
        // P(X >= born), X binomial (born + died, 1/2).
        let by_counts = beta_reg(born, died + 1.0, 0.5);
        if self.dispersion < BURSTY {
            return by_counts;
        }
        let t = self.net() / self.error();
        let by_spread = StudentsT::new(0.0, 1.0, BURSTY_FREEDOM).map_or(1.0, |law| law.sf(t));
        by_counts.max(by_spread)
    }
}

/// Which part of the window a moment is in; `None` before it. The horizon belongs to the last part.
fn bin(progress: f64, start: f64, bins: usize) -> Option<usize> {
    let position = (progress - start) / (1.0 - start) * bins as f64;
    (position >= 0.0).then(|| (position as usize).min(bins - 1))
}

/// How much more increments vary than Poisson's law says. `activity` is the sum of the squares of all that came and went.
pub(crate) fn dispersion(increments: &[f64], activity: f64) -> f64 {
    if activity <= 0.0 {
        return 1.0;
    }
    let expected = activity / increments.len() as f64;
    let successive = |lag: usize| {
        let pairs = increments.iter().zip(&increments[lag..]);
        let squares: f64 = pairs.map(|(a, b)| (a - b).powi(2)).sum();
        squares / 2.0 / (increments.len() - lag) as f64 / expected
    };
    // Blocks that live for about one part make neighbours differ by 3/2 of that.
    (successive(1) / 1.5).max(successive(2)).max(1.0)
}

/// Mean growth over the run without its warm-up, with 95 % confidence limits, by the clock of time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mean {
    /// Bytes.
    pub bytes: f64,
    /// From the spread of the increments.
    pub limits: (f64, f64),
}

impl Mean {
    /// Of a site's blocks.
    pub fn of(lives: &[Life]) -> Self {
        let increments = increments(lives);
        let bytes: f64 = increments.iter().sum();
        let bins = INCREMENTS as f64;
        let squares: f64 = increments
            .iter()
            .map(|it| (it - bytes / bins).powi(2))
            .sum();
        let half = T_975 * (squares / (bins - 1.0) * bins).sqrt();
        Self {
            bytes,
            limits: (bytes - half, bytes + half),
        }
    }
}

/// What the live bytes gained in each part of the run without its warm-up.
fn increments(lives: &[Life]) -> [f64; INCREMENTS] {
    let mut increments = [0.0; INCREMENTS];
    let bin = |progress: f64| bin(progress, WARM_UP, INCREMENTS);
    for life in lives {
        let (birth, death) = (bin(life.birth), life.death.and_then(bin));
        if birth == death || life.is_transient {
            continue;
        }
        if let Some(bin) = birth {
            increments[bin] += life.bytes;
        }
        if let Some(bin) = death {
            increments[bin] -= life.bytes;
        }
    }
    increments
}

/// Whether enough blocks of a site came or went for a test. It does not depend on how many of them came and how many
/// went, so leaving others out does not disturb the p-values (R. E. Tarone, Biometrics 46 (1990), 515-522).
pub(crate) fn is_testable(lives: &[Life]) -> bool {
    let crosses = |life: &&Life| match life.death {
        None => life.birth >= WARM_UP,
        Some(death) => !life.is_transient && life.birth < WARM_UP && death >= WARM_UP,
    };
    lives.iter().filter(crosses).nth(FEWEST - 1).is_some()
}

/// Probability of growth as evident as this in a steady state, of all windows and clocks together.
pub(crate) fn p_value(by_clock: &[&[Life]], test: &mut SignFlipTest) -> f64 {
    let mut least = 1.0f64;
    for (clock, lives) in by_clock.iter().enumerate() {
        for (start, parts) in WINDOWS {
            let part = parts.get(clock).copied().unwrap_or(0.0);
            least = least.min(Window::of(lives, start).p_value() / part);
        }
    }
    least.min(sign_flip(by_clock, test) / SIGN_FLIP_PART)
}

/// The sign-flip test alone.
pub(crate) fn sign_flip(by_clock: &[&[Life]], test: &mut SignFlipTest) -> f64 {
    let lives = by_clock.first().copied().unwrap_or_default();
    test.p_value(&increments(lives))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(birth: f64, death: Option<f64>, bytes: f64) -> Life {
        Life {
            birth,
            death,
            is_transient: false,
            bytes,
        }
    }

    #[test]
    fn a_window_counts_what_came_and_stayed_and_what_was_there_and_went() {
        let lives = [
            // Gone before it.
            life(0.1, Some(0.3), 1.0),
            // There all the time.
            life(0.1, None, 2.0),
            life(0.1, Some(0.6), 4.0),
            life(0.6, Some(0.9), 8.0),
            life(0.7, None, 16.0),
        ];
        let window = Window::of(&lives, 0.4);
        assert_eq!((window.born, window.died), (16.0, 4.0));
        assert_eq!((window.blocks, window.squares), (2, 256.0 + 16.0));
        assert_eq!(window.net(), 12.0);
    }

    #[test]
    fn p_values_are_binomial_tails() {
        let lives = |born: usize, died: usize| -> Vec<Life> {
            let born_at = |n: usize| life(0.2 + 0.8 * (n as f64 + 0.5) / born as f64, None, 3.0);
            let died_at =
                |n: usize| life(0.0, Some(0.2 + 0.8 * (n as f64 + 0.5) / died as f64), 3.0);
            (0..born)
                .map(born_at)
                .chain((0..died).map(died_at))
                .collect()
        };
        let p = |born, died| Window::of(&lives(born, died), WARM_UP).p_value();
        assert!((p(32, 0) / 0.5f64.powi(32) - 1.0).abs() < 1e-9);
        // P(X >= 32), X binomial (48, 1/2).
        assert!((p(32, 16) / 0.014_665 - 1.0).abs() < 1e-3, "{}", p(32, 16));
        assert_eq!(p(16, 16), 1.0);
        assert_eq!(p(6, 0), 1.0, "too few");
    }

    #[test]
    fn one_burst_is_one_event() {
        let burst: Vec<Life> = (0..100)
            .map(|n| life(0.5 + 1e-5 * f64::from(n), None, 1.0))
            .collect();
        let window = Window::of(&burst, WARM_UP);
        assert!(window.dispersion > 50.0, "{window:?}");
        assert!(window.p_value() > 0.1, "{window:?}");
    }

    #[test]
    fn increments_are_births_less_deaths_of_each_part() {
        let lives = [
            life(0.1, None, 100.0),
            life(0.21, None, 10.0),
            life(0.21, Some(1.0), 5.0),
            life(0.5, Some(0.501), 1000.0),
        ];
        let found = increments(&lives);
        assert_eq!((found[0], found[INCREMENTS - 1]), (15.0, -5.0));
        assert_eq!(Mean::of(&lives).bytes, 10.0);
    }
}
