//! `--filter`.

use allocsample_report::Filter;

use crate::exit::Usage;

/// The samples that an expression from the command line is about; all without one.
pub fn parse(pattern: Option<&str>) -> Result<Filter, Usage> {
    let Some(pattern) = pattern else {
        return Ok(Filter::all());
    };
    // The error draws a picture below the expression; its last line says what is wrong.
    Filter::new(pattern).map_err(|error| {
        let error = error.to_string();
        let why = error.lines().last().unwrap_or_default();
        let why = why.strip_prefix("error: ").unwrap_or(why);
        Usage(format!(
            "--filter '{pattern}': not a regular expression: {why}"
        ))
    })
}
