//! What there is to say when the program has ended: where its profile is, what is in it, what to type next.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use allocsample_profile::{Finished, MemoryMap, Profile, Seen};
use allocsample_report::time::CpuTime;
use allocsample_report::{Coverage, Totals, runtimes, text, units};
use anyhow::bail;

use super::fold::{Folded, fold};
use super::memory::Readings;
use super::output::Template;
use super::subject::{headline, subject};
use crate::args::{Run, name_of};
use crate::commands::{convert, view};
use crate::exit::{self, Ending, name_of_signal};
use crate::output_format::OutputFormat;
use crate::profiles;

/// Profiles of child processes that are named one by one.
const NAMED_CHILDREN: usize = 10;

/// A profile of this run.
pub struct Found {
    pub path: PathBuf,
    pub profile: Profile,
    pub is_running: bool,
}

impl Found {
    /// Whether it is what C code allocated in a process whose own heap is in `of`.
    pub fn is_malloc_of(&self, of: &Found) -> bool {
        let is_read_from_outside = |found: &Found| found.profile.sampled_by().is_some();
        self.profile.process.pid == of.profile.process.pid
            && is_read_from_outside(of)
            && !is_read_from_outside(self)
    }

    /// What the process allocated: counted, or by the samples where a machine samples by itself and counts nothing.
    pub fn allocated_bytes(&self) -> u64 {
        let counted = self.profile.exact_bytes();
        let mut heaps = self.profile.vm.heaps.keys();
        match heaps.all(|heap| self.profile.is_counted(*heap)) {
            true => counted,
            false => counted.max(Totals::of(&self.profile).allocated.value() as u64),
        }
    }

    /// The anonymous memory that it had at most, where nothing that it allocated was sampled: it has an allocator of its own.
    pub fn unsampled_bytes(&self) -> u64 {
        let anonymous = self
            .profile
            .memory
            .iter()
            .map(|it| it.totals.anonymous_bytes);
        match self.allocated_bytes() {
            0 => anonymous.max().unwrap_or(0),
            _ => 0,
        }
    }

    /// By which it is compared with other processes of the run.
    pub fn work_bytes(&self) -> u64 {
        self.allocated_bytes().max(self.unsampled_bytes())
    }
}

/// Completes the profiles, converts them if asked to, and says what came of it. What goes wrong here is said and no more:
/// the exit status belongs to the program.
pub fn run(
    options: &Run,
    template: &Template,
    pid: u32,
    ending: Ending,
    paths: &[PathBuf],
    readings: &Readings,
) {
    let seen = Seen {
        memory: Some(readings),
        killed: match ending {
            Ending::Signal(signal) => Some((pid, name_of_signal(signal))),
            Ending::Status(_) => None,
        },
    };
    let mut found = Vec::new();
    for path in paths {
        match complete(options, path, &seen) {
            Ok(profile) => found.extend(profile),
            Err(error) => exit::complain(&exit::in_one_line(&error)),
        }
    }
    let mut main = subject(&found, pid);
    let has_own = (found.iter()).any(|it| it.profile.process.pid == pid);
    if let Some(of) = main {
        main = Some(drop_empty_beside(&mut found, of));
    }
    let mut folded = Folded::default();
    // Who names the pid wants a file for every process.
    if let Some(before) = main
        && !template.names_every_process()
    {
        let (after, moved) = fold(&mut found, before, template.only_name().as_deref());
        (main, folded) = (Some(after), moved);
    }
    for Found { path, profile, .. } in &found {
        for &format in &options.convert {
            convert_beside(options, path, profile, format);
        }
    }
    if options.open
        && let Some(main) = main
    {
        let Found { path, profile, .. } = &found[main];
        convert_beside(options, path, profile, OutputFormat::Html);
        view::open(convert::beside(path, OutputFormat::Html));
    }
    if options.quiet {
        return;
    }
    let Some(main) = main else {
        if paths.is_empty() {
            let elsewhere = memory_elsewhere(readings.get(&pid));
            let advice = match elsewhere.is_empty() {
                true => " (a smaller --interval samples earlier)",
                // It would sample no other allocator.
                false => "",
            };
            exit::remark(why_there_is_no_profile(options, template, ending, advice));
            for line in elsewhere {
                exit::remark(format_args!("  {line}"));
            }
        }
        return;
    };
    for (index, other) in found.iter().enumerate().filter(|(index, _)| *index != main) {
        if index >= NAMED_CHILDREN {
            let more = found.len() - index;
            exit::remark(format_args!("and {more} more profiles of its children"));
            break;
        }
        let running = if other.is_running {
            ", still running"
        } else {
            ""
        };
        let contents = if other.is_malloc_of(&found[main]) {
            ", what C code allocated by malloc"
        } else {
            ""
        };
        exit::remark(format_args!(
            "{} (pid {}{contents}{running})",
            shown(&other.path),
            other.profile.process.pid
        ));
    }
    if folded.count > 0 {
        exit::remark(format_args!(
            "{} allocated {} in all; {} in {}",
            match folded.count {
                1 => "1 other process".to_owned(),
                count => format!("{count} other processes"),
            },
            units::bytes(folded.allocated_bytes as f64),
            match folded.count {
                1 => "its profile is",
                _ => "their profiles are",
            },
            shown(&folded.directory)
        ));
    }
    describe(&found[main], pid, has_own);
}

/// [`complete_unguarded`], whatever the profile and the program's debug information may do to us.
fn complete(options: &Run, path: &Path, seen: &Seen<'_>) -> anyhow::Result<Option<Found>> {
    // Nothing of what it touches is used after a panic.
    let completed = catch_unwind(AssertUnwindSafe(|| complete_unguarded(options, path, seen)));
    completed.unwrap_or_else(|_| {
        bail!(
            "{}: cannot complete it; `allocsample report` may still read it",
            path.display()
        )
    })
}

