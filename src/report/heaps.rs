//! Heaps, types and collections: what virtual machines told, added up.

use std::collections::{BTreeMap, BTreeSet};

use allocsample_profile::{Allowance, Examined, GcKind, HeapId, Profile, Sample};
use allocsample_sampling::Estimate;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::csv::{high, low};
use crate::units;
use allocsample_profile::Weights;

/// A type that the machine never named.
pub(crate) const UNKNOWN_TYPE: &str = "(unknown)";

/// What one heap, or one type in it, allocated.
#[derive(Clone, Debug, Default)]
pub struct Share {
    /// Bytes that were allocated.
    pub allocated: Estimate,
    /// Allocations.
    pub allocations: Estimate,
    /// Bytes alive at the end, as far as anybody knows.
    pub live: Estimate,
    /// Those of them that a full collection has found alive.
    pub live_examined: Estimate,
    /// Those of them that no full collection has looked at yet; 0 where objects are freed one by one.
    pub live_unexamined: Estimate,
    /// Bytes that survived their first collection.
    pub survived: Estimate,
    /// Bytes that did not.
    pub died_young: Estimate,
}

impl Share {
    /// Of no sample yet.
    fn allowing_for(allowance: Allowance) -> Self {
        let bytes = Estimate::ZERO.allowing_for(allowance.bytes);
        Self {
            allocated: bytes,
            allocations: Estimate::ZERO.allowing_for(allowance.objects),
            live: bytes,
            live_examined: bytes,
            live_unexamined: Estimate::ZERO,
            survived: bytes,
            died_young: bytes,
        }
    }

    fn add(
        &mut self,
        sample: &Sample,
        (bytes, objects): (Estimate, Estimate),
        examined: &Examined,
    ) {
        if sample.is_live() {
            self.live += bytes;
            match examined.is_unexamined(sample) {
                true => self.live_unexamined += bytes,
                false => self.live_examined += bytes,
            }
        }
        if sample.is_carried() {
            return;
        }
        self.allocated += bytes;
        self.allocations += objects;
        match sample.outcome().and_then(|outcome| outcome.survived()) {
            Some(true) => self.survived += bytes,
            Some(false) => self.died_young += bytes,
            None => {}
        }
    }

    fn merge(&mut self, other: &Share) {
        self.allocated += other.allocated;
        self.allocations += other.allocations;
        self.live += other.live;
        self.live_examined += other.live_examined;
        self.live_unexamined += other.live_unexamined;
        self.survived += other.survived;
        self.died_young += other.died_young;
    }

    /// The part of the bytes that survived their first collection; `None` if no collection looked at any.
    pub fn survived_ratio(&self) -> Option<f64> {
        let known = self.survived.value() + self.died_young.value();
        (known > 0.0).then(|| self.survived.value() / known)
    }

    fn to_json(&self) -> Value {
        json!({
            "allocated_bytes": self.allocated.value(),
            "allocated_bytes_stderr": self.allocated.stderr(),
            "allocated_bytes_low95": low(&self.allocated),
            "allocated_bytes_high95": high(&self.allocated),
            "allocations": self.allocations.value(),
            "allocations_stderr": self.allocations.stderr(),
            "allocations_low95": low(&self.allocations),
            "allocations_high95": high(&self.allocations),
            "live_bytes": self.live.value(),
            "live_bytes_stderr": self.live.stderr(),
            "live_bytes_low95": low(&self.live),
            "live_bytes_high95": high(&self.live),
            "live_examined_bytes": self.live_examined.value(),
            "live_examined_bytes_stderr": self.live_examined.stderr(),
            "live_examined_bytes_low95": low(&self.live_examined),
            "live_examined_bytes_high95": high(&self.live_examined),
            "live_unexamined_bytes": self.live_unexamined.value(),
            "live_unexamined_bytes_stderr": self.live_unexamined.stderr(),
            "survived_bytes": self.survived.value(),
            "died_young_bytes": self.died_young.value(),
            "survived_ratio": self.survived_ratio(),
            "samples": self.allocated.samples(),
        })
    }
}

/// The collections of a kind in one heap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Collections {
    /// How many.
    pub count: u64,
    /// How long all of them took.
    pub total_ns: u64,
    /// How long the longest took.
    pub longest_ns: u64,
}

impl Collections {
    /// How long one took.
    pub fn mean_ns(&self) -> f64 {
        self.total_ns as f64 / self.count.max(1) as f64
    }
}

/// How much the collections of a kind weigh on a program.
#[derive(Clone, Debug)]
pub struct Stress {
    /// Name of the heap.
    pub heap: String,
    /// What was collected.
    pub kind: GcKind,
    /// How often, and how long.
    pub collections: Collections,
    /// Part of the run that it took, from 0 to 1.
    pub share_of_run: f64,
    /// Bytes that were allocated in the heap for each collection.
    pub bytes_per_collection: f64,
    /// Part of the heap's bytes that survived their first collection.
    pub survived_ratio: Option<f64>,
}

