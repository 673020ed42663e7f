//! Sites with too few blocks for a verdict each, which have one together.
//!
//! A retained object graph (a request, its dictionary, its strings) is allocated by many sites below one function, and a run
//! of a minute may have five samples of each. So where undecided sites share a caller, *all* that was allocated below that
//! caller is tested as if it were one site, with the blocks that were freed and with sites that do not grow. Which callers
//! are tested depends on the data, so the p-value is multiplied by the number of callers that could have been (Bonferroni).
//! Sites that were found already, by themselves or below a nearer caller, are left out: they would make others guilty. That
//! takes away growth, so the p-value only becomes larger.
//!
//! A rejection says that something below the caller grows. The sites that it names are those that were undecided, unless they have
//! stopped: what a program loads when it starts is kept by many sites, and may take more than the warm-up.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use allocsample_profile::HeapId;
use allocsample_report::Weights;
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use crate::candidate::{Candidate, Setting};
use crate::evidence::{self, Evidence, PRESENT, Room};
use crate::groups::{NEAR, SHARE_OF_STACK};
use crate::growth::{WARM_UP, Window};
use crate::process::ProcessGrowth;
use crate::verdict::{Circumstances, Verdict};

/// A program with more sites than this has many samples, or none that anybody could name.
const MOST_SITES: usize = 50_000;
/// Callers that are looked at, those of most undecided sites.
const MOST_CALLERS: usize = 500;
/// Among so many samples below a caller, a handful is not what the program keeps.
const MOST_SAMPLES: usize = 200_000;

/// A site with so many kept blocks, none of them of the last third of the run, has stopped: had they come evenly since the warm-up,
/// the probability would be (7/12)^9, less than one in a hundred.
const SURELY_STOPPED: usize = 9;

/// What sites below a caller are together, with the p-value.
pub(crate) type Joint = (Verdict, f64);

/// For those of `undecided` sites that have a verdict with others: the number of the site, and the verdict.
pub(crate) fn joint(
    setting: &Setting<'_, '_>,
    undecided: &[usize],
    found: &[usize],
    process: &ProcessGrowth,
) -> BTreeMap<usize, Joint> {
    let mut joint = BTreeMap::new();
    if undecided.len() < 2 || setting.sites.count() > MOST_SITES {
        return joint;
    }
    let callers = Callers::of(setting, undecided);
    let mut left_out: FxHashSet<usize> = found.iter().copied().collect();
    let weights = RefCell::new(Weights::of(setting.profile));
    let mut room = Room::default();
    for caller in callers.ranked() {
        let is_open = |site: &usize| !left_out.contains(site);
        let members = caller.undecided.iter().copied().filter(is_open);
        let members: Vec<usize> = members.collect();
        let below: Vec<usize> = caller.sites.iter().copied().filter(is_open).collect();
        let samples: usize = below
            .iter()
            .map(|&site| setting.sites.indices(site).len())
            .sum();
        if members.len() < 2 || samples > MOST_SAMPLES {
            continue;
        }
        Candidate::fill_with(setting, &below, &weights, &mut room);
        let span = setting.span_of(below[0]);
        let Some(p) = evidence::p_value(&mut room, span.clocks.len(), false) else {
            continue;
        };
        let adjusted = (p * callers.comparisons as f64).min(1.0);
        let window = Window::of(room.blocks.by_clock(0), WARM_UP);
        let variance = span.per_s(window.error()).powi(2);
        let circumstances = Circumstances {
            p_value: Some((p, adjusted)),
            is_unconfirmed: process.is_unconfirmed(span.per_s(window.net()), variance),
            is_unexamined: span.is_unexamined,
            joint: None,
        };
        let (verdict, _) = Evidence::of(&mut room, &span.clocks).verdict(&circumstances);
        if verdict <= Verdict::PossibleLeak {
            let Some(members) = without_stopped(setting, members, &weights, &mut room) else {
                continue;
            };
            left_out.extend(members.iter().copied());
            // Which of the sites it is, is not known.
            let verdict = (Verdict::PossibleLeak, adjusted);
            joint.extend(members.into_iter().map(|site| (site, verdict)));
        }
    }
    joint
}

/// Those of the sites that may still grow; `None` if none of them has a kept block of the last third of the run, by any clock. One
/// site with few blocks may have none there by chance.
fn without_stopped(
    setting: &Setting<'_, '_>,
    sites: Vec<usize>,
    weights: &RefCell<Weights>,
    room: &mut Room,
) -> Option<Vec<usize>> {
    let mut is_any_late = false;
    let mut may_grow = |site: &usize| {
        Candidate::fill_with(setting, &[*site], weights, room);
        let clocks = setting.span_of(*site).clocks.len();
        let is_late = (0..clocks).any(|clock| {
            let mut lives = room.blocks.by_clock(clock).iter();
            lives.any(|life| life.is_live() && life.birth >= 1.0 - PRESENT)
        });
        is_any_late |= is_late;
        let kept = room.blocks.by_clock(0).iter().filter(|it| it.is_live());
        is_late || kept.count() < SURELY_STOPPED
    };
    let left: Vec<usize> = sites.into_iter().filter(|site| may_grow(site)).collect();
    is_any_late.then_some(left)
}

/// A function that called several sites, by the path to it.
#[derive(Default)]
struct Caller {
    depth: usize,
    sites: Vec<usize>,
    undecided: Vec<usize>,
}

/// Functions near sites, and not near the root, that called several of them.
struct Callers {
    all: Vec<Caller>,
    /// How many could have been tested, whichever sites are undecided.
    comparisons: usize,
}

impl Callers {
    fn of(setting: &Setting<'_, '_>, undecided: &[usize]) -> Self {
        let undecided: FxHashSet<usize> = undecided.iter().copied().collect();
        let mut callers: FxHashMap<u64, Caller> = FxHashMap::default();
        for site in 0..setting.sites.count() {
            let Some(described) = setting.sites.describe_functions(site) else {
                continue;
            };
            let path = paths(setting.heap(site), &described.stack);
            let least = (SHARE_OF_STACK * path.len() as f64).ceil() as usize;
            let nearest = path.len().saturating_sub(1);
            for depth in least.max(path.len().saturating_sub(NEAR)).max(2)..=nearest {
                let caller = callers.entry(path[depth - 1]).or_default();
                caller.depth = depth;
                caller.sites.push(site);
                if undecided.contains(&site) {
                    caller.undecided.push(site);
                }
            }
        }
        let mut all: Vec<Caller> = callers.into_values().collect();
        all.retain(|caller| caller.sites.len() > 1);
        Self {
            comparisons: all.len(),
            all,
        }
    }

    /// Those of most undecided sites, the nearest first.
    fn ranked(&self) -> Vec<&Caller> {
        let several = self.all.iter().filter(|caller| caller.undecided.len() > 1);
        let mut ranked: Vec<&Caller> = several.collect();
        let order = |caller: &Caller| (caller.undecided.len(), caller.depth);
        ranked.sort_by(|a, b| order(b).cmp(&order(a)).then(a.sites.cmp(&b.sites)));
        ranked.truncate(MOST_CALLERS);
        ranked.sort_by_key(|caller| std::cmp::Reverse(caller.depth));
        ranked
    }
}

/// A number for each path from the root of a heap's stacks, the root's first. `stack` has its root last.
fn paths(heap: HeapId, stack: &[String]) -> Vec<u64> {
    let mut path = u64::from(heap.0);
    let step = |name: &String| {
        let mut hasher = FxHasher::default();
        (path, name).hash(&mut hasher);
        path = hasher.finish();
        path
    };
    stack.iter().rev().map(step).collect()
}
