//! Promise: every figure is an unbiased estimate, and its standard error is true.

use std::collections::BTreeMap;
use std::thread;

use crate::support::truth::{self, z};
use crate::support::{Agent, Program, Run};
use allocsample_profile::{HeapId, IntervalInfo, Profile};
use allocsample_report::{By, Estimate, Frames, Request, Selection, Sort, Table, Totals, heaps};

fn known_sites(threads: u32, kilobytes: u64) -> Run {
    Program::compiled("known_sites.cpp").run().args(&[
        "--threads",
        &threads.to_string(),
        "--kilobytes",
        &kilobytes.to_string(),
    ])
}

/// All sites of a run must be within four standard errors. The seed is fixed and threads do equal work, so that this
/// holds today and tomorrow.
#[track_caller]
fn each_site_is_within_four_standard_errors(interval: &str, threads: u32, kilobytes: u64) {
    let outcome =
        known_sites(threads, kilobytes).observed(&Agent::at_interval(interval).seeded(20));
    let known = truth::printed(&outcome.assert_success().stdout);
    let profile = outcome.profile();
    assert_eq!(
        profile.number("lost_samples"),
        0.0,
        "nothing may be missing"
    );
    let deviations = truth::deviations(&profile, &known, 4.0, |_| 0.0);
    assert!(deviations.is_empty(), "{deviations:#?}");
    for (name, known) in &known {
        let site = profile.site(name);
        assert!(
            known.live_bytes > 0 || site.live_bytes == 0.0,
            "{name} is freed, but {site:?}"
        );
        assert!(
            known.live_bytes == 0 || site.live_bytes == site.allocated_bytes,
            "{name} leaks, but {site:?}"
        );
    }
    let exact = profile.total("allocated_bytes_exact");
    let distance = z(
        profile.total("allocated_bytes"),
        exact,
        profile.total("allocated_bytes_stderr"),
    );
    assert!(distance.abs() < 5.0, "the self-audit: {distance}");
    let sum: u64 = known.values().map(|site| site.bytes).sum();
    assert!(
        exact >= sum as f64 && exact < sum as f64 * 1.01,
        "{exact} bytes in all, {sum} of them known"
    );
}

/// malloc's counters charge a byte for each: a counter that is not charged takes no sample.
#[test]
fn blocks_of_no_bytes_do_not_fail_the_audit() {
    let program = Program::compiled("empty_blocks.c");
    for interval in ["1", "64", "4K"] {
        let outcome = program
            .run()
            .observed(&Agent::at_interval(interval).seeded(20));
        outcome.assert_success();
        let audit = &outcome.profile().report["audit"];
        assert_eq!(audit["passed"], true, "{interval}: {audit}");
    }
}

#[test]
fn each_site_is_within_four_standard_errors_at_4_kib_and_1_thread() {
    each_site_is_within_four_standard_errors("4K", 1, 20_000);
}

#[test]
fn each_site_is_within_four_standard_errors_at_4_kib_and_8_threads() {
    each_site_is_within_four_standard_errors("4K", 8, 20_000);
}

#[test]
fn each_site_is_within_four_standard_errors_at_64_kib_and_1_thread() {
    each_site_is_within_four_standard_errors("64K", 1, 100_000);
}

#[test]
fn each_site_is_within_four_standard_errors_at_64_kib_and_8_threads() {
    each_site_is_within_four_standard_errors("64K", 8, 100_000);
}

#[test]
fn each_site_is_within_four_standard_errors_at_512_kib_and_1_thread() {
    each_site_is_within_four_standard_errors("512K", 1, 500_000);
}

#[test]
fn each_site_is_within_four_standard_errors_at_512_kib_and_8_threads() {
    each_site_is_within_four_standard_errors("512K", 8, 500_000);
}

#[test]
fn alternating_blocks_of_16_and_24_bytes_come_out_40_to_60() {
    let outcome = known_sites(2, 200_000).observed(&Agent::at_interval("16K").seeded(1));
    let profile = outcome.profile();
    assert_share(
        &profile.site("site_of_16"),
        &profile.site("site_of_24"),
        0.4,
    );
}

#[test]
fn many_blocks_of_1_kb_and_few_of_256_kb_come_out_50_to_50() {
    for interval in ["16K", "64K", "1M"] {
        let outcome = known_sites(2, 400_000).observed(&Agent::at_interval(interval).seeded(1));
        let profile = outcome.profile();
        assert_share(
            &profile.site("site_of_1_kb"),
            &profile.site("site_of_256_kb"),
            0.5,
        );
    }
}

