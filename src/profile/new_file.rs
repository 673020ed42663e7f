//! Where the files are created that this crate makes.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A file that was not there before, to write to. Nobody but its owner can read it, and no link is followed.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}
