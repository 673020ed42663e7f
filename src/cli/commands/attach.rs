//! `allocsample attach` and `allocsample detach`: loads the agent into a running process, and ends its work there.

mod go;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use allocsample_attach::{AttachError, Reply, Request, Target};
use anyhow::{Context, bail};

use super::ctl;
use super::run::library::Library;
use crate::args::{Attach, Children, Detach, Runtime, name_of};
use crate::exit::{self, Ending, Usage};
use crate::{go_heap, output_file, processes, profiles, running};

/// Results of `allocsample_attach` and `allocsample_detach`; src/preload/attach.rs has the same numbers.
mod answer {
    pub const DONE: i32 = 0;
    pub const ALREADY: i32 = 1;
    pub const REFUSED: i32 = 2;
    pub const IDLE: i32 = 3;
    pub const PRELOADED: i32 = 4;
}

const DEFAULT_NAME: &str = "allocsample.%n.%p.allocsample";

/// Begins a profile of the process, or resumes the one that it has.
pub fn attach(options: &Attach) -> anyhow::Result<Ending> {
    // An agent that is there already samples what C code allocates, and was asked for.
    if !has_agent(options.pid)
        && let Some(runtime) = go::find(options)?
    {
        return go::record(options, runtime);
    }
    let end = options.seconds.map(|_| until_told()).transpose()?;
    let attached = load(options)?;
    let (Some(seconds), Some(end)) = (options.seconds, end) else {
        return Ok(attached);
    };
    pause(Instant::now() + Duration::from_secs(seconds), &end);
    detach(&Detach {
        pid: options.pid,
        no_symbolize: false,
        despite_seccomp: options.despite_seccomp,
    })
}

fn has_agent(pid: i32) -> bool {
    let has = Target::find(pid).and_then(|target| target.has_agent());
    has.unwrap_or(false)
}

/// A flag that is set by the signals that end a command. A second signal ends the command at once.
fn until_told() -> anyhow::Result<Arc<AtomicBool>> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&end))?;
        signal_hook::flag::register(signal, Arc::clone(&end))?;
    }
    Ok(end)
}

/// Waits until this moment, or until the command is told to end.
fn pause(until: Instant, end: &AtomicBool) {
    const STEP: Duration = Duration::from_millis(50);
    while !end.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(STEP.min(left));
    }
}

fn load(options: &Attach) -> anyhow::Result<Ending> {
    let target = Target::find(options.pid)?;
    if target.has_agent()? {
        // A killed detach may still be at work in the process. Its profile is about to end.
        allocsample_attach::finish_earlier(&target, options.despite_seccomp)?;
        if let Ok(profile) = running::profile_of(&options.pid.to_string()) {
            return start_again(options, &profile);
        }
    }
    let library = Library::find()?;
    let reply = allocsample_attach::call(
        &target,
        &Request {
            library: Some(library.path()),
            function: "allocsample_attach",
            settings: &settings(options, &target)?,
            despite_seccomp: options.despite_seccomp,
        },
    )?;
    let pid = options.pid;
    match reply.code {
        answer::DONE => {
            let profile = target.path_from_here(&reply.text);
            let said = say(format_args!("process {pid}: {}", profile.display()))?;
            if is_the_processs_own(&profile) {
                exit::remark(format_args!(
                    "that path ends with the process, which has a file system of its own there; \
                     `allocsample ctl {pid} snapshot -o FILE` copies the profile"
                ));
            }
            // A server's first process often does nothing but start those that work.
            if let Some(remark) = processes::remark_on_workers(pid) {
                exit::remark(remark);
            }
            Ok(said)
        }
        answer::ALREADY if reply.text.is_empty() => bail!(
            "process {pid}: it was started under the agent, but has not allocated enough for a sample yet"
        ),
        answer::ALREADY => bail!("process {pid}: already attached, {}", reply.text),
        answer::REFUSED => bail!("process {pid}: {}{}", reply.text, remedy(pid, &reply.text)),
        _ => Err(other_version(pid, &reply)),
    }
}

/// What helps against a refusal of the agent's. Most begin with the directory of the profile.
fn remedy(pid: i32, refusal: &str) -> String {
    match refusal {
        it if it.contains("spare file descriptor") => {
            format!("; raise its limit (prlimit --pid {pid} --nofile=SOFT:HARD) and try again")
        }
        it if it.starts_with('/') => {
            "; name a file with -o that the process itself can create".to_owned()
        }
        _ => String::new(),
    }
}

/// Whether this path leads through the process, because another file system is there for us.
fn is_the_processs_own(profile: &Path) -> bool {
    profile.starts_with("/proc")
}

/// The process has a profile already. Sampling may be stopped.
fn start_again(options: &Attach, profile: &Path) -> anyhow::Result<Ending> {
    let pid = options.pid;
    if !ctl::is_stopped(profile)? {
        bail!(
            "process {pid}: already attached, {}; `allocsample ctl {pid} interval` changes the interval",
            profile.display()
        );
    }
    ctl::start(profile, options.capture.interval.as_deref())?;
    say(format_args!("process {pid}: {}", profile.display()))
}

