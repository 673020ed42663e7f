//! How often the printed 95 % limits hold the truth, for few samples and many, mixed sizes, changing intervals.
//!
//! Programs are simulated with the agent's own sampler and become profiles; every figure comes from the report. All
//! seeds are fixed. `scripts/bench-accuracy` writes the whole table into docs/accuracy.md.

use std::collections::BTreeMap;

use allocsample_profile::{
    Freed, HeapId, IntervalInfo, Location, ModuleId, Profile, Sample, SampleFlags, SampleId,
    Sampling, StackId, StackNode, ThreadId,
};
use allocsample_report::lifetimes::Answer;
use allocsample_report::{By, Estimate, Frames, Request, Selection, Sort, Table, Totals};
use allocsample_sampling::{GapLaw, Interval, Random, Sampler};

const INTERVAL: u64 = 16 << 10;
const SITES: usize = 3;

/// What happens to the sampling while the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    /// Nothing.
    Constant,
    /// The interval is 16 times as long in the second half.
    Changed,
    /// A controller doubles or halves the interval, by the samples of each sixteenth of the run.
    Rate,
    /// The interval is four times as long whenever too many samples are alive.
    Live,
    /// The recording begins after a third of the run.
    Attached,
    /// The file begins after half of the run; what was alive is carried over.
    Rotated,
}

const SCENARIOS: [Scenario; 6] = [
    Scenario::Constant,
    Scenario::Changed,
    Scenario::Rate,
    Scenario::Live,
    Scenario::Attached,
    Scenario::Rotated,
];

/// One block.
#[derive(Clone, Copy)]
struct Block {
    site: usize,
    size: u64,
    time_ns: u64,
    freed_ns: Option<u64>,
}

/// Site 0 has blocks of 48 bytes, site 1 of 8 bytes to 32 KiB (each octave as many bytes), site 2 blocks of 64 bytes and
/// a few of twenty intervals. Each has `samples` expected samples. In random order; a fifth is never freed.
fn program(samples: f64, random: &mut Random) -> Vec<Block> {
    let bytes = (samples * INTERVAL as f64) as u64;
    let mut sizes: Vec<(usize, u64)> = Vec::new();
    let mut fill = |site: usize, bytes: u64, next: &mut dyn FnMut() -> u64| {
        let mut sum = 0;
        while sum < bytes {
            let size = next();
            sum += size;
            sizes.push((site, size));
        }
    };
    fill(0, bytes, &mut || 48);
    // As many bytes in each octave: sizes as 1/size.
    fill(1, bytes, &mut || {
        (8.0 / (1.0 - random.unit() * (1.0 - 1.0 / 4096.0))) as u64
    });
    fill(2, bytes, &mut || 64);
    fill(2, 20 * INTERVAL, &mut || 20 * INTERVAL);
    for index in (1..sizes.len()).rev() {
        let other = random.below(index as u64 + 1) as usize;
        sizes.swap(index, other);
    }
    let count = sizes.len() as f64;
    let blocks = (1_u64..).zip(sizes).map(|(number, (site, size))| {
        let time_ns = number * 10;
        let lifetime = -(count / 5.0) * 10.0 * random.unit().ln();
        let is_kept = random.below(5) == 0;
        let freed_ns = time_ns + 1 + lifetime as u64;
        Block {
            site,
            size,
            time_ns,
            freed_ns: (!is_kept && freed_ns < count as u64 * 10).then_some(freed_ns),
        }
    });
    blocks.collect()
}

fn info(time_ns: u64, interval_bytes: u64) -> IntervalInfo {
    IntervalInfo {
        time_ns,
        sampling: Sampling::Poisson,
        interval_bytes,
        seed: 0,
    }
}

