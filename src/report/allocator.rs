//! Which functions are never to blame for an allocation or a free: the allocator, and the containers that call it.

use allocsample_profile::{Frame, Heap, HeapId, HeapKind, Profile, is_of_system};

/// Names of functions that allocate and free, and beginnings of names (those that end in `*`).
const ALLOCATORS: &[&str] = &[
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "valloc",
    "pvalloc",
    "__libc_*alloc",
    "free",
    "free_sized",
    "free_aligned_sized",
    "__libc_free",
    "operator new*",
    // Ours, before an operator of an allocator that calls malloc.
    "_Zn*_watched_slow",
    "operator delete*",
    "__rust_alloc*",
    "__rust_realloc*",
    "__rust_dealloc*",
    "__rdl_alloc*",
    "__rdl_realloc*",
    "__rdl_dealloc*",
    // What a Rust compiler makes to drop a value: its caller lets it go.
    "core::ptr::drop_in_place<*",
    "__rustc::__rust_*",
    "__rustc::__rdl_*",
    // What `#[global_allocator]` makes, and what our own is.
    "__rg_*",
    "__rustc::__rg_*",
    "allocsample_front::here::*",
    "allocsample_global::sampled::*",
    "<allocsample_global::sampled::Sampled<*",
    "alloc::alloc::*",
    "<alloc::alloc::Global as core::alloc::*",
    "alloc::raw_vec::*",
    "<alloc::raw_vec::*",
    "je_*",
    "_rjem_*",
    "tc_*",
    "mi_*",
    "std::__new_allocator<*",
    "__gnu_cxx::new_allocator<*",
    "std::allocator_traits<*",
    "std::allocator<*",
    // What leads to the allocators of Apache Arrow and of duckdb.
    "arrow::BaseMemoryPoolImpl<*",
    "duckdb::Allocator::*",
    // libgc's entries.
    "GC_malloc*",
    "GC_generic_malloc*",
    "GC_calloc*",
    "GC_memalign",
    "GC_posix_memalign",
    "GC_realloc",
    "GC_strdup",
    "GC_strndup",
    // D's: what compilers call, and its collector.
    "_d_new*",
    "_d_array*",
    "_d_alloc*",
    "_d_delegate*",
    "gc_malloc",
    "gc_qalloc",
    "gc_calloc",
    "gc_realloc",
    "gc_extend",
    "core.memory.GC.*",
    "rt.lifetime.*",
    "core.internal.array.*",
    // Crystal's.
    "__crystal_malloc*",
    "__crystal_realloc*",
    // RPython's collector, in C: it is part of each program that was translated.
    "pypy_g_IncrementalMiniMarkGC_*",
    "pypy_g_ArenaCollection_*",
    "pypy_g__ll_malloc_*",
    "pypy_g_ll_malloc_*",
    "rpy_allocsample_*",
];

/// Beginnings of the names of Go's functions that allocate for their callers: the runtime, and packages of containers.
const GO_ALLOCATORS: &[&str] = &["runtime.", "internal/runtime/"];
const GO_CONTAINERS: &[&str] = &[
    "bytes.",
    "strings.",
    "slices.",
    "maps.",
    "internal/bytealg.",
];

/// Beginnings of the names of functions of the standard libraries, of either language.
const LIBRARY_NAMES: &[&str] = &["std::", "void std::", "__gnu_cxx::"];

/// Those of Rust's alone. Programs in C++ have such namespaces, too, but names of their functions end in what these take.
const RUST_LIBRARY_NAMES: &[&str] = &[
    "core::",
    "<core::",
    "alloc::",
    "<alloc::",
    "<std::",
    "hashbrown::",
    "<hashbrown::",
];

/// Beginnings and endings of directories of their files: names of inlined functions may have lost their namespaces.
const LIBRARY_FILES: &[(&str, &str)] = &[
    ("/rustc/", "/library/"),
    ("/rust/deps/", ""),
    ("", "/lib/rustlib/src/rust/library/"),
    ("", "/include/c++/"),
    // Our own global allocator.
    ("", "/global/sampled.rs"),
    ("", "/front/here.rs"),
];

