//! A model of the agent around the sampler, right or with one fault.

use allocsample_sampling::{
    Estimate, GapLaw, Interval, Random, SamplePoints, Sampler, Seed, Weight, inclusion_probability,
};

use crate::workload::{Event, Workload};

/// What is wrong. Each of these is in some profiler, or was in one of our models of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Gaps uniform in 1..2N.
    UniformGaps,
    /// Gaps of N.
    PeriodicGaps,
    /// Weight = points * N, which the rounded-up gaps do not fit.
    PointsTimesInterval,
    /// A thread's first block is always a sample.
    FirstGapZero,
    /// A sample that falls due in the profiler's own allocations is taken at the program's next one.
    PostponedPastMuted,
    /// A site's sampled bytes are added up, then divided by the p of their mean size.
    SumThenUnbias,
    /// A realloc is not an allocation.
    GrowthSkipped,
    /// A forked child samples at the same places as its parent.
    ChildKeepsSeed,
    /// All threads sample at the same places.
    ThreadsShareSeed,
    /// Weight = bytes since the last sample.
    BytesSinceLast,
    /// Aligned blocks are not allocations.
    AlignedSkipped,
    /// p of the interval that was in force at the start.
    StaleInterval,
    /// The variance without its factor 1 - p.
    ErrorTooLarge,
}

/// Estimates for one site.
#[derive(Clone, Copy, Debug, Default)]
pub struct Site {
    pub bytes: Estimate,
    pub objects: Estimate,
    sampled_bytes: f64,
}

/// Runs a workload once.
pub fn run(workload: &Workload, fault: Fault, seed: u64) -> Vec<Site> {
    let mut sites = vec![Site::default(); workload.sites];
    let mut process = Process::new(workload, fault, Seed { process: seed });
    let mut child = None;
    for event in workload.events() {
        if matches!(event, Event::Fork) {
            child = Some(process.fork());
        }
        for process in [Some(&mut process), child.as_mut()].into_iter().flatten() {
            process.on_event(event, &mut sites);
        }
    }
    if fault == Fault::SumThenUnbias {
        sites
            .iter_mut()
            .for_each(|site| site.unbias(workload.interval));
    }
    sites
}

impl Site {
    fn unbias(&mut self, interval: u64) {
        let mean = self.sampled_bytes / self.bytes.samples().max(1) as f64;
        let p = 1.0 - (-mean / interval as f64).exp();
        let value = self.sampled_bytes / p;
        self.bytes = Estimate::from_parts(value, self.bytes.variance(), self.bytes.samples());
    }
}

/// One thread at a time of one process.
#[derive(Clone)]
struct Process {
    fault: Fault,
    seed: Seed,
    thread: u32,
    first_interval: Interval,
    muted_bytes: u64,
    walk: Walk,
    bytes_since_sample: u64,
}

impl Process {
    fn new(workload: &Workload, fault: Fault, seed: Seed) -> Self {
        let interval = Interval::new(workload.interval).unwrap();
        Self {
            fault,
            seed,
            thread: 0,
            first_interval: interval,
            muted_bytes: workload.muted_bytes,
            walk: Walk::new(fault, interval, seed.thread(0)),
            bytes_since_sample: 0,
        }
    }

    fn fork(&self) -> Self {
        let mut child = self.clone();
        if self.fault != Fault::ChildKeepsSeed {
            child.seed = self.seed.child(4711);
            child.walk = Walk::new(self.fault, self.walk.interval(), child.seed.thread(0));
        }
        child
    }

    fn on_event(&mut self, event: Event, sites: &mut [Site]) {
        match event {
            Event::Alloc {
                site,
                size,
                count,
                aligned,
            } => {
                if !(aligned && self.fault == Fault::AlignedSkipped) {
                    self.on_allocs(&mut sites[site], size, count);
                }
            }
            Event::Grow { site, to } => {
                if self.fault != Fault::GrowthSkipped {
                    self.on_allocs(&mut sites[site], to, 1);
                }
            }
            Event::Interval(bytes) => self.walk.redraw(Interval::new(bytes).unwrap()),
            Event::Thread => {
                if self.fault != Fault::ThreadsShareSeed {
                    self.thread += 1;
                }
                let random = self.seed.thread(self.thread);
                self.walk = Walk::new(self.fault, self.walk.interval(), random);
            }
            Event::Fork => {}
        }
    }

