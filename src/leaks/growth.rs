//! Whether a site's live bytes grow, and how fast.
//!
//! The run, without its first fifth, is cut into [`BINS`] parts of equal progress. A site's *increment* of a part is what
//! it allocated in it that is alive at the part's end, less what was alive before and died in it.
//!
//! **Test.** If the site is in a steady state, an increment is as likely to be d as to be -d (a stationary process looks
//! the same when time runs backwards, and sampling keeps that). So, given their sizes, all 2^n combinations of signs of
//! the n increments are equally likely, and the p-value is the share of them whose sum is no smaller than the one that
//! was seen: Fisher's sign-flip (randomisation) test, R. A. Fisher, "The Design of Experiments" (1935), section 21. It is
//! exact, whatever the sizes of blocks and bursts, and needs no variance. Increments of a bounded quantity are negatively
//! correlated, which makes the test careful.
//!
//! **Interval.** Mean increment plus or minus Student's t quantile times its standard error, from the spread of the
//! increments: that has the sampling in it and the program's own irregularity too.

/// Parts of the run.
pub const BINS: usize = 24;

/// Of the run, the beginning that no test looks at.
pub const WARM_UP: f64 = 0.2;

/// The 0.975 quantile of Student's t with `BINS - 1` degrees of freedom.
const T_975: f64 = 2.0687;

/// The last third of the increments against those before: with less than this part of their mean, growth has stopped.
const STILL_GROWING: f64 = 0.4;

/// How a site's live bytes developed.
#[derive(Clone, Debug, PartialEq)]
pub struct Growth {
    increments: [f64; BINS],
}

impl Growth {
    /// Of blocks: progress at birth, progress at death (`None` for alive at the horizon), bytes that each stands for.
    pub fn of(blocks: impl Iterator<Item = (f64, Option<f64>, f64)>) -> Self {
        let mut increments = [0.0; BINS];
        let bin = |progress: f64| {
            let position = (progress - WARM_UP) / (1.0 - WARM_UP) * BINS as f64;
            // Progress of 1 belongs to the last part.
            (position >= 0.0).then(|| (position as usize).min(BINS - 1))
        };
        for (birth, death, bytes) in blocks {
            let (birth, death) = (bin(birth), death.and_then(bin));
            if birth == death {
                continue;
            }
            if let Some(bin) = birth {
                increments[bin] += bytes;
            }
            if let Some(bin) = death {
                increments[bin] -= bytes;
            }
        }
        Self { increments }
    }

    /// Bytes by which the live bytes grew, after the warm-up.
    pub fn bytes(&self) -> f64 {
        self.increments.iter().sum()
    }

    /// 95 % confidence limits of [`Self::bytes`].
    pub fn interval_95(&self) -> (f64, f64) {
        let bins = BINS as f64;
        let mean = self.bytes() / bins;
        let squares: f64 = self
            .increments
            .iter()
            .map(|increment| (increment - mean).powi(2))
            .sum();
        let half = T_975 * (squares / (bins - 1.0) * bins).sqrt();
        (self.bytes() - half, self.bytes() + half)
    }

    /// Probability of at least this growth in a steady state.
    pub fn p_value(&self, test: &mut SignFlipTest) -> f64 {
        test.p_value(&self.increments)
    }

    /// Whether it goes on to the end of the run.
    pub fn is_lasting(&self) -> bool {
        let (before, last) = self.increments.split_at(BINS / 3 * 2);
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        mean(last) > STILL_GROWING * mean(before).max(0.0) && mean(last) > 0.0
    }
}

/// The test, with room to work in: it is done for each of a million sites.
#[derive(Debug, Default)]
pub struct SignFlipTest {
    sizes: Vec<f64>,
    /// All signed sums of one half of the sizes, and of the other.
    left: Vec<f64>,
    right: Vec<f64>,
    merged: Vec<f64>,
}

