//! `allocsample leaks`: which sites leak, on stdout.

use allocsample_leaks::{Findings, csv, json, text};
use allocsample_report::Width;

use crate::args::{Format, Leaks};
use crate::exit::Ending;
use crate::{filter, output_file, profiles, terminal};

/// Prints the findings.
pub fn run(arguments: &Leaks) -> anyhow::Result<Ending> {
    let filter = filter::parse(arguments.filter.as_deref())?;
    let profile = profiles::open_series(&arguments.files)?;
    let limit = match arguments.format {
        // Sites that grow together are printed as one finding, so `top` findings may need more sites.
        Format::Text => arguments.top.max(300),
        Format::Json | Format::Csv => usize::MAX,
    };
    let findings = Findings::worst(&profile, &filter, limit);
    match arguments.format {
        Format::Json => output_file::write_json(&json::leaks(&profile, &findings))?,
        Format::Csv => output_file::write_stdout(|out| Ok(csv::leaks(&findings, out)?))?,
        Format::Text => {
            let options = text::Options {
                top: arguments.top,
                all: arguments.all,
                depth: arguments.depth,
                width: Width::new(terminal::width()),
                colour: terminal::wants_colour(),
            };
            output_file::write_stdout(|out| Ok(text::write(&profile, &findings, &options, out)?))?;
        }
    }
    Ok(Ending::SUCCESS)
}
