//! Fact: what liballocsample.so exports, imports and keeps in thread-local storage.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::attached::Attached;
use crate::support::{Program, agent_library, command, skip};

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
    printed_about(&agent_library(), tool, arguments)
}

fn printed_about(file: &Path, tool: &str, arguments: &[&str]) -> String {
    let output = Command::new(tool)
        .args(arguments)
        .arg(file)
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

/// What the bridges in c_shim/bridges/ export.
fn exported_by_bridges() -> BTreeSet<String> {
    let bridges = Path::new(env!("CARGO_MANIFEST_DIR")).join("c_shim/bridges");
    let entries = fs::read_dir(bridges).expect("the bridges");
    let lists = entries.filter_map(|entry| {
        fs::read_to_string(entry.expect("a bridge").path().join("exports")).ok()
    });
    lists
        .flat_map(|list| list.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Group and name of each row in c_shim/interposed.def.
fn table() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("c_shim/interposed.def");
    let rows = fs::read_to_string(path).expect("the table");
    let rows = rows
        .lines()
        .filter_map(|row| row.strip_suffix(')')?.split_once('('))
        .filter(|(group, _)| group.bytes().all(|letter| letter.is_ascii_uppercase()));
    rows.map(|(group, row)| {
        let (name, _) = row.split_once(',').unwrap_or((row, ""));
        (group.to_owned(), name.to_owned())
    })
    .collect()
}

#[test]
fn exports_are_the_table_and_our_own_names() {
    let mut exports = exports();
    for name in OWN_NAMES {
        assert!(exports.remove(name), "{name} is not exported");
    }
    let is_exported = |(group, _): &(String, String)| group != "LATE" && group != "EXTENSION";
    let rows = table().into_iter().filter(is_exported);
    let mut expected: BTreeSet<String> = rows.map(|(_, name)| name).collect();
    expected.extend(exported_by_bridges());
    assert_eq!(exports, expected);
}

/// The linker's stubs have no call-frame information, so another profiler's signal that comes in one cuts the stack.
#[test]
fn no_function_is_called_through_a_stub_where_the_agent_works() {
    let relocations = printed("readelf", &["--relocs", "--wide"]);
    let stubs: BTreeSet<_> = relocations
        .lines()
        .filter(|line| line.contains("_JUMP_SLO"))
        .filter_map(|line| line.split_whitespace().nth(4)?.split('@').next())
        .collect();
    // From precompiled code, for the ends of threads and of the process and for panics, whose unwinder is linked in.
    let elsewhere = [
        "__cxa_finalize",
        "__tls_get_addr",
        "abort",
        "free",
        "malloc",
        "pthread_mutex_lock",
        "pthread_mutex_unlock",
        "pthread_once",
        "strlen",
    ];
    assert!(stubs.is_subset(&elsewhere.into()), "{stubs:?}");
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

/// What happens to the calls of each function in the table when the agent attaches to a program with this allocator.
#[track_caller]
fn assert_redirects_by_the_table(allocator: Option<&Program>) -> BTreeSet<String> {
    // Linked with what defines the operators, or their slots would stay empty for good.
    let flags = ["-Wl,--no-as-needed", "-lstdc++"];
    let mut running = Attached::start_by("slots.c", &flags, |room| {
        let mut command = Command::new(room.path("attached"));
        if let Some(allocator) = allocator {
            command.env("LD_PRELOAD", allocator.path());
        }
        command
    });
    running.attach(&[]);
    let slots = running.ask("slots");
    running.detach();
    let after = running.ask("slots");
    assert!(!after.contains("moved"), "{after}");
    running.ends_well();

    let groups: BTreeMap<String, String> = table()
        .into_iter()
        .map(|(group, name)| (name, group))
        .collect();
    let mut moved = BTreeSet::new();
    for slot in slots.split(' ') {
        let [name, object, state] = slot.split(':').collect::<Vec<_>>()[..] else {
            panic!("{slot}");
        };
        let group = groups[name].as_str();
        let is_expected = match group {
            "MALLOC" | "COMPOSED" | "NEW" | "DELETE" | "EXTENSION" => object == "allocator",
            "PROCESS" | "MAPPING" | "LATE" => true,
            _ => false,
        };
        assert_eq!(state == "moved", is_expected, "{group} {slot}");
        if is_expected {
            moved.insert(group.to_owned());
        }
    }
    moved
}

#[test]
fn an_attach_redirects_what_the_table_says() {
    let moved = assert_redirects_by_the_table(None);
    let of_libc = ["MALLOC", "COMPOSED", "MAPPING", "PROCESS", "LATE"];
    assert_eq!(moved, of_libc.map(str::to_owned).into());
    let allocator = Program::library(
        "allocator_with_operators.cpp",
        "liballocator.so",
        &["-fno-builtin", "-DSHAPE=OWN", "-DALIGNED=OWN"],
    );
    let moved = assert_redirects_by_the_table(Some(&allocator));
    assert!(moved.contains("NEW") && moved.contains("DELETE"));
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

/// What the dynamic section of a file has in entries of a kind, such as `NEEDED`.
fn dynamic_entries(file: &Path, kind: &str) -> BTreeSet<String> {
    let dynamic = printed_about(file, "readelf", &["-dW"]);
    let lines = dynamic.lines().filter(|line| line.contains(kind));
    lines
        .map(|line| line.split(['[', ']']).nth(1).expect("a name").to_owned())
        .collect()
}

/// libpthread and libdl are files of their own before glibc 2.34; musl takes all these names for itself.
#[test]
fn nothing_is_needed_but_the_c_library() {
    let of_library = ["libc.so.6", "libpthread.so.0", "libdl.so.2"];
    let of_library = BTreeSet::from(of_library.map(str::to_owned));
    assert_eq!(dynamic_entries(&agent_library(), "(NEEDED)"), of_library);
    let mut of_command = of_library;
    of_command.insert("libm.so.6".to_owned());
    assert_eq!(dynamic_entries(command(), "(NEEDED)"), of_command);
}

#[test]
fn no_symbol_is_needed_that_glibc_2_17_does_not_have() {
    for file in [&agent_library(), command()] {
        let symbols = printed_about(file, "readelf", &["--dyn-syms", "--wide"]);
        let mut versioned = 0;
        for line in symbols.lines().filter(|line| line.contains(" UND ")) {
            let columns: Vec<_> = line.split_whitespace().collect();
            let [_, _, _, _, binding, _, _, name, ..] = columns[..] else {
                continue;
            };
            let Some((_, version)) = name.split_once("@") else {
                // Bound to NULL where it does not exist.
                assert_eq!(binding, "WEAK", "{}: {line}", file.display());
                continue;
            };
            let version = version.trim_start_matches('@');
            let numbers = version.strip_prefix("GLIBC_").expect("a version of glibc");
            let mut numbers = numbers
                .split('.')
                .map(|it| it.parse::<u32>().expect("a number"));
            let found = (numbers.next(), numbers.next());
            assert!(found <= (Some(2), Some(17)), "{}: {line}", file.display());
            versioned += 1;
        }
        assert!(versioned > 50, "{}", file.display());
    }
}

#[test]
fn a_released_library_has_no_debug_information_for_debuggers_to_find_names_in() {
    if cfg!(debug_assertions) {
        return skip("a debug build (cargo test --release)");
    }
    let sections = printed("readelf", &["--wide", "--sections"]);
    assert!(!sections.contains(".debug_info"), "{sections}");
}

#[test]
fn the_library_has_no_executable_stack_and_no_writable_code() {
    let segments = printed("readelf", &["-lW"]);
    assert!(!segments.contains("RWE"), "{segments}");
    assert!(!printed("readelf", &["-dW"]).contains("TEXTREL"));
}