impl SignFlipTest {
    /// Share of all sign combinations of `values` whose sum is no smaller than that of `values`; exact. At most 40 values
    /// that are not 0.
    pub fn p_value(&mut self, values: &[f64]) -> f64 {
        let sum: f64 = values.iter().sum();
        if sum <= 0.0 {
            return 1.0;
        }
        let Self {
            sizes,
            left,
            right,
            merged,
        } = self;
        sizes.clear();
        let all = values.iter().map(|value| value.abs());
        sizes.extend(all.filter(|&size| size > 0.0));
        // Meet in the middle: all sums of each half, and for each of one half how many of the other are large enough.
        let (of_left, of_right) = sizes.split_at(sizes.len() / 2);
        signed_sums(of_left, left, merged);
        signed_sums(of_right, right, merged);
        // Sums that are equal but for rounding are equal.
        let bound = sum - 1e-9 * sizes.iter().sum::<f64>();
        let mut from = right.len();
        let mut as_large = 0u64;
        for value in &*left {
            while from > 0 && value + right[from - 1] >= bound {
                from -= 1;
            }
            as_large += (right.len() - from) as u64;
        }
        as_large as f64 / (left.len() as f64 * right.len() as f64)
    }
}

/// All sums of these sizes with either sign, in their order. With each size more there are two lists of them, all that were
/// there less the size and all of them with it, and both are in order: so they are merged, and nothing is sorted. `merged`
/// is room to work in.
fn signed_sums(sizes: &[f64], sums: &mut Vec<f64>, merged: &mut Vec<f64>) {
    sums.clear();
    sums.push(0.0);
    for size in sizes {
        merged.clear();
        let mut larger = sums.iter().map(|sum| sum + size).peekable();
        for smaller in sums.iter().map(|sum| sum - size) {
            while let Some(larger) = larger.next_if(|&larger| larger < smaller) {
                merged.push(larger);
            }
            merged.push(smaller);
        }
        merged.extend(larger);
        std::mem::swap(sums, merged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p_values_are_shares_of_all_sign_combinations() {
        let mut test = SignFlipTest::default();
        let mut sign_flip_p_value = |values: &[f64]| test.p_value(values);
        // Of 2^3 combinations only the one that was seen; then also the one with the 1 turned round.
        assert_eq!(sign_flip_p_value(&[3.0, 2.0, 1.0]), 1.0 / 8.0);
        assert_eq!(sign_flip_p_value(&[3.0, 2.0, -1.0]), 2.0 / 8.0);
        assert_eq!(sign_flip_p_value(&[0.0, 5.0, 0.0, 5.0]), 1.0 / 4.0);
        assert_eq!(sign_flip_p_value(&[1.0, -1.0]), 1.0);
        assert_eq!(sign_flip_p_value(&[]), 1.0);
        assert_eq!(sign_flip_p_value(&[7.0; BINS]), 0.5f64.powi(BINS as i32));
    }

    #[test]
    fn signed_sums_are_all_of_them_in_order() {
        let sizes = [0.1, 3.0, 3.0, 1e9, 0.7, 2.5e-9, 17.0];
        let mut expected = Vec::new();
        for signs in 0..1 << sizes.len() {
            let signed = sizes.iter().enumerate();
            expected.push(signed.fold(0.0, |sum, (place, size)| {
                let is_added = signs & (1 << place) != 0;
                if is_added { sum + size } else { sum - size }
            }));
        }
        expected.sort_unstable_by(f64::total_cmp);
        let (mut sums, mut room) = (Vec::new(), Vec::new());
        signed_sums(&sizes, &mut sums, &mut room);
        assert_eq!(sums, expected);
        signed_sums(&[], &mut sums, &mut room);
        assert_eq!(sums, [0.0]);
    }

    #[test]
    fn increments_are_births_less_deaths_of_each_part() {
        let before = (0.1, None, 100.0);
        let born_in_first = (0.21, None, 10.0);
        let moved = (0.21, Some(1.0), 5.0);
        let within_one = (0.5, Some(0.501), 1000.0);
        let growth = Growth::of([before, born_in_first, moved, within_one].into_iter());
        assert_eq!(growth.increments[0], 15.0);
        assert_eq!(growth.increments[BINS - 1], -5.0);
        assert_eq!(growth.bytes(), 10.0);
    }

    #[test]
    fn growth_that_stops_is_not_lasting() {
        let blocks =
            |until: f64| (0..1000).map(move |i| (f64::from(i) / 1000.0 * until, None, 1.0));
        assert!(Growth::of(blocks(1.0)).is_lasting());
        assert!(!Growth::of(blocks(0.7)).is_lasting());
    }
}
