//! What is asked of an agent, by way of the first page of its ring's file.
//!
//! Commands take turns by a lock on that file, which the process itself never looks at: nothing that a command does,
//! or does not do, keeps the program waiting.

use std::fs::{File, TryLockError};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use allocsample_profile::request;
use anyhow::{Context, bail};

use crate::exit::{self, Ending};
use crate::{output_file, running};

/// How long we wait to hear that a request is in force.
const PATIENCE: Duration = Duration::from_secs(2);
/// See [`Wait`].
const IDLE: Duration = Duration::from_millis(100);
/// How long others may have the lock while nothing is asked or done.
const QUEUE_PATIENCE: Duration = Duration::from_secs(10);

/// What is asked for: a number of [`request`], and what goes with it.
pub struct Asked {
    pub what: u64,
    pub value: u64,
    pub more: [u64; 4],
}

impl Asked {
    /// That needs nothing more than its number.
    pub fn plain(what: u64) -> Self {
        Self {
            what,
            value: 0,
            more: [0; 4],
        }
    }

    /// Whether this leaves nothing of what was asked before, if that is not done yet.
    pub fn replaces(&self, what: u64, value: u64) -> bool {
        let is_same_thread = self.value >> 1 == value >> 1;
        self.what == what && (what != request::SELECT_THREAD || is_same_thread)
    }
}

/// Writes a request into the ring, and waits until it was obeyed; then it says what `told` gives.
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

/// A request that was obeyed.
pub struct Obeyed {
    /// The ring's file.
    pub file: File,
    /// The request's number.
    pub generation: u64,
}

/// Writes a request into the ring, and waits until it was obeyed; `None`: it will be later.
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
    // One at a time: two requests under one number would be one.
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

/// Whether what was asked before there was a ring is done, or soon is.
pub fn is_first_obeyed(path: &Path) -> anyhow::Result<bool> {
    let ring = running::ring_of(path);
    let file = open(&ring).with_context(|| ring.display().to_string())?;
    is_obeyed(&file, path, 1, Wait::new()).with_context(|| ring.display().to_string())
}

/// Why it is not done yet.
pub fn later(pid: Option<u32>) -> String {
    match pid.filter(|&pid| running::is_stopped(pid)) {
        Some(pid) => format!(
            "requested; process {pid} is stopped (SIGSTOP, or a debugger), and reacts when it continues and allocates"
        ),
        None => "requested; takes effect when the program next allocates".to_owned(),
    }
}

/// Opens a ring to write to it. Its directory may be open to others: what is there may be a link to something else. A ring that
/// the agent is just making has its name before its first bytes, and is waited for.
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

/// Takes the lock. Of a thousand that wait each gets its turn; one that was stopped while it had the lock stops us, but not
/// for ever.
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
    // Last: it makes the agent look at the others.
    put(request::GENERATION, generation)
}

/// Whether a request was obeyed, or soon is.
fn is_obeyed(file: &File, path: &Path, generation: u64, mut wait: Wait) -> std::io::Result<bool> {
    while word(file, request::OBEYED)? < generation {
        if !wait.goes_on(|| running::process_of(path)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The wait for a process to do something. One that sleeps allocates nothing, and is not waited for.
pub struct Wait {
    since: Instant,
    patience: Duration,
    /// A process that has used no processor for so long is idle.
    idle: Duration,
    next_look: Duration,
    at_rest: Option<u64>,
}

impl Wait {
    /// Begins now.
    pub fn new() -> Self {
        Self::of(PATIENCE, IDLE)
    }

    /// For what takes the process longer.
    pub fn of(patience: Duration, idle: Duration) -> Self {
        Self {
            since: Instant::now(),
            patience,
            idle,
            next_look: idle,
            at_rest: None,
        }
    }

    /// Waits a little; false: no longer.
    pub fn goes_on(&mut self, process: impl Fn() -> Option<u32>) -> bool {
        let elapsed = self.since.elapsed();
        if elapsed > self.patience {
            return false;
        }
        if elapsed > self.next_look {
            self.next_look += self.idle;
            let now = process().and_then(running::at_rest);
            if now.is_some() && now == self.at_rest {
                return false;
            }
            self.at_rest = now;
        }
        std::thread::sleep(Duration::from_millis(5));
        true
    }
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
