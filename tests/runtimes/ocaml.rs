//! Promise: OCaml's blocks, functions, lines, deaths and collections are in the profile of a native program, and the
//! program is as it was.

use std::fs;
use std::process::Command;

use crate::support::attached::Attached;
use crate::support::compile::{Compiled, has_ocaml, has_ocaml_5};
use crate::support::directory::Directory;
use crate::support::profile::{Profile, Site, figure};
use crate::support::{
    Agent, Outcome, Program, Room, Run, bridge, compile, is_installed, skip, truth,
};

fn compiled(name: &str, options: &[&str]) -> Compiled {
    Compiled::in_directory(|directory| compile::ocaml(name, options, &directory.join("work")))
}

fn known_sites(times: &str, agent: &Agent) -> Outcome {
    let program = compiled("known_sites", &["unix.cmxa"]);
    let outcome = Run::of(&*program).arg(times).unchanged(agent);
    outcome.assert_success();
    outcome
}

fn function_of_heap(profile: &Profile, name: &str) -> bool {
    let functions = profile.report["functions"].as_array().expect("functions");
    functions
        .iter()
        .any(|row| row["function"] == name && row["module"] == "ocaml")
}

#[test]
fn each_site_is_within_its_error() {
    if !has_ocaml() {
        return;
    }
    // OCaml seeds itself, with the same number in each run.
    for (interval, times) in [("4K", "1"), ("64K", "8")] {
        let outcome = known_sites(times, &Agent::at_interval(interval));
        let profile = outcome.profile();
        bridge::assert_near_truth(&profile, outcome.text().as_bytes(), 6);
        let known = truth::printed(outcome.text().as_bytes());
        for name in known.keys() {
            assert!(function_of_heap(&profile, name), "{name}");
        }
    }
}

#[test]
fn functions_lines_and_collections_are_told() {
    if !has_ocaml() {
        return;
    }
    let outcome = known_sites("1", &Agent::at_interval("4K"));
    let profile = outcome.profile();
    let file = bridge::program("known_sites.ml");
    bridge::assert_line(
        &profile,
        "Known_sites.small_and_freed",
        &file,
        "Bytes.create 144",
    );
    bridge::assert_line(&profile, "Known_sites.list_and_kept", &file, "i :: rest");
    bridge::assert_stack(
        &profile,
        &[
            "Known_sites",
            "Known_sites.main",
            "Known_sites.site",
            "Known_sites.large_and_kept",
        ],
    );
    let heap = bridge::heap(&profile, "ocaml");
    // Some 39 MB in small blocks of a minor heap of 2 MB, and three cycles for full_major.
    assert!(heap["minor_collections"].as_f64() >= Some(8.0), "{heap}");
    assert!(heap["major_collections"].as_f64() >= Some(3.0), "{heap}");
    assert!(heap["gc_time_s"].as_f64() > Some(0.0), "{heap}");
}

/// OCaml 4 takes chunks from malloc, OCaml 5 large blocks.
#[test]
fn the_memory_of_the_heap_is_counted_once() {
    if !has_ocaml() {
        return;
    }
    // It must be there when names are looked up.
    let program = compiled("known_sites", &["unix.cmxa"]);
    let outcome = Run::of(&*program)
        .arg("1")
        .unchanged(&Agent::at_interval("4K"));
    let profile = outcome.profile();
    let functions = profile.report["functions"].as_array().expect("functions");
    let is_there = |name: &str| functions.iter().any(|row| row["function"] == name);
    assert!(is_there("caml_init_gc"), "{functions:?}");
    for name in ["caml_alloc_for_heap", "caml_shared_try_alloc"] {
        assert!(!is_there(name), "{name}");
    }
    let heap = bridge::heap(&profile, "ocaml");
    let backing = figure(heap, "backing_live_bytes");
    assert!(backing > 1_048_576.0, "{heap}");
    if compile::ocaml_version() < Some((5, 0)) {
        assert!(backing > figure(heap, "live_bytes"), "{heap}");
    }
    assert_eq!(
        bridge::heap(&profile, "malloc")["backing_live_bytes"],
        0.0,
        "{heap}"
    );
    // The exact bytes are all of malloc's.
    let z = figure(&profile.report["audit"], "z");
    assert!(z.abs() < 5.0, "{}", profile.report["audit"]);
}

fn steered_sites(bytes: f64, told: bridge::Told) -> [Site; 3] {
    let program = compiled("steered_sites", &["unix.cmxa"]);
    let command = [&*program.to_string_lossy(), &format!("{bytes:.0}")];
    let profile = bridge::steered(&Room::new(), &command, told);
    ["first", "second", "third"].map(|name| profile.site(&format!("Steered_sites.{name}")))
}

