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

    /// Writes these bytes.
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        // Opened for this one time: an attach that only reads cannot write by mistake.
        let file = OpenOptions::new()
            .write(true)
            .open(format!("/proc/{}/mem", self.pid))?;
        file.write_all_at(bytes, address)
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

/// The same memory as the loader is going to leave it, for a program that has not begun to run.
#[derive(Debug)]
pub struct Relocated<'a, M> {
    pub memory: &'a M,
    /// Addresses and contents, both without the bias, sorted.
    pub relocations: &'a [(u64, u64)],
    pub bias: u64,
}

impl<M: Memory> Memory for Relocated<'_, M> {
    fn read_some(&self, address: u64, into: &mut [u8]) -> usize {
        let length = self.memory.read_some(address, into);
        let start = address.wrapping_sub(self.bias);
        let first = self.relocations.partition_point(|&(at, _)| at < start);
        for &(at, word) in &self.relocations[first..] {
            let place = usize::try_from(at - start).ok();
            // A word at the border is whole or not there: nobody reads halves.
            let place = place.and_then(|place| into[..length].get_mut(place..)?.first_chunk_mut());
            let Some(place) = place else {
                break;
            };
            *place = word.wrapping_add(self.bias).to_le_bytes();
        }
        length
    }
}
