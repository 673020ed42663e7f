//! Programs whose truth is known, sample by sample.
//!
//! Allocations of one size at a rate are sampled as a Poisson process of that rate times the probability
//! 1 - exp(-size / interval). Seeds are fixed. [`kinds`] has the kinds of site.

// The test and the example use different parts of it.
#![allow(dead_code)]

pub mod kinds;

use allocsample_leaks::{Finding, Findings};
use allocsample_profile::{
    Exit, ExitHow, Fate, Freed, Gc, GcKind, Heap, HeapId, IntervalInfo, Location, ModuleId, Note,
    Profile, Sample, SampleFlags, SampleId, Sampling, StackId, Thread, ThreadId,
};
use allocsample_report::Selection;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp};

/// Mean bytes between samples.
pub const INTERVAL: u64 = 512 << 10;
/// What requests allocate and free, in bytes a second.
const TRAFFIC_PER_S: f64 = 20e6;

/// A program that is being made.
pub struct Program {
    profile: Profile,
    pub random: StdRng,
    /// How long it runs.
    pub run_s: f64,
    /// How much work there is at each time, 1 on average.
    load: fn(f64) -> f64,
    /// Who calls the next sites.
    caller: StackId,
}

fn ns(seconds: f64) -> u64 {
    // Recording does not begin with the clock.
    1_000_000_000 + (seconds.max(0.0) * 1e9) as u64
}

impl Program {
    /// With requests that come at `load` of the part of the run that is over, at most 2.
    pub fn new(seed: u64, run_s: f64, load: fn(f64) -> f64) -> Self {
        let mut profile = Profile::default();
        profile.process.start_ns = ns(0.0);
        profile.process.end_ns = ns(run_s);
        profile.intervals.push(IntervalInfo {
            time_ns: 0,
            sampling: Sampling::Poisson,
            interval_bytes: INTERVAL,
            seed,
        });
        for (number, name) in [(1, "main"), (2, "reaper")] {
            let thread = Thread {
                tid: number,
                name: name.to_owned(),
                ..Thread::default()
            };
            profile.threads.insert(ThreadId(number), thread);
        }
        let mut program = Self {
            profile,
            random: StdRng::seed_from_u64(seed),
            run_s,
            load,
            caller: StackId::EMPTY,
        };
        for (number, size) in [(0x100, 200), (0x101, 1024), (0x102, 16 << 10)] {
            let per_s = TRAFFIC_PER_S / 3.0;
            program.site(number, size, per_s, |_| 1.0, |time, _| Some(time + 0.01));
        }
        program
    }

    /// Changes the interval halfway through the run.
    pub fn change_interval(&mut self, interval_bytes: u64) {
        self.profile.intervals.push(IntervalInfo {
            time_ns: ns(self.run_s / 2.0),
            sampling: Sampling::Poisson,
            interval_bytes,
            seed: 0,
        });
    }

    /// The profile says that it ended by itself.
    pub fn ends(&mut self) {
        self.profile.exit = Some(Exit {
            time_ns: self.profile.process.end_ns,
            how: ExitHow::Exit,
            status: Some(0),
        });
    }

    /// Where the program frees what it has left.
    pub fn exit_s(&self) -> f64 {
        self.run_s * 0.999
    }

    /// A site that allocates blocks of `size`, on average `bytes_per_s` times `course(part of the run)` (at most 2) times the
    /// load. `life` says when one that is born at a time is freed.
    pub fn site(
        &mut self,
        number: u64,
        size: u64,
        bytes_per_s: f64,
        course: impl Fn(f64) -> f64,
        mut life: impl FnMut(f64, &mut StdRng) -> Option<f64>,
    ) {
        let stack = self.stack(number);
        let probability = -(-(size as f64) / INTERVAL as f64).exp_m1();
        let most = 4.0;
        let gap = Exp::new(bytes_per_s / size as f64 * probability * most).unwrap();
        let mut time_s = 0.0;
        loop {
            time_s += gap.sample(&mut self.random);
            if time_s >= self.exit_s() {
                return;
            }
            // Thinning: a rate that changes.
            let part = time_s / self.run_s;
            if self.random.random::<f64>() * most > course(part) * (self.load)(part) {
                continue;
            }
            let end = life(time_s, &mut self.random);
            self.sample(stack, size, time_s, end, 1);
        }
    }

    /// Blocks at given times, each of `size`, recorded as chance has it.
    pub fn blocks(
        &mut self,
        number: u64,
        size: u64,
        times_s: impl Iterator<Item = f64>,
        life: impl Fn(f64) -> Option<f64>,
    ) {
        let stack = self.stack(number);
        let probability = -(-(size as f64) / INTERVAL as f64).exp_m1();
        for time_s in times_s {
            if self.random.random::<f64>() < probability {
                self.sample(stack, size, time_s, life(time_s), 1);
            }
        }
    }

