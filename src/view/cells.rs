//! Samples added up by everything that the page can tell apart.
//!
//! A cell is what one site allocated of one kind, on one thread, in one bucket of time, that ended in one other bucket.
//! All figures of the page are sums of cells; over the whole time they are those of the report.

use std::collections::HashMap;

use allocsample_profile::{HeapId, Profile, Sample, SampleFlags};
use allocsample_report::{Totals, Weights};
use rustc_hash::FxHashMap;

use crate::sites::number;

/// As `died`: alive at the end.
pub(crate) const LIVE: u32 = 0xFFFF;
/// As `died`: nobody watched.
pub(crate) const UNKNOWN: u32 = 0xFFFE;

/// More cells than this make the page slow: the buckets of time become longer instead.
const MOST_CELLS: usize = 400_000;
const MOST_BUCKETS: u32 = 256;
const FEWEST_BUCKETS: u32 = 32;

/// What is told apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub site: u32,
    /// Index into [`Cells::kinds`].
    pub kind: u32,
    /// Index into the profile's threads.
    pub thread: u32,
    /// Bucket of the allocation.
    pub born: u32,
    /// Bucket of the free, or [`LIVE`], or [`UNKNOWN`].
    pub died: u32,
    /// Decade of the lifetime in nanoseconds; 15 for none.
    pub lifetime: u32,
    /// 1 survived, 0 died young, 2 no collection saw it.
    pub survived: u32,
}

/// Its figures.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sums {
    pub bytes: f64,
    pub variance: f64,
    pub objects: f64,
    pub samples: u32,
    /// Bytes that were alive at the peak.
    pub at_peak: f64,
}

/// What a block is: an object of a type, or so and so large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub name: String,
    pub is_type: bool,
}

/// All cells.
pub(crate) struct Cells {
    pub buckets: u32,
    pub bucket_ns: u64,
    pub kinds: Vec<Kind>,
    pub cells: Vec<(Key, Sums)>,
}

impl Cells {
    /// `of_sample` has the site of each sample.
    pub fn new(profile: &Profile, of_sample: &[u32], totals: &Totals) -> Self {
        let mut kinds = Kinds::default();
        let mut buckets = MOST_BUCKETS;
        loop {
            let most = match buckets <= FEWEST_BUCKETS {
                true => usize::MAX,
                false => MOST_CELLS,
            };
            let added = add_up(profile, of_sample, totals, &mut kinds, buckets, most);
            if let Some((bucket_ns, cells)) = added {
                let mut cells: Vec<_> = cells.into_iter().collect();
                cells.sort_by_key(|(key, _)| *key);
                return Self {
                    buckets,
                    bucket_ns,
                    kinds: kinds.kinds,
                    cells,
                };
            }
            buckets /= 2;
        }
    }
}

