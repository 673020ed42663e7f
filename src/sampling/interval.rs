//! The sampling interval as a quantity, with what a user may write for it.

use core::fmt;

/// Mean number of allocated bytes between two samples: 1 to 2^63 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interval(u64);

impl Interval {
    /// 1 byte: every allocation is a sample.
    pub const EVERY_ALLOCATION: Interval = Interval(1);
    /// 512 KiB: one sample for every half megabyte, which costs a program well under one percent.
    pub const DEFAULT: Interval = Interval(512 << 10);
    /// 2^63 - 1 bytes: practically no samples.
    pub const MAX: Interval = Interval(u64::MAX >> 1);

    /// `None`: 0, or above [`Interval::MAX`].
    pub const fn new(bytes: u64) -> Option<Interval> {
        if bytes == 0 || bytes > Self::MAX.0 {
            return None;
        }
        Some(Interval(bytes))
    }

    /// The interval in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The interval under which an allocation of `size` bytes is sampled with probability `1 / count`, as near as whole bytes
    /// come: `size / -ln(1 - 1/count)`. `None`: `count` is 1, which no interval above one byte means, or nothing.
    pub fn of_one_in(count: u32, size: u64) -> Option<Interval> {
        if count < 2 {
            return None;
        }
        let bytes = -(size as f64) / libm::log1p(-1.0 / f64::from(count));
        // Saturates, which `as` does from floats.
        Self::new(libm::round(bytes) as u64)
    }

    /// Reads `1`, `4096`, `64k`, `512K`, `512KiB`, `1M`, `2G`, `1T` (units of 1024, in either case) or `off`.
    pub fn parse(text: &[u8]) -> Result<IntervalSetting, IntervalError> {
        if text.eq_ignore_ascii_case(b"off") {
            return Ok(IntervalSetting::Off);
        }
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, unit) = text
            .split_at_checked(digits)
            .filter(|(digits, _)| !digits.is_empty())
            .ok_or(IntervalError::NotANumber)?;
        let number = digits.iter().try_fold(0_u64, |number, digit| {
            number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
        });
        let bytes = number
            .ok_or(IntervalError::TooLarge)?
            .checked_mul(unit_bytes(unit).ok_or(IntervalError::UnknownUnit)?)
            .ok_or(IntervalError::TooLarge)?;
        if bytes == 0 {
            return Err(IntervalError::Zero);
        }
        Interval::new(bytes)
            .map(IntervalSetting::Every)
            .ok_or(IntervalError::TooLarge)
    }
}

fn unit_bytes(unit: &[u8]) -> Option<u64> {
    let (letter, rest) = match unit.split_first() {
        None => return Some(1),
        Some(parts) => parts,
    };
    let shift = match letter.to_ascii_lowercase() {
        b'k' => 10,
        b'm' => 20,
        b'g' => 30,
        b't' => 40,
        _ => return None,
    };
    (rest.is_empty() || rest.eq_ignore_ascii_case(b"ib")).then_some(1 << shift)
}

/// The shortest form that [`Interval::parse`] reads back: `512K`, `1000`.
impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shift, unit) = match self.0.trailing_zeros() {
            40.. => (40, "T"),
            30.. => (30, "G"),
            20.. => (20, "M"),
            10.. => (10, "K"),
            _ => (0, ""),
        };
        write!(f, "{}{unit}", self.0 >> shift)
    }
}

/// The setting of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntervalSetting {
    /// Take no samples.
    Off,
    /// Take one sample per this many bytes on average.
    Every(Interval),
}

/// Why a text is not an interval. The message does not contain the text; the caller names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntervalError {
    /// 0 means "every allocation" to some profilers and "off" to others.
    Zero,
    /// It does not begin with a digit.
    NotANumber,
    /// Something else than K, M, G or T follows the number.
    UnknownUnit,
    /// Above 2^63 - 1.
    TooLarge,
}

