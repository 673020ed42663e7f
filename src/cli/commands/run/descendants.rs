//! A process and its descendants.

use std::time::{Duration, Instant};

use allocsample_residency::Source;

/// A program that starts thousands of processes starts none that matters by itself.
const MOST_PROCESSES: usize = 64;

/// A process and its descendants, as of the last search.
///
/// A search opens a file for each of their threads. The kernel gives processes and threads ascending numbers and says which number
/// it gave last. While that stays the same no process has started, so the list has all of them. It may still have processes
/// that have ended.
pub struct Descendants {
    root: u32,
    page_bytes: u64,
    pids: Vec<u32>,
    /// Whether the kernel's number is up to date: some containers replace the file by one that is not.
    is_current: bool,
    last_pid: Option<u64>,
    /// Whether two searches in a row had the same number before them. A process has its number before its parent lists it.
    is_settled: bool,
    searched: Instant,
}

impl Descendants {
    /// Processes that have ended stay in the list that long.
    const LONGEST: Duration = Duration::from_secs(2);

    /// Of a process that has just been started.
    pub fn of(root: u32, page_bytes: u64) -> Self {
        Self {
            root,
            page_bytes,
            pids: Vec::new(),
            is_current: last_pid() >= Some(root.into()),
            last_pid: None,
            is_settled: false,
            searched: Instant::now(),
        }
    }

    /// The process itself, and then the others. Searches if a process may have started since the last call.
    pub fn pids(&mut self) -> &[u32] {
        let last_pid = last_pid().filter(|_| self.is_current);
        self.pids_as_of(last_pid)
    }

    fn pids_as_of(&mut self, last_pid: Option<u64>) -> &[u32] {
        let is_same = last_pid.is_some() && last_pid == self.last_pid;
        if !is_same || !self.is_settled || self.searched.elapsed() > Self::LONGEST {
            self.pids = with_descendants(self.root, self.page_bytes);
            self.is_settled = is_same;
            self.last_pid = last_pid;
            self.searched = Instant::now();
        }
        &self.pids
    }
}

/// The number of the process or thread that started last, in the namespace of this process.
fn last_pid() -> Option<u64> {
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    load.split_whitespace().last()?.parse().ok()
}

fn with_descendants(root: u32, page_bytes: u64) -> Vec<u32> {
    let mut pids = vec![root];
    let mut next = 0;
    while let Some(&pid) = pids.get(next) {
        next += 1;
        let children = Source::of(pid, page_bytes).children();
        let room = MOST_PROCESSES.saturating_sub(pids.len());
        pids.extend(children.into_iter().take(room));
    }
    pids
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn sleeper() -> Child {
        Command::new("sleep")
            .arg("100")
            .stdout(Stdio::null())
            .spawn()
            .expect("sleep")
    }

    #[test]
    fn every_child_is_in_the_list_of_the_next_call() {
        let mut found = Descendants::of(std::process::id(), rustix::param::page_size() as u64);
        assert_eq!(found.pids()[0], std::process::id());
        let mut children = Vec::new();
        for _ in 0..20 {
            let child = sleeper();
            assert!(found.pids().contains(&child.id()));
            children.push(child);
        }
        for mut child in children {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }

    #[test]
    fn a_start_leads_to_two_searches() {
        let own = std::process::id();
        let mut found = Descendants::of(own, rustix::param::page_size() as u64);
        let marked = vec![own, 1, 2];
        for (last_pid, is_kept) in [
            (Some(7), false),
            (Some(7), false),
            (Some(7), true),
            (Some(7), true),
            (Some(8), false),
            (Some(8), false),
            (Some(8), true),
            (None, false),
            (None, false),
        ] {
            found.pids.clone_from(&marked);
            assert_eq!(found.pids_as_of(last_pid) == marked, is_kept);
        }
    }
}
