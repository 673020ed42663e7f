//! Promise: blocks that a program gets by other functions of its malloc's library, as BIND and Varnish get theirs by jemalloc's mallocx,
//! are sampled as malloc's are, and programs that only look for such functions find none of ours.

use std::process::Command;

use crate::support::attached::Attached;
use crate::support::profile::Profile;
use crate::support::talking::Talking;
use crate::support::{Program, Room, allocators, bridge, skip};

/// Flags to link with it, by its file: the slots are filled at the first call, or at the start.
fn linked_with_jemalloc(more: &[&'static str]) -> Option<Vec<String>> {
    let installed = allocators::installed().into_iter();
    let Some((_, library)) = installed.into_iter().find(|(name, _)| *name == "jemalloc") else {
        skip("no jemalloc (Debian: libjemalloc2)");
        return None;
    };
    let library = library.to_string_lossy().into_owned();
    Some(
        [
            &more.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>()[..],
            &[library],
        ]
        .concat(),
    )
}

fn program(more: &[&'static str]) -> Option<Program> {
    let flags = linked_with_jemalloc(more)?;
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Some(Program::compiled_with("extensions.c", &flags))
}

/// Blocks allocated, their bytes, and the bytes of those that are live.
#[track_caller]
fn assert_site(profile: &Profile, function: &str, expected: (f64, f64, f64)) {
    let site = profile.site(function);
    let found = (site.allocations, site.allocated_bytes, site.live_bytes);
    assert_eq!(found, expected, "{function}");
}

#[test]
fn every_block_has_its_size_its_site_and_its_end_whoever_frees_it() {
    for binding in ["-Wl,-z,lazy", "-Wl,-z,now"] {
        let Some(program) = program(&[binding]) else {
            return;
        };
        let room = Room::new();
        room.add(&program, "extensions");
        let mut running = Talking::start(room, &["--interval", "1"], &["./extensions"]);
        running.ask("allocate 300 1000");
        running.ask("grow 5000");
        running.ask("free");
        running.ask("allocate 40 64");
        let (_room, profile) = running.end();
        assert_site(&profile, "extended", (340.0, 302_560.0, 2_560.0));
        assert_site(&profile, "plain", (340.0, 302_560.0, 2_560.0));
        assert_site(&profile, "grown", (300.0, 1_500_000.0, 0.0));
        bridge::assert_stack(&profile, &["main", "extended"]);
    }
}

#[test]
fn a_library_that_is_opened_later_is_seen() {
    let (Some(program), Some(flags)) = (program(&[]), linked_with_jemalloc(&["-DLIBRARY"])) else {
        return;
    };
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let library = Program::library("extensions.c", "liblate.so", &flags);
    let room = Room::new();
    room.add(&program, "extensions");
    let mut running = Talking::start(room, &["--interval", "1"], &["./extensions"]);
    running.ask(&format!("open {}", library.path().display()));
    running.ask("allocate 1 64");
    let (_room, profile) = running.end();
    assert_site(&profile, "late", (100.0, 300_000.0, 300_000.0));
}

#[test]
fn an_attach_redirects_them_and_a_detach_gives_them_back() {
    let Some(flags) = linked_with_jemalloc(&[]) else {
        return;
    };
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut running = Attached::start_by("extensions.c", &flags, |room| {
        Command::new(room.path("attached"))
    });
    running.ask("allocate 100 1000");
    running.attach(&["--interval", "1"]);
    running.ask("allocate 100 1000");
    running.ask("grow 2000");
    let profile = running.detach();
    running.ask("free");
    running.ask("allocate 10 64");
    assert_site(&profile, "extended", (100.0, 100_000.0, 0.0));
    assert_site(&profile, "grown", (200.0, 400_000.0, 400_000.0));
    running.ends_well();
}

#[test]
fn a_program_that_looks_for_them_finds_none_of_ours() {
    let program = Program::compiled("looks_for_extensions.c");
    for options in [&[][..], &["--embedded"]] {
        let room = Room::new();
        room.add(&program, "looks");
        let run = [
            &["run", "-q", "-o", "x.allocsample"],
            options,
            &["--", "./looks"],
        ]
        .concat();
        let output = room.output(&run);
        assert_eq!(
            crate::support::room::stdout(&output),
            "none\n",
            "{output:?}"
        );
    }
}
