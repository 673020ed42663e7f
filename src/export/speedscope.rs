//! speedscope's own JSON: allocated and live bytes, and time if it was sampled, as profiles over one table of frames.

use std::io::Write;

use allocsample_profile::StackId;
use indexmap::IndexSet;
use serde::Serialize;

use crate::ExportError;
use crate::metric::Metric;
use crate::object::Object;
use crate::rounding::Rounding;
use crate::source::Source;

#[derive(Serialize)]
struct Shared<'a> {
    frames: Vec<Frame<'a>>,
}

#[derive(PartialEq, Eq, Hash, Serialize)]
struct Frame<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

fn frame(line: &allocsample_profile::Frame) -> Frame<'_> {
    Frame {
        name: &line.function,
        file: line.file.as_deref(),
        line: (line.line != 0).then_some(line.line),
    }
}

/// `first`: what a reader sees first.
pub(crate) fn write(
    source: &Source,
    first: Metric,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let mut frames: IndexSet<Frame<'_>> = IndexSet::new();
    let frames_of_location: Vec<Vec<usize>> = source
        .locations
        .iter()
        .map(|place| {
            let lines = place.lines.iter();
            lines
                .map(|line| frames.insert_full(frame(line)).0)
                .collect()
        })
        .collect();
    let mut metrics = vec![Metric::Allocated, Metric::Live];
    if !source.ticks.is_empty() {
        metrics.push(Metric::Cpu);
    }
    if first == Metric::Peak {
        metrics.push(Metric::Peak);
    }
    let active = metrics.iter().position(|metric| *metric == first);
    let shared = Shared {
        frames: frames.into_iter().collect(),
    };
    // Outermost first.
    let frames_of = |stack: StackId| -> Vec<usize> {
        // Most stacks need no more room than that.
        let mut frames = Vec::with_capacity(64);
        for place in source.locations_of(stack) {
            frames.extend_from_slice(&frames_of_location[place]);
        }
        frames.reverse();
        frames
    };
    let mut file = Object::begin(out)?;
    file.entry(
        "$schema",
        "https://www.speedscope.app/file-format-schema.json",
    )?;
    file.entry("name", source.program())?;
    file.entry(
        "exporter",
        concat!("allocsample ", env!("CARGO_PKG_VERSION")),
    )?;
    file.entry("activeProfileIndex", &active.unwrap_or(0))?;
    file.entry("shared", &shared)?;
    file.objects("profiles", metrics, |profile, metric| {
        let mut rounding = Rounding::default();
        let (stacks, weights): (Vec<_>, Vec<_>) = metric
            .by_stack(source)
            .into_iter()
            .map(|(stack, bytes)| (stack, rounding.next(bytes)))
            .unzip();
        profile.entry("type", "sampled")?;
        profile.entry("name", metric.title())?;
        let unit = match metric {
            Metric::Cpu => "nanoseconds",
            Metric::Allocated | Metric::Live | Metric::Peak => "bytes",
        };
        profile.entry("unit", unit)?;
        profile.entry("startValue", &0)?;
        profile.entry("endValue", &weights.iter().sum::<i64>())?;
        profile.rows("samples", stacks.len(), |rows| {
            stacks[rows].iter().map(|&stack| frames_of(stack))
        })?;
        profile.rows("weights", weights.len(), |rows| weights[rows].iter())
    })?;
    Ok(file.end()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use allocsample_profile::Tick;
    use serde_json::Value;

    #[test]
    fn frames_samples_and_sums_fit_together() {
        let source = fixture::source();
        let mut out = Vec::new();
        write(&source, Metric::default(), &mut out).unwrap();
        let file: Value = serde_json::from_slice(&out).unwrap();
        let frames = file["shared"]["frames"].as_array().unwrap();
        for (profile, metric) in [(0, Metric::Allocated), (1, Metric::Live)] {
            let profile = &file["profiles"][profile];
            let samples = profile["samples"].as_array().unwrap();
            let weights = profile["weights"].as_array().unwrap();
            assert_eq!(samples.len(), weights.len());
            let sum: i64 = weights.iter().map(|w| w.as_i64().unwrap()).sum();
            assert_eq!(profile["endValue"], sum);
            let total: f64 = metric.by_stack(&source).iter().map(|it| it.1).sum();
            assert!((sum as f64 - total).abs() <= weights.len() as f64 / 2.0);
            for frame in samples.iter().flat_map(|sample| sample.as_array().unwrap()) {
                assert!((frame.as_u64().unwrap() as usize) < frames.len());
            }
            let named: Vec<Vec<&str>> = samples
                .iter()
                .map(|sample| {
                    let frames_of = sample.as_array().unwrap().iter();
                    let name = |f: &Value| frames[f.as_u64().unwrap() as usize]["name"].as_str();
                    frames_of.map(|f| name(f).unwrap()).collect()
                })
                .collect();
            assert!(named.contains(&vec!["main", "outer", "inlined"]));
        }
    }

    #[test]
    fn samples_of_time_are_a_profile_in_nanoseconds() {
        let source = fixture::source_with(|profile| {
            let stack = profile.samples.stack(0);
            profile.ticks = [4_000_000, 5_000_000]
                .map(|cpu_ns| Tick {
                    stack,
                    cpu_ns,
                    ..Tick::default()
                })
                .into();
        });
        let mut out = Vec::new();
        write(&source, Metric::default(), &mut out).unwrap();
        let file: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(file["profiles"].as_array().unwrap().len(), 3);
        let time = &file["profiles"][2];
        assert_eq!(time["unit"], "nanoseconds");
        assert_eq!(time["endValue"], 9_000_000);
        assert_eq!(time["samples"].as_array().unwrap().len(), 1);
    }
}
