//! `convert --to parquet`: a directory with one file for each table.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;

use allocsample_profile::Profile;
use allocsample_query::{parquet, tables};
use anyhow::{Context, bail};

/// Makes the directory `output`, or fills one that is there. Files are written aside, and take their places together
/// when all of them are complete.
pub fn write(profile: &Profile, output: &Path) -> anyhow::Result<()> {
    let named = || output.display().to_string();
    if output.exists() && !output.is_dir() {
        bail!("{}: this is a file; parquet needs a directory", named());
    }
    let parent = output
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let aside = tempfile::Builder::new()
        .prefix(".allocsample-")
        .tempdir_in(parent)
        .with_context(named)?;
    let file_name = |table: &str| format!("{table}.parquet");
    parquet::write(
        profile,
        |table| File::create(aside.path().join(file_name(table))).map(BufWriter::new),
        |out| {
            let file = out.into_inner().map_err(|error| error.into_error());
            file.map(drop)
        },
    )
    .with_context(named)?;
    fs::create_dir_all(output).with_context(named)?;
    for name in tables().iter().map(|table| file_name(table.name)) {
        fs::rename(aside.path().join(&name), output.join(&name)).with_context(named)?;
    }
    Ok(())
}
