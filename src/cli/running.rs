//! Processes that are being recorded.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The profile of a pid, or at a path.
///
/// The ring is a mapped file: a process shows which one is its own. Where the process has another root, as in a
/// container, the path is looked up there.
pub fn profile_of(what: &str) -> anyhow::Result<PathBuf> {
    let Ok(pid) = what.parse::<u32>() else {
        return Ok(PathBuf::from(what));
    };
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))
        .with_context(|| format!("process {pid}"))?;
    let Some(path) = in_maps(pid, &maps) else {
        bail!(
            "process {pid} writes no profile: it was not started under the agent, or took no sample yet"
        );
    };
    Ok(path)
}

/// Every process that writes a profile and that we may look into, with the profile.
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

fn in_maps(pid: u32, maps: &str) -> Option<PathBuf> {
    let path = maps.lines().find_map(|line| {
        let at = line.find('/')?;
        line[at..].strip_suffix(".allocsample.ring")
    })?;
    let in_its_root = format!("/proc/{pid}/root{path}.allocsample");
    Some(match Path::new(&in_its_root).exists() {
        true => PathBuf::from(in_its_root),
        false => PathBuf::from(format!("{path}.allocsample")),
    })
}

/// The ring beside a profile.
pub fn ring_of(profile: &Path) -> PathBuf {
    let mut ring = profile.as_os_str().to_owned();
    ring.push(".ring");
    PathBuf::from(ring)
}