/// Each sample counts by the interval under which it was drawn, also while that changes, and deaths are told of blocks that were
/// drawn under each.
#[test]
fn ocamls_heap_follows_the_interval() {
    const BYTES: f64 = 160.0 * 4016.0 * 640.0;
    if !has_ocaml() {
        return;
    }
    let sites = steered_sites(BYTES, bridge::INTERVALS);
    bridge::assert_follows(sites, BYTES);
    bridge::assert_live(sites, [0.0, 0.0, BYTES / 10.0]);
}

#[test]
fn ocamls_heap_rests_while_it_is_stopped_and_goes_on_when_it_is_started() {
    const BYTES: f64 = 40.0 * 4016.0 * 640.0;
    if has_ocaml() {
        let sites = steered_sites(BYTES, bridge::STOP_AND_START);
        bridge::assert_rests(sites, BYTES, 4e6);
    }
}

#[test]
fn the_leak_is_found() {
    if has_ocaml() {
        let program = compiled("leaky", &[]);
        bridge::assert_leak(
            &[&program.to_string_lossy(), "2000000"],
            "Leaky.open_session",
        );
    }
}

/// OCaml 5 maps it itself, from code of the program.
#[test]
fn room_for_the_heap_is_no_leak() {
    if has_ocaml() {
        let program = compiled("leaky", &[]);
        let command = [&*program.to_string_lossy(), "2000000"];
        for leak in bridge::leaks_of(&[], &[], &command, "7") {
            assert_ne!(leak["heap"], "mappings", "{leak:#?}");
        }
    }
}

#[test]
fn threads_exceptions_signals_finalisers_and_forks_are_no_trouble() {
    if !has_ocaml() {
        return;
    }
    let program = compiled("busy", &["unix.cmxa", "threads.cmxa"]);
    for interval in ["64", "4K", "512K"] {
        let outcome = Run::of(&*program).unchanged(&Agent::at_interval(interval));
        assert_eq!(outcome.status.code(), Some(2), "{}", outcome.complaints());
        assert!(outcome.complaints().contains("as it should"));
        assert_eq!(outcome.profiles().len(), 2, "the program and its child");
    }
}

#[test]
fn a_program_that_samples_by_itself_goes_first() {
    if !has_ocaml() {
        return;
    }
    let program = compiled("own_memprof", &[]);
    let outcome = Run::of(&*program).unchanged(&Agent::at_interval("4K"));
    outcome.assert_success();
    assert_eq!(outcome.text(), "sampled 2 times, 100000 kept\n");
    let profile = outcome.profile();
    assert!(profile.site("Own_memprof.before").samples > 100);
    assert_eq!(profile.site("Own_memprof.after").samples, 0);
    let notes = profile.report["notes"].to_string();
    assert!(notes.contains("started Gc.Memprof"), "{notes}");
}

#[test]
fn domains_that_sample_by_themselves_go_first() {
    if !has_ocaml_5() {
        return;
    }
    let program = compiled("own_memprof_in_domains", &[]);
    let outcome = Run::of(&*program).unchanged(&Agent::at_interval("4K"));
    outcome.assert_success();
    assert_eq!(outcome.text(), "4 of 4 domains sampled\n");
    let notes = outcome.profile().report["notes"].to_string();
    assert!(notes.contains("started Gc.Memprof"), "{notes}");
}

/// One domain has ended, two run at the same time, each with a thread more, and all of it is below effect handlers.
#[test]
fn each_site_of_several_domains_is_within_its_error() {
    if !has_ocaml_5() {
        return;
    }
    let program = compiled("domains", &["unix.cmxa", "threads.cmxa"]);
    for interval in ["1K", "16K"] {
        let outcome = Run::of(&*program).unchanged(&Agent::at_interval(interval));
        outcome.assert_success();
        let profile = outcome.profile();
        let notes = profile.report["notes"].to_string();
        if compile::ocaml_version() == Some((5, 3)) {
            // It tells of deaths that are none.
            assert!(notes.contains("OCaml 5.3 takes blocks"), "{notes}");
        } else {
            bridge::assert_near_truth(&profile, outcome.text().as_bytes(), 4);
        }
    }
}

/// What was allocated in `grow` between an attach and a detach, in blocks of 160 bytes.
fn assert_grown(running: &Attached, blocks: u32, what: &str) {
    let profile = running.detach();
    let name = match profile.site("Attached.grow").samples {
        0 => "Attached_domains.grow",
        _ => "Attached.grow",
    };
    let site = profile.site(name);
    let deviation =
        (site.allocated_bytes - f64::from(blocks) * 160.0) / site.allocated_bytes_stderr;
    assert!(
        site.samples > 500 && deviation.abs() < 4.0,
        "{what}: {} samples, {deviation}",
        site.samples
    );
}

