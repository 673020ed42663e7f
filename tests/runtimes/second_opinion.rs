//! Promise: the profile says of a runtime's heap what the runtime has counted itself.

use crate::support::compile::{has_java, has_ocaml};
use crate::support::profile::Profile;
use crate::support::room::{stderr, stdout};
use crate::support::{Room, bridge, compile, is_installed, skip};

/// What the program printed (bytes), and its profile.
fn counted(room: &Room, command: &[&str]) -> (f64, Profile) {
    let run = ["run", "-q", "--seed", "7", "--interval", "16K", "-o"];
    let arguments = [&run[..], &["x.allocsample", "--"], command].concat();
    let output = room.output(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let bytes = stdout(&output).trim().parse().expect("bytes");
    (bytes, Profile::read(&room.path("x.allocsample")))
}

/// Within 4 standard errors, and a share for what lies outside of what was counted.
#[track_caller]
fn assert_near(what: &str, [estimate, error]: [f64; 2], counted: f64, share: f64) {
    let difference = (estimate - counted).abs();
    assert!(
        difference < 4.0 * error + share * counted,
        "{what}: {estimate} ± {error} bytes, {counted} by its own count"
    );
}

fn heap_figures(profile: &Profile, heap: &str, figure: &str) -> [f64; 2] {
    let heap = bridge::heap(profile, heap);
    [figure.to_owned(), format!("{figure}_stderr")]
        .map(|name| heap[&*name].as_f64().expect("a figure"))
}

#[test]
fn ocaml_has_allocated_as_much() {
    if !has_ocaml() {
        return;
    }
    let room = Room::new();
    compile::ocaml("counted", &[], room.directory());
    let (bytes, profile) = counted(&room, &["./counted"]);
    let figures = heap_figures(&profile, "ocaml", "allocated_bytes");
    assert_near("OCaml", figures, bytes, 0.01);
}

#[test]
fn lua_holds_as_much() {
    for lua in ["lua5.4", "luajit"] {
        if !is_installed(lua) {
            skip(&format!("no {lua} (Debian: {lua})"));
            continue;
        }
        let room = Room::new();
        let program = bridge::program("counted.lua");
        let (bytes, profile) = counted(&room, &[lua, &program.to_string_lossy()]);
        let figures = heap_figures(&profile, "lua", "live_bytes");
        // What the interpreter had before it met us.
        assert_near(lua, figures, bytes, 0.03);
    }
}

#[test]
fn a_thread_of_java_has_allocated_as_much() {
    if !has_java() {
        return;
    }
    let room = compile::java("Counted.java");
    let (bytes, profile) = counted(&room, &["java", "Counted"]);
    let functions = profile.report["functions"].as_array().expect("functions");
    let work = functions
        .iter()
        .find(|row| row["function"] == "Counted.work")
        .expect("the work");
    let total = work["total_allocated_bytes"].as_f64().expect("bytes");
    // The whole heap's error is that of the work, nearly.
    let [_, error] = heap_figures(&profile, "java", "allocated_bytes");
    assert_near("Java", [total, error], bytes, 0.02);
}
