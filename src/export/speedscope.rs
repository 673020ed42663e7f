//! speedscope's own JSON: allocated and live bytes as two profiles over one table of frames.

use std::io::Write;

use serde::Serialize;
use serde_json::json;

use crate::ExportError;
use crate::view::{Interner, Line, Metric, Rounding, View};

#[derive(Serialize)]
struct Frame<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

pub(crate) fn write(view: &View, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut frames: Interner<&Line> = Interner::new();
    let profiles: Vec<_> = [Metric::Allocated, Metric::Live]
        .into_iter()
        .map(|metric| profile(view, metric, &mut frames))
        .collect();
    let frames: Vec<Frame> = frames
        .into_values()
        .into_iter()
        .map(|line| Frame {
            name: &line.function,
            file: line.file.as_deref(),
            line: (line.line != 0).then_some(line.line),
        })
        .collect();
    let file = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": view.about.program,
        "exporter": concat!("allocsample ", env!("CARGO_PKG_VERSION")),
        "activeProfileIndex": 0,
        "shared": { "frames": frames },
        "profiles": profiles,
    });
    serde_json::to_writer(out, &file)?;
    Ok(())
}

fn profile<'a>(
    view: &'a View,
    metric: Metric,
    frames: &mut Interner<&'a Line>,
) -> serde_json::Value {
    let mut samples = Vec::new();
    let mut weights = Vec::new();
    let mut rounding = Rounding::default();
    for (stack, bytes) in view.bytes_by_stack(metric) {
        let mut lines: Vec<usize> = view
            .locations_of(stack)
            .flat_map(|location| &location.lines)
            .map(|line| frames.intern(line))
            .collect();
        lines.reverse();
        samples.push(lines);
        weights.push(rounding.next(bytes));
    }
    json!({
        "type": "sampled",
        "name": metric.title(),
        "unit": "bytes",
        "startValue": 0,
        "endValue": weights.iter().sum::<i64>(),
        "samples": samples,
        "weights": weights,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
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
            let total: f64 = view.samples.iter().map(|s| metric.bytes(s)).sum();
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
}
