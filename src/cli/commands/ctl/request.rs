//! Requests to an agent, by way of the first page of its ring's file.
//!
//! Commands take turns by a lock on that file, which the process itself never looks at. No command, not even a
//! stopped one, can make the program wait.

use std::fs::{File, TryLockError};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use allocsample_profile::request;
use anyhow::{Context, bail};

use crate::exit::{self, Ending};
use crate::{output_file, running};

/// How long we wait for the process to carry out a request.
const PATIENCE: Duration = Duration::from_secs(2);
/// See [`Wait`].
const IDLE: Duration = Duration::from_millis(100);
/// How long another command may hold the lock without any progress.
const QUEUE_PATIENCE: Duration = Duration::from_secs(10);

/// A request: one of the numbers of [`mod@request`], and its arguments.
pub struct Asked {
    pub what: u64,
    pub value: u64,
    pub more: [u64; 4],
}

impl Asked {
    /// A request without arguments.
    pub fn plain(what: u64) -> Self {
        Self {
            what,
            value: 0,
            more: [0; 4],
        }
    }

    /// Whether this request makes an earlier one void that is not carried out yet.
    pub fn replaces(&self, what: u64, value: u64) -> bool {
        let is_same_thread = self.value >> 1 == value >> 1;
        self.what == what && (what != request::SELECT_THREAD || is_same_thread)
    }
}

/// Writes a request into the ring, waits until it is carried out, and prints the line from `told`.
pub fn request(
    path: &Path,
    asked: &Asked,
    told: impl FnOnce() -> anyhow::Result<String>,
) -> anyhow::Result<Ending> {
    let Some(_obeyed) = ask(path, asked, Wait::new())? else {
        exit::remark(later(running::process_of(path)));
        return Ok(Ending::SUCCESS);
    };
    let told = told()?;
    output_file::write_stdout(|out| Ok(writeln!(out, "{told}")?))?;
    Ok(Ending::SUCCESS)
}

/// A request that was carried out.
pub struct Obeyed {
    /// The ring's file.
    pub file: File,
    /// The request's number.
    pub generation: u64,
}

/// Writes a request into the ring, and waits until it is carried out; `None` if that will happen later.
pub fn ask(path: &Path, asked: &Asked, wait: Wait) -> anyhow::Result<Option<Obeyed>> {
    let ring = running::ring_of(path);
    let named = || ring.display().to_string();
    let file = match open(&ring) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("{}: its process has ended", path.display())
        }
        Err(error) => return Err(error).with_context(named),
    };
    // One at a time: two requests with the same number would count as one.
    wait_for_turn(&file, path)?;
    let before = word(&file, request::GENERATION).with_context(named)?;
    let (what, value) = (
        word(&file, request::WHAT).with_context(named)?,
        word(&file, request::INTERVAL).with_context(named)?,
    );
    if !asked.replaces(what, value)
        && !is_obeyed(&file, path, before, Wait::new()).with_context(named)?
    {
        bail!(
            "{}: an earlier request is still pending, because the program has not allocated since; try again later",
            path.display()
        );
    }
    let generation = before + 1;
    write(&file, asked, generation).with_context(named)?;
    let is_obeyed = is_obeyed(&file, path, generation, wait).with_context(named)?;
    Ok(is_obeyed.then_some(Obeyed { file, generation }))
}

/// Whether a request from before the ring existed is carried out, or soon will be.
pub fn is_first_obeyed(path: &Path) -> anyhow::Result<bool> {
    let ring = running::ring_of(path);
    let file = open(&ring).with_context(|| ring.display().to_string())?;
    is_obeyed(&file, path, 1, Wait::new()).with_context(|| ring.display().to_string())
}

/// Why it is not carried out yet.
pub fn later(pid: Option<u32>) -> String {
    match pid.filter(|&pid| running::is_stopped(pid)) {
        Some(pid) => format!(
            "requested; process {pid} is stopped (SIGSTOP, or a debugger), and reacts when it continues and allocates"
        ),
        None => "requested; takes effect when the program next allocates".to_owned(),
    }
}