/// The same for languages whose standard libraries have no names of their own: endings of files, and parts of their paths.
const SOURCES: &[(&str, &[&str])] = &[
    (
        ".nim",
        &["/nim/lib/", "/lib/system/", "/lib/system.nim", "/lib/pure/"],
    ),
    (".zig", &["/lib/std/", "/zig/std/"]),
    (".cr", &["/crystal/lib/", "/crystal/src/"]),
    (
        ".d",
        &[
            "/include/d/",
            "/druntime/src/",
            "/druntime/import/",
            "/phobos/std/",
        ],
    ),
];

/// Beginnings of the names of files that have D's library, which debug information seldom describes, and of its packages.
const D_LIBRARIES: &[&str] = &["libdruntime", "libphobos", "libgphobos"];
const D_COLLECTORS: &[&str] = &["core.internal.gc.", "core.internal.container."];

/// On whose account a function allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The program's.
    Program,
    /// Its caller's: a container of the standard library.
    Library,
    /// Its caller's, always.
    Allocator,
}

pub(crate) fn part_of(frame: &Frame) -> Part {
    let is_in = |file: &str| {
        let mut known = LIBRARY_FILES.iter();
        let mut sources = SOURCES.iter();
        known.any(|(start, end)| file.starts_with(start) && file.contains(end))
            || sources.any(|(end, parts)| {
                file.ends_with(end) && parts.iter().any(|part| file.contains(part))
            })
    };
    let function = frame.function.as_str();
    // What the collector has of malloc for itself is on nobody's account.
    let is_of_d = || {
        D_LIBRARIES.iter().any(|it| frame.module.starts_with(it))
            && !D_COLLECTORS.iter().any(|it| function.starts_with(it))
    };
    let is_cxx = function.ends_with(')') || function.ends_with(") const");
    let is_named = |names: &[&str]| names.iter().any(|name| function.starts_with(name));
    // In other languages these would be names of a user.
    let is_go = || frame.file.as_deref().is_some_and(|it| it.ends_with(".go"));
    if is_allocator(function) || is_named(GO_ALLOCATORS) && is_go() {
        Part::Allocator
    } else if is_named(LIBRARY_NAMES)
        || is_named(GO_CONTAINERS) && is_go()
        || !is_cxx && is_named(RUST_LIBRARY_NAMES)
        || frame.file.as_deref().is_some_and(is_in)
        || is_of_d()
    {
        Part::Library
    } else {
        Part::Program
    }
}

fn is_allocator(function: &str) -> bool {
    ALLOCATORS.iter().any(|pattern| fits(pattern, function))
}

/// Beginnings of the names of functions in Python that Cython or mypyc has compiled to native code. Their helpers have others.
const COMPILED_PYTHON: &[&str] = &[
    "__pyx_f_",
    "__pyx_pf_",
    "__pyx_pw_",
    "__pyx_gb_",
    "CPyDef_",
    "CPyPy_",
];

fn is_compiled_python(function: &str) -> bool {
    COMPILED_PYTHON
        .iter()
        .any(|start| function.starts_with(start))
}

/// Whether a name fits a pattern in which each `*` stands for any text.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return name == pattern;
    };
    let (middle, end) = match rest.rsplit_once('*') {
        Some((middle, end)) => (Some(middle), end),
        None => (None, rest),
    };
    let Some(mut left) = (name.strip_prefix(start)).and_then(|left| left.strip_suffix(end)) else {
        return false;
    };
    // The earliest place of each part leaves most for the others.
    for part in middle.iter().flat_map(|it| it.split('*')) {
        let Some(at) = left.find(part) else {
            return false;
        };
        left = &left[at + part.len()..];
    }
    true
}

/// The frame that an allocation is charged to: the first one outside the allocator and the standard libraries of C++ and
/// Rust; the first one outside the allocator if there is no such; or the leaf.
///
/// Where a virtual machine's language runs, the machine's own native code counts as allocator: it is how the language
/// allocates. So in the machine's heap the first frame of the language is charged; of a block of malloc too, unless
/// native code of somebody else (an extension) comes before it. A function in Python that was compiled to native code is one of the
/// language: the interpreted one that called it may be the start of the program. Node.js has functions of its own in JavaScript
/// (`node:buffer`), which are passed by for the program's.
pub fn charged_frame<'a>(
    profile: &Profile,
    heap: HeapId,
    frames: &'a [Frame],
) -> Option<&'a Frame> {
    let position = charged_position(profile, heap, frames, |frame| frame, part_of)?;
    frames.get(position)
}