    /// A site of a heap that is collected after each `every` of the run, in full: objects that became garbage are found then.
    pub fn collected(
        &mut self,
        number: u64,
        size: u64,
        bytes_per_s: f64,
        every: f64,
        course: impl Fn(f64) -> f64,
        life: impl FnMut(f64, &mut StdRng) -> Option<f64>,
    ) {
        let heap = HeapId(1);
        let every_s = every * self.run_s;
        let first = self.profile.samples.len();
        self.site(number, size, bytes_per_s, course, life);
        let end_s = self.exit_s();
        let found_s = |garbage_s: f64| ((garbage_s / every_s).floor() + 1.0) * every_s;
        for row in first..self.profile.samples.len() {
            let mut sample = self.profile.samples.at(row);
            sample.heap = heap;
            sample.first_fate = Some(Fate::Open);
            let garbage = sample.freed().map(|freed| freed.time_ns);
            sample.freed_ns = None;
            sample.freed_by = ThreadId(0);
            let dead_s = garbage.map(|ended_ns| found_s((ended_ns - ns(0.0)) as f64 / 1e9));
            if let Some(dead_s) = dead_s.filter(|&dead_s| dead_s < end_s) {
                sample.set_freed(Freed {
                    time_ns: ns(dead_s),
                    thread: ThreadId(0),
                });
            }
            self.profile.samples.set(row, sample);
        }
        self.profile.vm.heaps.insert(heap, Heap::default());
        // Minor collections tell that it is a collected heap.
        let minor = (GcKind::Minor, 0.01 * self.run_s);
        let full = (1..).map(|n| (GcKind::Major, every_s * f64::from(n)));
        let full = full.take_while(|(_, at_s)| *at_s < end_s);
        for (kind, at_s) in std::iter::once(minor).chain(full) {
            self.profile.vm.gcs.push(Gc {
                heap,
                kind,
                id: ns(at_s),
                begin_ns: ns(at_s),
                end_ns: ns(at_s),
                looked_until_ns: ns(at_s),
                statistics: Vec::new(),
            });
        }
    }

    /// A site that has one block, which is replaced each `step_s` by one that is larger by `bytes`.
    pub fn buffer(&mut self, number: u64, step_s: f64, bytes: u64) {
        let stack = self.stack(number);
        for step in 1..(self.exit_s() / step_s) as u64 {
            let size = step * bytes;
            let probability = -(-(size as f64) / INTERVAL as f64).exp_m1();
            if self.random.random::<f64>() < probability {
                let time_s = step as f64 * step_s;
                self.sample(stack, size, time_s, Some(time_s + step_s), 1);
            }
        }
    }

    /// Steady sites: each has a few samples alive at any time.
    pub fn neighbours(&mut self, count: u64) {
        for number in 0..count {
            let mean_s = self.run_s / 20.0 * (1.0 + (number % 5) as f64);
            let per_s = 4.0 * INTERVAL as f64 / mean_s;
            self.site(
                0x10000 + number,
                1024,
                per_s,
                |_| 1.0,
                |time, random| Some(time + exponential(random, mean_s)),
            );
        }
    }

    /// Recording began when the program had run for long. `resident` is the resident set in bytes at a part of the run.
    pub fn attached(&mut self, resident: impl Fn(f64) -> f64) {
        self.profile.notes.push((Note::Attached, String::new()));
        for step in 0..=20 {
            let part = f64::from(step) / 20.0;
            let noise = 1e5 * self.random.random::<f64>();
            let bytes = resident(part) + noise;
            let time_ns = ns(part * self.run_s);
            self.profile.resident_bytes.push((time_ns, bytes as u64));
        }
    }

    /// No reading of the resident set.
    pub fn forget_resident(&mut self) {
        self.profile.resident_bytes.clear();
    }

    /// Sites from here on are called by functions with these numbers, the root first.
    pub fn called_by(&mut self, callers: &[u64]) {
        self.caller = StackId::EMPTY;
        for &number in callers {
            self.caller = self.stack(number);
        }
    }

    fn stack(&mut self, number: u64) -> StackId {
        self.profile.stacks.push(allocsample_record::StackNode {
            parent: self.caller,
            location: Location {
                module: ModuleId(0),
                offset: number + 1,
            },
        })
    }

    fn sample(&mut self, stack: StackId, size: u64, time_s: f64, end: Option<f64>, thread: u32) {
        let id = self.profile.samples.len() as u64;
        let mut sample = Sample {
            id: SampleId(id),
            time_ns: ns(time_s),
            size,
            thread: ThreadId(thread),
            heap: HeapId::MALLOC,
            flags: SampleFlags::default(),
            points: 1,
            stack,
            ..Sample::default()
        };
        if let Some(end_s) = end.filter(|&end_s| end_s < self.run_s) {
            sample.set_freed(Freed {
                time_ns: ns(end_s),
                thread: ThreadId(thread),
            });
        }
        self.profile.samples.push(sample);
    }

    /// The profile, judged.
    pub fn findings(mut self) -> Findings {
        let mut samples: Vec<Sample> = self.profile.samples.iter().collect();
        samples.sort_by_key(|sample| sample.time_ns);
        self.profile.samples = samples.into();
        Findings::of(&self.profile, &Selection::default())
    }
}

/// The finding of a site, if it has live bytes.
pub fn finding(findings: &Findings, number: u64) -> Option<&Finding> {
    let function = format!("{number:#x}");
    let mut sites = findings.sites.iter();
    sites.find(|finding| finding.function.function == function)
}

pub fn exponential(random: &mut StdRng, mean_s: f64) -> f64 {
    Exp::new(1.0 / mean_s).unwrap().sample(random)
}
