//! Chooses the interval that keeps the cost of sampling at a budget.
//!
//! Samples per second are proportional to the bytes per second over the interval, as long as blocks are smaller than the
//! interval. So after a window in which samples cost `used` where `allowed` would have been right, the next interval is
//! the present one times `used / allowed`. Blocks larger than the interval are sampled nearly all, and a step has less
//! effect than that: the next window corrects it.
//!
//! What was used too much, or too little, is paid back over some seconds, so that small errors in one direction do not
//! add up. A burst is answered within a window, and paid back as far as half of what is allowed goes.
//!
//! An interval is chosen by what was sampled before it came into force, never by a look at the distance to the next
//! sample point. The law of the gaps is memoryless, so each sample keeps its weight and every estimate stays unbiased
//! (a sum of differences of a martingale, each with the interval of its own).

use crate::Interval;

/// The budget: at least one of the two limits is set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// CPU time of the agent divided by that of the program: 0.01 is one percent.
    pub overhead: Option<f64>,
    /// Samples per second of wall-clock time.
    pub samples_per_second: Option<f64>,
    /// The interval never gets shorter than this.
    pub shortest: Interval,
}

impl Budget {
    /// The interval to begin with, while nothing is known about the program: at 1 GiB/s it takes no more samples than are
    /// allowed. The controller shortens it from there, by a factor of at most four per window.
    ///
    /// Starting from a short interval, a program that allocates a lot would take thousands of samples before the first look.
    pub fn shortest_first(&self) -> Interval {
        const LOUD_BYTES_PER_S: f64 = (1_u64 << 30) as f64;
        let bound = self.samples_per_second.map_or(1.0, |rate| {
            let bytes = (LOUD_BYTES_PER_S / rate).clamp(1.0, LONGEST_BYTES);
            libm::exp2(libm::ceil(libm::log2(bytes) * STEPS) / STEPS)
        });
        step(bound).max(self.shortest)
    }
}

/// Measurements of one window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    /// Wall-clock time.
    pub elapsed_ns: f64,
    /// CPU time of the program, without the agent's.
    pub program_ns: f64,
    /// CPU time of the agent.
    pub agent_ns: f64,
    /// Samples that were due, taken or lost.
    pub samples: f64,
}

/// Windows are merged until this many samples were taken, or allowed: the ratio of fewer would be noise. At 100 samples its
/// standard error is a tenth.
const ENOUGH_SAMPLES: f64 = 100.0;
/// Time over which a debt is paid back, in seconds.
const PAY_BACK_S: f64 = 2.0;
/// Number of intervals per octave: fine enough to hold a cost to a tenth, with few different intervals in a profile.
const STEPS: f64 = 4.0;
/// So long that no sample is taken.
const LONGEST_BYTES: f64 = (1_u64 << 40) as f64;

/// The state of one of the two limits.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// The amount used minus the amount allowed so far, in the unit of the limit.
    debt: f64,
}

impl Account {
    /// Ends a window of `seconds`. Returns the factor by which the interval should grow. One sample uses `unit`.
    fn close(&mut self, used: f64, rate: f64, seconds: f64, unit: f64) -> f64 {
        let allowed = rate * seconds;
        let most = rate * PAY_BACK_S;
        self.debt = (self.debt + used - allowed).clamp(-most / 4.0, 2.0 * most);
        // Little is saved up, and at least half is always allowed: a burst does not blind us for long.
        let share = (1.0 - self.debt / most).clamp(0.5, 1.25);
        (used + unit) / (allowed * share + unit)
    }
}

/// Chooses intervals, window by window.
#[derive(Clone, Debug)]
pub struct Controller {
    budget: Budget,
    window: Window,
    /// Estimated CPU time of one sample, in nanoseconds.
    sample_ns: f64,
    overhead: Account,
    rate: Account,
}