impl fmt::Display for IntervalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zero => "0 is ambiguous: use 1 to record every allocation, or off to record none",
            Self::NotANumber => "not an interval: expected bytes, as in 1, 512K or 1M, or off",
            Self::UnknownUnit => "unknown unit: expected K, M, G or T (or KiB, ...)",
            Self::TooLarge => "too large: the longest interval is 2^63 - 1 bytes",
        })
    }
}

impl core::error::Error for IntervalError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;

    fn every(bytes: u64) -> Result<IntervalSetting, IntervalError> {
        Ok(IntervalSetting::Every(Interval::new(bytes).unwrap()))
    }

    #[test]
    fn one_in_some_is_what_an_allocation_of_that_size_is_sampled_by() {
        for count in [2, 3, 64, 1000, 1 << 20] {
            for size in [4096_u64, 2 << 20] {
                let interval = Interval::of_one_in(count, size).unwrap();
                let chance = crate::inclusion_probability(size, interval);
                let error = chance * f64::from(count) - 1.0;
                // Half a byte of the interval.
                assert!(error.abs() < 1.0 / size as f64, "{count} {size}: {error}");
            }
        }
        assert_eq!(Interval::of_one_in(1, 4096), None);
        assert_eq!(Interval::of_one_in(0, 4096), None);
        assert_eq!(Interval::of_one_in(2, 0), None);
    }

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [
            ("1", 1),
            ("4096", 4096),
            ("512K", 512 << 10),
            ("512KiB", 512 << 10),
            ("64k", 64 << 10),
            ("1M", 1 << 20),
            ("2G", 2 << 30),
            ("3t", 3 << 40),
            ("007", 7),
            ("9223372036854775807", u64::MAX >> 1),
        ] {
            assert_eq!(Interval::parse(text.as_bytes()), every(bytes), "{text}");
        }
        for off in ["off", "OFF", "Off"] {
            assert_eq!(Interval::parse(off.as_bytes()), Ok(IntervalSetting::Off));
        }
    }

    #[test]
    fn refuses_the_rest_with_the_reason() {
        use IntervalError::*;
        for (text, error) in [
            ("0", Zero),
            ("0K", Zero),
            ("", NotANumber),
            ("K", NotANumber),
            ("-1", NotANumber),
            (" 1", NotANumber),
            ("on", NotANumber),
            ("1.5M", UnknownUnit),
            ("512KB", UnknownUnit),
            ("1 M", UnknownUnit),
            ("1Kib2", UnknownUnit),
            ("9223372036854775808", TooLarge),
            ("8388608T", TooLarge),
            ("99999999999999999999999", TooLarge),
            ("18446744073709551615T", TooLarge),
        ] {
            assert_eq!(Interval::parse(text.as_bytes()), Err(error), "{text}");
        }
        let message = Zero.to_string();
        assert!(message.contains("1 to record every allocation") && message.contains("off"));
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(bytes in 1..=Interval::MAX.bytes(), shift in 0..63_u32) {
            let interval = Interval::new((bytes >> shift).max(1) << shift).unwrap();
            let text = interval.to_string();
            prop_assert_eq!(Interval::parse(text.as_bytes()), Ok(IntervalSetting::Every(interval)));
        }

        #[test]
        fn no_text_panics(text: std::vec::Vec<u8>) {
            if let Ok(IntervalSetting::Every(interval)) = Interval::parse(&text) {
                prop_assert!(interval.bytes() >= 1);
            }
        }
    }

    #[test]
    fn is_written_in_the_largest_unit_that_is_exact() {
        for (bytes, text) in [
            (1, "1"),
            (1000, "1000"),
            (1025, "1025"),
            (512 << 10, "512K"),
            (1536 << 10, "1536K"),
            (1 << 20, "1M"),
            (5 << 30, "5G"),
            (3 << 40, "3T"),
        ] {
            assert_eq!(Interval::new(bytes).unwrap().to_string(), text);
        }
    }
}
