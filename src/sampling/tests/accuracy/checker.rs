//! Runs a workload under many seeds, and compares estimates with the truth and errors with the claims.

use std::fmt;

use allocsample_sampling::{Estimate, GapLaw, Interval, Weight, inclusion_probability};

use crate::profiler::{Fault, Site, run};
use crate::workload::{Event, Workload};

/// Bounds in standard deviations: two-sided 10^-6.
const SIGMAS: f64 = 4.9;

/// z and limits are looked at only for sites with so many expected samples: with fewer, z is not yet normal ...
const ENOUGH_SAMPLES: f64 = 400.0;

/// ... and so many expected misses: of blocks far above the interval nearly all are samples, and the error is all in the
/// few that are not.
const ENOUGH_MISSES: f64 = 10.0;

/// Why a profiler is refused.
#[derive(Debug)]
pub enum Failure {
    /// The mean of the estimates is not the truth.
    Biased { what: String, bias: f64, bound: f64 },
    /// The mean of z is not 0.
    Shifted { what: String, mean: f64, bound: f64 },
    /// The standard deviation of z is not 1: the errors are not what is claimed.
    WrongSpread {
        what: String,
        deviation: f64,
        bound: f64,
    },
    /// Too few 95 % intervals contain the truth.
    Uncovered { what: String, coverage: f64 },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Biased { what, bias, bound } => write!(
                f,
                "{what}: biased by {:.3} %, allowed {:.3} %",
                bias * 100.0,
                bound * 100.0
            ),
            Self::Shifted { what, mean, bound } => {
                write!(f, "{what}: mean z {mean:.3}, allowed {bound:.3}")
            }
            Self::WrongSpread {
                what,
                deviation,
                bound,
            } => write!(
                f,
                "{what}: z has deviation {deviation:.3}, allowed 1 +- {bound:.3}"
            ),
            Self::Uncovered { what, coverage } => {
                write!(f, "{what}: 95 % intervals cover {:.1} %", coverage * 100.0)
            }
        }
    }
}

/// What is known about one quantity of one site.
#[derive(Clone, Copy, Default)]
struct Truth {
    value: f64,
    /// Of a right estimate: `sum y^2 (1 - p)/p`.
    variance: f64,
    /// Covariance of a right estimate with its estimated variance: `sum y^3 (1 - p)^2/p^2`.
    covariance: f64,
    samples: f64,
    misses: f64,
    unit: f64,
}

impl Truth {
    /// `count` allocations with quantity `y`, sampled with probability `p`.
    fn add(&mut self, count: f64, y: f64, p: f64, unit: f64) {
        let q = 1.0 - p;
        self.value += count * y;
        self.variance += count * y * y * q / p;
        self.covariance += count * y.powi(3) * q * q / (p * p);
        self.samples += count * p;
        self.misses += count * q;
        self.unit = self.unit.max(unit);
    }

    /// z with an estimated standard error has this mean: an estimate that is too low comes with an error that is too
    /// low. (-1/(2 sqrt n) for n samples of equal weight and small p.)
    fn mean_of_z(&self) -> f64 {
        -self.covariance / (2.0 * self.variance.powf(1.5))
    }
}

/// (bytes, objects) of each site.
fn truth(workload: &Workload) -> Vec<(Truth, Truth)> {
    let mut sites = vec![(Truth::default(), Truth::default()); workload.sites];
    let mut interval = workload.interval;
    let mut processes = 1.0;
    for event in workload.events() {
        let (site, size, count) = match event {
            Event::Alloc {
                site, size, count, ..
            } => (site, size, count),
            Event::Grow { site, to } => (site, to, 1),
            Event::Interval(bytes) => {
                interval = bytes;
                continue;
            }
            Event::Fork => {
                processes += 1.0;
                continue;
            }
            Event::Thread => continue,
        };
        let interval = Interval::new(interval).unwrap();
        let weight = Weight::new(GapLaw::Poisson, interval);
        let p = inclusion_probability(size, interval);
        let count = count as f64 * processes;
        let (bytes, objects) = &mut sites[site];
        bytes.add(count, size as f64, p, weight.unit_bytes());
        objects.add(count, 1.0, p, weight.unit_objects(size));
    }
    sites
}

/// Whether `fault` does no harm: under the seeds `0..seeds` the estimates of each site are unbiased, z has the mean and
/// the spread that it must have, and 95 % intervals hold the truth.
pub fn check(workload: &Workload, fault: Fault, seeds: u64) -> Result<(), Failure> {
    let runs: Vec<Vec<Site>> = (0..seeds).map(|seed| run(workload, fault, seed)).collect();
    for (index, (bytes, objects)) in truth(workload).into_iter().enumerate() {
        let of = |quantity: fn(&Site) -> Estimate| -> Vec<Estimate> {
            runs.iter().map(|sites| quantity(&sites[index])).collect()
        };
        check_quantity(
            format!("bytes of site {index}"),
            bytes,
            &of(|site| site.bytes),
        )?;
        check_quantity(
            format!("objects of site {index}"),
            objects,
            &of(|site| site.objects),
        )?;
    }
    Ok(())
}

fn check_quantity(what: String, truth: Truth, estimates: &[Estimate]) -> Result<(), Failure> {
    let runs = estimates.len() as f64;
    let mean = estimates.iter().map(Estimate::value).sum::<f64>() / runs;
    let (bias, bound) = (
        mean / truth.value - 1.0,
        SIGMAS * (truth.variance / runs).sqrt() / truth.value,
    );
    if bias.abs() > bound {
        return Err(Failure::Biased { what, bias, bound });
    }
    if truth.samples < ENOUGH_SAMPLES || truth.misses < ENOUGH_MISSES {
        return Ok(());
    }
    let z: Vec<f64> = estimates
        .iter()
        .map(|estimate| estimate.z_against(truth.value).unwrap())
        .collect();
    let mean = z.iter().sum::<f64>() / runs;
    let bound = SIGMAS / runs.sqrt();
    if (mean - truth.mean_of_z()).abs() > bound {
        return Err(Failure::Shifted { what, mean, bound });
    }
    let square = z.iter().map(|z| (z - mean).powi(2)).sum::<f64>() / (runs - 1.0);
    let (deviation, bound) = (square.sqrt(), SIGMAS / (2.0 * runs).sqrt());
    if (deviation - 1.0).abs() > bound {
        return Err(Failure::WrongSpread {
            what,
            deviation,
            bound,
        });
    }
    let covered = estimates.iter().filter(|estimate| {
        let limits = estimate.allowing_for(truth.unit).limits_95();
        limits.unwrap().contain(truth.value)
    });
    let coverage = covered.count() as f64 / runs;
    if coverage < 0.95 - SIGMAS * (0.95 * 0.05 / runs).sqrt() {
        return Err(Failure::Uncovered { what, coverage });
    }
    Ok(())
}

/// The sum of all runs' bytes, site by site.
pub fn means(workload: &Workload, fault: Fault, seeds: u64) -> Vec<Estimate> {
    let mut sums = vec![Estimate::ZERO; workload.sites];
    for seed in 0..seeds {
        for (sum, site) in sums.iter_mut().zip(run(workload, fault, seed)) {
            *sum += site.bytes;
        }
    }
    sums
}
