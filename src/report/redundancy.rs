//! How much of what was allocated holds the same as something else, where a virtual machine hashes its objects.
//!
//! Of a content that N objects have, each of which is sampled with the probability p, samples show n. The objects beyond
//! the first of them, each with its weight 1/p, stand for (n - 1)/p objects where n > 0, whose mean is
//!
//! ```text
//! N - (1 - (1 - p)^N) / p  <=  N - 1        (equal for p = 1; the fraction is 1 + (1 - p) + ... + (1 - p)^(N - 1))
//! ```
//! So what is called repeated is never overstated on average, and exact at interval 1. How alike two objects are is unbiased
//! at every interval, but for the ratio: different allocations are sampled independently, so a pair is with p p'.

use std::collections::HashMap;

use allocsample_profile::{HeapId, Profile, Weights};
use serde_json::{Value, json};

use crate::breakdown::{Breakdown, Parts};
use crate::frames::Frames;
use crate::selection::{Selection, Window};
use crate::sums::Sums;
use crate::table::By;

/// Of a group of objects that were sampled and hashed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Redundancy {
    /// What the group is called; empty for all.
    pub name: String,
    /// Samples with a hash.
    pub hashed: u64,
    /// Different contents among them. Objects of two types are never the same.
    pub distinct: u64,
    /// Bytes that they stand for.
    pub bytes: f64,
    /// Bytes of all but one object of each content: what it would save to share them, at least.
    pub repeated_bytes: f64,
    /// How probable two objects of the group, drawn at random, are the same; `None` if there is one.
    pub alike: Option<f64>,
}

/// Of all that is selected, then of types and sites, those that repeat most first.
pub type Answer = Breakdown<Redundancy>;

/// What an object is, and holds.
type Content = (HeapId, u32, u64);

/// A sample with a hash.
struct Hashed {
    index: usize,
    content: Content,
    bytes: f64,
    objects: f64,
}

impl Answer {
    /// Looks at what is selected; at most `top` types and sites.
    pub fn of(profile: &Profile, frames: &Frames<'_>, selection: &Selection, top: usize) -> Self {
        let window = Window::of(profile, selection, None);
        let selected = Sums::of(profile, frames, selection, window, true, |_| 0).of_sample;
        let mut hashed = hashed(profile);
        hashed.retain(|it| selected[it.index] != Sums::NONE);
        let mut all = collect(1, hashed.iter().map(|it| (it, 0)));
        let grouped = |by| {
            let parts = Parts::of(profile, frames, selection, by, usize::MAX);
            let of_parts = hashed
                .iter()
                .map(|it| (it, parts.of_sample[it.index] as usize));
            let mut groups = collect(parts.names.len(), of_parts);
            for (group, name) in groups.iter_mut().zip(parts.names) {
                group.name = name;
            }
            groups.retain(|group| group.hashed > 0);
            groups.sort_by(|a, b| b.repeated_bytes.total_cmp(&a.repeated_bytes));
            groups.truncate(top);
            groups
        };
        let is_empty = hashed.is_empty();
        let grouped = |by| if is_empty { Vec::new() } else { grouped(by) };
        Self {
            all: all.remove(0),
            types: grouped(By::Type),
            sites: grouped(By::Site),
        }
    }

    /// For scripts.
    pub fn to_json(&self) -> Value {
        self.to_json_with("allocsample-redundancy/1", Redundancy::to_json)
    }
}

impl Redundancy {
    /// Different contents for each object that was looked at; `None` if none was.
    pub fn distinct_share(&self) -> Option<f64> {
        (self.hashed > 0).then(|| self.distinct as f64 / self.hashed as f64)
    }

    fn to_json(&self, key: &str) -> Value {
        json!({
            key: self.name,
            "hashed_samples": self.hashed,
            "distinct_samples": self.distinct,
            "distinct_share": self.distinct_share(),
            "hashed_bytes": self.bytes,
            "repeated_bytes_at_least": self.repeated_bytes,
            "alike": self.alike,
        })
    }
}

/// In the order of the samples, so that sums do not depend on a map's order.
fn hashed(profile: &Profile) -> Vec<Hashed> {
    let mut weights = Weights::of(profile);
    let hashes = profile.content_hashes.iter();
    let mut hashed: Vec<Hashed> = hashes
        .filter_map(|(&index, &hash)| {
            let sample = profile.samples.get(index).filter(|it| !it.is_carried())?;
            let type_id = sample.outcome().map_or(0, |outcome| outcome.type_id);
            let (bytes, objects) = weights.get(&sample);
            Some(Hashed {
                index,
                content: (sample.heap, type_id, hash),
                bytes: bytes.value(),
                objects: objects.value(),
            })
        })
        .collect();
    hashed.sort_by_key(|it| it.index);
    hashed
}

