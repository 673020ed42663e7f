//! Directories in which tests run programs: removed when a test is done with them, kept within bounds if it fails.
//!
//! All lie in `target/tmp/runs` and are called `PID.N` after the test process. A test that fails leaves its directories with
//! a file [`FAILED`] in them. The next test process removes what no failed test needs: directories of processes that were
//! killed, and old failures.

use std::fs::{self, File};
use std::io::Write;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::scratch;

/// Marks a directory of a failed test. Lists the files that were too long to be kept.
pub const FAILED: &str = "failed";

/// Failures that are kept.
pub const MOST_FAILURES: usize = 20;

/// Longest file of a failed test that is kept: the profile and the ring of nearly every test are shorter.
pub const MOST_KEPT_BYTES: u64 = 64 << 20;

/// Longest file that a test program may write: it can hang for minutes, and record every allocation meanwhile.
const MOST_WRITTEN_BYTES: u64 = 4 << 30;

/// A directory with `work` and `profiles` in it, both open to every user.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// A new one.
    pub fn new() -> Directory {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let runs = scratch().join("runs");
        begin();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = runs.join(format!("{}.{number}", std::process::id()));
        for name in ["work", "profiles"] {
            let part = path.join(name);
            fs::create_dir_all(&part).expect("a directory for the run");
            let open = fs::Permissions::from_mode(0o777);
            fs::set_permissions(&part, open).expect("an open directory");
        }
        Directory { path }
    }
}

impl Deref for Directory {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if thread::panicking() {
            // Best effort: a second panic would end all tests of the process.
            let _ = keep(&self.path);
        } else {
            remove(&self.path);
        }
    }
}

/// What must happen once in a test process before it runs programs.
pub fn begin() {
    static BEGIN: Once = Once::new();
    BEGIN.call_once(|| {
        sweep(&scratch().join("runs"));
        // The programs inherit it. A test that needs another limit sets its own.
        let Rlimit { maximum, .. } = getrlimit(Resource::Fsize);
        let current = Some(maximum.unwrap_or(u64::MAX).min(MOST_WRITTEN_BYTES));
        setrlimit(Resource::Fsize, Rlimit { current, maximum }).expect("a lower limit");
    });
}

/// Removes the directories of test processes that have ended, except those of the last failures.
pub fn sweep(runs: &Path) {
    let Ok(entries) = fs::read_dir(runs) else {
        return;
    };
    let mut failures = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let pid = name.split('.').next().unwrap_or_default();
        if Path::new("/proc").join(pid).exists() {
            continue;
        }
        match fs::metadata(path.join(FAILED)).and_then(|mark| mark.modified()) {
            Ok(time) => failures.push((time, path)),
            Err(_) => remove(&path),
        }
    }
    failures.sort();
    let old = failures.len().saturating_sub(MOST_FAILURES);
    for (_, path) in failures.drain(..old) {
        remove(&path);
    }
}

/// Marks a directory as that of a failed test, and removes its long files.
fn keep(path: &Path) -> std::io::Result<()> {
    let mut mark = File::create(path.join(FAILED))?;
    let mut rest = vec![path.to_owned()];
    while let Some(directory) = rest.pop() {
        for entry in fs::read_dir(directory)?.flatten() {
            let facts = entry.metadata()?;
            if facts.is_dir() {
                rest.push(entry.path());
            } else if facts.len() > MOST_KEPT_BYTES {
                let bytes = facts.len();
                writeln!(mark, "removed: {} ({bytes} bytes)", entry.path().display())?;
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}

fn remove(path: &Path) {
    // Another test process may sweep at the same time. Anything else that stays is found by scripts/check.
    let _ = fs::remove_dir_all(path);
}
