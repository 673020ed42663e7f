//! Promise: what Erlang's BEAM allocates is in the profile by allocator and function, and agrees with its own figures; the program is
//! as it was.

use std::process::Command;

use serde_json::Value;

use crate::support::attached::Attached;
use crate::support::profile::{Profile, figure};
use crate::support::room::stderr;
use crate::support::{Agent, Outcome, Room, Run, bridge, is_installed, skip};

fn has_erlang() -> bool {
    let has = is_installed("erl") && is_installed("erlc");
    if !has {
        skip("no Erlang (Debian: erlang-base)");
    }
    has
}

/// A room with the compiled module.
fn room_with(module: &str) -> Room {
    let room = Room::new();
    let output = Command::new("erlc")
        .arg(bridge::program(&format!("{module}.erl")))
        .current_dir(room.directory())
        .output()
        .expect("the compiler");
    assert!(output.status.success(), "{}", stderr(&output));
    room
}

fn arguments<'a>(room: &'a Room, module: &'a str, argument: &'a str) -> [&'a str; 7] {
    let directory = room.directory().to_str().expect("a path");
    [
        "-noshell", "-pa", directory, "-run", module, "main", argument,
    ]
}

/// Its helpers allocate with malloc, and have profiles of their own.
fn profile_of(outcome: &Outcome) -> Profile {
    outcome.profile_of("beam.smp")
}

fn known_sites(times: &str, flags: &str, agent: &Agent) -> Outcome {
    let room = room_with("known_sites");
    Run::of("erl")
        .args(&arguments(&room, "known_sites", times))
        .env("ERL_AFLAGS", flags)
        .unchanged(agent)
}

#[test]
fn each_site_is_within_its_error() {
    if !has_erlang() {
        return;
    }
    for (interval, times) in [("4K", "1"), ("64K", "8")] {
        let outcome = known_sites(times, "", &Agent::at_interval(interval).seeded(7));
        let profile = profile_of(&outcome);
        bridge::assert_near_truth(&profile, outcome.text().as_bytes(), 4);
        bridge::assert_audit(&profile);
    }
}

#[test]
fn functions_have_their_callers_and_stand_in_for_the_emulator() {
    if !has_erlang() {
        return;
    }
    let agent = Agent::at_interval("4K").seeded(7);
    let outcome = known_sites("1", "", &agent);
    let profile = profile_of(&outcome);
    let spawned = [
        "init:start_em/1",
        "known_sites:main/1",
        "known_sites:site/6",
        "erlang:spawn_opt/2",
    ];
    bridge::assert_stack(&profile, &spawned);
    for site in ["churn_small/2", "churn_large/2", "leak/2", "cache/2"] {
        let name = format!("known_sites:{site}");
        for (stack, _) in profile.stacks() {
            let is_native = |frame: &String| frame.starts_with("0x") || frame.contains("erts_");
            let is_site = stack.last() == Some(&name);
            assert!(!is_site || !stack.iter().any(is_native), "{stack:?}");
        }
    }
}

