//! The blocks of one site, with what is asked of each of them again and again.
//!
//! A profile's samples are columns, and the rows of a site are far apart. So what the tests and the verdict need is
//! copied once, with the progress of the program at each birth and death by each clock.

use allocsample_profile::Sample;

use crate::span::Span;

/// One sampled block that was born in the span of its heap. Births and deaths are progress from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Life {
    /// Progress at its birth.
    pub birth: f64,
    /// Progress at its death, if that was before the horizon.
    pub death: Option<f64>,
    /// Whether it was found dead by the first full collection that looked at it: it was not known to be live at any time.
    pub is_transient: bool,
    /// Bytes that it stands for.
    pub bytes: f64,
}

impl Life {
    /// Whether it is alive at the horizon.
    pub fn is_live(&self) -> bool {
        self.death.is_none()
    }

    /// How old it became, or is.
    pub fn age(&self) -> f64 {
        self.death.unwrap_or(1.0) - self.birth
    }

    fn is_alive_at(&self, progress: f64) -> bool {
        !self.is_transient
            && self.birth <= progress
            && self.death.is_none_or(|death| death > progress)
    }
}

/// The blocks of a site; the memory is used again for the next one.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    /// For each clock, in the order of birth.
    lives: Vec<Vec<Life>>,
    /// Live bytes that are freed behind the horizon.
    freed_at_end: f64,
}

impl Blocks {
    /// Replaces what was in it. Samples come with the bytes that they stand for, in the order of their births.
    pub fn fill(&mut self, samples: impl Iterator<Item = (Sample, f64)>, span: &Span) {
        self.lives.resize_with(span.clocks.len(), Vec::new);
        self.lives.iter_mut().for_each(Vec::clear);
        self.freed_at_end = 0.0;
        for (sample, bytes) in samples.filter(|(sample, _)| span.contains(sample)) {
            if span.death_ns(&sample).is_none() && sample.freed_ns.is_some() {
                self.freed_at_end += bytes;
            }
            for (clock, lives) in self.lives.iter_mut().enumerate() {
                lives.push(span.life(clock, &sample, bytes));
            }
        }
    }

    /// All blocks by the clock with this index.
    pub fn by_clock(&self, clock: usize) -> &[Life] {
        &self.lives[clock]
    }

    /// Bytes that were alive at a moment, by the clock with this index.
    pub fn alive_at(&self, clock: usize, progress: f64) -> f64 {
        sum(self.lives[clock].iter(), |life| life.is_alive_at(progress))
    }

    /// Of the live bytes, the share that was allocated before a moment; `None` if there are none.
    pub fn live_since(&self, clock: usize, progress: f64) -> Option<f64> {
        let lives = || self.lives[clock].iter();
        let before = sum(lives(), |life| life.is_live() && life.birth <= progress);
        share(before, sum(lives(), Life::is_live))
    }

    /// Of the live bytes, the share that is freed behind the horizon; `None` if there are none.
    pub fn freed_at_end(&self) -> Option<f64> {
        let live = sum(self.lives.first()?.iter(), Life::is_live);
        share(self.freed_at_end, live)
    }
}

fn sum<'l>(lives: impl Iterator<Item = &'l Life>, is_counted: impl Fn(&Life) -> bool) -> f64 {
    let counted = lives.filter(|life| is_counted(life));
    counted.fold(0.0, |sum, life| sum + life.bytes)
}

fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Clock;
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
        let span = Span::of_clocks(vec![clock.clone(), clock], 100);
        let samples = [
            (sample(10, None), 1.0),
            (sample(20, Some(60)), 2.0),
            (sample(70, Some(120)), 4.0),
            // Behind the horizon.
            (sample(110, None), 8.0),
        ];
        let mut blocks = Blocks::default();
        // The blocks of the site before are forgotten.
        for count in [1, 4] {
            let samples = samples[..count].iter();
            let samples = samples.copied();
            blocks.fill(samples, &span);
        }
        for clock in [0, 1] {
            assert_eq!(blocks.alive_at(clock, 0.5), 3.0);
            assert_eq!(blocks.live_since(clock, 0.2), Some(1.0 / 5.0));
            assert_eq!(blocks.by_clock(clock).len(), 3);
        }
        assert_eq!(blocks.freed_at_end(), Some(4.0 / 5.0));
    }
}
