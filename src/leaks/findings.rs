//! What was found out about each site.

use std::cell::RefCell;
use std::collections::BTreeMap;

use allocsample_profile::{Frame, HeapId, Profile, Sample, ThreadId};
use allocsample_report::{Filter, Weights};
use allocsample_sampling::Estimate;

use crate::blocks::{self, Blocks};
use crate::growth::{Growth, SignFlipTest, WARM_UP};
use crate::pace::Pace;
use crate::parallel;
use crate::progress::{self, Clock};
use crate::site::Sites;
use crate::verdict::{self, Evidence, FEW_SAMPLES, Verdict};

/// Growth with a smaller adjusted p-value is real.
const SIGNIFICANT: f64 = 0.01;

/// A site with live bytes. "Live" is at the horizon, shortly before the end of the profile: what programs free when they
/// end was alive while they ran.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What it is.
    pub verdict: Verdict,
    /// The same in a sentence.
    pub sentence: String,
    /// The function that is charged.
    pub function: Frame,
    /// Functions from it to the root.
    pub stack: Vec<String>,
    /// The heap, unless it is malloc's.
    pub heap: Option<String>,
    /// Type of the objects, where a virtual machine tells.
    pub type_name: Option<String>,
    /// Bytes alive at the horizon.
    pub live: Estimate,
    /// Bytes alive at the end of the profile.
    pub live_at_end: Estimate,
    /// All that it allocated.
    pub allocated: Estimate,
    /// Bytes by which the live bytes grow in a second, after the first fifth of the run.
    pub growth_per_s: f64,
    /// 95 % confidence limits of that.
    pub growth_per_s_95: (f64, f64),
    /// Probability of such growth in a steady state, multiplied by the number of tests that were made (Bonferroni), at
    /// most 1.
    pub p_value: f64,
    /// Ages of the live bytes in seconds: 10 %, 50 %, 90 % of them are younger; the oldest.
    pub ages_s: [f64; 4],
    /// Of what it allocated, the share that was not freed before the horizon.
    pub never_freed: f64,
    /// Threads that free what it allocates, with their shares, largest first.
    pub freed_by: Vec<(String, f64)>,
    /// Code that frees it, each as a few functions from the one that lets go outwards, with its share of what was looked at:
    /// the stack of one free in eight is taken. Largest first.
    pub freed_in: Vec<(Vec<String>, f64)>,
}

/// Sites with live bytes, by evidence of a leak.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Worst first; those within the limit.
    pub sites: Vec<Finding>,
    /// How many there are of each verdict, with those beyond the limit.
    pub counts: BTreeMap<Verdict, usize>,
    /// When the profile ends for them, in seconds after its beginning.
    pub horizon_s: f64,
    /// How many tests were made.
    pub tests: usize,
}

impl Findings {
    /// Looks at all sites with samples that pass `filter`.
    pub fn of(profile: &Profile, filter: &Filter) -> Self {
        Self::worst(profile, filter, usize::MAX)
    }

