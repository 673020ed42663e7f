//! Selections of samples from the command line: expressions and times.

use allocsample_report::{Filter, Regex, Selection};

use crate::args::Narrow;
use crate::exit::Usage;

/// The samples that match `--filter`; all samples without it.
pub fn parse(pattern: Option<&str>) -> Result<Filter, Usage> {
    let Some(pattern) = pattern else {
        return Ok(Filter::all());
    };
    Filter::new(pattern).map_err(|error| refuse("--filter", pattern, &error.to_string()))
}

/// The samples that match all options of a report.
pub fn selection(arguments: &Narrow) -> Result<Selection, Usage> {
    let regex = |option: &str, pattern: &Option<String>| -> Result<Option<Regex>, Usage> {
        let Some(pattern) = pattern else {
            return Ok(None);
        };
        Regex::new(pattern)
            .map(Some)
            .map_err(|error| refuse(option, pattern, &error.to_string()))
    };
    if let (Some(since), Some(until)) = (arguments.since, arguments.until)
        && since > until
    {
        return Err(Usage(
            "--since is after --until: nothing is between them".into(),
        ));
    }
    Ok(Selection {
        filter: parse(arguments.filter.as_deref())?,
        only_type: regex("--only-type", &arguments.only_type)?,
        ignore_type: regex("--ignore-type", &arguments.ignore_type)?,
        only_caller: regex("--only-caller", &arguments.only_caller)?,
        only_thread: regex("--only-thread", &arguments.only_thread)?,
        since_ns: arguments.since.map(|since| since.0),
        until_ns: arguments.until.map(|until| until.0),
        at_peak: None,
    })
}

/// The error draws a picture below the expression; its last line names the problem.
fn refuse(option: &str, pattern: &str, error: &str) -> Usage {
    let why = error.lines().last().unwrap_or_default();
    let why = why.strip_prefix("error: ").unwrap_or(why);
    Usage(format!(
        "{option} '{pattern}': not a regular expression: {why}"
    ))
}
