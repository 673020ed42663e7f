//! Reads of memory that may be gone: by the kernel, which reports what a load would fault on.

/// Whether the byte at `address` can be read, without reading it: the kernel looks at a signal mask there, and refuses
/// the call for its other arguments if it could.
pub fn is_readable(address: u64) -> bool {
    if super::is_filtered() {
        return false;
    }
    // The mask is 8 bytes: stay inside the page.
    let address = address & !7;
    const INVALID_HOW: libc::c_long = -1;
    // SAFETY: the kernel checks `address` itself; with an invalid `how` nothing is changed.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, INVALID_HOW, address, 0, 8) };
    // SAFETY: errno is always readable.
    result == 0 || unsafe { *libc::__errno_location() } != libc::EFAULT
}

/// Copies memory of this process that may be gone by now. False: it is, or the kernel does not let us look.
pub fn copy_if_mapped(from: u64, to: &mut [u8]) -> bool {
    let piece = libc::iovec {
        iov_base: core::ptr::without_provenance_mut(from as usize),
        iov_len: to.len(),
    };
    copy_pieces(&[piece], to) == to.len()
}

/// Copies pieces of this process's memory that may be gone by now, one behind the other, up to the first byte that is gone or
/// has no room. Returns how many bytes were copied; 0 also where the kernel does not let us look. errno stays.
///
/// This is how the program's memory is read wherever it could be gone. The kernel copies, so that no other thread can unmap
/// a page between a check and a load.
pub fn copy_pieces(from: &[libc::iovec], to: &mut [u8]) -> usize {
    if super::is_filtered() {
        return 0;
    }
    let room = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: to.len(),
    };
    // SAFETY: errno is always there.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    // SAFETY: the kernel writes to `to`, which is ours, no more than it holds, and checks the pieces' addresses itself.
    let copied = unsafe {
        libc::syscall(
            libc::SYS_process_vm_readv,
            super::process::pid(),
            &raw const room,
            1_i64,
            from.as_ptr(),
            from.len(),
            0_i64,
        )
    };
    // SAFETY: as above.
    unsafe { errno.write(before) };
    usize::try_from(copied).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use core::ptr::NonNull;

    use super::*;
    use crate::os::memory::{make_unreadable, map};

    const PAGE: usize = 4096;

    /// The second of these pages can be made unreadable.
    fn pages() -> NonNull<u8> {
        let pages = map(2 * PAGE).unwrap();
        // SAFETY: just mapped, of this size, and not shared.
        unsafe { pages.as_ptr().write_bytes(7, 2 * PAGE) };
        pages
    }

    #[test]
    fn a_copy_ends_at_memory_that_is_gone() {
        let pages = pages();
        let from = pages.as_ptr().expose_provenance();
        // SAFETY: mapped above, and nothing refers to it.
        unsafe { make_unreadable(pages.add(PAGE), PAGE) };
        let piece = |at: usize, iov_len: usize| libc::iovec {
            iov_base: core::ptr::without_provenance_mut(at),
            iov_len,
        };
        let mut to = [0; 64];
        assert!(copy_if_mapped(from as u64, &mut to));
        assert_eq!(to, [7; 64]);
        let pieces = [piece(from, 16), piece(from + PAGE, 16), piece(from, 16)];
        assert_eq!(copy_pieces(&pieces, &mut to), 16);
        for gone in [from + PAGE, from + PAGE - 8, 0, 8, usize::MAX - 3] {
            assert!(!copy_if_mapped(gone as u64, &mut to), "{gone:#x}");
        }
        // SAFETY: as above.
        unsafe { make_unreadable(pages, PAGE) };
        assert!(!copy_if_mapped(from as u64, &mut to));
    }

    #[test]
    fn a_copy_keeps_errno() {
        // SAFETY: errno is always there.
        let errno = unsafe { &mut *libc::__errno_location() };
        *errno = 77;
        assert!(!copy_if_mapped(8, &mut [0; 8]));
        assert_eq!(*errno, 77);
    }
}
