//! How much memory a process has, by the kernel's account.
//!
//! The sums come from `statm`, which takes a few microseconds whatever the size of the process; where the memory is
//! comes from `smaps`, which takes the kernel a walk over all pages. [`Watch`] decides when to read which. The drain
//! thread reads its own process, and a command one from outside; neither runs on a thread of the program.
#![forbid(unsafe_code)]

mod group;
mod smaps;
mod static_data;
mod steady;
mod watch;

use std::fs::File;
use std::io::{BufReader, Read};

use allocsample_record::{MemoryMap, MemoryTotals};

use smaps::read_map;
use static_data::Modules;

pub use group::Group;
pub use steady::Steady;
pub use watch::{Due, Watch};

/// A process whose memory is read.
#[derive(Clone, Debug)]
pub struct Source {
    directory: String,
    page_bytes: u64,
}

impl Source {
    /// The calling process. `page_bytes` is the size of a page, for the kernel counts in pages.
    pub fn own(page_bytes: u64) -> Self {
        Self {
            directory: "/proc/self".to_owned(),
            page_bytes,
        }
    }

    /// Another process.
    pub fn of(pid: u32, page_bytes: u64) -> Self {
        Self {
            directory: format!("/proc/{pid}"),
            page_bytes,
        }
    }

    /// The sums, without the peak. `None`: the process is gone, or the kernel refuses.
    pub fn totals(&self, time_ns: u64) -> Option<MemoryTotals> {
        let mut buffer = [0; 128];
        let mut file = File::open(format!("{}/statm", self.directory)).ok()?;
        let length = file.read(&mut buffer).ok()?;
        let totals = statm(buffer.get(..length)?, self.page_bytes, time_ns)?;
        // A process that has ended and is not reaped yet has no memory any more.
        (totals.resident_bytes > 0).then_some(totals)
    }

    /// The sums with the peak.
    pub fn totals_and_peak(&self, time_ns: u64) -> Option<MemoryTotals> {
        let totals = self.totals(time_ns)?;
        let status = std::fs::read(format!("{}/status", self.directory)).ok()?;
        Some(MemoryTotals {
            peak_resident_bytes: kib_in(&status, b"VmHWM:").unwrap_or(0),
            ..totals
        })
    }

    /// The sums with all mappings, the peak, and the figures of the control group.
    pub fn map(&self, time_ns: u64) -> Option<MemoryMap> {
        let status = std::fs::read(format!("{}/status", self.directory)).ok()?;
        let file = File::open(format!("{}/smaps", self.directory)).ok()?;
        let mut modules = Modules::of(&self.directory, self.page_bytes);
        let mut map = read_map(&mut BufReader::with_capacity(1 << 16, file), &mut modules).ok()?;
        map.group = Group::of(&self.directory).map_or_else(Vec::new, |group| group.figures());
        map.totals.time_ns = time_ns;
        map.totals.peak_resident_bytes = kib_in(&status, b"VmHWM:").unwrap_or(0);
        (map.totals.resident_bytes > 0).then_some(map)
    }

    /// The processes that it has started and that run. Empty where the kernel does not tell.
    pub fn children(&self) -> Vec<u32> {
        let Ok(tasks) = std::fs::read_dir(format!("{}/task", self.directory)) else {
            return Vec::new();
        };
        let lists = tasks
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let mut children = Vec::new();
        for list in lists {
            let pids = list.split_ascii_whitespace();
            children.extend(pids.filter_map(|pid| pid.parse::<u32>().ok()));
        }
        children
    }
}

/// `size resident shared ...`, in pages; what is resident and not shared is anonymous.
fn statm(text: &[u8], page_bytes: u64, time_ns: u64) -> Option<MemoryTotals> {
    let mut fields = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let mut pages = || fields.next()?.parse::<u64>().ok();
    let (_size, resident, shared) = (pages()?, pages()?, pages()?);
    let bytes = |pages: u64| pages.checked_mul(page_bytes);
    Some(MemoryTotals {
        time_ns,
        resident_bytes: bytes(resident)?,
        anonymous_bytes: bytes(resident.saturating_sub(shared))?,
        peak_resident_bytes: 0,
    })
}

/// The figure in a line like `VmHWM:     1234 kB`, in bytes.
fn kib_in(text: &[u8], label: &[u8]) -> Option<u64> {
    let lines = text.split(|&byte| byte == b'\n');
    let figure = lines
        .filter_map(|line| line.strip_prefix(label))
        .find_map(|rest| std::str::from_utf8(rest).ok())?;
    let kib: u64 = figure.split_ascii_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_resident_and_not_shared_is_anonymous() {
        let totals = statm(b"5000 300 100 1 0 200 0\n", 4096, 7).expect("three figures");
        assert_eq!(totals.resident_bytes, 300 * 4096);
        assert_eq!(totals.anonymous_bytes, 200 * 4096);
        assert_eq!(totals.time_ns, 7);
        assert_eq!(statm(b"5000 300", 4096, 7), None);
        assert_eq!(statm(b"", 4096, 7), None);
    }

    #[test]
    fn the_peak_is_read_from_the_status() {
        let status = b"VmPeak:\t  900 kB\nVmHWM:\t     512 kB\nVmRSS:\t 4 kB\n";
        assert_eq!(kib_in(status, b"VmHWM:"), Some(512 << 10));
        assert_eq!(kib_in(status, b"VmNone:"), None);
    }

    #[test]
    fn both_ways_of_reading_agree_about_this_process() {
        const BYTES: usize = 32 << 20;
        let block = std::hint::black_box(vec![1_u8; BYTES]);
        let source = Source::own(4096);
        let totals = source.totals(1).expect("statm");
        let map = source.map(2).expect("smaps");
        drop(block);
        let (statm, smaps) = (totals.anonymous_bytes, map.totals.anonymous_bytes);
        assert!(statm > BYTES as u64 && smaps > BYTES as u64);
        // Other tests of this process allocate a little meanwhile.
        assert!(statm.abs_diff(smaps) < 4 << 20, "{statm} {smaps}");
        assert!(map.totals.peak_resident_bytes >= map.totals.anonymous_bytes);
        let of_mappings: u64 = map.mappings.iter().map(|it| it.anonymous_bytes).sum();
        assert_eq!(of_mappings, smaps);
    }
}
