//! When the memory of a process is to be read, and how closely.
//!
//! A program that runs for a second is read every 20 ms; the pause grows with the time that the watch has lasted, and
//! while nothing changes it doubles, within limits. The mappings are read where the memory has grown by a quarter since
//! they were largest, or stays as it is after it changed by a sixteenth, or grew by a 64th while little of the budget is used. This
//! budget of processor time bounds these readings. The more of it is used, the more the memory has to grow, and the last quarter is
//! kept for memory that stays as it is: otherwise a program that grows for long would use the budget up before its peak. Memory that
//! has grown by a quarter and stays as it is may exceed the budget, as long as a reading is cheap: so few of these readings are
//! possible as the memory can grow by a quarter.

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

/// What reading the mappings may take in any process.
const ALLOWANCE_NS: u64 = 20_000_000;

/// The state of a watch over one process.
#[derive(Clone, Debug)]
pub struct Watch {
    start_ns: u64,
    last_bytes: u64,
    /// Since when the memory has been about as large as now, and how large it was then.
    still: (u64, u64),
    pause_ms: u32,
    /// The last reading that was kept.
    kept: Option<(u64, u64)>,
    most_bytes: u64,
    /// When the mappings were last read, and the anonymous memory then.
    mapped: (u64, u64),
    /// The largest anonymous memory when they were read.
    most_mapped_bytes: u64,
    /// The same of all resident memory: that of files may grow, too.
    most_mapped_resident_bytes: u64,
    map_cost_ns: u64,
    last_map_cost_ns: u64,
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
            still: (time_ns, 0),
            pause_ms: Self::SHORTEST_PAUSE_MS,
            kept: None,
            most_bytes: 0,
            mapped: (0, 0),
            most_mapped_bytes: 0,
            most_mapped_resident_bytes: 0,
            map_cost_ns: 0,
            last_map_cost_ns: 0,
        }
    }

    /// How long to wait before the next reading.
    pub fn pause_ms(&self) -> u32 {
        self.pause_ms
    }

    /// Another file begins, which has no reading yet.
    pub fn begin_file(&mut self) {
        self.kept = None;
        self.mapped = (0, 0);
        self.most_mapped_bytes = 0;
        self.most_mapped_resident_bytes = 0;
    }

    /// Takes a reading.
    pub fn observe(&mut self, totals: &MemoryTotals) -> Due {
        let bytes = totals.anonymous_bytes;
        let elapsed_ns = totals.time_ns.saturating_sub(self.start_ns);
        let is_unchanged = is_near(bytes, self.last_bytes, 256);
        self.last_bytes = bytes;
        let elapsed_ms = u32::try_from(elapsed_ns / 1_000_000).unwrap_or(u32::MAX);
        let usual = (elapsed_ms / 160).clamp(Self::SHORTEST_PAUSE_MS, Self::LONGEST_PAUSE_MS);
        self.pause_ms = if is_unchanged {
            // A program that waits for its first second may still grow and end within 200 ms.
            let idle = (usual * 4).saturating_add(elapsed_ms / 100);
            (self.pause_ms.saturating_mul(2)).clamp(usual, Self::IDLE_PAUSE_MS.min(idle))
        } else {
            usual
        };
        let is_new_peak = bytes > self.most_bytes + self.most_bytes / 64;
        if !is_near(bytes, self.still.1, 256) {
            self.still = (totals.time_ns, bytes);
        }
        let is_worth_a_map = bytes >= Self::LEAST_BYTES && self.is_worth_a_map(totals, elapsed_ns)
            || self.has_more_resident(totals, elapsed_ns);
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

    /// Whether so much more of files and shared memory is resident that the mappings are worth a look.
    fn has_more_resident(&self, totals: &MemoryTotals, elapsed_ns: u64) -> bool {
        let before = self.most_mapped_resident_bytes;
        let part = if self.is_still(totals) { 16 } else { 2 };
        totals.resident_bytes >= before + (before / part).max(Self::LEAST_BYTES / 4)
            && totals.resident_bytes >= Self::LEAST_BYTES
            && self.quarters_used(elapsed_ns) < 2
    }

    /// Whether anonymous memory has been as large as now for a while.
    fn is_still(&self, totals: &MemoryTotals) -> bool {
        const STILL_NS: u64 = 50_000_000;
        totals.time_ns.saturating_sub(self.still.0) >= STILL_NS
    }

    fn is_worth_a_map(&self, totals: &MemoryTotals, elapsed_ns: u64) -> bool {
        let bytes = totals.anonymous_bytes;
        let has_grown_by = |part| bytes > self.most_mapped_bytes + self.most_mapped_bytes / part;
        let (mapped_ns, mapped_bytes) = self.mapped;
        // Memory that goes up and down all day would fill the profile with lists.
        let has_shrunk = !is_near(bytes, mapped_bytes, 16)
            && totals.time_ns.saturating_sub(mapped_ns) >= elapsed_ns / 8;
        let is_still = self.is_still(totals);
        match self.quarters_used(elapsed_ns) {
            0 if is_still => has_grown_by(64) || has_shrunk,
            1 if is_still => has_grown_by(16) || has_shrunk,
            0 => has_grown_by(4),
            1 => has_grown_by(2),
            2 => has_grown_by(if is_still { 4 } else { 1 }),
            3 => is_still && has_grown_by(4),
            _ => is_still && has_grown_by(4) && self.is_map_cheap(),
        }
    }

    fn is_map_cheap(&self) -> bool {
        self.last_map_cost_ns <= ALLOWANCE_NS
    }

    /// The mappings were read, at this cost.
    pub fn mapped(&mut self, totals: &MemoryTotals, cost_ns: u64) {
        self.mapped = (totals.time_ns, totals.anonymous_bytes);
        self.most_mapped_bytes = self.most_mapped_bytes.max(totals.anonymous_bytes);
        self.most_mapped_resident_bytes =
            (self.most_mapped_resident_bytes).max(totals.resident_bytes);
        self.kept = Some((totals.time_ns, totals.anonymous_bytes));
        self.map_cost_ns = self.map_cost_ns.saturating_add(cost_ns);
        self.last_map_cost_ns = cost_ns;
    }

    /// At the end of the process: whether the last list of mappings is of another time, and one more may be read. It may exceed
    /// the budget, as long as a reading is cheap, or short beside the time that the program ran: it is the only one of its kind.
    /// A program of many libraries otherwise uses the budget up while it loads them, and has no list of its data. Where most of
    /// the memory is younger than the last list, the list says little of it, and another may cost more.
    pub fn is_last_map_due(&self, totals: &MemoryTotals) -> bool {
        const MOST_NS: u64 = 5 * ALLOWANCE_NS;
        let bytes = totals.anonymous_bytes;
        let elapsed_ns = totals.time_ns.saturating_sub(self.start_ns);
        let quarters = self.quarters_used(elapsed_ns);
        let part = if quarters < 2 { 64 } else { 16 };
        let has_changed = bytes >= Self::LEAST_BYTES && !is_near(bytes, self.mapped.1, part);
        let is_mostly_new = bytes / 2 > self.mapped.1;
        (has_changed || self.has_more_resident(totals, elapsed_ns))
            && (quarters < 4
                || self.is_map_cheap()
                || is_mostly_new && self.last_map_cost_ns <= MOST_NS
                || self.last_map_cost_ns <= elapsed_ns / 200)
    }

    /// How many quarters of the budget for the mappings are used when they are read once more, at the cost of the last time.
    /// The budget is 20 ms, and a two-thousandth of the time beyond.
    fn quarters_used(&self, elapsed_ns: u64) -> u64 {
        let cost_ns = self.map_cost_ns.saturating_add(self.last_map_cost_ns);
        cost_ns.saturating_mul(4) / (ALLOWANCE_NS + elapsed_ns / 2_000)
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
        assert!(maps < 100 && kept < 3_000, "{maps} {kept}");
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

    /// The anonymous memory in the last list of mappings of a program that grows for this long and ends 200 ms later.
    fn last_map(idle_ms: u64, growth_ms: u64, cost_ns: u64) -> u64 {
        const PEAK: u64 = 300 * MIB;
        let end_ms = idle_ms + growth_ms + 200;
        let (mut watch, mut now_ms, mut last) = (Watch::new(0), 0, 0);
        while now_ms < end_ms {
            let grown = now_ms.saturating_sub(idle_ms).min(growth_ms);
            let totals = at(now_ms * MS, 5 * MIB + PEAK * grown / growth_ms);
            if watch.observe(&totals) == Due::Map {
                watch.mapped(&totals, cost_ns);
                last = totals.anonymous_bytes;
            }
            now_ms += u64::from(watch.pause_ms());
        }
        last
    }

    #[test]
    fn a_program_that_ends_200_ms_after_its_peak_has_its_mappings_read() {
        for idle_ms in [0, 100, 500, 1_000, 2_000] {
            for growth_ms in [1, 50, 300, 1_000, 3_000, 10_000] {
                for cost_ns in [MS / 2, MS, 4 * MS] {
                    let last = last_map(idle_ms, growth_ms, cost_ns);
                    assert!(last >= 244 * MIB, "{idle_ms} {growth_ms} {cost_ns}: {last}");
                }
            }
        }
    }

    /// Python programs import for seconds before they load their data.
    #[test]
    fn memory_that_grows_late_has_its_mappings_read() {
        for import_ms in [300, 1_000, 3_000, 10_000] {
            for cost_ns in [MS, 2 * MS, 4 * MS, 8 * MS] {
                for data_mib in [40, 100, 400] {
                    let curve = |now_ms: u64| match now_ms.checked_sub(import_ms) {
                        None => 5 * MIB + 50 * MIB * now_ms / import_ms,
                        Some(since_ms) => 55 * MIB + data_mib * MIB * since_ms.min(100) / 100,
                    };
                    let (mut watch, mut now_ms, mut last) = (Watch::new(0), 0, 0);
                    while now_ms < import_ms + 100 + 700 {
                        let files = 60 * MIB * now_ms.min(import_ms) / import_ms;
                        let mut totals = at(now_ms * MS, curve(now_ms));
                        totals.resident_bytes += files;
                        if watch.observe(&totals) == Due::Map {
                            watch.mapped(&totals, cost_ns);
                            last = totals.anonymous_bytes;
                        }
                        now_ms += u64::from(watch.pause_ms());
                    }
                    let peak = (55 + data_mib) * MIB;
                    let said = format!("{import_ms} ms, {cost_ns} ns, {data_mib} MiB: {last}");
                    assert!(last >= peak - peak / 5, "{said}");
                }
            }
        }
    }

    #[test]
    fn the_end_has_a_list_of_mappings_unless_nothing_has_changed() {
        let mut watch = Watch::new(0);
        let totals = at(0, 100 * MIB);
        assert_eq!(watch.observe(&totals), Due::Map);
        watch.mapped(&totals, MS);
        assert!(!watch.is_last_map_due(&at(MS, 101 * MIB)));
        assert!(watch.is_last_map_due(&at(MS, 50 * MIB)));
        assert!(!watch.is_last_map_due(&at(MS, MIB)));
        // Beyond the budget one more reading is cheap, or it is not taken.
        for _ in 0..10 {
            watch.mapped(&totals, 15 * MS);
        }
        assert!(watch.is_last_map_due(&at(MS, 107 * MIB)));
        assert!(!watch.is_last_map_due(&at(MS, 106 * MIB)));
        watch.mapped(&totals, 50 * MS);
        assert!(!watch.is_last_map_due(&at(MS, 50 * MIB)));
        // A list that knows less than half of the memory says little.
        assert!(!watch.is_last_map_due(&at(MS, 200 * MIB)));
        assert!(watch.is_last_map_due(&at(MS, 202 * MIB)));
        watch.mapped(&totals, 101 * MS);
        assert!(!watch.is_last_map_due(&at(MS, 202 * MIB)));
        watch.mapped(&totals, 50 * MS);
        // Half a percent of a run is short.
        assert!(!watch.is_last_map_due(&at(9_000 * MS, 50 * MIB)));
        assert!(watch.is_last_map_due(&at(10_000 * MS, 50 * MIB)));
    }

    /// A list that was made while a program grew may be short of what it touched last.
    #[test]
    fn a_little_that_comes_after_a_list_is_in_another_list() {
        for (cost_ns, is_listed) in [(MS, true), (2 * MS, true), (3 * MS, false)] {
            let mut watch = Watch::new(0);
            let totals = at(0, 50 * MIB);
            assert_eq!(watch.observe(&totals), Due::Map);
            watch.mapped(&totals, cost_ns);
            assert_eq!(watch.observe(&at(20 * MS, 52 * MIB)), Due::Totals);
            let later = watch.observe(&at(100 * MS, 52 * MIB));
            assert_eq!(later == Due::Map, is_listed, "{cost_ns}");
        }
        let mut watch = Watch::new(0);
        watch.mapped(&at(0, 50 * MIB), MS);
        assert!(watch.is_last_map_due(&at(20 * MS, 52 * MIB)));
        assert!(!watch.is_last_map_due(&at(20 * MS, 50 * MIB + MIB / 2)));
    }

    #[test]
    fn files_that_grow_have_the_mappings_read_too() {
        let mut watch = Watch::new(0);
        let mut maps = 0;
        for step in 0..500 {
            let totals = MemoryTotals {
                resident_bytes: 20 * MIB + step * MIB,
                ..at(step * 20 * MS, 4 * MIB)
            };
            if watch.observe(&totals) == Due::Map {
                watch.mapped(&totals, MS / 10);
                maps += 1;
            }
        }
        // Each time that they have grown by a sixteenth: 20 to 520 MiB are 54 such steps.
        assert!((20..=60).contains(&maps), "{maps}");
    }

    #[test]
    fn a_map_that_costs_much_is_not_read_again() {
        let mut watch = Watch::new(0);
        let totals = at(0, 100 * MIB);
        assert_eq!(watch.observe(&totals), Due::Map);
        watch.mapped(&totals, 50 * MS);
        let later = at(100 * MS, 1000 * MIB);
        assert_eq!(watch.observe(&later), Due::Totals);
        // 400 s later two such are small.
        assert_eq!(watch.observe(&at(400_000 * MS, 1000 * MIB)), Due::Map);
    }
}
