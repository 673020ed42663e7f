//! A flame graph as one SVG file that needs nothing else.

use std::io::Write;

use inferno::flamegraph::color::{BasicPalette, Palette};
use inferno::flamegraph::{Options, from_lines};

use crate::ExportError;
use crate::collapsed;
use crate::metric::Metric;
use crate::source::Source;

pub(crate) fn write(
    source: &Source,
    metric: Metric,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let mut options = Options::default();
    // There may be a million lines, of which a hundredth can be seen.
    let lines = collapsed::wide_lines(source, metric, options.min_width / 100.0);
    if lines.is_empty() {
        return Err(ExportError::Empty(metric.absent()));
    }
    options.title = format!("{}: {}", metric.title(), source.program());
    options.subtitle = Some(subtitle(source));
    options.count_name = "bytes".into();
    options.colors = Palette::Basic(BasicPalette::Mem);
    // The same profile gives the same picture.
    options.deterministic = true;
    from_lines(&mut options, lines.iter().map(String::as_str), out)?;
    Ok(())
}

fn subtitle(source: &Source) -> String {
    let process = &source.profile.process;
    let mut command = process.command_line.join(" ");
    if command.chars().count() > 100 {
        command = command.chars().take(99).chain(['…']).collect();
    }
    format!(
        "{command} (pid {}), one sample per {} bytes",
        process.pid,
        source.profile.interval_bytes()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use allocsample_profile::Profile;

    #[test]
    fn every_function_is_in_it_and_nothing_is_fetched() {
        // Beside three gigabytes the others are too narrow to be drawn.
        let source = fixture::source_with(|it| it.retain(|it| it.size < 1 << 30, |_| true));
        let mut out = Vec::new();
        write(&source, Metric::Allocated, &mut out).unwrap();
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
        let source = fixture::source();
        let mut out = Vec::new();
        write(&source, Metric::Live, &mut out).unwrap();
        let svg = String::from_utf8(out).unwrap();
        let mut total = 0;
        collapsed::lines(&source, Metric::Live, |_, bytes| {
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
        let error = write(
            &fixture::source_of(Profile::default()),
            Metric::Live,
            &mut out,
        )
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "nothing to draw: the profile has no live bytes; use --metric allocated to include freed blocks"
        );
        assert!(out.is_empty());
    }
}
