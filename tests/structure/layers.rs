//! Fact: who imports whom. A new edge changes this table, and its commit says why.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Each room, with the rooms that it imports, no more and no less. Cargo itself refuses a cycle.
const IMPORTS: [(&str, &[&str]); 23] = [
    ("sampling", &[]),
    ("record", &[]),
    // What it reads is what the profile gets.
    ("residency", &["record"]),
    ("heapwalk", &[]),
    // It writes a profile of what it reads.
    ("goheap", &["record"]),
    ("ring", &[]),
    ("agent", &["sampling", "record", "ring"]),
    (
        "drain",
        &["sampling", "record", "residency", "ring", "agent"],
    ),
    // Record for what a shortage of memory leaves in the profile.
    ("front", &["agent", "drain", "record"]),
    // Record for the words in which processes end.
    ("boundary", &["agent", "front", "record"]),
    ("preload", &["agent", "boundary", "front", "record"]),
    ("archive", &["agent", "boundary", "front", "record"]),
    ("global", &["agent", "front", "record"]),
    ("profile", &["record", "ring", "sampling"]),
    // Sampling for a draw of samples that stand for others.
    ("export", &["profile", "sampling"]),
    // Heapwalk for what malloc holds, beside what the samples say.
    ("report", &["heapwalk", "profile", "sampling"]),
    // Report for the function that an allocation is charged to.
    ("query", &["profile", "report"]),
    // Sampling for sums that know their error.
    ("leaks", &["profile", "report", "sampling"]),
    ("diff", &["profile", "report", "sampling"]),
    // Leaks and diff for verdicts: the page shows the same as the command prints.
    ("view", &["profile", "report", "leaks", "diff"]),
    // For build scripts only.
    ("linking", &[]),
    // It knows the agent's functions by their names in the other process only.
    ("attach", &[]),
    // The command: sampling only to check an interval as the agent will.
    (
        "",
        &[
            "profile",
            "export",
            "report",
            "query",
            "view",
            "leaks",
            "diff",
            "attach",
            "residency",
            "heapwalk",
            "goheap",
            "sampling",
        ],
    ),
];

/// Rooms without the standard library; what is not there cannot allocate, lock or panic with a message.
const WITHOUT_STD: [&str; 4] = ["sampling", "record", "ring", "agent"];

/// Rooms without unsafe code.
const WITHOUT_UNSAFE: [&str; 11] = [
    "sampling",
    "record",
    "residency",
    "heapwalk",
    "goheap",
    "profile",
    "export",
    "report",
    "view",
    "leaks",
    "diff",
];

/// Rooms with unsafe code in one file, which has nothing else than what needs it.
const UNSAFE_IN: [(&str, &str); 1] = [("query", "virtual_table.rs")];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The rooms' imports as cargo knows them, without those for tests and build scripts.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--offline",
        ])
        .current_dir(root())
        .output()
        .expect("cargo");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("metadata");
    let room = |name: &Value| {
        let name = name.as_str().expect("a name").strip_prefix("allocsample")?;
        Some(name.trim_start_matches('-').to_owned())
    };
    let packages = metadata["packages"].as_array().expect("packages");
    packages
        .iter()
        .map(|package| {
            let imported = package["dependencies"]
                .as_array()
                .expect("dependencies")
                .iter();
            let imported = imported
                .filter(|import| import["kind"].is_null())
                .filter_map(|import| room(&import["name"]));
            (
                room(&package["name"]).expect("one of our packages"),
                imported.collect(),
            )
        })
        .collect()
}

#[test]
fn rooms_import_what_the_table_says() {
    let imports = imports();
    let table: BTreeMap<String, BTreeSet<String>> = IMPORTS
        .iter()
        .map(|(room, imported)| {
            let imported = imported.iter().map(|room| (*room).to_owned());
            ((*room).to_owned(), imported.collect())
        })
        .collect();
    assert_eq!(imports, table);
}

/// Runs scripts/structure in a copy of the sources, with one file changed.
fn check_structure(changed: &str, addition: &str) -> Output {
    let copy = tempfile::tempdir().expect("a directory");
    let copy_of = |part: &str| {
        let target = copy.path().join(part);
        fs::create_dir_all(target.parent().expect("a directory")).expect("a directory");
        let status = Command::new("cp")
            .arg("-r")
            .args([root().join(part), target])
            .status();
        assert!(status.expect("cp").success());
    };
    for part in ["c_shim", "scripts/structure", "docs/ARCHITECTURE.md"] {
        copy_of(part);
    }
    for room in [
        "src/agent",
        "src/archive",
        "src/boundary",
        "src/drain",
        "src/front",
        "src/preload",
    ] {
        copy_of(room);
    }
    let path = copy.path().join(changed);
    let text = fs::read_to_string(&path).expect("a source");
    fs::write(path, text + addition).expect("a copy");
    Command::new(copy.path().join("scripts/structure"))
        .arg("--check")
        .output()
        .expect("Python")
}

#[test]
fn bridges_and_core_meet_in_their_two_tables_only() {
    let output = Command::new(root().join("scripts/structure"))
        .arg("--check")
        .output()
        .expect("Python");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[test]
fn a_bridge_that_names_the_core_is_refused() {
    let output = check_structure(
        "c_shim/bridges/ruby/ruby.c",
        "extern int shim_next_malloc_address(void);\nint reaches(void) { return shim_next_malloc_address(); }\n",
    );
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "error: bridge ruby must not name shim_next_malloc_address of core\n"
    );
}

#[test]
fn a_core_that_names_a_bridge_is_refused() {
    let output = check_structure(
        "c_shim/lifecycle.c",
        "extern int bridge_ruby;\nint reaches(void) { return bridge_ruby; }\n",
    );
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "error: core must not name bridge_ruby of bridge ruby\n"
    );
}

#[test]
fn program_threads_run_code_without_the_standard_library() {
    for room in WITHOUT_STD {
        assert_says(room, "no_std");
    }
}

#[test]
fn offline_rooms_and_arithmetic_have_no_unsafe_code() {
    for room in WITHOUT_UNSAFE {
        assert_says(room, "forbid(unsafe_code)");
    }
    for (room, file) in UNSAFE_IN {
        assert_says(room, "deny(unsafe_code)");
        let directory = root().join("src").join(room);
        for entry in fs::read_dir(directory).expect("a room") {
            let path = entry.expect("a file").path();
            let is_allowed = path.ends_with(file);
            let text = fs::read_to_string(&path).unwrap_or_default();
            let allows = text.contains("allow(unsafe_code)");
            assert_eq!(allows, is_allowed, "{}", path.display());
        }
    }
}

/// `#![no_std]` may be written as `#![cfg_attr(not(test), no_std)]`.
#[track_caller]
fn assert_says(room: &str, attribute: &str) {
    let text = fs::read_to_string(root().join("src").join(room).join("lib.rs")).expect("a room");
    let says = text
        .lines()
        .any(|line| line.starts_with("#![") && line.contains(attribute));
    assert!(says, "src/{room}/lib.rs: no #![{attribute}]");
}
