//! `convert --to parquet`: a directory with one file for each table.

use std::io::BufWriter;
use std::path::Path;

use allocsample_profile::Profile;
use allocsample_query::parquet;

use crate::output_file;

/// Creates or fills the directory `output`. Files are written aside, and renamed when all of them are complete.
pub fn write(profile: &Profile, output: &Path) -> anyhow::Result<()> {
    output_file::write_directory(output, |aside| {
        parquet::write(
            profile,
            |table| {
                aside
                    .create(&format!("{table}.parquet"))
                    .map(BufWriter::new)
            },
            |out| {
                let file = out.into_inner().map_err(|error| error.into_error());
                file.map(drop)
            },
        )?;
        Ok(())
    })
}
