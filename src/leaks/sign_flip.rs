//! The exact test of a row of increments against a steady state.
//!
//! Where increments of the live bytes are independent, and as likely to be d as to be -d (a steady state that looks the same
//! when time runs backwards, which sampling keeps), all 2^n combinations of signs of n increments are equally likely, given
//! their sizes. The p-value is the share of them whose sum is no smaller than the one that was seen: Fisher's sign-flip
//! (randomisation) test, R. A. Fisher, "The Design of Experiments" (1935), section 21. It is exact whatever the sizes of
//! blocks and bursts, and needs no variance. Its least value is 2^-n.
//!
//! Increments of a level that returns to its mean are negatively correlated. Large sums are rarer then, and the test is
//! conservative (`calibration` measures it). A sawtooth is not symmetric: it rises often and falls once. What its fall
//! means is for the verdict to say, not for this test.

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
        assert_eq!(sign_flip_p_value(&[7.0; 24]), 0.5f64.powi(24));
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
}