impl Stress {
    /// For people.
    pub fn line(&self) -> String {
        let all = &self.collections;
        let ms = |ns: f64| ns / 1e6;
        let survived = match self.survived_ratio {
            Some(ratio) if self.kind == GcKind::Minor => {
                format!(", {:.1}% survive", ratio * 100.0)
            }
            _ => String::new(),
        };
        // A machine whose objects are malloc's blocks has none of its own.
        let each = match self.bytes_per_collection > 0.0 {
            true => format!(", one per {}", units::bytes(self.bytes_per_collection)),
            false => String::new(),
        };
        format!(
            "{}: {} {} GC{}, {:.1} ms total ({:.1}% of the run), mean {:.3} ms, max {:.3} ms{each}{survived}",
            self.heap,
            all.count,
            self.kind.name(),
            if all.count == 1 { "" } else { "s" },
            ms(all.total_ns as f64),
            self.share_of_run * 100.0,
            ms(all.mean_ns()),
            ms(all.longest_ns as f64),
        )
    }

    /// For scripts.
    pub fn to_json(&self) -> Value {
        let all = &self.collections;
        json!({
            "heap": self.heap,
            "kind": self.kind.name(),
            "collections": all.count,
            "total_s": all.total_ns as f64 / 1e9,
            "mean_s": all.mean_ns() / 1e9,
            "longest_s": all.longest_ns as f64 / 1e9,
            "share_of_run": self.share_of_run,
            "bytes_per_collection": self.bytes_per_collection,
            "survived_ratio": self.survived_ratio,
        })
    }
}

/// Everything by heap.
#[derive(Clone, Debug, Default)]
pub struct Heaps {
    /// Each heap that has samples or was registered.
    pub heaps: BTreeMap<HeapId, Share>,
    /// Each type that has samples, by heap and name, the largest first.
    pub types: Vec<(HeapId, String, Share)>,
    /// By heap and kind.
    pub collections: BTreeMap<(HeapId, GcKind), Collections>,
    /// By heap of a runtime's, live blocks of malloc's that are its memory: in no other figure.
    pub backing: BTreeMap<HeapId, Estimate>,
}

impl Heaps {
    /// Adds up a profile.
    pub fn of(profile: &Profile) -> Self {
        let mut heaps = Self::default();
        let allowances = profile.allowances(0, u64::MAX);
        for id in std::iter::once(HeapId::MALLOC).chain(profile.vm.heaps.keys().copied()) {
            let nothing = Share::allowing_for(allowances.of(id));
            heaps.heaps.insert(id, nothing);
        }
        // Of each heap once, however many types it has.
        let mut missed: BTreeMap<HeapId, Allowance> = BTreeMap::new();
        // By number first: there are few names, and many samples.
        let mut shares: FxHashMap<(HeapId, Option<u32>), Share> = FxHashMap::default();
        let mut weights = Weights::of(profile);
        let examined = Examined::of(profile);
        for sample in &profile.samples {
            let type_id = sample.outcome().map(|outcome| outcome.type_id);
            let share = shares.entry((sample.heap, type_id)).or_default();
            share.add(&sample, weights.get(&sample), &examined);
        }
        let mut with_types: BTreeSet<HeapId> =
            profile.vm.types.keys().map(|&(heap, _)| heap).collect();
        with_types.remove(&HeapId::MALLOC);
        let mut types: BTreeMap<(HeapId, &str), Share> = BTreeMap::new();
        for (&(heap, type_id), share) in &shares {
            heaps.heaps.entry(heap).or_default().merge(share);
            let known = type_id.and_then(|type_id| profile.vm.types.get(&(heap, type_id)));
            // Where there are types, what has none is told too: the rows are all of the heap. Of malloc's, few blocks have one.
            if type_id.is_some() || with_types.contains(&heap) {
                let name = known.map_or(UNKNOWN_TYPE, |known| &known.name);
                let of_type = types.entry((heap, name));
                let missed = *missed.entry(heap).or_insert_with(|| allowances.of(heap));
                of_type
                    .or_insert_with(|| Share::allowing_for(missed))
                    .merge(share);
            }
        }
        heaps.types = types
            .into_iter()
            .map(|((heap, name), share)| (heap, name.to_owned(), share))
            .collect();
        heaps
            .types
            .sort_by(|a, b| b.2.allocated.value().total_cmp(&a.2.allocated.value()));
        for block in profile.backing.samples.iter().filter(|it| it.is_live()) {
            *heaps.backing.entry(block.heap).or_default() += weights.get(block).0;
        }
        for gc in &profile.vm.gcs {
            let all = heaps.collections.entry((gc.heap, gc.kind)).or_default();
            let took = gc.end_ns.saturating_sub(gc.begin_ns);
            all.count += 1;
            all.total_ns += took;
            all.longest_ns = all.longest_ns.max(took);
        }
        heaps
    }

    /// Whether there is anything beside malloc's heap.
    pub fn has_machines(&self) -> bool {
        self.heaps.len() > 1
    }

