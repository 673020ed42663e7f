//! speedscope's own JSON: allocated and live bytes, and time if it was sampled, as profiles over one table of frames.

use std::io::Write;

use serde::{Serialize, Serializer};

use crate::ExportError;
use crate::view::{Interner, Line, Metric, Rounding, StackIndex, View};

#[derive(Serialize)]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    name: &'a str,
    exporter: &'static str,
    #[serde(rename = "activeProfileIndex")]
    active_profile: u32,
    shared: Shared<'a>,
    profiles: Vec<Profile<'a>>,
}

#[derive(Serialize)]
struct Shared<'a> {
    frames: Vec<Frame<'a>>,
}

#[derive(Serialize)]
struct Frame<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
struct Profile<'a> {
    r#type: &'static str,
    name: &'static str,
    unit: &'static str,
    #[serde(rename = "startValue")]
    start: u32,
    #[serde(rename = "endValue")]
    end: i64,
    samples: Stacks<'a>,
    weights: Vec<i64>,
}

/// Stacks as lists of frames, outermost first. They are made as they are written.
struct Stacks<'a> {
    view: &'a View<'a>,
    frames_of_location: &'a [Vec<usize>],
    stacks: Vec<StackIndex>,
}

impl Serialize for Stacks<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.stacks.iter().map(|&stack| {
            let stacks = self.view.stacks_of(stack);
            let places = stacks.map(|stack| self.view.stacks.get(stack).location);
            let mut frames: Vec<usize> = places
                .flat_map(|place| &self.frames_of_location[place])
                .copied()
                .collect();
            frames.reverse();
            frames
        }))
    }
}

fn frame(line: &Line) -> Frame<'_> {
    Frame {
        name: &line.function,
        file: line.file.as_deref(),
        line: (line.line != 0).then_some(line.line),
    }
}

pub(crate) fn write(view: &View, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut frames: Interner<&Line> = Interner::new();
    let frames_of_location: Vec<Vec<usize>> = view
        .locations
        .iter()
        .map(|place| place.lines.iter().map(|line| frames.intern(line)).collect())
        .collect();
    let mut metrics = vec![Metric::Allocated, Metric::Live];
    if !view.ticks.is_empty() {
        metrics.push(Metric::Cpu);
    }
    let profiles = metrics
        .into_iter()
        .map(|metric| {
            let mut rounding = Rounding::default();
            let (stacks, weights): (Vec<_>, Vec<_>) = view
                .bytes_by_stack(metric)
                .into_iter()
                .map(|(stack, bytes)| (stack, rounding.next(bytes)))
                .unzip();
            Profile {
                r#type: "sampled",
                name: metric.title(),
                unit: match metric {
                    Metric::Cpu => "nanoseconds",
                    Metric::Allocated | Metric::Live => "bytes",
                },
                start: 0,
                end: weights.iter().sum(),
                samples: Stacks {
                    view,
                    frames_of_location: &frames_of_location,
                    stacks,
                },
                weights,
            }
        })
        .collect();
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        name: &view.about.program,
        exporter: concat!("allocsample ", env!("CARGO_PKG_VERSION")),
        active_profile: 0,
        shared: Shared {
            frames: frames.into_values().into_iter().map(frame).collect(),
        },
        profiles,
    };
    serde_json::to_writer(out, &file)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::view::Tick;
    use serde_json::Value;

    #[test]
    fn frames_samples_and_sums_fit_together() {
        let view = fixture::view();
        let mut out = Vec::new();
        write(&view, &mut out).unwrap();
        let file: Value = serde_json::from_slice(&out).unwrap();
        let frames = file["shared"]["frames"].as_array().unwrap();
        for (profile, metric) in [(0, Metric::Allocated), (1, Metric::Live)] {
            let profile = &file["profiles"][profile];
            let samples = profile["samples"].as_array().unwrap();
            let weights = profile["weights"].as_array().unwrap();
            assert_eq!(samples.len(), weights.len());
            let sum: i64 = weights.iter().map(|w| w.as_i64().unwrap()).sum();
            assert_eq!(profile["endValue"], sum);
            let total: f64 = view.samples.iter().map(|s| metric.bytes(&s)).sum();
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
        let mut view = fixture::view();
        let stack = view.samples.get(0).stack;
        let tick = |cpu_ns| Tick {
            stack,
            cpu_ns,
            ..Tick::default()
        };
        view.ticks = vec![tick(4_000_000), tick(5_000_000)];
        let mut out = Vec::new();
        write(&view, &mut out).unwrap();
        let file: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(file["profiles"].as_array().unwrap().len(), 3);
        let time = &file["profiles"][2];
        assert_eq!(time["unit"], "nanoseconds");
        assert_eq!(time["endValue"], 9_000_000);
        assert_eq!(time["samples"].as_array().unwrap().len(), 1);
    }
}
