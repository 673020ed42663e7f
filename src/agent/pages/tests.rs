#![allow(clippy::indexing_slicing, reason = "a test may fail")]

use std::vec::Vec;

use super::*;

#[test]
fn the_numbers_of_faults_are_around_their_mean() {
    for mean in [1, 2, 16, 64, 128, 1 << 20] {
        let all: Vec<u32> = (0..CHOICES as u32)
            .map(|index| nth_of(mean, index))
            .collect();
        let sum: u64 = all.iter().map(|&nth| u64::from(nth)).sum();
        let average = sum as f64 / CHOICES as f64;
        let slack = 1.0 + f64::from(mean) / 50.0;
        assert!(
            (average - f64::from(mean)).abs() <= slack,
            "{mean}: {all:?}"
        );
        assert!(
            all.iter().all(|&nth| nth >= 1 && nth <= 2 * mean),
            "{all:?}"
        );
        let differs = all.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(differs || mean < 64, "{all:?}");
    }
}

/// As `draw` and `go_on` place them. Where rows of one n are cut by the next, estimates have a bias; with one place for all
/// threads, patterns of the program's have one.
#[test]
fn every_fault_is_sampled_with_the_probability_that_it_is_weighted_with() {
    const FAULTS: usize = 3000;
    const RUNS: u32 = 20_000;
    let mut weights = std::vec![0.0_f64; FAULTS];
    let mut random = allocsample_sampling::Seed { process: 3 }.faults_of_thread(1);
    for _ in 0..RUNS {
        let (mut past, mut rest) = (0, 0);
        while past < FAULTS {
            let nth = nth_of(16, random.below(CHOICES as u64) as u32) as usize;
            let first = 1 + random.below(nth as u64) as usize;
            past += rest + first;
            rest = nth - first;
            for sample in 0..=SAMPLES_PER_CHOICE as usize {
                if let Some(weight) = weights.get_mut(past + sample * nth - 1) {
                    *weight += nth as f64;
                }
            }
            past += SAMPLES_PER_CHOICE as usize * nth;
        }
    }
    // Of each fault; the standard deviation is about sqrt(16 / RUNS).
    for (fault, weight) in weights.iter().enumerate() {
        let mean = weight / f64::from(RUNS);
        assert!((mean - 1.0).abs() < 5.0 * 0.03, "{fault}: {mean}");
    }
    // Of all together it is far smaller.
    let mean = weights.iter().sum::<f64>() / f64::from(RUNS) / FAULTS as f64;
    assert!((mean - 1.0).abs() < 0.001, "{mean}");
}
