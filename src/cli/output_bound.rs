//! A limit on the length of an output: a verbose format can turn a small file into a full disk.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use allocsample_profile::limits_are_lifted;

/// Bytes that any output may have.
const BASE_BYTES: u64 = 512 << 20;
/// Further bytes that it may have per byte of the profiles.
const TIMES: u64 = 512;

/// Bytes of the profiles that were read.
static PROFILES_BYTES: AtomicU64 = AtomicU64::new(0);

/// Raises the limit for one more profile.
pub fn allow_profile(file_bytes: u64) {
    PROFILES_BYTES.fetch_add(file_bytes, Ordering::Relaxed);
}

/// Passes everything on until the limit is reached.
pub struct Bounded<W> {
    out: W,
    left: u64,
}

impl<W> Bounded<W> {
    /// With the limit for the profiles that were read.
    pub fn new(out: W) -> Self {
        let profiles_bytes = PROFILES_BYTES.load(Ordering::Relaxed);
        let left = match limits_are_lifted() {
            true => u64::MAX,
            false => BASE_BYTES.saturating_add(profiles_bytes.saturating_mul(TIMES)),
        };
        Self { out, left }
    }

    /// The underlying output.
    pub fn into_inner(self) -> W {
        self.out
    }
}

impl<W: Write> Write for Bounded<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            return Err(io::Error::other(
                "the output is far longer than one of such profiles (--no-limits allows it)",
            ));
        }
        let written = self.out.write(bytes)?;
        self.left = self.left.saturating_sub(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_not_written() {
        let mut out = Bounded {
            out: Vec::new(),
            left: 5,
        };
        out.write_all(b"four").unwrap();
        let error = out.write_all(b"more").unwrap_err();
        assert!(error.to_string().contains("--no-limits"), "{error}");
        assert_eq!(out.into_inner(), b"four");
    }
}
