//! What the agent's own sampler, and its budgets, record of a program.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use allocsample_profile::{
    Exit, ExitHow, Fate, Freed, Heap, HeapId, HeapKind, IntervalInfo, Location, ModuleId, Profile,
    ReachBuilder, Sample, SampleFlags, SampleId, Sampling, StackId, StackNode, Thread, ThreadId,
    Type,
};
use allocsample_sampling::{
    Budget, Controller, GapLaw, Interval, LiveLimit, Random, Sampler, Window,
};

use crate::program::{Block, INTERVAL, SITES, program};

/// What happens to the sampling while the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Nothing.
    Constant,
    /// The interval is 16 times as long in the second half.
    Changed,
    /// `--max-overhead`.
    Overhead,
    /// `--max-samples-per-second`.
    Rate,
    /// `--max-live`.
    Live,
    /// The recording begins after a third of the run.
    Attached,
    /// The file begins after half of the run; what was alive is carried over.
    Rotated,
    /// The first site is malloc's. The second's objects are those of a heap with an interval of its own, a quarter of
    /// malloc's; the third's those of another heap, whose interval is 16 times as long in the second half.
    Heaps,
    /// The same in a recording that does not have the intervals of heaps.
    UntoldHeaps,
}

impl Scenario {
    pub const ALL: [Scenario; 8] = [
        Scenario::Constant,
        Scenario::Changed,
        Scenario::Overhead,
        Scenario::Rate,
        Scenario::Live,
        Scenario::Attached,
        Scenario::Rotated,
        Scenario::Heaps,
    ];

    /// What it is called in the table.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Constant => "constant",
            Scenario::Changed => "changed",
            Scenario::Overhead => "`--max-overhead`",
            Scenario::Rate => "`--max-samples-per-second`",
            Scenario::Live => "`--max-live`",
            Scenario::Attached => "attached",
            Scenario::Rotated => "rotated",
            Scenario::Heaps => "own intervals",
            Scenario::UntoldHeaps => "own intervals, untold",
        }
    }

    /// Whose blocks a site's are.
    pub fn heap(self, site: usize) -> HeapId {
        match self {
            Scenario::Heaps | Scenario::UntoldHeaps => HeapId(site as u16),
            _ => HeapId::MALLOC,
        }
    }

    /// Expected samples of the rest of the program: a budget has no effect without.
    fn rest(self) -> f64 {
        match self {
            Scenario::Overhead | Scenario::Rate | Scenario::Live => 9600.0,
            _ => 0.0,
        }
    }

    /// A program whose sites have so many expected samples each. Budgets make the intervals longer, so there the sites
    /// allocate more.
    pub fn program(self, samples: f64, seed: u64) -> Vec<Block> {
        let random = &mut Random::from_seed(seed);
        if self.rest() == 0.0 {
            return program(samples, 0.0, random);
        }
        // The rest alone decides on the intervals: of a run without more than it, how much fewer samples it has.
        let alone = program(1.0, self.rest(), &mut Random::from_seed(1));
        let (profile, _) = record(&alone, self, 1);
        let end_ns = profile.process.end_ns;
        let history = &profile.interval_history;
        let ends = history.iter().skip(1).map(|next| next.time_ns);
        let share: f64 = history
            .iter()
            .zip(ends.chain([end_ns]))
            .map(|(info, until_ns)| {
                let part = (until_ns - info.time_ns) as f64 / end_ns as f64;
                part * INTERVAL as f64 / info.interval_bytes as f64
            })
            .sum();
        program(samples / share, self.rest(), random)
    }
}

fn info(time_ns: u64, interval_bytes: u64) -> IntervalInfo {
    IntervalInfo {
        time_ns,
        sampling: Sampling::Poisson,
        interval_bytes,
        seed: 0,
    }
}

/// Windows of a run after which a budget is looked at; each is a tenth of a second to it.
const WINDOWS: u64 = 128;

/// Chooses the interval.
enum Keeper {
    Nobody,
    At(u64),
    Controller(Controller),
    Live(LiveLimit),
}

