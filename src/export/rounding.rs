//! Whole numbers that add up to what their fractions do.

/// A sum in whole bytes or objects. Sums are never negative, and 2^63 of either is beyond any machine.
pub(crate) fn rounded(value: f64) -> i64 {
    // Saturates, by the definition of `as`.
    value.round() as i64
}

/// Rounds one after the other so that the sum of the rounded is the rounded sum: weights of one size would all be
/// rounded to the same side.
#[derive(Debug, Default)]
pub(crate) struct Rounding {
    owed: f64,
}

impl Rounding {
    /// The next value, rounded together with what was left of those before.
    pub fn next(&mut self, value: f64) -> i64 {
        // Half a byte owed is no reason for a negative weight.
        let rounded = rounded(value + self.owed).max(0);
        self.owed += value - rounded as f64;
        rounded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_values_add_up_to_the_rounded_sum() {
        let mut rounding = Rounding::default();
        let values = [0.4; 1000];
        let rounded: Vec<i64> = values.iter().map(|&value| rounding.next(value)).collect();
        assert_eq!(rounded.iter().sum::<i64>(), 400);
        assert!(rounded.iter().all(|&value| value == 0 || value == 1));
    }
}
