//! Correction for the number of sites that are tested.

/// Adjusts p-values so that of all sites below a level at most that share is there by chance: Y. Benjamini and Y. Hochberg,
/// "Controlling the false discovery rate", Journal of the Royal Statistical Society B 57 (1995), 289-300. If no site grows,
/// the level is the probability of any false alarm, as with Bonferroni's correction, which is weaker where several do.
/// Sites without a test do not count.
pub(crate) fn adjust(p_values: &[Option<f64>]) -> Vec<Option<f64>> {
    let mut order: Vec<(f64, usize)> = p_values
        .iter()
        .enumerate()
        .filter_map(|(place, p)| Some(((*p)?, place)))
        .collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0));
    let count = order.len();
    let mut adjusted = vec![None; p_values.len()];
    let mut least = 1.0f64;
    for (behind, (p, place)) in order.into_iter().enumerate() {
        let rank = (count - behind) as f64;
        least = least.min(p * count as f64 / rank);
        adjusted[place] = Some(least);
    }
    adjusted
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_smallest_is_multiplied_by_the_number_of_tests() {
        let adjusted = super::adjust(&[Some(0.001), None, Some(0.5), Some(0.02)]);
        assert_eq!(adjusted, [Some(0.003), None, Some(0.5), Some(0.03)]);
    }
}
