//! Every site with live bytes, its verdict and its figures.

use std::cell::RefCell;
use std::collections::BTreeMap;

use allocsample_profile::{Frame, MAPPINGS, MappingCall, MappingChange, ModuleId, Profile};
use allocsample_report::significance::benjamini_hochberg;
use allocsample_report::versions::Versions;
use allocsample_report::{Selection, Weights, runtimes};
use allocsample_sampling::Estimate;
use rayon::prelude::*;

use crate::candidate::{Candidate, Setting};
use crate::evidence::{self, Evidence, Room};
use crate::groups;
use crate::growth::{WARM_UP, Window};
use crate::process::ProcessGrowth;
use crate::progress;
use crate::site::Sites;
use crate::span::Span;
use crate::together;
use crate::verdict::{Circumstances, Reason, Verdict};

/// A site with live bytes. "Live" is at the horizon, shortly before the end of the profile: what programs free when they
/// end was alive while they ran.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The verdict.
    pub verdict: Verdict,
    /// The reason for it.
    pub reason: Reason,
    /// The same in a sentence.
    pub sentence: String,
    /// The function that is charged.
    pub function: Frame,
    /// The nearest code to it that the user wrote: it, or a caller; `None` if there is none.
    pub own: Option<Frame>,
    /// The installed package that it belongs to, with its version, if that is known.
    pub package: Option<String>,
    /// Functions from it to the root.
    pub stack: Vec<String>,
    /// The heap, unless it is malloc's.
    pub heap: Option<String>,
    /// Type of the objects, where a virtual machine provides it.
    pub type_name: Option<String>,
    /// Bytes alive at the horizon.
    pub live: Estimate,
    /// Bytes alive at the end of the profile.
    pub live_at_end: Estimate,
    /// Bytes that it allocated.
    pub allocated: Estimate,
    /// Bytes by which the live bytes grow in a second, on average after the first fifth of the run.
    pub growth_per_s: f64,
    /// 95 % confidence limits of that.
    pub growth_per_s_95: (f64, f64),
    /// The same in the last third of its growth.
    pub present_per_s: f64,
    /// 95 % confidence limits of that.
    pub present_per_s_95: (f64, f64),
    /// When growth began, in seconds after the beginning, if it began at once and not with the run.
    pub onset_s: Option<f64>,
    /// Probability of such growth in a steady state, adjusted for the number of sites that were tested (Benjamini and
    /// Hochberg); `None` if there were too few blocks for a test.
    pub p_value: Option<f64>,
    /// Whether it is a part of the process's memory or growth that is worth a look.
    pub is_material: bool,
    /// Sites of one number grow together, as the parts of one retained object do.
    pub group: Option<usize>,
    /// Nine in ten of the blocks that were freed had at most this age, in seconds.
    pub usual_age_s: Option<f64>,
    /// Ages of the live bytes in seconds: 10 %, 50 %, 90 % of them are younger; the oldest.
    pub ages_s: [f64; 4],
    /// Of what it allocated, the share that was not freed before the horizon.
    pub never_freed: f64,
    /// Threads that free what it allocates, with their shares, largest first.
    pub freed_by: Vec<(String, f64)>,
    /// Code that frees it, each as a few functions from the one that frees to the root, with its share. The stack of one
    /// free in eight is taken. Largest first.
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
    /// How many sites were tested.
    pub tests: usize,
    /// How the process grows.
    pub process: ProcessGrowth,
    /// Bytes a second by which the sites grow that are leaks, possible leaks or growing.
    pub explained_per_s: f64,
    /// Live bytes of the sites that are undecided.
    pub undecided_bytes: f64,
}

/// Of all live bytes; a site with so many in few blocks is tested as well.
const LARGE_SHARE: f64 = 0.01;
/// Of the live bytes or of the growth of the process; a site with so much is worth a look.
const MATERIAL_SHARE: f64 = 0.05;
/// So many of the worst are looked at for groups.
const MOST_IN_GROUPS: usize = 300;
/// Heaps of runtimes that are linked into programs, with the functions that map memory for them and for nothing else.
const ROOM_MAKERS: &[(&str, &str)] = &[("ocaml", "caml_mem_map")];

/// With fewer calls nothing can be said of mappings.
const LEAST_MAPPINGS: usize = 8;

/// Of a site with live samples.
struct Live {
    site: u32,
    bytes: f32,
    /// Before adjustment.
    p_value: Option<f64>,
    /// Growth since the warm-up, in a second, and its variance.
    grown_per_s: f32,
    variance_per_s: f64,
}

