//! Where compilers leave the names of their code, and which of these files can be believed.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::generations::CodeChange;
use super::jitdump;
use crate::finish::start_of_process_s;

/// The kernel stamps files by a clock that ticks, which is behind CLOCK_REALTIME by 10 ms at most.
pub(super) const FILE_CLOCK_TICK_NS: u64 = 10_000_000;

/// When the process `pid`, whose profile was begun at `start_wall_ns` (CLOCK_REALTIME), began itself, as far as that is
/// known: it may have run for long before its profile, which the kernel tells while it lives.
pub(super) fn began_ns(pid: u32, start_wall_ns: u64) -> u64 {
    start_of_process_s(pid).map_or(start_wall_ns, |start| {
        start_wall_ns.min(start.saturating_mul(1_000_000_000))
    })
}

/// A file in a directory where anybody can write, and where nobody tidies up: only one of our own user or of root
/// is read, and only if it was written to since `began_ns`. Otherwise it is of an earlier process with this pid.
pub(super) fn read_trusted(path: &Path, began_ns: u64) -> Option<Vec<u8>> {
    let own = fs::metadata("/proc/self").map(|own| own.uid()).ok();
    let file = fs::symlink_metadata(path).ok()?;
    let is_trusted = file.is_file()
        && (file.uid() == 0 || Some(file.uid()) == own)
        && modified_ns(&file).saturating_add(FILE_CLOCK_TICK_NS) >= began_ns;
    is_trusted.then(|| fs::read(path).ok())?
}

pub(super) fn modified_ns(file: &Metadata) -> u64 {
    let ns = i128::from(file.mtime()) * 1_000_000_000 + i128::from(file.mtime_nsec());
    u64::try_from(ns).unwrap_or(0)
}

/// What all `jit-PID.dump` of the process tell: several compilers may be at work in it.
pub(super) fn jitdumps(pid: u32, start_wall_ns: u64) -> Vec<CodeChange> {
    let began = began_ns(pid, start_wall_ns);
    let name = format!("jit-{pid}.dump");
    directories_of_dumps()
        .into_iter()
        .filter_map(|directory| read_trusted(&directory.join(&name), began))
        .filter_map(|bytes| jitdump::parse(&bytes, pid))
        .flatten()
        .collect()
}

/// Where they are put: in the working directory (V8), in /tmp (CPython), in a directory for each process under
/// `.debug/jit` of $JITDUMPDIR or of the home (LLVM, perf's agent for the JVM). Each once.
fn directories_of_dumps() -> Vec<PathBuf> {
    let mut directories = vec![PathBuf::from("/tmp")];
    directories.extend(std::env::current_dir());
    for variable in ["JITDUMPDIR", "HOME"] {
        let Some(base) = std::env::var_os(variable).filter(|base| !base.is_empty()) else {
            continue;
        };
        let found = fs::read_dir(Path::new(&base).join(".debug/jit"));
        let found = found.into_iter().flatten().flatten();
        directories.extend(found.map(|entry| entry.path()));
    }
    directories.sort();
    directories.dedup();
    directories
}
