//! Watches from outside how much memory the program and its children have: also where the agent takes no sample, and has
//! no thread that could look.

use std::collections::HashMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use allocsample_profile::MemoryMap;
use allocsample_residency::{Due, Source, Watch};
use rustix::time::ClockId;

use super::descendants::Descendants;

const NS_PER_MS: u64 = 1_000_000;

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
    processes: Descendants,
    page_bytes: u64,
    start_ns: u64,
    /// The processes that were there when the kernel was last asked.
    pids: Vec<u32>,
    pids_until_ns: u64,
    watches: HashMap<u32, Watch>,
    readings: Readings,
}

impl Watched {
    fn new(root: u32) -> Self {
        let page_bytes = rustix::param::page_size() as u64;
        Self {
            processes: Descendants::of(root, page_bytes),
            page_bytes,
            start_ns: monotonic_ns(),
            pids: Vec::new(),
            pids_until_ns: 0,
            watches: HashMap::new(),
            readings: HashMap::new(),
        }
    }

    /// Reads all processes once; how long to wait.
    fn look(&mut self) -> Duration {
        let now_ns = monotonic_ns();
        if now_ns >= self.pids_until_ns {
            self.find_processes();
            self.pids_until_ns = now_ns + self.pause_between_searches_ns(now_ns);
        }
        let pids = std::mem::take(&mut self.pids);
        let pauses = pids.iter().map(|&pid| self.look_at(pid)).min();
        self.pids = pids;
        let search_ns = self.pids_until_ns.saturating_sub(now_ns);
        let search_ms = u32::try_from(search_ns / NS_PER_MS).unwrap_or(u32::MAX);
        let pause_ms = pauses.unwrap_or(u32::MAX).min(search_ms).max(1);
        Duration::from_millis(u64::from(pause_ms))
    }

    fn find_processes(&mut self) {
        self.pids = self.processes.pids().to_vec();
        self.watches.retain(|pid, _| self.pids.contains(pid));
    }

    /// A child may come at any time, and end soon.
    fn pause_between_searches_ns(&self, now_ns: u64) -> u64 {
        let elapsed_ns = now_ns.saturating_sub(self.start_ns);
        (elapsed_ns / 50).clamp(20 * NS_PER_MS, 500 * NS_PER_MS)
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
