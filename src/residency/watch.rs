//! When the memory of a process is to be read, and how closely.
//!
//! A program that runs for a second is read some dozens of times, one that runs for days less and less often: the
//! pause is a fiftieth of the time that the watch has lasted, within limits. While nothing changes it doubles. The
//! mappings are read where the memory has grown since they last were, and either has stopped growing or has grown by
//! half; what that has cost so far decides whether it may be done again.

use allocsample_record::MemoryTotals;

/// What is to be done with a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing: it says nothing new.
    Nothing,
    /// The profile is to have it.
    Totals,
    /// The mappings are to be read, too.
    Map,
}

/// The state of a watch over one process.
#[derive(Clone, Debug)]
pub struct Watch {
    start_ns: u64,
    last_bytes: u64,
    pause_ms: u32,
    /// The last reading that was kept.
    kept: Option<(u64, u64)>,
    most_bytes: u64,
    /// Anonymous memory when the mappings were last read.
    mapped_bytes: u64,
    map_cost_ns: u64,
}

impl Watch {
    const SHORTEST_PAUSE_MS: u32 = 20;
    const LONGEST_PAUSE_MS: u32 = 1_000;
    /// While nothing changes.
    const IDLE_PAUSE_MS: u32 = 8_000;
    /// Less is not worth a look at the mappings.
    const LEAST_BYTES: u64 = 8 << 20;

    /// Begins now.
    pub fn new(time_ns: u64) -> Self {
        Self {
            start_ns: time_ns,
            last_bytes: 0,
            pause_ms: Self::SHORTEST_PAUSE_MS,
            kept: None,
            most_bytes: 0,
            mapped_bytes: 0,
            map_cost_ns: 0,
        }
    }

    /// How long to wait before the next reading.
    pub fn pause_ms(&self) -> u32 {
        self.pause_ms
    }

    /// Another file begins, which has no reading yet.
    pub fn begin_file(&mut self) {
        self.kept = None;
        self.mapped_bytes = 0;
    }

    /// Takes a reading.
    pub fn observe(&mut self, totals: &MemoryTotals) -> Due {
        let bytes = totals.anonymous_bytes;
        let elapsed_ns = totals.time_ns.saturating_sub(self.start_ns);
        let is_unchanged = is_near(bytes, self.last_bytes, 64);
        self.last_bytes = bytes;
        let usual = u32::try_from(elapsed_ns / 50_000_000).unwrap_or(u32::MAX);
        let usual = usual.clamp(Self::SHORTEST_PAUSE_MS, Self::LONGEST_PAUSE_MS);
        self.pause_ms = if is_unchanged {
            (self.pause_ms.saturating_mul(2)).clamp(usual, Self::IDLE_PAUSE_MS.min(usual * 16))
        } else {
            usual
        };
        let is_new_peak = bytes > self.most_bytes + self.most_bytes / 64;
        let has_grown = |part: u64| bytes > self.mapped_bytes + self.mapped_bytes / part;
        let is_worth_a_map = bytes >= Self::LEAST_BYTES
            && (has_grown(2) || is_unchanged && has_grown(16))
            && self.may_map(elapsed_ns);
        let is_due = self.kept.is_none_or(|(time_ns, kept_bytes)| {
            let since_ns = totals.time_ns.saturating_sub(time_ns);
            is_new_peak || !is_near(bytes, kept_bytes, 32) && since_ns >= elapsed_ns / 200
        });
        self.most_bytes = self.most_bytes.max(bytes);
        match (is_worth_a_map, is_due) {
            (true, _) => Due::Map,
            (false, true) => {
                self.kept = Some((totals.time_ns, bytes));
                Due::Totals
            }
            (false, false) => Due::Nothing,
        }
    }

    /// The mappings were read, at this cost.
    pub fn mapped(&mut self, totals: &MemoryTotals, cost_ns: u64) {
        self.mapped_bytes = totals.anonymous_bytes;
        self.kept = Some((totals.time_ns, totals.anonymous_bytes));
        self.map_cost_ns = self.map_cost_ns.saturating_add(cost_ns);
    }