    /// The same, of which the `limit` worst are described: a program may have a million sites.
    pub fn worst(profile: &Profile, filter: &Filter, limit: usize) -> Self {
        let horizon_ns = progress::horizon_ns(profile);
        // First: what it takes to find them is gone before the clocks are made, which are as large.
        let sites = Sites::of(profile, filter);
        let clocks = progress::clocks(profile, horizon_ns);
        let weights = || RefCell::new(Weights::of(profile));
        let live: Vec<Live> = parallel::filter_map(sites.count(), weights, |weights, site| {
            let candidate = Candidate::of(profile, &sites, site, weights, horizon_ns);
            (candidate.live.samples() > 0).then(|| Live {
                // There are no more sites than samples, which have 32-bit numbers.
                site: u32::try_from(site).unwrap_or(u32::MAX),
                bytes: candidate.live.value() as f32,
                basis: candidate.basis(),
            })
        });
        let all_bytes: f64 = live.iter().map(|live| f64::from(live.bytes)).sum();
        let least_bytes = LARGE_SHARE * all_bytes;
        let is_tested = |live: &&Live| live.basis.is_tested(f64::from(live.bytes), least_bytes);
        let tests = Tests {
            count: live.iter().filter(is_tested).count() * clocks.len(),
            least_bytes,
        };
        let room = || (weights(), Room::default());
        let mut ranks = parallel::filter_map(live.len(), room, |(weights, room), place| {
            let site = live[place].site;
            let candidate = Candidate::of(profile, &sites, site as usize, weights, horizon_ns);
            let judged = candidate.judge(&clocks, &tests, room);
            Some(Rank {
                site,
                verdict: judged.verdict,
                weight: judged.weight(),
            })
        });
        // Stable: those that are equal stay in the order in which they first allocated.
        ranks.sort_by(|a, b| {
            a.verdict
                .cmp(&b.verdict)
                .then(b.weight.total_cmp(&a.weight))
        });
        let mut counts = BTreeMap::new();
        for rank in &ranks {
            *counts.entry(rank.verdict).or_default() += 1;
        }
        let shown = ranks.iter().take(limit);
        let weights = weights();
        let candidate = |rank: &Rank| {
            let site = rank.site as usize;
            Candidate::of(profile, &sites, site, &weights, horizon_ns)
        };
        Self {
            sites: shown
                .filter_map(|rank| candidate(rank).describe(&clocks, &tests))
                .collect(),
            counts,
            horizon_s: horizon_ns.saturating_sub(profile.process.start_ns) as f64 / 1e9,
            tests: tests.count,
        }
    }

    /// How many sites have live bytes.
    pub fn count(&self) -> usize {
        self.counts.values().sum()
    }
}

/// Of all live bytes; a site with so many in few blocks is tested as well.
const LARGE_SHARE: f64 = 0.01;

/// Of a site with live samples.
struct Live {
    site: u32,
    bytes: f32,
    basis: Basis,
}

/// What a test of growth would rest on.
#[derive(Clone, Copy)]
enum Basis {
    /// Many live samples.
    Many,
    /// Few, of blocks so large that what they stand for is nearly certain, and as many before them: a buffer that grows by
    /// `realloc` is one block at any time.
    Large,
    /// Too little: no growth could be significant.
    Little,
}

impl Basis {
    fn is_tested(self, bytes: f64, least_bytes: f64) -> bool {
        match self {
            Self::Many => true,
            Self::Large => bytes >= least_bytes,
            Self::Little => false,
        }
    }
}

/// The tests of all sites.
struct Tests {
    count: usize,
    /// Large blocks are tested from here on, which are not many sites.
    least_bytes: f64,
}

/// Where a site stands among the others.
struct Rank {
    site: u32,
    verdict: Verdict,
    weight: f64,
}

/// Room to work in, for one site after the other.
#[derive(Default)]
struct Room {
    blocks: Blocks,
    test: SignFlipTest,
}

/// What was found out about a site, before it has a name.
struct Judged {
    verdict: Verdict,
    evidence: Evidence,
    live: Estimate,
    growth_per_s: f64,
    growth_per_s_95: (f64, f64),
    p_value: f64,
}

impl Judged {
    /// Within a verdict: growth that is sure for those that grow, size for the others.
    fn weight(&self) -> f64 {
        match self.verdict {
            Verdict::Leak | Verdict::Growing => self.growth_per_s_95.0,
            _ => self.live.value(),
        }
    }
}

struct Candidate<'a, 'p> {
    profile: &'p Profile,
    sites: &'a Sites<'p>,
    site: usize,
    weights: &'a RefCell<Weights<'p>>,
    horizon_ns: u64,
    live: Estimate,
}

impl<'a, 'p> Candidate<'a, 'p> {
    fn of(
        profile: &'p Profile,
        sites: &'a Sites<'p>,
        site: usize,
        weights: &'a RefCell<Weights<'p>>,
        horizon_ns: u64,
    ) -> Self {
        let mut candidate = Self {
            profile,
            sites,
            site,
            weights,
            horizon_ns,
            live: Estimate::ZERO,
        };
        candidate.live = candidate.sum(|sample| candidate.is_live(sample));
        candidate
    }

