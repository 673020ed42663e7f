//! Fewer samples that add up to the same, for a viewer that cannot hold all of them.
//!
//! Samples that differ in nothing but size, address and times are merged, so many of them as come one after the other. What
//! stands for them is one of them with the bytes of all, drawn with the probability of its share of those bytes. So
//! what each stack has allocated, freed and keeps is exact, as it was on each thread, in each heap, of each type; and what
//! was alive at any moment between has the right expectation: bytes B_i that are alive or not (a_i) become sum(B) with
//! the life of i in B_i / sum(B) of the cases, and sum(B) * sum(B_i / sum(B) * a_i) = sum(B_i * a_i).

use allocsample_profile::{Sample, ThreadId};
use allocsample_sampling::Random;

use crate::by_stack::ByStack;
use crate::series::Series;
use crate::source::Source;

/// What samples have in common that are merged, beside their stacks and their ends: thread, heap and type as numbers (of
/// things in memory, which 32 bits are enough for), and whether they are of before the file.
type Key = (ThreadId, u32, u32, bool);

fn key(source: &Source, sample: &Sample) -> Key {
    let number = |index: Option<usize>| index.map_or(0, |index| index as u32 + 1);
    (
        sample.thread,
        number(source.heap(sample)),
        number(source.object(sample)),
        sample.is_carried(),
    )
}

/// A sample that stands for several, by the index of the one that it is.
struct One {
    index: u32,
    bytes: f64,
}

/// The last one of a key and an end: its index, and how many it stands for.
#[derive(Clone, Copy, Default)]
struct Open {
    index: u32,
    count: u32,
}

impl<'a> Source<'a> {
    /// About `most` samples, in the order of time; more if that many differ. `None` if there are not more than `most`.
    pub fn merged(&self, most: usize) -> Option<Series<'a>> {
        let samples = &self.samples;
        if samples.len() <= most {
            return None;
        }
        // Less than 2^32, as there are not more samples.
        let each = samples.len().div_ceil(most.max(1)) as u32;
        let mut all: Vec<One> = Vec::with_capacity(most);
        let mut last: ByStack<Key, [Open; 3]> = ByStack::of(self.profile);
        let mut random = Random::from_seed(1);
        for (index, (sample, bytes)) in (0..).zip(samples.with_bytes()) {
            let end = match (sample.is_live(), sample.freed_ns) {
                (true, _) => 0,
                (false, Some(_)) => 1,
                (false, None) => 2,
            };
            let open = &mut last.at(sample.stack, key(self, &sample))[end];
            if open.count.is_multiple_of(each) {
                open.index = all.len() as u32;
                all.push(One { index, bytes: 0.0 });
            }
            open.count += 1;
            let one = &mut all[open.index as usize];
            one.bytes += bytes;
            // The last of n stays with its share, and one before it with its share of what is left.
            if random.unit() * one.bytes < bytes {
                one.index = index;
            }
        }
        all.sort_unstable_by_key(|one| one.index);
        let row = |one: &One| samples.row(one.index as usize);
        Some(Series {
            profile: self.profile,
            rows: Some(all.iter().map(row).collect()),
            bytes: Some(all.iter().map(|one| one.bytes).collect()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use allocsample_profile::{Freed, StackId};
    use proptest::prelude::*;
    use std::collections::HashMap;

    type Sums = HashMap<(StackId, ThreadId, bool), f64>;

    /// Blocks of which each byte is a sample point, of stacks and threads of the fixture.
    fn source(lives: &[(u32, u32, u64, bool)]) -> Source<'static> {
        fixture::source_with(|profile| {
            profile.samples = Default::default();
            for (number, &(stack, thread, size, is_freed)) in (1..).zip(lives) {
                let mut sample = Sample {
                    time_ns: number,
                    size,
                    stack: StackId(stack),
                    thread: ThreadId(thread),
                    interval: fixture::EVERY_BYTE,
                    ..Sample::default()
                };
                if is_freed {
                    sample.set_freed(Freed {
                        time_ns: number + size,
                        thread: ThreadId(thread),
                    });
                }
                profile.samples.push(sample);
            }
        })
    }

    fn sums(source: &Source) -> Sums {
        let mut sums = Sums::new();
        for (sample, bytes) in source.samples.with_bytes() {
            let key = (sample.stack, sample.thread, sample.is_live());
            *sums.entry(key).or_default() += bytes;
        }
        sums
    }

    proptest! {
        #[test]
        fn sums_are_exact_and_samples_in_order(
            lives in proptest::collection::vec((1u32..4, 1u32..3, 0u64..1000, any::<bool>()), 1..200),
            most in 1usize..40,
        ) {
            let mut source = source(&lives);
            let before = sums(&source);
            let all = source.samples.len();
            if let Some(merged) = source.merged(most) {
                source.samples = merged;
            }
            // Of each key the last may stand for fewer.
            prop_assert!(source.samples.len() <= all.min(most + before.len()));
            prop_assert!(all <= most || source.samples.len() < all || before.len() == all);
            prop_assert_eq!(sums(&source), before);
            prop_assert!(source.samples.iter().is_sorted_by_key(|sample| sample.time_ns));
        }
    }

    /// One stack allocates blocks of all sizes, each of which lives for as many nanoseconds as it has bytes. What is alive
    /// halfway is estimated from a thousandth of the samples.
    #[test]
    fn what_was_alive_between_has_the_right_expectation() {
        const SAMPLES: usize = 400_000;
        let mut random = Random::from_seed(7);
        let lives: Vec<_> = (0..SAMPLES)
            .map(|_| (1, 1, 1 + random.below(100_000), true))
            .collect();
        let mut source = source(&lives);
        let halfway = SAMPLES as u64 / 2;
        let alive = |source: &Source| -> f64 {
            let samples = source.samples.with_bytes();
            let alive = samples.filter(|(sample, _)| sample.is_live_at(halfway));
            alive.map(|(_, bytes)| bytes).sum()
        };
        let expected = alive(&source);
        source.samples = source.merged(SAMPLES / 1000).unwrap();
        assert_eq!(source.samples.len(), SAMPLES / 1000);
        // A merged sample stands for 1,000 of 50,000 bytes in the mean. Of those that began in the last 100,000 nanoseconds,
        // a hundred, some are alive: a sum of so many coins of 5e7 bytes has a standard deviation of at most 5e7 * sqrt(100) / 2.
        let deviation = 5e7 * 5.0;
        let difference = alive(&source) - expected;
        assert!(
            difference.abs() < 4.0 * deviation,
            "{difference} of {expected}"
        );
        assert!(expected > 8.0 * deviation);
    }
}
