//! Selections of samples from the command line: expressions and times.

use allocsample_profile::Profile;
use allocsample_report::{Filter, Peak, Regex, Selection};

use crate::args::Narrow;
use crate::exit::Usage;

/// Samples that options select, in any profile.
pub struct Selected {
    selection: Selection,
    is_at_peak: bool,
}

impl Selected {
    /// By these options.
    pub fn by(arguments: &Narrow) -> Result<Self, Usage> {
        Ok(Self {
            selection: selection(arguments)?,
            is_at_peak: arguments.at_peak,
        })
    }

    /// Leaves nothing else in a profile.
    pub fn narrow(&self, profile: &mut Profile) {
        let mut selection = self.selection.clone();
        if self.is_at_peak {
            selection.at_peak = Some(Peak::of(profile).moments);
        }
        selection.narrow(profile);
    }
}

/// The samples that match all options but `--at-peak`, which is another moment in every profile.
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
        filter: regex("--filter", &arguments.filter)?.map_or_else(Filter::all, Filter::from),
        only_type: regex("--only-type", &arguments.only_type)?,
        ignore_type: regex("--ignore-type", &arguments.ignore_type)?,
        only_caller: regex("--only-caller", &arguments.only_caller)?,
        only_thread: regex("--only-thread", &arguments.only_thread)?,
        only_heap: regex("--heap", &arguments.heap)?,
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
