//! Programs for which a smaller allowance than the printed one would not hold.
//!
//! Limits of most programs hold more than 95 %, since they allow for blocks that these programs do not have. Here is one program
//! for each allowance that has them.

use allocsample_profile::Profile;
use allocsample_report::{By, Estimate, Frames, Request, Selection, Sort, Table, Totals};
use allocsample_sampling::{GapLaw, Interval, Random, SamplePoints, Weight};

use crate::coverage::{name, printed};
use crate::program::{Block, INTERVAL, sums};
use crate::recording::{Scenario, record};

/// A program, and which figure is judged.
#[derive(Clone, Copy, Debug)]
pub enum Worst {
    /// Blocks of 2 KiB with so many expected samples, and the number of all. Beside them are blocks of 8 bytes, with
    /// [`Worst::hidden`] expected samples.
    SmallBlocks,
    /// The bytes of a site with so many expected samples while the interval is short, and [`Worst::hidden`] while it is long.
    LateSite,
}

impl Worst {
    pub const ALL: [Worst; 2] = [Worst::SmallBlocks, Worst::LateSite];

    /// Expected samples of what may stay unseen, in the table: in three of four runs none of the blocks of 8 bytes is
    /// sampled, and in one of three runs nothing of the late site.
    pub fn hidden(self) -> f64 {
        match self {
            Worst::SmallBlocks => 0.3,
            Worst::LateSite => 1.0,
        }
    }

    /// What it is called in the table, with the printed allowance and with the smaller one.
    pub fn names(self) -> [&'static str; 2] {
        match self {
            Worst::SmallBlocks => [
                "worst case: blocks of 8 bytes beside 2 KiB | allocations",
                "the same, allowing for the smallest block seen | allocations",
            ],
            Worst::LateSite => [
                "worst case: one expected sample after the change | site allocated",
                "the same, allowing for the intervals of its samples | site allocated",
            ],
        }
    }

    fn scenario(self) -> Scenario {
        match self {
            Worst::SmallBlocks => Scenario::Constant,
            Worst::LateSite => Scenario::Changed,
        }
    }

    /// Site 0 is judged.
    fn program(self, samples: f64, hidden: f64, random: &mut Random) -> Vec<Block> {
        let bytes = samples * INTERVAL as f64;
        let long = 16.0 * INTERVAL as f64;
        // Site, size, bytes in all, and where they are in the run.
        let parts: &[(usize, u64, f64, f64)] = match self {
            Worst::SmallBlocks => &[(0, 2048, bytes, 0.0), (0, 8, hidden * INTERVAL as f64, 0.0)],
            // As many blocks in each half: the interval changes in the middle of them.
            Worst::LateSite => &[
                (0, 64, bytes, 0.0),
                (1, 64, 16.0 * long - bytes, 0.0),
                (0, 64, hidden * long, 1.0),
                (1, 64, (16.0 - hidden) * long, 1.0),
            ],
        };
        let mut places: Vec<(f64, usize, u64)> = Vec::new();
        for &(site, size, bytes, half) in parts {
            let count = (bytes / size as f64).round() as u64;
            places.extend((0..count).map(|_| (half + random.unit(), site, size)));
        }
        places.sort_by(|a, b| a.0.total_cmp(&b.0));
        let block = |(number, (_, site, size)): (u64, (f64, usize, u64))| Block {
            site,
            size,
            time_ns: number * 10,
            freed_ns: None,
        };
        (1..).zip(places).map(block).collect()
    }

    /// As it is printed, and with the smaller allowance.
    fn estimates(self, profile: &Profile) -> [Estimate; 2] {
        let totals = Totals::of(profile);
        match self {
            Worst::SmallBlocks => {
                let weight = Weight::new(GapLaw::Poisson, Interval::new(INTERVAL).unwrap());
                let of_seen = profile.samples.iter().map(|sample| {
                    weight.objects_estimate(sample.size, SamplePoints(1), sample.size)
                });
                [totals.allocations, of_seen.sum()]
            }
            Worst::LateSite => {
                let request = Request {
                    by: By::Site,
                    sort: Sort::Allocated,
                    selection: &Selection::default(),
                    peak: Some(totals.peak.moments),
                    limit: usize::MAX,
                };
                let rows = Table::of(profile, &Frames::of(profile), &request).rows;
                let row = rows.iter().find(|row| row.name == name(0));
                let own = profile.samples.iter().filter(|sample| sample.stack.0 == 1);
                let own: Estimate = own.map(|sample| profile.bytes(&sample)).sum();
                // Where it has no sample at all, both know as much.
                let none = profile.allowance(allocsample_profile::HeapId::MALLOC, 0, u64::MAX);
                let none = Estimate::ZERO.allowing_for(none.bytes);
                match row {
                    Some(row) => [row.self_allocated, own],
                    None => [none, none],
                }
            }
        }
    }

    /// How often the limits held the truth: as they are printed, and with the smaller allowance.
    pub fn coverage(self, samples: f64, hidden: f64, seeds: u64) -> [f64; 2] {
        let mut held = [0_u32; 2];
        for seed in 1..=seeds {
            let blocks = self.program(samples, hidden, &mut Random::from_seed(seed));
            let (bytes, count) = sums(blocks.iter().filter(|block| block.site == 0));
            let truth = match self {
                Worst::SmallBlocks => count,
                Worst::LateSite => bytes,
            };
            let (profile, _) = record(&blocks, self.scenario(), seed);
            for (held, estimate) in held.iter_mut().zip(self.estimates(&profile)) {
                let (low, high) = printed(&estimate);
                *held += u32::from((low..=high).contains(&truth));
            }
        }
        held.map(|held| f64::from(held) / seeds as f64)
    }
}