impl Keeper {
    fn of(scenario: Scenario, end_ns: u64) -> Self {
        /// Samples that are allowed in a window.
        const ALLOWED: f64 = 25.0;
        let shortest = Interval::new(INTERVAL).unwrap();
        let controller = |overhead, samples_per_second| {
            Self::Controller(Controller::new(Budget {
                overhead,
                samples_per_second,
                shortest,
            }))
        };
        match scenario {
            Scenario::Changed => Self::At(end_ns / 2),
            Scenario::Overhead => controller(Some(ALLOWED * SAMPLE_NS / 1e8), None),
            Scenario::Rate => controller(None, Some(10.0 * ALLOWED)),
            Scenario::Live => Self::Live(LiveLimit::new(800, shortest)),
            _ => Self::Nobody,
        }
    }

    /// The interval from now on. A window with so many samples has just ended, `live` of all are alive.
    fn next(&mut self, interval: Interval, time_ns: u64, samples: u64, live: usize) -> Interval {
        let next = match self {
            Self::Nobody => None,
            Self::At(at_ns) => (time_ns >= *at_ns)
                .then(|| Interval::new(16 * INTERVAL))
                .flatten(),
            Self::Controller(controller) => {
                let agent_ns = samples as f64 * SAMPLE_NS;
                let window = Window {
                    elapsed_ns: 1e8,
                    program_ns: 1e8 - agent_ns,
                    agent_ns,
                    samples: samples as f64,
                };
                controller.observe(interval, &window)
            }
            Self::Live(limit) => limit.look(live as u64),
        };
        next.unwrap_or(interval)
    }
}

const SAMPLE_NS: f64 = 2000.0;

/// A heap with intervals of its own.
struct Machine {
    id: HeapId,
    /// From when on, and how many bytes; the last come first.
    intervals: Vec<(u64, u64)>,
    /// The index in the profile of the one in force.
    index: usize,
    sampler: Sampler,
}

impl Machine {
    /// Those of a run, made known to its profile.
    fn all(scenario: Scenario, end_ns: u64, profile: &mut Profile, seed: u64) -> Vec<Self> {
        if !matches!(scenario, Scenario::Heaps | Scenario::UntoldHeaps) {
            return Vec::new();
        }
        let steady = vec![(0, INTERVAL / 4)];
        let changing = vec![(end_ns / 2, 16 * INTERVAL), (0, INTERVAL)];
        let all = (1..).zip([steady, changing]).map(|(number, intervals)| {
            let id = HeapId(number);
            let registered = Heap {
                name: format!("machine {number}"),
                kind: Some(HeapKind::External),
                exact_bytes: 0,
            };
            profile.vm.heaps.insert(id, registered);
            let kind = Type {
                name: format!("type {}", number + 1),
                detail: String::new(),
            };
            profile.vm.types.insert((id, u32::from(number) + 1), kind);
            let interval = Interval::new(INTERVAL).unwrap();
            let random = Random::from_seed(seed ^ 0xBEEF ^ u64::from(number) << 32);
            Self {
                id,
                intervals,
                index: 0,
                sampler: Sampler::new(GapLaw::Poisson, interval, random),
            }
        });
        all.collect()
    }

    /// The interval of now.
    fn follow(&mut self, time_ns: u64, profile: &mut Profile, reach: &mut ReachBuilder) {
        while let Some(&(from_ns, bytes)) = self.intervals.last()
            && from_ns <= time_ns
        {
            self.intervals.pop();
            self.sampler.redraw(Interval::new(bytes).unwrap());
            let info = info(from_ns, bytes);
            self.index = profile.intervals.len();
            profile.intervals.push(info);
            reach.add_heaps_interval(self.index as u16);
            profile.vm.intervals.entry(self.id).or_default().push(info);
        }
    }
}

