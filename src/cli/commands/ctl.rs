//! `allocsample ctl`: controls the agent in a running process, and shows its state.

mod collect;
mod request;
mod waiting;

use std::fs;
use std::path::{Path, PathBuf};

use allocsample_profile::request as ring;
use allocsample_profile::{Profile, parts_before, snapshot};
use allocsample_report::{Totals, cost, units};
use allocsample_sampling::{Interval, IntervalSetting};
use anyhow::{Context, bail};

use self::request::{Asked, request};
use crate::args::{Ctl, CtlAction, OnOff};
use crate::exit::{Ending, Usage};
use crate::running::Found;
use crate::{growing, output_file, running};

/// Carries out the action.
pub fn run(arguments: &Ctl) -> anyhow::Result<Ending> {
    let found = running::find(&arguments.what);
    if let (Err(_), CtlAction::Status, Some(left)) =
        (&found, &arguments.action, interrupted(&arguments.what))
    {
        let pid = &arguments.what;
        output_file::write_stdout(|out| Ok(writeln!(out, "pid {pid}: no profile\n{left}")?))?;
        return Ok(Ending::SUCCESS);
    }
    let path = match found? {
        Found::Profile(path) => path,
        Found::NoSampleYet(pid) => return before_first_sample(pid, &arguments.action),
    };
    match &arguments.action {
        CtlAction::Status => status(&arguments.what, &path),
        CtlAction::Gc => collect::run(&path),
        CtlAction::Snapshot { output, gc } => {
            if *gc {
                collect::before_snapshot(&path)?;
            }
            take_snapshot(&path, output.as_deref())
        }
        CtlAction::Stop => stop(&path),
        CtlAction::Start { interval } => start(&path, interval.as_deref()),
        CtlAction::Interval { interval } => ask(&path, parse(interval)?),
        CtlAction::Flush => order(&path, ring::FLUSH, "flushed"),
        CtlAction::Rotate => rotate(&path),
        CtlAction::Reset => order(&path, ring::RESET, "totals reset"),
        CtlAction::Thread { tid, state } => select_thread(&arguments.what, &path, *tid, *state),
        CtlAction::Filter { threads, sizes } => filter(&path, threads.as_deref(), sizes.as_deref()),
    }
}

/// Carries out the action on a process that has no ring yet.
fn before_first_sample(pid: u32, action: &CtlAction) -> anyhow::Result<Ending> {
    let at = |interval_bytes| Asked {
        value: interval_bytes,
        ..Asked::plain(ring::SET_INTERVAL)
    };
    let (asked, told) = match action {
        CtlAction::Status => {
            output_file::write_stdout(|out| {
                Ok(writeln!(out, "pid {pid}: no sample yet, and no profile")?)
            })?;
            return Ok(Ending::SUCCESS);
        }
        CtlAction::Gc => {
            bail!("process {pid} has taken no sample yet, so a collection would show nothing")
        }
        CtlAction::Snapshot { .. } => {
            bail!("process {pid} has taken no sample yet: there is nothing to copy")
        }
        CtlAction::Stop => (at(0), in_words(0)),
        CtlAction::Start { interval: None } => (Asked::plain(ring::START), "started".to_owned()),
        CtlAction::Start {
            interval: Some(interval),
        }
        | CtlAction::Interval { interval } => {
            let bytes = parse(interval)?;
            (at(bytes), in_words(bytes))
        }
        CtlAction::Flush => (Asked::plain(ring::FLUSH), "flushed".to_owned()),
        CtlAction::Rotate => (Asked::plain(ring::ROTATE), "rotated".to_owned()),
        CtlAction::Reset => (Asked::plain(ring::RESET), "totals reset".to_owned()),
        CtlAction::Thread { tid, state } => thread_request(pid, *tid, *state)?,
        CtlAction::Filter { threads, sizes } => {
            filter_request(threads.as_deref(), sizes.as_deref())?
        }
    };
    waiting::request(pid, &asked, &told)
}

fn order(path: &Path, what: u64, told: &str) -> anyhow::Result<Ending> {
    request(path, &Asked::plain(what), || Ok(told.to_owned()))
}

fn select_thread(what: &str, path: &Path, tid: u32, state: OnOff) -> anyhow::Result<Ending> {
    let pid = match what.parse() {
        Ok(pid) => pid,
        Err(_) => running::process_of(path)
            .with_context(|| format!("{}: its process was not found", path.display()))?,
    };
    let (asked, told) = thread_request(pid, tid, state)?;
    request(path, &asked, || Ok(told))
}

