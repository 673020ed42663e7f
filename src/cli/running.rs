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
    let ring = maps.lines().find_map(|line| {
        let at = line.find('/')?;
        line[at..].strip_suffix(".allocsample.ring")
    });
    let Some(path) = ring else {
        bail!(
            "process {pid} writes no profile: it was not started under the agent, or took no sample yet"
        );
    };
    let in_its_root = format!("/proc/{pid}/root{path}.allocsample");
    Ok(if Path::new(&in_its_root).exists() {
        PathBuf::from(in_its_root)
    } else {
        PathBuf::from(format!("{path}.allocsample"))
    })
}

/// The ring beside a profile.
pub fn ring_of(profile: &Path) -> PathBuf {
    let mut ring = profile.as_os_str().to_owned();
    ring.push(".ring");
    PathBuf::from(ring)
}
