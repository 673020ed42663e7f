//! Paths, built without a heap.

use core::ffi::CStr;

/// The kernel's limit for a path, with its NUL.
pub const PATH_BYTES: usize = 4096;

/// A path that ends in NUL, and grows until it no longer fits (then it is [`Path::is_too_long`]).
#[derive(Clone)]
pub struct Path {
    bytes: [u8; PATH_BYTES],
    length: usize,
    is_too_long: bool,
}

impl Path {
    /// The empty path.
    pub const fn new() -> Self {
        Self {
            bytes: [0; PATH_BYTES],
            length: 0,
            is_too_long: false,
        }
    }

    /// Adds `part` at the end.
    pub fn push(&mut self, part: &[u8]) -> &mut Self {
        let end = self.length + part.len();
        match self.bytes.get_mut(self.length..end) {
            // One byte stays for the NUL.
            Some(place) if end < PATH_BYTES => {
                place.copy_from_slice(part);
                self.length = end;
            }
            _ => self.is_too_long = true,
        }
        self
    }

    /// Adds a number in decimal.
    pub fn push_decimal(&mut self, number: u64) -> &mut Self {
        let mut digits = [0; 20];
        self.push(decimal(number, &mut digits))
    }

    /// Whether something did not fit.
    pub fn is_too_long(&self) -> bool {
        self.is_too_long
    }

    /// The path without the NUL.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&[])
    }

    /// The path as the kernel takes it. An embedded NUL ends it early.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }

    /// The directory of the path: everything before the last slash, or `.`.
    pub fn directory(&self) -> Path {
        let mut directory = Path::new();
        match self.as_bytes().iter().rposition(|&byte| byte == b'/') {
            Some(0) => directory.push(b"/"),
            Some(slash) => directory.push(self.as_bytes().get(..slash).unwrap_or(&[])),
            None => directory.push(b"."),
        };
        directory
    }
}

/// Writes `number` in decimal at the end of `digits`, and returns the digits.
pub fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut start = digits.len();
    for (at, place) in digits.iter_mut().enumerate().rev() {
        // A remainder of ten fits.
        *place = b'0' + (number % 10) as u8;
        number /= 10;
        start = at;
        if number == 0 {
            break;
        }
    }
    digits.get(start..).unwrap_or(&[])
}

/// The part of a path behind its last slash.
pub fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_grows_until_there_is_no_room_for_its_nul() {
        let mut path = Path::new();
        path.push(b"/tmp/")
            .push_decimal(0)
            .push(b".")
            .push_decimal(u64::MAX);
        assert_eq!(path.as_bytes(), b"/tmp/0.18446744073709551615");
        assert_eq!(path.as_c_str().to_bytes(), path.as_bytes());
        let mut path = Path::new();
        path.push(&[b'x'; PATH_BYTES - 1]);
        assert!(!path.is_too_long());
        assert_eq!(path.as_c_str().to_bytes().len(), PATH_BYTES - 1);
        path.push(b"y");
        assert!(path.is_too_long());
        assert_eq!(path.as_bytes().len(), PATH_BYTES - 1);
    }

    #[test]
    fn a_path_has_a_directory_and_a_name() {
        let directory = |path: &[u8]| Path::new().push(path).directory().as_bytes().to_vec();
        assert_eq!(directory(b"/a/b/c"), b"/a/b");
        assert_eq!(directory(b"/c"), b"/");
        assert_eq!(directory(b"c"), b".");
        assert_eq!(file_name(b"/a/b/c"), b"c");
        assert_eq!(file_name(b"c"), b"c");
        assert_eq!(file_name(b"a/"), b"");
    }
}
