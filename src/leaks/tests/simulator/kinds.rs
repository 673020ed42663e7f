//! Kinds of site, with what they are.

use allocsample_leaks::{Findings, Verdict};
use rand::RngExt;
use rand::rngs::StdRng;

use super::{INTERVAL, Program, exponential, finding};

/// What a kind is, and what can be known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Truth {
    /// Memory that is never freed, more and more of it.
    Leak,
    /// No leak, and what is freed or how growth slows shows it.
    Harmless,
    /// No leak, but until the end of the run the same data as a leak's.
    LikeALeak,
    /// No leak, but until the end of the run the same data as a leak of a part of the blocks.
    LikeAPartialLeak,
    /// What there is does not decide.
    Open,
}

/// A kind of site.
pub struct Kind {
    pub name: &'static str,
    pub truth: Truth,
    /// Makes the site, which has [`SITE`] for its number.
    make: fn(&mut Program),
    load: fn(f64) -> f64,
}

/// The number of the site that is asked about.
pub const SITE: u64 = 0x1;
const MB: f64 = 1e6;

impl Kind {
    /// The verdict on the site in a program of this length; `None` without live bytes.
    pub fn verdict(&self, seed: u64, run_s: f64) -> Option<Verdict> {
        finding(&self.findings(seed, run_s), SITE).map(|finding| finding.verdict)
    }

    /// All of a program's findings.
    pub fn findings(&self, seed: u64, run_s: f64) -> Findings {
        let mut program = Program::new(seed, run_s, self.load);
        program.neighbours(20);
        (self.make)(&mut program);
        program.findings()
    }
}

fn even(_: f64) -> f64 {
    1.0
}
/// One wave, highest in the middle.
fn wave(part: f64) -> f64 {
    1.0 - (part * std::f64::consts::TAU).cos()
}
/// From a fifth to the double.
fn ramp(part: f64) -> f64 {
    0.2 + 1.6 * part
}
fn never(_: f64, _: &mut StdRng) -> Option<f64> {
    None
}

/// A share is never freed, the rest after an exponential time.
fn kept(share: f64, mean_s: f64) -> impl FnMut(f64, &mut StdRng) -> Option<f64> {
    move |time, random| {
        (random.random::<f64>() >= share).then(|| time + exponential(random, mean_s))
    }
}

fn after(mean_s: f64) -> impl FnMut(f64, &mut StdRng) -> Option<f64> {
    kept(0.0, mean_s)
}

/// All is freed at the end of each tooth.
fn sawtooth(period_s: f64) -> impl FnMut(f64, &mut StdRng) -> Option<f64> {
    move |time, _| Some(((time / period_s).floor() + 1.0) * period_s)
}

macro_rules! kinds {
    ($($truth:ident $name:literal $load:ident $make:expr;)*) => {
        /// All of them.
        pub const KINDS: &[Kind] = &[
            $(Kind { name: $name, truth: Truth::$truth, make: $make, load: $load },)*
        ];
    };
}