/// The profile of a run, and from when on it knows of allocations.
pub fn record(blocks: &[Block], scenario: Scenario, seed: u64) -> (Profile, u64) {
    let mut profile = Profile::default();
    let stacks: Vec<StackId> = (0..=SITES)
        .map(|site| {
            profile.stacks.push(StackNode {
                parent: StackId::EMPTY,
                location: Location {
                    module: ModuleId(0),
                    offset: 0x1000 * (site as u64 + 1),
                },
            })
        })
        .collect();
    let end_ns = blocks.len() as u64 * 10 + 10;
    let begin_ns = match scenario {
        Scenario::Attached => end_ns / 3,
        Scenario::Rotated => end_ns / 2,
        _ => 0,
    };
    let mut interval = Interval::new(INTERVAL).unwrap();
    let random = Random::from_seed(seed ^ 0xC0FFEE);
    let mut sampler = Sampler::new(GapLaw::Poisson, interval, random);
    profile.intervals.push(info(0, INTERVAL));
    profile.interval_history.push(info(0, INTERVAL));
    let mut keeper = Keeper::of(scenario, end_ns);
    let (mut window_end_ns, mut in_window) = (0, 0);
    let mut deaths: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
    let (thread, mut reach) = (ThreadId(1), ReachBuilder::default());
    let (mut bytes, mut bytes_before) = (0, 0);
    let mut machines = Machine::all(scenario, end_ns, &mut profile, seed);
    for (number, block) in blocks.iter().enumerate() {
        if scenario == Scenario::Attached && block.time_ns < begin_ns {
            continue;
        }
        let heap = scenario.heap(block.site);
        for machine in &mut machines {
            machine.follow(block.time_ns, &mut profile, &mut reach);
        }
        let is_mallocs = heap == HeapId::MALLOC;
        bytes += if is_mallocs { block.size } else { 0 };
        if block.time_ns < begin_ns {
            bytes_before = bytes;
        }
        if block.time_ns >= window_end_ns {
            while deaths.peek().is_some_and(|it| it.0 <= block.time_ns) {
                deaths.pop();
            }
            let next = keeper.next(interval, block.time_ns, in_window, deaths.len());
            (window_end_ns, in_window) = (window_end_ns + end_ns / WINDOWS, 0);
            if next != interval {
                interval = next;
                sampler.redraw(interval);
                let info = info(block.time_ns, interval.bytes());
                profile.interval_history.push(info);
                let mut known = profile.intervals.iter();
                if !known.any(|it| it.interval_bytes == interval.bytes()) {
                    profile.intervals.push(info);
                }
            }
        }
        let machine = machines.iter_mut().find(|it| it.id == heap);
        let own = machine.as_ref().map(|it| it.index);
        let points = match machine {
            Some(machine) => machine.sampler.on_alloc(block.size),
            None => sampler.on_alloc(block.size),
        };
        if !points.is_sampled() {
            continue;
        }
        in_window += 1;
        deaths.push(Reverse(block.freed_ns.unwrap_or(u64::MAX)));
        let is_carried = scenario == Scenario::Rotated && block.time_ns < begin_ns;
        if is_carried && block.freed_ns.is_some_and(|freed_ns| freed_ns < begin_ns) {
            continue;
        }
        let mut known = profile.intervals.iter();
        let index = own.or_else(|| known.position(|it| it.interval_bytes == interval.bytes()));
        let mut sample = Sample {
            id: SampleId(number as u64),
            time_ns: block.time_ns,
            size: block.size,
            thread,
            points: points.0 as u32,
            stack: stacks[block.site],
            heap,
            type_id: if is_mallocs { 0 } else { block.site as u32 + 1 },
            first_fate: (!is_mallocs).then_some(Fate::Open),
            interval: index.unwrap() as u16,
            flags: if is_carried {
                SampleFlags::CARRIED
            } else {
                SampleFlags::default()
            },
            ..Sample::default()
        };
        if let Some(time_ns) = block.freed_ns {
            sample.set_freed(Freed { time_ns, thread });
        }
        reach.add_size(&sample);
        if !is_carried && is_mallocs {
            let history = &profile.interval_history;
            reach.add_bytes(thread, &[bytes], bytes_before, history);
        }
        profile.samples.push(sample);
    }
    profile.process.start_ns = begin_ns;
    profile.process.end_ns = end_ns;
    profile.exit = Some(Exit {
        time_ns: end_ns,
        how: ExitHow::Exit,
        status: Some(0),
    });
    let of_thread = Thread {
        exact_bytes: bytes,
        ..Thread::default()
    };
    profile.threads.insert(thread, of_thread);
    profile.reach = reach.finish(&profile, |_| bytes_before);
    if scenario == Scenario::UntoldHeaps {
        profile.vm.intervals.clear();
    }
    (profile, begin_ns)
}
