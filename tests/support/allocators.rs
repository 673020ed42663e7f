//! The allocators that other people put in front of their programs.

use std::path::{Path, PathBuf};

/// Directories in which Debian, Fedora and Arch keep libraries.
const DIRECTORIES: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
];

/// File names, best first, by allocator.
const ALLOCATORS: [(&str, &[&str]); 3] = [
    ("jemalloc", &["libjemalloc.so.2"]),
    (
        "tcmalloc",
        &["libtcmalloc.so.4", "libtcmalloc_minimal.so.4"],
    ),
    (
        "mimalloc",
        &["libmimalloc.so.2", "libmimalloc.so.2.0", "libmimalloc.so.3"],
    ),
];

/// Name and library of each allocator that is installed; those that are not are mentioned on stderr.
pub fn installed() -> Vec<(&'static str, PathBuf)> {
    let mut found = Vec::new();
    for (name, files) in ALLOCATORS {
        let library = files
            .iter()
            .flat_map(|file| DIRECTORIES.map(|directory| Path::new(directory).join(file)))
            .find(|path| path.exists());
        match library {
            Some(library) => found.push((name, library)),
            None => super::skip(&format!("{name} is not installed")),
        }
    }
    found
}
