//! The law of the gaps, by itself.

use allocsample_sampling::{Interval, Random, Seed, draw_gap};
use rand::SeedableRng;
use rand_distr::Distribution;

use crate::profiler::{Fault, first_distance};

const CELLS: usize = 20;

/// Exceeded by chi^2 of 19 degrees of freedom once in a million.
const CHI_SQUARE_BOUND: f64 = 64.4;

fn interval(bytes: u64) -> Interval {
    Interval::new(bytes).unwrap()
}

/// P(gap <= k).
fn cumulative(k: f64, interval: Interval) -> f64 {
    -(-k / interval.bytes() as f64).exp_m1()
}

/// Last gap of each of 20 (nearly) equiprobable cells but the last.
fn borders(interval: Interval) -> Vec<f64> {
    let quantile = |part: usize| -(1.0 - part as f64 / CELLS as f64).ln();
    (1..CELLS)
        .map(|part| (quantile(part) * interval.bytes() as f64).ceil())
        .collect()
}

fn count_cells(gaps: &[u128], borders: &[f64]) -> Vec<f64> {
    let mut cells = vec![0.0; CELLS];
    for &gap in gaps {
        cells[borders.partition_point(|&border| border < gap as f64)] += 1.0;
    }
    cells
}

/// Mean within 4.9 standard errors of `1/(1 - exp(-1/N))`, and (from N = 64 on) chi^2 in 20 cells.
fn check(gaps: &[u128], interval: Interval) -> Result<(), String> {
    let n = gaps.len() as f64;
    let success = cumulative(1.0, interval);
    let expected = 1.0 / success;
    let bound = 4.9 * ((1.0 - success) / n).sqrt();
    let mean = gaps.iter().map(|&gap| gap as f64).sum::<f64>() / n;
    if (mean / expected - 1.0).abs() > bound {
        return Err(format!("N = {interval}: mean {mean}, expected {expected}"));
    }
    if interval.bytes() < 64 {
        return Ok(());
    }
    let borders = borders(interval);
    let cells = count_cells(gaps, &borders);
    let upper = borders
        .iter()
        .map(|&border| cumulative(border, interval))
        .chain([1.0]);
    let mut below = 0.0;
    let mut chi_square = 0.0;
    for (cell, upper) in cells.iter().zip(upper) {
        let expected = n * (upper - below);
        chi_square += (cell - expected).powi(2) / expected;
        below = upper;
    }
    if chi_square > CHI_SQUARE_BOUND {
        return Err(format!("N = {interval}: chi^2 = {chi_square}"));
    }
    Ok(())
}

/// The first gaps of 100,000 threads.
pub fn check_first(fault: Fault) -> Result<(), String> {
    let interval = interval(4096);
    let seed = Seed { process: 17 };
    let gaps: Vec<u128> = (0..100_000)
        .map(|thread| 1 + u128::from(first_distance(fault, interval, seed.thread(thread))))
        .collect();
    check(&gaps, interval)
}

fn draws(interval: Interval) -> Vec<u128> {
    let mut random = Random::from_seed(interval.bytes());
    (0..1_000_000)
        .map(|_| draw_gap(interval, &mut random))
        .collect()
}

#[test]
fn gaps_obey_the_law_at_all_intervals() {
    for bytes in [2, 64, 4096, 524_288, 1 << 31, 1 << 62] {
        check(&draws(interval(bytes)), interval(bytes)).unwrap();
    }
    assert!(
        draws(Interval::EVERY_ALLOCATION)
            .iter()
            .all(|&gap| gap == 1)
    );
}

#[test]
fn gaps_are_those_of_the_reference() {
    for bytes in [64, 4096, 524_288] {
        let step = interval(bytes);
        let law = rand_distr::Exp::new(1.0 / bytes as f64).unwrap();
        let mut random = rand_xoshiro::Xoshiro256StarStar::seed_from_u64(99);
        let reference: Vec<u128> = (0..1_000_000)
            .map(|_| law.sample(&mut random).ceil().max(1.0) as u128)
            .collect();
        check(&reference, step).unwrap();
        let borders = borders(step);
        let cells = [draws(step), reference].map(|gaps| count_cells(&gaps, &borders));
        let chi_square: f64 = cells[0]
            .iter()
            .zip(&cells[1])
            .map(|(a, b)| (a - b).powi(2) / (a + b))
            .sum();
        assert!(chi_square < CHI_SQUARE_BOUND, "{bytes}: {chi_square}");
    }
}

#[test]
fn wrong_gaps_are_refused() {
    let step = interval(4096);
    let mut random = Random::from_seed(1);
    let mut refused = |name: &str, draw: &dyn Fn(&mut Random) -> u128| {
        let gaps: Vec<u128> = (0..1_000_000).map(|_| draw(&mut random)).collect();
        check(&gaps, step).expect_err(name);
    };
    refused("uniform", &|random| u128::from(1 + random.below(2 * 4096)));
    refused("fixed", &|_| 4096);
    refused("26 bits of a small number", &|random| {
        let unit = (random.below(1 << 6) + 1) as f64 / 64.0;
        (-4096.0 * unit.ln()).ceil().max(1.0) as u128
    });
    refused("clamped", &|random| {
        draw_gap(step, random).clamp(512, 20 * 4096)
    });
}

#[test]
fn first_blocks_are_sampled_no_more_often_than_others() {
    // 500 threads with one block of 16 bytes: 0.0076 samples expected at 1 MiB.
    let seed = Seed { process: 5 };
    let sampled = (0..500)
        .filter(|&thread| first_distance(Fault::None, interval(1 << 20), seed.thread(thread)) < 16)
        .count();
    assert!(sampled <= 3, "{sampled}");
}
