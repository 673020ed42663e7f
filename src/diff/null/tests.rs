//! Programs that did not change, profiled with the luck of sampling: how often are they said to have?

use allocsample_sampling::{Interval, Random, inclusion_probability};

use super::*;

const KIB: u64 = 1024;

/// A site: sizes of its blocks, with how many of each a unit of the divisor has.
type Site = &'static [(u64, f64)];

/// Draws what one profile records of `site`, which allocates `factor` times as much; returns the estimate, divided.
fn profile(
    site: Site,
    side: &Side,
    factor: f64,
    measure: Measure,
    counts: &mut Counts,
    is_after: bool,
    random: &mut Random,
) -> f64 {
    let mut estimate = 0.0;
    for &(size, per_unit) in site {
        let number = (per_unit * side.divisor() * factor).round() as u64;
        let p = side.regimes().map(|it| it.probability(size)).next();
        let p = p.expect("an interval");
        let y = match measure {
            Measure::Count => 1.0,
            _ => size as f64,
        };
        // The gaps between those that are recorded are geometric.
        let mut left = number as f64;
        loop {
            if p < 1.0 {
                left -= (random.unit().ln() / (1.0 - p).ln()).floor();
            }
            if left < 1.0 {
                break;
            }
            left -= 1.0;
            counts.add_size(size, 0, 1, is_after);
            estimate += y / p;
        }
    }
    estimate / side.divisor()
}

/// How many of `runs` comparisons have a p-value below each level.
fn alarms(
    site: Site,
    sides: (&Side, &Side),
    factor: f64,
    measure: Measure,
    levels: [f64; 3],
    runs: u64,
) -> [u64; 3] {
    let mut random = Random::from_seed(7);
    let mut alarms = [0; 3];
    for _ in 0..runs {
        let mut counts = Counts::default();
        let before = profile(site, sides.0, 1.0, measure, &mut counts, false, &mut random);
        let after = profile(
            site,
            sides.1,
            factor,
            measure,
            &mut counts,
            true,
            &mut random,
        );
        let p = Null::new(&counts, sides.0, sides.1, measure).p_value(after - before);
        for (alarm, level) in alarms.iter_mut().zip(levels) {
            *alarm += u64::from(p < level);
        }
    }
    alarms
}

const SITES: [(&str, Site); 9] = [
    ("1 sample", &[(64, 8192.0)]),
    ("4 samples", &[(64, 4.0 * 8192.0)]),
    ("20 samples", &[(64, 20.0 * 8192.0)]),
    ("200 samples", &[(64, 200.0 * 8192.0)]),
    (
        "mixed",
        &[(16, 65536.0), (4 * KIB, 300.0), (300 * KIB, 4.0)],
    ),
    ("one of 1 MiB", &[(KIB * KIB, 1.0)]),
    ("one of 2 MiB", &[(2 * KIB * KIB, 1.0)]),
    ("three of 1.5 MiB", &[(1536 * KIB, 3.0)]),
    (
        "large, each another",
        &[
            (400 * KIB, 1.0),
            (600 * KIB, 1.0),
            (800 * KIB, 1.0),
            (1000 * KIB, 1.0),
            (1500 * KIB, 1.0),
            (2000 * KIB, 1.0),
        ],
    ),
];

/// Intervals and divisors of both profiles.
const PAIRS: [(&str, u64, f64, u64, f64); 6] = [
    ("equal", 512 * KIB, 1.0, 512 * KIB, 1.0),
    ("interval x 4", 512 * KIB, 1.0, 2048 * KIB, 1.0),
    ("interval / 8", 512 * KIB, 1.0, 64 * KIB, 1.0),
    ("count x 3", 512 * KIB, 1.0, 512 * KIB, 3.0),
    ("count x 10, interval x 8", 512 * KIB, 1.0, 4096 * KIB, 10.0),
    ("count x 5, interval / 4", 512 * KIB, 1.0, 128 * KIB, 5.0),
];

