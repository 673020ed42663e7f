//! `allocsample report`: a profile's answers, on stdout.

use allocsample_report::text::{self, Options};
use allocsample_report::{By, Filter, Sort, json};

use crate::args::{self, Report, ReportFormat};
use crate::exit::{Ending, Usage};
use crate::{filter, output_file, profiles, terminal};

/// Prints the report.
pub fn run(arguments: &Report) -> anyhow::Result<Ending> {
    let filter = filter::parse(arguments.filter.as_deref())?;
    let sort = arguments.sort.map_or_else(Sort::default, sort);
    if arguments.format == ReportFormat::Json {
        return run_json(arguments, sort, &filter);
    }
    let profile = profiles::open(&arguments.file)?;
    let defaults = Options::default();
    let options = Options {
        by: arguments.by.map_or(defaults.by, by),
        sort,
        top: arguments.top.unwrap_or(defaults.top),
        filter,
        tree: arguments.tree,
        summary: arguments.summary,
        width: terminal::width().unwrap_or(defaults.width),
        colour: terminal::wants_colour(),
    };
    output_file::write_stdout(|out| Ok(text::write(&profile, &options, out)?))?;
    Ok(Ending::SUCCESS)
}

fn run_json(arguments: &Report, sort: Sort, filter: &Filter) -> anyhow::Result<Ending> {
    let is_text_only =
        arguments.by.is_some() || arguments.top.is_some() || arguments.tree || arguments.summary;
    if is_text_only {
        let what =
            "--format json prints all tables in full: leave out --by, --top, --tree and --summary";
        return Err(Usage(what.into()).into());
    }
    let profile = profiles::open(&arguments.file)?;
    let report = json::report(&profile, sort, filter);
    output_file::write_stdout(|out| {
        serde_json::to_writer_pretty(&mut *out, &report).map_err(std::io::Error::from)?;
        Ok(writeln!(out)?)
    })?;
    Ok(Ending::SUCCESS)
}

/// What the rows are.
pub fn by(by: args::By) -> By {
    match by {
        args::By::Function => By::Function,
        args::By::Site => By::Site,
        args::By::Line => By::Line,
        args::By::Module => By::Module,
        args::By::Thread => By::Thread,
    }
}

fn sort(sort: args::Sort) -> Sort {
    match sort {
        args::Sort::Allocated => Sort::Allocated,
        args::Sort::Live => Sort::Live,
        args::Sort::Count => Sort::Count,
    }
}