/// Completes the profile. The process continues without the agent.
pub fn detach(options: &Detach) -> anyhow::Result<Ending> {
    let pid = options.pid;
    if !has_agent(pid) && go_heap::is_go(pid.unsigned_abs()) {
        bail!(
            "process {pid}: a Go program is read from outside: end the `allocsample attach` that reads it, with Ctrl-C or SIGTERM"
        );
    }
    let target = Target::find(pid)?;
    let reply = allocsample_attach::call(
        &target,
        &Request {
            library: None,
            function: "allocsample_detach",
            settings: &[],
            despite_seccomp: options.despite_seccomp,
        },
    )?;
    match reply.code {
        answer::DONE => {
            let profile = target.path_from_here(&reply.text);
            wait_until_written(pid, &profile)?;
            let described = describe(options, &profile)?;
            if is_the_processs_own(&profile) {
                exit::remark(
                    "that path ends with the process, which has a file system of its own there: copy the profile before",
                );
            }
            Ok(described)
        }
        answer::IDLE => bail!("process {pid}: not attached"),
        answer::PRELOADED => {
            let profile = running::profile_of(&pid.to_string())?;
            exit::remark(format_args!(
                "process {pid} was started under the agent: sampling is stopped, and the agent stays loaded"
            ));
            ctl::stop(&profile)
        }
        answer::REFUSED => bail!("process {pid}: {}", reply.text),
        _ => Err(other_version(pid, &reply)),
    }
}

/// The agent answers after two seconds even if its thread, which may get no CPU time, is still writing. Two would
/// then write to the file.
fn wait_until_written(pid: i32, profile: &Path) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let since = Instant::now();
    while running::has_open(pid, profile) {
        if since.elapsed() > PATIENCE {
            bail!(
                "{}: process {pid} is detached, but its thread is still writing the profile after {} s; read it when `lsof` no longer lists the process",
                profile.display(),
                PATIENCE.as_secs()
            );
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn describe(options: &Detach, profile: &Path) -> anyhow::Result<Ending> {
    // If it fails, the profile and its ring stay as they are, and `report` reads both.
    let pid = options.pid;
    let finished = profiles::complete(profile, !options.no_symbolize).with_context(|| {
        format!("process {pid} is detached, but its profile could not be completed")
    })?;
    let samples = finished.profile.samples.len();
    say(format_args!("{}: {samples} samples", profile.display()))
}

fn say(what: std::fmt::Arguments<'_>) -> anyhow::Result<Ending> {
    output_file::write_stdout(|out| Ok(writeln!(out, "{what}")?))?;
    Ok(Ending::SUCCESS)
}

fn other_version(pid: i32, reply: &Reply) -> anyhow::Error {
    anyhow::anyhow!(
        "process {pid}: its agent has another version, and answered {}",
        reply.code
    )
}

/// The agent's settings in the form of environment variables. Our own environment is not the process's: only typed
/// options count.
fn settings(options: &Attach, target: &Target) -> anyhow::Result<Vec<String>> {
    let output = output_template(options.output.as_deref(), target)?;
    let output = output
        .to_str()
        .with_context(|| format!("{}: not UTF-8", output.display()))?;
    let children = options.children.unwrap_or(Children::Ignore);
    let given = [
        ("ALLOCSAMPLE_OUTPUT", output.to_owned()),
        ("ALLOCSAMPLE_CHILDREN", name_of(children)),
        (
            "ALLOCSAMPLE_RUNTIME",
            name_of(options.runtime.unwrap_or(Runtime::Auto)),
        ),
    ];
    Ok(given
        .into_iter()
        .chain((options.inlining).map(|it| ("ALLOCSAMPLE_INLINING", name_of(it))))
        .chain(options.capture.settings())
        .map(|(name, value)| format!("{name}={value}"))
        .collect())
}

/// An absolute path in the process's file system: relative to our directory if the process sees it, otherwise to its
/// own.
fn output_template(asked_for: Option<&Path>, target: &Target) -> anyhow::Result<PathBuf> {
    let path = asked_for.unwrap_or(Path::new(DEFAULT_NAME));
    if path.as_os_str().is_empty() {
        return Err(Usage("--output needs the name of a file".into()).into());
    }
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    let directory = match std::env::current_dir() {
        Ok(ours) if target.sees(&ours) => ours,
        _ => match target.working_directory() {
            Some(directory) => directory,
            None if target.has_ended() => return Err(AttachError::Ended(target.pid()).into()),
            None => bail!("its working directory is not accessible: name a file with -o"),
        },
    };
    // A percent sign in a directory's name is not a placeholder.
    let mut escaped = Vec::new();
    for &byte in directory.as_os_str().as_bytes() {
        escaped.extend((byte == b'%').then_some(byte));
        escaped.push(byte);
    }
    let directory = PathBuf::from(std::ffi::OsStr::from_bytes(&escaped).to_owned());
    Ok(directory.join(path))
}