/// The same for frames in any form: the index of the frame.
pub(crate) fn charged_position<'a, F>(
    profile: &Profile,
    heap: HeapId,
    frames: &'a [F],
    frame_of: impl Fn(&'a F) -> &'a Frame,
    part_of: impl Fn(&F) -> Part,
) -> Option<usize> {
    let heaps = &profile.vm.heaps;
    let module_of = |frame: &'a F| frame_of(frame).module.as_str();
    let is_machine = |heap: &&Heap| heap.kind != Some(HeapKind::Allocator);
    let own_machine = heaps.get(&heap).filter(is_machine);
    let is_of = |frame: &'a F, machine: &Heap| {
        module_of(frame) == machine.name
            || machine.name == "python" && is_compiled_python(&frame_of(frame).function)
    };
    let is_of_language = |frame: &'a F| match own_machine {
        Some(machine) => is_of(frame, machine),
        None => heaps.values().any(|machine| is_of(frame, machine)),
    };
    // Most programs have none, and stacks are long.
    let language = (!heaps.is_empty())
        .then(|| frames.iter().position(is_of_language))
        .flatten();
    let is_of_program = |frame: &'a F| {
        let file = frame_of(frame).file.as_deref();
        is_of_language(frame) && !file.is_some_and(|file| file.starts_with("node:"))
    };
    let outside = |parts: &[Part]| {
        let is_outside = |frame| !parts.contains(&part_of(frame));
        frames.iter().position(is_outside)
    };
    // The first native frame, outside the allocator, that is not the machine's. Code of no module is the machine's too:
    // what it made for itself, as V8 does with the code that leads from JavaScript to C++. Where nobody has looked for the
    // machine's code, it is the module of the frame next to the language: what its interpreter called.
    let native_of_others = |native: &'a [F]| {
        let of_modules = || native.iter().filter(|frame| !module_of(frame).is_empty());
        let machine = module_of(of_modules().next_back()?);
        let is_machine = |frame: &'a F| match profile.runtimes.is_empty() {
            true => module_of(frame) == machine,
            false => {
                let function = frame_of(frame).function.as_str();
                profile.runtimes.own(module_of(frame), function)
            }
        };
        native.iter().position(|frame| {
            part_of(frame) == Part::Program
                && !module_of(frame).is_empty()
                && !is_of_system(module_of(frame))
                && !is_machine(frame)
        })
    };
    let charged = match language {
        Some(language) if own_machine.is_some() => Some(language),
        Some(language) => native_of_others(&frames[..language])
            .or_else(|| frames.iter().position(is_of_program))
            .or(Some(language)),
        None => outside(&[Part::Allocator, Part::Library]),
    };
    charged
        .or_else(|| outside(&[Part::Allocator]))
        .or((!frames.is_empty()).then_some(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_of_malloc_are_allocators_and_their_callers_are_not() {
        for name in [
            "malloc",
            "operator new(unsigned long)",
            "__libc_malloc",
            "alloc::alloc::alloc",
            "tc_malloc",
            "free",
            "operator delete(void*)",
            "core::ptr::drop_in_place<alloc::string::String>",
            "pypy_g_IncrementalMiniMarkGC_collect_and_reserve",
        ] {
            assert!(is_allocator(name), "{name}");
        }
        for name in [
            "xmalloc",
            "PyObject_Malloc",
            "mallocate",
            "pypy_g_bottom_up",
            "main",
            "free_list",
        ] {
            assert!(!is_allocator(name), "{name}");
        }
    }

    #[test]
    fn containers_allocate_for_their_callers() {
        let frame = |&(function, file): &(&str, &str)| Frame {
            function: function.to_owned(),
            file: (!file.is_empty()).then(|| file.to_owned()),
            line: 1,
            module: "app".to_owned(),
            is_symbolized: true,
            file_end: None,
        };
        let charged = |stack: &[(&str, &str)]| {
            let frames: Vec<Frame> = stack.iter().map(frame).collect();
            let charged = charged_frame(&Profile::default(), HeapId::MALLOC, &frames);
            charged.map(|frame| frame.function.clone())
        };
        let (push, main) = (("app::push", "src/main.rs"), ("main", ""));
        for container in [
            ("std::vector<int>::push_back(int&&)", ""),
            ("_M_insert<int>", "/usr/include/c++/12/bits/stl_tree.h"),
            ("<alloc::vec::Vec<T> as core::clone::Clone>::clone", ""),
            ("finish_grow", "/rustc/0123abc/library/alloc/src/raw_vec.rs"),
            ("reserve_rehash", "/rust/deps/hashbrown-0.16.1/src/raw.rs"),
            ("alloc0Impl", "/usr/lib/nim/lib/system/mm/malloc.nim"),
            ("mem.Allocator.alloc", "/opt/zig/lib/std/mem/Allocator.zig"),
            ("malloc_atomic", "/usr/lib/crystal/lib/gc/boehm.cr"),
            (
                "std.array.Appender.put",
                "/usr/lib/gcc/x86_64-linux-gnu/12/include/d/std/array.d",
            ),
            ("core.demangle.load", "runtime/druntime/src/core/demangle.d"),
        ] {
            let malloc = ("malloc", "");
            assert_eq!(
                charged(&[malloc, container, push, main]).as_deref(),
                Some(push.0)
            );
            // There is nobody else.
            assert_eq!(charged(&[malloc, container]).as_deref(), Some(container.0));
        }
        for own in [
            (
                "<app::Node as core::clone::Clone>::clone",
                "src/library/a.rs",
            ),
            ("core::Engine::load(int) const", ""),
            ("app.load", "src/app.nim"),
            ("known_truth.leakSession", "known_truth.zig"),
            ("load", "/home/user/app/lib/app.cr"),
            ("app.load", "/home/user/druntime/app.d"),
        ] {
            assert_eq!(charged(&[own, main]).as_deref(), Some(own.0));
        }
    }

    #[test]
    fn the_language_is_charged_for_what_its_machine_allocates() {
        let frame = |(function, module): (&str, &str)| Frame {
            function: function.to_owned(),
            file: None,
            line: 0,
            module: module.to_owned(),
            is_symbolized: true,
            file_end: None,
        };
        let mut profile = Profile::default();
        let machine = HeapId(1);
        let heap = Heap {
            name: "python".to_owned(),
            kind: None,
            exact_bytes: 0,
        };
        profile.vm.heaps.insert(machine, heap);
        let charged = |heap, stack: &[(&str, &str)]| {
            let frames: Vec<Frame> = stack.iter().copied().map(frame).collect();
            charged_frame(&profile, heap, &frames).map(|frame| frame.function.clone())
        };
        let resize = ("PyByteArray_Resize", "libpython3.so");
        let call = ("_PyObject_MakeTpCall", "libpython3.so");
        let (serve, main) = (("serve", "python"), ("main", "python3"));
        let extension = ("parse", "_json.so");
        let is = |name: &str| Some(name.to_owned());
        assert_eq!(charged(machine, &[call, serve, main]), is("serve"));
        assert_eq!(
            charged(HeapId::MALLOC, &[resize, call, serve, main]),
            is("serve")
        );
        assert_eq!(
            charged(HeapId::MALLOC, &[resize, extension, call, serve]),
            is("parse")
        );
        let dup = ("strdup", "libc.so.6");
        assert_eq!(charged(HeapId::MALLOC, &[dup, call, serve]), is("serve"));
        assert_eq!(charged(HeapId::MALLOC, &[dup, main]), is("strdup"));
        assert_eq!(charged(HeapId::MALLOC, &[serve, main]), is("serve"));
        // Compiled by mypyc, and by Cython.
        for compiled in ["CPyDef_black___parse", "__pyx_f_6uvloop_4loop_4Loop__run"] {
            let library = (
                "CPyList_Append",
                "app__mypyc.cpython-313-x86_64-linux-gnu.so",
            );
            let function = (compiled, "app__mypyc.cpython-313-x86_64-linux-gnu.so");
            assert_eq!(
                charged(machine, &[resize, library, function, call, serve]),
                is(compiled)
            );
            assert_eq!(
                charged(HeapId::MALLOC, &[resize, function, call, serve]),
                is(compiled)
            );
        }
        // Those of an extension in C are none.
        assert_eq!(
            charged(machine, &[resize, extension, call, serve]),
            is("serve")
        );
    }
}
