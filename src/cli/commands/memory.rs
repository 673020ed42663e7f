//! `allocsample memory`: where all resident memory of a process is.

use std::path::Path;

use allocsample_profile::Profile;
use allocsample_report::ledger::{self, Options};
use allocsample_report::{Ledger, Width};
use allocsample_residency::{Source, Steady};
use anyhow::{Context, bail};

use crate::args::{Format, Memory};
use crate::exit::{self, Ending};
use crate::running::Found;
use crate::{output_file, profiles, running, terminal};

/// Prints the ledger.
pub fn run(arguments: &Memory) -> anyhow::Result<Ending> {
    let what = &arguments.what;
    // A runtime that maps memory for its own heap is the owner, whatever the language does.
    profiles::keep_all_frames();
    let (profile, is_now) = match what.parse::<u32>() {
        Ok(pid) => (of_process(pid)?, true),
        Err(_) => {
            let path = Path::new(what);
            let mut profile = profiles::open(path)?;
            let pid = running::process_of(path).filter(|_| profile.is_running);
            if let Some(pid) = pid {
                read_now(&mut profile, pid)?;
            }
            (profile, pid.is_some())
        }
    };
    let Some((peak, last)) = Ledger::peak_and_last(&profile) else {
        bail!(
            "{what}: the profile has no list of the process's mappings, so its memory cannot be told apart; such a list is read under `allocsample run`, or by the agent's thread in processes of 8 MiB and more"
        );
    };
    match arguments.format {
        Format::Json => {
            output_file::write_json(&ledger::to_json(&profile, &peak, &last))?;
        }
        Format::Csv => {
            output_file::write_stdout(|out| Ok(ledger::write_csv(&peak, &last, out)?))?;
        }
        Format::Text => {
            let mut options = Options::new(Width::new(terminal::width()));
            options.sites = arguments.sites;
            options.frames = arguments.frames;
            options.is_now = is_now;
            output_file::write_stdout(|out| {
                writeln!(out, "{}", about(&profile))?;
                Ok(ledger::write(&profile, &peak, &last, &options, out)?)
            })?;
        }
    }
    Ok(Ending::SUCCESS)
}

fn about(profile: &Profile) -> String {
    let process = &profile.process;
    format!(
        "process    {}  pid {}",
        process.command_line.join(" "),
        process.pid
    )
}

/// The profile that a process writes, or an empty one, with a reading of its memory now.
fn of_process(pid: u32) -> anyhow::Result<Profile> {
    let mut profile = match running::find(&pid.to_string()) {
        Ok(Found::Profile(path)) => profiles::open(&path)?,
        Ok(Found::NoSampleYet(_)) | Err(_) => without_profile(pid)?,
    };
    read_now(&mut profile, pid)?;
    Ok(profile)
}

fn without_profile(pid: u32) -> anyhow::Result<Profile> {
    let words =
        std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                anyhow::anyhow!("process {pid}: there is no such process")
            }
            _ => anyhow::Error::from(error).context(format!("process {pid}")),
        })?;
    exit::remark(format_args!(
        "process {pid} writes no profile: calls and live blocks are not known; `allocsample attach {pid}` starts one"
    ));
    let mut profile = Profile::default();
    profile.process.pid = pid;
    profile.process.command_line = (words.split(|byte| *byte == 0))
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    profile.process.start_ns = running::now_ns();
    Ok(profile)
}

/// Adds a reading of the process as it is now. It goes on meanwhile: if it changes too much, the reading says by how much.
fn read_now(profile: &mut Profile, pid: u32) -> anyhow::Result<()> {
    let page_bytes = rustix::param::page_size() as u64;
    let steady = Steady::read(&Source::of(pid, page_bytes), running::now_ns);
    let Steady { map, difference } = steady.with_context(|| {
        format!(
            "process {pid}: its memory cannot be read: it has ended, or it belongs to another user"
        )
    })?;
    const WORTH_A_WORD: f64 = 0.01;
    if difference > WORTH_A_WORD {
        exit::remark(format_args!(
            "process {pid} changes while it is read: figures of single mappings may be off by {:.0} %",
            100.0 * difference
        ));
    }
    profile.memory.push(map);
    Ok(())
}