/// The profile of a run, and from when on it knows of allocations.
fn record(blocks: &[Block], scenario: Scenario, seed: u64) -> (Profile, u64) {
    let mut profile = Profile::default();
    let stacks: Vec<StackId> = (0..SITES)
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
    let mut interval = INTERVAL;
    let random = Random::from_seed(seed ^ 0xC0FFEE);
    let mut sampler = Sampler::new(GapLaw::Poisson, Interval::new(interval).unwrap(), random);
    profile.intervals.push(info(0, interval));
    profile.interval_history.push(info(0, interval));
    let (mut window, mut level) = (0_u64, 0);
    let window_blocks = (blocks.len() / 16).max(1);
    for (number, block) in blocks.iter().enumerate() {
        if scenario == Scenario::Attached && block.time_ns < begin_ns {
            continue;
        }
        let wanted = match scenario {
            Scenario::Changed if block.time_ns >= end_ns / 2 => 16 * INTERVAL,
            Scenario::Rate if number % window_blocks == window_blocks - 1 => {
                let next = if window > 4 {
                    interval * 2
                } else {
                    (interval / 2).max(INTERVAL)
                };
                window = 0;
                next
            }
            Scenario::Live if profile.samples.len() > 10 << level => {
                level += 1;
                interval * 4
            }
            _ => interval,
        };
        if wanted != interval {
            interval = wanted;
            sampler.redraw(Interval::new(interval).unwrap());
            profile.interval_history.push(info(block.time_ns, interval));
            if !profile
                .intervals
                .iter()
                .any(|it| it.interval_bytes == interval)
            {
                profile.intervals.push(info(block.time_ns, interval));
            }
        }
        let points = sampler.on_alloc(block.size);
        if !points.is_sampled() {
            continue;
        }
        window += 1;
        let is_carried = scenario == Scenario::Rotated && block.time_ns < begin_ns;
        if is_carried && block.freed_ns.is_some_and(|freed_ns| freed_ns < begin_ns) {
            continue;
        }
        let index = profile
            .intervals
            .iter()
            .position(|it| it.interval_bytes == interval);
        let mut sample = Sample {
            id: SampleId(number as u64),
            time_ns: block.time_ns,
            size: block.size,
            thread: ThreadId(1),
            points: points.0 as u32,
            stack: stacks[block.site],
            heap: HeapId::MALLOC,
            interval: index.unwrap() as u16,
            flags: if is_carried {
                SampleFlags::CARRIED
            } else {
                SampleFlags::default()
            },
            ..Sample::default()
        };
        if let Some(time_ns) = block.freed_ns {
            let thread = ThreadId(1);
            sample.set_freed(Freed { time_ns, thread });
        }
        profile.samples.push(sample);
    }
    profile.process.start_ns = begin_ns;
    profile.process.end_ns = end_ns;
    (profile, begin_ns)
}

/// How often limits held the truth, by figure.
type Held = BTreeMap<&'static str, (u32, u32)>;

/// The limits that are judged.
type Judge = fn(&Estimate) -> (f64, f64);

fn printed(estimate: &Estimate) -> (f64, f64) {
    let limits = estimate.limits_95().unwrap();
    (limits.low, limits.high)
}

/// What a standard error of the drawn blocks alone would say.
fn of_drawn_blocks(estimate: &Estimate) -> (f64, f64) {
    let half = 1.96 * estimate.variance().unwrap().sqrt();
    (estimate.value() - half, estimate.value() + half)
}

/// The truth about blocks: bytes, number.
fn sums<'a>(blocks: impl Iterator<Item = &'a Block>) -> (f64, f64) {
    blocks.fold((0.0, 0.0), |sum, block| {
        (sum.0 + block.size as f64, sum.1 + 1.0)
    })
}

