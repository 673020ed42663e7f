//! Files: created, filled and removed by path. No descriptor outlives a function that the program's threads call, so
//! there is none that the program could close, or take for its own.

use core::ffi::CStr;

use super::{Errno, check};

/// An open file, closed when dropped.
pub struct File(i32);

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: ours, and closed once.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

impl File {
    fn open(path: &CStr, flags: i32) -> Result<File, Errno> {
        let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NOCTTY;
        // SAFETY: `path` is a C string; the kernel copies it.
        let fd = check(unsafe {
            libc::syscall(
                libc::SYS_openat,
                libc::AT_FDCWD,
                path.as_ptr(),
                flags,
                0o600,
            )
        })?;
        i32::try_from(fd).map(File).map_err(|_| Errno(libc::EMFILE))
    }

    /// A new file, for reading and writing, for nobody but this user: a profile tells paths, arguments and addresses of the
    /// process. Fails if anything has that name.
    pub fn create_new(path: &CStr) -> Result<File, Errno> {
        Self::open(path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)
    }

    /// An existing file, for appending.
    pub fn open_to_append(path: &CStr) -> Result<File, Errno> {
        Self::open(path, libc::O_WRONLY | libc::O_APPEND)
    }

    /// Reads from the start of an existing file; returns how much of `buffer` was filled.
    pub fn read_start(path: &CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: `path` is a C string; the kernel copies it.
        let fd = check(unsafe {
            libc::syscall(
                libc::SYS_openat,
                libc::AT_FDCWD,
                path.as_ptr(),
                libc::O_RDONLY | libc::O_CLOEXEC,
                0,
            )
        })?;
        let file = File(i32::try_from(fd).map_err(|_| Errno(libc::EMFILE))?);
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            // SAFETY: the kernel writes into `rest`.
            match check(unsafe {
                libc::syscall(libc::SYS_read, file.0, rest.as_mut_ptr(), rest.len())
            }) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(Errno(libc::EINTR)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// Fills `buffer` from a file that can only be this user's, or root's; `None` for anything else under that name. In a
    /// directory that others write to, the file may be theirs.
    pub fn read_own<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        const OTHERS_MAY_WRITE: libc::mode_t = libc::S_IWGRP | libc::S_IWOTH;
        // What is no file, as a pipe, must not keep us waiting.
        let file = Self::open(path, libc::O_RDONLY | libc::O_NONBLOCK).ok()?;
        // SAFETY: plain numbers, for which zeros are as good as others.
        let mut status: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: the kernel writes to `status`.
        check(unsafe { libc::syscall(libc::SYS_fstat, file.0, &raw mut status) }).ok()?;
        // SAFETY: no arguments.
        let user = unsafe { libc::syscall(libc::SYS_geteuid) }.cast_unsigned() as u32;
        let is_own = (status.st_uid == user || status.st_uid == 0)
            && status.st_mode & libc::S_IFMT == libc::S_IFREG
            && status.st_mode & OTHERS_MAY_WRITE == 0;
        if !is_own {
            return None;
        }
        // SAFETY: the kernel writes into `buffer`.
        let read = check(unsafe {
            libc::syscall(libc::SYS_read, file.0, buffer.as_mut_ptr(), buffer.len())
        });
        buffer.get(..read.ok()?)
    }

    /// The descriptor's number, for [`super::memory::map_shared`].
    pub fn number(&self) -> i32 {
        self.0
    }

    /// Makes the file `bytes` long with all its blocks on the disk, so that no later store into a mapping of it can
    /// fail for want of space (which would be a SIGBUS in the program).
    pub fn allocate(&self, bytes: usize) -> Result<(), Errno> {
        let length = i64::try_from(bytes).map_err(|_| Errno(libc::EFBIG))?;
        loop {
            // SAFETY: no memory is involved.
            match check(unsafe { libc::syscall(libc::SYS_fallocate, self.0, 0, 0i64, length) }) {
                Err(Errno(libc::EINTR)) => {}
                Err(Errno(libc::EOPNOTSUPP)) => return self.fill_with_zeros(bytes),
                other => return other.map(drop),
            }
        }
    }

    fn fill_with_zeros(&self, bytes: usize) -> Result<(), Errno> {
        static ZEROS: [u8; 4096] = [0; 4096];
        let mut left = bytes;
        while left > 0 {
            let part = left.min(ZEROS.len());
            self.write_all(ZEROS.get(..part).unwrap_or(&ZEROS))?;
            left -= part;
        }
        Ok(())
    }

    /// Writes all of `bytes`.
    pub fn write_all(&self, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            // SAFETY: the kernel reads `bytes`.
            match check(unsafe {
                libc::syscall(libc::SYS_write, self.0, bytes.as_ptr(), bytes.len())
            }) {
                Ok(0) => return Err(Errno(libc::EIO)),
                Ok(written) => bytes = bytes.get(written..).unwrap_or(&[]),
                Err(Errno(libc::EINTR)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Its length in bytes.
    pub fn length(&self) -> Result<u64, Errno> {
        // SAFETY: no memory is involved.
        check(unsafe { libc::syscall(libc::SYS_lseek, self.0, 0i64, libc::SEEK_END) })
            .map(|end| end as u64)
    }

    /// Truncates the file to `length` bytes.
    pub fn truncate(&self, length: u64) -> Result<(), Errno> {
        // SAFETY: no memory is involved.
        check(unsafe { libc::syscall(libc::SYS_ftruncate, self.0, length) }).map(drop)
    }
}

/// Removes a file.
pub fn unlink(path: &CStr) {
    // SAFETY: `path` is a C string.
    unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0) };
}

/// Whether files can be created in the directory of this path.
pub fn is_writable_directory(path: &CStr) -> Result<(), Errno> {
    // SAFETY: `path` is a C string.
    check(unsafe {
        libc::syscall(
            libc::SYS_faccessat,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::W_OK | libc::X_OK,
        )
    })
    .map(drop)
}

/// Writes a line to standard error: only for errors that keep the profile from being written.
pub fn complain(parts: &[&[u8]]) {
    let length = parts.iter().map(|part| part.len() as u64).sum();
    if !has_room_on_stderr(length) {
        return;
    }
    for part in parts {
        // SAFETY: the kernel reads `part`. A closed stderr is no reason to do anything.
        unsafe {
            libc::syscall(
                libc::SYS_write,
                libc::STDERR_FILENO,
                part.as_ptr(),
                part.len(),
            )
        };
    }
}

/// False: standard error is a file that this many bytes would extend beyond the process's file size limit, which raises a
/// fatal signal.
fn has_room_on_stderr(bytes: u64) -> bool {
    let limit = size_limit();
    if limit == libc::RLIM_INFINITY {
        return true;
    }
    // SAFETY: plain numbers, for which zeros are as good as others.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes to `status`.
    let known = unsafe { libc::syscall(libc::SYS_fstat, libc::STDERR_FILENO, &raw mut status) };
    let is_file = status.st_mode & libc::S_IFMT == libc::S_IFREG;
    check(known).is_err() || !is_file || status.st_size.cast_unsigned() + bytes <= limit
}

/// The longest file that this process may write, in bytes.
pub fn size_limit() -> u64 {
    super::limit(libc::RLIMIT_FSIZE)
}
