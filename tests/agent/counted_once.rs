//! Promise: no byte is in two heaps. What is live at the peak, of all heaps together, fits into the memory that the process had.

use std::path::Path;
use std::process::Command;

use crate::support::profile::figure;
use crate::support::room::stderr;
use crate::support::{Room, bridge, compile, is_installed, skip};
use serde_json::Value;

fn json(room: &Room, command: &str) -> Value {
    let output = room.output(&[command, "x.allocsample", "--format", "json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

/// Runs the program, which touches all that it allocates.
#[track_caller]
fn assert_fits(room: &Room, heap: &str, program: &[&str]) {
    let run = ["run", "-q", "--seed", "3", "--interval", "64K"];
    let output = room.output(&[&run[..], &["-o", "x.allocsample", "--"], program].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (report, memory) = (json(room, "report"), json(room, "memory"));
    let heaps = report["heaps"].as_array().expect("heaps");
    assert!(heaps.iter().any(|it| it["name"] == heap), "{heaps:?}");
    let totals = &report["totals"];
    let (live, error) = (
        figure(totals, "peak_live_bytes"),
        figure(totals, "peak_live_bytes_stderr"),
    );
    // Lists of mappings are not read at the very peak.
    let resident = figure(&memory["peak"], "resident_bytes") + figure(&memory, "missed_bytes");
    assert!(
        live < resident + 5.0 * error,
        "{heap}: {live} ± {error} live, {resident} resident; {heaps:?}"
    );
    assert!(live > 0.05 * resident, "{heap}: {live} of {resident}");
}

/// In the room, by this compiler.
fn compiled(room: &Room, compiler: &str, source: &Path) {
    let output = Command::new(compiler)
        .arg(source)
        .current_dir(room.directory())
        .output()
        .expect("the compiler");
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn interpreted_programs_fit_into_their_memory() {
    for (heap, interpreter, source) in [
        ("python", "python3", "known_sites.py"),
        ("ruby", "ruby", "known_sites.rb"),
        ("lua", "lua5.4", "known_sites.lua"),
        ("php", "php", "known_sites.php"),
        ("perl", "perl", "known_sites.pl"),
        ("javascript", "node", "known_sites.js"),
    ] {
        if !is_installed(interpreter) {
            skip(&format!("no {interpreter}"));
            continue;
        }
        let source = bridge::program(source);
        let source = source.to_str().expect("a path");
        assert_fits(&Room::new(), heap, &[interpreter, source, "4"]);
    }
}

#[test]
fn compiled_programs_fit_into_their_memory() {
    if compile::has_ocaml() {
        let room = Room::new();
        let program = compile::ocaml("known_sites", &["unix.cmxa"], room.directory());
        assert_fits(&room, "ocaml", &[program.to_str().expect("a path"), "4"]);
    }
    if compile::has_java() {
        let room = compile::java("KnownSites.java");
        assert_fits(&room, "java", &["java", "-cp", ".", "KnownSites", "4"]);
    }
    if is_installed("mono") && is_installed("mcs") {
        let room = Room::new();
        let source = bridge::program("KnownSites.cs");
        // Its compiler leaves what it makes beside the source.
        std::fs::copy(source, room.path("KnownSites.cs")).expect("the source");
        compiled(&room, "mcs", Path::new("KnownSites.cs"));
        assert_fits(&room, "mono", &["mono", "KnownSites.exe", "4"]);
    }
    if is_installed("erl") && is_installed("erlc") {
        let room = Room::new();
        compiled(&room, "erlc", &bridge::program("known_sites.erl"));
        let module = ["-run", "known_sites", "main", "4"];
        let program = [&["erl", "-noshell", "-pa", "."], &module[..]].concat();
        assert_fits(&room, "erlang", &program);
    }
}
