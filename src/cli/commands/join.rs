//! `allocsample join`: makes one profile of the files of a rotating recording.

use std::path::{Path, PathBuf};

use allocsample_profile::{Finished, JoinError, join, join_recording, joined_name};
use anyhow::bail;

use crate::args::Join;
use crate::exit::Ending;
use crate::progress::Progress;
use crate::{output_file, running};

/// Runs the command.
pub fn run(arguments: &Join) -> anyhow::Result<Ending> {
    let what = &arguments.what;
    if let [only] = &what[..] {
        let path = running::profile_of(only)?;
        return write(arguments, &path, |copy| join_recording(&path, copy));
    }
    let parts: Vec<PathBuf> = what.iter().map(PathBuf::from).collect();
    let Some(last) = parts.last() else {
        bail!("nothing to join");
    };
    write(arguments, last, |copy| {
        Ok((join(&parts, copy)?, parts.len()))
    })
}

/// Joins the files of which this is the last one. Returns the profile and the number of files.
fn write(
    arguments: &Join,
    last: &Path,
    join: impl FnOnce(&Path) -> Result<(Finished, usize), JoinError>,
) -> anyhow::Result<Ending> {
    let output = match &arguments.output {
        Some(output) => output.clone(),
        None => PathBuf::from(joined_name(last).file_name().unwrap_or_default()),
    };
    let _progress = Progress::start("joining files");
    let (finished, count) = output_file::profile_aside(&output, |copy| {
        join(copy).map_err(|error| match error {
            JoinError::Read { .. } | JoinError::Series(_) => error.into(),
            JoinError::Write(_) => anyhow::Error::from(error).context(output.display().to_string()),
        })
    })?;
    output_file::write_stdout(|out| {
        Ok(writeln!(
            out,
            "{}: {} samples from {count} file{}",
            output.display(),
            finished.profile.samples.len(),
            if count == 1 { "" } else { "s" },
        )?)
    })?;
    Ok(Ending::SUCCESS)
}
