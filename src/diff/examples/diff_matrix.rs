//! How often `diff` calls a site changed that did not change, and how often it finds one that did: for sites of few and many
//! samples, equal, unequal and changed intervals, programs whose runs differ by themselves, one run a side and five.
//! Prints the tables of docs/diff.md; `scripts/bench-diff` does the rest.

use std::io::{self, Write};

use allocsample_diff::{Diff, Measure, Per};
use allocsample_profile::{
    HeapId, IntervalInfo, Location, ModuleId, Profile, Sample, SampleId, Sampling, StackId,
    StackNode, ThreadId,
};
use allocsample_report::By;
use allocsample_sampling::{Interval, Random, inclusion_probability};

const INTERVAL: u64 = 64 << 10;
const LEVEL: f64 = 0.05;
const VARIATIONS: [f64; 4] = [0.0, 0.03, 0.1, 0.2];
/// Runs before and after.
const RUNS: [(usize, usize); 4] = [(1, 1), (2, 2), (5, 5), (5, 1)];
const FACTORS: [f64; 2] = [1.0, 1.5];

/// The blocks of a site in one run: sizes, and how many intervals' bytes each size has.
struct Site {
    name: &'static str,
    sizes: &'static [(u64, f64)],
}

static SITES: [Site; 4] = [
    Site {
        name: "3 samples",
        sizes: &[(64, 3.0)],
    },
    Site {
        name: "30 samples",
        sizes: &[(64, 30.0)],
    },
    Site {
        name: "300 samples",
        sizes: &[(64, 300.0)],
    },
    Site {
        name: "16 B, 4 KiB and 300 KiB mixed",
        // 16 of the large blocks.
        sizes: &[(16, 10.0), (4 << 10, 10.0), (300 << 10, 75.0)],
    },
];

/// The intervals of each half of a run, before and after, as multiples of [`INTERVAL`].
struct Pair {
    name: &'static str,
    before: [u64; 2],
    after: [u64; 2],
}

const PAIRS: [Pair; 4] = [
    Pair {
        name: "equal",
        before: [1, 1],
        after: [1, 1],
    },
    Pair {
        name: "x 4 after",
        before: [1, 1],
        after: [4, 4],
    },
    Pair {
        name: "x 16 half-way, after",
        before: [1, 1],
        after: [1, 16],
    },
    Pair {
        name: "x 16 half-way, both",
        before: [1, 16],
        after: [1, 16],
    },
];

/// A standard normal figure: G. E. P. Box and M. E. Muller, Annals of Mathematical Statistics 29 (1958), 610-611.
fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * random.unit().ln()).sqrt();
    radius * (2.0 * std::f64::consts::PI * random.unit()).cos()
}

/// A count with Poisson's law: the events of a process before `mean`.
fn poisson(mean: f64, random: &mut Random) -> u64 {
    let (mut time, mut count) = (0.0, 0);
    loop {
        time -= random.unit().ln();
        if time > mean {
            return count;
        }
        count += 1;
    }
}

