//! Another process as a target, by the files of `/proc/PID`.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::by_content::Contents;
use crate::heap::Heap;
use crate::window::{Mapping, Target};

/// A process whose memory is read. It is identified by its memory: if it executes another program, reading ends.
#[derive(Debug)]
pub struct Process {
    directory: String,
    memory: File,
    pages: File,
    page_bytes: u64,
    until: Instant,
    is_late: Cell<bool>,
}

/// 13 million blocks in 1.1 GiB took 0.6 s of CPU time: this is far more than any heap needs that is walked at all.
const MOST_TIME: Duration = Duration::from_secs(60);
/// What the kernel says of a page, in a file with one word per page.
const ENTRY_BYTES: usize = 8;
const IS_PRESENT: u64 = 1 << 63;

impl Process {
    /// The process with this number. An error if it is gone, or if the kernel does not allow reading it: this takes the same
    /// right as a debugger.
    pub fn open(pid: u32, page_bytes: u64) -> io::Result<Self> {
        let directory = format!("/proc/{pid}");
        Ok(Self {
            memory: File::open(format!("{directory}/mem"))?,
            pages: File::open(format!("{directory}/pagemap"))?,
            directory,
            page_bytes,
            until: Instant::now() + MOST_TIME,
            is_late: Cell::new(false),
        })
    }

    /// What its malloc holds. `Ok(None)`: it has no arena of glibc's malloc in use, or reading was given up.
    pub fn heap(&self) -> io::Result<Option<Heap>> {
        /// Arenas that change while they are read do not look like any.
        const ATTEMPTS: usize = 3;
        for _ in 0..ATTEMPTS {
            let heap = Heap::walk(self, &self.mappings()?);
            if heap.is_some() || self.is_late() {
                return Ok(heap);
            }
        }
        Ok(None)
    }

    /// What is known by its content alone, beside what was walked.
    pub fn contents(&self, heap: Option<&Heap>) -> io::Result<Contents> {
        let walked = heap.into_iter().flat_map(Heap::pieces);
        let walked: Vec<_> = walked.map(|it| it.start..it.end).collect();
        Ok(Contents::find(self, &self.mappings()?, &walked))
    }

    /// Whether reading took so long that it was given up.
    pub fn is_late(&self) -> bool {
        self.is_late.get()
    }

    fn mappings(&self) -> io::Result<Vec<Mapping>> {
        let mut text = Vec::new();
        File::open(format!("{}/maps", self.directory))?.read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        Ok(text.lines().filter_map(mapping).collect())
    }
}

/// `start-end rwxp offset device inode    name`, of one that can be read and written.
fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?;
    let name = fields.nth(3).unwrap_or_default().trim_start();
    let address = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    let is_private = rights.ends_with('p');
    (rights.starts_with("rw") && is_private && start < end).then(|| Mapping {
        start,
        end,
        name: name.to_owned(),
    })
}

impl Target for Process {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        if Instant::now() > self.until {
            self.is_late.set(true);
            return 0;
        }
        let mut done = 0;
        while done < into.len() {
            match self
                .memory
                .read_at(&mut into[done..], address + done as u64)
            {
                Ok(0) | Err(_) => break,
                Ok(more) => done += more,
            }
        }
        done
    }

    fn residents(&self, start: u64, count: usize) -> Vec<bool> {
        const AT_ONCE: usize = 1 << 16;
        let mut residents = Vec::with_capacity(count);
        let mut entries = vec![0; count.min(AT_ONCE) * ENTRY_BYTES];
        while residents.len() < count {
            let length = (count - residents.len()).min(AT_ONCE) * ENTRY_BYTES;
            let page = start / self.page_bytes + residents.len() as u64;
            let read = (self.pages)
                .read_at(&mut entries[..length], page * ENTRY_BYTES as u64)
                .unwrap_or(0);
            if read < ENTRY_BYTES {
                break;
            }
            let words = entries[..read].chunks_exact(ENTRY_BYTES);
            residents.extend(words.map(|word| {
                let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
                word & IS_PRESENT != 0
            }));
        }
        residents.resize(count, false);
        residents
    }

    fn page_bytes(&self) -> u64 {
        self.page_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_mappings_that_can_be_written_are_kept() {
        let line = "55d010000000-55d010400000 rw-p 00000000 00:00 0          [heap]";
        let heap = mapping(line).expect("a mapping");
        assert_eq!((heap.end - heap.start, &*heap.name), (4 << 20, "[heap]"));
        let nameless = mapping("7f0000000000-7f0000001000 rw-p 00000000 00:00 0 ");
        assert_eq!(nameless.expect("a mapping").name, "");
        for line in [
            "7f0000000000-7f0000001000 ---p 00000000 00:00 0 ",
            "7f0000000000-7f0000001000 rw-s 00000000 00:01 7 /memfd:x (deleted)",
            "7f0000001000-7f0000000000 rw-p 00000000 00:00 0 ",
            "nonsense",
        ] {
            assert_eq!(mapping(line), None, "{line}");
        }
    }
}
