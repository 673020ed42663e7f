//! The memory of another process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// Memory that may be gone at any time.
pub trait Memory {
    /// Reads from `address` on; how many bytes there were before the end of what can be read.
    fn read_some(&self, address: u64, into: &mut [u8]) -> usize;

    /// Fills `into` from `address`; false if a byte of it cannot be read.
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.read_some(address, into) == into.len()
    }

    /// A word.
    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)
            .then(|| u64::from_le_bytes(bytes))
    }

    /// As many words as `count`.
    fn words(&self, address: u64, count: usize) -> Option<Vec<u64>> {
        let mut bytes = vec![0; count * 8];
        self.read(address, &mut bytes).then(|| words_of(&bytes))
    }
}

/// The words that these bytes are.
pub(crate) fn words_of(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.chunks_exact(8);
    words
        .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
        .collect()
}

/// The memory of a process, by `/proc/PID/mem`. It stays that of the program that ran when it was opened: after an exec,
/// reading fails.
#[derive(Debug)]
pub struct ProcessMemory {
    pid: u32,
    file: File,
}

impl ProcessMemory {
    /// The memory of this process.
    pub fn open(pid: u32) -> io::Result<Self> {
        let file = File::open(format!("/proc/{pid}/mem"))?;
        Ok(Self { pid, file })
    }

    /// Writes a word.
    pub fn write(&self, address: u64, word: u64) -> io::Result<()> {
        // Opened for this one time: an attach that only reads cannot write by mistake.
        let file = OpenOptions::new()
            .write(true)
            .open(format!("/proc/{}/mem", self.pid))?;
        file.write_all_at(&word.to_le_bytes(), address)
    }
}

impl Memory for ProcessMemory {
    fn read_some(&self, address: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            match self
                .file
                .read_at(&mut into[done..], address.wrapping_add(done as u64))
            {
                Ok(0) | Err(_) => break,
                Ok(more) => done += more,
            }
        }
        done
    }
}