kinds! {
    Leak "64-byte blocks, 0.5 MB/s" even |p| p.site(SITE, 64, 0.5 * MB, even, never);
    Leak "4 KiB blocks, 1 MB/s" even |p| p.site(SITE, 4096, MB, even, never);
    Leak "64-byte blocks, 5 MB/s" even |p| p.site(SITE, 64, 5.0 * MB, even, never);
    Leak "0.1 % of the traffic, 50 KB/s" even |p| p.site(SITE, 256, 0.05 * MB, even, never);
    Leak "one block in 50, the others live for 50 ms" even |p| p.site(SITE, 4096, 25.0 * MB, even, kept(0.02, 0.05));
    Leak "2 % of a queue's blocks, the others live for 1/60 of the run" even |p| {
        let mean_s = p.run_s / 60.0;
        p.site(SITE, 1024, 25.0 * MB, even, kept(0.02, mean_s));
    };
    Leak "three sessions in ten, the others live for 1/20 of the run" even |p| {
        let mean_s = p.run_s / 20.0;
        p.site(SITE, 512, 3.0 * MB, even, kept(0.3, mean_s));
    };
    Leak "one cache entry in ten, the others live for 1/12 of the run" even |p| {
        let mean_s = p.run_s / 12.0;
        p.site(SITE, 512, 8.0 * MB, even, kept(0.1, mean_s));
    };
    Leak "from half of the run on, 1 MB/s" even |p| p.site(SITE, 256, MB, |t| f64::from(u8::from(t > 0.5)), never);
    Leak "in the last fifth of the run, 2 MB/s" even |p| p.site(SITE, 256, 2.0 * MB, |t| f64::from(u8::from(t > 0.8)), never);
    Leak "load of a day (one wave)" wave |p| p.site(SITE, 64, 0.5 * MB, even, never);
    Leak "rising load" ramp |p| p.site(SITE, 64, 0.5 * MB, even, never);
    Leak "faster and faster" even |p| p.site(SITE, 64, 0.7 * MB, |t| 2.0 * t, never);
    Leak "every other 20th of the run" even |p| p.site(SITE, 64, 0.5 * MB, |t| f64::from((t * 20.0) as u32 % 2) * 2.0, never);
    Leak "bursts of 20 MB, ten in the run" even |p| {
        let width = p.run_s / 1000.0;
        p.site(SITE, 64, 20.0 * MB / width / 4.0, move |t| if (t * 10.0 + 0.5).fract() < 0.01 { 4.0 } else { 0.0 }, never);
    };
    Leak "bursts once a minute, 30 MB each" even |p| {
        let run_s = p.run_s;
        p.site(SITE, 64, 15.0 * MB, move |t| if (t * run_s / 60.0 + 0.5).fract() < 1.0 / 120.0 { 4.0 } else { 0.0 }, never);
    };
    Leak "blocks of 16 MiB, one in 5 s" even |p| {
        let times = (0..(p.run_s / 5.0) as u32).map(|n| 2.0 + 5.0 * f64::from(n));
        p.blocks(SITE, 16 << 20, times, |_| None);
    };
    Leak "beside 1,000 steady neighbours" even |p| {
        p.neighbours(1000);
        p.site(SITE, 64, 0.5 * MB, even, never);
    };
    Leak "beside a table of 20 MB from the beginning" even |p| {
        let run_s = p.run_s;
        p.site(SITE, 64, 0.5 * MB, even, never);
        p.blocks(SITE, 1 << 20, (0..20).map(|n| run_s * 0.001 * f64::from(n)), |_| None);
    };
    Leak "a buffer that grows by realloc, 0.5 MB/s" even |p| {
        let step_s = p.run_s / 200.0;
        p.buffer(SITE, step_s, (0.5 * MB * step_s) as u64);
    };
    Leak "freed only when the program ends" even |p| {
        let exit_s = p.exit_s();
        p.site(SITE, 64, 0.5 * MB, even, move |_, _| Some(exit_s));
        p.ends();
    };
    Leak "attached; the process grows with it" even |p| {
        let run_s = p.run_s;
        p.site(SITE, 64, 0.5 * MB, even, never);
        p.attached(move |t| 300.0 * MB + 0.5 * MB * t * run_s);
    };
    Leak "attached; 2 % of a queue's blocks" even |p| {
        let run_s = p.run_s;
        p.site(SITE, 1024, 25.0 * MB, even, kept(0.02, run_s / 60.0));
        p.attached(move |t| 300.0 * MB + 0.5 * MB * t * run_s);
    };

    Leak "attached; beside a full cache of 0.2 MB/s" even |p| {
        let run_s = p.run_s;
        p.site(SITE, 64, MB, even, never);
        p.site(0x2, 4096, 0.2 * MB, even, never);
        p.attached(move |t| 300.0 * MB + MB * t * run_s);
    };
    Leak "collected heap, a full collection after every tenth of the run" even |p| {
        p.collected(SITE, 64, MB, 0.1, even, kept(0.5, 0.01));
    };
    Leak "collected heap, the only full collection at 24/25 of the run" even |p| p.collected(SITE, 64, 0.5 * MB, 0.96, even, never);

    Harmless "requests, freed at once" even |p| p.site(SITE, 512, 10.0 * MB, even, after(0.05));
    Harmless "queue, blocks live for 1/20 of the run" even |p| { let mean_s = p.run_s / 20.0; p.site(SITE, 512, 5.0 * MB, even, after(mean_s)); };
    Harmless "queue, blocks live for 1/5 of the run" even |p| { let mean_s = p.run_s / 5.0; p.site(SITE, 512, 2.0 * MB, even, after(mean_s)); };
    Harmless "lifetimes from 0.1 s up, Pareto 1.1" even |p| p.site(SITE, 512, 5.0 * MB, even, |time, random| Some(time + 0.1 * random.random::<f64>().powf(-1.0 / 1.1)));
    Harmless "cache, oldest entry replaced, full after 1/10 of the run" even |p| { let life_s = p.run_s * 0.1; p.site(SITE, 4096, MB, even, move |time, _| Some(time + life_s)); };
    Harmless "cache, oldest entry replaced, full after 2/5 of the run" even |p| { let life_s = p.run_s * 0.4; p.site(SITE, 4096, MB, even, move |time, _| Some(time + life_s)); };
    Harmless "cache, random entry replaced, full after 3/10 of the run" even |p| {
        let full_s = p.run_s * 0.3;
        p.site(SITE, 4096, MB, even, move |time, random| Some(full_s.max(time) + exponential(random, full_s)));
    };
    Harmless "cache, full after 2/5 of the run, entries stay" even |p| p.site(SITE, 4096, MB, |t| f64::from(u8::from(t < 0.4)), never);
    Harmless "warming cache, 1 - exp(-5 t)" even |p| p.site(SITE, 4096, 0.5 * MB, |t| 4.0 * (-5.0 * t).exp(), never);
    Harmless "table from the beginning" even |p| p.site(SITE, 4096, 20.0 * MB, |t| if t < 0.02 { 4.0 } else { 0.0 }, never);
    Harmless "log growth (table of names)" even |p| p.site(SITE, 64, 0.5 * MB, |t| (0.2 / (t + 0.01)).min(4.0), never);
    Harmless "square-root growth" even |p| p.site(SITE, 64, MB, |t| (0.5 / (t + 1e-4).sqrt()).min(4.0), never);
    Harmless "leak that stopped at 3/5 of the run" even |p| p.site(SITE, 64, MB, |t| f64::from(u8::from(t < 0.6)), never);
    Harmless "table rebuilt at 3/5 of the run" even |p| {
        let again_s = p.run_s * 0.6;
        p.site(SITE, 4096, 20.0 * MB, |t| if t < 0.02 || (0.6..0.62).contains(&t) { 4.0 } else { 0.0 }, move |time, _| (time < again_s).then_some(again_s * 1.03));
    };
    Harmless "queue under the load of a day" wave |p| { let mean_s = p.run_s / 40.0; p.site(SITE, 512, 5.0 * MB, even, after(mean_s)); };
    Harmless "queue under rising load" ramp |p| { let mean_s = p.run_s / 40.0; p.site(SITE, 512, 5.0 * MB, even, after(mean_s)); };
    Harmless "sawtooth, 5 teeth" even |p| { let period_s = p.run_s / 4.7; p.site(SITE, 512, 2.0 * MB, even, sawtooth(period_s)); };
    Harmless "sawtooth, 2.5 teeth" even |p| { let period_s = p.run_s / 2.5; p.site(SITE, 512, 2.0 * MB, even, sawtooth(period_s)); };
    Harmless "pool that grew with the load of the first half, and stays" even |p| p.site(SITE, 65536, MB, |t| if t < 0.5 { 2.0 * (0.5 - t) + 0.5 } else { 0.0 }, never);
    Harmless "pool that never closes, sized by the largest demand so far" even |p| {
        let run_s = p.run_s;
        p.blocks(SITE, 1 << 20, (0..60).map(move |n| run_s * 0.9 * (f64::from(n + 1) / 60.0).powi(4)), |_| None);
    };
    Harmless "backlog of a queue that drains" even |p| {
        let run_s = p.run_s;
        p.site(SITE, 512, 5.0 * MB, even, move |time, random| {
            let drained_s = run_s * 0.7;
            let is_stuck = (0.4 * run_s..0.6 * run_s).contains(&time);
            Some(if is_stuck { drained_s * (1.0 + 0.05 * random.random::<f64>()) } else { time + exponential(random, run_s / 100.0) })
        });
    };
    Harmless "bursts, every other 1/30 of the run, freed soon" even |p| { let mean_s = p.run_s / 60.0; p.site(SITE, 1024, 5.0 * MB, |t| f64::from((t * 30.0) as u32 % 2) * 2.0, after(mean_s)); };
    Harmless "bursts once a minute, freed after 30 s" even |p| {
        let run_s = p.run_s;
        p.site(SITE, 64, 15.0 * MB, move |t| if (t * run_s / 60.0 + 0.5).fract() < 1.0 / 120.0 { 4.0 } else { 0.0 }, |time, _| Some(time + 30.0));
    };
    Harmless "blocks of 64 MiB, each alive for 1/15 of the run" even |p| {
        let (run_s, each_s) = (p.run_s, p.run_s / 100.0);
        p.blocks(SITE, 64 << 20, (0..100).map(|n| f64::from(n) * each_s), move |time| Some(time + run_s / 15.0));
    };
    Harmless "one of 1,000 steady sites" even |p| {
        p.neighbours(1000);
        let mean_s = p.run_s / 15.0;
        p.site(SITE, 1024, 4.0 * INTERVAL as f64 / mean_s, even, after(mean_s));
    };
    Harmless "attached; full cache, entries live for 3/10 of the recording" even |p| {
        let life_s = p.run_s * 0.3;
        p.site(SITE, 4096, MB, even, move |time, _| Some(time + life_s));
        p.attached(|_| 300.0 * MB);
    };
    Harmless "attached; queue, blocks live for 1/5 of the recording" even |p| {
        let mean_s = p.run_s / 5.0;
        p.site(SITE, 512, 2.0 * MB, even, after(mean_s));
        p.attached(|_| 300.0 * MB);
    };
    Harmless "collected heap, garbage since the last full collection at 7/10 of the run" even |p| {
        p.collected(SITE, 64, 2.0 * MB, 0.7, even, after(0.05));
    };
    Harmless "collected heap, full cache, the only full collection at 24/25 of the run" even |p| {
        let life_s = p.run_s * 0.1;
        p.collected(SITE, 4096, MB, 0.96, even, move |time, _| Some(time + life_s));
    };

    LikeALeak "entries that expire after the end of the run" even |p| { let life_s = p.run_s * 1.5; p.site(SITE, 4096, 0.5 * MB, even, move |time, _| Some(time + life_s)); };
    LikeALeak "cache that is not full yet" even |p| p.site(SITE, 4096, MB, even, never);
    LikeALeak "first tooth of a sawtooth" even |p| { let period_s = p.run_s * 1.1; p.site(SITE, 512, 2.0 * MB, even, sawtooth(period_s)); };
    LikeALeak "backlog that builds up in the last tenth of the run" even |p| {
        let run_s = p.run_s;
        p.site(SITE, 512, 5.0 * MB, even, move |time, random| (time < 0.9 * run_s).then(|| time + exponential(random, run_s / 1000.0)));
    };
    LikeAPartialLeak "one request in 50 stays in a cache that is not full yet" even |p| p.site(SITE, 4096, 25.0 * MB, even, kept(0.02, 0.05));
    LikeAPartialLeak "attached; one request in 50 stays in a cache that is not full yet" even |p| {
        let run_s = p.run_s;
        p.site(SITE, 4096, 25.0 * MB, even, kept(0.02, 0.05));
        p.attached(move |t| 300.0 * MB + 0.5 * MB * t * run_s);
    };
    Open "attached; full cache, entries live for twice the recording" even |p| {
        p.site(SITE, 4096, MB, even, never);
        p.attached(|_| 300.0 * MB);
    };
    Open "attached; entries live for three times the recording, exponential" even |p| {
        let mean_s = p.run_s * 3.0;
        p.site(SITE, 4096, MB, even, after(mean_s));
        p.attached(|_| 300.0 * MB);
    };
    Open "attached; full cache beside a leak of 5 MB/s" even |p| {
        let run_s = p.run_s;
        p.site(SITE, 4096, MB, even, never);
        p.site(0x2, 4096, 5.0 * MB, even, never);
        p.attached(move |t| 300.0 * MB + 5.0 * MB * t * run_s);
    };
    Open "attached; leak beside a full cache of the same rate" even |p| {
        let run_s = p.run_s;
        p.site(SITE, 64, MB, even, never);
        p.site(0x2, 4096, MB, even, never);
        p.attached(move |t| 300.0 * MB + MB * t * run_s);
    };
    Open "attached; one request in 50 stays in a cache that is full" even |p| {
        p.site(SITE, 4096, 25.0 * MB, even, kept(0.02, 0.05));
        p.attached(|_| 300.0 * MB);
    };
    Open "attached; nothing is known of the resident set" even |p| {
        p.site(SITE, 4096, MB, even, never);
        p.attached(|_| 300.0 * MB);
        p.forget_resident();
    };
    Open "collected heap, no full collection" even |p| p.collected(SITE, 64, MB, 2.0, even, never);
    Open "six blocks of 64 MiB" even |p| {
        let run_s = p.run_s;
        p.blocks(SITE, 64 << 20, (0..6).map(move |n| run_s * (0.1 + 0.15 * f64::from(n))), |_| None);
    };
    Open "five samples of a leak" even |p| { let run_s = p.run_s; p.site(SITE, 64, 5.0 * INTERVAL as f64 / run_s, even, never); };
}
