//! `allocsample run`: a program under the agent, and what came of it.

mod aftermath;
mod child;
mod descendants;
pub mod embedded;
mod fold;
mod go;
mod go_children;
pub mod library;
pub mod memory;
pub mod output;
mod preload;
mod subject;
mod target;
mod traced;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use allocsample_goheap::Runtime;
use allocsample_sampling::parse_max_size_rotated;
use child::{CannotRun, Child, Tracing};
use go::{GoHeaps, Plan};
use go_children::GoChildren;
use library::Library;
use memory::MemoryWatch;
use output::Template;
use target::Way;

use crate::args::{Run, name_of};
use crate::exit::{self, Ending, Usage};
use crate::go_heap;

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
    let plan = Plan::of(options, &template);
    let is_go = match way {
        Ok(Way::Outside) => true,
        Ok(_) => plan.is_some() && Runtime::is_go(&program).unwrap_or(false),
        Err(_) => false,
    };
    // The Go heap gets the name that was asked for.
    let of_agent = match is_go {
        true => template.with_part("malloc"),
        false => template.clone(),
    };
    let own_pid = (!is_go).then(std::process::id);
    let changes = match &way {
        Ok(Way::Preload) => environment(options, &of_agent, own_pid, Some(preload)),
        Ok(Way::Inside) => environment(options, &of_agent, own_pid, None),
        Ok(Way::Outside) => {
            remark_on_options_of_agent(options);
            Vec::new()
        }
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
    let before = [template.snapshot(), of_agent.snapshot()];
    let is_traced = is_go && plan.is_some();
    let child = match Child::start(&program, &options.command, &changes, is_traced)? {
        Ok(child) => child,
        Err(error) => return Ok(cannot_run(&error)),
    };
    let pid = child.pid();
    let watch = MemoryWatch::start(pid);
    let followed = follow(options, child, plan);
    let readings = watch.end();
    let (ending, mut profiles) = followed?;
    for (template, before) in [&template, &of_agent].into_iter().zip(&before) {
        let mut of_agents = template.changed_since(before);
        of_agents.retain(|path| !profiles.contains(path));
        profiles.extend(of_agents);
    }
    // Why a Go program could not be read was said.
    let was_read = way == Ok(Way::Outside) && is_traced;
    if !profiles.is_empty() || way.is_ok() && !was_read {
        aftermath::run(options, &template, pid, ending, &profiles, &readings);
    }
    Ok(ending)
}

/// Reads the program and those that it starts, as far as they are Go programs, until the program ends. Returns how that was,
/// and their profiles.
fn follow(
    options: &Run,
    child: Child,
    plan: Option<Plan>,
) -> anyhow::Result<(Ending, Vec<PathBuf>)> {
    let pid = child.pid();
    let is_read = child.tracing() != Tracing::No;
    let of_children = plan.clone().filter(|_| follows_children(options));
    let children = of_children.map(|plan| GoChildren::start(plan, pid, is_read));
    let mut heaps = plan.filter(|_| is_read).map(|plan| GoHeaps::new(plan, pid));
    if let (Tracing::Refused(errno), Some(heaps)) = (child.tracing(), &mut heaps) {
        let why = errno.desc();
        let what = "a Go program that cannot be traced";
        remark(
            options,
            format_args!("{what} ({why}): its first and last allocations are missing"),
        );
        heaps.begin();
    }
    let ending = child.wait(&mut |stop| {
        if let Some(heaps) = &mut heaps {
            heaps.on(stop);
        }
    });
    let found = children.map(GoChildren::end).unwrap_or_default();
    let ending = ending?;
    if !options.quiet {
        found.remark();
    }
    let mut profiles = heaps.map_or_else(Vec::new, |heaps| heaps.end(ending));
    profiles.extend(found.profiles);
    Ok((ending, profiles))
}

/// Whether child processes get profiles, as for the agent.
fn follows_children(options: &Run) -> bool {
    let given = options.children.map(name_of);
    let given = given.or_else(|| std::env::var("ALLOCSAMPLE_CHILDREN").ok());
    given.is_none_or(|given| !given.eq_ignore_ascii_case("ignore"))
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

/// A Go program samples itself.
fn remark_on_options_of_agent(options: &Run) {
    const FOR_ALL: [&str; 2] = ["ALLOCSAMPLE_START", "ALLOCSAMPLE_CHILDREN"];
    let names = settings(options).map(|(name, _)| name);
    let names = names.filter(|name| !FOR_ALL.contains(name));
    let unused: Vec<String> = go_heap::options_of_the_agent(names).collect();
    if !unused.is_empty() {
        remark(
            options,
            format_args!(
                "no effect on a Go program, whose runtime takes the samples: {}",
                unused.join(", ")
            ),
        );
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
    own_pid: Option<u32>,
    preload: Option<OsString>,
) -> Vec<(OsString, OsString)> {
    let preload = preload.map(|preload| ("LD_PRELOAD", preload));
    // Absolute, so that a process that starts in another directory writes to the same place.
    let output = ("ALLOCSAMPLE_OUTPUT", template.path().into());
    // Our own child gets a profile even if nothing of it was sampled.
    let own_pid = own_pid.map(|pid| ("ALLOCSAMPLE_RUN_PID", pid.to_string().into()));
    preload
        .into_iter()
        .chain([output])
        .chain(own_pid)
        .chain(settings(options).map(|(name, value)| (name, value.into())))
        .map(|(name, value)| (name.into(), value))
        .collect()
}

/// The settings that were asked for, as variables.
fn settings(options: &Run) -> impl Iterator<Item = (&'static str, String)> {
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
    options.capture.settings().chain(given)
}
