//! Correction of p-values for the number of rows that are tested.

/// Of the changes that are called significant, at most this share is noise, on average.
pub const FALSE_DISCOVERY_RATE: f64 = 0.05;

/// Adjusts p-values for their number, in their order: with the p-values sorted, the i-th of m becomes the least of
/// `p_j m / j` over all j >= i. Y. Benjamini and Y. Hochberg, "Controlling the false discovery rate", Journal of the Royal
/// Statistical Society B 57 (1995), 289-300. If nothing changed at all, a level is the probability of any false alarm, as with
/// Bonferroni's correction, which finds less where several did. Those that are not known are not counted.
pub fn benjamini_hochberg(p_values: &[Option<f64>]) -> Vec<Option<f64>> {
    let mut order: Vec<usize> = (0..p_values.len())
        .filter(|&index| p_values[index].is_some())
        .collect();
    let value = |index: usize| p_values[index].unwrap_or(1.0);
    order.sort_by(|&a, &b| value(b).total_cmp(&value(a)));
    let count = order.len() as f64;
    let mut adjusted = vec![None; p_values.len()];
    let mut least = 1.0f64;
    for (behind, index) in order.into_iter().enumerate() {
        let rank = count - behind as f64;
        least = least.min(value(index) * count / rank);
        adjusted[index] = Some(least);
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjusted_values_follow_the_papers_rule() {
        // The paper's example: of 15 p-values four stay below 0.05.
        let given = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
            0.5719, 0.6528, 0.7590, 1.0,
        ];
        let adjusted = benjamini_hochberg(&given.map(Some));
        let significant = adjusted.iter().flatten().filter(|&&p| p < 0.05).count();
        assert_eq!(significant, 4);
        assert!((adjusted[3].unwrap() - 0.0095 * 15.0 / 4.0).abs() < 1e-12);
        assert!(adjusted.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!(benjamini_hochberg(&[None, Some(0.5)]), [None, Some(0.5)]);
    }
}