impl Controller {
    /// A controller that has seen no window.
    pub fn new(budget: Budget) -> Self {
        /// Until one was measured.
        const FIRST_GUESS_NS: f64 = 2_000.0;
        Self {
            budget,
            window: Window::default(),
            sample_ns: FIRST_GUESS_NS,
            overhead: Account::default(),
            rate: Account::default(),
        }
    }

    /// The budget.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// From now on the interval never gets shorter than this.
    pub fn set_shortest(&mut self, shortest: Interval) {
        self.budget.shortest = shortest;
    }

    /// Evaluates a window in which `interval` applied. `Some`: the interval to apply next.
    pub fn observe(&mut self, interval: Interval, window: &Window) -> Option<Interval> {
        let sum = &mut self.window;
        sum.elapsed_ns += window.elapsed_ns.max(0.0);
        sum.program_ns += window.program_ns.max(0.0);
        sum.agent_ns += window.agent_ns.max(0.0);
        sum.samples += window.samples.max(0.0);
        let sum = *sum;
        if sum.samples >= 1.0 {
            self.sample_ns += (sum.agent_ns / sum.samples - self.sample_ns) / 4.0;
        }
        let overhead = self.budget.overhead.map(|rate| rate * 1e9);
        let rate = self.budget.samples_per_second;
        let (program_s, elapsed_s) = (sum.program_ns / 1e9, sum.elapsed_ns / 1e9);
        let by_overhead = overhead.map_or(f64::INFINITY, |rate| rate * program_s / self.sample_ns);
        let by_rate = rate.map_or(f64::INFINITY, |rate| rate * elapsed_s);
        if sum.samples.max(by_overhead.min(by_rate)) < ENOUGH_SAMPLES {
            return None;
        }
        self.window = Window::default();
        let account = &mut self.overhead;
        let by_overhead = overhead.map_or(0.0, |rate| {
            account.close(sum.agent_ns, rate, program_s, self.sample_ns)
        });
        let account = &mut self.rate;
        let by_rate = rate.map_or(0.0, |rate| account.close(sum.samples, rate, elapsed_s, 1.0));
        // Down in small steps: what comes next may be a burst.
        let factor = by_overhead.max(by_rate).clamp(0.25, 1024.0);
        let next = step(interval.bytes() as f64 * factor).max(self.budget.shortest);
        let ratio = next.bytes() as f64 / interval.bytes() as f64;
        /// Within a step there is no change: half a step would be one to and fro.
        const ONE_STEP: f64 = 1.15;
        let is_far = !(1.0 / ONE_STEP..=ONE_STEP).contains(&ratio);
        (is_far && next != interval).then_some(next)
    }
}

/// The interval nearest to this many bytes, on a grid of `STEPS` per octave.
fn step(bytes: f64) -> Interval {
    let steps = libm::round(libm::log2(bytes.clamp(1.0, LONGEST_BYTES)) * STEPS);
    let rounded = libm::round(libm::exp2(steps / STEPS));
    // At most 2^40, so exact.
    Interval::new(rounded as u64).unwrap_or(Interval::EVERY_ALLOCATION)
}

