//! `allocsample symbolize`: stores names in a profile.

use allocsample_profile::{ModuleId, Profile};
use anyhow::bail;

use crate::args::Symbolize;
use crate::exit::{self, Ending};
use crate::profiles;

/// Writes the names into the file.
pub fn run(arguments: &Symbolize) -> anyhow::Result<Ending> {
    let path = arguments.file.display();
    let finished = profiles::complete(&arguments.file, true)?;
    if finished.is_running {
        bail!("{path}: the process is still running; symbolize it when it has ended");
    }
    if !finished.is_written {
        let stopped = finished.profile.recovery.stopped;
        let stopped = stopped
            .map(|stopped| stopped.to_string())
            .unwrap_or_default();
        bail!("{path}: damaged, nothing was written: {stopped}");
    }
    let (named, all) = count_named(&finished.profile);
    exit::remark(format_args!(
        "{path}: {named} of {all} code addresses have names"
    ));
    Ok(Ending::SUCCESS)
}

/// Number of places in the code that have a function's name, and number of all places.
fn count_named(profile: &Profile) -> (usize, usize) {
    let places = profile.stacks.places().iter();
    let places = places.filter(|place| place.module != ModuleId::NO_ROOT);
    let is_named = |place: &&_| profile.frames(**place).iter().any(|f| f.is_symbolized);
    (places.clone().filter(is_named).count(), places.count())
}
