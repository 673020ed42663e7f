//! The right sampler is unbiased and honest about its error, and the same checks refuse every wrong one.
//!
//! All seeds are fixed. Bounds are 4.9 standard deviations, which a right sampler leaves once in a million checks.

mod checker;
mod gaps;
mod profiler;
mod workload;

use checker::{Failure, check};
use profiler::Fault;
use workload::Workload;

const SEEDS: u64 = 1000;

#[track_caller]
fn assert_accurate(workload: &Workload) {
    if let Err(failure) = check(workload, Fault::None, SEEDS) {
        panic!("{}: {failure}", workload.name);
    }
}

/// The fault is found, and the same workload with the same seeds passes without it.
#[track_caller]
fn assert_found(fault: Fault, workload: &Workload) -> Failure {
    assert_accurate(workload);
    let failure = check(workload, fault, SEEDS).expect_err("a wrong sampler passed the check");
    println!("{fault:?}: {failure}");
    failure
}

#[test]
fn every_size_from_a_4096th_of_the_interval_to_16_intervals() {
    for shift in 4..=20 {
        assert_accurate(&workload::one_size(1 << shift, 1 << 16, 1000.0));
    }
}

#[test]
fn every_interval_from_2_to_2_to_the_40() {
    for shift in [1, 2, 3, 6, 12, 19, 30, 40] {
        let interval = 1 << shift;
        assert_accurate(&workload::one_size((interval / 3).max(1), interval, 500.0));
    }
}

#[test]
fn one_site_of_many_blocks_weighs_as_one_of_few() {
    assert_accurate(&workload::many_small_against_one_large(64 << 10));
    assert_accurate(&workload::many_small_against_one_large(512 << 10));
}

#[test]
fn sites_of_equal_bytes_weigh_the_same_whatever_their_sizes() {
    assert_accurate(&workload::equal_bytes());
}

#[test]
fn small_intervals() {
    assert_accurate(&workload::small_interval());
}

#[test]
fn sizes_that_divide_the_interval() {
    assert_accurate(&workload::resonance());
}

#[test]
fn threads_that_live_for_a_few_blocks() {
    assert_accurate(&workload::short_threads());
}

/// (share of the first site, its standard error) of the bytes of two sites, over all seeds.
fn share(workload: &Workload) -> (f64, f64) {
    let [first, second] = &checker::means(workload, Fault::None, SEEDS)[..] else {
        panic!("two sites");
    };
    let sum = first.value() + second.value();
    let share = first.value() / sum;
    // Linearised: d share = ((1 - share) d first - share d second) / sum.
    let variance = (1.0 - share).powi(2) * first.variance().unwrap()
        + share.powi(2) * second.variance().unwrap();
    (share, variance.sqrt() / sum)
}

#[test]
fn blocks_of_16_and_24_bytes_in_turn_come_out_40_to_60() {
    let (share, stderr) = share(&workload::alternating());
    assert!((share - 0.4).abs() < 4.9 * stderr, "{share} {stderr}");
    assert!(stderr < 0.001, "{stderr}");
}

#[test]
fn blocks_of_1_k_and_a_block_of_256_k_come_out_50_to_50() {
    for interval in [64 << 10, 512 << 10] {
        let (share, stderr) = share(&workload::many_small_against_one_large(interval));
        assert!((share - 0.5).abs() < 4.9 * stderr, "{share} {stderr}");
        assert!(stderr < 0.001, "{stderr}");
    }
}

#[test]
fn uniform_gaps_are_found() {
    let failure = assert_found(
        Fault::UniformGaps,
        &workload::one_size(1 << 16, 1 << 16, 500.0),
    );
    assert!(matches!(failure, Failure::Biased { .. }), "{failure}");
}

#[test]
fn periodic_gaps_with_poisson_weights_are_found() {
    assert_found(Fault::PeriodicGaps, &workload::resonance());
}

#[test]
fn counting_points_at_a_small_interval_is_found() {
    let failure = assert_found(Fault::PointsTimesInterval, &workload::small_interval());
    assert!(matches!(failure, Failure::Biased { .. }), "{failure}");
}

#[test]
fn a_first_gap_of_zero_is_found() {
    assert_found(Fault::FirstGapZero, &workload::short_threads());
    gaps::check_first(Fault::None).unwrap();
    gaps::check_first(Fault::FirstGapZero).expect_err("first gaps of 0 passed");
}

#[test]
fn a_sample_postponed_past_muted_code_is_found() {
    assert_found(Fault::PostponedPastMuted, &workload::muted_code());
}

#[test]
fn adding_up_before_unbiasing_is_found() {
    assert_found(Fault::SumThenUnbias, &workload::mixed_site());
}

#[test]
fn growth_by_realloc_that_is_skipped_is_found() {
    assert_found(Fault::GrowthSkipped, &workload::growing());
}

#[test]
fn a_child_with_its_parents_seed_is_found() {
    let failure = assert_found(Fault::ChildKeepsSeed, &workload::fork());
    // Each estimate of it is unbiased: only the errors are not what is claimed.
    assert!(matches!(failure, Failure::WrongSpread { .. }), "{failure}");
}

#[test]
fn threads_that_share_a_seed_are_found() {
    assert_found(Fault::ThreadsShareSeed, &workload::short_threads());
}

#[test]
fn weighing_by_the_bytes_since_the_last_sample_is_found() {
    assert_found(
        Fault::BytesSinceLast,
        &workload::many_small_against_one_large(64 << 10),
    );
}

#[test]
fn aligned_blocks_that_are_skipped_are_found() {
    assert_found(Fault::AlignedSkipped, &workload::aligned());
}

#[test]
fn weights_of_a_stale_interval_are_found() {
    assert_found(Fault::StaleInterval, &workload::interval_changes());
}

#[test]
fn an_error_that_ignores_the_certainty_of_large_blocks_is_found() {
    let failure = assert_found(
        Fault::ErrorTooLarge,
        &workload::one_size(1 << 16, 1 << 16, 500.0),
    );
    assert!(matches!(failure, Failure::WrongSpread { .. }), "{failure}");
}