fn run(samples: f64, scenario: Scenario, seed: u64, judge: Judge, held: &mut Held) {
    let blocks = program(samples, &mut Random::from_seed(seed));
    let (profile, begin_ns) = record(&blocks, scenario, seed);
    let mut add = |figure: &'static str, estimate: &Estimate, truth: f64| {
        let (low, high) = judge(estimate);
        let (hits, all) = held.entry(figure).or_default();
        // Estimates are sums of rounded products.
        let slack = 1e-9 * truth.abs();
        *hits += u32::from((low - slack..=high + slack).contains(&truth));
        *all += 1;
    };
    let end_ns = profile.process.end_ns;
    let is_known = |block: &&Block| scenario != Scenario::Attached || block.time_ns >= begin_ns;
    let known: Vec<Block> = blocks.iter().filter(is_known).copied().collect();
    let is_new = |block: &&Block| block.time_ns >= begin_ns;
    let is_live_at = |block: &Block, time_ns: u64| {
        block.time_ns <= time_ns && block.freed_ns.is_none_or(|freed_ns| freed_ns > time_ns)
    };
    let totals = Totals::of(&profile);
    let (bytes, count) = sums(known.iter().filter(is_new));
    add("allocated", &totals.allocated, bytes);
    add("allocations", &totals.allocations, count);
    let (live, _) = sums(known.iter().filter(|it| is_live_at(it, end_ns)));
    add("live", &totals.live, live);
    let mut changes: Vec<(u64, i64)> = Vec::new();
    for block in &known {
        let size = block.size as i64;
        changes.push((block.time_ns.max(begin_ns), size));
        changes.extend(
            block
                .freed_ns
                .map(|freed_ns| (freed_ns.max(begin_ns), -size)),
        );
    }
    changes.sort_unstable();
    let (mut level, mut peak) = (0, (0, begin_ns));
    for (time_ns, change) in changes {
        level += change;
        peak = peak.max((level, time_ns));
    }
    add("peak", &totals.peak.bytes, peak.0 as f64);

    let frames = Frames::of(&profile);
    let answer = Answer::of(&profile, &frames, &Selection::default(), 3);
    let (kept, _) = sums(
        known
            .iter()
            .filter(is_new)
            .filter(|it| it.freed_ns.is_none()),
    );
    add("not freed", &answer.all.not_freed, kept);

    let length_ns = end_ns - begin_ns;
    let part = Selection {
        since_ns: Some(length_ns / 3),
        until_ns: Some(length_ns / 3 * 2),
        ..Selection::default()
    };
    let since_ns = begin_ns + length_ns / 3;
    let until_ns = begin_ns + length_ns / 3 * 2;
    for (selection, is_whole) in [(&Selection::default(), true), (&part, false)] {
        let request = Request {
            by: By::Site,
            sort: Sort::Allocated,
            selection,
            peak: Some(totals.peak.moments),
            limit: usize::MAX,
        };
        let table = Table::of(&profile, &frames, &request);
        let allowance = profile.allowance(HeapId::MALLOC, 0, u64::MAX);
        assert!(table.rows.len() <= SITES);
        for site in 0..SITES {
            // A return address: the call is before it.
            let name = format!("0x{:x}", 0x1000 * (site + 1) - 1);
            let row = table.rows.iter().find(|row| row.name == name);
            let none = Estimate::ZERO.allowing_for(allowance.bytes);
            let no_objects = Estimate::ZERO.allowing_for(allowance.objects);
            let of_site = known.iter().filter(|block| block.site == site);
            let within = of_site.clone().filter(is_new);
            if is_whole {
                let (bytes, count) = sums(within);
                add(
                    "site allocated",
                    &row.map_or(none, |row| row.self_allocated),
                    bytes,
                );
                add(
                    "site allocations",
                    &row.map_or(no_objects, |row| row.allocations),
                    count,
                );
                let (live, _) = sums(of_site.clone().filter(|it| is_live_at(it, end_ns)));
                add("site live", &row.map_or(none, |row| row.self_live), live);
                let (at_peak, _) = sums(of_site.filter(|it| is_live_at(it, peak.1)));
                add(
                    "site at the peak",
                    &row.map_or(none, |row| row.self_peak),
                    at_peak,
                );
            } else {
                let (bytes, _) =
                    sums(within.filter(|it| (since_ns..=until_ns).contains(&it.time_ns)));
                add(
                    "site in a window",
                    &row.map_or(none, |row| row.self_allocated),
                    bytes,
                );
            }
        }
    }
}

fn coverage(samples: f64, scenario: Scenario, seeds: u64, judge: Judge) -> Held {
    let mut held = Held::new();
    for seed in 0..seeds {
        run(samples, scenario, seed + 1, judge, &mut held);
    }
    held
}

/// Sites that are rows of the same run are not independent of each other, so the bound is that of the runs.
fn complaints(samples: f64, scenario: Scenario, seeds: u64, judge: Judge) -> Vec<String> {
    /// Three points below the nominal rate.
    const LEAST: f64 = 0.92;
    let error = (LEAST * (1.0 - LEAST) / seeds as f64).sqrt();
    let held = coverage(samples, scenario, seeds, judge);
    let rates = held
        .iter()
        .map(|(figure, (hits, all))| (figure, f64::from(*hits) / f64::from(*all)));
    rates
        .filter(|(_, rate)| *rate < LEAST - 3.0 * error)
        .map(|(figure, rate)| format!("{scenario:?}, {samples}: {figure} {:.1} %", rate * 100.0))
        .collect()
}

#[test]
fn printed_limits_hold_the_truth_at_few_samples_and_while_intervals_change() {
    for scenario in SCENARIOS {
        for samples in [1.0, 10.0] {
            let complaints = complaints(samples, scenario, 60, printed);
            assert!(complaints.is_empty(), "{complaints:#?}");
        }
    }
}

#[test]
fn limits_from_the_drawn_blocks_alone_are_refused() {
    for scenario in [Scenario::Constant, Scenario::Changed] {
        let complaints = complaints(1.0, scenario, 60, of_drawn_blocks);
        assert!(complaints.len() >= 5, "{complaints:#?}");
    }
}

