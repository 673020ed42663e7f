//! Address space that the program had reserved before an attach.
//!
//! Mappings without rights, private and of no file, are reservations: mprotect makes parts of them usable. The list of mappings
//! says which there are; the parts that are usable already stay with whatever mapped them.

use std::ffi::c_int;

/// Guard pages of stacks are smaller, and never become usable.
const LEAST_BYTES: usize = 1 << 20;

/// No line is longer: a path has 4,095 bytes at most.
const ROOM: usize = 8192;

unsafe extern "C" {
    fn shim_reserved_forget();
    fn shim_reserved_map(start: usize, bytes: usize, protection: c_int, flags: c_int);
}

/// Forgets what an earlier attach knew: calls since its detach were not seen.
pub fn forget() {
    // SAFETY: stores to atomics of the shim.
    unsafe { shim_reserved_forget() };
}

/// Notes the reservations that the kernel lists, as if the program had just made them.
pub fn note() {
    const PATH: &std::ffi::CStr = c"/proc/self/maps";
    // SAFETY: the path is a C string. The call blocks for no other thread.
    let fd = unsafe { libc::open(PATH.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return;
    }
    let mut buffer = [0_u8; ROOM];
    let mut used = 0;
    loop {
        // SAFETY: the buffer has this room from `used` on.
        let read = unsafe { libc::read(fd, buffer[used..].as_mut_ptr().cast(), ROOM - used) };
        let Some(read) = usize::try_from(read).ok().filter(|read| *read > 0) else {
            break;
        };
        let end = used + read;
        let whole = (buffer[..end].iter().rposition(|byte| *byte == b'\n')).map_or(0, |at| at + 1);
        for line in buffer[..whole].split(|byte| *byte == b'\n') {
            if let Some((start, bytes)) = reservation(line) {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                // SAFETY: the shim notes numbers.
                unsafe { shim_reserved_map(start, bytes, libc::PROT_NONE, flags) };
            }
        }
        buffer.copy_within(whole..end, 0);
        used = end - whole;
        if used == ROOM {
            break;
        }
    }
    // SAFETY: opened above, and nobody else's.
    unsafe { libc::close(fd) };
}

/// Start and length of the reservation in a line of `/proc/self/maps`, if it is one.
fn reservation(line: &[u8]) -> Option<(usize, usize)> {
    let line = std::str::from_utf8(line).ok()?;
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_private_without_rights = fields.next()? == "---p";
    let mut rest = fields.skip(2);
    let is_of_no_file = rest.next()? == "0";
    // Some programs name their anonymous memory.
    let name = rest.next().unwrap_or("");
    let is_anonymous = is_of_no_file && (name.is_empty() || name.starts_with("[anon:"));
    let start = usize::from_str_radix(start, 16).ok()?;
    let bytes = usize::from_str_radix(end, 16).ok()?.checked_sub(start)?;
    (is_private_without_rights && is_anonymous && bytes >= LEAST_BYTES).then_some((start, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_private_anonymous_mappings_without_rights_are_reservations() {
        let of = |line: &str| reservation(line.as_bytes());
        assert_eq!(
            of("7f0000000000-7f0004000000 ---p 00000000 00:00 0"),
            Some((0x7f00_0000_0000, 0x400_0000))
        );
        let named = "7f0000000000-7f0004000000 ---p 00000000 00:00 0                  [anon:v8]";
        assert_eq!(of(named), Some((0x7f00_0000_0000, 0x400_0000)));
        for other in [
            "",
            "7f0000000000",
            "zz-7f0004000000 ---p 00000000 00:00 0",
            "7f0004000000-7f0000000000 ---p 00000000 00:00 0",
            "7f0000000000-7f0004000000 rw-p 00000000 00:00 0",
            "7f0000000000-7f0004000000 ---s 00000000 00:00 0",
            "7f0000000000-7f0004000000 ---p 00000000 08:01 77 /usr/lib/libc.so.6",
            "7f0000000000-7f0000001000 ---p 00000000 00:00 0",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
