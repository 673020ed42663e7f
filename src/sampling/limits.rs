//! Sizes and times that bound a recording: read alike by the agent, from its environment, and by the command, which says at
//! once that a program would run without a profile.

use crate::interval::{Interval, IntervalSetting};

/// The least that a profile may be bounded to: what a drain thread writes at once must fit.
pub const LEAST_MAX_SIZE_BYTES: u64 = 1 << 20;
/// The same for one that goes on in other files: what waits in a full ring comes to 2 MiB, and must fit beside the file
/// before.
pub const LEAST_MAX_SIZE_ROTATED_BYTES: u64 = 8 << 20;
/// A file has more to say first than to say, below this.
pub const LEAST_ROTATE_SIZE_BYTES: u64 = 64 << 10;

/// Reads `64M` or `1G` as bytes. `None` if it is nothing of that kind, or less than `least`.
pub fn parse_size(text: &[u8], least: u64) -> Option<u64> {
    match Interval::parse(text) {
        Ok(IntervalSetting::Every(size)) if size.bytes() >= least => Some(size.bytes()),
        _ => None,
    }
}

/// Reads `30s`, `10m`, `1h` or `7d` as milliseconds. `None` if it is nothing of that kind, less than a second or more than
/// a year.
pub fn parse_time_ms(text: &[u8]) -> Option<u64> {
    const SECOND_MS: u64 = 1000;
    const YEAR_MS: u64 = 365 * 24 * 3600 * SECOND_MS;
    let (unit, number) = text.split_last()?;
    let unit_ms = match unit {
        b's' => SECOND_MS,
        b'm' => 60 * SECOND_MS,
        b'h' => 3600 * SECOND_MS,
        b'd' => 24 * 3600 * SECOND_MS,
        _ => return None,
    };
    let ms = parse_decimal(number)?.checked_mul(unit_ms)?;
    (SECOND_MS..=YEAR_MS).contains(&ms).then_some(ms)
}

/// Reads digits, and nothing but digits.
pub fn parse_decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |number, &digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_exactly_or_not_at_all() {
        for (text, ms) in [
            ("1s", 1000),
            ("10m", 600_000),
            ("2h", 7_200_000),
            ("365d", 31_536_000_000),
        ] {
            assert_eq!(parse_time_ms(text.as_bytes()), Some(ms), "{text}");
        }
        for text in ["", "10", "0s", "400d", "m", "1.5h", "99999999999999999999d"] {
            assert_eq!(parse_time_ms(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn sizes_have_a_least() {
        assert_eq!(parse_size(b"64K", LEAST_ROTATE_SIZE_BYTES), Some(64 << 10));
        for text in ["63K", "0", "off", "", "64k b", "-1M"] {
            assert_eq!(parse_size(text.as_bytes(), 64 << 10), None, "{text}");
        }
    }
}