/// The share of the first in both together, within four standard errors of the quotient.
#[track_caller]
fn assert_share(
    first: &crate::support::profile::Site,
    second: &crate::support::profile::Site,
    expected: f64,
) {
    let sum = first.allocated_bytes + second.allocated_bytes;
    let share = first.allocated_bytes / sum;
    let stderr = (first.allocated_bytes_stderr * (1.0 - share))
        .hypot(second.allocated_bytes_stderr * share)
        / sum;
    assert!(
        (share - expected).abs() < 4.0 * stderr,
        "{share} +- {stderr}"
    );
    assert!(stderr < 0.02, "too few samples to tell");
}

/// What sampling must look like over many seeds: the bounds leave room for 200 of them, not for a biased sampler.
fn verdict(distances: &BTreeMap<String, Vec<f64>>) -> Vec<String> {
    let mut complaints = Vec::new();
    for (site, distances) in distances {
        let count = distances.len() as f64;
        let mean = distances.iter().sum::<f64>() / count;
        let variance = distances.iter().map(|z| (z - mean).powi(2)).sum::<f64>() / (count - 1.0);
        // An estimate and its estimated standard error go together, which shifts z a little; see the reports' manual.
        if mean.abs() > 0.31 {
            complaints.push(format!("{site}: mean z {mean:.3}"));
        }
        if !(0.8..=1.2).contains(&variance.sqrt()) {
            complaints.push(format!(
                "{site}: standard deviation of z {:.3}",
                variance.sqrt()
            ));
        }
    }
    complaints
}

const SEEDS: u64 = 200;

/// Sites of fewer samples than this have too little of a normal law for the bounds.
const ENOUGH_SAMPLES: f64 = 400.0;

/// All that the statistical run knows about one figure of one site.
#[derive(Default)]
struct Figure {
    distances: Vec<f64>,
    samples: u64,
}

/// Runs the workload under one seed after another and adds to what is known of each site.
fn run_seeds(seeds: impl Iterator<Item = u64>) -> BTreeMap<String, Figure> {
    let run = known_sites(1, 16_000);
    let mut figures: BTreeMap<String, Figure> = BTreeMap::new();
    for seed in seeds {
        let outcome = run.observed(&Agent::at_interval("8K").seeded(seed));
        let known = truth::printed(&outcome.assert_success().stdout);
        let profile = outcome.profile();
        for (name, known) in &known {
            let site = profile.site(name);
            let mut add = |what: &str, distance| {
                let figure = figures.entry(format!("{name}, {what}")).or_default();
                figure.distances.push(distance);
                figure.samples += site.samples;
            };
            add(
                "allocated",
                z(
                    site.allocated_bytes,
                    known.bytes as f64,
                    site.allocated_bytes_stderr,
                ),
            );
            if known.live_bytes > 0 {
                add(
                    "live",
                    z(
                        site.live_bytes,
                        known.live_bytes as f64,
                        site.live_bytes_stderr,
                    ),
                );
            } else {
                assert_eq!(site.live_bytes, 0.0, "{name}, seed {seed}");
            }
        }
    }
    figures
}