/// Where a site stands among the others.
struct Rank {
    site: u32,
    verdict: Verdict,
    reason: Reason,
    weight: f64,
    /// The lower limit of its present rate.
    present_low: f64,
    circumstances: Circumstances,
    live: f64,
    growth_per_s: f64,
}

impl Findings {
    /// Looks at all sites with samples that are selected, whenever those were allocated: a part of the time is left by
    /// [`Selection::narrow_time`]. They are judged as a part of the process, with all that it allocates.
    pub fn of(profile: &Profile, selection: &Selection) -> Self {
        Self::worst(profile, selection, usize::MAX)
    }

    /// The same, of which the `limit` worst are described: a program may have a million sites. Mappings that grow and are not
    /// unmapped are among them, in the heap [`MAPPINGS`].
    pub fn worst(profile: &Profile, selection: &Selection, limit: usize) -> Self {
        let mut found = Self::worst_blocks(profile, selection, limit);
        let mapped = profile.mappings.iter().filter(|it| it.mapped.change.maps());
        if mapped.count() >= LEAST_MAPPINGS {
            let mappings = profile.of_some_mappings(|call| !is_of_a_heap(profile, call));
            found.add_mappings(Self::worst_blocks(&mappings, selection, limit));
        }
        found
    }

    /// Adds what was found of mappings: what is no finding says nothing, as most mappings are made once and stay.
    fn add_mappings(&mut self, mut mappings: Self) {
        mappings.sites.retain(|it| it.verdict.is_finding());
        debug_assert!(
            mappings
                .sites
                .iter()
                .all(|it| it.heap.as_deref() == Some(MAPPINGS))
        );
        if mappings.sites.is_empty() {
            return;
        }
        let groups = self.sites.iter().filter_map(|it| it.group).max();
        let first = groups.map_or(0, |most| most + 1);
        for finding in &mut mappings.sites {
            finding.group = finding.group.map(|group| first + group);
            *self.counts.entry(finding.verdict).or_default() += 1;
        }
        self.tests += mappings.tests;
        self.explained_per_s += mappings.explained_per_s;
        self.sites.append(&mut mappings.sites);
        // Stable: each kind keeps its order.
        self.sites
            .sort_by_key(|it| it.verdict.max(Verdict::PossibleLeak));
    }

    fn worst_blocks(profile: &Profile, selection: &Selection, limit: usize) -> Self {
        let horizon_ns = progress::horizon_ns(profile);
        // First: the memory that finding them takes is released before the clocks are made, which are as large.
        let sites = Sites::of(profile, selection);
        let whole = Span::whole(profile, horizon_ns);
        let setting = Setting {
            profile,
            sites: &sites,
            collected: Span::collected(profile, &whole),
            whole,
        };
        let live = setting.live_sites();
        let process = ProcessGrowth::of(profile, &setting.whole, |heap| setting.span(heap));
        let p_values: Vec<Option<f64>> = live.iter().map(|live| live.p_value).collect();
        let adjusted = benjamini_hochberg(&p_values);
        let circumstances = |place: usize| {
            let Live {
                site,
                grown_per_s,
                variance_per_s,
                ..
            } = &live[place];
            Circumstances {
                p_value: p_values[place].zip(adjusted[place]),
                is_unconfirmed: process.is_unconfirmed(f64::from(*grown_per_s), *variance_per_s),
                is_unexamined: setting.span_of(*site as usize).is_unexamined,
                joint: None,
            }
        };
        let mut ranks = setting.ranks(&live, circumstances);
        join(&setting, &mut ranks, &process);
        // Leaks and possible leaks by their rates. Stable: those that are equal stay in the order in which they first allocated.
        ranks.sort_by(|a, b| {
            let place = |rank: &Rank| rank.verdict.max(Verdict::PossibleLeak);
            place(a).cmp(&place(b)).then(b.weight.total_cmp(&a.weight))
        });
        let mut found = Self {
            horizon_s: setting.horizon_s(),
            tests: p_values.iter().flatten().count(),
            process,
            ..Self::default()
        };
        for rank in &ranks {
            *found.counts.entry(rank.verdict).or_default() += 1;
            if rank.verdict.is_finding() {
                found.explained_per_s += rank.growth_per_s;
            }
            if rank.verdict == Verdict::Undecided {
                found.undecided_bytes += rank.live;
            }
        }
        let all_bytes: f64 = live.iter().map(|live| f64::from(live.bytes)).sum();
        let scale = (all_bytes, process.per_s());
        let weights = RefCell::new(Weights::of(profile));
        let mut room = Room::default();
        let mut versions = Versions::default();
        let shown = ranks.iter().take(limit);
        found.sites = shown
            .filter_map(|rank| {
                let candidate = Candidate::of(&setting, rank.site as usize, &weights);
                let mut finding = candidate.describe(&rank.circumstances, &mut room)?;
                finding.is_material = is_material(&finding, scale);
                finding.package = versions.package(profile, &sites.jars, &finding.function);
                Some(finding)
            })
            .collect();
        groups::assign(&mut found.sites, MOST_IN_GROUPS);
        found
    }