/// `None` if there are more cells than `most`.
fn add_up(
    profile: &Profile,
    of_sample: &[u32],
    totals: &Totals,
    kinds: &mut Kinds,
    buckets: u32,
    most: usize,
) -> Option<(u64, FxHashMap<Key, Sums>)> {
    let start_ns = profile.process.start_ns;
    let duration_ns = profile.process.end_ns.saturating_sub(start_ns);
    let bucket_ns = duration_ns / u64::from(buckets) + 1;
    let bucket = |time_ns: u64| {
        let index = time_ns.saturating_sub(start_ns) / bucket_ns;
        u32::try_from(index).unwrap_or(0).min(buckets - 1)
    };
    let threads: FxHashMap<_, u32> = profile.threads.keys().copied().zip(0..).collect();
    let peak_ns = start_ns.saturating_add(totals.peak.after_ns);
    let mut weights = Weights::of(profile);
    let mut cells: FxHashMap<Key, Sums> = FxHashMap::default();
    for (sample, &site) in profile.samples.iter().zip(of_sample) {
        if cells.len() > most {
            return None;
        }
        let is_tracked = !sample.flags.contains(SampleFlags::UNTRACKED);
        let key = Key {
            site,
            kind: kinds.of(profile, sample),
            thread: threads.get(&sample.thread).copied().unwrap_or(0),
            born: bucket(sample.time_ns),
            died: match sample.freed() {
                Some(freed) => bucket(freed.time_ns.max(sample.time_ns)),
                None if is_tracked => LIVE,
                None => UNKNOWN,
            },
            lifetime: sample.freed().map_or(15, |freed| {
                freed
                    .time_ns
                    .saturating_sub(sample.time_ns)
                    .checked_ilog10()
                    .unwrap_or(0)
                    .min(14)
            }),
            survived: match sample.outcome().and_then(|outcome| outcome.survived()) {
                Some(survived) => u32::from(survived),
                None => 2,
            },
        };
        let (bytes, objects) = weights.get(sample);
        let sums = cells.entry(key).or_default();
        sums.bytes += bytes.value();
        sums.variance += bytes.variance().unwrap_or(0.0);
        sums.objects += objects.value();
        sums.samples += 1;
        let is_at_peak = is_tracked
            && sample.time_ns <= peak_ns
            && sample.freed().is_none_or(|freed| freed.time_ns > peak_ns);
        if is_at_peak {
            sums.at_peak += bytes.value();
        }
    }
    Some((bucket_ns, cells))
}

/// Types in heaps that have any; otherwise powers of two of the size.
#[derive(Default)]
struct Kinds {
    kinds: Vec<Kind>,
    by_name: HashMap<(bool, String), u32>,
    /// By heap and number of the type, or by malloc and power of two.
    known: FxHashMap<(HeapId, u32), u32>,
}

impl Kinds {
    fn of(&mut self, profile: &Profile, sample: &Sample) -> u32 {
        let outcome = sample.outcome();
        let key = match &outcome {
            Some(outcome) => (sample.heap, outcome.type_id),
            None => (HeapId::MALLOC, power_of_two(sample.size).trailing_zeros()),
        };
        if let Some(&kind) = self.known.get(&key) {
            return kind;
        }
        let (is_type, name) = match &outcome {
            Some(outcome) => {
                let name = profile.vm.type_name(sample.heap, outcome);
                (true, name.unwrap_or("(unknown)").to_owned())
            }
            None => (false, size_class(sample.size)),
        };
        let next = number(self.kinds.len());
        let kind = *self
            .by_name
            .entry((is_type, name))
            .or_insert_with_key(|(is_type, name)| {
                self.kinds.push(Kind {
                    name: name.clone(),
                    is_type: *is_type,
                });
                next
            });
        self.known.insert(key, kind);
        kind
    }
}

/// The class is named after it; 2^63 stands for what is larger.
fn power_of_two(size: u64) -> u64 {
    size.max(16).checked_next_power_of_two().unwrap_or(1 << 63)
}

/// `33-64 B`: up to a power of two, from just above the one before.
fn size_class(size: u64) -> String {
    let to = power_of_two(size);
    if to <= 16 {
        return "0-16 B".to_owned();
    }
    let (unit, name) = match to {
        0..=1024 => (1, "B"),
        1025..=0x10_0000 => (1024, "KiB"),
        0x10_0001..=0x4000_0000 => (1 << 20, "MiB"),
        _ => (1 << 30, "GiB"),
    };
    if unit == 1 {
        format!("{}-{to} B", to / 2 + 1)
    } else {
        format!("to {} {name}", to / unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_hold_what_they_say() {
        for (size, class) in [
            (0, "0-16 B"),
            (16, "0-16 B"),
            (17, "17-32 B"),
            (64, "33-64 B"),
            (1024, "513-1024 B"),
            (1025, "to 2 KiB"),
            (3000, "to 4 KiB"),
            (1 << 20, "to 1024 KiB"),
            ((1 << 20) + 1, "to 2 MiB"),
            (1 << 63, "to 8589934592 GiB"),
        ] {
            assert_eq!(size_class(size), class);
        }
    }
}
