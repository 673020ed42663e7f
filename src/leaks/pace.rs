//! Growth in the one unit of time that all outputs have, so that figures can be compared.

use allocsample_report::units;

const SECONDS: f64 = 60.0;

/// `12.3 MiB/min`.
pub(crate) fn rate(bytes_per_s: f64) -> String {
    format!("{}/min", per_minute(bytes_per_s))
}

/// The same without the unit of time.
pub(crate) fn per_minute(bytes_per_s: f64) -> String {
    units::bytes(bytes_per_s * SECONDS)
}
