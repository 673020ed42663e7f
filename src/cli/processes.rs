//! Finds processes by number or by name.

use std::cmp::Reverse;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use allocsample_report::units;

/// Candidates that an error lists.
const LISTED: usize = 6;
/// Characters of a candidate's command line.
const SHOWN: usize = 60;

/// The number of the process that the user means: `4711`, or the name of a program that one process runs.
pub fn pid(text: &str) -> Result<i32, String> {
    if text.parse::<i64>().is_ok() {
        let number = text.parse().ok().filter(|pid| *pid > 0);
        return number.ok_or_else(|| "a process has a number from 1 on".to_owned());
    }
    let mut found = named(text);
    match found.as_slice() {
        [] => Err("no process runs a program of that name; give a pid".to_owned()),
        [(pid, _)] => Ok(*pid),
        _ => {
            let count = found.len();
            found.truncate(LISTED);
            let list = found.iter().map(|(pid, command)| match memory_of(*pid) {
                Some(memory) => format!("{pid} ({command}; {memory})"),
                None => format!("{pid} ({command})"),
            });
            let list = list.collect::<Vec<_>>().join(", ");
            let more = match count.checked_sub(LISTED) {
                None | Some(0) => String::new(),
                Some(more) => format!(", and {more} more"),
            };
            Err(format!(
                "{count} processes run it; give one of these pids: {list}{more}"
            ))
        }
    }
}

/// The children of a process that run the program that it runs, as the workers of a server do: each with its number and its anonymous
/// memory, largest first.
fn workers_of(pid: i32) -> Vec<(i32, u64)> {
    let program = |pid: i32| fs::metadata(format!("/proc/{pid}/exe")).ok();
    let Some(parent) = program(pid) else {
        return Vec::new();
    };
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let children = threads.flat_map(|thread| {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let pids = children.split_whitespace().map(str::parse);
        pids.filter_map(Result::ok).collect::<Vec<i32>>()
    });
    let mut workers: Vec<(i32, u64)> = children
        .filter_map(|child| {
            let own = program(child)?;
            let is_a_worker = (own.dev(), own.ino()) == (parent.dev(), parent.ino());
            is_a_worker.then_some((child, anonymous_bytes(child)?))
        })
        .collect();
    workers.sort_unstable_by_key(|&(pid, bytes)| (Reverse(bytes), pid));
    workers
}

/// What a person sees of a process's memory.
fn memory_of(pid: i32) -> Option<String> {
    let bytes = anonymous_bytes(pid)?;
    Some(format!("{} anonymous", units::bytes(bytes as f64)))
}

/// Anonymous memory of a process, in RAM; none of a process that has ended.
fn anonymous_bytes(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

/// That a process has workers, in words; `None` if it has none.
pub fn remark_on_workers(pid: i32) -> Option<String> {
    let workers = workers_of(pid);
    let listed = workers.iter().take(LISTED);
    let listed: Vec<String> = listed
        .map(|(pid, bytes)| format!("{pid} ({} anonymous)", units::bytes(*bytes as f64)))
        .collect();
    let list = listed.join(", ");
    Some(match workers.len() {
        0 => return None,
        1 => format!(
            "a child runs the same program, and is not in this profile: {list}; if it grows, attach to it"
        ),
        count => {
            let more = match count.saturating_sub(LISTED) {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            format!(
                "{count} children run the same program, and are not in this profile: {list}{more}; if one of them grows, attach to it"
            )
        }
    })
}

/// Processes that run a program of this name, with their command lines, by number. Our own is none of them.
fn named(name: &str) -> Vec<(i32, String)> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let own = std::process::id().cast_signed();
    let found = pids.filter(|pid| *pid != own).filter_map(|pid| {
        let process = Path::new("/proc").join(pid.to_string());
        let executable = fs::read_link(process.join("exe")).unwrap_or_default();
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).into_owned();
        let first = command.split('\0').next().unwrap_or_default();
        let title = fs::read_to_string(process.join("comm")).unwrap_or_default();
        let is_meant = is_called(name, title.trim_end())
            || is_called(name, file_name(Path::new(first)))
            || is_called(name, file_name(&executable));
        let command = command
            .trim_end_matches('\0')
            .replace(|it: char| it.is_control(), " ");
        let shown = match command.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{}...", &command[..end]),
            None => command,
        };
        is_meant.then_some((pid, shown))
    });
    let mut found: Vec<(i32, String)> = found.collect();
    found.sort_unstable();
    found
}

/// Whether this name stands for a program: `python` also means `python3.11`.
fn is_called(name: &str, program: &str) -> bool {
    let is_version = |rest: &str| rest.chars().all(|it| it.is_ascii_digit() || it == '.');
    program.strip_prefix(name).is_some_and(is_version)
}

fn file_name(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_every_version_of_a_program() {
        assert!(is_called("python", "python3.11"));
        assert!(is_called("python3", "python3"));
        assert!(!is_called("python", "python-config"));
        assert!(!is_called("python3.1", "python3"));
        assert!(!is_called("python", ""));
    }

    #[test]
    fn a_number_is_taken_as_it_is_and_a_foreign_name_is_refused() {
        assert_eq!(pid("4711"), Ok(4711));
        assert!(pid("0").is_err() && pid("-7").is_err() && pid("99999999999").is_err());
        assert!(
            pid("no-program-has-this-name")
                .unwrap_err()
                .contains("give a pid")
        );
    }
}
