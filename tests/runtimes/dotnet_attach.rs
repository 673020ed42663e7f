//! Promise: an attach brings the heap of a running .NET in, and a detach leaves it.

use std::process::Command;

use crate::dotnet::{compiled, has_dotnet, write_pdb};
use crate::support::attached::Attached;
use crate::support::profile::Profile;
use crate::support::{bridge, truth};

const MIX: &str = "mix 60000000";

/// It ends with 3.
fn start(is_server: bool) -> Attached {
    let (room, program) = compiled("AttachedNet.cs");
    write_pdb(&room, &program);
    let mut command = Command::new("dotnet");
    // For the first variable, see `run_of`. Young objects are collected every few hundred KiB.
    command
        .env("DOTNET_EnableWriteXorExecute", "0")
        .env("DOTNET_gcServer", if is_server { "1" } else { "0" })
        .env("DOTNET_GCgen0size", "80000")
        .arg(program);
    Attached::start_in(room, command)
}

fn assert_ends(running: Attached) {
    let (_room, status) = running.end_of_input();
    assert_eq!(status.code(), Some(3), "{status}");
}

/// Before .NET 10 the runtime reports small objects at fixed distances. Where sizes are random the errors were those of random samples:
/// 1.0 standard errors (root mean square of 100 figures). A bound of 6 leaves room for the part that is not random.
#[track_caller]
fn assert_mix(profile: &Profile, answer: &str) {
    let known = answer
        .split(' ')
        .map(|bytes| bytes.parse::<f64>().expect("bytes"));
    for (name, bytes) in ["Small", "Middle", "Large"].iter().zip(known) {
        let site = profile.site(&format!("AttachedNet.{name}"));
        assert!(site.samples > 50, "{name}: {site:?}");
        let z = truth::z(site.allocated_bytes, bytes, site.allocated_bytes_stderr);
        assert!(z.abs() < 6.0, "{name}: z {z:+.1}, {site:?}");
    }
}

#[test]
fn objects_between_attach_and_detach_are_estimated_and_no_others() {
    if !has_dotnet() {
        return;
    }
    let mut running = start(false);
    running.ask("early");
    for interval in ["64K", "16K", "128K"] {
        running.attach(&["--interval", interval]);
        let answer = running.ask(MIX);
        let profile = running.detach();
        assert_mix(&profile, &answer);
        running.ask("early");
        assert_eq!(profile.site("AttachedNet.Early").samples, 0);
    }
    assert_ends(running);
}

/// 48 bytes each, which a collection finds alive, and the second time dead.
#[test]
fn deaths_after_an_attach_are_found_by_collections() {
    const COUNT: f64 = 400_000.0;
    if !has_dotnet() {
        return;
    }
    let mut running = start(false);
    running.attach(&["--interval", "64K"]);
    running.ask(&format!("keep {COUNT}"));
    running.ask("keep 0");
    running.ask(&format!("keep {COUNT}"));
    let profile = running.detach();
    let site = profile.site("AttachedNet.Keep");
    let bytes = COUNT * 48.0;
    let of_all = truth::z(
        site.allocated_bytes,
        2.0 * bytes,
        site.allocated_bytes_stderr,
    );
    let of_live = truth::z(site.live_bytes, bytes, site.live_bytes_stderr);
    assert!(of_all.abs() < 6.0 && of_live.abs() < 6.0, "{site:?}");
    assert_ends(running);
}

#[test]
fn types_methods_and_lines_are_known_after_an_attach() {
    if !has_dotnet() {
        return;
    }
    let mut running = start(false);
    running.attach(&["--interval", "64K"]);
    running.ask(MIX);
    running.ask("keep 100000");
    let profile = running.detach();
    let types = profile.report["types"].as_array().expect("types");
    for name in ["System.Byte[]", "Kept"] {
        let is_there = |row: &serde_json::Value| row["heap"] == "dotnet" && row["type"] == name;
        assert!(types.iter().any(is_there), "{name}: {types:?}");
    }
    let stacks = profile.stacks();
    bridge::assert_in_order(
        &stacks,
        &[
            "AttachedNet.Main",
            "AttachedNet.Do",
            "AttachedNet.Mix",
            "AttachedNet.Small",
        ],
    );
    if running.room.path("program.pdb").exists() {
        let file = bridge::program("AttachedNet.cs");
        bridge::assert_line(&profile, "AttachedNet.Keep", &file, "new Kept();");
    }
    assert_ends(running);
}

/// With collections every few hundred KiB, on one heap and on several.
#[test]
fn threads_that_allocate_do_not_notice_an_attach_or_a_detach() {
    if !has_dotnet() {
        return;
    }
    for is_server in [false, true] {
        let mut running = start(is_server);
        let answer = running.ask("threads 2000");
        for _ in 0..3 {
            running.tell("threads 20000");
            running.attach(&["--interval", "16K"]);
            assert_eq!(running.answer(), answer);
            running.tell("threads 20000");
            let profile = running.detach();
            assert!(bridge::has_heap(&profile, "dotnet"), "server {is_server}");
            assert_eq!(running.answer(), answer);
        }
        assert_ends(running);
    }
}

#[test]
fn a_profile_says_if_the_runtime_did_not_choose_its_objects_at_random() {
    if !has_dotnet() {
        return;
    }
    let mut running = start(false);
    let version: u32 = running.ask("version").parse().expect("a number");
    for _ in 0..2 {
        running.attach(&["--interval", "64K"]);
        running.ask(MIX);
        let notes = running.detach().report["notes"].to_string();
        assert_eq!(notes.contains("not at random"), version < 10, "{notes}");
    }
    assert_ends(running);
}
