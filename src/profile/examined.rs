//! Which live objects a full collection has found alive, and which none has looked at yet.
//!
//! In a collected heap an object counts as live until a collection finds it dead. What was allocated, or promoted, since
//! the last collection of the whole heap may be garbage already.

use std::collections::{BTreeMap, BTreeSet};

use allocsample_record::{Fate, GcKind, HeapId, HeapKind, ThreadId};

use crate::model::{Profile, Sample};

/// Until when the last full collection of each collected heap looked at what was allocated; 0 if there was none.
#[derive(Clone, Debug, Default)]
pub struct Examined(BTreeMap<HeapId, u64>);

impl Examined {
    /// Collected heaps are those that were registered as such, and those whose objects a collector has found alive or dead. Where
    /// threads free objects one by one, as by reference counts, what is not freed is live, even if cycles are collected too.
    ///
    /// A collector may report dead objects only after the collection, as late as at the beginning of the next one. So where it
    /// frees them one by one, a collection counts if a death, or another collection, came after it had begun to look.
    pub fn of(profile: &Profile) -> Self {
        let mut freed = BTreeSet::new();
        let mut found = BTreeSet::new();
        let mut last_death: BTreeMap<HeapId, u64> = BTreeMap::new();
        // No collector looks at malloc's.
        let of_machines = |sample: &Sample| sample.heap != HeapId::MALLOC;
        for sample in profile.samples.iter().filter(of_machines) {
            match sample.first_fate {
                Some(Fate::Dead | Fate::Alive | Fate::Promoted) => {
                    found.insert(sample.heap);
                }
                _ if sample.freed_by != ThreadId(0) => {
                    freed.insert(sample.heap);
                }
                _ => {}
            }
            if let Some(freed) = sample.freed() {
                let last = last_death.entry(sample.heap).or_default();
                *last = freed.time_ns.max(*last);
            }
        }
        let mut last_begin: BTreeMap<HeapId, u64> = BTreeMap::new();
        for gc in &profile.vm.gcs {
            let last = last_begin.entry(gc.heap).or_default();
            *last = gc.begin_ns.max(*last);
        }
        let kind = |heap: &HeapId| profile.vm.heaps.get(heap).and_then(|heap| heap.kind);
        let is_collected = |heap: &HeapId| match kind(heap) {
            Some(HeapKind::Collected) => true,
            _ => !freed.contains(heap) && (found.contains(heap) || last_begin.contains_key(heap)),
        };
        let all: BTreeSet<HeapId> = (profile.vm.heaps.keys().copied())
            .chain(found.iter().copied())
            .chain(last_begin.keys().copied())
            .filter(|heap| *heap != HeapId::MALLOC && is_collected(heap))
            .collect();
        let mut heaps: BTreeMap<HeapId, u64> = all.into_iter().map(|heap| (heap, 0)).collect();
        for gc in profile.vm.gcs.iter().filter(|gc| gc.kind == GcKind::Major) {
            let at = |times: &BTreeMap<HeapId, u64>| times.get(&gc.heap).copied().unwrap_or(0);
            // A collector that marks while the program runs reports the dead before the pause that ends its work.
            let is_told = at(&last_death) >= gc.looked_until_ns
                || at(&last_begin) > gc.begin_ns
                || kind(&gc.heap) != Some(HeapKind::Collected);
            if let Some(last) = heaps.get_mut(&gc.heap).filter(|_| is_told) {
                *last = gc.looked_until_ns.max(*last);
            }
        }
        Self(heaps)
    }

    /// Whether a heap is collected.
    pub fn is_collected(&self, heap: HeapId) -> bool {
        self.0.contains_key(&heap)
    }

    /// Until when the last full collection of a collected heap looked whose findings are known: until it began, or its
    /// marking did.
    pub fn until_ns(&self, heap: HeapId) -> Option<u64> {
        self.0.get(&heap).copied().filter(|&begin_ns| begin_ns > 0)
    }

