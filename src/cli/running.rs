//! Processes that are being recorded.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use allocsample_profile::Profile;
use allocsample_residency::Source;
use anyhow::{Context, bail};
use rustix::time::ClockId;

use crate::{go_heap, growing};

/// What a process with the agent writes.
pub enum Found {
    /// This profile.
    Profile(PathBuf),
    /// Nothing yet: the process with this number has not taken a sample.
    NoSampleYet(u32),
}

/// The profile of a pid or at a path.
pub fn profile_of(what: &str) -> anyhow::Result<PathBuf> {
    match find(what)? {
        Found::Profile(path) => Ok(path),
        Found::NoSampleYet(pid) => bail!(
            "process {pid} writes no profile yet: it has taken no sample; try again when it has allocated more"
        ),
    }
}

/// The profile of a pid, if it has one, or at a path.
///
/// The ring is a mapped file, so the list of mappings shows which one belongs to the process. If the process has
/// another root, as in a container, the path is looked up there.
pub fn find(what: &str) -> anyhow::Result<Found> {
    let Ok(pid) = what.parse::<u32>() else {
        return Ok(Found::Profile(PathBuf::from(what)));
    };
    let maps = match std::fs::read_to_string(format!("/proc/{pid}/maps")) {
        Ok(maps) => maps,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("process {pid}: there is no such process")
        }
        Err(error) => return Err(error).with_context(|| format!("process {pid}")),
    };
    match (in_maps(pid, &maps), removed(&maps)) {
        (Some(path), _) => Ok(Found::Profile(path)),
        (None, Some(path)) => bail!(
            "process {pid}: the ring of its profile {path} was removed, so commands cannot reach it; recording continues, and the profile is complete when the process ends"
        ),
        (None, None) if waits_for_sample(pid, &maps) => Ok(Found::NoSampleYet(pid)),
        (None, None) if has_library(&maps) => bail!(
            "process {pid} writes no profile: it was detached, or was forked from a process with the agent and has taken no sample; `allocsample attach {pid}` starts one"
        ),
        (None, None) if go_heap::is_go(pid) => bail!(
            "process {pid}: a Go program, in which no agent could answer; if `run` or `attach` reads it, `allocsample report` reads that profile while it grows"
        ),
        (None, None) => bail!(
            "process {pid} writes no profile: it was not started under the agent, or was detached; `allocsample attach {pid}` starts one"
        ),
    }
}

/// Whether a process without a ring was started with the agent, and not with `ALLOCSAMPLE_INTERVAL=off`. A process
/// that was attached to has a ring until it is detached from.
fn waits_for_sample(pid: u32, maps: &str) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let has = |is_so: fn(&[u8]) -> bool| environment.split(|byte| *byte == 0).any(is_so);
    let is_preloaded = has(|variable| {
        let value = variable.strip_prefix(b"LD_PRELOAD=").unwrap_or_default();
        value.windows(11).any(|part| part == b"allocsample")
    });
    has_library(maps) && is_preloaded && !has(|variable| variable == b"ALLOCSAMPLE_INTERVAL=off")
}

fn has_library(maps: &str) -> bool {
    maps.lines()
        .any(|line| line.ends_with("/liballocsample.so"))
}

/// Whether a process has been stopped, by SIGSTOP or by a debugger.
pub fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map_or("", |(_, state)| state);
    state.starts_with(['T', 't'])
}

/// The profile of a process whose ring has lost its name.
fn removed(maps: &str) -> Option<String> {
    let path = maps.lines().find_map(|line| {
        let at = line.find('/')?;
        line[at..].strip_suffix(".allocsample.ring (deleted)")
    })?;
    let path = format!("{path}.allocsample");
    // A complete profile does not belong to a process that still runs. One may remain after a failed exec.
    let profile = Profile::open(Path::new(&path));
    let is_complete = profile.is_ok_and(|profile| profile.exit.is_some());
    (!is_complete).then_some(path)
}

/// All processes that write a profile and that we may look into, with their profiles.
pub fn all() -> Vec<(u32, PathBuf)> {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found: Vec<(u32, PathBuf)> = pids
        .filter_map(|pid: u32| {
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
            Some((pid, in_maps(pid, &maps)?))
        })
        .collect();
    found.sort();
    found
}

