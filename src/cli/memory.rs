//! The command's own memory: how it goes back to the system, and how much there may be.
//!
//! A profile comes from anywhere, and what a reader makes of it can be far larger than its file. Readers count what they
//! build and say where a profile is out of proportion (`allocsample_profile`); this is the bound behind them, which holds
//! whatever a command does with what was read. The kernel keeps it (`RLIMIT_DATA`), so it covers fragmentation and the
//! memory of libraries, and costs nothing while it is not reached. When it is, [`Bounded`] ends the command with one line.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use allocsample_profile::limits_are_lifted;
use nix::unistd::gettid;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::exit;

/// From this size on a block is the system's own, and goes back to it when it is freed. glibc begins with the same, and
/// raises it with each such block that is freed: of a large profile it then keeps a tenth more than what is in use.
const LARGE_BYTES: i32 = 128 << 10;

/// To be called before there are threads.
pub fn give_large_blocks_back() {
    // SAFETY: sets a parameter of the allocator, whose own locks see to what else may be going on.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
    }
}

/// What a command may take for any profile.
const BASE_BYTES: u64 = 64 << 20;
/// What it may take for each byte of its profiles.
const TIMES: u64 = 20;

/// What a command may take for a profile of so many bytes.
pub fn allowance(file_bytes: u64) -> u64 {
    BASE_BYTES.saturating_add(file_bytes.saturating_mul(TIMES))
}

/// The bound on what the kernel counts as data; 0 while there is none.
static MOST_BYTES: AtomicU64 = AtomicU64::new(0);

/// Allows for a profile of so many bytes, and for no more than the profiles that were allowed for. Does nothing if limits
/// are lifted, or the kernel does not say what is in use.
pub fn allow_profile(file_bytes: u64) {
    if limits_are_lifted() {
        return;
    }
    let before = match MOST_BYTES.load(Ordering::Relaxed) {
        0 => data_bytes(),
        most_bytes => Some(most_bytes),
    };
    if let Some(before) = before {
        hold(before.saturating_add(allowance(file_bytes)));
    }
}

/// Does `work` without the bound. What it leaves behind is allowed for: names come from the files of modules, which are this
/// machine's and as large as they are.
pub fn without_bound<T>(work: impl FnOnce() -> T) -> T {
    let most_bytes = MOST_BYTES.load(Ordering::Relaxed);
    let before = data_bytes();
    lift();
    let result = work();
    if most_bytes != 0
        && let (Some(before), Some(after)) = (before, data_bytes())
    {
        hold(most_bytes.saturating_add(after.saturating_sub(before)));
    }
    result
}

/// Ends the bound. Programs that the command starts would inherit it.
pub fn lift() {
    if MOST_BYTES.swap(0, Ordering::Relaxed) != 0 {
        limit(None);
    }
}

fn hold(most_bytes: u64) {
    MOST_BYTES.store(most_bytes, Ordering::Relaxed);
    limit(Some(most_bytes));
}

/// Sets the soft limit; `None` is what the hard one allows.
fn limit(bytes: Option<u64>) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Data);
    let current = match (bytes, maximum) {
        (Some(bytes), Some(maximum)) => Some(bytes.min(maximum)),
        (bytes, maximum) => bytes.or(maximum),
    };
    // Best effort: the readers' own limits remain.
    let _ = setrlimit(Resource::Data, Rlimit { current, maximum });
}

/// What the kernel counts against `RLIMIT_DATA`.
fn data_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let mut lines = status.lines();
    let data = lines.find_map(|line| line.strip_prefix("VmData:"))?;
    let kib: u64 = data.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

/// A file or directory that is being written aside.
static ASIDE: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Keeps in mind what is to be removed if the command ends for want of memory.
pub struct RemovedIfItEnds;

impl RemovedIfItEnds {
    /// Until it is dropped.
    pub fn begin(path: &Path) -> Self {
        if let Ok(mut aside) = ASIDE.lock() {
            *aside = Some(path.to_owned());
        }
        Self
    }
}

impl Drop for RemovedIfItEnds {
    fn drop(&mut self) {
        if let Ok(mut aside) = ASIDE.lock() {
            *aside = None;
        }
    }
}

/// The system's allocator. Where that has no memory left the command says so, and what to do about it.
pub struct Bounded;

// SAFETY: every call goes to the system's allocator with the arguments that it came with, and its answer comes back unless
// it is null, after which the process ends.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`.
        or_end(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        or_end(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `realloc`.
        or_end(unsafe { System.realloc(block, layout, bytes) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and the block is the system's.
        unsafe { System.dealloc(block, layout) }
    }
}

fn or_end(block: *mut u8) -> *mut u8 {
    if block.is_null() {
        end_for_want_of_memory();
    }
    block
}

/// Ends the process where it is: nothing can be unwound out of an allocator. No lock is waited for, since whoever asked for
/// memory may hold it.
#[cold]
fn end_for_want_of_memory() -> ! {
    static ENDED_BY: AtomicI32 = AtomicI32::new(0);
    let thread = gettid().as_raw();
    match ENDED_BY.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {}
        // There is no memory even for what follows.
        Err(by) if by == thread => end_now(),
        // Another thread is about to end all of us.
        Err(_) => loop {
            std::thread::sleep(Duration::MAX);
        },
    }
    let is_bound = MOST_BYTES.load(Ordering::Relaxed) != 0;
    lift();
    if let Ok(mut aside) = ASIDE.try_lock()
        && let Some(path) = aside.take()
    {
        let _ = match path.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
    }
    let what: &[u8] = match is_bound {
        true => TOO_MUCH.as_bytes(),
        false => b"error: out of memory\n",
    };
    // SAFETY: the bytes are there. Rust's own handle may be locked by a thread that has ended up here.
    unsafe {
        libc::write(libc::STDERR_FILENO, what.as_ptr().cast(), what.len());
    }
    end_now()
}

const TOO_MUCH: &str =
    "error: this needs far more memory than profiles of this size do (--no-limits allows it)\n";

fn end_now() -> ! {
    // SAFETY: has no preconditions. Nothing of ours is to run at the exit: it could need memory, or a lock.
    unsafe { libc::_exit(i32::from(exit::FAILURE)) }
}