    /// Whether reading the mappings has cost little enough: 20 ms, and a two-thousandth of the time beyond.
    fn may_map(&self, elapsed_ns: u64) -> bool {
        const ALLOWANCE_NS: u64 = 20_000_000;
        self.map_cost_ns <= ALLOWANCE_NS + elapsed_ns / 2_000
    }
}

/// Whether two figures differ by less than this part of the second, or by less than a quarter of a mebibyte.
fn is_near(a: u64, b: u64, part: u64) -> bool {
    a.abs_diff(b) <= (b / part).max(1 << 18)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MS: u64 = 1_000_000;

    fn at(time_ns: u64, anonymous_bytes: u64) -> MemoryTotals {
        MemoryTotals {
            time_ns,
            resident_bytes: anonymous_bytes,
            anonymous_bytes,
            peak_resident_bytes: 0,
        }
    }

    /// Runs a program whose memory follows `curve`; readings, maps, kept readings.
    fn run(length_ns: u64, curve: impl Fn(u64) -> u64) -> (u64, u64, u64) {
        let (mut watch, mut now_ns) = (Watch::new(0), 0);
        let (mut readings, mut maps, mut kept) = (0, 0, 0);
        while now_ns < length_ns {
            readings += 1;
            let totals = at(now_ns, curve(now_ns));
            match watch.observe(&totals) {
                Due::Nothing => {}
                Due::Totals => kept += 1,
                Due::Map => {
                    maps += 1;
                    watch.mapped(&totals, MS);
                }
            }
            now_ns += u64::from(watch.pause_ms()) * MS;
        }
        (readings, maps, kept)
    }

    #[test]
    fn a_second_is_read_often_and_a_day_rarely() {
        let growing = |now_ns: u64| 300 * MIB * now_ns / (1000 * MS);
        let (readings, maps, _) = run(1000 * MS, growing);
        assert!(readings >= 40 && maps >= 3, "{readings} {maps}");
        const DAY_NS: u64 = 86_400_000 * MS;
        // It goes up and down all day.
        let restless = |now_ns: u64| 100 * MIB + (now_ns / (700 * MS) % 7) * 10 * MIB;
        let (readings, maps, kept) = run(DAY_NS, restless);
        // A reading takes some 20 us: 90,000 are 2 s of a day.
        assert!(readings < 90_000, "{readings}");
        assert!(maps < 20 && kept < 3_000, "{maps} {kept}");
        let (readings, maps, kept) = run(DAY_NS, |_| 100 * MIB);
        assert!(
            readings < 12_000 && maps == 1 && kept <= 1,
            "{readings} {maps} {kept}"
        );
    }

    #[test]
    fn a_peak_that_lasts_has_its_mappings_read() {
        let plateau = |now_ns: u64| {
            if now_ns < 300 * MS {
                10 * MIB
            } else {
                400 * MIB
            }
        };
        let mut watch = Watch::new(0);
        let mut mapped = Vec::new();
        for step in 0..100 {
            let totals = at(step * 20 * MS, plateau(step * 20 * MS));
            if watch.observe(&totals) == Due::Map {
                watch.mapped(&totals, MS);
                mapped.push(totals.anonymous_bytes / MIB);
            }
        }
        assert_eq!(mapped, [10, 400]);
    }

    #[test]
    fn a_map_that_costs_much_is_not_read_again() {
        let mut watch = Watch::new(0);
        let totals = at(0, 100 * MIB);
        assert_eq!(watch.observe(&totals), Due::Map);
        watch.mapped(&totals, 50 * MS);
        let later = at(100 * MS, 1000 * MIB);
        assert_eq!(watch.observe(&later), Due::Totals);
        // 80 s later its cost is small.
        assert_eq!(watch.observe(&at(80_000 * MS, 1000 * MIB)), Due::Map);
    }
}
