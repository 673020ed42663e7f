//! Finds runtimes of languages, and allocators, that are linked into the modules of a process.
//!
//! The files are read by the command, never in the program's process. A file that has been replaced since says nothing.

mod allocators;
mod elf;
mod runtimes;
#[cfg(test)]
mod tests;
mod versions;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use allocsample_record::{Inspected, MemoryMapping, readable};

use crate::model::Profile;
use elf::Elf;
pub use runtimes::{Runtime, Support};

/// Of so many modules the files are read.
const MOST_MODULES: usize = 2_000;
/// Bytes of all files together that are looked at: some Chromium's.
const MOST_BYTES: u64 = 4 << 30;

impl Profile {
    /// Looks into the files of all modules, below `root` if the process has another root.
    pub(crate) fn inspect_below(&mut self, root: Option<&Path>) {
        if !self.inspected.is_empty() {
            return;
        }
        let mut left = MOST_BYTES;
        let paths = self.module_paths();
        for (path, build_id) in paths.into_iter().take(MOST_MODULES) {
            let file = match root {
                Some(root) => root.join(path.strip_prefix("/").unwrap_or(&path)),
                None => PathBuf::from(&path),
            };
            let Some(contents) = Contents::of(&path, &file, &mut left) else {
                continue;
            };
            let is_same = build_id.is_none_or(|build_id| contents.build_id == *build_id);
            self.inspected.extend(contents.found.filter(|_| is_same));
        }
    }

    /// How many files have code in the process: what was inspected holds as long as it is the same number.
    pub fn code_files(&self) -> usize {
        self.module_paths().len()
    }

    /// Paths of files whose code is mapped, with the build id where it is known.
    fn module_paths(&self) -> BTreeMap<String, Option<Vec<u8>>> {
        let mut paths = BTreeMap::new();
        for map in &self.memory {
            let code = map.mappings.iter();
            for mapping in code.filter(|it| it.is(MemoryMapping::EXECUTABLE)) {
                let name = map.name(mapping);
                if name.first() == Some(&b'/') {
                    paths.insert(readable(name).into_owned(), None);
                }
            }
        }
        if self.process.executable.starts_with('/') {
            paths.insert(self.process.executable.clone(), None);
        }
        for module in &self.modules {
            if module.path.starts_with('/') {
                paths.insert(module.path.clone(), Some(module.build_id.clone()));
            }
        }
        paths
    }
}

/// What there is to know of a file.
#[derive(Clone)]
struct Contents {
    build_id: Vec<u8>,
    found: Option<Inspected>,
}

/// A file as it is: its device and number, its length, and when it was changed.
type Version = (u64, u64, u64, i64, i64);

/// Files that were looked into. A command may read the profiles of a thousand processes, with the same libraries.
static KNOWN: Mutex<BTreeMap<(Version, String), Contents>> = Mutex::new(BTreeMap::new());
/// Of so many files, at most.
const MOST_KNOWN: usize = 10_000;

impl Contents {
    /// `None`: it cannot be read, or is more than is `left`.
    fn of(path: &str, file: &Path, left: &mut u64) -> Option<Self> {
        let metadata = std::fs::metadata(file).ok()?;
        let version = (
            metadata.dev(),
            metadata.ino(),
            metadata.len(),
            metadata.mtime(),
            metadata.mtime_nsec(),
        );
        // Names decide, too.
        let key = (version, path.to_owned());
        let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(contents) = known().get(&key) {
            return Some(contents.clone());
        }
        let elf = Elf::open(file, left)?;
        let contents = Self {
            build_id: elf.build_id(),
            found: inspect(path, &elf),
        };
        let mut known = known();
        if known.len() < MOST_KNOWN {
            known.insert(key, contents.clone());
        }
        Some(contents)
    }
}

fn inspect(path: &str, elf: &Elf) -> Option<Inspected> {
    let symbols = elf.symbols(|name| runtimes::is_mark(name) || allocators::is_mark(name));
    let runtime = runtimes::recognise(path, elf, &symbols);
    let (runtime, version) = runtime.unwrap_or_default();
    let allocator = allocators::find(elf, &symbols);
    let found = Inspected {
        path: path.to_owned(),
        runtime: runtime.to_owned(),
        version,
        allocator,
    };
    (!found.runtime.is_empty() || !found.allocator.is_empty()).then_some(found)
}
