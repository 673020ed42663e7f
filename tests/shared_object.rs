//! Fact: what liballocsample.so exports, imports and keeps in thread-local storage.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use support::agent_library;

/// Exported besides the names of libc: the function by which a runtime finds the agent, and those that
/// `allocsample attach` and `detach` call.
const OWN_NAMES: [&str; 3] = [
    "allocsample_get_hooks",
    "allocsample_attach",
    "allocsample_detach",
];

/// Parts of the names of functions that run on the program's threads.
const PROGRAM_THREAD_CODE: [&str; 6] = [
    "allocsample_agent::",
    "allocsample_ring::",
    "allocsample_sampling::",
    "allocsample_record::",
    "allocsample::slow_path",
    "framehop::",
];

/// What one of the binutils prints about the library.
fn printed(tool: &str, arguments: &[&str]) -> String {
    let output = Command::new(tool)
        .args(arguments)
        .arg(agent_library())
        .output()
        .unwrap_or_else(|error| panic!("{tool}: {error}"));
    assert!(
        output.status.success(),
        "{tool}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn exports() -> BTreeSet<String> {
    let symbols = printed("nm", &["--dynamic", "--defined-only", "--format=posix"]);
    symbols
        .lines()
        .map(|line| line.split([' ', '@']).next().expect("a name").to_owned())
        .collect()
}

/// The names in c_shim/exports.map, which is the single list of what is interposed.
fn listed() -> BTreeSet<String> {
    let map = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("c_shim/exports.map"))
        .expect("the list");
    let (_, names) = map.split_once("global:").expect("a list");
    let (names, _) = names.split_once('}').expect("its end");
    names
        .split(';')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn exports_are_the_list_and_our_own_names() {
    let mut exports = exports();
    for name in OWN_NAMES {
        assert!(exports.remove(name), "{name} is not exported");
    }
    assert_eq!(exports, listed());
}

#[test]
fn the_whole_malloc_family_is_interposed() {
    let exports = exports();
    for name in [
        "malloc",
        "free",
        "calloc",
        "realloc",
        "reallocarray",
        "posix_memalign",
        "aligned_alloc",
        "memalign",
        "valloc",
        "pvalloc",
        "free_sized",
        "free_aligned_sized",
    ] {
        assert!(exports.contains(name), "{name} is not interposed");
    }
    // Sampled blocks are the next allocator's, which knows their size.
    assert!(!exports.contains("malloc_usable_size"));
}

/// What a preloaded agent stands before, and one that is attached does not need to: names of our own, what calls another name of
/// these, bridges and ticks, which begin with the process.
const NOT_AT_AN_ATTACH: [&str; 26] = [
    "reallocarray",
    "JLI_Launch",
    "Agent_OnLoad",
    "Agent_OnAttach",
    "luaopen_allocsample",
    "GC_generic_malloc_many",
    "GC_malloc_kind_global",
    "GC_generic_malloc",
    "GC_generic_malloc_ignore_off_page",
    "GC_generic_malloc_uncollectable",
    "GC_free",
    "GC_set_on_collection_event",
    "GC_get_on_collection_event",
    "pthread_create",
    "thrd_create",
    "sigaltstack",
    "sigaction",
    "signal",
    "sysv_signal",
    "__sysv_signal",
    "pthread_sigmask",
    "sigprocmask",
    "sigwait",
    "sigwaitinfo",
    "sigtimedwait",
    "signalfd",
];

#[test]
fn an_attach_redirects_what_a_preload_interposes() {
    let directory = env!("CARGO_MANIFEST_DIR");
    let source = fs::read_to_string(format!("{directory}/c_shim/attach.c")).expect("attach.c");
    let redirected: BTreeSet<&str> = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("X(")?.split_once(')'))
        .map(|(name, _)| name)
        .collect();
    let listed = listed();
    let expected: BTreeSet<&str> = listed
        .iter()
        .map(String::as_str)
        .filter(|name| !NOT_AT_AN_ATTACH.contains(name))
        .collect();
    assert_eq!(redirected, expected);
}

#[test]
fn threads_of_the_program_use_static_thread_local_storage_only() {
    // The C library is told to make room for it when the program starts.
    assert!(printed("readelf", &["-dW"]).contains("STATIC_TLS"));
    let relocations = printed("readelf", &["-rW"]);
    let wanted = ["R_X86_64_TPOFF64", "R_AARCH64_TLS_TPREL"];
    assert!(
        wanted.iter().any(|kind| relocations.contains(kind)),
        "no initial-exec variable"
    );
    // Rust's standard library may ask for the address of its own variables: on our own thread.
    let code = printed("objdump", &["-d", "-C", "--no-show-raw-insn"]);
    let exports = exports();
    let mut function = "";
    for line in code.lines() {
        if let Some(name) = line.strip_suffix(">:") {
            function = name.split_once('<').map_or(name, |(_, name)| name);
        }
        if !line.contains("__tls_get_addr") || line.ends_with(">:") {
            continue;
        }
        let is_ours = PROGRAM_THREAD_CODE
            .iter()
            .any(|part| function.contains(part));
        let is_on_programs_threads = !function.starts_with("std::")
            && (is_ours || exports.contains(function) || function.starts_with("shim_"));
        assert!(
            !is_on_programs_threads,
            "{function} asks for the address of a thread-local variable"
        );
    }
}

#[test]
fn the_library_can_neither_be_unloaded_nor_bound_lazily() {
    let dynamic = printed("readelf", &["-dW"]);
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    assert!(dynamic.contains("BIND_NOW"), "{dynamic}");
}

#[test]
fn the_library_needs_nothing_but_the_c_library() {
    for line in printed("readelf", &["-dW"])
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
    {
        let is_part = [
            "libc.so",
            "ld-linux",
            "libgcc_s.so",
            "libpthread.so",
            "libdl.so",
            "libm.so",
        ]
        .iter()
        .any(|name| line.contains(name));
        assert!(is_part, "{line}");
    }
}

#[test]
fn the_library_has_no_executable_stack_and_no_writable_code() {
    let segments = printed("readelf", &["-lW"]);
    assert!(!segments.contains("RWE"), "{segments}");
    assert!(!printed("readelf", &["-dW"]).contains("TEXTREL"));
}
