//! A flame graph as one SVG file that needs nothing else.

use std::io::Write;

use inferno::flamegraph::color::{BasicPalette, Palette};
use inferno::flamegraph::{Options, from_lines};

use crate::ExportError;
use crate::collapsed;
use crate::view::{Metric, View};

pub(crate) fn write(view: &View, metric: Metric, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut options = Options::default();
    // There may be a million lines, of which a hundredth can be seen.
    let lines = collapsed::wide_lines(view, metric, options.min_width / 100.0);
    if lines.is_empty() {
        return Err(ExportError::Empty(metric.absent()));
    }
    options.title = format!("{}: {}", metric.title(), view.program());
    options.subtitle = Some(subtitle(view));
    options.count_name = "bytes".into();
    options.colors = Palette::Basic(BasicPalette::Mem);
    // The same profile gives the same picture.
    options.deterministic = true;
    from_lines(&mut options, lines.iter().map(String::as_str), out)?;
    Ok(())
}

fn subtitle(view: &View) -> String {
    let process = &view.profile.process;
    let mut command = process.command_line.join(" ");
    if command.chars().count() > 100 {
        command = command.chars().take(99).chain(['…']).collect();
    }
    format!(
        "{command} (pid {}), one sample per {} bytes",
        process.pid,
        view.profile.interval_bytes()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn every_function_is_in_it_and_nothing_is_fetched() {
        let mut view = fixture::view();
        // Beside three gigabytes the others are too narrow to be drawn.
        view.samples.list().retain(|sample| sample.bytes < 1e9);
        let mut out = Vec::new();
        write(&view, Metric::Allocated, &mut out).unwrap();
        let svg = String::from_utf8(out).unwrap();
        for function in ["main", "outer", "inlined", "(truncated)", "leaf: part"] {
            assert!(svg.contains(&format!("<title>{function} (")), "{function}");
        }
        assert!(svg.contains("Allocated bytes: app"));
        for reference in ["href=\"http", "url(http", "@import", "src=\"http"] {
            assert!(!svg.contains(reference), "{reference}");
        }
    }

    #[test]
    fn the_total_is_that_of_the_profile() {
        let view = fixture::view();
        let mut out = Vec::new();
        write(&view, Metric::Live, &mut out).unwrap();
        let svg = String::from_utf8(out).unwrap();
        let mut total = 0;
        collapsed::lines(&view, Metric::Live, |_, bytes| {
            total += bytes;
            Ok(())
        })
        .unwrap();
        let digits = total.to_string();
        let grouped: Vec<&str> = digits
            .as_bytes()
            .rchunks(3)
            .rev()
            .map(|group| std::str::from_utf8(group).unwrap())
            .collect();
        let expected = format!("<title>all ({} bytes, 100%)", grouped.join(","));
        assert!(svg.contains(&expected), "{expected}");
    }

    #[test]
    fn a_profile_without_bytes_is_an_error_and_no_picture() {
        let mut out = Vec::new();
        let error = write(&View::default(), Metric::Live, &mut out).unwrap_err();
        assert_eq!(
            error.to_string(),
            "nothing to draw: the profile has no live bytes"
        );
        assert!(out.is_empty());
    }
}
