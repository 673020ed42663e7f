//! The tracks of memory over time.
//!
//! The viewer wants differences between points, replaces the first one by 0 and joins points by straight lines. So a
//! counter begins with a point of no meaning, and a jump is preceded by a point at the old level.

use allocsample_profile::HeapId;
use fxprof_processed_profile::{CounterHandle, GraphColor, ProcessHandle, Profile, ThreadHandle};
use rustc_hash::FxHashMap;
use serde_json::json;

use super::fields::{Fields, Part};
use super::machines;
use super::moments::{Moments, grouped};
use super::timestamp;
use crate::source::Source;

/// Points of a track; more cannot be told apart on a screen. Peaks are kept exactly.
const BUCKETS: u64 = 10_000;

/// A counter that was added.
pub(super) struct Counter {
    label: String,
    color: &'static str,
}

/// Of the heaps in turn, malloc's first.
const HEAP_COLORS: [(GraphColor, &str); 4] = [
    (GraphColor::Purple, "purple"),
    (GraphColor::Teal, "teal"),
    (GraphColor::Blue, "blue"),
    (GraphColor::Magenta, "magenta"),
];

/// A level from a moment on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    time_ns: u64,
    level: f64,
}

/// Estimated live bytes over time: malloc's, and those of each heap.
pub(super) struct Levels(Vec<Vec<Point>>);

/// See [`Levels`].
pub(super) fn levels(source: &Source) -> Levels {
    let watched = grouped(source, source.heaps.len() + 1, |index| {
        let sample = source.samples.at(index);
        // What nobody watched is not counted as live at any time.
        let is_watched = sample.is_live() || sample.freed_ns.is_some();
        is_watched.then(|| source.heap(&sample).map_or(0, |heap| heap + 1))
    });
    let levels = watched.iter().map(|watched| {
        let moments = Moments::of(source, watched);
        thin_out(live_bytes(source, &moments), bucket_ns(source))
    });
    Levels(levels.collect())
}

/// A stretch of time that has one or two points.
fn bucket_ns(source: &Source) -> u64 {
    source.since_start(source.profile.process.end_ns) / BUCKETS
}

/// Adds what is known about memory over time.
pub(super) fn add(
    source: &Source,
    Levels(levels): Levels,
    profile: &mut Profile,
    process: ProcessHandle,
    processes: &FxHashMap<HeapId, (ProcessHandle, ThreadHandle)>,
) -> Vec<Counter> {
    let process_of = |heap: HeapId| {
        processes
            .get(&heap)
            .map_or(process, |&(process, _)| process)
    };
    let heaps = source.heaps.iter().map(|&(id, name)| (id, Some(name)));
    // Malloc's first.
    let heaps = std::iter::once((HeapId::MALLOC, None)).chain(heaps);
    let mut added = Vec::new();
    let colors = HEAP_COLORS.iter().cycle();
    for (((heap, name), points), &(color, color_name)) in heaps.zip(levels).zip(colors) {
        if points.is_empty() {
            continue;
        }
        let name = match name {
            Some(name) => format!("Live bytes in {name}"),
            None if source.heaps.is_empty() => "Live bytes".to_owned(),
            None => "Live bytes in malloc".to_owned(),
        };
        let description = "Bytes allocated and not freed, estimated from the samples";
        let counter = profile.add_counter(process_of(heap), &name, "Memory", description);
        profile.set_counter_color(counter, color);
        add_points(source, profile, counter, &points, IsStep(true));
        added.push(Counter {
            label: format!("{name} (estimate)"),
            color: color_name,
        });
    }
    let resident = &source.profile.resident_bytes;
    if !resident.is_empty() {
        let description = "Physical memory of the process";
        let counter = profile.add_counter(process, "Resident set", "Memory", description);
        profile.set_counter_color(counter, GraphColor::Orange);
        let readings: Vec<Point> = resident
            .iter()
            .map(|&(time_ns, bytes)| Point {
                time_ns,
                level: bytes as f64,
            })
            .collect();
        add_points(source, profile, counter, &readings, IsStep(false));
        added.push(Counter {
            label: "Resident set".to_owned(),
            color: "orange",
        });
    }
    for (id, values) in machines::readings(source.profile) {
        let known = machines::statistic(source.profile, id);
        let (Some(statistic), Some(heap)) = (known, source.profile.vm.heaps.get(&id.0)) else {
            continue;
        };
        // The viewer's memory tracks are in bytes.
        if statistic.unit != "bytes" {
            continue;
        }
        let name = format!("{}: {}", heap.name, statistic.name);
        let description = "Told by the virtual machine";
        let process = process_of(id.0);
        let counter = profile.add_counter(process, &name, "Memory", description);
        profile.set_counter_color(counter, GraphColor::Green);
        let readings: Vec<Point> = values
            .iter()
            .map(|&(time_ns, value)| Point {
                time_ns,
                level: value as f64,
            })
            .collect();
        let readings = thin_out(readings.iter().copied(), bucket_ns(source));
        add_points(source, profile, counter, &readings, IsStep(true));
        added.push(Counter {
            label: name,
            color: "green",
        });
    }
    added
}

