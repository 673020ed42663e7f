//! `allocsample query`: SQL over a profile's tables.

use std::io::read_to_string;
use std::sync::Arc;
use std::time::Duration;

use allocsample_query::{Database, Format, QueryError};
use anyhow::{Context, anyhow};

use crate::args::{Query, QueryFormat};
use crate::exit::{Ending, Usage};
use crate::filter::Selected;
use crate::progress::Progress;
use crate::{memory, output_file, profiles};

/// Prints the answer.
pub fn run(arguments: &Query) -> anyhow::Result<Ending> {
    let sql = match arguments.sql.as_str() {
        "-" => read_to_string(std::io::stdin()).context("stdin")?,
        sql => sql.to_owned(),
    };
    let selected = Selected::by(&arguments.narrow)?;
    let mut profile = profiles::open(&arguments.file)?;
    selected.narrow(&mut profile);
    let timeout = (arguments.timeout != 0).then(|| Duration::from_secs(arguments.timeout));
    let progress = Progress::start("asking");
    let answer = Database::new(Arc::new(profile))
        .and_then(|mut database| {
            // The bound on the command's memory holds for the query and its answer, too. This one says so better.
            database.allow(memory::allowance(profiles::bytes_of(&arguments.file)));
            database.query(&sql, timeout)
        })
        .map_err(|error| match error {
            QueryError::TooSlow(_) | QueryError::TooLarge(_) => anyhow!("query: {error}"),
            error => {
                let tables = allocsample_query::tables().iter().map(|table| table.name);
                let tables: Vec<&str> = tables.collect();
                let hint = match error.to_string().starts_with("no such table") {
                    true => format!("; the tables are {}", tables.join(", ")),
                    false => String::new(),
                };
                Usage(format!("query: {error}{hint}")).into()
            }
        })?;
    drop(progress);
    let format = match arguments.format {
        QueryFormat::Table => Format::Table,
        QueryFormat::Json => Format::Json,
        QueryFormat::Csv => Format::Csv,
    };
    output_file::write_stdout(|out| Ok(answer.write(format, out)?))?;
    Ok(Ending::SUCCESS)
}
