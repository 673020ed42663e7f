//! How often the test of growth is wrong about sites in a steady state: tests only.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1, LogNormal, Poisson};

use crate::blocks::Life;
use crate::growth;
use crate::sign_flip::SignFlipTest;

/// A law of births and deaths that has gone on for long.
struct Law {
    name: &'static str,
    /// Events in a run; each is the birth of one or several blocks.
    births: f64,
    /// Blocks of an event.
    burst: fn(&mut StdRng) -> usize,
    /// Blocks of an event are freed together.
    die_together: bool,
    lifetime: fn(&mut StdRng) -> f64,
    bytes: fn(&mut StdRng) -> f64,
}

const PLAIN: Law = Law {
    name: "",
    births: 200.0,
    burst: |_| 1,
    die_together: false,
    lifetime: |random| exponential(random, 0.1),
    bytes: |_| 1.0,
};

fn exponential(random: &mut StdRng, mean: f64) -> f64 {
    let unit: f64 = Exp1.sample(random);
    mean * unit
}

fn geometric(random: &mut StdRng, mean: f64) -> usize {
    1 + (exponential(random, 1.0) / -(1.0 - 1.0 / mean).ln()) as usize
}

fn laws() -> Vec<Law> {
    vec![
        Law {
            name: "few blocks",
            births: 30.0,
            lifetime: |random| exponential(random, 0.3),
            ..PLAIN
        },
        Law {
            name: "short lives",
            births: 2000.0,
            lifetime: |random| exponential(random, 0.01),
            ..PLAIN
        },
        Law {
            name: "long lives",
            lifetime: |random| exponential(random, 1.0),
            ..PLAIN
        },
        Law {
            name: "a cache of constant size",
            lifetime: |_| 0.3,
            ..PLAIN
        },
        Law {
            name: "Pareto lifetimes",
            births: 1000.0,
            lifetime: |random| 0.005 * random.random::<f64>().powf(-1.0 / 1.2),
            ..PLAIN
        },
        Law {
            name: "unequal sizes",
            births: 500.0,
            bytes: |random| LogNormal::new(0.0, 1.0).unwrap().sample(random),
            ..PLAIN
        },
        Law {
            name: "bursts of 5",
            births: 100.0,
            burst: |random| geometric(random, 5.0),
            ..PLAIN
        },
        Law {
            name: "bursts of 5 that are freed together",
            births: 100.0,
            burst: |random| geometric(random, 5.0),
            die_together: true,
            ..PLAIN
        },
        Law {
            name: "bursts of 50 that are freed together",
            births: 40.0,
            burst: |random| geometric(random, 50.0),
            die_together: true,
            ..PLAIN
        },
        Law {
            name: "bursts of 20, 10 in a run, long lives",
            births: 10.0,
            burst: |random| geometric(random, 20.0),
            die_together: true,
            lifetime: |random| exponential(random, 0.5),
            ..PLAIN
        },
    ]
}

/// The blocks of a run from 0 to 1, in the order of their births.
fn lives(law: &Law, random: &mut StdRng) -> Vec<Life> {
    const BEFORE: f64 = 8.0;
    let count: f64 = Poisson::new(law.births * (1.0 + BEFORE))
        .unwrap()
        .sample(random);
    let mut lives = Vec::new();
    for _ in 0..count as u64 {
        let birth = random.random_range(-BEFORE..1.0);
        let together = (law.lifetime)(random);
        for _ in 0..(law.burst)(random) {
            let lifetime = if law.die_together {
                together
            } else {
                (law.lifetime)(random)
            };
            let death = Some(birth + lifetime).filter(|&death| death < 1.0);
            if death.is_none_or(|death| death > 0.0) {
                let bytes = (law.bytes)(random);
                lives.push(Life {
                    is_transient: false,
                    birth,
                    death,
                    bytes,
                });
            }
        }
    }
    lives.sort_by(|a, b| a.birth.total_cmp(&b.birth));
    lives
}

/// Shares of p-values below each of these levels.
fn shares(law: &Law, runs: u64, levels: [f64; 2]) -> [f64; 2] {
    let mut random = StdRng::seed_from_u64(law.births as u64 + law.name.len() as u64);
    let mut test = SignFlipTest::default();
    let mut below = [0u32; 2];
    for _ in 0..runs {
        let lives = lives(law, &mut random);
        let p = growth::p_value(&[&lives], &mut test);
        for (count, level) in below.iter_mut().zip(levels) {
            *count += u32::from(p < level);
        }
    }
    below.map(|count| f64::from(count) / runs as f64)
}

#[test]
fn a_steady_site_has_a_p_value_below_a_level_no_more_often_than_the_level_says() {
    const RUNS: u64 = 2000;
    let mut wrong = Vec::new();
    for law in laws() {
        let [at_1, at_01] = shares(&law, RUNS, [0.01, 0.001]);
        eprintln!(
            "{}: {:.2} % below 1 %, {:.2} % below 0.1 %",
            law.name,
            100.0 * at_1,
            100.0 * at_01
        );
        // Of 2,000 runs 20 are expected; more than 35 have a probability of 1 in 1,000.
        if at_1 > 0.0175 || at_01 > 0.004 {
            wrong.push((law.name, at_1, at_01));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
