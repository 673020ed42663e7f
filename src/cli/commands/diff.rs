//! `allocsample diff`: what changed between two profiles, on stdout.

use allocsample_diff::{Diff, Measure, Per, csv, json, text};

use crate::args::{self, Format, PerCount};
use crate::exit::Ending;
use crate::{filter, output_file, profiles, terminal};

/// Prints the comparison.
pub fn run(arguments: &args::Diff) -> anyhow::Result<Ending> {
    let filter = filter::parse(arguments.filter.as_deref())?;
    let per = match (arguments.per_second, arguments.per_count) {
        (true, _) => Per::Second,
        (false, Some(PerCount(before, after))) => Per::Count(before, after),
        (false, None) => Per::Run,
    };
    let measure = match arguments.measure {
        args::Measure::Allocated => Measure::Allocated,
        args::Measure::Live => Measure::Live,
        args::Measure::Count => Measure::Count,
    };
    let before = profiles::open(&arguments.before)?;
    let after = profiles::open(&arguments.after)?;
    let by = super::report::by(arguments.by);
    let diff = Diff::of(&before, &after, by, measure, per, &filter);
    output_file::write_stdout(|out| match arguments.format {
        Format::Json => {
            serde_json::to_writer_pretty(&mut *out, &json::diff(&diff))
                .map_err(std::io::Error::from)?;
            Ok(writeln!(out)?)
        }
        Format::Csv => Ok(csv::diff(&diff, out)?),
        Format::Text => {
            let options = text::Options {
                top: arguments.top,
                all: arguments.all,
                colour: terminal::wants_colour(),
            };
            Ok(text::write(&diff, &options, out)?)
        }
    })?;
    Ok(Ending::SUCCESS)
}