#[test]
fn over_200_seeds_estimates_are_unbiased_and_their_standard_errors_true() {
    // Two at a time, for that is how many cores every machine has.
    let odd = thread::spawn(|| run_seeds((0..SEEDS).filter(|seed| seed % 2 == 1)));
    let mut figures = run_seeds((0..SEEDS).filter(|seed| seed % 2 == 0));
    for (name, other) in odd.join().expect("the other half") {
        let figure = figures.entry(name).or_default();
        figure.distances.extend(other.distances);
        figure.samples += other.samples;
    }
    let tested: BTreeMap<String, Vec<f64>> = figures
        .into_iter()
        .filter(|(_, figure)| {
            figure.samples as f64 >= ENOUGH_SAMPLES * figure.distances.len() as f64
        })
        .map(|(name, figure)| (name, figure.distances))
        .collect();
    // All sites but the 3 MB and 256 KB blocks, of which each is a sample, and once more the leak as it is live.
    assert_eq!(tested.len(), 12, "{:?}", tested.keys());
    assert!(
        tested
            .values()
            .all(|distances| distances.len() == SEEDS as usize)
    );
    let complaints = verdict(&tested);
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn a_biased_estimate_and_a_false_standard_error_do_not_pass() {
    // Quantiles of the normal law stand for 200 honest seeds.
    let honest: Vec<f64> = (0..SEEDS)
        .map(|seed| normal_quantile((seed as f64 + 0.5) / SEEDS as f64))
        .collect();
    let judged = |change: fn(f64) -> f64| {
        let changed = honest.iter().map(|&z| change(z)).collect();
        verdict(&BTreeMap::from([("site".to_owned(), changed)])).len()
    };
    assert_eq!(judged(|z| z), 0);
    assert_eq!(
        judged(|z| z + 0.4),
        1,
        "a bias of two percent at 400 samples"
    );
    assert_eq!(
        judged(|z| z * 1.3),
        1,
        "a standard error that promises too much"
    );
    assert_eq!(
        judged(|z| z * 0.7),
        1,
        "a standard error that promises too little"
    );
}

/// Where the normal distribution function reaches `p`: by bisection of its integral.
fn normal_quantile(p: f64) -> f64 {
    let distribution = |x: f64| {
        let steps = 400;
        let width = (x + 8.0) / f64::from(steps);
        let density = |at: f64| (-at * at / 2.0).exp() / std::f64::consts::TAU.sqrt();
        (0..steps)
            .map(|step| density(-8.0 + (f64::from(step) + 0.5) * width) * width)
            .sum::<f64>()
    };
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..50 {
        let middle = (low + high) / 2.0;
        if distribution(middle) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// What `tests/vms/intervals.c` says of the objects of a type in a heap.
#[derive(Clone, Copy, Debug, Default)]
struct Objects {
    count: f64,
    bytes: f64,
    live_bytes: f64,
}

/// By heap and type.
fn objects(stdout: &[u8]) -> BTreeMap<(String, String), Objects> {
    let text = String::from_utf8_lossy(stdout);
    let line = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        ["heap", heap, kind, count, bytes, live_bytes] => {
            let number = |text: &str| text.parse::<f64>().expect("a number");
            let objects = Objects {
                count: number(count),
                bytes: number(bytes),
                live_bytes: number(live_bytes),
            };
            ((heap.to_owned(), kind.to_owned()), objects)
        }
        _ => panic!("the machine says {line:?}"),
    };
    text.lines().map(line).collect()
}

/// By figure and kind of heap: how often its limits held the truth, how often they were looked at, the sum of the truths, and
/// that of the estimates.
type Judged = BTreeMap<(String, &'static str), (u32, u32, f64, f64)>;

fn judge(judged: &mut Judged, kind: &str, figure: &'static str, estimate: &Estimate, truth: f64) {
    let limits = estimate.limits_95().expect("limits");
    let (held, all, truths, values) = judged.entry((kind.to_owned(), figure)).or_default();
    *held += u32::from(limits.contain(truth));
    *all += 1;
    *truths += truth;
    *values += estimate.value();
}

/// 84 heaps with an interval of their own, 84 that change theirs half-way to one 16 times as long, and 84 that have malloc's;
/// each is a run of its own, since each draws its own sample points.
#[test]
fn heaps_with_intervals_of_their_own_are_unbiased_and_within_their_limits() {
    const EACH: u32 = 84;
    let program = Program::compiled("../vms/intervals.c");
    let outcome = program
        .run()
        .args(&[&EACH.to_string()])
        .observed(&Agent::at_interval("64K").seeded(7));
    let known = objects(&outcome.assert_success().stdout);
    let path = outcome.profile().path().to_owned();
    let profile = Profile::open(&path).expect("a profile");
    let intervals: Vec<u64> = profile
        .interval_history
        .iter()
        .map(|it| it.interval_bytes)
        .collect();
    assert_eq!(intervals, [64 << 10], "a heap's own is not the process's");

    let found = heaps::Heaps::of(&profile);
    let allowances = profile.allowances(0, u64::MAX);
    let mut judged = Judged::new();
    let mut expected = BTreeMap::new();
    for (id, heap) in &profile.vm.heaps {
        let kind = heap.name.split('.').next().expect("a name");
        let allowance = allowances.of(*id);
        // Each may have missed objects under its own intervals, and no others.
        let longest = match kind {
            "steady" => 4 << 10,
            "changing" => 32 << 10,
            _ => 64 << 10,
        };
        assert_eq!(allowance.bytes, f64::from(longest), "{}", heap.name);
        let mut whole = Objects::default();
        for kind_of_object in ["small", "mixed"] {
            let truth = known[&(heap.name.clone(), kind_of_object.to_owned())];
            whole.count += truth.count;
            whole.bytes += truth.bytes;
            whole.live_bytes += truth.live_bytes;
            let row = found
                .types
                .iter()
                .find(|row| (row.0, &*row.1) == (*id, kind_of_object));
            let nothing = Estimate::ZERO.allowing_for(allowance.bytes);
            let no_objects = Estimate::ZERO.allowing_for(allowance.objects);
            let (bytes, count, live) = match row {
                Some((_, _, share)) => (share.allocated, share.allocations, share.live),
                None => (nothing, no_objects, nothing),
            };
            judge(&mut judged, kind, "bytes of a type", &bytes, truth.bytes);
            judge(&mut judged, kind, "objects of a type", &count, truth.count);
            judge(
                &mut judged,
                kind,
                "live bytes of a type",
                &live,
                truth.live_bytes,
            );
        }
        let share = &found.heaps[id];
        judge(&mut judged, kind, "bytes", &share.allocated, whole.bytes);
        judge(
            &mut judged,
            kind,
            "objects",
            &share.allocations,
            whole.count,
        );
        judge(
            &mut judged,
            kind,
            "live bytes",
            &share.live,
            whole.live_bytes,
        );
        // Of small objects: the interval times the bytes allocated under it; less, where objects are large.
        let variance = match kind {
            "steady" => 4096.0 * whole.bytes,
            "changing" => 2048.0 * (16 << 10) as f64 + 32768.0 * (64 << 10) as f64,
            _ => 65536.0 * whole.bytes,
        };
        *expected.entry(kind.to_owned()).or_insert(0.0) += variance;
    }
    for ((kind, figure), (held, all, truths, values)) in &judged {
        let rate = f64::from(*held) / f64::from(*all);
        // Three standard errors of so many heaps; types of a heap are not independent of each other where intervals differ.
        let least = 0.92 - 3.0 * (0.92 * 0.08 / f64::from(EACH)).sqrt();
        println!(
            "{kind}: {figure} {:.1} % of {all}, {:.3} of the truth",
            rate * 100.0,
            values / truths
        );
        assert!(rate >= least, "{kind}: {figure} {:.1} %", rate * 100.0);
        if *figure == "bytes" || *figure == "live bytes" {
            let deviation = (values - truths) / expected[kind].sqrt();
            assert!(
                deviation.abs() < 4.0,
                "{kind}: {figure} {deviation:.1} standard errors off"
            );
        }
    }
    // The process, and malloc beside it.
    let totals = Totals::of(&profile);
    let exact = profile.exact_bytes() as f64;
    assert!(totals.allocated.limits_95().expect("limits").contain(exact));
    let malloc = found.heaps[&HeapId::MALLOC].allocated;
    let exact = profile.exact_bytes_of(HeapId::MALLOC) as f64;
    assert!(malloc.limits_95().expect("limits").contain(exact));
    assert_eq!(totals.allocated.allowance(), 65536.0);

    // Long after all heaps have got theirs, malloc's interval is still in force.
    let selection = Selection {
        since_ns: Some((profile.process.end_ns - profile.process.start_ns) / 2),
        ..Selection::default()
    };
    let request = Request {
        by: By::Site,
        sort: Sort::Allocated,
        selection: &selection,
        peak: None,
        limit: usize::MAX,
    };
    let table = Table::of(&profile, &Frames::of(&profile), &request);
    assert_eq!(table.selected.allocated.allowance(), 65536.0);
    let window = profile.allowance(HeapId::MALLOC, profile.process.end_ns, u64::MAX);
    assert_eq!(window.bytes, 65536.0);
}

#[test]
fn a_file_that_goes_on_knows_the_intervals_of_heaps() {
    let program = Program::compiled("../vms/intervals.c");
    let outcome = program
        .run()
        .args(&["2", "rotate"])
        .observed(&Agent::at_interval("64K").seeded(7));
    outcome.assert_success();
    let paths = outcome.profile_paths();
    let is_last = |path: &&std::path::PathBuf| !path.to_string_lossy().contains(".part-");
    let last = paths.iter().find(is_last).expect("the last file");
    let profile = Profile::open(last).expect("a profile");
    assert!(profile.part.before > 0, "{:?}", profile.part);
    let bytes = |history: &[IntervalInfo]| -> Vec<u64> {
        history.iter().map(|info| info.interval_bytes).collect()
    };
    assert_eq!(bytes(&profile.interval_history), [64 << 10]);
    for (id, heap) in &profile.vm.heaps {
        let kind = heap.name.split('.').next().expect("a name");
        // What is alive may have been allocated under any that it had; the last one goes on.
        let expected: &[u64] = match kind {
            "steady" => &[4 << 10, 4 << 10],
            "changing" => &[2 << 10, 32 << 10, 32 << 10],
            _ => &[64 << 10, 64 << 10],
        };
        assert_eq!(bytes(&profile.vm.intervals[id]), expected, "{}", heap.name);
    }
}