/// Gives the counters of the document labels of their own; without them the viewer calls each of them "Memory".
pub(super) fn describe(documents: &mut [Fields<'_>], counters: &[Counter]) {
    for (document, Counter { label, color }) in documents.iter_mut().zip(counters) {
        let display = json!({
            "graphType": "line-accumulated",
            "unit": "bytes",
            "color": color,
            "markerSchemaLocation": "timeline-memory",
            "sortWeight": 0,
            "label": label,
            "tooltipRows": [
                { "type": "value", "source": "accumulated", "format": { "unit": "bytes" }, "label": label },
                { "type": "value", "source": "count-range", "format": { "unit": "bytes" },
                  "label": "range in the selection", "labelKey": "memory-range" },
            ],
        });
        document.set("display", Part::Value(display));
    }
}

/// Whether a level stays until the next point, or moves towards it.
struct IsStep(bool);

fn add_points(
    source: &Source,
    profile: &mut Profile,
    counter: CounterHandle,
    points: &[Point],
    IsStep(is_step): IsStep,
) {
    let process = &source.profile.process;
    let (start_ns, end_ns) = (process.start_ns, process.end_ns);
    let mut level_before = 0.0;
    let mut add = |time_ns: u64, level: f64, operations: u32| {
        let time = timestamp(source, time_ns);
        profile.add_counter_sample(counter, time, level - level_before, operations);
        level_before = level;
    };
    add(start_ns, 0.0, 0);
    let mut level = 0.0;
    for point in points {
        if is_step {
            // The moment before the jump.
            add(point.time_ns.saturating_sub(1).max(start_ns), level, 0);
        }
        level = point.level;
        add(point.time_ns, level, 1);
    }
    if is_step && points.last().is_some_and(|last| last.time_ns < end_ns) {
        add(end_ns, level, 0);
    }
}

/// The level after each allocation and free.
fn live_bytes(source: &Source, moments: &Moments<'_>) -> impl Iterator<Item = Point> {
    let mut bytes = source.samples.bytes();
    let mut level = 0.0;
    moments.iter().map(move |moment| {
        let bytes = bytes.of(moment.number);
        level += if moment.is_free { -bytes } else { bytes };
        Point {
            time_ns: moment.time_ns,
            level,
        }
    })
}

/// Keeps of all points in a stretch of `bucket_ns` the highest and the last.
fn thin_out(points: impl Iterator<Item = Point>, bucket_ns: u64) -> Vec<Point> {
    let bucket_ns = bucket_ns.max(1);
    let mut thin = Vec::new();
    let mut end = |highest: Point, last: Point| {
        thin.push(highest);
        if highest != last {
            thin.push(last);
        }
    };
    let mut bucket: Option<(Point, Point)> = None;
    for point in points {
        bucket = match bucket {
            Some((highest, last)) if last.time_ns / bucket_ns == point.time_ns / bucket_ns => {
                let is_higher = point.level.total_cmp(&highest.level).is_ge();
                Some((if is_higher { point } else { highest }, point))
            }
            other => {
                if let Some((highest, last)) = other {
                    end(highest, last);
                }
                Some((point, point))
            }
        };
    }
    if let Some((highest, last)) = bucket {
        end(highest, last);
    }
    thin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_peaks_and_ends() {
        let point = |time_ns, level| Point { time_ns, level };
        let points = [
            point(0, 1.0),
            point(3, 9.0),
            point(7, 2.0),
            point(10, 3.0),
            point(11, 4.0),
        ];
        let expected = [point(3, 9.0), point(7, 2.0), point(11, 4.0)];
        assert_eq!(thin_out(points.iter().copied(), 10), expected);
        assert_eq!(thin_out(points.iter().copied(), 0), points);
    }
}
