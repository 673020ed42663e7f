//! Numbers as text, without the detour over a formatter: a large profile has a hundred million of them.

use std::io::Write;

/// Adds a whole number.
pub(crate) fn put(number: u64, text: &mut Vec<u8>) {
    text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Adds a number as Rust displays it: the shortest that is read back as the same, without an exponent.
pub(crate) fn put_f64(number: f64, text: &mut Vec<u8>) {
    /// Below it all whole numbers are exact.
    const EXACT: f64 = (1_u64 << 53) as f64;
    if (0.0..EXACT).contains(&number) && number.fract() == 0.0 && !number.is_sign_negative() {
        // Whole, and in range.
        put(number as u64, text);
    } else {
        // A vector takes all that it is given.
        let _ = write!(text, "{number}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(number: f64) -> String {
        let mut text = Vec::new();
        put_f64(number, &mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn numbers_are_what_rust_displays() {
        let odd = [0.0, -0.0, -1.0, 1e15, 1e16, 1e300, f64::NAN, f64::INFINITY];
        for number in odd {
            assert_eq!(text(number), number.to_string());
        }
    }

    proptest! {
        #[test]
        fn all_numbers_are_what_rust_displays(number: f64, whole: u64) {
            prop_assert_eq!(text(number), number.to_string());
            prop_assert_eq!(text(whole as f64), (whole as f64).to_string());
        }
    }
}
