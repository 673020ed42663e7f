//! Samples that were due before there was a recording to count them in.

use core::sync::atomic::{AtomicU64, Ordering};

use allocsample_record::LostReason;

use crate::os::signals::Held;
use crate::recording::Recording;

/// The number of such samples, and the bytes that they stand for.
pub(super) struct LostBefore {
    samples: AtomicU64,
    bytes: AtomicU64,
}

impl LostBefore {
    /// None.
    pub const fn new() -> Self {
        Self {
            samples: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Counts one sample that stands for `bytes`.
    pub fn count(&self, bytes: u64) {
        self.add(1, bytes);
    }

    /// Sets both counts to zero.
    pub fn clear(&self) {
        self.take();
    }

    /// Moves both counts into the recording. If a signal handler has ended that in the meantime, they wait for the next one.
    pub fn write(&self, recording: &Recording) {
        if self.samples.load(Ordering::Relaxed) == 0 {
            return;
        }
        // A handler could end the recording between the look and the count.
        let _held = Held::unless_filtered();
        let (samples, bytes) = self.take();
        match recording.is_current() {
            true => recording.count_lost(LostReason::WriteFailed, samples, bytes),
            false => self.add(samples, bytes),
        }
    }

    fn add(&self, samples: u64, bytes: u64) {
        self.samples.fetch_add(samples, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn take(&self) -> (u64, u64) {
        let samples = self.samples.swap(0, Ordering::Relaxed);
        (samples, self.bytes.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_taken_once() {
        let lost = LostBefore::new();
        lost.count(100);
        lost.count(28);
        assert_eq!(lost.take(), (2, 128));
        assert_eq!(lost.take(), (0, 0));
        lost.count(1);
        lost.clear();
        assert_eq!(lost.take(), (0, 0));
    }
}
