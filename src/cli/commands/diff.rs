//! `allocsample diff`: what changed between two profiles, on stdout.

use std::path::{Path, PathBuf};

use allocsample_diff::{Diff, Measure, MemoryChange, Per, csv, json, text};
use allocsample_profile::{Profile, align_function_names};
use allocsample_report::Width;
use allocsample_view::Against;

use crate::args::{self, Format, PerCount};
use crate::commands::convert;
use crate::exit::{self, Ending, Usage};
use crate::filter::Selected;
use crate::output_format::OutputFormat;
use crate::progress::Progress;
use crate::{output_file, profiles, terminal};

/// Prints the comparison.
pub fn run(arguments: &args::Diff) -> anyhow::Result<Ending> {
    let selected = Selected::by(&arguments.narrow)?;
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
    let (before, after) = arguments.sides().map_err(|it| Usage(it.to_owned()))?;
    let inputs: Vec<&Path> = before.iter().chain(after).map(PathBuf::as_path).collect();
    convert::spare(arguments.output.as_deref(), &inputs)?;
    let open = |paths: &[PathBuf]| -> anyhow::Result<Vec<Profile>> {
        let open = |path: &PathBuf| profiles::open(path);
        paths.iter().map(open).collect()
    };
    let (mut before_runs, mut after_runs) = (open(before)?, open(after)?);
    let mut runs: Vec<&mut Profile> = before_runs.iter_mut().chain(&mut after_runs).collect();
    align_function_names(&mut runs);
    runs.into_iter().for_each(|run| selected.narrow(run));
    if let (Some(args::Page::Html), [earlier], [later]) =
        (arguments.to, before_runs.as_slice(), after_runs.as_slice())
    {
        let against = Against {
            before: earlier,
            per,
        };
        write_page(arguments, &after[0], later, &against)?;
        return Ok(Ending::SUCCESS);
    }
    let by = super::report::by(arguments.by);
    let (before, after): (Vec<&Profile>, Vec<&Profile>) =
        (before_runs.iter().collect(), after_runs.iter().collect());
    let diff = Diff::of_runs(&before, &after, by, measure, per);
    let memory = || MemoryChange::of_runs(&before, &after, measure);
    match arguments.format {
        Format::Json => {
            let mut document = json::diff(&diff);
            document.extend(json::memory(memory().ok().as_ref()));
            output_file::write_json(&document)?;
        }
        Format::Csv => {
            let memory = memory().ok();
            output_file::write_stdout(|out| Ok(csv::diff(&diff, memory.as_ref(), out)?))?;
        }
        Format::Text => {
            let options = text::Options {
                top: arguments.top,
                all: arguments.all,
                width: Width::new(terminal::width()),
                colour: terminal::wants_colour(),
            };
            output_file::write_stdout(|out| {
                text::write(&diff, &options, out)?;
                Ok(text::write_memory(&memory(), &options, out)?)
            })?;
        }
    }
    Ok(Ending::SUCCESS)
}

fn write_page(
    arguments: &args::Diff,
    path: &Path,
    after: &Profile,
    earlier: &Against<'_>,
) -> anyhow::Result<()> {
    let _progress = Progress::start("preparing the page");
    match &arguments.output {
        Some(output) if output.as_os_str() == "-" => {
            output_file::write_stdout(|out| Ok(allocsample_view::write(after, Some(earlier), out)?))
        }
        Some(output) => write_page_to(output, after, earlier),
        None => {
            let page = convert::beside(path, OutputFormat::Html);
            let output = page.with_extension("diff.html");
            write_page_to(&output, after, earlier)?;
            exit::remark(format_args!("wrote {}", output.display()));
            Ok(())
        }
    }
}

fn write_page_to(output: &Path, after: &Profile, earlier: &Against<'_>) -> anyhow::Result<()> {
    output_file::write(output, |out| {
        Ok(allocsample_view::write(after, Some(earlier), out)?)
    })
}