/// 54 programs that did not change, 4000 times each and by two measures: at no level more alarms than it says, but for
/// the luck of the simulation (4 standard deviations).
#[test]
fn what_did_not_change_is_called_a_change_no_oftener_than_the_level_says() {
    const RUNS: u64 = 4000;
    const LEVELS: [f64; 3] = [0.05, 0.01, 0.001];
    let mut wrong = Vec::new();
    for (name, site) in SITES {
        for (pair, n_before, c_before, n_after, c_after) in PAIRS {
            let sides = (
                &Side::simple(n_before, c_before),
                &Side::simple(n_after, c_after),
            );
            for measure in [Measure::Allocated, Measure::Count] {
                let found = alarms(site, sides, 1.0, measure, LEVELS, RUNS);
                println!("{name:20} {pair:25} {measure:?} {found:?}");
                for (found, level) in found.into_iter().zip(LEVELS) {
                    let mean = RUNS as f64 * level;
                    if found as f64 > mean + 4.0 * mean.sqrt() {
                        wrong.push(format!("{name}, {pair}, {measure:?}: {found} at {level}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The same simulation finds the fault of a test in which each side brings its own variance.
#[test]
fn each_sides_own_variance_would_raise_false_alarms() {
    let (before, after) = (Side::simple(64 * KIB, 1.0), Side::simple(512 * KIB, 1.0));
    let site: Site = &[(64, 4.0 * 8192.0)];
    let mut random = Random::from_seed(3);
    let mut false_alarms = 0;
    for _ in 0..4000 {
        let mut counts = [Counts::default(), Counts::default()];
        let measure = Measure::Allocated;
        let [first, second] = &mut counts;
        let a = profile(site, &before, 1.0, measure, first, false, &mut random);
        let b = profile(site, &after, 1.0, measure, second, true, &mut random);
        let own = |counts: &Counts, side: &Side| -> f64 {
            let p = |size| side.regimes().map(|it| it.probability(size)).sum::<f64>();
            let each = counts.iter().map(|(size, samples)| {
                let number = samples.iter().flatten().sum::<u64>() as f64;
                number * (size as f64 / p(size)).powi(2) * (1.0 - p(size))
            });
            each.sum()
        };
        let z = (b - a) / (own(first, &before) + own(second, &after)).sqrt();
        // The normal law's 0.1 %.
        false_alarms += u64::from(z.abs() > 3.29);
    }
    println!("{false_alarms} false alarms");
    // 4 would be right.
    assert!(false_alarms > 40, "{false_alarms}");
}

#[test]
fn what_doubled_is_found() {
    let pair = |n: u64, c: f64| Side::simple(n * KIB, c);
    let levels = [0.05, 0.01, 0.001];
    let found = |site, before, after, factor| {
        alarms(
            site,
            (before, after),
            factor,
            Measure::Allocated,
            levels,
            1000,
        )
    };
    let equal = pair(512, 1.0);
    // 200 samples and 400: 8 standard deviations.
    assert!(found(&[(64, 200.0 * 8192.0)], &equal, &equal, 2.0)[2] > 990);
    // 20 and 40: the power of the exact test (2.6 standard deviations) is 0.70 at 0.05.
    let power = found(&[(64, 20.0 * 8192.0)], &equal, &equal, 2.0)[0];
    assert!((600..800).contains(&power), "{power}");
    // A block of 4 MiB that becomes two.
    assert!(found(&[(4096 * KIB, 1.0)], &equal, &equal, 2.0)[0] > 990);
    assert!(found(&[(64, 200.0 * 8192.0)], &equal, &pair(64, 3.0), 2.0)[2] > 990);
}

/// Where p is small, the sizes are equal and so is the rest, the law given the sum is binomial. Ours does not take the sum
/// as given; far out it is the more careful of the two.
#[test]
fn agrees_with_the_exact_test_of_two_counts() {
    let side = Side::simple(1 << 30, 1.0);
    for (before, after, exact) in [
        // 2 P(X >= after), X binomial (sum, 1/2).
        (0, 6, 0.031_25),
        (0, 12, 2.0 / 4096.0),
        (3, 13, 0.021_271),
        (20, 40, 0.013_490),
        (40, 20, 0.013_490),
        (100, 140, 0.011_664),
    ] {
        let mut counts = Counts::default();
        for _ in 0..before {
            counts.add_size(16, 0, 1, false);
        }
        for _ in 0..after {
            counts.add_size(16, 0, 1, true);
        }
        let null = Null::new(&counts, &side, &side, Measure::Allocated);
        let difference = (f64::from(after) - f64::from(before)) * (1u64 << 30) as f64;
        let p = null.p_value(difference);
        println!("{before} {after}: {p} {exact}");
        assert!(
            p / exact > 0.85 && p / exact < 2.5,
            "{before} {after}: {p} {exact}"
        );
    }
}

#[test]
fn where_nothing_is_left_to_chance_every_difference_is_one() {
    let every = Side::simple(1, 1.0);
    let mut counts = Counts::default();
    counts.add_size(100, 0, 1, true);
    let null = Null::new(&counts, &every, &every, Measure::Allocated);
    assert_eq!((null.p_value(100.0), null.p_value(0.0)), (0.0, 1.0));
    assert_eq!(null.variance(), 0.0);
}

/// A program in which the interval changes: each site works under either interval for a part of its allocations.
struct Phases {
    /// Intervals with their parts of the whole program's bytes.
    side: Side,
    intervals: Vec<u64>,
}

impl Phases {
    fn new(regimes: &[(u64, f64)]) -> Self {
        Self {
            side: Side::mixed(regimes, 1.0),
            intervals: regimes.iter().map(|(interval, _)| *interval).collect(),
        }
    }

    /// Draws the samples of a site that allocates `number` blocks of `size`, in these parts under each interval.
    fn draw(
        &self,
        (size, number): (u64, f64),
        parts: &[f64],
        counts: &mut Counts,
        is_after: bool,
        random: &mut Random,
    ) -> f64 {
        let each = self.intervals.iter().zip(parts).enumerate();
        let estimates = each.map(|(regime, (&interval, part))| {
            let p = inclusion_probability(size, Interval::new(interval).unwrap());
            let mut left = number * part;
            let mut drawn = 0;
            loop {
                left -= 1.0 + (random.unit().ln() / (1.0 - p).ln()).floor();
                if left < 0.0 {
                    break;
                }
                drawn += 1;
            }
            counts.add_size(size, regime, drawn, is_after);
            drawn as f64 * size as f64 / p
        });
        estimates.sum()
    }
}

/// Parts of a site's allocations in the first and in the second half of a run whose interval changed in between.
const ACTIVITIES: [[f64; 2]; 4] = [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.9, 0.1]];

/// How many of `runs` pairs have a p-value below each level, where the second program allocates `factor` times as much.
fn alarms_after_a_change(
    pair: (&Phases, &Phases),
    site: (u64, f64),
    parts: [f64; 2],
    factor: f64,
    runs: u64,
) -> [u64; 3] {
    let mut random = Random::from_seed(11);
    let mut alarms = [0; 3];
    for _ in 0..runs {
        let mut counts = Counts::default();
        let mut draw = |phases: &Phases, factor: f64, is_after| {
            // A run whose interval never changed has one part.
            let parts = match phases.intervals.len() {
                1 => vec![1.0],
                _ => parts.to_vec(),
            };
            let site = (site.0, site.1 * factor);
            phases.draw(site, &parts, &mut counts, is_after, &mut random)
        };
        let before = draw(pair.0, 1.0, false);
        let after = draw(pair.1, factor, true);
        let null = Null::new(&counts, &pair.0.side, &pair.1.side, Measure::Allocated);
        let p = null.p_value(after - before);
        for (alarm, level) in alarms.iter_mut().zip([0.05, 0.01, 0.001]) {
            *alarm += u64::from(p < level);
        }
    }
    alarms
}

/// Sites that work before a change of the interval, after it, or both: none has changed.
#[test]
fn a_changed_interval_is_not_taken_for_a_changed_program() {
    const RUNS: u64 = 1000;
    let constant = Phases::new(&[(64 * KIB, 1.0)]);
    let coarser = Phases::new(&[(64 * KIB, 0.5), (4096 * KIB, 0.5)]);
    let finer = Phases::new(&[(4096 * KIB, 0.5), (4 * KIB, 0.5)]);
    let mut wrong = Vec::new();
    for (name, pair) in [
        ("constant, coarser", (&constant, &coarser)),
        ("coarser, constant", (&coarser, &constant)),
        ("constant, finer", (&constant, &finer)),
        ("finer, coarser", (&finer, &coarser)),
    ] {
        for parts in ACTIVITIES {
            for mib in [0.25, 4.0, 64.0] {
                let site = (64, mib * 1024.0 * 1024.0 / 64.0);
                let found = alarms_after_a_change(pair, site, parts, 1.0, RUNS);
                println!("{name:20} {parts:?} {mib:5} MiB {found:?}");
                for (found, level) in found.into_iter().zip([0.05, 0.01, 0.001]) {
                    let mean = RUNS as f64 * level;
                    if found as f64 > mean + 4.0 * mean.sqrt() {
                        wrong.push(format!("{name} {parts:?} {mib} MiB: {found} at {level}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_real_change_is_found_beside_a_changed_interval() {
    let constant = Phases::new(&[(64 * KIB, 1.0)]);
    let coarser = Phases::new(&[(64 * KIB, 0.5), (4096 * KIB, 0.5)]);
    // 64 MiB that are half as much again, all of them before the interval changed.
    let site = (64, 1_048_576.0);
    let pair = (&constant, &coarser);
    let found = alarms_after_a_change(pair, site, [1.0, 0.0], 1.5, 200);
    println!("{found:?} of 200");
    assert!(found[1] > 195, "{found:?} of 200");
    // 1 GiB under both intervals: the 128 samples of the second are what limits it.
    let site = (64, 16_777_216.0);
    let found = alarms_after_a_change(pair, site, [0.5, 0.5], 1.5, 200);
    println!("{found:?} of 200");
    assert!(found[0] > 195, "{found:?} of 200");
}
