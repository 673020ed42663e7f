//! One site, looked at and described.

use std::cell::RefCell;
use std::collections::BTreeMap;

use allocsample_profile::{HeapId, MAPPINGS, Profile, Sample, ThreadId};
use allocsample_report::Weights;
use allocsample_sampling::Estimate;

use crate::evidence::{Evidence, Room};
use crate::findings::Finding;
use crate::growth::FEWEST;
use crate::sentence::{Told, sentence};
use crate::site::Sites;
use crate::span::Span;
use crate::verdict::{Circumstances, Reason};

/// What all sites have in common.
pub(crate) struct Setting<'a, 'p> {
    pub profile: &'p Profile,
    pub sites: &'a Sites<'p>,
    /// In which malloc's blocks are judged.
    pub whole: Span,
    /// In which those of collected heaps are.
    pub collected: Vec<(HeapId, Span)>,
}

impl Setting<'_, '_> {
    /// The heap of a site's blocks.
    pub fn heap(&self, site: usize) -> HeapId {
        let first = self.sites.samples(site).next();
        first.map_or(HeapId::MALLOC, |sample| sample.heap)
    }

    /// In which the blocks of a heap are judged.
    pub fn span(&self, heap: HeapId) -> &Span {
        let mut collected = self.collected.iter();
        let of_heap = collected.find(|(it, _)| *it == heap);
        of_heap.map_or(&self.whole, |(_, span)| span)
    }

    /// In which the blocks of a site are judged.
    pub fn span_of(&self, site: usize) -> &Span {
        self.span(self.heap(site))
    }

    /// Seconds from the beginning of the profile to the horizon.
    pub fn horizon_s(&self) -> f64 {
        let start_ns = self.profile.process.start_ns;
        self.whole.horizon_ns.saturating_sub(start_ns) as f64 / 1e9
    }

    /// Bytes alive at the horizon, of all sites.
    pub fn live_bytes(&self) -> f64 {
        let mut weights = Weights::of(self.profile);
        let each = (0..self.sites.count()).flat_map(|site| self.sites.samples(site));
        each.filter(|sample| self.span(sample.heap).is_live(sample))
            .map(|sample| weights.get(&sample).0.value())
            .sum()
    }
}

pub(crate) struct Candidate<'a, 'p> {
    setting: &'a Setting<'a, 'p>,
    site: usize,
    weights: &'a RefCell<Weights>,
    span: &'a Span,
    pub live: Estimate,
}

impl<'a, 'p> Candidate<'a, 'p> {
    pub fn of(setting: &'a Setting<'a, 'p>, site: usize, weights: &'a RefCell<Weights>) -> Self {
        let mut candidate = Self {
            setting,
            site,
            weights,
            span: setting.span_of(site),
            live: Estimate::ZERO,
        };
        candidate.live = candidate.sum(|sample| candidate.is_live(sample));
        candidate
    }

    fn samples(&self) -> impl Iterator<Item = Sample> {
        self.setting.sites.samples(self.site)
    }

    fn bytes(&self, sample: &Sample) -> Estimate {
        self.weights.borrow_mut().get(sample).0
    }

    fn is_live(&self, sample: &Sample) -> bool {
        self.span.is_live(sample)
    }

    fn sum(&self, is_counted: impl Fn(&Sample) -> bool) -> Estimate {
        self.samples()
            .filter(|sample| is_counted(sample))
            .map(|sample| self.bytes(&sample))
            .sum()
    }

    /// Few live blocks, so large that the bytes that they stand for are nearly certain, and as many before them.
    pub fn is_large(&self, least_bytes: f64) -> bool {
        let bytes = self.live.value();
        let is_certain = |variance: f64| variance * FEWEST as f64 <= bytes * bytes;
        bytes >= least_bytes
            && self.live.variance().is_some_and(is_certain)
            && self.samples().nth(FEWEST).is_some()
    }

    /// Takes the site's blocks into the room.
    pub fn fill(&self, room: &mut Room) {
        let samples = self.samples();
        let samples = samples.map(|sample| (sample, self.bytes(&sample).value()));
        room.blocks.fill(samples, self.span);
    }