/// One run of a program whose site allocates `factor` times as much as the table says, but for what runs differ by.
fn profile(
    site: &Site,
    intervals: [u64; 2],
    factor: f64,
    variation: f64,
    random: &mut Random,
) -> Profile {
    let mut profile = Profile::default();
    let stack = profile.stacks.push(StackNode {
        parent: StackId::EMPTY,
        location: Location {
            module: ModuleId(0),
            offset: 0x1000,
        },
    });
    // Log-normal, of mean 1.
    let luck = (variation * normal(random) - variation * variation / 2.0).exp();
    let mut number = 0;
    for (half, multiple) in intervals.into_iter().enumerate() {
        let info = IntervalInfo {
            time_ns: 1000 * half as u64,
            sampling: Sampling::Poisson,
            interval_bytes: multiple * INTERVAL,
            seed: 0,
        };
        let known = profile.intervals.iter();
        let mut known = known.map(|it| it.interval_bytes);
        let index = known.position(|bytes| bytes == info.interval_bytes);
        let index = index.unwrap_or_else(|| {
            profile.intervals.push(info);
            profile.interval_history.push(info);
            profile.intervals.len() - 1
        });
        let interval = Interval::new(info.interval_bytes).expect("an interval");
        for &(size, bytes) in site.sizes {
            let blocks = luck * factor * bytes * INTERVAL as f64 / size as f64 / 2.0;
            let p = inclusion_probability(size, interval);
            // Large blocks are few: how many there are is whole, and whether each is recorded is drawn.
            let recorded = match blocks < 1000.0 {
                true => {
                    let whole = (blocks + random.unit()) as u64;
                    (0..whole).filter(|_| random.unit() < p).count() as u64
                }
                false => poisson(blocks * p, random),
            };
            for _ in 0..recorded {
                number += 1;
                profile.samples.push(Sample {
                    id: SampleId(number),
                    time_ns: info.time_ns + 1,
                    size,
                    thread: ThreadId(1),
                    points: 1,
                    stack,
                    heap: HeapId::MALLOC,
                    interval: index as u16,
                    ..Sample::default()
                });
            }
        }
    }
    profile.process.end_ns = 2000;
    profile
}

/// In how many of `comparisons` the site is called changed.
fn found(
    (site, pair): (&Site, &Pair),
    (factor, variation): (f64, f64),
    runs: (usize, usize),
    comparisons: u64,
) -> u64 {
    let found = (0..comparisons).filter(|&seed| {
        let mut random = Random::from_seed(seed + 1);
        let mut side = |runs, intervals, factor| -> Vec<Profile> {
            (0..runs)
                .map(|_| profile(site, intervals, factor, variation, &mut random))
                .collect()
        };
        let (before, after) = (
            side(runs.0, pair.before, 1.0),
            side(runs.1, pair.after, factor),
        );
        let [before, after] = [&before, &after].map(|runs| runs.iter().collect::<Vec<_>>());
        let (by, measure) = (By::Function, Measure::Allocated);
        let diff = Diff::of_runs(&before, &after, by, measure, Per::Run);
        diff.total.p_value.is_some_and(|p| p < LEVEL)
    });
    found.count() as u64
}

/// The lines of a site and a pair of intervals, for each number of runs.
fn lines(site: &Site, pair: &Pair, factor: f64, comparisons: u64) -> String {
    let line = |runs: (usize, usize)| {
        let cells = VARIATIONS.map(|variation| {
            let found = found((site, pair), (factor, variation), runs, comparisons);
            format!("{:.1}", 100.0 * found as f64 / comparisons as f64)
        });
        let (site, intervals, cells) = (site.name, pair.name, cells.join(" | "));
        format!(
            "| {site} | {intervals} | {}, {} | {cells} |\n",
            runs.0, runs.1
        )
    };
    RUNS.map(line).concat()
}

fn main() -> io::Result<()> {
    let comparisons: u64 = std::env::args()
        .nth(1)
        .and_then(|it| it.parse().ok())
        .unwrap_or(1000);
    let tables = FACTORS.map(|factor| {
        let of_sites = SITES.each_ref().map(|site| {
            std::thread::spawn(move || PAIRS.map(|pair| lines(site, &pair, factor, comparisons)))
        });
        (factor, of_sites)
    });
    let mut out = io::stdout().lock();
    for (factor, of_sites) in tables {
        match factor {
            1.0 => writeln!(out, "Called changed although nothing changed:\n")?,
            _ => writeln!(
                out,
                "\nFound, where the site allocates {factor} times as much:\n"
            )?,
        }
        write!(out, "| site | intervals | runs |")?;
        for variation in VARIATIONS {
            write!(out, " {:.0} % |", 100.0 * variation)?;
        }
        writeln!(out, "\n|---|---|---|{}", "---|".repeat(VARIATIONS.len()))?;
        for lines in of_sites {
            let lines = lines.join().expect("no panic");
            write!(out, "{}", lines.concat())?;
        }
        out.flush()?;
    }
    Ok(())
}