/// Reads and completes one profile. Another kind of file that the template matches is none of ours.
fn complete_unguarded(
    options: &Run,
    path: &Path,
    seen: &Seen<'_>,
) -> anyhow::Result<Option<Found>> {
    let symbolize = !options.no_symbolize;
    match profiles::complete_with(path, symbolize, seen) {
        Ok(Finished {
            mut profile,
            is_running,
            ..
        }) => {
            profile.is_running = is_running;
            profiles::fold(&mut profile);
            Ok(Some(Found {
                path: path.to_owned(),
                profile,
                is_running,
            }))
        }
        Err(error) if profiles::is_foreign(&error) => Ok(None),
        Err(error) if profiles::is_write_error(&error) => {
            exit::complain(&exit::in_one_line(&error));
            // What was recorded can be read all the same.
            Ok(Some(Found {
                path: path.to_owned(),
                profile: profiles::open(path)?,
                is_running: false,
            }))
        }
        Err(error) => Err(error),
    }
}

fn convert_beside(options: &Run, path: &Path, profile: &Profile, format: OutputFormat) {
    let output = convert::beside(path, format);
    match convert::write(profile, format, &convert::options(profile, None), &output) {
        Ok(()) if options.quiet => {}
        Ok(()) => exit::remark(format_args!("wrote {}", shown(&output))),
        Err(error) => exit::complain(&exit::in_one_line(&error)),
    }
}

/// Removes profiles without samples of what C code allocated in the process of the one at `main`: most Go programs have C code
/// and allocate nothing there. Returns its index in what is left.
fn drop_empty_beside(found: &mut Vec<Found>, main: usize) -> usize {
    let is_dropped = |it: &Found| {
        let is_empty = it.profile.samples.is_empty() && !it.is_running;
        is_empty && it.is_malloc_of(&found[main]) && std::fs::remove_file(&it.path).is_ok()
    };
    let dropped: Vec<bool> = found.iter().map(is_dropped).collect();
    let mut index = 0;
    found.retain(|_| {
        index += 1;
        !dropped[index - 1]
    });
    main - dropped[..main].iter().filter(|&&it| it).count()
}

fn describe(found: &Found, pid: u32, has_own: bool) {
    let path = shown(&found.path);
    exit::remark(headline(found, pid, has_own, &path));
    let totals = Totals::of(&found.profile);
    let facts = text::summary_lines(&found.profile, &totals);
    let time = CpuTime::without_functions(&found.profile).map(|time| time.line());
    for line in facts
        .into_iter()
        .chain(time)
        .chain(text::remarks(&found.profile, &totals))
    {
        exit::remark(format_args!("  {}", line.replace('\n', " ")));
    }
    let is_running = if found.is_running {
        " (the process is still running)"
    } else {
        ""
    };
    exit::remark(format_args!("next: allocsample report {path}{is_running}"));
}

/// The likeliest reason, from what was asked for and how the program ended.
fn why_there_is_no_profile(
    options: &Run,
    template: &Template,
    ending: Ending,
    advice: &str,
) -> String {
    let setting = |option: Option<String>, variable: &str| {
        option
            .or_else(|| std::env::var(variable).ok())
            .unwrap_or_default()
            .to_lowercase()
    };
    if setting(options.capture.interval.clone(), "ALLOCSAMPLE_INTERVAL") == "off" {
        return "no profile: the interval is off; give --interval 512K to record".into();
    }
    if setting(options.start.map(name_of), "ALLOCSAMPLE_START") == "off" {
        return "no profile: sampling was off from the start and was never turned on".into();
    }
    let ended = match ending {
        Ending::Signal(signal) => format!("{} ended the program", name_of_signal(signal)),
        Ending::Status(status) => format!("the program ended (status {status})"),
    };
    format!(
        "no profile: {ended} before its first sample of malloc{advice}, or it could not be written in {}",
        template
            .path()
            .parent()
            .unwrap_or(template.path())
            .display()
    )
}

/// The program's memory that no profile could show, and the runtimes that have it, in lines. None: it had little.
fn memory_elsewhere(readings: Option<&Vec<MemoryMap>>) -> Vec<String> {
    let mut profile = Profile::default();
    profile.memory = readings.cloned().unwrap_or_default();
    profile.symbolize();
    let mut coverage = Coverage::of(&profile);
    // There is no file that `memory` could read.
    if let Some(coverage) = &mut coverage {
        coverage.largest_row = None;
    }
    if !coverage.as_ref().is_some_and(Coverage::is_low) {
        return Vec::new();
    }
    (coverage.iter())
        .flat_map(|coverage| [Some(coverage.line()), coverage.warning()])
        .flatten()
        .chain(runtimes::lines(&profile))
        .collect()
}

/// A path to copy: short if it is below the working directory, quoted if a shell would take it apart.
fn shown(path: &Path) -> String {
    let directory = std::env::current_dir().unwrap_or_default();
    let path = path.strip_prefix(directory).unwrap_or(path);
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+@%,=".contains(c);
    if text.chars().all(is_plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_can_be_copied_into_a_shell() {
        assert_eq!(shown(Path::new("/a/b.1.allocsample")), "/a/b.1.allocsample");
        assert_eq!(shown(Path::new("/a/b c's")), "'/a/b c'\\''s'");
        let here = std::env::current_dir().unwrap();
        assert_eq!(shown(&here.join("x.1")), "x.1");
    }
}