/// Adds up `count` groups; each sample comes with the group that it is in.
fn collect<'a>(
    count: usize,
    samples: impl Iterator<Item = (&'a Hashed, usize)>,
) -> Vec<Redundancy> {
    /// Of a group, or of a content of it: objects so far, and pairs of them that are two different ones.
    #[derive(Clone, Copy, Default)]
    struct Objects {
        objects: f64,
        pairs: f64,
    }
    impl Objects {
        fn add(&mut self, weight: f64) -> f64 {
            let pairs = 2.0 * weight * self.objects;
            self.objects += weight;
            self.pairs += pairs;
            pairs
        }
    }
    let mut groups = vec![Redundancy::default(); count];
    let mut all = vec![Objects::default(); count];
    let mut alike = vec![0.0; count];
    let mut contents: HashMap<(usize, Content), Objects> = HashMap::new();
    for (sample, at) in samples {
        let Some(group) = groups.get_mut(at) else {
            continue;
        };
        let same = contents.entry((at, sample.content)).or_default();
        group.hashed += 1;
        group.bytes += sample.bytes;
        if same.objects == 0.0 {
            group.distinct += 1;
        } else {
            group.repeated_bytes += sample.bytes;
        }
        alike[at] += same.add(sample.objects);
        all[at].add(sample.objects);
    }
    for ((group, all), alike) in groups.iter_mut().zip(all).zip(alike) {
        group.alike = (group.hashed > 1).then(|| alike / all.pairs);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_sampling::Random;

    fn objects(contents: &[u64], probability: f64, random: &mut Random) -> Vec<Hashed> {
        let mut all = Vec::new();
        for (index, &hash) in contents.iter().enumerate() {
            if random.unit() < probability {
                all.push(Hashed {
                    index,
                    content: (HeapId(1), 1, hash),
                    bytes: 16.0 / probability,
                    objects: 1.0 / probability,
                });
            }
        }
        all
    }

    /// 900 objects of nine contents, and a hundred that are each alone.
    fn population() -> Vec<u64> {
        let many = (0..900).map(|at| 1 + at % 9);
        many.chain((0..100).map(|at| 1000 + at)).collect()
    }

    #[test]
    fn what_is_seen_whole_is_exact() {
        let all = objects(&population(), 1.0, &mut Random::from_seed(1));
        let of = &collect(1, all.iter().map(|it| (it, 0)))[0];
        assert_eq!((of.hashed, of.distinct), (1000, 109));
        assert_eq!(of.distinct_share(), Some(0.109));
        assert_eq!(of.bytes, 16_000.0);
        assert_eq!(of.repeated_bytes, 891.0 * 16.0);
        // 9 times 100 * 99 ordered pairs of 1000 * 999.
        assert!((of.alike.unwrap() - 89_100.0 / 999_000.0).abs() < 1e-12);
    }

    #[test]
    fn sampling_never_overstates_and_does_not_change_how_alike_they_are() {
        let mut random = Random::from_seed(2);
        let (contents, turns) = (population(), 4000.0);
        for probability in [0.02, 0.1, 0.5] {
            let (mut repeated, mut alike, mut expected) = (0.0, 0.0, 0.0);
            for _ in 0..turns as u32 {
                let all = objects(&contents, probability, &mut random);
                let of = &collect(1, all.iter().map(|it| (it, 0)))[0];
                repeated += of.repeated_bytes / turns;
                alike += of.alike.unwrap_or(0.0) / turns;
            }
            for (count, objects) in [(9.0, 100), (100.0, 1)] {
                let others = (1.0 - (1.0_f64 - probability).powi(objects)) / probability;
                expected += count * 16.0 * (f64::from(objects) - others);
            }
            assert!(
                (repeated / expected - 1.0).abs() < 0.02,
                "{repeated} {expected}"
            );
            assert!(repeated < 891.0 * 16.0);
            assert!((alike - 0.0892).abs() < 0.004, "{alike} at {probability}");
        }
    }

    #[test]
    fn objects_of_two_types_are_not_the_same() {
        let hashed = |type_id| Hashed {
            index: 0,
            content: (HeapId(1), type_id, 7),
            bytes: 8.0,
            objects: 1.0,
        };
        let two = [hashed(1), hashed(2)];
        let of = &collect(1, two.iter().map(|it| (it, 0)))[0];
        assert_eq!(
            (of.distinct, of.repeated_bytes, of.alike),
            (2, 0.0, Some(0.0))
        );
    }
}
