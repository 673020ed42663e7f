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
use std::path::{Path, PathBuf};

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
            let Some(found) = Elf::open(&file, &mut left).and_then(|elf| {
                let is_same = build_id.is_none_or(|build_id| elf.build_id() == *build_id);
                is_same.then(|| inspect(&path, &elf))?
            }) else {
                continue;
            };
            self.inspected.push(found);
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
