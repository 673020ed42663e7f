//! Collections, phases and named spans of virtual machines.

use allocsample_profile::{HeapId, Statistic};
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, Marker, MarkerFieldFlags, MarkerFieldFormat, MarkerLocations,
    MarkerTiming, MarkerTypeHandle, ProcessHandle, Profile, RuntimeSchemaMarkerField,
    RuntimeSchemaMarkerSchema, StringHandle, ThreadHandle,
};
use rustc_hash::FxHashMap;

use super::machines::{self, Span, SpanNature, StatisticId};
use super::timestamp;
use crate::source::Source;

/// A span as the viewer's marker.
struct SpanMarker {
    kind: MarkerTypeHandle,
    name: StringHandle,
    category: CategoryHandle,
    values: Vec<f64>,
}

impl Marker for SpanMarker {
    fn marker_type(&self, _profile: &mut Profile) -> MarkerTypeHandle {
        self.kind
    }

    fn name(&self, _profile: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _profile: &mut Profile) -> CategoryHandle {
        self.category
    }

    fn string_field_value(&self, _field_index: u32) -> StringHandle {
        unreachable!("all fields are numbers")
    }

    fn number_field_value(&self, field_index: u32) -> f64 {
        self.values[field_index as usize]
    }
}

/// Puts the spans of each heap on the thread that stands for it.
pub(super) fn add(
    source: &Source,
    profile: &mut Profile,
    heaps: &FxHashMap<HeapId, (ProcessHandle, ThreadHandle)>,
) {
    let spans = machines::spans(source.profile);
    if spans.is_empty() {
        return;
    }
    let collection = profile.add_category("GC", CategoryColor::Magenta);
    let phase = profile.add_category("GC phase", CategoryColor::Yellow);
    let mut kinds = FxHashMap::default();
    for span in &spans {
        let Some(&(_, thread)) = heaps.get(&span.heap) else {
            continue;
        };
        let numbers: Vec<StatisticId> = span.statistics.iter().map(|&(id, _)| id).collect();
        let count = kinds.len();
        // A marker must have a value for each field of its schema: one schema for each set of statistics.
        let kind = *kinds
            .entry((span.nature, numbers))
            .or_insert_with_key(|(nature, numbers)| {
                profile.register_marker_type(schema(source, *nature, numbers, count))
            });
        let marker = SpanMarker {
            kind,
            name: profile.intern_string(span.name),
            category: match span.nature {
                SpanNature::Collection => collection,
                SpanNature::Phase => phase,
                SpanNature::Other => CategoryHandle::OTHER,
            },
            values: values(source, span),
        };
        let begin = timestamp(source, span.begin_ns);
        let timing = match span.end_ns > span.begin_ns {
            true => MarkerTiming::Interval(begin, timestamp(source, span.end_ns)),
            false => MarkerTiming::Instant(begin),
        };
        profile.add_marker(thread, timing, marker);
    }
}

fn schema(
    source: &Source,
    nature: SpanNature,
    statistics: &[StatisticId],
    number: usize,
) -> RuntimeSchemaMarkerSchema {
    let nature = match nature {
        SpanNature::Collection => "Collection",
        SpanNature::Phase => "Phase",
        SpanNature::Other => "Span",
    };
    let known = statistics
        .iter()
        .filter_map(|&id| machines::statistic(source.profile, id));
    let field = |(at, statistic): (usize, &Statistic)| {
        let (format, _) = format(&statistic.unit);
        let label = match (&format, statistic.unit.as_str()) {
            (MarkerFieldFormat::Decimal, unit) if !unit.is_empty() => {
                format!("{} [{unit}]", statistic.name)
            }
            _ => statistic.name.clone(),
        };
        RuntimeSchemaMarkerField {
            key: format!("statistic{at}"),
            label,
            format,
            flags: MarkerFieldFlags::empty(),
        }
    };
    let fields: Vec<_> = known.enumerate().map(field).collect();
    // The name has a column of its own. A brace would be taken for a place of a value.
    let facts: Vec<String> = fields
        .iter()
        .map(|field| {
            let label = field.label.replace(['{', '}'], "");
            format!("{label}: {{marker.data.{}}}", field.key)
        })
        .collect();
    let table_label = match facts.is_empty() {
        true => "{marker.name}".to_owned(),
        false => facts.join(", "),
    };
    RuntimeSchemaMarkerSchema {
        type_name: format!("{nature} {number}"),
        description: None,
        locations: MarkerLocations::MARKER_CHART
            | MarkerLocations::MARKER_TABLE
            | MarkerLocations::TIMELINE_OVERVIEW
            | MarkerLocations::TIMELINE_MEMORY,
        chart_label: Some("{marker.name}".into()),
        tooltip_label: Some("{marker.name}".into()),
        table_label: Some(table_label),
        fields,
        graphs: Vec::new(),
    }
}

fn values(source: &Source, span: &Span<'_>) -> Vec<f64> {
    let value = |&(id, value): &(StatisticId, u64)| {
        let (_, scale) = format(&machines::statistic(source.profile, id)?.unit);
        Some(value as f64 * scale)
    };
    span.statistics.iter().filter_map(value).collect()
}

/// How the viewer shows a unit, and how many of its own unit one is.
fn format(unit: &str) -> (MarkerFieldFormat, f64) {
    match unit {
        "bytes" => (MarkerFieldFormat::Bytes, 1.0),
        // Durations are in milliseconds.
        "ns" => (MarkerFieldFormat::Duration, 1e-6),
        "us" => (MarkerFieldFormat::Duration, 1e-3),
        "ms" => (MarkerFieldFormat::Duration, 1.0),
        "s" => (MarkerFieldFormat::Duration, 1e3),
        "" | "count" => (MarkerFieldFormat::Integer, 1.0),
        _ => (MarkerFieldFormat::Decimal, 1.0),
    }
}
