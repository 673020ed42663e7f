//! The formats by name.

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

use allocsample_profile::Profile;

use crate::metric::Metric;
use crate::source::Source;
use crate::{collapsed, csv, firefox, flamegraph, json, pprof, speedscope};

/// A format that profiles can be converted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// The Firefox Profiler, profiler.firefox.com.
    Firefox,
    /// `go tool pprof` and everything that reads its files.
    Pprof,
    /// One line for each stack, for flame graph tools.
    Collapsed,
    /// A flame graph that a browser shows.
    Svg,
    /// Everything, for scripts.
    Json,
    /// www.speedscope.app.
    Speedscope,
    /// One line for each sample.
    Csv,
}

/// What a format shows where there is a choice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// For formats that show one kind of bytes: collapsed stacks and the flame graph.
    pub metric: Metric,
    /// For pprof: only allocations from this moment on (CLOCK_MONOTONIC) count as allocated; what was live at the end is
    /// in use, whenever it was allocated. 0 for all.
    pub allocated_since_ns: u64,
}

/// Why a profile could not be converted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The output could not be written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A picture of nothing: the profile has none of these bytes.
    #[error("nothing to draw: the profile has {0}")]
    Empty(&'static str),
}

impl From<serde_json::Error> for ExportError {
    fn from(error: serde_json::Error) -> Self {
        // Our own values are always JSON: what fails is the writer. Keeps its kind, a broken pipe for one.
        Self::Io(error.into())
    }
}

/// A name that is no format's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown format; there are {}", names())]
pub struct UnknownFormat;

/// Writes `profile` to `out` in a format. Nothing is written if the profile has nothing that the format could show; an
/// error of `out` leaves what it took.
pub fn write(
    profile: &Profile,
    format: Format,
    options: &Options,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    format.write_source(Source::of(profile), options, out)
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 7] = [
        Format::Firefox,
        Format::Pprof,
        Format::Collapsed,
        Format::Svg,
        Format::Json,
        Format::Speedscope,
        Format::Csv,
    ];

    /// What a user types.
    pub fn name(self) -> &'static str {
        match self {
            Format::Firefox => "firefox",
            Format::Pprof => "pprof",
            Format::Collapsed => "collapsed",
            Format::Svg => "svg",
            Format::Json => "json",
            Format::Speedscope => "speedscope",
            Format::Csv => "csv",
        }
    }

    /// How its files' names end, without the dot; no two formats share one.
    pub fn extension(self) -> &'static str {
        match self {
            Format::Firefox => "firefox.json",
            Format::Pprof => "pb.gz",
            Format::Collapsed => "collapsed",
            Format::Svg => "svg",
            Format::Json => "json",
            Format::Speedscope => "speedscope.json",
            Format::Csv => "csv",
        }
    }

    fn write_source(
        self,
        source: Source,
        options: &Options,
        out: &mut dyn Write,
    ) -> Result<(), ExportError> {
        match self {
            Format::Firefox => firefox::write(source, out),
            Format::Pprof => Ok(pprof::write(&source, options, out)?),
            Format::Collapsed => Ok(collapsed::write(&source, options.metric, out)?),
            Format::Svg => flamegraph::write(&source, options.metric, out),
            Format::Json => json::write(&source, out),
            Format::Speedscope => speedscope::write(&source, options.metric, out),
            Format::Csv => csv::write(&source, out),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        let mut formats = Self::ALL.into_iter();
        formats
            .find(|format| format.name() == name)
            .ok_or(UnknownFormat)
    }
}

fn names() -> String {
    Format::ALL.map(Format::name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use std::collections::HashSet;

    #[test]
    fn names_are_read_back_and_extensions_differ() {
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        let extensions: HashSet<_> = Format::ALL.map(Format::extension).into();
        assert_eq!(extensions.len(), Format::ALL.len());
        let error = "flame".parse::<Format>().unwrap_err().to_string();
        assert!(error.contains("firefox, pprof, collapsed"));
    }

    #[test]
    fn a_broken_pipe_stays_one_in_every_format() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        for format in Format::ALL {
            let result = format.write_source(fixture::source(), &Options::default(), &mut Closed);
            match result {
                Err(ExportError::Io(error)) => {
                    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "{format}");
                }
                other => panic!("{format}: {other:?}"),
            }
        }
    }
}
