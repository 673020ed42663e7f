//! Chooses the interval that keeps the number of live samples below a limit.

use crate::Interval;

/// Lets no more samples than these be alive: each time that the room left has halved, the interval is four times as long, so
/// the next half lasts at least twice as long under the same load. Beyond the limit, where a burst may have led before
/// anybody looked, a 64th of it stands for each further half.
#[derive(Clone, Copy, Debug)]
pub struct LiveLimit {
    most: u64,
    /// The interval while there are no live samples.
    first: Interval,
    /// Number of times that the interval was quadrupled.
    level: u32,
    /// The interval is quadrupled again at this number of live samples.
    next: u64,
}

impl LiveLimit {
    /// Intervals from 2^40 bytes on: practically no samples.
    const MOST_LEVEL: u32 = 20;

    /// A limit while there are no live samples.
    pub fn new(most: u64, first: Interval) -> Self {
        Self {
            most,
            first,
            level: 0,
            next: most / 2,
        }
    }

    /// Returns the interval to apply next, if it changes.
    pub fn look(&mut self, live: u64) -> Option<Interval> {
        let before = self.level;
        if live >= self.next {
            // As many steps as it was too many, at once.
            let times = live / self.next.max(1);
            self.level = (self.level + times.max(1).ilog2() + 1).min(Self::MOST_LEVEL);
            let room = self.most.saturating_sub(live);
            self.next = live + (room / 2).max(self.most / 64);
        }
        // Back when half as much once more would still be less, not at the border to and fro.
        let room = self.most.saturating_sub(live + live / 2);
        let level = self
            .most
            .checked_div(room)
            .map_or(Self::MOST_LEVEL, u64::ilog2);
        if level < self.level {
            self.level = level;
            self.next = self.most - (self.most >> (level + 1));
        }
        let bytes = u128::from(self.first.bytes()) << (2 * self.level);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).min(1 << 40);
        let interval = Interval::new(bytes)?.max(self.first);
        (self.level != before).then_some(interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_live_stay_within_their_room_and_the_interval_comes_back_when_they_go() {
        let first = Interval::new(4096).unwrap();
        let mut limit = LiveLimit::new(10_000, first);
        let (mut live, mut interval) = (0.0, first);
        // A leak of 10 MB a second, for a day.
        for _ in 0..86_400 {
            live += 1e7 / interval.bytes() as f64;
            interval = limit.look(live as u64).unwrap_or(interval);
        }
        assert!(live < 11_000.0 && live > 9_000.0, "{live}");
        let mut changes = 0;
        for live in (0..live as u64).rev() {
            if let Some(next) = limit.look(live) {
                assert!(next < interval);
                interval = next;
                changes += 1;
            }
        }
        assert_eq!(interval, first);
        assert!(changes < 20, "{changes}");
    }

    #[test]
    fn the_interval_changes_whenever_half_of_the_room_is_used_or_free_again() {
        let first = Interval::new(4096).unwrap();
        let mut limit = LiveLimit::new(10_000, first);
        for (live, times) in [
            (4_999, None),
            (5_000, Some(4)),
            (7_499, None),
            (7_500, Some(16)),
            (8_749, None),
            // Half as much once more would leave 4,000: two fifths.
            (4_000, Some(4)),
            (7_499, None),
            (7_500, Some(16)),
            (0, Some(1)),
            (4_999, None),
            (5_000, Some(4)),
        ] {
            let next = limit.look(live).map(Interval::bytes);
            assert_eq!(next, times.map(|times| 4096 * times), "{live}");
        }
    }

    #[test]
    fn a_burst_beyond_the_room_does_not_blind_us() {
        let first = Interval::new(4096).unwrap();
        let mut limit = LiveLimit::new(10_000, first);
        let after = limit.look(30_000).unwrap();
        assert_eq!(after.bytes(), 4096 << 6);
        // Nothing more comes: it stays.
        assert_eq!(limit.look(30_000), None);
        assert_eq!(limit.look(30_200).unwrap().bytes(), 4096 << 8);
        assert_eq!(limit.look(0), Some(first));
    }

    #[test]
    fn the_next_half_of_the_room_is_used_before_the_interval_grows_again() {
        let first = Interval::new(4096).unwrap();
        let mut limit = LiveLimit::new(1000, first);
        assert_eq!(limit.look(499), None);
        assert_eq!(limit.look(500).unwrap().bytes(), 4 * 4096);
        assert_eq!(limit.look(749), None);
        assert_eq!(limit.look(750).unwrap().bytes(), 16 * 4096);
    }
}
