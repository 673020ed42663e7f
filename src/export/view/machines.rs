//! What virtual machines told of their heaps, by index.

use std::collections::{BTreeMap, HashMap};

use allocsample_profile::{GcKind, HeapId, Profile};
use rustc_hash::FxHashMap;

use super::{HeapIndex, Reading, Span, SpanNature, Statistic};

/// Heaps and statistics with their indices.
pub(super) struct Machines {
    pub heaps: Vec<String>,
    pub statistics: Vec<Statistic>,
    pub heap_indices: FxHashMap<HeapId, HeapIndex>,
    statistic_indices: HashMap<(HeapId, u32), usize>,
}

impl Machines {
    pub fn new(profile: &Profile) -> Self {
        let mut machines = Self {
            heaps: Vec::new(),
            statistics: Vec::new(),
            heap_indices: FxHashMap::default(),
            statistic_indices: HashMap::new(),
        };
        for (&id, heap) in &profile.vm.heaps {
            machines.heap_indices.insert(id, machines.heaps.len());
            machines.heaps.push(heap.name.clone());
        }
        for (&(id, number), statistic) in &profile.vm.statistics {
            let Some(heap) = machines.heap(id) else {
                continue;
            };
            let index = machines.statistics.len();
            machines.statistic_indices.insert((id, number), index);
            machines.statistics.push(Statistic {
                heap,
                name: statistic.name.clone(),
                unit: statistic.unit.clone(),
            });
        }
        machines
    }

    /// `None` for malloc's heap, and for one whose registration was lost.
    pub fn heap(&self, id: HeapId) -> Option<HeapIndex> {
        self.heap_indices.get(&id).copied()
    }

    pub fn spans(&self, profile: &Profile) -> Vec<Span> {
        let mut spans = self.collections(profile);
        spans.extend(self.markers(profile));
        spans.sort_by_key(|span| span.begin_ns);
        spans
    }

    fn collections(&self, profile: &Profile) -> Vec<Span> {
        let span = |gc: &allocsample_profile::Gc| {
            let statistics = gc.statistics.iter();
            Some(Span {
                heap: self.heap(gc.heap)?,
                name: match gc.kind {
                    GcKind::Minor => "Minor collection",
                    GcKind::Major => "Major collection",
                    GcKind::MajorStep => "Step of a major collection",
                }
                .to_owned(),
                nature: SpanNature::Collection,
                begin_ns: gc.begin_ns,
                end_ns: gc.end_ns,
                statistics: statistics
                    .filter_map(|&(number, value)| {
                        let index = *self.statistic_indices.get(&(gc.heap, number))?;
                        Some((index, value))
                    })
                    .collect(),
            })
        };
        profile.vm.gcs.iter().filter_map(span).collect()
    }

    /// A phase lasts until the next one of its heap.
    fn markers(&self, profile: &Profile) -> Vec<Span> {
        let mut markers: Vec<&allocsample_profile::Marker> = profile.vm.markers.iter().collect();
        markers.sort_by_key(|marker| marker.begin_ns);
        let mut next_phase: HashMap<HeapId, u64> = HashMap::new();
        let mut spans = Vec::new();
        for marker in markers.into_iter().rev() {
            let Some(heap) = self.heap(marker.heap) else {
                continue;
            };
            let (nature, end_ns) = if marker.is_phase {
                let next = next_phase.insert(marker.heap, marker.begin_ns);
                (SpanNature::Phase, next.unwrap_or(profile.process.end_ns))
            } else {
                (SpanNature::Other, marker.end_ns)
            };
            spans.push(Span {
                heap,
                name: marker.name.clone(),
                nature,
                begin_ns: marker.begin_ns,
                end_ns: end_ns.max(marker.begin_ns),
                statistics: Vec::new(),
            });
        }
        // As they came, among those of one moment.
        spans.reverse();
        spans
    }

    pub fn readings(&self, profile: &Profile) -> Vec<Reading> {
        let mut readings: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
        for value in &profile.vm.values {
            if let Some(&index) = self.statistic_indices.get(&(value.heap, value.statistic)) {
                let values = readings.entry(index).or_default();
                values.push((value.time_ns, value.value));
            }
        }
        readings
            .into_iter()
            .map(|(statistic, mut values)| {
                values.sort_by_key(|&(time_ns, _)| time_ns);
                Reading { statistic, values }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{Gc, Heap, Marker, Value};

    const HEAP: HeapId = HeapId(3);

    fn profile() -> Profile {
        let mut profile = Profile::default();
        profile.process.end_ns = 1000;
        let heap = Heap {
            name: "vm".into(),
            kind: None,
            exact_bytes: 0,
        };
        profile.vm.heaps.insert(HEAP, heap);
        let statistic = allocsample_profile::Statistic {
            name: "survived".into(),
            unit: "bytes".into(),
        };
        profile.vm.statistics.insert((HEAP, 7), statistic);
        profile
    }

    #[test]
    fn a_phase_lasts_until_the_next_one() {
        let mut profile = profile();
        let marker = |is_phase, begin_ns, end_ns, name: &str| Marker {
            heap: HEAP,
            is_phase,
            begin_ns,
            end_ns,
            name: name.into(),
        };
        profile.vm.markers = vec![
            marker(true, 30, 30, "sweep"),
            marker(true, 10, 10, "mark"),
            marker(false, 20, 25, "request"),
        ];
        let spans = Machines::new(&profile).spans(&profile);
        let found: Vec<_> = spans
            .iter()
            .map(|span| (&*span.name, span.begin_ns, span.end_ns))
            .collect();
        let expected = [("mark", 10, 30), ("request", 20, 25), ("sweep", 30, 1000)];
        assert_eq!(found, expected);
    }

    #[test]
    fn statistics_are_found_by_heap_and_number() {
        let mut profile = profile();
        profile.vm.gcs = vec![Gc {
            heap: HEAP,
            kind: GcKind::Minor,
            id: 1,
            begin_ns: 5,
            end_ns: 6,
            looked_until_ns: 5,
            // The second was never defined.
            statistics: vec![(7, 42), (8, 43)],
        }];
        let value = |time_ns, heap| Value {
            time_ns,
            heap,
            statistic: 7,
            value: time_ns * 2,
        };
        profile.vm.values = vec![value(9, HEAP), value(4, HEAP), value(5, HeapId(4))];
        let machines = Machines::new(&profile);
        assert_eq!(machines.heap(HEAP), Some(0));
        assert_eq!(machines.heap(HeapId::MALLOC), None);
        assert_eq!(machines.spans(&profile)[0].statistics, [(0, 42)]);
        assert_eq!(machines.readings(&profile)[0].values, [(4, 8), (9, 18)]);
    }
}
