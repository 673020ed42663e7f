//! Go programs that the program starts: found by looking, and read from outside as long as they run.
//!
//! They are not traced: a process that is waits for this command, and its parent with it. So their first and last moments are
//! missing, and those that end before they are found.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::descendants::Descendants;
use super::go::{Plan, Reading};
use crate::{exit, go_heap};

/// Device and inode of an executable.
type File = (u64, u64);

/// A search that continues until it is stopped.
pub struct GoChildren {
    stop: Sender<()>,
    thread: JoinHandle<Found>,
}

/// What was found in all.
#[derive(Debug, Default)]
pub struct Found {
    /// Their profiles.
    pub profiles: Vec<PathBuf>,
    /// At most so long after their begin.
    pub latest: Duration,
    /// Programs that could not be read, and why one of them could not.
    pub unread: Option<(usize, String)>,
}

impl Found {
    /// Says what a profile of theirs lacks, and which have none.
    pub fn remark(&self) {
        let programs = |count| match count {
            1 => "1 Go program that it started".to_owned(),
            count => format!("{count} Go programs that it started"),
        };
        if !self.profiles.is_empty() {
            exit::remark(format_args!(
                "{}: read from outside, without the first {} ms at most",
                programs(self.profiles.len()),
                self.latest.as_millis() + 1
            ));
        }
        if let Some((count, why)) = &self.unread {
            exit::remark(format_args!(
                "{} without a profile: {why}",
                programs(*count)
            ));
        }
    }
}

impl GoChildren {
    /// Looks at all that this process starts, and not at itself if it is read already.
    pub fn start(plan: Plan, root: u32, is_root_read: bool) -> Self {
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let mut search = Search::new(plan, root, is_root_read);
            let mut pause = Duration::ZERO;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = search.look();
            }
            search.end()
        });
        Self { stop, thread }
    }

    /// Ends the search, and with it the profiles of those that still run.
    pub fn end(self) -> Found {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

struct Search {
    plan: Plan,
    processes: Descendants,
    is_root_read: bool,
    begin: Instant,
    /// Whether this is a Go program.
    files: HashMap<File, bool>,
    /// What each process ran at the last search.
    known: HashMap<u32, File>,
    last_change: Instant,
    last: Instant,
    next: Instant,
    readings: Vec<(u32, Instant, Reading)>,
    found: Found,
}

impl Search {
    const SHORTEST: Duration = Duration::from_millis(10);
    const LONGEST: Duration = Duration::from_millis(200);
    /// Where the last process has started long ago.
    const LONGEST_IN_QUIET: Duration = Duration::from_secs(1);
    /// A program is found within so small a part of the time that had passed before it.
    const SHARE: u32 = 50;

    fn new(plan: Plan, root: u32, is_root_read: bool) -> Self {
        let now = Instant::now();
        Self {
            plan,
            processes: Descendants::of(root, rustix::param::page_size() as u64),
            is_root_read,
            begin: now,
            files: HashMap::new(),
            known: HashMap::new(),
            last_change: now,
            last: now,
            next: now,
            readings: Vec::new(),
            found: Found::default(),
        }
    }

    /// Searches and reads what is due; how long to wait.
    fn look(&mut self) -> Duration {
        if Instant::now() >= self.next {
            self.search();
        }
        self.read();
        let readings = self.readings.iter().map(|(_, due, _)| *due);
        let next = readings.chain([self.next]).min();
        let pause = next.map(|next| next.saturating_duration_since(Instant::now()));
        pause.unwrap_or_default().max(Reading::SHORTEST)
    }

    fn search(&mut self) {
        let begin = Instant::now();
        let mut pids = self.processes.pids().to_vec();
        let listing = begin.elapsed();
        if self.is_root_read {
            pids.remove(0);
        }
        let mut running = HashMap::new();
        for pid in pids {
            let Ok(file) = std::fs::metadata(format!("/proc/{pid}/exe")) else {
                continue;
            };
            let file = (file.dev(), file.ino());
            if self.known.get(&pid) != Some(&file) && self.is_go(pid, file) {
                if shares_memory_with_parent(pid) {
                    continue;
                }
                self.begin(pid);
            }
            running.insert(pid, file);
        }
        if running != self.known {
            self.last_change = begin;
        }
        self.known = running;
        self.last = begin;
        let pause = Self::pause(self.begin.elapsed(), self.last_change.elapsed());
        // Takes 2 % of a processor at most, even below a program with thousands of threads, all of which it must list.
        self.next = Instant::now() + pause.max(listing * 50);
    }

    /// After so long a run in which no process has started for so long.
    fn pause(run: Duration, quiet: Duration) -> Duration {
        let usual = (run / Self::SHARE).clamp(Self::SHORTEST, Self::LONGEST);
        usual.max((quiet / Self::SHARE).min(Self::LONGEST_IN_QUIET))
    }

    fn is_go(&mut self, pid: u32, file: File) -> bool {
        *(self.files.entry(file)).or_insert_with(|| go_heap::is_go(pid))
    }

    fn begin(&mut self, pid: u32) {
        match self.plan.begin_late(pid) {
            Ok(None) => {}
            Ok(Some(reading)) => {
                self.found.profiles.push(reading.path().to_owned());
                self.found.latest = self.found.latest.max(self.last.elapsed());
                self.readings.push((pid, Instant::now(), reading));
            }
            // It may just have ended.
            Err(_) if std::fs::metadata(format!("/proc/{pid}/exe")).is_err() => {}
            Err(error) => {
                let why = exit::in_one_line(&error);
                let unread = self.found.unread.get_or_insert((0, why));
                unread.0 += 1;
            }
        }
    }

    fn read(&mut self) {
        let now = Instant::now();
        for (_, due, reading) in &mut self.readings {
            if *due <= now {
                reading.step();
                *due = Instant::now() + reading.pause();
            }
        }
        for (_, _, ended) in self.readings.extract_if(.., |(_, _, it)| it.is_over()) {
            ended.end(None);
        }
    }

    fn end(mut self) -> Found {
        for (_, _, mut reading) in self.readings.drain(..) {
            reading.step();
            match reading.is_over() {
                true => reading.end(None),
                // It outlives the program that started it.
                false => reading.leave(),
            }
        }
        self.found
    }
}

/// Whether a process has not yet called exec: until then it runs in its parent's memory, where the kernel has put the same
/// random addresses.
fn shares_memory_with_parent(pid: u32) -> bool {
    let vector = |pid: &str| std::fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // "4711 (name) S 4242 ...", and a name can contain anything
    let parent = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(1));
    parent.is_some_and(|parent| vector(parent) == vector(&pid.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_a_fiftieth_of_the_time_and_longer_only_in_quiet() {
        let ms = Duration::from_millis;
        for (run, quiet, pause) in [
            (0, 0, 10),
            (5_000, 5_000, 100),
            (60_000, 1_000, 200),
            (60_000, 20_000, 400),
            (600_000, 500_000, 1_000),
        ] {
            assert_eq!(Search::pause(ms(run), ms(quiet)), ms(pause));
        }
    }
}
