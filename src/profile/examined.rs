//! Which live objects a full collection has found alive, and which none has looked at yet.
//!
//! In a collected heap an object counts as live until a collection finds it dead. What was allocated, or promoted, since
//! the last collection of the whole heap may be garbage already.

use std::collections::{BTreeMap, BTreeSet};

use allocsample_record::{Fate, GcKind, HeapId, ThreadId};

use crate::model::{Profile, Sample};

/// When the last full collection of each collected heap began.
#[derive(Clone, Debug, Default)]
pub struct Examined(BTreeMap<HeapId, u64>);

impl Examined {
    /// Collected heaps are those with collections, or whose objects a collector has found alive or dead. Where threads free
    /// objects one by one, as by reference counts, what is not freed is live, even if cycles are collected too.
    pub fn of(profile: &Profile) -> Self {
        let mut heaps: BTreeMap<HeapId, u64> = BTreeMap::new();
        let mut freed = BTreeSet::new();
        for sample in &profile.samples {
            let is_found = matches!(
                sample.first_fate,
                Some(Fate::Dead | Fate::Alive | Fate::Promoted)
            );
            if is_found {
                heaps.entry(sample.heap).or_default();
            } else if sample.freed_by != ThreadId(0) {
                freed.insert(sample.heap);
            }
        }
        for gc in &profile.vm.gcs {
            let last = heaps.entry(gc.heap).or_default();
            if gc.kind == GcKind::Major {
                *last = gc.begin_ns.max(*last);
            }
        }
        heaps.retain(|heap, _| *heap != HeapId::MALLOC && !freed.contains(heap));
        Self(heaps)
    }

    /// Whether a heap is collected.
    pub fn is_collected(&self, heap: HeapId) -> bool {
        self.0.contains_key(&heap)
    }

    /// Whether a sample counts as live although no full collection has looked at it.
    pub fn is_unexamined(&self, sample: &Sample) -> bool {
        let since_ns = self.0.get(&sample.heap);
        sample.is_live() && since_ns.is_some_and(|&since_ns| sample.time_ns >= since_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Freed;
    use crate::vm::Gc;

    fn sample(heap: u16, time_ns: u64, first_fate: Option<Fate>) -> Sample {
        Sample {
            heap: HeapId(heap),
            time_ns,
            first_fate,
            ..Sample::default()
        }
    }

    #[test]
    fn garbage_that_no_full_collection_has_looked_at_is_told_apart() {
        let mut profile = Profile::default();
        let mut dead = sample(1, 5, Some(Fate::Dead));
        dead.set_freed(Freed {
            time_ns: 6,
            thread: ThreadId(0),
        });
        let mut counted = sample(2, 10, Some(Fate::Open));
        counted.set_freed(Freed {
            time_ns: 20,
            thread: ThreadId(3),
        });
        profile.samples = vec![
            counted,
            dead,
            // Before the full collection, which began at 100 and let it live; after it, promoted by a minor one or not.
            sample(1, 50, Some(Fate::Promoted)),
            sample(1, 150, Some(Fate::Promoted)),
            sample(1, 160, None),
            // Freed one by one, if at all: typed objects of reference counts, and malloc's.
            sample(2, 160, Some(Fate::Open)),
            sample(0, 160, None),
        ];
        for (kind, begin_ns) in [
            (GcKind::Major, 100),
            (GcKind::Minor, 155),
            (GcKind::MajorStep, 170),
        ] {
            profile.vm.gcs.push(Gc {
                heap: HeapId(1),
                kind,
                id: begin_ns,
                begin_ns,
                end_ns: begin_ns + 1,
                statistics: Vec::new(),
            });
        }
        // Cycles.
        let cycles = Gc {
            heap: HeapId(2),
            ..profile.vm.gcs[0].clone()
        };
        profile.vm.gcs.push(cycles);
        let examined = Examined::of(&profile);
        let unexamined = profile.samples.iter().map(|it| examined.is_unexamined(it));
        let unexamined: Vec<bool> = unexamined.collect();
        assert_eq!(unexamined, [false, false, false, true, true, false, false]);
        assert!(examined.is_collected(HeapId(1)) && !examined.is_collected(HeapId(2)));
        // Without a full collection none of it was examined.
        profile.vm.gcs.retain(|gc| gc.kind != GcKind::Major);
        assert!(Examined::of(&profile).is_unexamined(&profile.samples[2]));
    }
}
