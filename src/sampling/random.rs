//! Random numbers for the gaps between sample points.

/// Seed of a process. Each thread derives a stream of its own from it, and so does a forked child: two threads that
/// share a stream would sample at the same places, and their errors would add up instead of averaging out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    /// Any number; equal numbers give equal samples.
    pub process: u64,
}

impl Seed {
    /// The stream of the thread with this number.
    pub fn thread(self, thread: u32) -> Random {
        Random::from_seed(mix(self.process) ^ mix(THREAD_SALT ^ u64::from(thread)))
    }

    /// The stream that a thread's time samples use.
    pub fn ticks_of_thread(self, thread: u32) -> Random {
        Random::from_seed(mix(self.process) ^ mix(TICK_SALT ^ u64::from(thread)))
    }

    /// The stream that the sampling of a thread's page faults uses.
    pub fn faults_of_thread(self, thread: u32) -> Random {
        Random::from_seed(mix(self.process) ^ mix(FAULT_SALT ^ u64::from(thread)))
    }

    /// The seed of a forked child. `child` tells children apart: the child's pid.
    pub fn child(self, child: u32) -> Seed {
        Seed {
            process: mix(self.process) ^ mix(CHILD_SALT ^ u64::from(child)),
        }
    }
}

const FAULT_SALT: u64 = 0x6661_756c_7400_0000;
const TICK_SALT: u64 = 0x7469_636b_0000_0000;
const THREAD_SALT: u64 = 0x7468_7265_6164_0000;
const CHILD_SALT: u64 = 0x6368_696c_6400_0000;

/// xoshiro256** of Blackman and Vigna ("Scrambled linear pseudorandom number generators", 2021): 2^256 - 1 numbers
/// before it repeats, four words of state, under a nanosecond a number.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// Fills the state by splitmix64, as its authors recommend: it is never all zero.
    pub fn from_seed(seed: u64) -> Self {
        let mut counter = seed;
        Self {
            state: [(); 4].map(|()| {
                counter = counter.wrapping_add(GOLDEN);
                finish(counter)
            }),
        }
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A multiple of 2^-53 in (0, 1]. Zero is left out because its logarithm has no value.
    pub fn unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
        // At most 2^53, which f64 represents exactly.
        ((self.next_u64() >> 11) + 1) as f64 * STEP
    }

    /// A number in `0..bound` (0 if `bound` is 0); each is drawn with probability 1/bound to within 2^-64.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The upper half of a 128-bit product is below `bound`.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// One step of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
fn mix(value: u64) -> u64 {
    finish(value.wrapping_add(GOLDEN))
}

fn finish(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::Xoshiro256StarStar;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};
    use std::collections::BTreeSet;

    #[test]
    fn bits_of_seeds_and_of_streams_are_ones_half_of_the_time() {
        let parent = Seed { process: 7 };
        for number_of in [
            |parent: Seed, number| parent.child(number).process,
            |parent: Seed, number| parent.thread(number).next_u64(),
            |parent: Seed, number| parent.ticks_of_thread(number).next_u64(),
            |parent: Seed, number| parent.faults_of_thread(number).next_u64(),
        ] {
            let ones: u32 = (0..1000)
                .map(|number| number_of(parent, number).count_ones())
                .sum();
            // 32 of 64 bits; the standard deviation of the sum is 127.
            assert!((31_400..32_600).contains(&ones), "{ones}");
        }
    }

    #[test]
    fn agrees_with_the_reference() {
        for seed in [0, 1, 42, u64::MAX] {
            let mut ours = Random::from_seed(seed);
            let mut reference = Xoshiro256StarStar::seed_from_u64(seed);
            for _ in 0..1000 {
                assert_eq!(ours.next_u64(), reference.next_u64());
            }
        }
    }

    #[test]
    fn unit_reaches_one_and_never_zero() {
        let step = 1.0 / (1_u64 << 53) as f64;
        // b = 0 gives 0, so the smallest value; the largest 53 bits give exactly 1.
        let mut lowest = Random {
            state: [1, 0, 3, 4],
        };
        assert_eq!(lowest.unit(), step);
        // The multipliers are odd: the inverse image of u64::MAX under `* 5, rotate, * 9`.
        let inverse = |odd: u64| {
            (0..6).fold(odd, |x, _| {
                x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x)))
            })
        };
        let b = u64::MAX
            .wrapping_mul(inverse(9))
            .rotate_right(7)
            .wrapping_mul(inverse(5));
        let mut highest = Random {
            state: [1, b, 3, 4],
        };
        assert_eq!(highest.unit(), 1.0);
    }

    #[test]
    fn threads_and_children_have_streams_of_their_own() {
        let mut first = BTreeSet::new();
        let mut streams = 0;
        for process in 0..20 {
            let seed = Seed { process };
            for family in (0..20).map(|child| seed.child(child)).chain([seed]) {
                for thread in 0..50 {
                    first.insert(family.thread(thread).next_u64());
                    streams += 1;
                }
            }
        }
        assert_eq!(first.len(), streams);
    }

    #[test]
    fn below_is_uniform() {
        let mut random = Random::from_seed(3);
        let mut counts = [0_u32; 7];
        for _ in 0..700_000 {
            counts[random.below(7) as usize] += 1;
        }
        // Standard deviation 293; 5 of them.
        assert!(
            counts.iter().all(|count| count.abs_diff(100_000) < 1464),
            "{counts:?}"
        );
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
    }

    /// A process may start many threads, and pids have up to 22 bits.
    #[test]
    fn numbers_that_differ_in_any_bit_have_different_streams() {
        let seed = Seed { process: 7 };
        let streams = |number: u32| {
            let thread = seed.thread(number).next_u64();
            let ticks = seed.ticks_of_thread(number).next_u64();
            [thread, ticks, seed.child(number).process]
        };
        let mut seen: BTreeSet<u64> = streams(0).into();
        for bit in 0..32 {
            seen.extend(streams(1 << bit));
        }
        assert_eq!(seen.len(), 3 * 33);
    }
}