/// Reads `1%` or `0.25%` as millionths: 10,000 and 2,500. `None` if it is no percentage, or outside 0.01% to 100%.
pub fn parse_percent(text: &[u8]) -> Option<u32> {
    let number = text.strip_suffix(b"%")?;
    let mut parts = number.splitn(2, |&byte| byte == b'.');
    let (whole, decimals) = (parts.next()?, parts.next());
    if whole.is_empty() || decimals.is_some_and(|digits| digits.is_empty() || digits.len() > 4) {
        return None;
    }
    let decimals = decimals.unwrap_or(&[]);
    // Four digits after the point, the missing ones as zeros.
    let digits = (whole.iter().chain(decimals))
        .copied()
        .chain(core::iter::repeat_n(b'0', 4 - decimals.len()));
    let ppm = digits.into_iter().try_fold(0_u32, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u32::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })?;
    (100..=1_000_000).contains(&ppm).then_some(ppm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GapLaw, Random, Sampler, Seed, Weight};
    use std::collections::BTreeSet;
    use std::vec::Vec;

    /// A program that allocates `bytes_per_s` in blocks of `block` while it runs, at `ns` a sample.
    struct Load {
        bytes_per_s: f64,
        block: f64,
        sample_ns: f64,
    }

    /// Expected samples a second: blocks a second times the probability of each.
    fn samples_per_s(load: &Load, interval: Interval) -> f64 {
        let p = 1.0 - libm::exp(-load.block / interval.bytes() as f64);
        load.bytes_per_s / load.block * p
    }

    /// Runs the controller through a load for a time, a tenth of a second a window; returns the mean overhead of the
    /// second half, and the interval at the end.
    fn run(
        controller: &mut Controller,
        mut interval: Interval,
        load: &Load,
        seconds: f64,
    ) -> (f64, Interval) {
        let windows = (seconds * 10.0) as u32;
        let mut cost = 0.0;
        for number in 0..windows {
            let samples = samples_per_s(load, interval) / 10.0;
            let agent_ns = samples * load.sample_ns;
            if number >= windows / 2 {
                cost += agent_ns / 1e8 / f64::from(windows - windows / 2);
            }
            let window = Window {
                elapsed_ns: 1e8,
                program_ns: 1e8,
                agent_ns,
                samples,
            };
            interval = controller.observe(interval, &window).unwrap_or(interval);
        }
        (cost, interval)
    }

    fn one_percent() -> Controller {
        Controller::new(Budget {
            overhead: Some(0.01),
            samples_per_second: None,
            shortest: Interval::new(1024).unwrap(),
        })
    }

    #[test]
    fn the_cost_is_one_percent_while_the_load_changes_a_hundredfold() {
        let mut controller = one_percent();
        let mut interval = Interval::DEFAULT;
        for round in 0..6 {
            for (bytes_per_s, sample_ns) in [(5e7, 900.0), (5e9, 1500.0), (5e8, 4000.0)] {
                let load = Load {
                    bytes_per_s,
                    block: if round % 2 == 0 { 100.0 } else { 4000.0 },
                    sample_ns,
                };
                let (cost, next) = run(&mut controller, interval, &load, 10.0);
                interval = next;
                assert!((0.005..0.015).contains(&cost), "{cost} at {bytes_per_s}");
            }
        }
    }

    #[test]
    fn percentages_are_read_exactly_or_not_at_all() {
        for (text, ppm) in [
            ("1%", 10_000),
            ("0.5%", 5000),
            ("0.0125%", 125),
            ("100%", 1_000_000),
        ] {
            assert_eq!(parse_percent(text.as_bytes()), Some(ppm), "{text}");
        }
        for text in [
            "", "%", "1", "0%", "101%", ".5%", "1.%", "1.12345%", "-1%", "1,5%", "0.001%",
        ] {
            assert_eq!(parse_percent(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_debt_is_paid_back_at_half_of_what_is_allowed_and_little_is_saved() {
        // (used, factor) of windows of a second, in which 100 are allowed.
        let second = |windows: &[(f64, f64)]| {
            let mut account = Account::default();
            for &(used, expected) in windows {
                let factor = account.close(used, 100.0, 1.0, 1.0);
                assert!(
                    libm::fabs(factor - expected) < 1e-12,
                    "{factor} {windows:?}"
                );
            }
        };
        second(&[(100.0, 1.0), (100.0, 1.0)]);
        second(&[
            (0.0, 1.0 / 126.0),
            (0.0, 1.0 / 126.0),
            (125.0, 126.0 / 113.5),
        ]);
        second(&[(300.0, 301.0 / 51.0), (0.0, 1.0 / 51.0), (0.0, 1.0 / 101.0)]);
        let paying = (0.0, 1.0 / 51.0);
        let burst = (10_000.0, 10_001.0 / 51.0);
        second(&[burst, paying, paying, paying, (0.0, 1.0 / 101.0)]);
        let factor = Account::default().close(60.0, 100.0, 0.5, 2.0);
        assert!(libm::fabs(factor - 62.0 / 49.5) < 1e-12, "{factor}");
    }

    #[test]
    fn windows_are_merged_until_enough_samples_were_taken_or_allowed() {
        let interval = |bytes| Interval::new(bytes).unwrap();
        let idle = |ns| Window {
            elapsed_ns: ns,
            program_ns: ns,
            ..Window::default()
        };
        // At 2 us a sample, 100 samples are allowed in 20 ms. Then the interval becomes four times as short at most.
        let mut controller = one_percent();
        assert_eq!(controller.observe(interval(1 << 16), &idle(1.9e7)), None);
        let next = controller.observe(interval(1 << 16), &idle(0.2e7));
        assert_eq!(next, Some(interval(1 << 14)));
        assert_eq!(controller.observe(interval(1 << 14), &idle(1.9e7)), None);
        // Not shorter than the budget says, however little is used.
        let next = controller.observe(interval(1 << 10), &idle(1e9));
        assert_eq!(next, None);
        controller.set_shortest(interval(1 << 15));
        let next = controller.observe(interval(1 << 16), &idle(1e9));
        assert_eq!(next, Some(interval(1 << 15)));
    }

    #[test]
    fn the_cost_of_a_sample_follows_what_is_measured() {
        let mut controller = one_percent();
        let window = Window {
            samples: 400.0,
            agent_ns: 400.0 * 10_000.0,
            ..Window::default()
        };
        controller.observe(Interval::DEFAULT, &window);
        assert_eq!(controller.sample_ns, 4000.0);
        controller.observe(Interval::DEFAULT, &window);
        assert_eq!(controller.sample_ns, 5500.0);
    }

    #[test]
    fn an_interval_grows_by_what_was_taken_too_much_and_stays_where_that_is_little() {
        let mut controller = Controller::new(Budget {
            overhead: None,
            samples_per_second: Some(500.0),
            shortest: Interval::EVERY_ALLOCATION,
        });
        let interval = |bytes| Interval::new(bytes).unwrap();
        let taken = |samples| Window {
            elapsed_ns: 1e9,
            samples,
            ..Window::default()
        };
        assert_eq!(controller.observe(interval(1 << 16), &taken(500.0)), None);
        assert_eq!(controller.observe(interval(1 << 16), &taken(520.0)), None);
        assert_eq!(controller.observe(interval(1 << 16), &taken(470.0)), None);
        // 1,001 over the 256 that are left while the debt of 490 is paid back.
        let next = controller.observe(interval(1 << 16), &taken(1000.0));
        assert_eq!(next, Some(interval(1 << 18)));
    }

    #[test]
    fn large_blocks_do_not_fool_it() {
        // Blocks of a mebibyte, sampled all until the interval is far above: samples hardly get fewer at first.
        let mut controller = one_percent();
        let load = Load {
            bytes_per_s: 1e11,
            block: f64::from(1 << 20),
            sample_ns: 2000.0,
        };
        let (cost, interval) = run(&mut controller, Interval::new(4096).unwrap(), &load, 20.0);
        assert!((0.005..0.015).contains(&cost), "{cost} at {interval}");
    }

    #[test]
    fn samples_per_second_are_held_and_the_stricter_limit_holds() {
        let load = Load {
            bytes_per_s: 1e9,
            block: 100.0,
            sample_ns: 1000.0,
        };
        let budget = Budget {
            overhead: None,
            samples_per_second: Some(500.0),
            shortest: Interval::new(1024).unwrap(),
        };
        for overhead in [None, Some(0.01)] {
            let budget = Budget { overhead, ..budget };
            let mut controller = Controller::new(budget);
            let (cost, _) = run(&mut controller, Interval::DEFAULT, &load, 20.0);
            let per_second = cost / 1e-6;
            assert!((250.0..750.0).contains(&per_second), "{per_second}");
        }
    }

    /// Expected samples of a load's first second, from `first` on. A window ends when the controller is woken: by so many
    /// samples as its budget allows in a fifth of a second, or after a tenth of a second.
    fn samples_of_the_first_second(budget: Budget, first: Interval, load: &Load) -> f64 {
        let mut controller = Controller::new(budget);
        let (mut interval, mut now_ns, mut taken) = (first, 0.0, 0.0);
        let burst = budget.samples_per_second.unwrap() / 5.0;
        while now_ns < 1e9 {
            let per_s = samples_per_s(load, interval);
            let elapsed_ns = (burst / per_s * 1e9).min(1e8).min(1e9 - now_ns);
            let samples = per_s * elapsed_ns / 1e9;
            (now_ns, taken) = (now_ns + elapsed_ns, taken + samples);
            let window = Window {
                elapsed_ns,
                program_ns: elapsed_ns,
                agent_ns: samples * load.sample_ns,
                samples,
            };
            interval = controller.observe(interval, &window).unwrap_or(interval);
        }
        taken
    }

    #[test]
    fn the_first_second_takes_no_more_samples_than_are_allowed() {
        let budget = |rate: u32, shortest: u64| Budget {
            overhead: None,
            samples_per_second: Some(f64::from(rate)),
            shortest: Interval::new(shortest).unwrap(),
        };
        // 2^30 over the rate, rounded up to a quarter of an octave, and no shorter than what was asked for.
        for (rate, shortest, first) in [
            (500, 4096, 2_493_948),
            (512, 4096, 2_097_152),
            (100_000, 4096, 11_585),
            (1_000_000, 4096, 4096),
            (500, 1 << 24, 1 << 24),
        ] {
            let budget = budget(rate, shortest);
            assert_eq!(budget.shortest_first().bytes(), first, "{rate}");
        }
        let without = Budget {
            samples_per_second: None,
            ..budget(1, 4096)
        };
        assert_eq!(without.shortest_first().bytes(), 4096);
        let loud = Load {
            bytes_per_s: f64::from(1 << 30),
            block: 100.0,
            sample_ns: 1000.0,
        };
        let budget = budget(500, 4096);
        let first = budget.shortest_first();
        // 2^30 / 2,493,948 a second; at 4 KiB it would be 262,144.
        let taken = samples_of_the_first_second(budget, first, &loud);
        assert!((420.0..500.0).contains(&taken), "{taken}");
        // A program a hundredth as loud is at a fraction of its share at first, and comes up to it within the second.
        let quiet = Load {
            bytes_per_s: loud.bytes_per_s / 100.0,
            ..loud
        };
        let taken = samples_of_the_first_second(budget, first, &quiet);
        assert!((100.0..500.0).contains(&taken), "{taken}");
    }

    #[test]
    fn a_quiet_program_is_sampled_at_the_shortest_interval_and_a_burst_is_paid_back() {
        let mut controller = one_percent();
        let quiet = Load {
            bytes_per_s: 1e4,
            block: 100.0,
            sample_ns: 1000.0,
        };
        let (_, interval) = run(&mut controller, Interval::DEFAULT, &quiet, 60.0);
        assert_eq!(interval.bytes(), 1024);
        let burst = Load {
            bytes_per_s: 1e10,
            ..quiet
        };
        // The first window has no help: 10 million samples a second.
        let window = Window {
            elapsed_ns: 1e7,
            program_ns: 1e7,
            agent_ns: 1e8,
            samples: 1e5,
        };
        let next = controller.observe(interval, &window).unwrap();
        assert!(next.bytes() >= 512 * interval.bytes(), "{next}");
        let (cost, _) = run(&mut controller, next, &burst, 60.0);
        assert!(cost < 0.0125, "{cost}");
    }

    #[test]
    fn few_different_intervals_come_into_a_profile() {
        let mut seen = BTreeSet::new();
        for exponent in 0..4000 {
            seen.insert(step(libm::exp2(f64::from(exponent) / 100.0)));
        }
        assert_eq!(seen.len(), 161 - 5, "the lowest steps are one byte apart");
        assert_eq!(step(1.0).bytes(), 1);
        assert_eq!(step(524_288.0).bytes(), 524_288);
        assert_eq!(step(1e30).bytes(), 1 << 40);
    }

    /// One run of a sampler under a controller: bytes estimated, bytes allocated, and the estimated variance.
    fn estimate(seed: u64) -> (f64, f64, f64) {
        let mut controller = one_percent();
        let mut interval = Interval::new(65536).unwrap();
        let random: Random = Seed { process: seed }.thread(1);
        let mut sampler = Sampler::new(GapLaw::Poisson, interval, random);
        let (mut found, mut exact, mut variance) = (0.0, 0.0, 0.0);
        let mut samples = 0_u32;
        for block in 0_u64..400_000 {
            // The load changes a hundredfold every 40,000 blocks; sizes vary.
            let is_loud = block / 40_000 % 2 == 1;
            let size = 16 + block * 7919 % 2000;
            exact += size as f64;
            if sampler.on_alloc(size).is_sampled() {
                samples += 1;
                let weight = Weight::new(GapLaw::Poisson, interval);
                let p = crate::inclusion_probability(size, interval);
                let bytes = weight.bytes(size, crate::SamplePoints(1));
                found += bytes;
                variance += bytes * bytes * (1.0 - p);
            }
            if block % 100 == 99 {
                let program_ns = if is_loud { 1e4 } else { 1e6 };
                let window = Window {
                    elapsed_ns: program_ns,
                    program_ns,
                    agent_ns: f64::from(samples) * 1000.0,
                    samples: f64::from(samples),
                };
                samples = 0;
                if let Some(next) = controller.observe(interval, &window) {
                    interval = next;
                    sampler.redraw(interval);
                }
            }
        }
        (found, exact, variance)
    }

    #[test]
    fn estimates_under_a_controller_are_unbiased_and_their_standard_errors_true() {
        const RUNS: u32 = 200;
        let deviations: Vec<f64> = (0..u64::from(RUNS))
            .map(|seed| {
                let (found, exact, variance) = estimate(seed);
                (found - exact) / libm::sqrt(variance)
            })
            .collect();
        let runs = f64::from(RUNS);
        let mean = deviations.iter().sum::<f64>() / runs;
        let square = deviations.iter().map(|z| z * z).sum::<f64>() / runs;
        // Four standard errors: of a mean of 200 normal figures, and of the mean of their squares.
        assert!(mean.abs() < 4.0 / libm::sqrt(runs), "{mean}");
        assert!(
            (square - 1.0).abs() < 4.0 * libm::sqrt(2.0 / runs),
            "{square}"
        );
    }

    #[test]
    fn an_interval_within_a_step_of_the_grid_stays() {
        let budget = Budget {
            overhead: None,
            samples_per_second: Some(100.0),
            shortest: Interval::EVERY_ALLOCATION,
        };
        let as_allowed = Window {
            elapsed_ns: 1e9,
            program_ns: 1e9,
            agent_ns: 0.0,
            samples: 100.0,
        };
        // The nearest one on the grid, 4,871 bytes, is 8 % longer than the first, and 6 % shorter than the second.
        for bytes in [4500, 5200] {
            let interval = Interval::new(bytes).unwrap();
            let next = Controller::new(budget).observe(interval, &as_allowed);
            assert_eq!(next, None, "{bytes}");
        }
    }
}
