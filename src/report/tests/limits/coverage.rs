//! How often printed limits hold the truth.

use std::collections::BTreeMap;

use allocsample_profile::{Fate, Heap, HeapId, HeapKind, Profile, ReachBuilder, Type};
use allocsample_report::heaps::Heaps;
use allocsample_report::lifetimes::Answer;
use allocsample_report::{By, Estimate, Frames, Request, Row, Selection, Sort, Table, Totals};

use crate::program::{Block, SITES, sums};
use crate::recording::{Scenario, record};

/// How often limits held the truth, by figure.
pub type Held = BTreeMap<&'static str, (u32, u32)>;

/// The limits that are judged.
pub type Judge = fn(&Estimate) -> (f64, f64);

pub fn printed(estimate: &Estimate) -> (f64, f64) {
    let limits = estimate.limits_95().unwrap();
    (limits.low, limits.high)
}

/// What a standard error of the drawn blocks alone would say.
pub fn of_drawn_blocks(estimate: &Estimate) -> (f64, f64) {
    let half = 1.96 * estimate.variance().unwrap().sqrt();
    (estimate.value() - half, estimate.value() + half)
}

/// A run, and what is counted of it.
struct Run<'a> {
    scenario: Scenario,
    blocks: Vec<Block>,
    begin_ns: u64,
    end_ns: u64,
    judge: Judge,
    held: &'a mut Held,
}