#[test]
fn a_biased_estimate_is_refused() {
    let biased: Judge = |estimate| {
        let (low, high) = printed(estimate);
        (low * 1.6, high * 1.6)
    };
    assert!(!complaints(10.0, Scenario::Constant, 60, biased).is_empty());
}

/// For `scripts/bench-accuracy`.
#[test]
#[ignore = "prints the table of docs/accuracy.md; takes minutes"]
fn table() {
    const SEEDS: u64 = 200;
    const SAMPLES: [f64; 5] = [1.0, 3.0, 10.0, 30.0, 100.0];
    for scenario in SCENARIOS {
        let columns = SAMPLES.map(|samples| coverage(samples, scenario, SEEDS, printed));
        for figure in columns[0].keys() {
            let cells = columns.iter().map(|held| {
                let (hits, all) = held[figure];
                format!("{:.1}", 100.0 * f64::from(hits) / f64::from(all))
            });
            let cells: Vec<String> = cells.collect();
            println!("| {scenario:?} | {figure} | {} |", cells.join(" | "));
        }
    }
}
/// Blocks in their order, each alive for the same time.
fn steady(live: u64, size: u64) -> Vec<Block> {
    let count = 40 * live;
    let block = |number: u64| Block {
        site: 0,
        size,
        time_ns: number * 10,
        freed_ns: (number + live < count).then_some((number + live) * 10),
    };
    (0..count).map(block).collect()
}

#[test]
fn the_peak_of_a_steady_program_is_what_it_has_alive() {
    const SEEDS: u64 = 60;
    for samples in [1, 4, 16, 64] {
        let live = samples * INTERVAL / 512;
        let blocks = steady(live, 512);
        let truth = (live * 512) as f64;
        let (mut mean, mut plain, mut held) = (0.0, 0.0, 0);
        for seed in 1..=SEEDS {
            let (profile, _) = record(&blocks, Scenario::Constant, seed);
            let peak = Totals::of(&profile).peak;
            mean += peak.bytes.value() / truth / SEEDS as f64;
            held += u32::from(peak.bytes.limits_95().unwrap().contain(truth));
            let at = |time_ns: u64| {
                let live = profile.samples.iter().filter(|sample| {
                    sample.time_ns <= time_ns
                        && sample.freed().is_none_or(|freed| freed.time_ns > time_ns)
                });
                live.map(|sample| profile.bytes(sample).value())
                    .sum::<f64>()
            };
            plain += at(peak.after_ns) / truth / SEEDS as f64;
        }
        // 4 standard errors of the mean of so many.
        let error = 4.0 / ((samples * SEEDS) as f64).sqrt();
        assert!((mean - 1.0).abs() < error, "{samples}: {mean}");
        assert!(
            plain > 1.0 + error,
            "{samples}: the plain maximum would pass: {plain}"
        );
        assert!(f64::from(held) >= 0.88 * SEEDS as f64, "{samples}: {held}");
    }
}

#[test]
fn a_count_allows_for_small_blocks_that_were_not_drawn() {
    const SEEDS: u64 = 100;
    let (mut held, mut drawn_alone) = (0, 0);
    for seed in 1..=SEEDS {
        let mut random = Random::from_seed(seed);
        let mut sizes: Vec<u64> = (0..4039).map(|_| random.below(17)).collect();
        sizes.extend((0..64).map(|_| 16 * INTERVAL + random.below(16 * INTERVAL)));
        let blocks = (1..).zip(sizes).map(|(number, size)| Block {
            site: 0,
            size,
            time_ns: number * 10,
            freed_ns: None,
        });
        let blocks: Vec<Block> = blocks.collect();
        let (profile, _) = record(&blocks, Scenario::Constant, seed);
        let allocations = Totals::of(&profile).allocations;
        held += u32::from(allocations.limits_95().unwrap().contain(4103.0));
        let (low, high) = of_drawn_blocks(&allocations);
        drawn_alone += u32::from((low..=high).contains(&4103.0));
    }
    assert!(f64::from(held) >= 0.9 * SEEDS as f64, "{held}");
    assert!(f64::from(drawn_alone) < 0.9 * SEEDS as f64, "{drawn_alone}");
}