    /// How many sites have live bytes.
    pub fn count(&self) -> usize {
        self.counts.values().sum()
    }

    /// How many findings have a verdict, where sites that grow together are one that has the verdict of the first, and how
    /// many sites.
    pub fn count_of(&self, verdict: Verdict) -> (usize, usize) {
        let (found, sites) = counted(self.sites.iter().map(|it| (it.verdict, it.group)), verdict);
        let shown = self.sites.iter().filter(|it| it.verdict == verdict).count();
        let all = self.counts.get(&verdict).copied().unwrap_or(0);
        let beyond = all.saturating_sub(shown);
        (found + beyond, sites + beyond)
    }

    /// Of the growth of the process, the part of the findings, if it grows. `None` too if mappings are among them that are
    /// longer than that: most of them is untouched.
    pub fn explained_share(&self) -> Option<f64> {
        const MOST: f64 = 1.5;
        let grown = self.process.per_s();
        let share = (grown > 0.0).then(|| self.explained_per_s / grown)?;
        let mut findings = self.sites.iter().filter(|it| it.verdict.is_finding());
        let has_mappings = findings.any(|it| it.heap.as_deref() == Some(MAPPINGS));
        (!has_mappings || share <= MOST).then_some(share)
    }
}

/// Of sites, each with its verdict and its group: how many findings there are whose first site has a verdict, and how many sites
/// they have.
fn counted(
    all: impl Iterator<Item = (Verdict, Option<usize>)>,
    verdict: Verdict,
) -> (usize, usize) {
    let mut firsts: BTreeMap<usize, Verdict> = BTreeMap::new();
    let (mut found, mut sites) = (0, 0);
    for (own, group) in all {
        let before = group.and_then(|group| firsts.get(&group).copied());
        let first = before.unwrap_or(own);
        if let Some(group) = group {
            firsts.insert(group, first);
        }
        found += usize::from(before.is_none() && own == verdict);
        sites += usize::from(first == verdict);
    }
    (found, sites)
}

/// Whether a call made room for a heap whose blocks are sampled, and judged by themselves: the allocator's that malloc leads to,
/// or a runtime's, if all that are there are sampled. What sbrk gives is an allocator's in any case.
fn is_of_a_heap(profile: &Profile, call: &MappingCall) -> bool {
    if call.mapped.change == MappingChange::Break {
        return true;
    }
    // A stack is no room for a heap, whichever runtime started the thread.
    if call.mapped.change.is_thread() {
        return false;
    }
    if makes_room(profile, call) && !runtimes::is_any_missing(profile) {
        return true;
    }
    let mapper = profile.mapper_of(call);
    if mapper.is_none() {
        // Frames of a machine that stand in for its native code, up to the root: the machine itself has called.
        let mut locations = profile.stacks.locations(call.stack);
        return locations.any(|it| it.module == ModuleId::VM) && !runtimes::is_any_missing(profile);
    }
    let module = mapper.and_then(|it| profile.module(it));
    let Some(module) = module.map(|module| module.name()) else {
        return false;
    };
    profile.is_next_allocator(module)
        || profile.runtimes.has_module(module) && !runtimes::is_any_missing(profile)
}

/// Whether a runtime that is a part of the program makes room for its heap by this call.
fn makes_room(profile: &Profile, call: &MappingCall) -> bool {
    let has_heap = |name: &str| profile.vm.heaps.values().any(|heap| heap.name == name);
    let makers = ROOM_MAKERS.iter().filter(|(heap, _)| has_heap(heap));
    let makers: Vec<&str> = makers.map(|(_, function)| *function).collect();
    if makers.is_empty() {
        return false;
    }
    let places = profile.stacks.locations(call.stack);
    let frames = places.filter_map(|place| profile.symbols.frames.get(&place));
    let mut functions = frames
        .flatten()
        .filter_map(|frame| frame.function.as_deref());
    functions.any(|function| makers.contains(&function))
}