    fn collections(&self, heap: HeapId, kind: GcKind) -> Collections {
        self.collections
            .get(&(heap, kind))
            .copied()
            .unwrap_or_default()
    }

    /// What the collectors of all heaps did, by heap and kind.
    pub fn stress(&self, profile: &Profile) -> Vec<Stress> {
        let process = &profile.process;
        let run_ns = process.end_ns.saturating_sub(process.start_ns).max(1) as f64;
        let each = self.collections.iter().map(|(&(heap, kind), all)| {
            let share = self.heaps.get(&heap).cloned().unwrap_or_default();
            Stress {
                heap: name(profile, heap).to_owned(),
                kind,
                collections: *all,
                share_of_run: all.total_ns as f64 / run_ns,
                bytes_per_collection: share.allocated.value() / all.count.max(1) as f64,
                survived_ratio: share.survived_ratio(),
            }
        });
        each.collect()
    }

    /// The heaps for scripts.
    pub fn heaps_json(&self, profile: &Profile) -> Vec<Value> {
        let rows = self.heaps.iter().map(|(&id, share)| {
            let mut row = share.to_json();
            let heap = profile.vm.heaps.get(&id);
            row["name"] = json!(name(profile, id));
            row["kind"] = json!(heap.map_or("malloc", |heap| {
                heap.kind.map_or("unknown", |kind| kind.name())
            }));
            row["allocated_bytes_exact"] = json!(profile.exact_bytes_of(id));
            let (minor, major) = (
                self.collections(id, GcKind::Minor),
                self.collections(id, GcKind::Major),
            );
            let steps = self.collections(id, GcKind::MajorStep);
            row["backing_live_bytes"] = json!(self.backing.get(&id).map_or(0.0, Estimate::value));
            row["minor_collections"] = json!(minor.count);
            row["major_collections"] = json!(major.count);
            row["gc_time_s"] =
                json!((minor.total_ns + major.total_ns + steps.total_ns) as f64 / 1e9);
            row
        });
        rows.collect()
    }

    /// How many types there are, of all heaps.
    pub fn type_count(&self) -> usize {
        self.types.len()
    }

    /// One of them for scripts.
    pub fn type_json(&self, profile: &Profile, index: usize) -> Value {
        let (heap, type_name, share) = &self.types[index];
        let mut row = share.to_json();
        row["heap"] = json!(name(profile, *heap));
        row["type"] = json!(type_name);
        row
    }
}

/// What a heap is called.
pub fn name(profile: &Profile, heap: HeapId) -> &str {
    match profile.vm.heaps.get(&heap) {
        Some(heap) => &heap.name,
        None if heap == HeapId::MALLOC => "malloc",
        None => "(unknown)",
    }
}

/// Lines for a reader: heaps, types and what the collectors did; none if malloc's is the only heap.
pub fn lines(profile: &Profile) -> Vec<String> {
    let is_malloc = |sample: Sample| sample.heap == HeapId::MALLOC;
    if profile.vm.heaps.is_empty() && profile.samples.iter().all(is_malloc) {
        return Vec::new();
    }
    let heaps = Heaps::of(profile);
    if !heaps.has_machines() {
        return Vec::new();
    }
    let ratio = |share: &Share| {
        share
            .survived_ratio()
            .map_or("-".to_owned(), |ratio| format!("{:.1}%", ratio * 100.0))
    };
    let mut lines = vec![format!(
        "{:>22} {:>22} {:>9}  heap",
        "allocated", "live", "survived"
    )];
    // Malloc was not sampled where a runtime's own samples were read.
    let is_shown = |id: HeapId| id != HeapId::MALLOC || profile.sampled_by().is_none();
    for (&id, share) in heaps.heaps.iter().filter(|(id, _)| is_shown(**id)) {
        lines.push(format!(
            "{:>22} {:>22} {:>9}  {}",
            units::bytes_with_error(&share.allocated),
            units::bytes_with_error(&share.live),
            ratio(share),
            name(profile, id)
        ));
    }
    for (&id, backing) in heaps.backing.iter().filter(|(_, it)| it.value() > 0.0) {
        lines.push(format!(
            "{}: {} of live malloc blocks are the memory of this heap; they are in no row",
            name(profile, id),
            units::bytes_with_error(backing)
        ));
    }
    for stress in heaps.stress(profile) {
        lines.push(stress.line());
    }
    const SHOWN_TYPES: usize = 10;
    if !heaps.types.is_empty() {
        lines.push(String::new());
        lines.push(format!(
            "{:>22} {:>22} {:>9}  type",
            "allocated", "live", "survived"
        ));
    }
    for (heap, type_name, share) in heaps.types.iter().take(SHOWN_TYPES) {
        lines.push(format!(
            "{:>22} {:>22} {:>9}  {type_name} [{}]",
            units::bytes_with_error(&share.allocated),
            units::bytes_with_error(&share.live),
            ratio(share),
            name(profile, *heap)
        ));
    }
    lines
}