/// CPU time that a process has used so far, in nanoseconds, if all its threads sleep now.
pub fn at_rest(pid: u32) -> Option<u64> {
    let mut used_ns = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let task = task.ok()?.path();
        let stat = std::fs::read_to_string(task.join("stat")).ok()?;
        // After the name, which may contain anything.
        let (_, state) = stat.rsplit_once(") ")?;
        if !state.starts_with(['S', 'T', 't']) {
            return None;
        }
        let spent = std::fs::read_to_string(task.join("schedstat")).ok()?;
        used_ns += spent.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(used_ns)
}

/// The process that writes a profile, if we may look into it.
pub fn process_of(profile: &Path) -> Option<u32> {
    let wanted = file_at(profile)?;
    let mut processes = all().into_iter();
    let (pid, _) = processes.find(|(_, path)| file_at(path) == Some(wanted))?;
    Some(pid)
}

/// Adds the kernel's figures about the process's memory, if the process runs and its profile has no list of mappings.
/// The agent has no thread that reads the list until the ring fills.
pub fn add_memory(profile: &mut Profile, path: &Path) {
    let has_mappings = (profile.memory.iter()).any(|map| !map.mappings.is_empty());
    if has_mappings || !growing::is_running(profile) {
        return;
    }
    let page_bytes = rustix::param::page_size() as u64;
    let map = process_of(path).and_then(|pid| Source::of(pid, page_bytes).map(now_ns()));
    profile.memory.extend(map);
}

/// The time on the clock of profiles.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Device and inode: identify a file whatever its name.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    let status = std::fs::metadata(path).ok()?;
    Some((status.dev(), status.ino()))
}

/// The number of a thread in its own pid namespace, as in a container; `None` if the process has no such thread.
pub fn number_inside(pid: u32, tid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    // Before Linux 4.1 there is no such line.
    let Some(numbers) = numbers else {
        return Some(tid);
    };
    numbers.split_whitespace().last()?.parse().ok()
}

fn in_maps(pid: u32, maps: &str) -> Option<PathBuf> {
    let mut rings = maps.lines().filter_map(|line| {
        let at = line.find('/')?;
        line[at..].strip_suffix(".ring")
    });
    // After a chroot the kernel may show the path from the root of the process's mounts.
    let root = std::fs::read_link(format!("/proc/{pid}/root")).unwrap_or_default();
    rings.find_map(|path| {
        let inside = Path::new(path).strip_prefix(&root).ok();
        let inside = inside.and_then(Path::to_str).unwrap_or_default();
        let candidates = [path.trim_start_matches('/'), inside];
        let mut seen_from_here = candidates
            .map(|path| format!("/proc/{pid}/root/{path}"))
            .into_iter();
        let found = seen_from_here.find(|path| Path::new(path).is_file());
        match found {
            // Other programs have files of that name, too.
            Some(found) if !is_ring(&found) => None,
            // Its own name is shorter, and is there when the process is gone.
            Some(found) if file_at(Path::new(path)) == file_at(Path::new(&found)) => {
                Some(PathBuf::from(path))
            }
            Some(found) => Some(PathBuf::from(found)),
            None => path.ends_with(".allocsample").then(|| PathBuf::from(path)),
        }
    })
}

/// Whether the file beside this one is a ring of ours, by its first bytes.
fn is_ring(profile: &str) -> bool {
    let mut start = [0; 8];
    let ring = std::fs::File::open(ring_of(Path::new(profile)));
    ring.is_ok_and(|mut ring| ring.read_exact(&mut start).is_ok()) && start == *b"ALLOCRNG"
}

/// The ring beside a profile.
pub fn ring_of(profile: &Path) -> PathBuf {
    let mut ring = profile.as_os_str().to_owned();
    ring.push(".ring");
    PathBuf::from(ring)
}

/// Whether a thread of the process has this file open. Our thread in it has a descriptor table of its own.
pub fn has_open(pid: i32, path: &Path) -> bool {
    let Ok(file) = fs::metadata(path) else {
        return false;
    };
    let is_it = |link: &Path| {
        // Opens only files of this name: other files of the program may not answer.
        let is_named = fs::read_link(link).is_ok_and(|to| to.file_name() == path.file_name());
        is_named
            && fs::metadata(link)
                .is_ok_and(|found| (found.dev(), found.ino()) == (file.dev(), file.ino()))
    };
    let tasks = PathBuf::from(format!("/proc/{pid}/task"));
    entries(&tasks).any(|task| entries(&task.join("fd")).any(|link| is_it(&link)))
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}
