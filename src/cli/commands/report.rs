//! `allocsample report`: a profile's answers, on stdout.

use std::io::IsTerminal;
use std::io::stdout;

use allocsample_report::text::{self, Options};
use allocsample_report::{By, Filter, Sort, json};

use crate::args::{self, Report, ReportFormat};
use crate::exit::{Ending, Usage};
use crate::{output_file, profiles};

/// Prints the report.
pub fn run(arguments: &Report) -> anyhow::Result<Ending> {
    let filter = match &arguments.filter {
        None => Filter::all(),
        // The error draws a picture below the expression; its last line says what is wrong.
        Some(pattern) => Filter::new(pattern).map_err(|error| {
            let error = error.to_string();
            let why = error.lines().last().unwrap_or_default();
            let why = why.strip_prefix("error: ").unwrap_or(why);
            Usage(format!(
                "--filter '{pattern}': not a regular expression: {why}"
            ))
        })?,
    };
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
        width: terminal_width().unwrap_or(defaults.width),
        colour: wants_colour(),
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

fn by(by: args::By) -> By {
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

/// Columns of the terminal that stdout is; `None` if it is none.
fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// Only on a terminal that can, and not against the user's wish (no-color.org).
fn wants_colour() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb
}