#[test]
fn a_large_block_says_nothing_of_small_ones_beside_it() {
    const SEEDS: u64 = 100;
    let mut held = 0;
    for seed in 1..=SEEDS {
        let large = [(1_u64, 6000 * INTERVAL)];
        let small = (2..).zip(std::iter::repeat_n(64, 128));
        let blocks = large.into_iter().chain(small).map(|(number, size)| Block {
            site: 0,
            size,
            time_ns: number * 10,
            freed_ns: None,
        });
        let blocks: Vec<Block> = blocks.collect();
        let (profile, _) = record(&blocks, Scenario::Constant, seed);
        let totals = Totals::of(&profile);
        let (bytes, _) = sums(blocks.iter());
        held += u32::from(totals.live.limits_95().unwrap().contain(bytes));
        assert!(totals.live.stderr().unwrap() >= INTERVAL as f64);
        assert!(totals.live.has_few_samples());
    }
    assert!(f64::from(held) >= 0.9 * SEEDS as f64, "{held}");
}

fn at_peak(totals: &Totals) -> Selection {
    Selection {
        at_peak: Some(totals.peak.moments),
        ..Selection::default()
    }
}

#[test]
fn rows_at_the_peak_add_up_to_the_peak_and_have_its_limits() {
    for (samples, scenario) in [(1.0, Scenario::Constant), (30.0, Scenario::Changed)] {
        for seed in 1..=5 {
            let blocks = program(samples, &mut Random::from_seed(seed));
            let (profile, _) = record(&blocks, scenario, seed);
            let (totals, frames) = (Totals::of(&profile), Frames::of(&profile));
            let selection = at_peak(&totals);
            for by in [By::Site, By::Function, By::Size] {
                let request = Request {
                    by,
                    sort: Sort::Live,
                    selection: &selection,
                    peak: Some(totals.peak.moments),
                    limit: usize::MAX,
                };
                let table = Table::of(&profile, &frames, &request);
                let sum: f64 = table.rows.iter().map(|row| row.self_live.value()).sum();
                let peak = totals.peak.bytes.value();
                assert!((sum - peak).abs() <= 1e-9 * peak, "{by:?}: {sum}, {peak}");
                for row in &table.rows {
                    assert_eq!(row.self_live, row.self_peak);
                    // The chain of calls has one function here.
                    assert_eq!(row.total_live.limits_95(), row.self_peak.limits_95());
                    assert!(row.self_allocated.value() >= row.self_live.value() - 1e-9 * peak);
                }
                let (whole, shown) = (printed(&totals.peak.bytes), printed(&table.selected.live));
                assert!(
                    (whole.0 - shown.0).abs() <= 1e-6 * peak,
                    "{whole:?} {shown:?}"
                );
                assert!(
                    (whole.1 - shown.1).abs() <= 1e-6 * peak,
                    "{whole:?} {shown:?}"
                );
            }
        }
    }
}

#[test]
fn rows_at_the_peak_of_a_steady_program_are_unbiased_and_within_their_limits() {
    const SEEDS: u64 = 60;
    for samples in [1, 4, 16] {
        let live = samples * INTERVAL / 512;
        let mut blocks = steady(live, 512);
        for block in blocks.iter_mut().skip(1).step_by(2) {
            block.site = 1;
        }
        // Half of all blocks are of either site.
        let truth = (live * 512) as f64 / 2.0;
        let (mut mean, mut of_plain_moment, mut held) = (0.0, 0.0, 0);
        for seed in 1..=SEEDS {
            let (profile, _) = record(&blocks, Scenario::Constant, seed);
            let (totals, frames) = (Totals::of(&profile), Frames::of(&profile));
            let first_site = |selection: &Selection| {
                let request = Request {
                    by: By::Site,
                    sort: Sort::Live,
                    selection,
                    peak: None,
                    limit: usize::MAX,
                };
                let rows = Table::of(&profile, &frames, &request).rows;
                let row = rows.iter().find(|row| row.name == "0xfff");
                row.map_or(Estimate::ZERO, |row| row.self_live)
            };
            let row = first_site(&at_peak(&totals));
            mean += row.value() / truth / SEEDS as f64;
            held += u32::from(row.limits_95().unwrap().contain(truth));
            let plain = Selection {
                until_ns: Some(totals.peak.after_ns),
                ..Selection::default()
            };
            of_plain_moment += first_site(&plain).value() / truth / SEEDS as f64;
        }
        // 4 standard errors of the mean of so many rows of half the samples.
        let error = 4.0 / ((samples * SEEDS) as f64 / 2.0).sqrt();
        assert!((mean - 1.0).abs() < error, "{samples}: {mean}");
        assert!(
            of_plain_moment > 1.0 + error,
            "{samples}: {of_plain_moment}"
        );
        assert!(f64::from(held) >= 0.85 * SEEDS as f64, "{samples}: {held}");
        println!(
            "{samples}: mean {mean:.2}, of the plain moment {of_plain_moment:.2}, held {held} of {SEEDS}"
        );
    }
}
