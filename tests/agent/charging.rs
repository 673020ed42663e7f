//! Promise: an allocation is charged to the function that wanted it, and not to a wrapper of the allocator.

use std::collections::BTreeMap;

use crate::support::room::{stderr, stdout};
use crate::support::{Program, Room};
use serde_json::Value;

/// The program at interval 1, whose figures are exact.
fn wrappers() -> Room {
    let room = Room::new();
    room.add(&Program::compiled("wrappers.c"), "wrappers");
    let run = ["run", "-q", "--interval", "1", "-o", "x.allocsample"];
    let output = room.output(&[&run[..], &["--", "./wrappers"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    room
}

fn said(room: &Room, arguments: &[&str]) -> String {
    let output = room.output(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    stdout(&output)
}

/// Allocations by the function that is charged, of the functions of the program.
fn charged(room: &Room, options: &[&str]) -> BTreeMap<String, u64> {
    let report = [
        "report",
        "x.allocsample",
        "--by",
        "function",
        "--format",
        "json",
    ];
    let report: Value =
        serde_json::from_str(&said(room, &[&report[..], options].concat())).unwrap();
    let rows = report["rows"].as_array().expect("rows").iter();
    let rows = rows.map(|row| {
        let name = row["function"].as_str().expect("a name").to_owned();
        (name, row["allocations"].as_f64().expect("a figure") as u64)
    });
    rows.filter(|(name, count)| *count >= 50 && !name.starts_with('_'))
        .collect()
}

fn counts(expected: &[(&str, u64)]) -> BTreeMap<String, u64> {
    let named = expected
        .iter()
        .map(|&(name, count)| (name.to_owned(), count));
    named.collect()
}

#[test]
fn callers_of_wrappers_are_charged_and_constructors_stay() {
    let room = wrappers();
    let readers = [("read_header", 50), ("read_body", 50), ("read_trailer", 50)];
    let rest = [("open_cache", 50), ("make_node", 150)];
    assert_eq!(charged(&room, &[]), counts(&[&readers[..], &rest].concat()));
    let text = said(&room, &["report", "x.allocsample"]);
    assert!(text.contains("callers of grab, xmalloc"), "{text}");
}

#[test]
fn wrappers_are_charged_if_the_user_wants_that() {
    let room = wrappers();
    let expected = counts(&[("grab", 150), ("xmalloc", 50), ("make_node", 150)]);
    assert_eq!(charged(&room, &["--no-skip"]), expected);
    let text = said(&room, &["report", "x.allocsample", "--no-skip"]);
    assert!(!text.contains("callers of"), "{text}");
}

#[test]
fn functions_that_the_user_names_are_passed_over() {
    let room = wrappers();
    let callers = [("parse", 50), ("clone", 50), ("merge", 50)];
    let found = charged(&room, &["--allocator-function", "^make_", "--no-skip"]);
    let wrappers = [("grab", 150), ("xmalloc", 50)];
    assert_eq!(found, counts(&[&callers[..], &wrappers].concat()));
}

#[test]
fn every_command_charges_alike() {
    let room = wrappers();
    let sql = "SELECT function, count(*) AS n FROM samples JOIN functions USING (function_id) \
               GROUP BY function HAVING n = 50 ORDER BY function";
    let skipped = said(&room, &["query", "x.allocsample", sql, "--format", "csv"]);
    assert!(
        skipped.contains("read_body,50") && !skipped.contains("xmalloc"),
        "{skipped}"
    );
    let kept = said(
        &room,
        &[
            "query",
            "x.allocsample",
            sql,
            "--format",
            "csv",
            "--no-skip",
        ],
    );
    assert!(
        kept.contains("xmalloc,50") && !kept.contains("read_body"),
        "{kept}"
    );
    room.output(&[
        "run",
        "-q",
        "--interval",
        "1",
        "-o",
        "y.allocsample",
        "--",
        "./wrappers",
    ]);
    let diff = [
        "diff",
        "x.allocsample",
        "y.allocsample",
        "--all",
        "--top",
        "50",
    ];
    let skipped = said(&room, &diff);
    assert!(
        skipped.contains("read_body") && !skipped.contains("grab"),
        "{skipped}"
    );
    let kept = said(&room, &[&diff[..], &["--no-skip"]].concat());
    assert!(kept.contains("grab"), "{kept}");
}

/// A stripped program: its functions are told apart by their starts.
#[test]
fn functions_without_symbols_are_one_row_each() {
    let room = Room::new();
    room.add(&Program::compiled_with("wrappers.c", &["-s"]), "wrappers");
    let run = [
        "run",
        "-q",
        "--interval",
        "1",
        "-o",
        "x.allocsample",
        "--",
        "./wrappers",
    ];
    let output = room.output(&run);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found = charged(&room, &[]);
    let mut figures: Vec<u64> = found.values().copied().collect();
    figures.sort_unstable();
    // Nothing says that the second wrapper is one: it has a single caller.
    assert_eq!(figures, [50, 50, 50, 50, 150], "{found:?}");
    assert!(
        found.keys().all(|name| name.starts_with("wrappers+0x")),
        "{found:?}"
    );
}
