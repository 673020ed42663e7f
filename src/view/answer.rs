//! The answer that the page starts with: how much is held, how fast that grows, and how few sites explain it.

use allocsample_leaks::Findings;
use allocsample_profile::{Held, Profile};
use allocsample_report::{Estimate, Frames, Halves, Paths, Totals, Weights, units};
use serde_json::{Value, json};

use crate::groups::Groups;

/// Of the bytes held, the share that the named sites explain.
const EXPLAINED: f64 = 0.8;
/// If so many sites explain less, their number is no answer.
const MOST_SITES: usize = 100;

/// The page's name of the measure.
pub(crate) fn measure(held: Held) -> &'static str {
    match held {
        Held::AtEnd => "live",
        Held::AtPeak => "peak",
    }
}

fn total_held(held: Held, totals: &Totals) -> &Estimate {
    match held {
        Held::AtEnd => &totals.live,
        Held::AtPeak => &totals.peak.bytes,
    }
}

/// The largest sites that explain what is held.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Explained {
    pub count: usize,
    /// Of the bytes held.
    pub share: f64,
    /// Sites that hold anything.
    pub in_all: usize,
}

impl Explained {
    /// Of the sites as `leaks` knows them: by the functions from the one that is charged to the root.
    pub fn of(profile: &Profile, totals: &Totals) -> Self {
        let held = profile.held();
        let frames = Frames::of(profile);
        let mut paths = Paths::new(&frames);
        let mut stack = Vec::new();
        let Groups {
            groups, of_sample, ..
        } = Groups::of(profile);
        let sites: Vec<u32> = (groups.iter())
            .map(|group| {
                let sample = profile.samples.at(group.first as usize);
                let charged = frames.charged_to(&sample, &mut stack);
                paths.number(sample.stack, charged.map_or(0, |(depth, _)| depth))
            })
            .collect();
        let mut bytes = vec![0.0; paths.count()];
        let mut weights = Weights::of(profile);
        let mut halves = Halves::of(profile);
        for (sample, group) in profile.samples.iter().zip(of_sample) {
            bytes[sites[group as usize] as usize] += match held {
                Held::AtEnd if sample.is_live() => weights.get(&sample).0.value(),
                Held::AtEnd => 0.0,
                Held::AtPeak => halves.at(&sample, &totals.peak.moments).value(),
            };
        }
        bytes.retain(|&bytes| bytes > 0.0);
        Self::of_sizes(bytes, total_held(held, totals).value())
    }

    fn of_sizes(mut bytes: Vec<f64>, total: f64) -> Self {
        bytes.sort_unstable_by(|a, b| b.total_cmp(a));
        let (mut count, mut sum) = (0, 0.0);
        for bytes in bytes.iter().take(MOST_SITES) {
            if sum >= EXPLAINED * total {
                break;
            }
            sum += bytes;
            count += 1;
        }
        Self {
            count,
            share: if total > 0.0 { sum / total } else { 0.0 },
            in_all: bytes.len(),
        }
    }
}

pub(crate) fn answer(
    profile: &Profile,
    totals: &Totals,
    findings: &Findings,
    explained: Explained,
) -> Value {
    let held = profile.held();
    let total = total_held(held, totals);
    let process = &findings.process;
    let (low, high) = process.live_per_s_95;
    json!({
        "held": measure(held),
        "bytes": total.value(),
        "stderr": total.stderr(),
        "text": units::bytes_with_error(total),
        "growth": {
            "bytes_per_s": process.live_per_s,
            "low": low,
            "high": high,
            "resident_bytes_per_s": process.resident_per_s,
        },
        "explained": {
            "count": explained.count,
            "share": explained.share,
            "in_all": explained.in_all,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(sizes: &[f64]) -> Explained {
        Explained::of_sizes(sizes.to_vec(), sizes.iter().sum())
    }

    #[test]
    fn the_fewest_sites_that_hold_four_fifths_are_counted() {
        let of = |count, share, in_all| Explained {
            count,
            share,
            in_all,
        };
        assert_eq!(explained(&[]), of(0, 0.0, 0));
        assert_eq!(explained(&[7.0]), of(1, 1.0, 1));
        assert_eq!(explained(&[10.0, 80.0, 10.0]), of(1, 0.8, 3));
        assert_eq!(explained(&[10.0, 79.0, 11.0]), of(2, 0.9, 3));
        assert_eq!(explained(&[0.5; 1000]), of(100, 0.1, 1000));
    }
}
