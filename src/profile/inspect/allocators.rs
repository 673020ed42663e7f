//! Allocators that a module brings with it and that do not stand behind `malloc`.

use super::elf::{Elf, Symbol};

struct Allocator {
    name: &'static str,
    /// The ends of names of functions that it exports under a prefix of its user's choice.
    symbols: &'static [&'static str],
    /// A text that is in it, also where the file has no symbols.
    text: &'static str,
}

const ALLOCATORS: &[Allocator] = &[
    Allocator {
        name: "jemalloc",
        // `mallctl`, `je_mallctl`, `_rjem_mallctl`, `duckdb_je_mallctl`, ...
        symbols: &["mallctl"],
        text: "<jemalloc>: ",
    },
    Allocator {
        name: "mimalloc",
        symbols: &["mi_malloc_aligned"],
        text: "mimalloc: warning: ",
    },
    Allocator {
        name: "tcmalloc",
        // gperftools' and Google's own, which has the same line in its statistics.
        symbols: &["tc_malloc", "TCMallocInternalMalloc"],
        text: " MiB) Bytes in use by application",
    },
    Allocator {
        name: "PartitionAlloc",
        symbols: &[],
        text: "PartitionAlloc.Partitions.",
    },
];

pub(super) fn is_mark(name: &str) -> bool {
    ALLOCATORS.iter().any(|it| it.has_symbol(name))
}

impl Allocator {
    fn has_symbol(&self, name: &str) -> bool {
        // CPython has mimalloc, and uses it only without the GIL.
        !name.starts_with("_Py") && self.symbols.iter().any(|end| name.ends_with(end))
    }
}

/// Their names; empty if there is none.
pub(super) fn find(elf: &Elf, symbols: &[Symbol]) -> String {
    let is_cpython = symbols.iter().any(|it| it.name == "PyMem_SetAllocator");
    let is_in = |it: &&Allocator| {
        symbols.iter().any(|symbol| it.has_symbol(&symbol.name))
            || !is_cpython && elf.find_text(it.text.as_bytes(), |_| Some(())).is_some()
    };
    let names: Vec<_> = ALLOCATORS.iter().filter(is_in).map(|it| it.name).collect();
    names.join(" and ")
}
