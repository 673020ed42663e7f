//! Fewer samples that add up to the same, for a viewer that cannot hold all of them.
//!
//! Samples that differ in nothing but size, address and times are merged, so many of them as come one after the other. What
//! stands for them has the bytes of all and the life of one, drawn with the probability of its share of those bytes. So
//! what each stack has allocated, freed and keeps is exact, as it was on each thread, in each heap, of each type; and what
//! was alive at any moment between has the right expectation: bytes B_i that are alive or not (a_i) become sum(B) with
//! the life of i in B_i / sum(B) of the cases, and sum(B) * sum(B_i / sum(B) * a_i) = sum(B_i * a_i).

use allocsample_sampling::Random;

use super::{End, Interner, Sample, Samples, View};
use crate::by_stack::ByStack;

/// Samples that stand for several each. What is asked of them again and again is here, as those that they stand for are far
/// apart in memory.
#[derive(Debug)]
pub(crate) struct Merged {
    /// In the order of time.
    all: Vec<One>,
    keys: Interner<Key>,
}

/// A sample that stands for several: 40 bytes, of which there are some millions where most stacks have few samples.
#[derive(Debug, Clone, Copy, Default)]
struct One {
    time_ns: u64,
    /// [`LIVE`], [`UNKNOWN`], or when it was freed.
    end: u64,
    bytes: f64,
    /// What is told of them is never the last digit.
    objects: f32,
    /// Index of the one whose life it has.
    number: u32,
    /// As all of these a number of a thing in memory, which 32 bits are enough for.
    stack: u32,
    /// Index into the keys.
    key: u32,
}

/// As `end`; no clock of a machine that is on has these.
const LIVE: u64 = 0;
const UNKNOWN: u64 = u64::MAX;

impl One {
    /// Gives it the life of one of those that it stands for.
    fn live_as(&mut self, sample: &Sample, number: u32) {
        self.number = number;
        self.time_ns = sample.time_ns;
        self.end = match sample.end {
            End::Live => LIVE,
            End::Unknown => UNKNOWN,
            End::Freed(time_ns) => time_ns,
        };
    }

    fn end(&self) -> End {
        match self.end {
            LIVE => End::Live,
            UNKNOWN => End::Unknown,
            time_ns => End::Freed(time_ns),
        }
    }
}

impl Merged {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// When one was allocated, and what became of it.
    pub(super) fn life(&self, index: usize) -> (u64, End) {
        let one = &self.all[index];
        (one.time_ns, one.end())
    }

    /// One of them; its id is a number of its own, as it has no address and no size.
    pub(super) fn get(&self, index: usize) -> Sample {
        let one = &self.all[index];
        let (thread, heap, object, is_carried) = *self.keys.value(one.key as usize);
        let index = |number: u32| (number as usize).checked_sub(1);
        Sample {
            id: u64::from(one.number),
            time_ns: one.time_ns,
            address: 0,
            size: 0,
            thread: thread as usize,
            stack: one.stack as usize,
            bytes: one.bytes,
            objects: f64::from(one.objects),
            end: one.end(),
            is_carried,
            heap: index(heap),
            object: index(object),
        }
    }
}

/// What samples have in common that are merged, beside their stacks and their ends: thread, heap and type as numbers (of
/// things in memory, which 32 bits are enough for), and whether they are of before the file.
type Key = (u32, u32, u32, bool);

fn key(sample: &Sample) -> Key {
    let number = |index: Option<usize>| index.map_or(0, |index| index as u32 + 1);
    (
        sample.thread as u32,
        number(sample.heap),
        number(sample.object),
        sample.is_carried,
    )
}

/// The last one of a key and an end: its index, and how many it stands for.
#[derive(Clone, Copy, Default)]
struct Open {
    index: u32,
    count: u32,
}

impl View<'_> {
    /// About `most` samples in the order of time; more if that many differ. `None` if there are not more than `most`.
    pub fn samples_merged(&self, most: usize) -> Option<Merged> {
        self.samples.merged(self.stacks.len(), most)
    }

    /// The same with these samples in the place of those that they stand for, if there are any.
    pub fn with_samples(self, merged: Option<Merged>) -> Self {
        match merged {
            None => self,
            Some(merged) => Self {
                samples: Samples::Merged(Box::new(self.samples), merged),
                ..self
            },
        }
    }
}

