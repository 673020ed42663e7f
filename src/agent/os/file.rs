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

    /// An existing file, for reading at any place.
    pub fn open_to_read(path: &CStr) -> Result<File, Errno> {
        Self::open(path, libc::O_RDONLY)
    }

    /// Reads once, at an offset; returns how much of `buffer` was filled.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: the kernel writes into `buffer`.
        check(unsafe {
            libc::syscall(
                libc::SYS_pread64,
                self.0,
                buffer.as_mut_ptr(),
                buffer.len(),
                offset,
            )
        })
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
    complain_to(libc::STDERR_FILENO, size_limit(), parts);
}

fn complain_to(descriptor: i32, limit: u64, parts: &[&[u8]]) {
    let length = parts.iter().map(|part| part.len() as u64).sum();
    if !has_room(descriptor, limit, length) {
        return;
    }
    for part in parts {
        // SAFETY: the kernel reads `part`. A closed stderr is no reason to do anything.
        unsafe { libc::syscall(libc::SYS_write, descriptor, part.as_ptr(), part.len()) };
    }
}

/// False: it is a file that this many bytes would extend beyond the limit of file sizes, which raises a fatal signal.
fn has_room(descriptor: i32, limit: u64, bytes: u64) -> bool {
    if limit == libc::RLIM_INFINITY {
        return true;
    }
    // SAFETY: plain numbers, for which zeros are as good as others.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes to `status`.
    let known = unsafe { libc::syscall(libc::SYS_fstat, descriptor, &raw mut status) };
    let is_file = status.st_mode & libc::S_IFMT == libc::S_IFREG;
    let end = status.st_size.cast_unsigned().saturating_add(bytes);
    check(known).is_err() || !is_file || end <= limit
}

/// The longest file that this process may write, in bytes.
pub fn size_limit() -> u64 {
    super::limit(libc::RLIMIT_FSIZE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::PathBuf;
    use std::vec::Vec;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let name = std::format!("allocsample-file-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn path(&self, name: &str) -> (PathBuf, CString) {
            let path = self.0.join(name);
            let c_path = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
            (path, c_path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_new_file_is_for_its_user_alone_and_replaces_nothing() {
        let directory = Directory::new("new");
        let (path, c_path) = directory.path("file");
        let file = File::create_new(&c_path).unwrap();
        file.write_all(b"beginning").unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert_eq!(File::create_new(&c_path).err(), Some(Errno(libc::EEXIST)));
        let more = File::open_to_append(&c_path).unwrap();
        more.write_all(b" and end").unwrap();
        assert_eq!(more.length(), Ok(17));
        assert_eq!(std::fs::read(&path).unwrap(), b"beginning and end");
        more.truncate(5).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"begin");
        let (link, c_link) = directory.path("link");
        symlink(&path, link).unwrap();
        assert!(File::open_to_append(&c_link).is_err());
        unlink(&c_path);
        assert!(!path.exists());
        let (_, c_nowhere) = directory.path("nowhere/file");
        assert_eq!(
            File::create_new(&c_nowhere).err(),
            Some(Errno(libc::ENOENT))
        );
    }

    #[test]
    fn the_start_of_a_file_is_read_as_far_as_the_buffer_goes() {
        let directory = Directory::new("start");
        let (path, c_path) = directory.path("file");
        std::fs::write(&path, b"0123456789").unwrap();
        let mut buffer = [b'x'; 4];
        assert_eq!(File::read_start(&c_path, &mut buffer), Ok(4));
        assert_eq!(&buffer, b"0123");
        let mut buffer = [b'x'; 12];
        assert_eq!(File::read_start(&c_path, &mut buffer), Ok(10));
        assert_eq!(&buffer, b"0123456789xx");
        unlink(&c_path);
        let missing = File::read_start(&c_path, &mut buffer);
        assert_eq!(missing, Err(Errno(libc::ENOENT)));
    }

    #[test]
    fn a_file_that_others_could_have_written_is_not_read() {
        let directory = Directory::new("own");
        let (path, c_path) = directory.path("file");
        std::fs::write(&path, b"request").unwrap();
        let mut buffer = [0; 20];
        let mut read = |mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, permissions).unwrap();
            File::read_own(&c_path, &mut buffer).map(<[u8]>::to_vec)
        };
        assert_eq!(read(0o600), Some(b"request".to_vec()));
        assert_eq!(read(0o644), Some(b"request".to_vec()));
        assert_eq!(read(0o620), None);
        assert_eq!(read(0o602), None);
        let (_, c_directory) = directory.path("");
        assert_eq!(File::read_own(&c_directory, &mut buffer), None);
        let (link, c_link) = directory.path("link");
        symlink(&path, link).unwrap();
        assert_eq!(File::read_own(&c_link, &mut buffer), None);
        let (_, c_pipe) = directory.path("pipe");
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::mkfifo(c_pipe.as_ptr(), 0o600) }, 0);
        // Nobody ever writes to it.
        assert_eq!(File::read_own(&c_pipe, &mut buffer), None);
        // Only root may give a file to somebody else.
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_ok() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            assert_eq!(File::read_own(&c_path, &mut buffer), None);
        }
    }

    #[test]
    fn a_complaint_goes_where_there_is_room_for_all_of_it() {
        let directory = Directory::new("complain");
        let (path, c_path) = directory.path("file");
        let file = File::create_new(&c_path).unwrap();
        let complain = |limit| complain_to(file.number(), limit, &[b"one ", b"line\n"]);
        complain(8);
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        complain(9);
        assert_eq!(std::fs::read(&path).unwrap(), b"one line\n");
        complain(17);
        assert_eq!(std::fs::read(&path).unwrap(), b"one line\n");
        complain(libc::RLIM_INFINITY);
        assert_eq!(std::fs::read(&path).unwrap(), b"one line\none line\n");
        // What is no file has no size, and what is closed gets nothing.
        let (mut from, to) = std::io::pipe().unwrap();
        complain_to(to.as_raw_fd(), 1, &[b"one ", b"line\n"]);
        drop(to);
        let mut said = Vec::new();
        from.read_to_end(&mut said).unwrap();
        assert_eq!(said, b"one line\n");
        assert!(has_room(-1, 1, 2));
    }

    #[test]
    fn allocated_bytes_are_on_the_disk() {
        let directory = Directory::new("allocate");
        let (path, c_path) = directory.path("file");
        let file = File::create_new(&c_path).unwrap();
        file.allocate(10_000).unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!(metadata.len(), 10_000);
        assert!(metadata.blocks() * 512 >= 10_000);
        let (path, c_path) = directory.path("zeros");
        let file = File::create_new(&c_path).unwrap();
        file.fill_with_zeros(10_000).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0; 10_000]);
    }

    #[test]
    fn a_directory_is_writable_or_says_why_not() {
        let directory = Directory::new("writable");
        let (_, c_path) = directory.path("");
        assert_eq!(is_writable_directory(&c_path), Ok(()));
        let (_, c_nowhere) = directory.path("nowhere");
        let missing = is_writable_directory(&c_nowhere);
        assert_eq!(missing, Err(Errno(libc::ENOENT)));
    }

    #[test]
    fn a_file_is_closed_when_it_is_dropped() {
        let directory = Directory::new("closed");
        let (_, c_path) = directory.path("file");
        let file = File::create_new(&c_path).unwrap();
        let link = std::format!("/proc/self/fd/{}", file.number());
        let target = std::fs::read_link(&link).unwrap();
        assert!(target.ends_with("file"));
        drop(file);
        // Another thread may have got the number since.
        assert_ne!(std::fs::read_link(&link).ok(), Some(target));
    }
}
