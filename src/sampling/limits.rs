//! Sizes and times that bound a recording: read alike by the agent, from its environment, and by the command, which says at
//! once that a program would run without a profile.

use crate::interval::{Interval, IntervalSetting};

/// The values that these settings accept, for error messages.
type Expected = &'static str;

/// The maximum size of a profile.
pub fn parse_max_size(text: &[u8]) -> Result<u64, Expected> {
    // What a drain thread writes at once must fit.
    parse_size(text, 1 << 20).ok_or("expected bytes, at least 1M, as in 64M or 1G")
}

/// The maximum size of a profile in several files, all parts together.
pub fn parse_max_size_rotated(text: &[u8]) -> Result<u64, Expected> {
    // What waits in a full ring comes to 2 MiB, and must fit beside the file before.
    parse_size(text, 8 << 20)
        .ok_or("expected at least 8M for a profile that goes on in other files")
}

/// The size at which a profile continues in another file.
pub fn parse_rotate_size(text: &[u8]) -> Result<u64, Expected> {
    // A file has more to say first than to say, below this.
    parse_size(text, 64 << 10).ok_or("expected bytes, at least 64K, as in 16M or 1G")
}

/// A duration in milliseconds.
pub fn parse_time_ms(text: &[u8]) -> Result<u64, Expected> {
    time_ms(text).ok_or("expected a time from 1s to 365d, as in 30s, 10m, 1h or 7d")
}

fn parse_size(text: &[u8], least: u64) -> Option<u64> {
    match Interval::parse(text) {
        Ok(IntervalSetting::Every(size)) if size.bytes() >= least => Some(size.bytes()),
        _ => None,
    }
}

fn time_ms(text: &[u8]) -> Option<u64> {
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
    use std::string::ToString;

    #[test]
    fn times_are_read_exactly_or_not_at_all() {
        for (text, ms) in [
            ("1s", 1000),
            ("10m", 600_000),
            ("2h", 7_200_000),
            ("365d", 31_536_000_000),
        ] {
            assert_eq!(parse_time_ms(text.as_bytes()), Ok(ms), "{text}");
        }
        for text in ["", "10", "0s", "400d", "m", "1.5h", "99999999999999999999d"] {
            assert!(parse_time_ms(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_a_least() {
        type Parse = fn(&[u8]) -> Result<u64, Expected>;
        let parsers: [(Parse, u64); 3] = [
            (parse_max_size, 1 << 20),
            (parse_max_size_rotated, 8 << 20),
            (parse_rotate_size, 64 << 10),
        ];
        for (parse, least) in parsers {
            assert_eq!(parse(least.to_string().as_bytes()), Ok(least));
            assert!(parse((least - 1).to_string().as_bytes()).is_err());
            assert_eq!(parse(b"64M"), Ok(64 << 20));
            for text in ["0", "off", "", "64k b", "-64M"] {
                assert!(parse(text.as_bytes()).is_err(), "{text}");
            }
        }
    }

    #[test]
    fn numbers_are_digits_below_2_to_the_64th() {
        assert_eq!(parse_decimal(b"18446744073709551615"), Some(u64::MAX));
        for text in ["18446744073709551616", "", "12a", "+1", " 1"] {
            assert_eq!(parse_decimal(text.as_bytes()), None, "{text}");
        }
    }
}
