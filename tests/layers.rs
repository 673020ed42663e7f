//! Fact: who imports whom. A new edge changes this table, and its commit says why.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Each room, with the rooms that it may import. Rooms lower down may be imported only by those above them:
/// cargo itself refuses a cycle.
const MAY_IMPORT: [(&str, &[&str]); 16] = [
    ("sampling", &[]),
    ("record", &[]),
    // What it reads is what the profile gets.
    ("residency", &["record"]),
    ("ring", &[]),
    ("agent", &["sampling", "record", "ring"]),
    (
        "drain",
        &["sampling", "record", "residency", "ring", "agent"],
    ),
    // Record for the words in which processes end.
    ("preload", &["agent", "drain", "export", "record"]),
    ("profile", &["record", "ring", "sampling"]),
    // Sampling for a draw of samples that stand for others.
    ("export", &["profile", "sampling"]),
    ("report", &["profile", "sampling"]),
    // Report for the function that an allocation is charged to.
    ("query", &["profile", "report"]),
    // Sampling for sums that know their error.
    ("leaks", &["profile", "report", "sampling"]),
    ("diff", &["profile", "report", "sampling"]),
    // Leaks and diff for verdicts: the page shows the same as the command prints.
    ("view", &["profile", "report", "leaks", "diff"]),
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
            "record",
            "residency",
            "sampling",
        ],
    ),
];

/// Rooms without the standard library; what is not there cannot allocate, lock or panic with a message.
const WITHOUT_STD: [&str; 4] = ["sampling", "record", "ring", "agent"];

/// Rooms without unsafe code.
const WITHOUT_UNSAFE: [&str; 10] = [
    "sampling",
    "record",
    "residency",
    "profile",
    "export",
    "report",
    "query",
    "view",
    "leaks",
    "diff",
];

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
fn rooms_import_downwards_only() {
    let imports = imports();
    let rooms: BTreeSet<&str> = MAY_IMPORT.iter().map(|(room, _)| *room).collect();
    let real: BTreeSet<&str> = imports.keys().map(|room| &room[..]).collect();
    assert_eq!(real, rooms, "the table names every room");
    for (room, allowed) in MAY_IMPORT {
        for import in &imports[room] {
            assert!(
                allowed.contains(&&import[..]),
                "allocsample-{room} must not import allocsample-{import}"
            );
        }
    }
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
}

/// `#![no_std]` may be written as `#![cfg_attr(not(test), no_std)]`.
#[track_caller]
fn assert_says(room: &str, attribute: &str) {
    let text =
        std::fs::read_to_string(root().join("src").join(room).join("lib.rs")).expect("a room");
    let says = text
        .lines()
        .any(|line| line.starts_with("#![") && line.contains(attribute));
    assert!(says, "src/{room}/lib.rs: no #![{attribute}]");
}
