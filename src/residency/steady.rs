//! A reading of a process that runs, and how much it changed meanwhile.
//!
//! The kernel lists the mappings one after the other, and the process goes on: memory that moves from one mapping to another
//! may be counted twice or not at all. Nothing is stopped for a reading. It is taken twice instead, and again while the two
//! differ by much. What differs between them bounds what may be wrong with the second one, if the process changed at an even
//! pace.

use std::collections::HashMap;

use allocsample_record::MemoryMap;

use crate::Source;

/// A reading, and its uncertainty.
#[derive(Clone, Debug, PartialEq)]
pub struct Steady {
    /// The last reading.
    pub map: MemoryMap,
    /// What differs from the one before, mapping by mapping, as a part of what is resident: 0 if nothing does.
    pub difference: f64,
}

impl Steady {
    /// Reads until two readings in succession differ by less than a hundredth, or five times. `None`: the process is gone, or
    /// the kernel refuses. `clock` is asked before each reading.
    pub fn read(source: &Source, clock: impl Fn() -> u64) -> Option<Self> {
        const MOST_READINGS: u32 = 5;
        const ENOUGH: f64 = 0.01;
        let mut before = source.map(clock())?;
        let mut least = f64::INFINITY;
        for _ in 1..MOST_READINGS {
            let map = source.map(clock())?;
            let difference = difference(&before, &map);
            least = difference;
            before = map;
            if difference < ENOUGH {
                break;
            }
        }
        Some(Self {
            map: before,
            difference: least,
        })
    }
}

/// The sum of what differs, as a part of what is resident in the second.
fn difference(a: &MemoryMap, b: &MemoryMap) -> f64 {
    let key = |map: &MemoryMap, index: usize| {
        let it = &map.mappings[index];
        (it.start, it.flags, map.name(it).to_vec())
    };
    let mut left: HashMap<_, u64> = (0..a.mappings.len())
        .map(|index| (key(a, index), a.mappings[index].resident_bytes))
        .collect();
    let mut differs = 0_u64;
    for (index, it) in b.mappings.iter().enumerate() {
        let before = left.remove(&key(b, index)).unwrap_or(0);
        differs += it.resident_bytes.abs_diff(before);
    }
    differs += left.into_values().sum::<u64>();
    differs as f64 / b.totals.resident_bytes.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_record::{MemoryMapping, MemoryTotals};

    fn map(resident: &[(u64, u64)]) -> MemoryMap {
        let mapping = |&(start, resident_bytes): &(u64, u64)| MemoryMapping {
            start,
            resident_bytes,
            ..MemoryMapping::default()
        };
        MemoryMap {
            totals: MemoryTotals {
                resident_bytes: resident.iter().map(|(_, bytes)| bytes).sum(),
                ..MemoryTotals::default()
            },
            names: vec![Vec::new()],
            mappings: resident.iter().map(mapping).collect(),
            ..MemoryMap::default()
        }
    }

    #[test]
    fn what_came_what_went_and_what_changed_differs() {
        let before = map(&[(1, 100), (2, 50), (3, 10)]);
        assert_eq!(difference(&before, &before), 0.0);
        let after = map(&[(1, 70), (2, 50), (4, 80)]);
        assert_eq!(difference(&before, &after), (30.0 + 10.0 + 80.0) / 200.0);
        // The sum is the same, and yet memory has moved.
        let moved = map(&[(1, 50), (2, 100), (3, 10)]);
        assert_eq!(difference(&before, &moved), 100.0 / 160.0);
    }

    #[test]
    fn this_process_hardly_changes_between_two_readings() {
        let steady = Steady::read(&Source::own(4096), || 7).expect("smaps");
        // Other tests of this process allocate meanwhile.
        assert!(steady.difference < 0.5, "{}", steady.difference);
        assert_eq!(steady.map.totals.time_ns, 7);
        assert_eq!(Steady::read(&Source::of(u32::MAX, 4096), || 0), None);
    }
}