impl Run<'_> {
    fn add(&mut self, figure: &'static str, estimate: &Estimate, truth: f64) {
        let (low, high) = (self.judge)(estimate);
        let (hits, all) = self.held.entry(figure).or_default();
        // Estimates are sums of rounded products.
        let slack = 1e-9 * truth.abs();
        *hits += u32::from((low - slack..=high + slack).contains(&truth));
        *all += 1;
    }

    /// Of the blocks that the profile's own time has, those that pass.
    fn allocated(&self, passes: impl Fn(&Block) -> bool) -> (f64, f64) {
        let blocks = self.blocks.iter();
        sums(blocks.filter(|it| it.time_ns >= self.begin_ns && passes(it)))
    }

    /// Of the blocks alive at a moment, those that pass: their bytes.
    fn alive(&self, time_ns: u64, passes: impl Fn(&Block) -> bool) -> f64 {
        let blocks = self.blocks.iter();
        sums(blocks.filter(|it| it.is_live_at(time_ns) && passes(it))).0
    }

    /// When most was alive, and how much.
    fn peak(&self) -> (u64, f64) {
        let mut changes: Vec<(u64, i64)> = Vec::new();
        for block in &self.blocks {
            let size = block.size as i64;
            changes.push((block.time_ns.max(self.begin_ns), size));
            let freed_ns = block.freed_ns.map(|it| it.max(self.begin_ns));
            changes.extend(freed_ns.map(|freed_ns| (freed_ns, -size)));
        }
        changes.sort_unstable();
        let (mut level, mut peak) = (0, (0, self.begin_ns));
        for (time_ns, change) in changes {
            level += change;
            peak = peak.max((level, time_ns));
        }
        (peak.1, peak.0 as f64)
    }

    fn judge_totals(&mut self, profile: &Profile, totals: &Totals, at_peak: f64) {
        let (bytes, count) = self.allocated(|_| true);
        self.add("allocated", &totals.allocated, bytes);
        self.add("allocations", &totals.allocations, count);
        let live = self.alive(self.end_ns, |_| true);
        self.add("live", &totals.live, live);
        self.add("peak", &totals.peak.bytes, at_peak);
        let frames = Frames::of(profile);
        let answer = Answer::of(profile, &frames, &Selection::default(), SITES + 1);
        let (kept, _) = self.allocated(|it| it.freed_ns.is_none());
        self.add("not freed", &answer.all.not_freed, kept);
        for class in &answer.all.by_seconds {
            let lived = |it: &Block| it.freed_ns.map(|freed| (freed - it.time_ns) as f64 / 1e9);
            let is_in = |it: &Block| lived(it).is_some_and(|s| s > class.from && s <= class.to);
            let (bytes, _) = self.allocated(is_in);
            // Classes that nothing can be in say nothing.
            if bytes > 0.0 {
                self.add("class of lifetimes", &class.bytes, bytes);
            }
        }
        for site in 0..SITES {
            let allowance = profile.allowance(self.scenario.heap(site), 0, u64::MAX);
            let none = Estimate::ZERO.allowing_for(allowance.bytes);
            let of_site = answer.sites.iter().find(|it| it.name == name(site));
            let (kept, _) = self.allocated(|it| it.site == site && it.freed_ns.is_none());
            let estimate = of_site.map_or(none, |it| it.not_freed);
            self.add("site not freed", &estimate, kept);
        }
    }

    fn judge_sites(&mut self, profile: &Profile, totals: &Totals, peak_ns: u64) {
        let selection = Selection::default();
        let table = table(profile, &selection, totals, By::Site);
        for site in 0..SITES {
            let rows = Rows::of(profile, &table, self.scenario.heap(site));
            let (bytes, count) = self.allocated(|it| it.site == site);
            let row = |figure: fn(&Row) -> Estimate| rows.find(&name(site), figure);
            self.add("site allocated", &row(|it| it.self_allocated), bytes);
            self.add("site allocations", &rows.count(&name(site)), count);
            let live = self.alive(self.end_ns, |it| it.site == site);
            self.add("site live", &row(|it| it.self_live), live);
            let at_peak = self.alive(peak_ns, |it| it.site == site);
            self.add("site at the peak", &row(|it| it.self_peak), at_peak);
        }
    }

    /// `--since` and `--until`: the second third.
    fn judge_window(&mut self, profile: &Profile, totals: &Totals) {
        let third_ns = (self.end_ns - self.begin_ns) / 3;
        let selection = Selection {
            since_ns: Some(third_ns),
            until_ns: Some(third_ns * 2),
            ..Selection::default()
        };
        let since_ns = self.begin_ns + third_ns;
        let until_ns = since_ns + third_ns;
        let table = table(profile, &selection, totals, By::Site);
        let is_in = |it: &Block| (since_ns..=until_ns).contains(&it.time_ns);
        let (bytes, count) = self.allocated(is_in);
        self.add("window allocated", &table.selected.allocated, bytes);
        self.add("window allocations", &table.selected.allocations, count);
        let live = self.alive(until_ns, is_in);
        self.add("window live", &table.selected.live, live);
        for site in 0..SITES {
            let rows = Rows::of(profile, &table, self.scenario.heap(site));
            let (bytes, _) = self.allocated(|it| is_in(it) && it.site == site);
            let row = |figure: fn(&Row) -> Estimate| rows.find(&name(site), figure);
            self.add("site in a window", &row(|it| it.self_allocated), bytes);
            let live = self.alive(until_ns, |it| is_in(it) && it.site == site);
            self.add("site live in a window", &row(|it| it.self_live), live);
        }
    }

    /// Heaps, and their types.
    fn judge_heaps(&mut self, profile: &Profile, totals: &Totals) {
        let heaps = Heaps::of(profile);
        let table = table(profile, &Selection::default(), totals, By::Type);
        for site in 0..SITES {
            let id = self.scenario.heap(site);
            let (bytes, count) = self.allocated(|it| it.site == site);
            let live = self.alive(self.end_ns, |it| it.site == site);
            let share = &heaps.heaps[&id];
            self.add("heap allocated", &share.allocated, bytes);
            self.add("heap allocations", &share.allocations, count);
            self.add("heap live", &share.live, live);
            if id == HeapId::MALLOC {
                continue;
            }
            let name = format!("type {}", site + 1);
            let rows = Rows::of(profile, &table, id);
            let row = |figure: fn(&Row) -> Estimate| rows.find(&name, figure);
            self.add("type allocated", &row(|it| it.self_allocated), bytes);
            self.add("type allocations", &rows.count(&name), count);
            self.add("type live", &row(|it| it.self_live), live);
        }
    }

    /// The same blocks as objects of a machine's heap, of which each site's have a type.
    fn judge_types(&mut self, profile: &Profile) {
        let heap = HeapId(1);
        let mut typed = profile.clone();
        let mut reach = ReachBuilder::default();
        for row in 0..typed.samples.len() {
            let mut sample = typed.samples.at(row);
            sample.heap = heap;
            sample.first_fate = Some(Fate::Open);
            sample.type_id = sample.stack.0;
            reach.add_size(&sample);
            typed.samples.set(row, sample);
        }
        typed.reach = reach.finish(profile, |_| 0);
        let registered = Heap {
            name: "machine".to_owned(),
            kind: Some(HeapKind::External),
            exact_bytes: 0,
        };
        typed.vm.heaps.insert(heap, registered);
        for number in 1..=SITES as u32 + 1 {
            let name = format!("type {number}");
            let detail = String::new();
            typed.vm.types.insert((heap, number), Type { name, detail });
        }
        let totals = Totals::of(&typed);
        let table = table(&typed, &Selection::default(), &totals, By::Type);
        let rows = Rows::of(&typed, &table, heap);
        for site in 0..SITES {
            let name = format!("type {}", site + 1);
            let row = |figure: fn(&Row) -> Estimate| rows.find(&name, figure);
            let (bytes, count) = self.allocated(|it| it.site == site);
            self.add("type allocated", &row(|it| it.self_allocated), bytes);
            self.add("type allocations", &rows.count(&name), count);
            let live = self.alive(self.end_ns, |it| it.site == site);
            self.add("type live", &row(|it| it.self_live), live);
        }
    }
}

