//! Growth in a unit of time that fits the run.

use allocsample_report::units;

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    seconds: f64,
    words: &'static str,
}

impl Pace {
    /// Hours for a run of hours; for a short one what does not multiply its noise by thousands.
    pub fn for_run(seconds: f64) -> Self {
        let (seconds, words) = if seconds >= 7200.0 {
            (3600.0, "/h")
        } else if seconds >= 10.0 {
            (60.0, "/min")
        } else {
            (1.0, "/s")
        };
        Self { seconds, words }
    }

    /// `12.3 MiB/h`.
    pub fn rate(self, bytes_per_s: f64) -> String {
        format!("{}{}", self.bytes(bytes_per_s), self.words)
    }

    /// The same without the unit of time.
    pub fn bytes(self, bytes_per_s: f64) -> String {
        units::bytes(bytes_per_s * self.seconds)
    }
}
