//! Collections, phases, other spans and readings of virtual machines, in the order of time.

use std::collections::{BTreeMap, HashMap};

use allocsample_profile::{Gc, GcKind, HeapId, Marker, Profile, Statistic};

/// A heap and the number of one of its statistics.
pub(super) type StatisticId = (HeapId, u32);

/// Something with a beginning and an end in a virtual machine.
#[derive(Debug)]
pub(super) struct Span<'a> {
    pub heap: HeapId,
    pub name: &'a str,
    pub nature: SpanNature,
    /// CLOCK_MONOTONIC.
    pub begin_ns: u64,
    /// CLOCK_MONOTONIC.
    pub end_ns: u64,
    /// With their values.
    pub statistics: Vec<(StatisticId, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum SpanNature {
    Collection,
    Phase,
    Other,
}

/// What a machine measures; `None` where its definition or the registration of its heap was lost.
pub(super) fn statistic(profile: &Profile, id: StatisticId) -> Option<&Statistic> {
    let statistic = profile.vm.statistics.get(&id)?;
    profile.vm.heaps.contains_key(&id.0).then_some(statistic)
}

/// Collections, phases and other named spans, in the order of their beginnings.
pub(super) fn spans(profile: &Profile) -> Vec<Span<'_>> {
    let mut spans: Vec<Span> = profile
        .vm
        .gcs
        .iter()
        .map(|gc| collection(profile, gc))
        .collect();
    spans.extend(markers(profile));
    spans.retain(|span| profile.vm.heaps.contains_key(&span.heap));
    spans.sort_by_key(|span| span.begin_ns);
    spans
}

fn collection<'a>(profile: &Profile, gc: &Gc) -> Span<'a> {
    let statistics = gc.statistics.iter();
    let statistics = statistics.map(|&(number, value)| ((gc.heap, number), value));
    Span {
        heap: gc.heap,
        name: match gc.kind {
            GcKind::Minor => "Minor collection",
            GcKind::Major => "Major collection",
            GcKind::MajorStep => "Step of a major collection",
        },
        nature: SpanNature::Collection,
        begin_ns: gc.begin_ns,
        end_ns: gc.end_ns,
        statistics: statistics
            .filter(|it| statistic(profile, it.0).is_some())
            .collect(),
    }
}

/// A phase lasts until the next one of its heap.
fn markers(profile: &Profile) -> Vec<Span<'_>> {
    let mut markers: Vec<&Marker> = profile.vm.markers.iter().collect();
    markers.sort_by_key(|marker| marker.begin_ns);
    let mut next_phase: HashMap<HeapId, u64> = HashMap::new();
    let spans = markers.into_iter().rev().map(|marker| {
        let (nature, end_ns) = if marker.is_phase {
            let next = next_phase.insert(marker.heap, marker.begin_ns);
            (SpanNature::Phase, next.unwrap_or(profile.process.end_ns))
        } else {
            (SpanNature::Other, marker.end_ns)
        };
        Span {
            heap: marker.heap,
            name: &marker.name,
            nature,
            begin_ns: marker.begin_ns,
            end_ns: end_ns.max(marker.begin_ns),
            statistics: Vec::new(),
        }
    });
    let mut spans: Vec<Span> = spans.collect();
    // As they came, among those of one moment.
    spans.reverse();
    spans
}

/// Values of statistics outside of collections, by time, CLOCK_MONOTONIC.
pub(super) fn readings(profile: &Profile) -> BTreeMap<StatisticId, Vec<(u64, u64)>> {
    let mut readings: BTreeMap<StatisticId, Vec<(u64, u64)>> = BTreeMap::new();
    for value in &profile.vm.values {
        let id = (value.heap, value.statistic);
        if statistic(profile, id).is_some() {
            let values = readings.entry(id).or_default();
            values.push((value.time_ns, value.value));
        }
    }
    for values in readings.values_mut() {
        values.sort_by_key(|&(time_ns, _)| time_ns);
    }
    readings
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{Heap, Value};

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
        let statistic = Statistic {
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
        let spans = spans(&profile);
        let found: Vec<_> = spans
            .iter()
            .map(|span| (span.name, span.begin_ns, span.end_ns))
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
        assert_eq!(spans(&profile)[0].statistics, [((HEAP, 7), 42)]);
        let values = vec![(4, 8), (9, 18)];
        assert_eq!(readings(&profile), BTreeMap::from([((HEAP, 7), values)]));
    }
}
