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

/// Whether it grew or shrank, and by how much in a minute.
pub(crate) fn change(bytes_per_s: f64) -> String {
    let verb = if bytes_per_s < 0.0 { "shrank" } else { "grew" };
    format!("{verb} by {}", rate(bytes_per_s.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shrinks_does_not_grow_by_less_than_nothing() {
        const MIB: f64 = (1 << 20) as f64;
        for (mib_per_minute, text) in [
            (48.0, "grew by 48.0 MiB/min"),
            (0.0, "grew by 0 B/min"),
            (-22.8, "shrank by 22.8 MiB/min"),
        ] {
            assert_eq!(change(mib_per_minute * MIB / 60.0), text);
        }
    }
}
