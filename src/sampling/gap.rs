//! The law of the distance from one sample point to the next.

use crate::{Interval, Random};

/// How sample points are laid out. It decides the inclusion probability too: see [`crate::Weight`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GapLaw {
    /// Each byte is a sample point with probability 1 - exp(-1/N), independently of all others.
    Poisson,
    /// Each N-th byte, from a random start on. Exact counts, but no estimable error, and blind to what resonates
    /// with the interval.
    Periodic,
}

/// Distance in bytes to the next sample point, at least 1: `max(1, ceil(-N ln U))`, U uniform in (0, 1].
///
/// With E exponential of mean N, `ceil(E)` is at most k exactly when `E <= k`, so
/// `P(gap <= k) = 1 - exp(-k/N)`: a geometric law, memoryless, of mean `1 / (1 - exp(-1/N))` = N + 1/2 + 1/(12 N) - ...
/// Rounding down, or to nearest, or clamping, would need another inclusion probability: each gap law has its own.
///
/// At N = 1 every gap is 1, by definition rather than by this law: every byte is a sample point. The result exceeds
/// 64 bits for N beyond 2^58.
pub fn draw_gap(interval: Interval, random: &mut Random) -> u128 {
    if interval == Interval::EVERY_ALLOCATION {
        return 1;
    }
    let exponential = -(interval.bytes() as f64) * libm::log(random.unit());
    // Not negative and not a NaN. Where each whole number has a float of its own, rounding up takes a comparison.
    if exponential < (1_u64 << 53) as f64 {
        let whole = exponential as i64;
        let gap = whole + i64::from((whole as f64) < exponential);
        return u128::from(gap.unsigned_abs()).max(1);
    }
    // Whole, and below 2^63 * 37: the conversion is exact.
    exponential as u128
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_the_exponential_distance_rounded_up() {
        for bytes in [2, 3, 1000, 1 << 19, 1 << 40, 1 << 60] {
            let interval = Interval::new(bytes).unwrap();
            let mut random = Random::from_seed(5);
            let mut same = random.clone();
            for _ in 0..10_000 {
                let distance = -(bytes as f64) * libm::log(same.unit());
                let expected = (libm::ceil(distance) as u128).max(1);
                assert_eq!(draw_gap(interval, &mut random), expected, "{bytes}");
            }
        }
        let mut random = Random::from_seed(5);
        assert_eq!(draw_gap(Interval::EVERY_ALLOCATION, &mut random), 1);
    }
}
