//! Names for locations: from DWARF, from symbol tables, from the maps that JIT compilers write.
//!
//! A name is given only if it is sure: the file on disk must be the one that ran (same build id), and a symbol must
//! cover the address with its size. A function without a symbol is called `module+0x1200`, after its start by the unwind
//! tables; where there are none, `module+0x1234`, after the call.

mod demangle;
mod elf;
mod generations;
mod jit;
mod jitdump;
mod maps;
mod opened;
mod perf_map;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use allocsample_record::{Location, ModuleId, SymbolFrame};
use rayon::prelude::*;

use crate::model::{Module, Profile};

/// The name of a function that has no symbol, but a known start; the name of its module goes before it.
pub(crate) fn nameless(start: u64) -> String {
    format!("{NAMELESS}{start:x}")
}

/// How the name of a function begins that has no symbol.
const NAMELESS: &str = "+0x";

/// Whether a function has this name for want of a symbol.
pub(crate) fn is_nameless(frame: &SymbolFrame) -> bool {
    let name = frame.function.as_deref();
    name.is_some_and(|name| name.starts_with(NAMELESS))
}

/// The root directory of the process that a profile's path leads through (`/proc/4711/root/...`), as that of a process in a
/// container does: its modules are found below it.
pub fn root_of(profile: &Path) -> Option<&Path> {
    let mut parts = profile.components();
    let is_root = [parts.next()?, parts.next()?]
        == [Component::RootDir, Component::Normal("proc".as_ref())]
        && parts
            .next()?
            .as_os_str()
            .as_encoded_bytes()
            .iter()
            .all(u8::is_ascii_digit)
        && parts.next()? == Component::Normal("root".as_ref());
    // What is left of the path is not part of it.
    is_root.then(|| profile.ancestors().nth(parts.count()))?
}

impl Profile {
    /// Names all locations that have no name yet. Reads the modules' files and their debug files; the modules are
    /// worked on in parallel.
    pub fn symbolize(&mut self) {
        self.symbolize_below(None);
    }

    /// The same for a process that has, or had, this root directory; see [`root_of`].
    pub fn symbolize_below(&mut self, root: Option<&Path>) {
        let dumped = maps::jitdumps(self.process.pid, self.process.start_wall_ns);
        self.name_code(generations::generations(dumped));
        let mut wanted: BTreeMap<ModuleId, Vec<Location>> = BTreeMap::new();
        let locations: BTreeSet<Location> = self.stacks.places().iter().copied().collect();
        for location in locations {
            let known = self.symbols.frames.get(&location);
            // Today the file may have a symbol.
            if known.is_none_or(|frames| frames.iter().any(is_nameless)) {
                wanted.entry(location.module).or_default().push(location);
            }
        }
        if let Some(outside) = wanted.remove(&ModuleId::NONE) {
            let map = perf_map::PerfMap::read(self.process.pid, self.process.start_wall_ns);
            for location in outside {
                if let Some(name) = map.name(location.offset.wrapping_sub(1)) {
                    let frame = SymbolFrame {
                        function: Some(name.into()),
                        file: None,
                        line: 0,
                    };
                    self.symbols.frames.insert(location, vec![frame]);
                }
            }
        }
        // A module that was loaded more than once is read once, whatever it was called.
        let mut modules: BTreeMap<_, (&Module, Vec<Location>)> = BTreeMap::new();
        for (id, mut places) in wanted {
            if let Some(module) = self.module(id) {
                let path = std::fs::canonicalize(&module.path);
                let path = path.unwrap_or_else(|_| PathBuf::from(&module.path));
                let known = modules.entry((path, &module.build_id));
                let (_, all) = known.or_insert_with(|| (module, Vec::new()));
                all.append(&mut places);
            }
        }
        let modules: Vec<_> = modules.into_values().collect();
        let named = modules.par_iter().with_max_len(1);
        let named = named.flat_map_iter(|(module, places)| elf::symbolize(module, places, root));
        let named: Vec<_> = named.collect();
        self.symbols.frames.extend(named);
        self.inspect_below(root);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_found_in_a_path_that_leads_through_one() {
        let root = |path| root_of(Path::new(path)).and_then(Path::to_str);
        assert_eq!(
            root("/proc/47/root/tmp/x.allocsample"),
            Some("/proc/47/root")
        );
        assert_eq!(root("/proc/self/root/x.allocsample"), None);
        assert_eq!(root("/proc/47/cwd/x.allocsample"), None);
        assert_eq!(root("/home/47/root/x.allocsample"), None);
        assert_eq!(root("proc/47/root/x.allocsample"), None);
        assert_eq!(root("x.allocsample"), None);
    }
}