/// A return address: the call is before it.
pub fn name(site: usize) -> String {
    format!("0x{:x}", 0x1000 * (site + 1) - 1)
}

fn table(profile: &Profile, selection: &Selection, totals: &Totals, by: By) -> Table {
    let request = Request {
        by,
        sort: Sort::Allocated,
        selection,
        peak: Some(totals.peak.moments),
        limit: usize::MAX,
    };
    let table = Table::of(profile, &Frames::of(profile), &request);
    assert!(table.rows.len() <= SITES + 1);
    table
}

/// Rows by name. One that is missing has no sample: what is known of it is the limit that every table is printed with.
struct Rows<'a> {
    table: &'a Table,
    none: Estimate,
    no_objects: Estimate,
}

impl<'a> Rows<'a> {
    fn of(profile: &Profile, table: &'a Table, heap: HeapId) -> Self {
        let allowance = profile.allowance(heap, 0, u64::MAX);
        Self {
            table,
            none: Estimate::ZERO.allowing_for(allowance.bytes),
            no_objects: Estimate::ZERO.allowing_for(allowance.objects),
        }
    }

    fn find(&self, name: &str, figure: fn(&Row) -> Estimate) -> Estimate {
        let row = self.table.rows.iter().find(|row| row.name == name);
        row.map_or(self.none, figure)
    }

    fn count(&self, name: &str) -> Estimate {
        let row = self.table.rows.iter().find(|row| row.name == name);
        row.map_or(self.no_objects, |row| row.allocations)
    }
}

fn run(samples: f64, scenario: Scenario, seed: u64, judge: Judge, held: &mut Held) {
    let blocks = scenario.program(samples, seed);
    let (profile, begin_ns) = record(&blocks, scenario, seed);
    let is_known = |block: &Block| scenario != Scenario::Attached || block.time_ns >= begin_ns;
    let mut run = Run {
        scenario,
        blocks: blocks.into_iter().filter(is_known).collect(),
        begin_ns,
        end_ns: profile.process.end_ns,
        judge,
        held,
    };
    let totals = Totals::of(&profile);
    let (peak_ns, at_peak) = run.peak();
    run.judge_totals(&profile, &totals, at_peak);
    run.judge_sites(&profile, &totals, peak_ns);
    run.judge_window(&profile, &totals);
    match scenario {
        Scenario::Heaps | Scenario::UntoldHeaps => run.judge_heaps(&profile, &totals),
        _ => run.judge_types(&profile),
    }
}

pub fn coverage(samples: f64, scenario: Scenario, seeds: u64, judge: Judge) -> Held {
    let mut held = Held::new();
    for seed in 0..seeds {
        run(samples, scenario, seed + 1, judge, &mut held);
    }
    held
}

/// How often the limits of a count of samples hold a mean: what no way of sampling can better.
pub fn of_a_count(mean: f64) -> f64 {
    let (mut probability, mut held) = ((-mean).exp(), 0.0);
    for count in 0..1000_u64 {
        let value = count as f64;
        let estimate = Estimate::from_parts(value, Some(value), count).allowing_for(1.0);
        if estimate.limits_95().unwrap().contain(mean) {
            held += probability;
        }
        probability *= mean / (value + 1.0);
    }
    held
}
