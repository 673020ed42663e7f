//! Variable-length integers: seven bits a byte, low bits first (LEB128); signed values are zigzag-coded first.

/// The longest encoding of a `u64`.
pub const MAX_VARINT_BYTES: usize = 10;

/// Writes `value` to the front of `out`; returns the bytes written, or `None` if they do not fit.
#[inline]
pub fn put_unsigned(out: &mut [u8], mut value: u64) -> Option<usize> {
    let mut length = 0;
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        *out.get_mut(length)? = if value == 0 { byte } else { byte | 0x80 };
        length += 1;
        if value == 0 {
            return Some(length);
        }
    }
}

/// Appends `value` to `out`.
#[cfg(feature = "alloc")]
pub(crate) fn push_unsigned(out: &mut alloc::vec::Vec<u8>, value: u64) {
    let mut bytes = [0; MAX_VARINT_BYTES];
    let length = put_unsigned(&mut bytes, value).unwrap_or(0);
    out.extend_from_slice(&bytes[..length]);
}

/// Writes a signed `value`, small magnitudes short: 0, -1, 1, -2 become 0, 1, 2, 3.
pub fn put_signed(out: &mut [u8], value: i64) -> Option<usize> {
    put_unsigned(out, zigzag(value))
}

/// Reads one unsigned integer from the front of `input` and moves `input` past it. `None`: cut short, or more than 64 bits.
#[inline(always)]
pub fn take_unsigned(input: &mut &[u8]) -> Option<u64> {
    // Most are of one byte.
    if let Some((&byte, rest)) = input.split_first()
        && byte < 0x80
    {
        *input = rest;
        return Some(u64::from(byte));
    }
    take_several(input)
}

/// The same for one of several bytes.
#[inline(always)]
fn take_several(input: &mut &[u8]) -> Option<u64> {
    // Without branches for those of at most eight, unless they are the last of a chunk.
    if let Some(bytes) = input.first_chunk() {
        let word = u64::from_le_bytes(*bytes);
        let last = !word & 0x8080_8080_8080_8080;
        if last != 0 {
            let length = last.trailing_zeros() as usize / 8 + 1;
            *input = input.get(length..)?;
            return Some(joined(word & (last ^ (last - 1))));
        }
    }
    let (value, rest) = take_bytewise(input)?;
    *input = rest;
    Some(value)
}

/// The lower seven bits of each byte, side by side.
#[inline]
fn joined(bytes: u64) -> u64 {
    let pairs = (bytes & 0x007f_007f_007f_007f) | (bytes & 0x7f00_7f00_7f00_7f00) >> 1;
    let fours = (pairs & 0x0000_3fff_0000_3fff) | (pairs & 0x3fff_0000_3fff_0000) >> 2;
    (fours & 0x0fff_ffff) | (fours & 0x0fff_ffff_0000_0000) >> 4
}

#[cold]
fn take_bytewise(input: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (index, &byte) in input.iter().enumerate().take(MAX_VARINT_BYTES) {
        let bits = u64::from(byte & 0x7f);
        let shift = 7 * index as u32;
        // The tenth byte has room for one bit only.
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some((value, &input[index + 1..]));
        }
    }
    None
}

/// Reads one signed integer; see [`take_unsigned`].
#[inline(always)]
pub fn take_signed(input: &mut &[u8]) -> Option<i64> {
    take_unsigned(input).map(unzigzag)
}

/// Small magnitudes become small numbers.
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Inverse of [`zigzag`].
#[inline]
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unsigned_round_trips(value: u64) {
            let mut buffer = [0; MAX_VARINT_BYTES];
            let length = put_unsigned(&mut buffer, value).unwrap();
            // At the end of the input, and with more behind it.
            for behind in [0, 1, 9] {
                let mut bytes = [0xa5; 2 * MAX_VARINT_BYTES];
                bytes[..length].copy_from_slice(&buffer[..length]);
                let mut input = &bytes[..length + behind];
                prop_assert_eq!(take_unsigned(&mut input), Some(value));
                prop_assert_eq!(input.len(), behind);
            }
            prop_assert_eq!(take_unsigned(&mut &buffer[..length - 1]), None);
        }

        #[test]
        fn signed_round_trips(value: i64) {
            let mut buffer = [0; MAX_VARINT_BYTES];
            let length = put_signed(&mut buffer, value).unwrap();
            prop_assert_eq!(take_signed(&mut &buffer[..length]), Some(value));
        }
    }

    #[test]
    fn more_than_64_bits_are_refused() {
        assert_eq!(take_unsigned(&mut &[0xff; 10][..]), None);
        assert_eq!(take_unsigned(&mut &[0x80; 11][..]), None);
    }

    #[test]
    fn a_full_buffer_is_refused() {
        assert_eq!(put_unsigned(&mut [0; 1], 128), None);
    }
}
