//! Samples in a bump-allocated nursery, at no cost to the allocations in between.

use crate::{Interval, SamplePoints, Sampler};

/// The nursery of one thread of a virtual machine, which allocates by
///
/// ```text
/// if free + size <= limit { object = free; free += size } else { slow path }
/// ```
///
/// Without sampling its limit is `top`. With it, the limit is lowered to where the next sample point lies:
///
/// ```text
/// start        free   start + d          top
///   |-----------|---------|---------------|      limit = start + min(d, top - start)
///     not yet              ^ byte of the
///     accounted              sample point
/// ```
///
/// An allocation under the limit contains no sample point, so its fast path knows nothing of us. One that fails the
/// limit and still fits under `top` contains one. One that does not fit under `top` needs a collection, exactly as it
/// would without sampling: *sampling never changes when the machine collects*.
///
/// Positions are addresses as numbers, or offsets: only differences matter. Objects have at least one byte. Whoever
/// switches, collects or changes the interval tells where `free` stands, and gets the limit that holds from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nursery {
    /// The sampler has accounted for the bytes up to here.
    start: u64,
    top: u64,
    is_on: bool,
    missed: u64,
    bytes: u64,
}

/// The limit for `free + size`: the machine takes its slow path above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NurseryLimit(pub u64);

/// What happens to an object that is beyond the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// It is allocated there without a collection, and contains this many sample points.
    Continue(SamplePoints, NurseryLimit),
    /// It does not fit: the machine undoes the bump, collects, calls [`Nursery::on_collected`] and tries again.
    Collect,
}

impl Nursery {
    /// A nursery whose next object goes to `free`, with sampling off.
    pub fn new(free: u64, top: u64) -> Self {
        Self {
            start: free,
            top,
            is_on: false,
            missed: 0,
            bytes: 0,
        }
    }

    /// Bytes that were accounted while sampling was on: what the samples estimate.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The limit: `top` while sampling is off.
    pub fn limit(&self, sampler: &Sampler) -> NurseryLimit {
        let space = self.top.saturating_sub(self.start);
        let distance = match self.is_on {
            true => sampler.bytes_until_sample().min(space),
            false => space,
        };
        NurseryLimit(self.start + distance)
    }

    /// The object at `free` failed the limit.
    pub fn on_overflow(&mut self, sampler: &mut Sampler, free: u64, size: u64) -> Overflow {
        self.account(sampler, free);
        if size > self.top.saturating_sub(free) {
            return Overflow::Collect;
        }
        let points = match self.is_on {
            true => self.sample(sampler, size),
            // The limit that the machine compared with is an old one.
            false => SamplePoints(0),
        };
        self.start = free + size;
        Overflow::Continue(points, self.limit(sampler))
    }

    /// An object of this size was allocated elsewhere.
    pub fn on_alloc_outside(
        &mut self,
        sampler: &mut Sampler,
        free: u64,
        size: u64,
    ) -> (SamplePoints, NurseryLimit) {
        self.account(sampler, free);
        let points = match self.is_on {
            true => self.sample(sampler, size),
            false => SamplePoints(0),
        };
        (points, self.limit(sampler))
    }

    /// The machine collected, or swapped the nursery: it stood at `old_free`, and goes on from `free` up to `top`.
    pub fn on_collected(
        &mut self,
        sampler: &mut Sampler,
        old_free: u64,
        free: u64,
        top: u64,
    ) -> NurseryLimit {
        self.account(sampler, old_free);
        (self.start, self.top) = (free, top);
        self.limit(sampler)
    }

    /// Sampling goes on. The distance is what it was when it was switched off.
    pub fn switch_on(&mut self, sampler: &mut Sampler, free: u64) -> NurseryLimit {
        self.account(sampler, free);
        self.is_on = true;
        self.limit(sampler)
    }

    /// Sampling pauses or ends: what is allocated from here on is not accounted.
    pub fn switch_off(&mut self, sampler: &mut Sampler, free: u64) -> NurseryLimit {
        self.account(sampler, free);
        self.is_on = false;
        self.limit(sampler)
    }

