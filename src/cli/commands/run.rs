//! `allocsample run`: a program under the agent, and what came of it.

mod aftermath;
mod child;
pub mod embedded;
mod fold;
pub mod library;
pub mod memory;
pub mod output;
mod preload;
mod target;

use std::ffi::{OsStr, OsString};

use allocsample_sampling::parse_max_size_rotated;
use child::{CannotRun, Child};
use library::Library;
use memory::MemoryWatch;
use output::Template;
use target::Way;

use crate::args::{Run, name_of};
use crate::exit::{self, Ending, Usage};

/// Runs the program and ends as it does.
pub fn run(options: &Run) -> anyhow::Result<Ending> {
    check_size(options)?;
    let template = Template::new(options.output.as_deref())?;
    template.check()?;
    let library = Library::find()?;

    let command = options.command.first().map_or(OsStr::new(""), |name| name);
    let path = std::env::var_os("PATH");
    let program = match child::find(command, path.as_deref()) {
        Ok(program) => program,
        Err(error) => return Ok(cannot_run(&error)),
    };
    let users_preload = std::env::var_os("LD_PRELOAD");
    let preload = library::preload(library.path(), users_preload.as_deref());
    let way = target::check(&program, &preload);
    let changes = match &way {
        Ok(Way::Preload) => environment(options, &template, Some(preload)),
        Ok(Way::Inside) => environment(options, &template, None),
        Err(unreachable) => {
            remark(options, unreachable);
            Vec::new()
        }
    };
    if way.is_ok()
        && let Some(taken) = template.taken()
    {
        remark(options, taken);
    }
    let before = template.snapshot();
    let child = match Child::start(&program, &options.command, &changes)? {
        Ok(child) => child,
        Err(error) => return Ok(cannot_run(&error)),
    };
    let pid = child.pid();
    let watch = MemoryWatch::start(pid);
    let ending = child.wait();
    let readings = watch.end();
    let ending = ending?;
    if way.is_ok() {
        let profiles = template.changed_since(&before);
        aftermath::run(options, &template, pid, ending, &profiles, &readings);
    }
    Ok(ending)
}

/// What the agent would refuse when the program has begun, and leave it without a profile.
fn check_size(options: &Run) -> Result<(), Usage> {
    let is_rotated =
        options.rotate_every.is_some() || options.rotate_size.is_some() || options.window.is_some();
    match &options.max_size {
        Some(size) if is_rotated => parse_max_size_rotated(size.as_bytes())
            .map(drop)
            .map_err(|expected| Usage(format!("--max-size {size}: {expected}"))),
        _ => Ok(()),
    }
}

fn remark(options: &Run, what: impl std::fmt::Display) {
    if !options.quiet {
        exit::remark(what);
    }
}

fn cannot_run(error: &CannotRun) -> Ending {
    exit::complain(&error.what);
    Ending::Status(error.status)
}

/// The variables that tell the loader and the agent what to do. What was not asked for stays as the user has it.
fn environment(
    options: &Run,
    template: &Template,
    preload: Option<OsString>,
) -> Vec<(OsString, OsString)> {
    let preload = preload.map(|preload| ("LD_PRELOAD", preload));
    let places = [
        // Absolute, so that a process that starts in another directory writes to the same place.
        ("ALLOCSAMPLE_OUTPUT", template.path().into()),
        // Our own child gets a profile even if nothing of it was sampled.
        ("ALLOCSAMPLE_RUN_PID", std::process::id().to_string().into()),
    ];
    let given = [
        ("ALLOCSAMPLE_START", options.start.map(name_of)),
        ("ALLOCSAMPLE_RUNTIME", options.runtime.map(name_of)),
        ("ALLOCSAMPLE_INLINING", options.inlining.map(name_of)),
        ("ALLOCSAMPLE_CHILDREN", options.children.map(name_of)),
        ("ALLOCSAMPLE_MAX_OVERHEAD", options.max_overhead.clone()),
        (
            "ALLOCSAMPLE_MAX_SAMPLES_PER_SECOND",
            options.max_samples_per_second.map(|most| most.to_string()),
        ),
        (
            "ALLOCSAMPLE_MAX_LIVE",
            options.max_live.map(|most| most.to_string()),
        ),
        ("ALLOCSAMPLE_MAX_SIZE", options.max_size.clone()),
        ("ALLOCSAMPLE_ROTATE_EVERY", options.rotate_every.clone()),
        ("ALLOCSAMPLE_ROTATE_SIZE", options.rotate_size.clone()),
        (
            "ALLOCSAMPLE_KEEP",
            options.keep.map(|keep| keep.to_string()),
        ),
        ("ALLOCSAMPLE_WINDOW", options.window.clone()),
        (
            "ALLOCSAMPLE_SIGNAL",
            (options.snapshot_on).map(|signal| name_of(signal).to_uppercase()),
        ),
        (
            "ALLOCSAMPLE_TIME_HZ",
            options.time_hz.map(|hz| hz.to_string()),
        ),
        ("ALLOCSAMPLE_PAGES", options.pages.clone()),
    ];
    let given = given
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    let settings = options.capture.settings().chain(given);
    preload
        .into_iter()
        .chain(places)
        .chain(settings.map(|(name, value)| (name, value.into())))
        .map(|(name, value)| (name.into(), value))
        .collect()
}
