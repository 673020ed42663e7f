//! `allocsample convert`: a profile in other tools' formats.

mod parquet;

use std::io::Write;
use std::path::{Path, PathBuf};

use allocsample_export::{ExportError, Format, Metric, Options};
use allocsample_profile::{Held, Profile};

use crate::args::{self, Convert};
use crate::exit::{self, Ending, Usage};
use crate::filter::Selected;
use crate::output_format::OutputFormat;
use crate::progress::Progress;
use crate::{output_file, packed, profiles};

/// Writes the requested formats.
pub fn run(arguments: &Convert) -> anyhow::Result<Ending> {
    let shows_one_metric = |format: &OutputFormat| {
        matches!(
            format,
            OutputFormat::Export(Format::Collapsed | Format::Svg)
        )
    };
    if arguments.metric.is_some() && !arguments.to.iter().any(shows_one_metric) {
        let what = "--metric applies to collapsed and svg only; other formats contain all measures";
        return Err(Usage(what.into()).into());
    }
    if let (Some(output), [_, _, ..]) = (&arguments.output, arguments.to.as_slice()) {
        return Err(Usage(format!(
            "--output {} names one file for {} formats; omit it, or give one format",
            output.display(),
            arguments.to.len()
        ))
        .into());
    }
    spare(arguments.output.as_deref(), &[&arguments.file])?;
    let selected = Selected::by(&arguments.narrow)?;
    let mut profile = profiles::open(&arguments.file)?;
    selected.narrow(&mut profile);
    let options = options(&profile, arguments.metric);
    for &format in &arguments.to {
        match &arguments.output {
            Some(output) if output.as_os_str() == "-" => match format {
                OutputFormat::Parquet => {
                    let what = "parquet writes a directory; name it with --output";
                    return Err(Usage(what.into()).into());
                }
                _ => output_file::write_stdout(|out| fill(&profile, format, &options, out))?,
            },
            Some(output) => write(&profile, format, &options, output)?,
            None => {
                let output = beside(&arguments.file, format);
                write(&profile, format, &options, &output)?;
                exit::remark(format_args!("wrote {}", output.display()));
            }
        }
    }
    Ok(Ending::SUCCESS)
}

/// What formats show that show one measure: memory held, unless another is asked for.
pub fn options(profile: &Profile, metric: Option<args::Metric>) -> Options {
    let metric = match (metric, profile.held()) {
        (Some(args::Metric::Peak), _) | (None, Held::AtPeak) => Metric::Peak,
        (Some(args::Metric::Live), _) | (None, Held::AtEnd) => Metric::Live,
        (Some(args::Metric::Allocated), _) => Metric::Allocated,
        (Some(args::Metric::Cpu), _) => Metric::Cpu,
    };
    Options {
        metric,
        ..Options::default()
    }
}

/// Writes a profile to a file in a format.
pub fn write(
    profile: &Profile,
    format: OutputFormat,
    options: &Options,
    output: &Path,
) -> anyhow::Result<()> {
    let _progress = Progress::start(format!("writing {}", output.display()));
    match format {
        OutputFormat::Parquet => parquet::write(profile, output),
        _ if is_packed(format, output) => output_file::write(output, |out| {
            packed::write(out, |out| fill(profile, format, options, out))
        }),
        _ => output_file::write(output, |out| fill(profile, format, options, out)),
    }
}

/// Whether the name asks for gzip; pprof is always compressed.
fn is_packed(format: OutputFormat, output: &Path) -> bool {
    output.extension().is_some_and(|it| it == "gz") && format != OutputFormat::Export(Format::Pprof)
}

/// Writes a format that is one stream of bytes.
pub fn fill(
    profile: &Profile,
    format: OutputFormat,
    options: &Options,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    match format {
        OutputFormat::Export(format) => {
            allocsample_export::write(profile, format, options, out).map_err(explain)
        }
        OutputFormat::Html => Ok(allocsample_view::write(profile, None, out)?),
        OutputFormat::Parquet => unreachable!("a directory is no stream"),
    }
}

/// The default path of a converted profile: `X.svg` for `X.allocsample`.
pub fn beside(input: &Path, format: OutputFormat) -> PathBuf {
    let is_profile = input.extension().is_some_and(|it| it == "allocsample");
    let stem = if is_profile {
        input.file_stem()
    } else {
        input.file_name()
    };
    let mut name = stem.unwrap_or_default().to_owned();
    name.push(".");
    name.push(format.extension());
    input.with_file_name(name)
}

/// Keeps an error of the output recognisable: a broken pipe is success.
fn explain(error: ExportError) -> anyhow::Error {
    match error {
        ExportError::Io(error) => error.into(),
        error => error.into(),
    }
}

/// Refuses an output that would take the place of one of these profiles.
pub fn spare(output: Option<&Path>, profiles: &[&Path]) -> anyhow::Result<()> {
    match output {
        Some(output) if profiles.iter().any(|it| is_same_file(output, it)) => {
            let what = format!("{}: this is the profile itself", output.display());
            Err(Usage(what).into())
        }
        _ => Ok(()),
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    match (std::fs::canonicalize(one), std::fs::canonicalize(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_named_after_their_inputs() {
        let beside = |input: &str| beside(Path::new(input), OutputFormat::Export(Format::Pprof));
        assert_eq!(beside("a/b.1.allocsample"), Path::new("a/b.1.pb.gz"));
        assert_eq!(beside("b.profile"), Path::new("b.profile.pb.gz"));
    }
}
