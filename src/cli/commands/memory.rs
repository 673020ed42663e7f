//! `allocsample memory`: where all resident memory of a process is.

use std::io::{self, Write};
use std::path::Path;

use allocsample_heapwalk::{Contents, Heap, Process};
use allocsample_profile::{MemoryMap, Profile};
use allocsample_report::ledger::{self, Options, Walked};
use allocsample_report::{Ledger, Width, units};
use allocsample_residency::{Source, Steady};
use anyhow::bail;
use serde_json::json;

use crate::args::{Format, Memory};
use crate::exit::{self, Ending, Usage};
use crate::jvm::Category;
use crate::running::Found;
use crate::{jvm, memory, output_file, profiles, running, terminal};

/// Prints the ledger.
pub fn run(arguments: &Memory) -> anyhow::Result<Ending> {
    let what = &arguments.what;
    // A runtime that maps memory for its own heap is the owner, whatever the language does.
    profiles::keep_all_frames();
    if arguments.jvm && arguments.format == Format::Csv {
        return Err(
            Usage("--jvm has figures of its own: take --format text or json".to_owned()).into(),
        );
    }
    // A process is read before its profile, which then knows all that happened until the reading.
    let mut categories = None;
    let (mut profile, now) = match what.parse::<u32>() {
        Ok(pid) => {
            let now = Now::read(pid)?;
            categories = arguments.jvm.then(|| jvm::categories(pid)).transpose()?;
            (of_process(pid)?, Some(now))
        }
        Err(_) if arguments.jvm => {
            return Err(Usage("--jvm asks a running process: give its pid".to_owned()).into());
        }
        Err(_) => {
            let path = Path::new(what);
            let now = running::process_of(path).and_then(|pid| Now::read(pid).ok());
            let profile = profiles::open(path)?;
            let now = now.filter(|_| profile.is_running);
            (profile, now)
        }
    };
    let is_now = now.is_some();
    let walked = now.and_then(|now| {
        profile.memory.push(now.map);
        now.walked
    });
    let Some((peak, last)) = Ledger::peak_and_last(&profile, walked) else {
        bail!(
            "{what}: the profile has no list of the process's mappings, so its memory cannot be told apart; such a list is read under `allocsample run`, or by the agent's thread in processes of 8 MiB and more"
        );
    };
    match arguments.format {
        Format::Json => {
            let mut answer = ledger::to_json(&profile, &peak, &last);
            if let (Some(categories), Some(answer)) = (&categories, answer.as_object_mut()) {
                answer.insert("jvm_native_memory".to_owned(), json!(categories));
            }
            output_file::write_json(&answer)?;
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
                ledger::write(&profile, &peak, &last, &options, out)?;
                Ok(write_categories(
                    categories.as_deref().unwrap_or_default(),
                    out,
                )?)
            })?;
        }
    }
    Ok(Ending::SUCCESS)
}

/// Committed memory is what the JVM may touch, so that it is more than what is resident.
fn write_categories(categories: &[Category], out: &mut dyn Write) -> io::Result<()> {
    if categories.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n   committed    reserved   by the JVM's own count (Native Memory Tracking), now"
    )?;
    for category in categories {
        let of = |bytes: u64| units::bytes(bytes as f64);
        let (committed, reserved) = (of(category.committed_bytes), of(category.reserved_bytes));
        writeln!(out, "{committed:>12}{reserved:>12}   {}", category.name)?;
    }
    Ok(())
}

fn about(profile: &Profile) -> String {
    let process = &profile.process;
    format!(
        "process    {}  pid {}",
        allocsample_report::text::command_line(profile),
        process.pid
    )
}

/// The profile that a process writes, or an empty one.
fn of_process(pid: u32) -> anyhow::Result<Profile> {
    match running::find(&pid.to_string()) {
        Ok(Found::Profile(path)) => profiles::open(&path),
        Ok(Found::NoSampleYet(_)) | Err(_) => without_profile(pid),
    }
}

/// A process as it is now.
struct Now {
    map: MemoryMap,
    walked: Option<Walked>,
}

impl Now {
    /// It goes on meanwhile: if it changes too much, a line says by how much.
    fn read(pid: u32) -> anyhow::Result<Self> {
        let page_bytes = rustix::param::page_size() as u64;
        let steady = Steady::read(&Source::of(pid, page_bytes), running::now_ns);
        let Some(Steady { map, difference }) = steady else {
            bail!(match Path::new(&format!("/proc/{pid}")).exists() {
                true => format!(
                    "process {pid}: its memory cannot be read: it has ended, or it belongs to another user"
                ),
                false => format!("process {pid}: there is no such process"),
            });
        };
        const WORTH_A_WORD: f64 = 0.01;
        if difference > WORTH_A_WORD {
            exit::remark(format_args!(
                "process {pid} changes while it is read: figures of single mappings may be off by {:.0} %",
                100.0 * difference
            ));
        }
        let time_ns = running::now_ns();
        // Large heaps have many chunks, whatever the size of the profile.
        let read = memory::without_bound(|| read(pid, page_bytes));
        let walked = read.map(|(heap, contents)| Walked {
            time_ns,
            heap,
            contents,
        });
        Ok(Self { map, walked })
    }
}

/// What malloc holds in the process, if that is glibc's, and what is known by its content. `None`: it cannot be read.
fn read(pid: u32, page_bytes: u64) -> Option<(Option<Heap>, Contents)> {
    let refused = |error: std::io::Error| {
        exit::remark(format_args!(
            "process {pid}: its heap cannot be read ({error}), so it is not known why malloc keeps free memory, nor whose memory from before an attach is; reading takes the rights of a debugger"
        ));
    };
    let process = Process::open(pid, page_bytes).map_err(refused).ok()?;
    let heap = process.heap().map_err(refused).ok()?;
    let contents = process.contents(heap.as_ref()).map_err(refused).ok()?;
    let is_cut_short = heap.as_ref().is_some_and(Heap::is_cut_short) || contents.is_cut_short;
    if process.is_late() || is_cut_short {
        exit::remark(format_args!(
            "process {pid}: its heap was read in part only, because it takes too long"
        ));
    }
    Some((heap, contents))
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
