//! Heaps, types and collections: what virtual machines told, added up.

use std::collections::BTreeMap;

use allocsample_profile::{GcKind, HeapId, Profile, Sample};
use allocsample_sampling::Estimate;
use serde_json::{Value, json};

/// What one heap, or one type in it, allocated.
#[derive(Clone, Debug, Default)]
pub struct Share {
    /// Bytes that were allocated.
    pub allocated: Estimate,
    /// Allocations.
    pub allocations: Estimate,
    /// Bytes alive at the end, as far as anybody knows.
    pub live: Estimate,
    /// Bytes that survived their first collection.
    pub survived: Estimate,
    /// Bytes that did not.
    pub died_young: Estimate,
}

impl Share {
    fn add(&mut self, profile: &Profile, sample: &Sample) {
        let bytes = profile.bytes(sample);
        self.allocated += bytes;
        self.allocations += profile.objects(sample);
        if sample.is_live() {
            self.live += bytes;
        }
        match sample.outcome.and_then(|outcome| outcome.survived()) {
            Some(true) => self.survived += bytes,
            Some(false) => self.died_young += bytes,
            None => {}
        }
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
            "allocations": self.allocations.value(),
            "live_bytes": self.live.value(),
            "live_bytes_stderr": self.live.stderr(),
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

/// Everything by heap.
#[derive(Clone, Debug, Default)]
pub struct Heaps {
    /// Each heap that has samples or was registered.
    pub heaps: BTreeMap<HeapId, Share>,
    /// Each type that has samples, by heap and name, the largest first.
    pub types: Vec<(HeapId, String, Share)>,
    /// By heap and kind.
    pub collections: BTreeMap<(HeapId, GcKind), Collections>,
}

impl Heaps {
    /// Adds up a profile.
    pub fn of(profile: &Profile) -> Self {
        let mut heaps = Self::default();
        heaps.heaps.entry(HeapId::MALLOC).or_default();
        for &id in profile.vm.heaps.keys() {
            heaps.heaps.entry(id).or_default();
        }
        let mut types: BTreeMap<(HeapId, &str), Share> = BTreeMap::new();
        for sample in &profile.samples {
            heaps
                .heaps
                .entry(sample.heap)
                .or_default()
                .add(profile, sample);
            if let Some(outcome) = &sample.outcome {
                let name = profile
                    .vm
                    .type_name(sample.heap, outcome)
                    .unwrap_or("(unknown)");
                types
                    .entry((sample.heap, name))
                    .or_default()
                    .add(profile, sample);
            }
        }
        heaps.types = types
            .into_iter()
            .map(|((heap, name), share)| (heap, name.to_owned(), share))
            .collect();
        heaps
            .types
            .sort_by(|a, b| b.2.allocated.value().total_cmp(&a.2.allocated.value()));
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
            row["minor_collections"] = json!(minor.count);
            row["major_collections"] = json!(major.count);
            row["gc_time_s"] =
                json!((minor.total_ns + major.total_ns + steps.total_ns) as f64 / 1e9);
            row
        });
        rows.collect()
    }

    /// The types for scripts.
    pub fn types_json(&self, profile: &Profile) -> Vec<Value> {
        let rows = self.types.iter().map(|(heap, type_name, share)| {
            let mut row = share.to_json();
            row["heap"] = json!(name(profile, *heap));
            row["type"] = json!(type_name);
            row
        });
        rows.collect()
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
    use crate::units;
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
        "{:>22} {:>12} {:>9}  heap",
        "allocated", "live", "survived"
    )];
    for (&id, share) in &heaps.heaps {
        lines.push(format!(
            "{:>22} {:>12} {:>9}  {}",
            units::bytes_with_error(&share.allocated),
            units::bytes(share.live.value()),
            ratio(share),
            name(profile, id)
        ));
    }
    let duration_ns = profile
        .process
        .end_ns
        .saturating_sub(profile.process.start_ns)
        .max(1);
    for (&(heap, kind), all) in &heaps.collections {
        lines.push(format!(
            "{} {} collections of {}: {:.1} ms in all ({:.1}% of the run), {:.3} ms on average, {:.3} ms the longest",
            all.count,
            kind.name(),
            name(profile, heap),
            all.total_ns as f64 / 1e6,
            all.total_ns as f64 * 100.0 / duration_ns as f64,
            all.total_ns as f64 / 1e6 / all.count.max(1) as f64,
            all.longest_ns as f64 / 1e6,
        ));
    }
    const SHOWN_TYPES: usize = 10;
    if !heaps.types.is_empty() {
        lines.push(String::new());
        lines.push(format!(
            "{:>22} {:>12} {:>9}  type",
            "allocated", "live", "survived"
        ));
    }
    for (heap, type_name, share) in heaps.types.iter().take(SHOWN_TYPES) {
        lines.push(format!(
            "{:>22} {:>12} {:>9}  {type_name} [{}]",
            units::bytes_with_error(&share.allocated),
            units::bytes(share.live.value()),
            ratio(share),
            name(profile, *heap)
        ));
    }
    lines
}
