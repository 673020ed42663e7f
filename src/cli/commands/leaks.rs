//! `allocsample leaks`: which sites leak, on stdout.

use allocsample_leaks::{Findings, csv, json, text};
use allocsample_report::Width;

use crate::args::{Format, Leaks};
use crate::exit::{Ending, Usage};
use crate::{filter, output_file, profiles, terminal};

/// Prints the findings.
pub fn run(arguments: &Leaks) -> anyhow::Result<Ending> {
    if arguments.narrow.at_peak {
        return Err(Usage(
            "leaks judges growth over time, and the peak is a moment: use --until TIME, or `report --at-peak`".into(),
        )
        .into());
    }
    let selection = filter::selection(&arguments.narrow)?;
    let mut profile = profiles::open_series(&arguments.files)?;
    let selection = selection.narrow_time(&mut profile);
    let limit = match arguments.format {
        // Sites that grow together are printed as one finding, so `top` findings may need more sites.
        Format::Text => arguments.top.max(300),
        Format::Json | Format::Csv => usize::MAX,
    };
    let findings = Findings::worst(&profile, &selection, limit);
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
