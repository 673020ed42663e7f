//! Files that names are looked up in. Those used last stay open: the profiles of many processes have the same libraries.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use addr2line::Loader;

use super::elf::{Symbols, debug_file, extents, read_elf};

/// A file that names were looked up in, with its debug file.
pub(super) struct Opened {
    bytes: Vec<u8>,
    pub(super) symbols: Symbols,
    /// Where it has debug information that is sound.
    pub(super) debug: Option<Loader>,
}

/// Which file that was.
#[derive(PartialEq)]
struct Which {
    path: PathBuf,
    build_id: Vec<u8>,
    device: u64,
    inode: u64,
    modified: (i64, i64),
    /// With its debug file.
    bytes: u64,
}

/// Those used last, the latest one at the end: the profiles of many processes have the same libraries.
static KEPT: Mutex<Vec<(Which, Arc<Mutex<Opened>>)>> = Mutex::new(Vec::new());
/// Limit for the sizes of all files in KEPT together, as they are on the disk. Compressed sections take more.
const KEPT_BYTES: u64 = 64 << 20;

impl Opened {
    /// `None` if there is no such file, or it is not the one that ran.
    pub(super) fn at(path: &Path, build_id: &[u8]) -> Option<Arc<Mutex<Self>>> {
        let metadata = std::fs::metadata(path).ok()?;
        let debug = debug_file(build_id).and_then(|path| std::fs::metadata(path).ok());
        let which = Which {
            path: path.to_owned(),
            build_id: build_id.to_owned(),
            device: metadata.dev(),
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            bytes: metadata.len() + debug.map_or(0, |debug| debug.len()),
        };
        if let Some(opened) = Self::kept(&which) {
            return Some(opened);
        }
        let opened = Arc::new(Mutex::new(Self::read(path, build_id)?));
        Self::keep(which, &opened);
        Some(opened)
    }

    fn kept(which: &Which) -> Option<Arc<Mutex<Self>>> {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let index = kept.iter().position(|(of, _)| of == which)?;
        let used = kept.remove(index);
        let opened = used.1.clone();
        kept.push(used);
        Some(opened)
    }

    fn keep(which: Which, opened: &Arc<Mutex<Self>>) {
        if which.bytes > KEPT_BYTES {
            return;
        }
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        // One that was replaced is of no use, and another thread may have kept this one meanwhile.
        kept.retain(|(of, _)| of.path != which.path);
        kept.push((which, opened.clone()));
        while kept.iter().map(|(of, _)| of.bytes).sum::<u64>() > KEPT_BYTES {
            kept.remove(0);
        }
    }

    fn read(path: &Path, build_id: &[u8]) -> Option<Self> {
        let bytes = read_elf(path)?;
        let symbols = Symbols::of(&bytes, build_id)?;
        // Finds the separate debug file by itself, and the one that dwz shares between several.
        let debug = debug_file(build_id)
            .filter(|_| symbols.has_sound_dwarf)
            .and_then(|path| Loader::new(path).ok())
            .or_else(|| symbols.has_sound_dwarf.then(|| Loader::new(path).ok())?);
        Some(Self {
            bytes,
            symbols,
            debug,
        })
    }

    /// The extents of the functions that cover these addresses, by the unwind tables, in order. Stripped files have them, too.
    pub(super) fn extents(&self, addresses: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
        let file = object::File::parse(&*self.bytes);
        file.map_or_else(|_| Vec::new(), |file| extents(&file, addresses))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::Object;

    #[test]
    fn a_file_that_was_replaced_is_read_again() {
        let directory = std::env::temp_dir().join(format!("replaced-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join("module");
        std::fs::copy("/bin/sh", &path).expect("a copy");
        let file = std::fs::read(&path).expect("a file");
        let build_id = object::File::parse(&*file).expect("an ELF file");
        let build_id = build_id.build_id().expect("a note").unwrap_or(&[]);
        let opened = || Opened::at(&path, build_id);
        let first = opened().expect("the file that ran");
        assert!(Arc::ptr_eq(&first, &opened().expect("the same")));
        std::fs::write(&path, b"another one").expect("a file");
        assert!(opened().is_none());
        std::fs::write(&path, &file).expect("a file");
        let again = opened().expect("the file that ran");
        assert!(!Arc::ptr_eq(&first, &again));
        std::fs::remove_dir_all(&directory).expect("a directory of ours");
    }
}
