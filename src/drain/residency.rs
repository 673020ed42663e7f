//! Reads the memory use of the process, when a reading is due; and tells which memory is the agent's own.

use allocsample_agent::os::{clock, memory};
use allocsample_record::{ChunkEncoder, FileMappingRecord, Mapped, MemoryMap, RecordKind};
use allocsample_residency::{Due, Source, Watch};

/// The readings of our own process.
#[derive(Clone, Debug)]
pub struct Residency {
    source: Source,
    watch: Watch,
    next_ns: u64,
    /// The agent's own mappings that the profile knows, by their places.
    own: Vec<(u64, u64)>,
}

impl Residency {
    /// The first reading is due at once.
    pub fn new() -> Self {
        // SAFETY: no arguments that could be wrong.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let now_ns = clock::monotonic_ns();
        Self {
            source: Source::own(u64::try_from(page_bytes).unwrap_or(4096)),
            watch: Watch::new(now_ns),
            next_ns: now_ns,
            own: vec![(0, 0); memory::MOST_OWN_RANGES],
        }
    }

    /// How long the thread may sleep before the next reading.
    pub fn patience_ms(&self) -> u32 {
        const NS_PER_MS: u64 = 1_000_000;
        let left_ns = self.next_ns.saturating_sub(clock::monotonic_ns());
        u32::try_from(left_ns / NS_PER_MS + 1).unwrap_or(u32::MAX)
    }

    /// Begins another file, which gets readings of its own.
    pub fn begin_file(&mut self) {
        self.watch.begin_file();
        self.next_ns = 0;
    }

    /// Writes which mappings the agent has made since the last time.
    pub fn write_own(&mut self, encoder: &mut ChunkEncoder) {
        let ranges = memory::own_ranges().zip(&mut self.own);
        for (now, known) in ranges.filter(|(now, known)| now != *known) {
            *known = now;
            let (start, bytes) = now;
            if bytes == 0 {
                continue;
            }
            let record = FileMappingRecord {
                mapped: Mapped::own(clock::monotonic_ns(), start, bytes),
                stack: 0,
            };
            encoder.words(RecordKind::FileMapping, &record.encode());
        }
    }

    /// Returns a reading for the profile, if one is due.
    pub fn look(&mut self) -> Option<MemoryMap> {
        let now_ns = clock::monotonic_ns();
        if now_ns < self.next_ns {
            return None;
        }
        let totals = self.source.totals(now_ns);
        let due = totals.map_or(Due::Nothing, |totals| self.watch.observe(&totals));
        self.next_ns = now_ns + u64::from(self.watch.pause_ms()) * 1_000_000;
        match due {
            Due::Nothing => None,
            Due::Totals => Some(MemoryMap {
                totals: totals?,
                ..MemoryMap::default()
            }),
            Due::Map => self.map(now_ns),
        }
    }

    /// Reads once more, whether a reading is due or not. The process waits for this at its end. It reads only
    /// mappings whose memory has changed since the last reading, within the budget of the watch.
    pub fn last_look(&mut self) -> Option<MemoryMap> {
        let now_ns = clock::monotonic_ns();
        let totals = self.source.totals_and_peak(now_ns)?;
        if self.watch.is_last_map_due(&totals)
            && let Some(map) = self.map(now_ns)
        {
            return Some(map);
        }
        Some(MemoryMap {
            totals,
            ..MemoryMap::default()
        })
    }

    fn map(&mut self, now_ns: u64) -> Option<MemoryMap> {
        let before_ns = clock::thread_ns();
        let map = self.source.map(now_ns);
        let cost_ns = clock::thread_ns().saturating_sub(before_ns);
        // A failed reading costs time, too.
        let totals = map.as_ref().map(|map| map.totals).unwrap_or_default();
        self.watch.mapped(&totals, cost_ns);
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_is_taken_when_it_is_due_and_at_the_end() {
        let mut residency = Residency::new();
        assert_eq!(residency.patience_ms(), 1);
        // The first reading is of everything. The next one is due some milliseconds later, which may have passed.
        let begin_ns = clock::monotonic_ns();
        let first = residency.look().unwrap();
        assert!(first.totals.resident_bytes > 0);
        assert!(residency.next_ns > begin_ns);
        residency.next_ns = clock::monotonic_ns() + 5_000_000_000;
        assert!((4_000..=5_001).contains(&residency.patience_ms()));
        assert!(residency.look().is_none());
        assert!(residency.last_look().unwrap().totals.resident_bytes > 0);
        // Another file has its own.
        residency.begin_file();
        assert_eq!(residency.patience_ms(), 1);
        assert!(residency.look().is_some());
    }
}