#[test]
fn a_running_program_is_joined_by_attach() {
    if !has_ocaml() {
        return;
    }
    let program = compiled("attached", &[]);
    let mut running = Attached::start_in(Room::new(), Command::new(&*program));
    let mut kept = 0;
    for interval in ["16K", "4K", "16K"] {
        running.attach(&["--interval", interval]);
        kept += 100_000;
        assert_eq!(running.ask("100000"), kept.to_string());
        assert_grown(&running, 100_000, interval);
        // Nobody listens now.
        kept += 2_000;
        assert_eq!(running.ask("2000"), kept.to_string());
    }
    running.attach(&["--interval", "16K"]);
    assert_eq!(running.ask("sample"), "true");
    let profile = running.detach();
    let notes = profile.report["notes"].to_string();
    assert!(notes.contains("started Gc.Memprof"), "{notes}");
    assert_eq!(running.end(3).1.code(), Some(3));
}

#[test]
fn a_program_that_samples_already_is_left_alone_by_attach() {
    if !has_ocaml() {
        return;
    }
    let program = compiled("attached", &[]);
    let mut running = Attached::start_in(Room::new(), Command::new(&*program));
    assert_eq!(running.ask("sample"), "true");
    running.attach(&["--interval", "4K"]);
    assert_eq!(running.ask("10000"), "10100");
    assert_eq!(running.ask("sample"), "true");
    running.detach();
    assert_eq!(running.end(3).1.code(), Some(3));
}

/// The domains join at their own safe points, and a later one has its parent's sampler.
#[test]
fn running_domains_are_joined_by_attach() {
    if !has_ocaml_5() || compile::ocaml_version() == Some((5, 3)) {
        return;
    }
    let program = compiled("attached_domains", &[]);
    let mut running = Attached::start_in(Room::new(), Command::new(&*program));
    for interval in ["16K", "4K"] {
        running.attach(&["--interval", interval]);
        assert_eq!(running.ask("100000"), "100000");
        assert_grown(&running, 400_000, interval);
        assert_eq!(running.ask("2000"), "2000");
    }
    assert_eq!(running.end(3).1.code(), Some(3));
}

#[test]
fn bytecode_is_said_not_to_be_sampled() {
    if !has_ocaml() || !is_installed("ocamlc") {
        return;
    }
    let directory = Directory::new();
    let program = compile::ocaml_by("ocamlc", "leaky", &[], &directory.join("work"));
    let outcome = Run::of("ocamlrun")
        .arg(program)
        .arg("1000")
        .unchanged(&Agent::at_interval("1K"));
    outcome.assert_success();
    let profile = outcome.profile();
    assert!(!bridge::has_heap(&profile, "ocaml"));
    let said = profile.report["notes"].to_string();
    assert!(said.contains("bytecode"), "{said}");
}

#[test]
fn a_program_can_be_profiled_without_the_bridge() {
    if !has_ocaml() {
        return;
    }
    let agent = Agent::at_interval("4K").with("ALLOCSAMPLE_RUNTIME", "none");
    let outcome = known_sites("1", &agent);
    let profile = outcome.profile();
    assert!(!bridge::has_heap(&profile, "ocaml"));
}

#[test]
fn a_compiler_of_others_is_a_program_too() {
    if !has_ocaml() || !is_installed("ocamlopt.opt") {
        return;
    }
    let directory = Directory::new();
    fs::write(
        directory.join("a.ml"),
        "let () = print_int (List.length [1; 2; 3])",
    )
    .expect("a program");
    let outcome = Run::of("ocamlopt.opt")
        .args(&["-c", "-o"])
        .arg(directory.join("a.cmx"))
        .arg(directory.join("a.ml"))
        .unchanged(&Agent::at_interval("16K"));
    outcome.assert_success();
    let has_compiler = outcome
        .profiles()
        .iter()
        .any(|profile| bridge::has_heap(profile, "ocaml") && profile.stacks().len() > 20);
    assert!(has_compiler, "the compiler's own functions");
}

/// The bridge reads the runtime's code on aarch64: which instructions can be moved, and which places a function reads first.
#[test]
fn code_of_aarch64_is_read_as_compilers_write_it() {
    let flags = [
        "-g",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c_shim/bridges"),
    ];
    let Some(program) = Program::compiled_if_possible("aarch64_code.c", &flags) else {
        skip("no compiler with sanitizers");
        return;
    };
    let output = Command::new(program.path()).output().expect("the checks");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
