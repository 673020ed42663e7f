//! Several runs of each side: how much the program differs from run to run.
//!
//! Sampling is one reason for two runs to differ; other inputs, threads and timing are another, which only replicates
//! show. With x the values of n runs before and m after, each with sampling in it,
//!
//! ```text
//! s^2 = ( sum (x - mean before)^2 + sum (x - mean after)^2 ) / (n + m - 2)
//! t   = (mean after - mean before) / sqrt( s^2 (1/n + 1/m) )
//! ```
//!
//! has Student's distribution with n + m - 2 degrees of freedom if nothing changed: Student, "The probable error of a
//! mean", Biometrika 6 (1908), 1-25; R. A. Fisher, "Statistical Methods for Research Workers" (1925), section 24.
//!
//! That takes the runs of both sides to vary alike. Where one side was sampled more coarsely than the other, and has fewer runs,
//! s^2 has too little of its sampling error. With V the variance of a mean by sampling, under the hypothesis that nothing
//! changed ([`crate::null`]), what is missing is added:
//!
//! ```text
//! Var = s^2 (1/n + 1/m) + max(0, V before + V after - q (1/n + 1/m))
//! q   = ( (n - 1) n V before + (m - 1) m V after ) / (n + m - 2)
//! ```
//!
//! q is the sampling error in s^2. With equal intervals and equally many runs the second term is 0.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// The values of a row in each run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values {
    before: Vec<f64>,
    after: Vec<f64>,
}

impl Values {
    /// Of so many runs before and after, all 0 as yet.
    pub(crate) fn new(before: usize, after: usize) -> Self {
        Self {
            before: vec![0.0; before],
            after: vec![0.0; after],
        }
    }

    /// Adds to what a run has.
    pub(crate) fn add(&mut self, run: usize, is_after: bool, value: f64) {
        let side = if is_after {
            &mut self.after
        } else {
            &mut self.before
        };
        if let Some(sum) = side.get_mut(run) {
            *sum += value;
        }
    }

    /// Adds all of another's.
    pub(crate) fn merge(&mut self, other: &Values) {
        for (is_after, values) in [(false, &other.before), (true, &other.after)] {
            for (run, &value) in values.iter().enumerate() {
                self.add(run, is_after, value);
            }
        }
    }

    /// How far equal programs differ from run to run; `None` with one run a side. `sampling` are the variances of both means by
    /// sampling, where they are known.
    pub(crate) fn variation(&self, sampling: Option<[f64; 2]>) -> Option<Variation> {
        let freedom = (self.before.len() + self.after.len()).checked_sub(2)?;
        if freedom == 0 {
            return None;
        }
        let squares = |values: &[f64]| -> f64 {
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            values.iter().map(|value| (value - mean).powi(2)).sum()
        };
        let variance = (squares(&self.before) + squares(&self.after)) / freedom as f64;
        let (before, after) = (self.before.len() as f64, self.after.len() as f64);
        let runs = 1.0 / before + 1.0 / after;
        let missing = sampling.map_or(0.0, |[of_before, of_after]| {
            let in_runs = (before - 1.0) * before * of_before + (after - 1.0) * after * of_after;
            of_before + of_after - in_runs / freedom as f64 * runs
        });
        Some(Variation {
            variance: variance * runs + missing.max(0.0),
            freedom: freedom as f64,
        })
    }
}

/// The error of a difference of means, from the spread of the runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variation {
    /// Variance of the difference.
    pub variance: f64,
    /// Degrees of freedom of it.
    pub freedom: f64,
}

impl Variation {
    /// Probability of a difference at least as far from 0, on either side.
    pub(crate) fn p_value(&self, difference: f64) -> f64 {
        if difference == 0.0 {
            return 1.0;
        }
        let t = difference.abs() / self.variance.sqrt();
        self.law()
            .map_or(1.0, |law| (2.0 * law.sf(t)).clamp(0.0, 1.0))
    }

    /// A change of this many standard errors is found at the level 5 % in four runs of five.
    pub(crate) fn detectable_errors(&self) -> f64 {
        let law = self.law();
        law.map_or(f64::INFINITY, |law| {
            law.inverse_cdf(0.975) + law.inverse_cdf(0.8)
        })
    }

    fn law(&self) -> Option<StudentsT> {
        StudentsT::new(0.0, 1.0, self.freedom).ok()
    }
}

/// The same if only sampling is known, whose law is nearly normal.
pub(crate) const DETECTABLE_BY_SAMPLING: f64 = 1.959_964 + 0.841_621;

#[cfg(test)]
mod tests {
    use super::*;

    /// The sleep data of Student's paper: t = 1.8608 with 18 degrees of freedom, p = 0.07919 (pooled variance).
    #[test]
    fn agrees_with_students_example() {
        let mut values = Values::new(10, 10);
        let before = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
        let after = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];
        for run in 0..10 {
            values.add(run, false, before[run]);
            values.add(run, true, after[run]);
        }
        let variation = values.variation(None).unwrap();
        assert_eq!(variation.freedom, 18.0);
        let p = variation.p_value(2.33 - 0.75);
        assert!((p - 0.07919).abs() < 1e-5, "{p}");
        assert!(Values::new(1, 1).variation(None).is_none());
        // With equally many runs, sampled alike, sampling is in the spread of the runs already.
        let alike = values.variation(Some([0.3, 0.3])).unwrap();
        assert!((alike.variance - variation.variance).abs() < 1e-12);
    }

    #[test]
    fn a_single_run_that_was_sampled_coarsely_brings_its_own_error() {
        let mut values = Values::new(5, 1);
        for (run, value) in [9.0, 10.0, 11.0, 10.0, 10.0].into_iter().enumerate() {
            values.add(run, false, value);
        }
        values.add(0, true, 14.0);
        let of_runs = values.variation(None).unwrap();
        assert_eq!((of_runs.freedom, of_runs.variance), (4.0, 0.5 * 1.2));
        // 0.02 of each of the five means, 0.1 of a run; the single run has 4.0.
        let with_sampling = values.variation(Some([0.02, 4.0])).unwrap();
        assert!((with_sampling.variance - (0.6 + 4.02 - 0.1 * 1.2)).abs() < 1e-12);
    }
}
