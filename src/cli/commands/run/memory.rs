//! Watches from outside how much memory the program and its children have: also where the agent takes no sample, and has
//! no thread that could look.

use std::collections::HashMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use allocsample_profile::MemoryMap;
use allocsample_residency::{Due, Source, Watch};
use rustix::time::ClockId;

/// What was read, by pid.
pub type Readings = HashMap<u32, Vec<MemoryMap>>;

/// A watch that goes on until it is stopped.
pub struct MemoryWatch {
    stop: Sender<()>,
    thread: JoinHandle<Readings>,
}

impl MemoryWatch {
    /// Watches this process and all that it starts.
    pub fn start(pid: u32) -> Self {
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let mut watched = Watched::new(pid);
            let mut pause = watched.look();
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = watched.look();
            }
            watched.readings
        });
        Self { stop, thread }
    }

    /// Ends the watch. Nothing was read if it failed: the program's exit status does not depend on it.
    pub fn end(self) -> Readings {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

struct Watched {
    root: u32,
    page_bytes: u64,
    watches: HashMap<u32, Watch>,
    readings: Readings,
}

impl Watched {
    /// A program that starts thousands of processes is none of which each matters.
    const MOST_PROCESSES: usize = 64;

    fn new(root: u32) -> Self {
        Self {
            root,
            page_bytes: rustix::param::page_size() as u64,
            watches: HashMap::new(),
            readings: HashMap::new(),
        }
    }

    /// Reads all processes once; how long to wait.
    fn look(&mut self) -> Duration {
        let mut pids = vec![self.root];
        let mut next = 0;
        while let Some(&pid) = pids.get(next) {
            next += 1;
            let children = Source::of(pid, self.page_bytes).children();
            let room = Self::MOST_PROCESSES.saturating_sub(pids.len());
            pids.extend(children.into_iter().take(room));
        }
        self.watches.retain(|pid, _| pids.contains(pid));
        let pauses = pids.iter().map(|&pid| self.look_at(pid));
        const LONGEST_MS: u32 = 500;
        // A child may come at any time.
        let pause_ms = pauses.min().unwrap_or(LONGEST_MS).min(LONGEST_MS);
        Duration::from_millis(u64::from(pause_ms))
    }

    fn look_at(&mut self, pid: u32) -> u32 {
        let source = Source::of(pid, self.page_bytes);
        let now_ns = monotonic_ns();
        let watch = self
            .watches
            .entry(pid)
            .or_insert_with(|| Watch::new(now_ns));
        let Some(totals) = source.totals(now_ns) else {
            return u32::MAX;
        };
        let reading = match watch.observe(&totals) {
            Due::Nothing => None,
            Due::Totals => Some(MemoryMap {
                totals,
                ..MemoryMap::default()
            }),
            Due::Map => {
                // Processor time: on a busy machine this thread waits for its turn, which costs nobody anything.
                let before_ns = time_ns(ClockId::ThreadCPUTime);
                let map = source.map(now_ns);
                watch.mapped(
                    &totals,
                    time_ns(ClockId::ThreadCPUTime).saturating_sub(before_ns),
                );
                map
            }
        };
        self.readings.entry(pid).or_default().extend(reading);
        watch.pause_ms()
    }
}

/// The time on the clock of profiles.
fn monotonic_ns() -> u64 {
    time_ns(ClockId::Monotonic)
}

fn time_ns(clock: ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