    /// Takes the blocks of several sites of one heap into the room, as if they were of one.
    pub fn fill_with(
        setting: &Setting<'_, 'p>,
        sites: &[usize],
        weights: &RefCell<Weights>,
        room: &mut Room,
    ) {
        let samples = &setting.profile.samples;
        let each = sites.iter().flat_map(|&site| setting.sites.indices(site));
        let mut rows: Vec<usize> = each.collect();
        rows.sort_by_key(|&row| samples.at(row).time_ns);
        let with_bytes = rows.into_iter().map(|row| {
            let sample = samples.at(row);
            let bytes = weights.borrow_mut().get(&sample).0.value();
            (sample, bytes)
        });
        let heap = sites.first().map(|&site| setting.heap(site));
        let span = heap.map_or(&setting.whole, |heap| setting.span(heap));
        room.blocks.fill(with_bytes, span);
    }

    /// The finding, with names.
    pub fn describe(&self, circumstances: &Circumstances, room: &mut Room) -> Option<Finding> {
        let setting = self.setting;
        self.fill(room);
        let evidence = Evidence::of(room, &self.span.clocks);
        let (verdict, reason) = evidence.verdict(circumstances);
        let is_live = |sample: &Sample| self.is_live(sample);
        let site = setting.sites.describe(self.site, is_live)?;
        let span = self.span;
        let observed_s = span.length_s();
        let (present, low, high) = evidence.present;
        let seen = self.sum(|sample| span.contains(sample));
        let began_s = setting.horizon_s() - setting.whole.length_s();
        let mut finding = Finding {
            verdict,
            reason,
            sentence: String::new(),
            live: self.live,
            live_at_end: self.sum(Sample::is_live),
            allocated: self.sum(|sample| !sample.is_carried()),
            growth_per_s: span.per_s(evidence.mean.bytes),
            growth_per_s_95: (
                span.per_s(evidence.mean.limits.0),
                span.per_s(evidence.mean.limits.1),
            ),
            present_per_s: span.in_whole_per_s(present),
            present_per_s_95: (span.in_whole_per_s(low), span.in_whole_per_s(high)),
            onset_s: evidence.onset.map(|onset| began_s + onset * observed_s),
            p_value: match (reason, circumstances.joint) {
                (Reason::Together, Some((_, p))) => Some(p),
                _ => circumstances.p_value.map(|(_, adjusted)| adjusted),
            },
            is_material: false,
            group: None,
            usual_age_s: evidence.survival.usual.map(|age| age * observed_s),
            ages_s: self.ages_s(),
            never_freed: if seen.value() > 0.0 {
                self.live.value() / seen.value()
            } else {
                0.0
            },
            // Which thread unmaps is not recorded.
            freed_by: match site.heap.as_deref() {
                Some(MAPPINGS) => Vec::new(),
                _ => self.freed_by(),
            },
            freed_in: self.freed_in(),
            function: site.function,
            own: site.own,
            package: None,
            stack: site.stack,
            heap: site.heap,
            type_name: site.type_name,
        };
        let told = Told {
            observed_s,
            interval_range_bytes: setting.profile.interval_range_bytes(),
            kept: evidence.kept,
        };
        finding.sentence = sentence(&finding, &told);
        Some(finding)
    }

    /// Weighted by bytes.
    fn ages_s(&self) -> [f64; 4] {
        let mut ages: Vec<(f64, f64)> = self
            .samples()
            .filter(|sample| self.is_live(sample))
            .map(|sample| {
                let age_ns = self.span.end_ns.saturating_sub(sample.time_ns);
                (age_ns as f64 / 1e9, self.bytes(&sample).value())
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
                *by_thread.entry(freed.thread).or_default() += self.bytes(&sample).value();
            }
        }
        let named = |(id, bytes)| (self.thread_name(id), bytes);
        shares(by_thread.into_iter().map(named).collect())
    }

    fn freed_in(&self) -> Vec<(Vec<String>, f64)> {
        let mut by_code: BTreeMap<Vec<&str>, f64> = BTreeMap::new();
        let mut stack = Vec::new();
        for index in self.setting.sites.indices(self.site) {
            if let Some(code) = self.setting.sites.freed_in(index, &mut stack) {
                let sample = self.setting.profile.samples.at(index);
                *by_code.entry(code).or_default() += self.bytes(&sample).value();
            }
        }
        let owned = |(code, bytes): (Vec<&str>, f64)| {
            let code = code.into_iter().map(str::to_owned).collect();
            (code, bytes)
        };
        shares(by_code.into_iter().map(owned).collect())
    }

    fn thread_name(&self, id: ThreadId) -> String {
        let is_managed = |sample: Sample| sample.heap != HeapId::MALLOC;
        match self.setting.profile.threads.get(&id) {
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