    /// The interval changes.
    pub fn on_interval(
        &mut self,
        sampler: &mut Sampler,
        free: u64,
        interval: Interval,
    ) -> NurseryLimit {
        self.account(sampler, free);
        sampler.redraw(interval);
        self.limit(sampler)
    }

    /// Sample points that were passed unseen, since the machine allocated beyond the limit. 0, unless a part of it goes
    /// on with a limit that it read before the last change.
    pub fn missed(&self) -> SamplePoints {
        SamplePoints(self.missed)
    }

    fn sample(&mut self, sampler: &mut Sampler, size: u64) -> SamplePoints {
        self.bytes = self.bytes.wrapping_add(size.max(1));
        sampler.on_alloc(size)
    }

    /// Accounts what was allocated up to `free`.
    fn account(&mut self, sampler: &mut Sampler, free: u64) {
        let bytes = free.saturating_sub(self.start);
        self.start = free;
        if !self.is_on || bytes == 0 {
            return;
        }
        self.bytes = self.bytes.wrapping_add(bytes);
        if bytes <= sampler.bytes_until_sample() {
            sampler.advance(bytes);
            return;
        }
        self.missed = self.missed.saturating_add(sampler.on_alloc(bytes).0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GapLaw, Random};

    /// A machine that allocates from a nursery, beside one that does not sample and a sampler that sees each object.
    struct Machine {
        free: u64,
        top: u64,
        limit: u64,
        collections: u64,
        nursery: Nursery,
        sampler: Sampler,
        oracle: Sampler,
        is_on: bool,
        plain_free: u64,
        plain_collections: u64,
        allocations: u64,
        points: u64,
    }

    const BASE: u64 = 1 << 20;

    impl Machine {
        fn new(size: u64, law: GapLaw, interval: Interval, random: Random) -> Self {
            let sampler = Sampler::new(law, interval, random);
            let nursery = Nursery::new(BASE, BASE + size);
            Self {
                free: BASE,
                top: BASE + size,
                limit: nursery.limit(&sampler).0,
                collections: 0,
                nursery,
                oracle: sampler.clone(),
                sampler,
                is_on: false,
                plain_free: BASE,
                plain_collections: 0,
                allocations: 0,
                points: 0,
            }
        }

        fn expected(&mut self, size: u64) -> SamplePoints {
            self.allocations += 1;
            match self.is_on {
                true => self.oracle.on_alloc(size),
                false => SamplePoints(0),
            }
        }

        fn alloc(&mut self, size: u64) {
            let expected = self.expected(size);
            let mut points = SamplePoints(0);
            while self.free + size > self.limit {
                match self.nursery.on_overflow(&mut self.sampler, self.free, size) {
                    Overflow::Continue(found, limit) => {
                        points = found;
                        self.limit = limit.0;
                        break;
                    }
                    Overflow::Collect => self.collect(),
                }
            }
            self.free += size;
            if self.plain_free + size > self.top {
                self.plain_free = BASE;
                self.plain_collections += 1;
            }
            self.plain_free += size;
            assert_eq!(points, expected);
            assert_eq!(self.collections, self.plain_collections);
            assert_eq!(self.free, self.plain_free);
            self.points += points.0;
        }

        fn collect(&mut self) {
            let limit = self
                .nursery
                .on_collected(&mut self.sampler, self.free, BASE, self.top);
            self.limit = limit.0;
            self.free = BASE;
            self.collections += 1;
        }

        fn alloc_outside(&mut self, size: u64) {
            let expected = self.expected(size);
            let (points, limit) = self
                .nursery
                .on_alloc_outside(&mut self.sampler, self.free, size);
            self.limit = limit.0;
            assert_eq!(points, expected);
        }

        fn step(&mut self, random: &mut Random) {
            let largest = self.top - BASE;
            match random.below(40) {
                0..=27 => self.alloc(1 + random.below(largest.min(64))),
                28..=31 => self.alloc(1 + random.below(largest)),
                32..=34 => self.alloc_outside(1 + random.below(1600)),
                35 => {
                    self.limit = self.nursery.switch_off(&mut self.sampler, self.free).0;
                    self.is_on = false;
                }
                36..=37 => {
                    self.limit = self.nursery.switch_on(&mut self.sampler, self.free).0;
                    self.is_on = true;
                }
                38 => {
                    let interval = self::interval(random);
                    let limit = self
                        .nursery
                        .on_interval(&mut self.sampler, self.free, interval);
                    self.limit = limit.0;
                    self.oracle.redraw(interval);
                }
                // The machine collects for reasons of its own.
                _ => {
                    self.collect();
                    self.plain_free = BASE;
                    self.plain_collections += 1;
                }
            }
            assert!(self.limit <= self.top && self.limit >= self.free);
            assert_eq!(self.nursery.missed(), SamplePoints(0));
        }
    }

    /// 1, small, around the nursery's size, large, and never.
    fn interval(random: &mut Random) -> Interval {
        let bits = [0, 3, 8, 10, 12, 20, 40, 63][random.below(8) as usize];
        Interval::new((1 + random.below(1 << bits)).min(Interval::MAX.bytes())).unwrap()
    }

    #[test]
    fn each_object_has_its_points_and_no_collection_moves() {
        let mut random = Random::from_seed(2026);
        let (mut allocations, mut points, mut collections) = (0, 0, 0);
        for run in 0..200_000_u64 {
            let law = [GapLaw::Poisson, GapLaw::Periodic][(run % 2) as usize];
            let size = 1 + random.below(2000);
            let interval = interval(&mut random);
            let mut machine = Machine::new(size, law, interval, Random::from_seed(run));
            if run % 4 > 0 {
                machine.limit = machine.nursery.switch_on(&mut machine.sampler, BASE).0;
                machine.is_on = true;
            }
            for _ in 0..1 + random.below(40) {
                machine.step(&mut random);
            }
            allocations += machine.allocations;
            points += machine.points;
            collections += machine.collections;
        }
        // The sequences are not idle.
        assert!(allocations > 3_000_000 && points > 1_000_000 && collections > 100_000);
    }

    #[test]
    fn what_is_allocated_past_the_limit_is_counted_as_missed() {
        let interval = Interval::new(10).unwrap();
        let mut sampler = Sampler::new(GapLaw::Periodic, interval, Random::from_seed(1));
        let mut nursery = Nursery::new(0, 1000);
        assert_eq!(nursery.limit(&sampler), NurseryLimit(1000));
        let limit = nursery.switch_on(&mut sampler, 0);
        assert!(limit < NurseryLimit(10));
        nursery.on_collected(&mut sampler, 500, 0, 1000);
        assert_eq!(nursery.missed(), SamplePoints(50));
    }

    #[test]
    fn a_limit_from_before_the_switch_harms_nothing() {
        let interval = Interval::new(10).unwrap();
        let mut sampler = Sampler::new(GapLaw::Poisson, interval, Random::from_seed(1));
        let mut nursery = Nursery::new(0, 1000);
        nursery.switch_on(&mut sampler, 0);
        nursery.switch_off(&mut sampler, 0);
        let overflow = nursery.on_overflow(&mut sampler, 0, 100);
        assert_eq!(
            overflow,
            Overflow::Continue(SamplePoints(0), NurseryLimit(1000))
        );
        assert_eq!(
            nursery.on_overflow(&mut sampler, 100, 901),
            Overflow::Collect
        );
    }

    #[test]
    fn bytes_are_those_of_the_time_when_sampling_was_on() {
        let interval = Interval::new(1 << 40).unwrap();
        let mut sampler = Sampler::new(GapLaw::Poisson, interval, Random::from_seed(1));
        let mut nursery = Nursery::new(BASE, BASE + 1000);
        nursery.switch_on(&mut sampler, BASE + 100);
        nursery.on_alloc_outside(&mut sampler, BASE + 150, 7);
        nursery.switch_off(&mut sampler, BASE + 200);
        nursery.switch_on(&mut sampler, BASE + 300);
        nursery.on_collected(&mut sampler, BASE + 310, BASE, BASE + 1000);
        assert_eq!(nursery.bytes(), 100 + 7 + 10);
    }

    /// A machine with a point in each `interval` bytes, switched on.
    fn periodic(size: u64, interval: u64) -> Machine {
        let interval = Interval::new(interval).unwrap();
        let random = Random::from_seed(7);
        let mut machine = Machine::new(size, GapLaw::Periodic, interval, random);
        machine.limit = machine.nursery.switch_on(&mut machine.sampler, BASE).0;
        machine.is_on = true;
        machine
    }

    #[test]
    fn an_object_above_the_interval_contains_several_points() {
        let mut machine = periodic(10_000, 10);
        for size in [10, 11, 25, 100, 9_000] {
            let before = machine.points;
            machine.alloc(size);
            let points = machine.points - before;
            assert!((size / 10..=size / 10 + 1).contains(&points));
        }
    }

    #[test]
    fn a_large_object_may_move_the_next_point_without_being_a_sample() {
        let mut machine = periodic(1000, 500);
        let distance = machine.sampler.bytes_until_sample();
        assert!(distance > 10, "the seed gives room");
        machine.alloc(3);
        let before = machine.limit;
        machine.alloc_outside(distance - 10);
        // Neither was a sample; the point is as much nearer as the object was large.
        assert_eq!(before - machine.limit, distance - 10);
        assert_eq!(machine.limit - machine.free, 7);
        machine.alloc(7);
        assert_eq!(machine.points, 0);
        machine.alloc(1);
        assert_eq!(machine.points, 1);
    }

    #[test]
    fn an_object_that_collects_and_crosses_a_point_does_both() {
        let mut machine = periodic(100, 1000);
        let mut seen = false;
        for _ in 0..500 {
            let (collections, points) = (machine.collections, machine.points);
            machine.alloc(33);
            let does_both = machine.collections > collections && machine.points > points;
            // It is accounted in the nursery that it is in.
            assert!(!does_both || machine.nursery.start == BASE + 33);
            seen |= does_both;
        }
        assert!(seen);
    }

    #[test]
    fn a_large_sample_brings_no_early_collection() {
        for left in [0, 1, 40] {
            let mut machine = periodic(100, 1 << 20);
            machine.alloc(100 - left - 1);
            machine.alloc(1);
            // A sample outside, just before the nursery is full.
            machine.alloc_outside(1 << 20);
            for _ in 0..left {
                machine.alloc(1);
            }
            assert_eq!(machine.collections, 0);
            machine.alloc(1);
            assert_eq!(machine.collections, 1);
        }
    }

    #[test]
    fn an_interval_beyond_the_nursery_is_carried_over_collections() {
        let mut machine = periodic(1000, 1_000_000);
        for _ in 0..100_000 {
            machine.alloc(100);
        }
        assert_eq!(machine.points, 10);
        assert_eq!(machine.collections, 9_999);
    }

    #[test]
    fn an_object_that_fits_exactly_is_allocated() {
        let random = crate::Seed { process: 1 }.thread(1);
        let interval = crate::Interval::new(1 << 40).unwrap();
        let mut sampler = Sampler::new(GapLaw::Poisson, interval, random);
        let mut nursery = Nursery::new(0x1000, 0x2000);
        let fits = nursery.on_overflow(&mut sampler, 0x1800, 0x800);
        assert!(matches!(fits, Overflow::Continue(..)), "{fits:?}");
        let mut nursery = Nursery::new(0x1000, 0x2000);
        let does_not = nursery.on_overflow(&mut sampler, 0x1800, 0x801);
        assert_eq!(does_not, Overflow::Collect);
    }
}