/// The request, and the line that is printed once it is done.
fn thread_request(pid: u32, tid: u32, state: OnOff) -> anyhow::Result<(Asked, String)> {
    let Some(inner) = running::number_inside(pid, tid) else {
        bail!("process {pid}: it has no thread {tid}");
    };
    let asked = Asked {
        value: u64::from(inner) << 1 | u64::from(state == OnOff::On),
        ..Asked::plain(ring::SELECT_THREAD)
    };
    let told = match state {
        OnOff::On => format!("thread {tid} is sampled"),
        OnOff::Off => format!("thread {tid} is not sampled"),
    };
    Ok((asked, told))
}

fn filter(path: &Path, threads: Option<&str>, sizes: Option<&str>) -> anyhow::Result<Ending> {
    let (asked, told) = filter_request(threads, sizes)?;
    request(path, &asked, || Ok(told))
}

fn filter_request(threads: Option<&str>, sizes: Option<&str>) -> anyhow::Result<(Asked, String)> {
    let name = name_words(threads.unwrap_or("*"))?;
    let (least, most) = sizes.map_or(Ok((0, u64::MAX)), size_range)?;
    let asked = Asked {
        what: ring::FILTER,
        value: least,
        more: [most, name[0], name[1], 0],
    };
    let all = threads.is_none() && sizes.is_none();
    let told = if all {
        "everything is sampled"
    } else {
        "filtered"
    };
    Ok((asked, told.to_owned()))
}

/// The prefix of names to sample, as bytes; an end mark follows a complete name.
fn name_words(pattern: &str) -> anyhow::Result<[u64; 2]> {
    /// The kernel's limit, without the NUL.
    const MOST: usize = 15;
    const END: u8 = 1;
    let (name, end) = match pattern.strip_suffix('*') {
        Some(beginning) => (beginning, None),
        None => (pattern, Some(END)),
    };
    let is_plain = !name.contains('*') && name.bytes().all(|byte| byte > END);
    if !is_plain || name.len() > MOST || (name.is_empty() && end.is_some()) {
        return Err(Usage(format!(
            "'{pattern}': expected a thread's name, or the beginning of one followed by *, of at most {MOST} bytes"
        ))
        .into());
    }
    let mut bytes = [0; 16];
    for (place, byte) in bytes.iter_mut().zip(name.bytes().chain(end)) {
        *place = byte;
    }
    let (low, high) = bytes.split_at(8);
    Ok([low, high].map(|half| u64::from_ne_bytes(half.try_into().unwrap_or([0; 8]))))
}

fn size_range(text: &str) -> anyhow::Result<(u64, u64)> {
    let refused = || {
        Usage(format!(
            "'{text}': expected FROM..TO in bytes, such as 1K..64K"
        ))
    };
    let (from, to) = text.split_once("..").ok_or_else(refused)?;
    let bytes = |text: &str, default| match text {
        "" | "0" => Ok(default),
        text => parse(text).map_err(|_| refused()),
    };
    let (least, most) = (bytes(from, 0)?, bytes(to, u64::MAX)?);
    match least <= most {
        true => Ok((least, most)),
        false => Err(refused().into()),
    }
}

/// Stops sampling.
pub fn stop(path: &Path) -> anyhow::Result<Ending> {
    ask(path, 0)
}

/// Resumes sampling, at the earlier interval unless another one is given.
pub fn start(path: &Path, interval: Option<&str>) -> anyhow::Result<Ending> {
    let interval_bytes = match interval {
        Some(text) => parse(text)?,
        None => interval_before(path)?,
    };
    ask(path, interval_bytes)
}

/// Whether no samples are being taken.
pub fn is_stopped(path: &Path) -> anyhow::Result<bool> {
    let last = profile(path)?.interval_history.pop();
    Ok(last.is_some_and(|info| info.interval_bytes == 0))
}

fn parse(text: &str) -> anyhow::Result<u64> {
    match Interval::parse(text.as_bytes()) {
        Ok(IntervalSetting::Every(interval)) => Ok(interval.bytes()),
        _ => Err(Usage(format!(
            "'{text}': expected a number of bytes from 1 to 2^63-1"
        ))
        .into()),
    }
}

/// The last interval at which samples were taken.
fn interval_before(path: &Path) -> anyhow::Result<u64> {
    let profile = profile(path)?;
    let taken = profile
        .interval_history
        .iter()
        .map(|info| info.interval_bytes);
    taken
        .rev()
        .find(|&bytes| bytes > 0)
        .context("no interval is known: use ctl PID interval BYTES")
}