/// Gives undecided sites the verdict that they have together.
fn join(setting: &Setting<'_, '_>, ranks: &mut [Rank], process: &ProcessGrowth) {
    let sites = |is_it: fn(&Rank) -> bool| -> Vec<usize> {
        let those = ranks.iter().filter(|rank| is_it(rank));
        those.map(|rank| rank.site as usize).collect()
    };
    let undecided = sites(|it| (it.verdict, it.reason) == (Verdict::Undecided, Reason::FewBlocks));
    // Their growth would accuse the sites near them.
    let found = sites(|it| it.verdict.is_finding());
    let joint = together::joint(setting, &undecided, &found, process);
    for rank in ranks {
        if let Some(&joint) = joint.get(&(rank.site as usize)) {
            rank.circumstances.joint = Some(joint);
            rank.verdict = joint.0;
            rank.weight = rank.present_low;
        }
    }
}

fn is_material(finding: &Finding, (live, per_s): (f64, f64)) -> bool {
    finding.live.value() >= MATERIAL_SHARE * live
        || (per_s > 0.0 && finding.growth_per_s >= MATERIAL_SHARE * per_s)
        || finding.p_value.is_some_and(|p| p < MATERIAL_SHARE)
}

/// Fewer sites are judged before a thread has begun.
const EACH: usize = 1 << 10;

impl Setting<'_, '_> {
    /// Sites with live samples, tested.
    fn live_sites(&self) -> Vec<Live> {
        let room = || (RefCell::new(Weights::of(self.profile)), Room::default());
        let all_bytes = self.live_bytes();
        let least_bytes = LARGE_SHARE * all_bytes;
        let sites = (0..self.sites.count()).into_par_iter();
        let tested = sites
            .with_min_len(EACH)
            .map_init(room, |(weights, room), site| {
                let candidate = Candidate::of(self, site, weights);
                if candidate.live.samples() == 0 {
                    return None;
                }
                candidate.fill(room);
                let is_large = candidate.is_large(least_bytes);
                let span = self.span_of(site);
                let p_value = evidence::p_value(room, span.clocks.len(), is_large);
                let window = Window::of(room.blocks.by_clock(0), WARM_UP);
                Some(Live {
                    // There are no more sites than samples, which have 32-bit numbers.
                    site: u32::try_from(site).unwrap_or(u32::MAX),
                    bytes: candidate.live.value() as f32,
                    p_value,
                    grown_per_s: span.per_s(window.net()) as f32,
                    variance_per_s: span.per_s(window.error()).powi(2),
                })
            });
        tested.flatten_iter().collect()
    }

    fn ranks(
        &self,
        live: &[Live],
        circumstances: impl Fn(usize) -> Circumstances + Sync,
    ) -> Vec<Rank> {
        let room = || (RefCell::new(Weights::of(self.profile)), Room::default());
        let places = live.par_iter().with_min_len(EACH).enumerate();
        let ranks = places.map_init(room, |(weights, room), (place, &Live { site, .. })| {
            let candidate = Candidate::of(self, site as usize, weights);
            candidate.fill(room);
            let span = self.span_of(site as usize);
            let evidence = Evidence::of(room, &span.clocks);
            let circumstances = circumstances(place);
            let (verdict, reason) = evidence.verdict(&circumstances);
            // Within a verdict: growth that is sure for those that grow, size for the others.
            let weight = match verdict {
                Verdict::Leak | Verdict::PossibleLeak => evidence.present.1,
                Verdict::Growing => evidence.mean.limits.0,
                Verdict::Undecided => evidence.window.net(),
                _ => candidate.live.value(),
            };
            Rank {
                site,
                verdict,
                reason,
                weight,
                present_low: evidence.present.1,
                circumstances,
                live: candidate.live.value(),
                growth_per_s: span.per_s(evidence.mean.bytes),
            }
        });
        ranks.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_counts_with_the_verdict_of_its_first_site() {
        let sites = [
            (Verdict::PossibleLeak, Some(0)),
            (Verdict::Leak, Some(0)),
            (Verdict::PossibleLeak, None),
            (Verdict::Leak, Some(1)),
            (Verdict::PossibleLeak, Some(1)),
        ];
        let of = |verdict| counted(sites.into_iter(), verdict);
        assert_eq!(of(Verdict::PossibleLeak), (2, 3));
        assert_eq!(of(Verdict::Leak), (1, 2));
        assert_eq!(of(Verdict::Growing), (0, 0));
    }
}
