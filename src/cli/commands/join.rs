//! `allocsample join`: the files of a recording that went on in others, as one.

use std::path::PathBuf;

use allocsample_profile::{join, joined_name, parts_before};
use anyhow::{Context, bail};

use crate::args::Join;
use crate::exit::Ending;
use crate::progress::Progress;
use crate::{output_file, running};

/// Does it.
pub fn run(arguments: &Join) -> anyhow::Result<Ending> {
    let [only] = &arguments.what[..] else {
        let parts: Vec<PathBuf> = arguments.what.iter().map(PathBuf::from).collect();
        return write(arguments, parts);
    };
    let path = running::profile_of(only)?;
    let mut parts = parts_before(&path).with_context(|| path.display().to_string())?;
    parts.push(path);
    write(arguments, parts)
}

fn write(arguments: &Join, parts: Vec<PathBuf>) -> anyhow::Result<Ending> {
    let Some(last) = parts.last() else {
        bail!("nothing to join");
    };
    let output = match &arguments.output {
        Some(output) => output.clone(),
        None => PathBuf::from(joined_name(last).file_name().unwrap_or_default()),
    };
    if output.exists() {
        bail!("{}: is there already", output.display());
    }
    let _progress = Progress::start(format!("joining {} files", parts.len()));
    let finished = output_file::profile_aside(&output, |copy| {
        join(&parts, copy).with_context(|| last.display().to_string())
    })?;
    output_file::write_stdout(|out| {
        Ok(writeln!(
            out,
            "{}: {} samples from {} files",
            output.display(),
            finished.profile.samples.len(),
            parts.len()
        )?)
    })?;
    Ok(Ending::SUCCESS)
}