/// Opens a ring for writing. Others may be able to write to its directory, so the name may be a link to another file.
/// A ring that the agent is just creating has its name before its first bytes; this waits for those.
fn open(ring: &Path) -> std::io::Result<File> {
    const MAGIC: &[u8; 8] = b"ALLOCRNG";
    let since = Instant::now();
    let file = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(ring)?;
    let mut start = [0; MAGIC.len()];
    while file.read_exact_at(&mut start, 0).is_err() || start == [0; MAGIC.len()] {
        if since.elapsed() > PATIENCE {
            return Err(std::io::Error::other("is not a ring"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    match start == *MAGIC {
        true => Ok(file),
        false => Err(std::io::Error::other("is not a ring")),
    }
}

/// Takes the lock. Each of hundreds of waiting commands gets its turn. A command that was stopped while it held the
/// lock delays us, but not forever.
fn wait_for_turn(file: &File, path: &Path) -> anyhow::Result<()> {
    const LONGEST_PAUSE: Duration = Duration::from_millis(50);
    let state = || {
        Some((
            word(file, request::GENERATION).ok()?,
            word(file, request::OBEYED).ok()?,
        ))
    };
    let (mut since, mut last) = (Instant::now(), state());
    let mut pause = Duration::from_millis(1);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| path.display().to_string());
            }
        }
        let now = state();
        if now != last {
            (since, last) = (Instant::now(), now);
        } else if since.elapsed() > QUEUE_PATIENCE {
            bail!(
                "{}: other commands are waiting for the program, or are stopped; try again",
                path.display()
            );
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn write(file: &File, asked: &Asked, generation: u64) -> std::io::Result<()> {
    let put = |at, value: u64| file.write_all_at(&value.to_le_bytes(), at);
    put(request::WHAT, asked.what)?;
    put(request::INTERVAL, asked.value)?;
    for (at, value) in (request::MORE..).step_by(8).zip(asked.more) {
        put(at, value)?;
    }
    // Written last: this makes the agent look at the other words.
    put(request::GENERATION, generation)
}

/// Whether a request is carried out, or soon will be.
fn is_obeyed(file: &File, path: &Path, generation: u64, mut wait: Wait) -> std::io::Result<bool> {
    while word(file, request::OBEYED)? < generation {
        if !wait.goes_on(|| running::process_of(path)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Waits for a process to act. A sleeping process allocates nothing, so this does not wait for it.
pub struct Wait {
    since: Instant,
    patience: Duration,
    /// A process that has used next to no CPU time for this long is idle.
    idle: Duration,
    next_look: Duration,
    at_rest: Option<u64>,
}

impl Wait {
    /// Begins to wait now.
    pub fn new() -> Self {
        Self::of(PATIENCE, IDLE)
    }

    /// With more patience, for requests that take the process longer.
    pub fn of(patience: Duration, idle: Duration) -> Self {
        Self {
            since: Instant::now(),
            patience,
            idle,
            next_look: idle,
            at_rest: None,
        }
    }

    /// Waits a little; false when the time is over.
    pub fn goes_on(&mut self, process: impl Fn() -> Option<u32>) -> bool {
        let elapsed = self.since.elapsed();
        if elapsed > self.patience {
            return false;
        }
        if elapsed > self.next_look {
            self.next_look += self.idle;
            let now = process().and_then(running::at_rest);
            if is_idle(self.at_rest, now, self.idle) {
                return false;
            }
            self.at_rest = now;
        }
        std::thread::sleep(Duration::from_millis(5));
        true
    }
}

/// Whether a process that had used and has used so many nanoseconds of CPU time was at rest in between. The agent's own thread works
/// now and then in a process that waits.
fn is_idle(before_ns: Option<u64>, now_ns: Option<u64>, between: Duration) -> bool {
    const MOST_OF: u128 = 100;
    let (Some(before_ns), Some(now_ns)) = (before_ns, now_ns) else {
        return false;
    };
    u128::from(now_ns.saturating_sub(before_ns)) <= between.as_nanos() / MOST_OF
}

fn word(file: &File, at: u64) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_leaves_nothing_of_it_replaces_what_was_asked_before() {
        let interval = Asked::plain(request::SET_INTERVAL);
        assert!(interval.replaces(request::SET_INTERVAL, 4096));
        assert!(!interval.replaces(request::ROTATE, 0));
        let thread = |tid: u64, is_on: u64| Asked {
            value: tid << 1 | is_on,
            ..Asked::plain(request::SELECT_THREAD)
        };
        assert!(thread(7, 1).replaces(request::SELECT_THREAD, 7 << 1));
        assert!(!thread(7, 1).replaces(request::SELECT_THREAD, 8 << 1));
    }

    #[test]
    fn a_process_whose_agent_works_now_and_then_is_at_rest() {
        let second = Duration::from_secs(1);
        let used = |ns: u64| Some(7_000_000_000 + ns);
        assert!(is_idle(used(0), used(0), second));
        assert!(is_idle(used(0), used(3_000_000), second));
        assert!(!is_idle(used(0), used(30_000_000), second));
        assert!(!is_idle(None, used(0), second));
        assert!(!is_idle(used(0), None, second));
    }

    #[test]
    fn a_ring_that_is_being_made_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let ring = directory.path().join("x.ring");
        let made = File::create(&ring).unwrap();
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| open(&ring));
            made.set_len(4096).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            made.write_all_at(b"ALLOCRNG", 0).unwrap();
            assert!(opened.join().unwrap().is_ok());
        });
        made.write_all_at(b"another!", 0).unwrap();
        assert!(open(&ring).is_err());
    }
}