    fn samples(&self) -> impl Iterator<Item = &'p Sample> {
        self.sites.samples(self.site)
    }

    fn bytes(&self, sample: &Sample) -> Estimate {
        self.weights.borrow_mut().get(sample).0
    }

    fn horizon_s(&self) -> f64 {
        let start_ns = self.profile.process.start_ns;
        self.horizon_ns.saturating_sub(start_ns) as f64 / 1e9
    }

    fn is_live(&self, sample: &Sample) -> bool {
        blocks::is_live(sample, self.horizon_ns)
    }

    fn sum(&self, is_counted: impl Fn(&Sample) -> bool) -> Estimate {
        self.samples()
            .filter(|sample| is_counted(sample))
            .map(|sample| self.bytes(sample))
            .sum()
    }

    fn share(
        &self,
        part: impl Fn(&Sample) -> bool,
        whole: impl Fn(&Sample) -> bool,
    ) -> Option<f64> {
        let total = self.sum(&whole).value();
        (total > 0.0).then(|| self.sum(|sample| whole(sample) && part(sample)).value() / total)
    }

    fn basis(&self) -> Basis {
        let bytes = self.live.value();
        // As many samples of small blocks have.
        let is_certain = |variance: f64| variance * FEW_SAMPLES as f64 <= bytes * bytes;
        if self.live.samples() >= FEW_SAMPLES {
            Basis::Many
        } else if self.live.variance().is_some_and(is_certain)
            && self.samples().nth(FEW_SAMPLES as usize - 1).is_some()
        {
            Basis::Large
        } else {
            Basis::Little
        }
    }

    fn judge(&self, clocks: &[Clock], tests: &Tests, room: &mut Room) -> Judged {
        let Room { blocks, test } = room;
        // As it was counted, to the last bit.
        let bytes = f64::from(self.live.value() as f32);
        let is_tested = self.basis().is_tested(bytes, tests.least_bytes);
        let samples = self.samples();
        let samples = samples.map(|sample| (sample, self.bytes(sample).value()));
        blocks.fill(samples, clocks, self.horizon_ns);
        // The clock under which growth is most evident; time if there is none.
        let best = (0..clocks.len())
            .map(|clock| {
                let growth = blocks.growth(clock);
                let p_value = (growth.p_value(test) * tests.count as f64).min(1.0);
                let is_growing = is_tested && p_value < SIGNIFICANT;
                (clock, growth, p_value, is_growing)
            })
            .min_by(|a, b| {
                let order = |(_, growth, p_value, is_growing): &(usize, Growth, f64, bool)| {
                    (!(*is_growing && growth.is_lasting()), !is_growing, *p_value)
                };
                let (a, b) = (order(a), order(b));
                (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2))
            });
        let Some((clock, growth, p_value, is_growing)) = best else {
            unreachable!("there is always the clock of time");
        };
        let evidence = self.evidence(blocks, clock, &growth, is_growing);
        let seconds = self.horizon_s() * (1.0 - WARM_UP);
        let per_s = |bytes: f64| if seconds > 0.0 { bytes / seconds } else { 0.0 };
        let (low, high) = growth.interval_95();
        Judged {
            verdict: evidence.verdict(),
            evidence,
            live: self.live,
            growth_per_s: per_s(growth.bytes()),
            growth_per_s_95: (per_s(low), per_s(high)),
            p_value,
        }
    }

    fn describe(&self, clocks: &[Clock], tests: &Tests) -> Option<Finding> {
        let judged = self.judge(clocks, tests, &mut Room::default());
        let site = self.sites.describe(self.site)?;
        let mut finding = Finding {
            verdict: judged.verdict,
            sentence: String::new(),
            live: judged.live,
            live_at_end: self.sum(Sample::is_live),
            allocated: self.sum(|sample| !sample.is_carried()),
            growth_per_s: judged.growth_per_s,
            growth_per_s_95: judged.growth_per_s_95,
            p_value: judged.p_value,
            ages_s: self.ages_s(),
            never_freed: self
                .share(
                    |sample| self.is_live(sample),
                    |sample| sample.time_ns <= self.horizon_ns,
                )
                .unwrap_or(0.0),
            freed_by: self.freed_by(),
            freed_in: self.freed_in(),
            function: site.function,
            stack: site.stack,
            heap: site.heap,
            type_name: site.type_name,
        };
        let pace = Pace::for_run(self.horizon_s());
        finding.sentence = verdict::sentence(&finding, &judged.evidence, pace);
        Some(finding)
    }

    fn evidence(
        &self,
        blocks: &Blocks,
        clock: usize,
        growth: &Growth,
        is_growing: bool,
    ) -> Evidence {
        Evidence {
            is_growing,
            is_lasting: growth.is_lasting(),
            middle_survival: blocks.survival_since(clock, 0.5),
            freed_at_end: blocks.freed_at_end().unwrap_or(0.0),
            of_start: blocks.live_since(clock, WARM_UP).unwrap_or(0.0),
            level_after_start: blocks.alive_at(clock, WARM_UP) / self.live.value(),
        }
    }

    /// Weighted by bytes.
    fn ages_s(&self) -> [f64; 4] {
        let mut ages: Vec<(f64, f64)> = self
            .samples()
            .filter(|sample| self.is_live(sample))
            .map(|sample| {
                let age_ns = self.horizon_ns.saturating_sub(sample.time_ns);
                (age_ns as f64 / 1e9, self.bytes(sample).value())
            })
            .collect();
        ages.sort_by(|a, b| a.0.total_cmp(&b.0));
        let total: f64 = ages.iter().map(|(_, bytes)| bytes).sum();
        [0.1, 0.5, 0.9, 1.0].map(|share| {
            let mut sum = 0.0;
            ages.iter()
                .find(|(_, bytes)| {
                    sum += bytes;
                    sum >= share * total
                })
                .or(ages.last())
                .map_or(0.0, |(age, _)| *age)
        })
    }

    fn freed_by(&self) -> Vec<(String, f64)> {
        let mut by_thread: BTreeMap<ThreadId, f64> = BTreeMap::new();
        for sample in self.samples() {
            if let Some(freed) = sample.freed() {
                *by_thread.entry(freed.thread).or_default() += self.bytes(sample).value();
            }
        }
        let named = |(id, bytes)| (self.thread_name(id), bytes);
        shares(by_thread.into_iter().map(named).collect())
    }

    fn freed_in(&self) -> Vec<(Vec<String>, f64)> {
        let mut by_code: BTreeMap<Vec<&str>, f64> = BTreeMap::new();
        let mut stack = Vec::new();
        for index in self.sites.indices(self.site) {
            if let Some(code) = self.sites.freed_in(index, &mut stack) {
                let sample = &self.profile.samples[index];
                *by_code.entry(code).or_default() += self.bytes(sample).value();
            }
        }
        let owned = |(code, bytes): (Vec<&str>, f64)| {
            let code = code.into_iter().map(str::to_owned).collect();
            (code, bytes)
        };
        shares(by_code.into_iter().map(owned).collect())
    }

    fn thread_name(&self, id: ThreadId) -> String {
        let is_managed = |sample: &Sample| sample.heap != HeapId::MALLOC;
        match self.profile.threads.get(&id) {
            // No thread of the program: its objects are found dead in a collection.
            _ if id == ThreadId(0) && self.samples().any(is_managed) => "the collector".to_owned(),
            Some(thread) if id != ThreadId(0) => format!("thread {} ({})", thread.name, thread.tid),
            _ => "a thread that was not known".to_owned(),
        }
    }
}

/// Of their sum, largest first.
fn shares<T>(mut bytes: Vec<(T, f64)>) -> Vec<(T, f64)> {
    let total: f64 = bytes.iter().map(|(_, bytes)| bytes).sum();
    for (_, bytes) in &mut bytes {
        *bytes /= total;
    }
    bytes.sort_by(|a, b| b.1.total_cmp(&a.1));
    bytes
}