impl Samples<'_> {
    fn merged(&self, stacks: usize, most: usize) -> Option<Merged> {
        if self.len() <= most {
            return None;
        }
        // Less than 2^32, as there are not more samples.
        let each = self.len().div_ceil(most.max(1)) as u32;
        let mut all: Vec<One> = Vec::with_capacity(most);
        let mut keys = Interner::new();
        let mut last: ByStack<Key, [Open; 3]> = ByStack::new(stacks);
        let mut random = Random::from_seed(1);
        for (number, sample) in (0..).zip(self.iter()) {
            let end = match sample.end {
                End::Live => 0,
                End::Freed(_) => 1,
                End::Unknown => 2,
            };
            let key = key(&sample);
            let open = &mut last.at(sample.stack, key)[end];
            if open.count.is_multiple_of(each) {
                open.index = all.len() as u32;
                let mut one = One {
                    stack: sample.stack as u32,
                    key: keys.intern(key) as u32,
                    ..One::default()
                };
                one.live_as(&sample, number);
                all.push(one);
            }
            open.count += 1;
            let one = &mut all[open.index as usize];
            one.bytes += sample.bytes;
            one.objects += sample.objects as f32;
            // The last of n stays with its share, and one before it with its share of what is left.
            if random.unit() * one.bytes < sample.bytes {
                one.live_as(&sample, number);
            }
        }
        all.sort_unstable_by_key(|one| one.number);
        Some(Merged { all, keys })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use proptest::prelude::*;
    use std::collections::HashMap;

    type Sums = HashMap<(usize, usize, bool), (f64, f64)>;

    fn view(lives: &[(usize, usize, u64, bool)]) -> View<'static> {
        let mut view = fixture::view();
        let samples = view.samples.list();
        samples.clear();
        for (number, &(stack, thread, bytes, is_freed)) in (1..).zip(lives) {
            samples.push(Sample {
                id: number,
                time_ns: number,
                stack,
                thread,
                bytes: bytes as f64,
                objects: 1.5,
                end: match is_freed {
                    true => End::Freed(number + bytes),
                    false => End::Live,
                },
                ..Sample::default()
            });
        }
        view
    }

    fn sums(view: &View) -> Sums {
        let mut sums = Sums::new();
        for sample in view.samples.iter() {
            let key = (sample.stack, sample.thread, sample.end == End::Live);
            let sum = sums.entry(key).or_default();
            sum.0 += sample.bytes;
            sum.1 += sample.objects;
        }
        sums
    }

    proptest! {
        #[test]
        fn sums_are_exact_and_samples_in_order(
            lives in proptest::collection::vec((0usize..3, 0usize..2, 0u64..1000, any::<bool>()), 1..200),
            most in 1usize..40,
        ) {
            let view = view(&lives);
            let before = sums(&view);
            let all = view.samples.len();
            let merged = view.samples_merged(most);
            let view = view.with_samples(merged);
            // Of each key the last may stand for fewer.
            prop_assert!(view.samples.len() <= all.min(most + before.len()));
            prop_assert!(all <= most || view.samples.len() < all || before.len() == all);
            prop_assert_eq!(sums(&view), before);
            prop_assert!(view.samples.iter().is_sorted_by_key(|sample| sample.time_ns));
            for (number, sample) in view.samples.iter().enumerate() {
                prop_assert_eq!(view.samples.life(number), (sample.time_ns, sample.end));
                let one = view.samples.get(number);
                prop_assert_eq!((one.id, one.bytes), (sample.id, sample.bytes));
            }
        }
    }

    /// One stack allocates blocks of all sizes, each of which lives for as many nanoseconds as it has bytes. What is alive
    /// halfway is estimated from a thousandth of the samples.
    #[test]
    fn what_was_alive_between_has_the_right_expectation() {
        const SAMPLES: usize = 400_000;
        let mut random = Random::from_seed(7);
        let lives: Vec<_> = (0..SAMPLES)
            .map(|_| (0, 0, 1 + random.below(100_000), true))
            .collect();
        let view = view(&lives);
        let halfway = SAMPLES as u64 / 2;
        let alive = |view: &View| -> f64 {
            let is_alive = |sample: &Sample| match sample.end {
                End::Freed(freed_ns) => (sample.time_ns..freed_ns).contains(&halfway),
                _ => true,
            };
            let samples = view.samples.iter().filter(is_alive);
            samples.map(|sample| sample.bytes).sum()
        };
        let expected = alive(&view);
        let merged = view.samples_merged(SAMPLES / 1000);
        let merged = view.with_samples(merged);
        assert_eq!(merged.samples.len(), SAMPLES / 1000);
        // A merged sample stands for 1,000 of 50,000 bytes in the mean. Of those that began in the last 100,000 nanoseconds,
        // a hundred, some are alive: a sum of so many coins of 5e7 bytes has a standard deviation of at most 5e7 * sqrt(100) / 2.
        let deviation = 5e7 * 5.0;
        let difference = alive(&merged) - expected;
        assert!(
            difference.abs() < 4.0 * deviation,
            "{difference} of {expected}"
        );
        assert!(expected > 8.0 * deviation);
    }
}
