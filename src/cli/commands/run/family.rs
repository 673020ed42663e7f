//! A process and all that it has started.

use std::time::{Duration, Instant};

use allocsample_residency::Source;

/// A program that starts thousands of processes is none of which each matters.
const MOST_PROCESSES: usize = 64;

/// The processes that a process has started, and theirs, as of the last search.
///
/// Listing them takes a file for each of their threads. The kernel numbers processes and threads one after the other and says
/// which number came last. While that is the same, nobody was born, and the list is complete; it may have processes that
/// have ended.
pub struct Family {
    root: u32,
    page_bytes: u64,
    pids: Vec<u32>,
    /// Whether the kernel's number is of this moment: in some containers another file system has replaced the file.
    is_current: bool,
    last_born: Option<u64>,
    listed: Instant,
}

impl Family {
    /// Processes that have ended stay in the list that long.
    const LONGEST: Duration = Duration::from_secs(2);

    /// Of a process that has just been started.
    pub fn of(root: u32, page_bytes: u64) -> Self {
        Self {
            root,
            page_bytes,
            pids: Vec::new(),
            is_current: last_born() >= Some(root.into()),
            last_born: None,
            listed: Instant::now(),
        }
    }

    /// The pids, the first one's own in front. Lists them anew if somebody was born since.
    pub fn pids(&mut self) -> &[u32] {
        // Before the list: who is born meanwhile is in it, or found by the next call.
        let last_born = last_born().filter(|_| self.is_current);
        self.pids_as_of(last_born)
    }

    fn pids_as_of(&mut self, last_born: Option<u64>) -> &[u32] {
        let is_complete = last_born.is_some() && last_born == self.last_born;
        if !is_complete || self.listed.elapsed() > Self::LONGEST {
            self.pids = with_descendants(self.root, self.page_bytes);
            self.last_born = last_born;
            self.listed = Instant::now();
        }
        &self.pids
    }
}

/// The number of the process or thread that began last, as seen from here.
fn last_born() -> Option<u64> {
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
    fn every_child_is_in_the_next_list() {
        let mut family = Family::of(std::process::id(), rustix::param::page_size() as u64);
        assert_eq!(family.pids()[0], std::process::id());
        let mut children = Vec::new();
        for _ in 0..20 {
            let child = sleeper();
            assert!(family.pids().contains(&child.id()));
            children.push(child);
        }
        for mut child in children {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }

    #[test]
    fn the_list_is_made_anew_when_somebody_was_born() {
        let own = std::process::id();
        let mut family = Family::of(own, rustix::param::page_size() as u64);
        let marked = vec![own, 1, 2];
        for (last_born, is_kept) in [
            (Some(7), false),
            (Some(7), true),
            (Some(8), false),
            (None, false),
            (None, false),
        ] {
            family.pids.clone_from(&marked);
            assert_eq!(family.pids_as_of(last_born) == marked, is_kept);
        }
    }
}
