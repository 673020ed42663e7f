//! The blocks of one site, with what is asked of each of them again and again.
//!
//! A profile's samples are 72 bytes each, and those of a site are far apart. So what the test and the verdict need is
//! taken from them once; how far the program was at their births and deaths is worked out once for each clock.

use allocsample_profile::Sample;

use crate::growth::Growth;
use crate::progress::Clock;

/// One sampled block.
#[derive(Clone, Copy, Debug)]
struct Block {
    birth_ns: u64,
    /// If it was before the horizon.
    death_ns: Option<u64>,
    /// Bytes that it stands for.
    bytes: f64,
    /// Whether it is alive at the horizon.
    is_live: bool,
    /// Whether it is freed at all.
    is_freed: bool,
}

/// How far the program was at a block's birth, and at its death if that was before the horizon.
#[derive(Clone, Copy, Debug)]
struct Life {
    birth: f64,
    death: Option<f64>,
}

/// The blocks of a site; memory that is used again for the next one.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    horizon_ns: u64,
    blocks: Vec<Block>,
    /// By clock, for each block.
    lives: Vec<Vec<Life>>,
}

impl Blocks {
    /// Takes the place of what was in it. Samples come with the bytes that they stand for.
    pub fn fill<'s>(
        &mut self,
        samples: impl Iterator<Item = (&'s Sample, f64)>,
        clocks: &[Clock],
        horizon_ns: u64,
    ) {
        self.horizon_ns = horizon_ns;
        self.blocks.clear();
        self.blocks.extend(samples.map(|(sample, bytes)| {
            let death_ns = death_ns(sample, horizon_ns);
            Block {
                birth_ns: sample.time_ns,
                death_ns,
                bytes,
                is_live: is_live(sample, horizon_ns),
                is_freed: sample.freed_ns.is_some(),
            }
        }));
        self.lives.resize_with(clocks.len(), Vec::new);
        for (clock, lives) in clocks.iter().zip(&mut self.lives) {
            lives.clear();
            lives.extend(self.blocks.iter().map(|block| Life {
                birth: clock.at(block.birth_ns),
                death: block.death_ns.map(|time_ns| clock.at(time_ns)),
            }));
        }
    }

    fn with_lives(&self, clock: usize) -> impl Iterator<Item = (&Block, &Life)> {
        self.blocks.iter().zip(&self.lives[clock])
    }

    /// How the live bytes developed, by the clock with this index.
    pub fn growth(&self, clock: usize) -> Growth {
        let born = self
            .with_lives(clock)
            .filter(|(block, _)| block.birth_ns <= self.horizon_ns);
        Growth::of(born.map(|(block, life)| (life.birth, life.death, block.bytes)))
    }

    /// Bytes that were alive at a moment, by the clock with this index.
    pub fn alive_at(&self, clock: usize, progress: f64) -> f64 {
        sum(self
            .with_lives(clock)
            .filter(|(_, life)| life.is_alive_at(progress)))
    }

    /// Of the bytes that were alive at a moment, the share that is at the horizon; `None` if none were.
    pub fn survival_since(&self, clock: usize, progress: f64) -> Option<f64> {
        let alive = || {
            self.with_lives(clock)
                .filter(|(_, life)| life.is_alive_at(progress))
        };
        share(
            sum(alive().filter(|(block, _)| block.is_live)),
            sum(alive()),
        )
    }

    /// Of the live bytes, the share that was allocated before a moment; `None` if there are none.
    pub fn live_since(&self, clock: usize, progress: f64) -> Option<f64> {
        let before = |(_, life): &(&Block, &Life)| life.birth <= progress;
        share(sum(self.live(clock).filter(before)), sum(self.live(clock)))
    }

    /// Of the live bytes, the share that is freed behind the horizon; `None` if there are none.
    pub fn freed_at_end(&self) -> Option<f64> {
        let freed = self.live(0).filter(|(block, _)| block.is_freed);
        share(sum(freed), sum(self.live(0)))
    }

    fn live(&self, clock: usize) -> impl Iterator<Item = (&Block, &Life)> {
        self.with_lives(clock).filter(|(block, _)| block.is_live)
    }
}

impl Life {
    fn is_alive_at(&self, progress: f64) -> bool {
        self.birth <= progress && self.death.is_none_or(|death| death > progress)
    }
}

/// When a sample was freed, if that was not after the horizon.
pub(crate) fn death_ns(sample: &Sample, horizon_ns: u64) -> Option<u64> {
    let freed = sample.freed()?;
    Some(freed.time_ns).filter(|&time_ns| time_ns <= horizon_ns)
}

/// Birth before the horizon and no death before it.
pub(crate) fn is_live(sample: &Sample, horizon_ns: u64) -> bool {
    sample.time_ns <= horizon_ns && death_ns(sample, horizon_ns).is_none()
}

fn sum<'b>(blocks: impl Iterator<Item = (&'b Block, &'b Life)>) -> f64 {
    blocks.fold(0.0, |sum, (block, _)| sum + block.bytes)
}

fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{Freed, ThreadId};

    fn sample(birth_ns: u64, freed_ns: Option<u64>) -> Sample {
        let mut sample = Sample {
            time_ns: birth_ns,
            ..Sample::default()
        };
        if let Some(time_ns) = freed_ns {
            let thread = ThreadId(1);
            sample.set_freed(Freed { time_ns, thread });
        }
        sample
    }

    #[test]
    fn shares_are_of_the_bytes_that_were_there() {
        let clock = Clock::Time {
            start_ns: 0,
            horizon_ns: 100,
        };
        let samples = [
            (sample(10, None), 1.0),
            (sample(20, Some(60)), 2.0),
            (sample(70, Some(120)), 4.0),
            // Behind the horizon.
            (sample(110, None), 8.0),
        ];
        let mut blocks = Blocks::default();
        // What is left of another site does not matter.
        for count in [1, 4] {
            let samples = samples[..count].iter();
            let samples = samples.map(|(sample, bytes)| (sample, *bytes));
            blocks.fill(samples, &[clock.clone(), clock.clone()], 100);
        }
        for clock in [0, 1] {
            assert_eq!(blocks.alive_at(clock, 0.5), 3.0);
            assert_eq!(blocks.survival_since(clock, 0.5), Some(1.0 / 3.0));
            assert_eq!(blocks.survival_since(clock, 0.05), None);
            assert_eq!(blocks.live_since(clock, 0.2), Some(1.0 / 5.0));
            // Of what was born after the warm-up, less what died since: 2 moved out of the first part, 4 came.
            assert_eq!(blocks.growth(clock).bytes(), 4.0);
        }
        assert_eq!(blocks.freed_at_end(), Some(4.0 / 5.0));
    }
}