    /// Whether a sample counts as live although no full collection has looked at it.
    #[inline]
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
    use allocsample_record::GcRecord;

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
        ]
        .into();
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
                looked_until_ns: begin_ns,
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
        let unexamined = profile.samples.iter().map(|it| examined.is_unexamined(&it));
        let unexamined: Vec<bool> = unexamined.collect();
        assert_eq!(unexamined, [false, false, false, true, true, false, false]);
        assert!(examined.is_collected(HeapId(1)) && !examined.is_collected(HeapId(2)));
        // Without a full collection none of it was examined.
        profile.vm.gcs.retain(|gc| gc.kind != GcKind::Major);
        assert!(Examined::of(&profile).is_unexamined(&profile.samples.at(2)));
    }

    /// A collector that marks while the program runs counts what is allocated meanwhile as alive.
    #[test]
    fn a_collection_has_looked_at_what_was_there_when_its_marking_began() {
        let mut profile = Profile::default();
        let looked_until = u64::from(GcRecord::LOOKED_UNTIL);
        for (heap, statistics) in [(1, &[7, 8, looked_until, 60][..]), (2, &[7, 8])] {
            profile.vm.add_gc(&GcRecord {
                heap: HeapId(heap),
                kind: GcKind::Major,
                id: 1,
                begin_ns: 100,
                end_ns: 110,
                statistics,
            });
        }
        let births = [(1, 50), (1, 70), (2, 70), (2, 105)];
        let births = births.map(|(heap, time_ns)| sample(heap, time_ns, None));
        let examined = Examined::of(&profile);
        let unexamined = births.each_ref().map(|it| examined.is_unexamined(it));
        assert_eq!(unexamined, [false, true, false, true]);
        assert_eq!(examined.until_ns(HeapId(1)), Some(60));
        assert!(profile.vm.gcs.iter().all(|gc| gc.statistics == [(7, 8)]));
    }

    /// As the JVM, or Node.js, tells of its objects: a thread frees those that a collection has found dead.
    fn freed_by_a_collector(kind: HeapKind, full_ns: &[u64], deaths_ns: &[u64]) -> [bool; 2] {
        let mut profile = Profile::default();
        let heap = crate::Heap {
            name: "java".to_owned(),
            kind: Some(kind),
            exact_bytes: 0,
        };
        profile.vm.heaps.insert(HeapId(1), heap);
        profile.samples = vec![sample(1, 50, Some(Fate::Open)), sample(1, 150, None)].into();
        for &time_ns in deaths_ns {
            let mut dead = sample(1, 10, Some(Fate::Open));
            let thread = ThreadId(7);
            dead.set_freed(Freed { time_ns, thread });
            profile.samples.push(dead);
        }
        for (kind, begin_ns) in (full_ns.iter().map(|&begin_ns| (GcKind::Major, begin_ns)))
            .chain([(GcKind::Minor, 20), (GcKind::Minor, 90)])
        {
            profile.vm.gcs.push(Gc {
                heap: HeapId(1),
                kind,
                id: begin_ns,
                begin_ns,
                end_ns: begin_ns + 1,
                looked_until_ns: begin_ns,
                statistics: Vec::new(),
            });
        }
        let examined = Examined::of(&profile);
        [0, 1].map(|index| examined.is_unexamined(&profile.samples.at(index)))
    }

    #[test]
    fn a_collection_that_marks_beside_the_program_counts_by_when_its_marking_began() {
        let mut profile = Profile::default();
        let heap = crate::Heap {
            name: "java".to_owned(),
            kind: Some(HeapKind::Collected),
            exact_bytes: 0,
        };
        profile.vm.heaps.insert(HeapId(1), heap);
        profile.vm.gcs.push(Gc {
            heap: HeapId(1),
            kind: GcKind::Major,
            id: 1,
            begin_ns: 120,
            end_ns: 121,
            looked_until_ns: 100,
            statistics: Vec::new(),
        });
        let mut dead = sample(1, 10, Some(Fate::Open));
        // Between the marking and the pause that tells of its end.
        let (time_ns, thread) = (110, ThreadId(7));
        dead.set_freed(Freed { time_ns, thread });
        profile.samples = vec![sample(1, 50, None), sample(1, 105, None), dead].into();
        let examined = Examined::of(&profile);
        let unexamined = [0, 1].map(|index| examined.is_unexamined(&profile.samples.at(index)));
        assert_eq!(unexamined, [false, true]);
    }

    #[test]
    fn objects_that_a_thread_of_the_machine_frees_are_unexamined_until_a_full_collection() {
        let collected = HeapKind::Collected;
        assert_eq!(freed_by_a_collector(collected, &[], &[30]), [true, true]);
        assert_eq!(
            freed_by_a_collector(collected, &[100], &[30, 103]),
            [false, true]
        );
        // What the last one found dead was not told any more.
        assert_eq!(freed_by_a_collector(collected, &[100], &[30]), [true, true]);
        assert_eq!(
            freed_by_a_collector(collected, &[80, 100], &[30]),
            [false, true]
        );
        // Reference counts: what is not freed is live.
        assert_eq!(
            freed_by_a_collector(HeapKind::Malloc, &[100], &[30, 103]),
            [false, false]
        );
    }
}