/// Without names, which nobody reads here.
fn profile(path: &Path) -> anyhow::Result<Profile> {
    Profile::open(path).with_context(|| path.display().to_string())
}

/// Requests another interval, or none.
fn ask(path: &Path, interval_bytes: u64) -> anyhow::Result<Ending> {
    let asked = Asked {
        value: interval_bytes,
        ..Asked::plain(ring::SET_INTERVAL)
    };
    request(path, &asked, || Ok(in_words(interval_bytes)))
}

/// Continues the profile in another file.
fn rotate(path: &Path) -> anyhow::Result<Ending> {
    let before = parts_before(path).unwrap_or_default();
    request(path, &Asked::plain(ring::ROTATE), || {
        let after = parts_before(path).with_context(|| path.display().to_string())?;
        match after.into_iter().rfind(|part| !before.contains(part)) {
            Some(part) => Ok(part.display().to_string()),
            None => bail!("{}: cannot start a new file", path.display()),
        }
    })
}

fn in_words(interval_bytes: u64) -> String {
    match interval_bytes {
        0 => "stopped".to_owned(),
        bytes => format!("one sample per {}", units::bytes(bytes as f64)),
    }
}

/// A line about what an interrupted attach or detach has left in a process; `None` if there is nothing, or if `what`
/// is not a pid.
fn interrupted(what: &str) -> Option<String> {
    let left = allocsample_attach::leftover(what.parse().ok()?)?;
    Some(format!(
        "left over  {left}; the next attach or detach removes it"
    ))
}

/// How long a profile has been recorded, also if the program has allocated nothing lately.
fn recorded_s(profile: &Profile) -> f64 {
    let written_s = Totals::duration_s(profile);
    match growing::is_running(profile) {
        true => {
            let passed_ns = running::now_ns().saturating_sub(profile.process.start_ns);
            written_s.max(passed_ns as f64 / 1e9)
        }
        false => written_s,
    }
}

fn status(what: &str, path: &Path) -> anyhow::Result<Ending> {
    let left = interrupted(what);
    let profile = profile(path)?;
    let ring = running::ring_of(path);
    let size = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
    let (lost, lost_bytes) = profile.lost.samples();
    let totals = Totals::of(&profile);
    output_file::write_stdout(|out| {
        writeln!(
            out,
            "{}  pid {}, {} recorded{}",
            allocsample_report::text::command_line(&profile),
            profile.process.pid,
            units::duration(recorded_s(&profile)),
            if ring.exists() { "" } else { ", ended" },
        )?;
        writeln!(out, "profile    {}", path.display())?;
        writeln!(
            out,
            "samples    {}, {} live, {lost} lost ({})",
            profile.samples.len(),
            profile
                .samples
                .iter()
                .filter(|sample| sample.is_live())
                .count(),
            units::bytes(lost_bytes as f64),
        )?;
        writeln!(
            out,
            "live       {} of {} allocated",
            units::bytes_with_error(&totals.live),
            // Estimates, because a running process has not reported all of its exact counts yet.
            units::bytes_with_error(&totals.allocated),
        )?;
        writeln!(
            out,
            "on disk    {}, ring {}",
            units::bytes(size(path) as f64),
            units::bytes(size(&ring) as f64),
        )?;
        for line in cost::lines(&profile) {
            writeln!(out, "{line}")?;
        }
        if let [only] = &profile.interval_history[..] {
            writeln!(out, "interval   {}", in_words(only.interval_bytes))?;
        }
        if let Some(left) = left {
            writeln!(out, "{left}")?;
        }
        Ok(())
    })?;
    Ok(Ending::SUCCESS)
}

fn take_snapshot(path: &Path, output: Option<&Path>) -> anyhow::Result<Ending> {
    let output = output.map_or_else(|| free_name(path), |output| Ok(output.to_owned()))?;
    let finished = output_file::profile_aside(&output, |copy| {
        snapshot(path, copy).with_context(|| path.display().to_string())
    })?;
    output_file::write_stdout(|out| {
        Ok(writeln!(
            out,
            "{}: {} samples",
            output.display(),
            finished.profile.samples.len()
        )?)
    })?;
    Ok(Ending::SUCCESS)
}

/// The default path of a snapshot: `app.snapshot.1.allocsample` in the working directory for `app.allocsample`, or
/// the next free number.
fn free_name(path: &Path) -> anyhow::Result<PathBuf> {
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    (1..10_000)
        .map(|number| PathBuf::from(format!("{}.snapshot.{number}.allocsample", stem.display())))
        .find(|name| !name.exists())
        .context("too many snapshots here: name one with -o")
}
