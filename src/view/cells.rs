//! Samples added up by everything that the page can tell apart.
//!
//! A cell is what one site allocated of one kind, on one thread, in one bucket of time, that ended in one other bucket.
//! All figures of the page are sums of cells; over the whole time they are those of the report.

use std::collections::HashMap;

use allocsample_profile::{HeapId, Profile, Sample, SampleFlags};
use allocsample_report::{Halves, Numbering, Totals, Weights};
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
    keys: Vec<Key>,
    /// For each of `keys`.
    sums: Vec<Sums>,
    /// Indices of both, sorted by the keys.
    order: Vec<u32>,
}

impl Cells {
    /// `of_sample` has the site of each sample.
    pub fn new(profile: &Profile, of_sample: &[u32], totals: &Totals) -> Self {
        let start_ns = profile.process.start_ns;
        let duration_ns = profile.process.end_ns.saturating_sub(start_ns);
        let mut kinds = Kinds::default();
        let mut sums = BySum::new(duration_ns);
        let threads: FxHashMap<_, u32> = profile.threads.keys().copied().zip(0..).collect();
        let mut halves = Halves::of(profile);
        let mut weights = Weights::of(profile);
        for (sample, &site) in profile.samples.iter().zip(of_sample) {
            let is_tracked = !sample.flags.contains(SampleFlags::UNTRACKED);
            let bucket = |time_ns: u64| sums.bucket(time_ns.saturating_sub(start_ns));
            let key = Key {
                site,
                kind: kinds.of(profile, &sample),
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
            let (bytes, objects) = weights.get(&sample);
            let sample = Sums {
                bytes: bytes.value(),
                variance: bytes.variance().unwrap_or(0.0),
                objects: objects.value(),
                samples: 1,
                at_peak: halves.at(&sample, &totals.peak.moments).value(),
            };
            sums.add(key, &sample);
            if sums.len() > MOST_CELLS && sums.buckets > FEWEST_BUCKETS {
                sums = sums.with_longer_buckets();
            }
        }
        let keys = sums.keys.into_values();
        let mut order: Vec<u32> = (0..number(keys.len())).collect();
        order.sort_unstable_by_key(|&cell| keys[cell as usize]);
        Self {
            buckets: sums.buckets,
            bucket_ns: sums.bucket_ns,
            kinds: kinds.kinds,
            keys,
            sums: sums.sums,
            order,
        }
    }

    /// All of them, sorted by their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Sums)> + Clone {
        let cells = self.order.iter().map(|&cell| cell as usize);
        cells.map(|cell| (&self.keys[cell], &self.sums[cell]))
    }
}

/// Sums while they are added up.
struct BySum {
    buckets: u32,
    bucket_ns: u64,
    keys: Numbering<Key>,
    /// By number of the key.
    sums: Vec<Sums>,
}

impl BySum {
    fn new(duration_ns: u64) -> Self {
        Self {
            buckets: MOST_BUCKETS,
            bucket_ns: duration_ns / u64::from(MOST_BUCKETS) + 1,
            keys: Numbering::default(),
            sums: Vec::new(),
        }
    }

    fn len(&self) -> usize {
        self.sums.len()
    }

    fn bucket(&self, after_ns: u64) -> u32 {
        let index = u32::try_from(after_ns / self.bucket_ns);
        index.unwrap_or(u32::MAX).min(self.buckets - 1)
    }

    fn add(&mut self, key: Key, more: &Sums) {
        let number = self.keys.number(key) as usize;
        if number == self.sums.len() {
            self.sums.push(Sums::default());
        }
        let sums = &mut self.sums[number];
        sums.bytes += more.bytes;
        sums.variance += more.variance;
        sums.objects += more.objects;
        sums.samples += more.samples;
        sums.at_peak += more.at_peak;
    }

    /// Two buckets become one, and the cells of both.
    fn with_longer_buckets(self) -> Self {
        let mut longer = Self {
            buckets: self.buckets / 2,
            bucket_ns: self.bucket_ns * 2,
            keys: Numbering::default(),
            sums: Vec::new(),
        };
        for (key, sums) in self.keys.values().iter().zip(&self.sums) {
            let died = match key.died {
                LIVE | UNKNOWN => key.died,
                bucket => bucket / 2,
            };
            let born = key.born / 2;
            longer.add(Key { born, died, ..*key }, sums);
        }
        longer
    }
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

    #[test]
    fn longer_buckets_have_the_sums_of_what_was_in_them() {
        let mut random = allocsample_sampling::Random::from_seed(3);
        let duration_ns = 1 << 40;
        let mut sums = BySum::new(duration_ns);
        let mut added: Vec<(Key, Sums, u64, u64)> = Vec::new();
        for _ in 0..3000 {
            let (born_ns, died_ns) = (random.below(duration_ns), random.below(duration_ns));
            let key = Key {
                site: random.below(3) as u32,
                kind: 0,
                thread: 0,
                born: sums.bucket(born_ns),
                died: match random.below(3) {
                    0 => LIVE,
                    1 => UNKNOWN,
                    _ => sums.bucket(died_ns),
                },
                lifetime: 0,
                survived: 2,
            };
            let more = Sums {
                bytes: random.below(100) as f64,
                samples: 1,
                ..Sums::default()
            };
            sums.add(key, &more);
            added.push((key, more, born_ns, died_ns));
        }
        while sums.buckets > 4 {
            sums = sums.with_longer_buckets();
            let mut expected: HashMap<Key, (f64, u32)> = HashMap::new();
            for (key, more, born_ns, died_ns) in &added {
                let born = sums.bucket(*born_ns);
                let died = match key.died {
                    LIVE | UNKNOWN => key.died,
                    _ => sums.bucket(*died_ns),
                };
                let known = expected.entry(Key { born, died, ..*key }).or_default();
                *known = (known.0 + more.bytes, known.1 + 1);
            }
            assert_eq!(sums.len(), expected.len());
            for (key, sums) in sums.keys.values().iter().zip(&sums.sums) {
                assert_eq!(expected[key], (sums.bytes, sums.samples));
            }
        }
    }
}