    /// `count` blocks: those that are no samples in one step, as the agent's fast path counts them.
    fn on_allocs(&mut self, site: &mut Site, size: u64, mut count: u64) {
        while count > 0 {
            let unsampled = (self.walk.distance() / size).min(count);
            self.walk.advance(unsampled * size);
            self.bytes_since_sample += unsampled * size;
            count -= unsampled;
            if count > 0 {
                let interval = self.walk.interval();
                let points = self.walk.on_alloc(size);
                self.bytes_since_sample += size;
                self.on_sample(site, size, points, interval);
                count -= 1;
            }
        }
    }

    fn on_sample(&mut self, site: &mut Site, size: u64, points: SamplePoints, interval: Interval) {
        let interval = match self.fault {
            Fault::StaleInterval => self.first_interval,
            _ => interval,
        };
        let weight = Weight::new(GapLaw::Poisson, interval);
        let (mut bytes, mut objects) = (
            weight.bytes_estimate(size, points),
            weight.objects_estimate(size, points, size),
        );
        match self.fault {
            Fault::PointsTimesInterval => {
                let value = points.0 as f64 * interval.bytes() as f64;
                let variance = value * interval.bytes() as f64;
                bytes = Estimate::from_parts(value, Some(variance), 1);
                objects = scaled(bytes, 1.0 / size as f64);
            }
            Fault::BytesSinceLast => {
                let value = self.bytes_since_sample as f64;
                bytes = Estimate::from_parts(value, Some(value * value), 1);
                objects = scaled(bytes, 1.0 / size as f64);
            }
            Fault::ErrorTooLarge => {
                let q = 1.0 - inclusion_probability(size, interval);
                let variance = bytes.variance().unwrap() / q;
                bytes = Estimate::from_parts(bytes.value(), Some(variance), 1);
            }
            _ => {}
        }
        self.bytes_since_sample = 0;
        site.bytes += bytes;
        site.objects += objects;
        site.sampled_bytes += size as f64;
        if self.fault == Fault::PostponedPastMuted {
            let muted = self.muted_bytes.min(self.walk.distance());
            self.walk.advance(muted);
        }
    }
}

fn scaled(estimate: Estimate, factor: f64) -> Estimate {
    let variance = estimate
        .variance()
        .map(|variance| variance * factor * factor);
    Estimate::from_parts(estimate.value() * factor, variance, estimate.samples())
}

/// The way from sample point to sample point.
#[derive(Clone)]
enum Walk {
    Sampler(Sampler),
    Uniform {
        distance: u64,
        interval: Interval,
        random: Random,
    },
}

/// First distance of a new thread.
pub fn first_distance(fault: Fault, interval: Interval, random: Random) -> u64 {
    Walk::new(fault, interval, random).distance()
}

impl Walk {
    fn new(fault: Fault, interval: Interval, mut random: Random) -> Self {
        match fault {
            Fault::UniformGaps => Self::Uniform {
                distance: uniform_gap(interval, &mut random) - 1,
                interval,
                random,
            },
            Fault::PeriodicGaps => Self::Sampler(Sampler::new(GapLaw::Periodic, interval, random)),
            _ => {
                let mut sampler = Sampler::new(GapLaw::Poisson, interval, random);
                if fault == Fault::FirstGapZero {
                    sampler.advance(sampler.bytes_until_sample());
                }
                Self::Sampler(sampler)
            }
        }
    }

    fn distance(&self) -> u64 {
        match self {
            Self::Sampler(sampler) => sampler.bytes_until_sample(),
            Self::Uniform { distance, .. } => *distance,
        }
    }

    fn interval(&self) -> Interval {
        match self {
            Self::Sampler(sampler) => sampler.interval(),
            Self::Uniform { interval, .. } => *interval,
        }
    }

    fn advance(&mut self, bytes: u64) {
        match self {
            Self::Sampler(sampler) => sampler.advance(bytes),
            Self::Uniform { distance, .. } => *distance -= bytes,
        }
    }

    fn on_alloc(&mut self, size: u64) -> SamplePoints {
        match self {
            Self::Sampler(sampler) => sampler.on_alloc(size),
            Self::Uniform {
                distance,
                interval,
                random,
            } => {
                let mut points = 0;
                while *distance < size {
                    *distance += uniform_gap(*interval, random);
                    points += 1;
                }
                *distance -= size;
                SamplePoints(points)
            }
        }
    }

    fn redraw(&mut self, new: Interval) {
        match self {
            Self::Sampler(sampler) => sampler.redraw(new),
            Self::Uniform {
                distance,
                interval,
                random,
            } => {
                *interval = new;
                *distance = uniform_gap(new, random) - 1;
            }
        }
    }
}

fn uniform_gap(interval: Interval, random: &mut Random) -> u64 {
    1 + random.below(2 * interval.bytes() - 1)
}