/// A module that Elixir's compiler would have made.
#[test]
fn functions_of_elixir_are_named_as_elixir_does() {
    if !has_erlang() {
        return;
    }
    let room = Room::new();
    room.write_executable(
        "Elixir.Shop.Cart.erl",
        "-module('Elixir.Shop.Cart').
         -export([main/1]).
         main(_) -> Add = fun(N) -> add(N, 400), binary:copy(<<\"f\">>, 900), ok end,
                    [ok = Add(N) || N <- lists:seq(1, 3000)], erlang:halt(0).
         add(N, Size) -> Item = binary:copy(<<\"i\">>, Size), {N, byte_size(Item)}.",
    );
    let compiled = Command::new("erlc")
        .arg("Elixir.Shop.Cart.erl")
        .current_dir(room.directory())
        .output()
        .expect("the compiler");
    assert!(compiled.status.success(), "{}", stderr(&compiled));
    let outcome = Run::of("erl")
        .args(&arguments(&room, "Elixir.Shop.Cart", "x"))
        .unchanged(&Agent::at_interval("4K").seeded(7));
    let profile = profile_of(&outcome);
    let anonymous = "anonymous fn/1 in Shop.Cart.main/1";
    assert!(profile.site(anonymous).samples > 100);
    bridge::assert_stack(&profile, &[anonymous, "Shop.Cart.add/2"]);
}

/// The sum of the types of these allocators that are alive at the end, and its standard error.
fn live_of(profile: &Profile, allocators: &[&str]) -> (f64, f64) {
    let types = profile.report["types"].as_array().expect("types");
    let is_of = |row: &&Value| {
        let name = row["type"].as_str().unwrap_or("");
        allocators
            .iter()
            .any(|allocator| name.starts_with(allocator))
    };
    let rows = || types.iter().filter(is_of);
    let bytes = rows().map(|row| figure(row, "live_bytes")).sum();
    let variance: f64 = rows()
        .map(|row| figure(row, "live_bytes_stderr").powi(2))
        .sum();
    (bytes, variance.sqrt())
}

/// Everything but the code that it compiles, which lies in a mapping of its own.
#[test]
fn figures_agree_with_those_of_the_emulator() {
    if !has_erlang() {
        return;
    }
    let room = room_with("memory_of_beam");
    let outcome = Run::of("erl")
        .args(&arguments(&room, "memory_of_beam", "x"))
        .observed(&Agent::at_interval("4K").seeded(7));
    assert_eq!(outcome.complaints(), "");
    let said: Value = serde_json::from_str(&outcome.text()).expect("figures");
    let said = |kind: &str| said[kind].as_f64().expect("bytes");
    let profile = profile_of(&outcome);
    for (kind, allocators) in [
        ("binary", &["binary_alloc: "][..]),
        ("ets", &["ets_alloc: "]),
        (
            "processes",
            &["eheap_alloc: ", "fix_alloc: ", "ll_alloc: proc_tab"],
        ),
    ] {
        let (live, error) = live_of(&profile, allocators);
        let difference = (live - said(kind)).abs();
        assert!(
            difference < 0.05 * said(kind) + 4.0 * error,
            "{kind}: {live} ± {error}, and it says {}",
            said(kind)
        );
    }
    let live = figure(bridge::heap(&profile, "erlang"), "live_bytes");
    let all = said("total") - said("code");
    assert!((live - all).abs() < 0.05 * all, "{live} of {all}");
}

#[test]
fn the_leak_is_found_and_what_is_dropped_or_made_once_is_not_accused() {
    if !has_erlang() {
        return;
    }
    let room = room_with("leaky");
    let command = [&["erl"], &arguments(&room, "leaky", "100000")[..]].concat();
    bridge::assert_leak(&command, "leaky:open_session/2");
    for leak in bridge::leaks_of(&[], &[], &command, "7") {
        let function = leak["function"].as_str().expect("a function");
        assert!(!function.contains("serve_request"), "{leak}");
        assert!(!function.contains("build_table"), "{leak}");
    }
}

#[test]
fn allocators_that_go_to_malloc_are_sampled_there() {
    if !has_erlang() {
        return;
    }
    let agent = Agent::at_interval("4K").seeded(7);
    let outcome = known_sites("1", "+Mea min", &agent);
    let profile = profile_of(&outcome);
    bridge::assert_near_truth(&profile, outcome.text().as_bytes(), 4);
    // Temporary blocks and literals stay with their allocators.
    let allocated = |heap: &str| figure(bridge::heap(&profile, heap), "allocated_bytes");
    assert!(allocated("malloc") > 10.0 * allocated("erlang"));
}

#[test]
fn without_bridges_the_emulator_is_left_alone() {
    if !has_erlang() {
        return;
    }
    let agent = Agent::at_interval("4K").with("ALLOCSAMPLE_RUNTIME", "none");
    let profile = profile_of(&known_sites("1", "", &agent));
    assert!(!bridge::has_heap(&profile, "erlang"));
    assert_eq!(profile.site("known_sites:leak/2").samples, 0);
}

#[test]
fn a_crash_of_the_program_keeps_its_status_and_its_messages() {
    if !has_erlang() {
        return;
    }
    for code in [
        "Big = lists:seq(1, 300000), exit({length(Big)}).",
        "catch list_to_atom(lists:duplicate(300, $a)), halt(7).",
        "spawn(fun() -> [binary:copy(<<\"x\">>, N) || N <- lists:seq(1, 5000)] end), timer:sleep(50), init:stop(3).",
    ] {
        let run = Run::of("erl")
            .args(&["-noshell", "-eval", code])
            .env("ERL_CRASH_DUMP_BYTES", "0");
        let outcome = run.unchanged(&Agent::at_interval("4K").seeded(7));
        bridge::assert_audit(&profile_of(&outcome));
    }
}

#[test]
fn a_running_emulator_is_joined_by_attach() {
    if !has_erlang() {
        return;
    }
    let room = room_with("attached");
    let mut command = Command::new("erl");
    let directory = room.directory().to_str().expect("a path").to_owned();
    command.args([
        "-noshell", "-pa", &directory, "-run", "attached", "main", "x",
    ]);
    let mut running = Attached::start_in(room, command);
    for (interval, count) in [("16K", "20000"), ("4K", "20001"), ("16K", "20002")] {
        running.attach(&["--interval", interval]);
        assert_eq!(running.ask(count), count);
        let profile = running.detach();
        let site = profile.site("attached:one/1");
        // A binary's header has 24 bytes, or 32 from OTP 26 on.
        let bytes = 20_000.0 * 1_028.0;
        let deviation = (site.allocated_bytes - bytes).abs() - 0.005 * bytes;
        assert!(
            site.samples > 200 && deviation < 4.0 * site.allocated_bytes_stderr,
            "{interval}: {site:?}"
        );
        bridge::assert_stack(&profile, &["attached:grow/1", "attached:one/1"]);
        bridge::assert_audit(&profile);
        // Nobody listens now.
        assert_eq!(running.ask("2000"), "2000");
    }
    assert_eq!(running.end(0).1.code(), Some(0));
}
