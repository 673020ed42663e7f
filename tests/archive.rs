//! Promise: a C or C++ program that is linked with `liballocsample.a` is profiled as any other one, without a preloaded library,
//! and behaves as without it.

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use support::{Agent, Outcome, Program, Run, is_installed, scratch, skip, truth};

/// How a program may be linked.
const STATIC: &[&str] = &["-static"];
const STATIC_AND_MOVED: &[&str] = &["-static-pie"];
const DYNAMIC: &[&str] = &[];

/// The archive as cargo has built it for this test, before scripts/archive makes one object of it.
fn built() -> PathBuf {
    let directory = support::command()
        .parent()
        .expect("a directory")
        .join("deps");
    let files = std::fs::read_dir(&directory).expect("the libraries");
    let archives = files.filter_map(|file| {
        let path = file.ok()?.path();
        let name = path.file_name()?.to_str()?;
        let is_it = name.starts_with("liballocsample_archive-") && name.ends_with(".a");
        is_it.then(|| Some((path.metadata().ok()?.modified().ok()?, path)))?
    });
    archives.max().expect("the archive, built for this test").1
}

/// The directory with the archive as users get it; another one for every build, since compiled programs are kept.
fn archive() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let built = built();
        let changed = built.metadata().and_then(|file| file.modified());
        let age = changed.map(|time| time.duration_since(std::time::UNIX_EPOCH));
        let age = age.expect("a time").expect("a time after 1970").as_nanos();
        let directory = scratch().join(format!("archive-{age}"));
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/archive");
        let status = Command::new(script)
            .args([&built, &directory])
            .arg("glibc")
            .status();
        assert!(status.expect("the script").success());
        directory
    })
}

/// A program with the archive; `None` if it cannot be linked so on this machine, which is said.
fn linked(source: &str, way: &[&str]) -> Option<Program> {
    let directory = archive().display();
    let place = format!("-L{directory}");
    let arguments = format!("@{directory}/link.args");
    let options = [way, &[&place, &arguments]].concat();
    let program = Program::compiled_if_possible(source, &options);
    if program.is_none() {
        skip(&format!("the C compiler does not link with {way:?}"));
    }
    program
}

fn prepared(program: &Program) -> Run {
    program.run().with_agent_inside()
}

#[test]
fn sites_of_static_programs_are_within_four_standard_errors() {
    for way in [STATIC, STATIC_AND_MOVED] {
        let Some(program) = linked("known_sites.cpp", way) else {
            continue;
        };
        let run = prepared(&program).args(&["--threads", "4", "--kilobytes", "4096"]);
        for interval in ["4K", "64K"] {
            let outcome = run.observed(&Agent::at_interval(interval).seeded(11));
            outcome.assert_success();
            let profile = outcome.profile();
            assert_eq!(profile.number("lost_samples"), 0.0);
            let known = truth::printed(&outcome.stdout);
            let deviations = truth::deviations(&profile, &known, 4.0, |_| 0.0);
            assert!(deviations.is_empty(), "{way:?} {interval}: {deviations:#?}");
        }
    }
}

#[test]
fn stacks_of_static_programs_reach_the_start_of_the_program() {
    for way in [STATIC, STATIC_AND_MOVED] {
        let Some(program) = linked("known_sites.cpp", way) else {
            continue;
        };
        let outcome = prepared(&program).observed(&Agent::at_interval("64K"));
        outcome.assert_success();
        let is_whole = |stack: &[String]| {
            let has = |part: &str| stack.iter().any(|name| name.contains(part));
            has("site_") && has("main") && has("__libc_start")
        };
        let stacks = outcome.profile().stacks();
        assert!(
            stacks.iter().any(|(stack, _)| is_whole(stack)),
            "{stacks:?}"
        );
        assert!(
            stacks
                .iter()
                .all(|(stack, _)| !stack.concat().contains("unwind failed"))
        );
    }
}

/// Leaves by a door of exits.c: output and status are the same, and the profile has all blocks.
fn leaves_by(door: &str, way: &[&str], is_complete: bool) {
    const BLOCKS: u64 = 1000;
    let Some(program) = linked("exits.c", way) else {
        return;
    };
    let outcome = prepared(&program)
        .arg(door)
        .unchanged(&Agent::at_interval(1));
    let profiles = outcome.profiles();
    let site = |profile: &support::profile::Profile| profile.site("allocated_before_the_end");
    let full = profiles
        .iter()
        .find(|profile| site(profile).samples == BLOCKS);
    let full = full.unwrap_or_else(|| panic!("{door}: no profile has all blocks"));
    assert_eq!(site(full).live_bytes, 10.0 * 4096.0, "{door}");
    assert_eq!(full.is_complete(), is_complete, "{door}: {}", full.exit());
}

#[test]
fn every_way_out_of_a_static_program_stays_and_loses_nothing() {
    for door in [
        "return",
        "exit",
        "_exit",
        "_Exit",
        "exit_group",
        "quick_exit",
        "abort",
        "exit_with_threads",
        "exit_in_thread",
        "_exit_in_thread",
        "abort_in_thread",
        "pthread_exit_alone",
        "last_thread",
        "exit_after_main",
        "raw_exit_alone",
        "raw_exit_beside_agent",
        "raw_exit_before_last_thread",
        "sigterm_handled",
        "exec",
        "exec_that_fails_first",
    ] {
        leaves_by(door, STATIC, true);
    }
    for door in ["sigterm", "sigkill", "sigsegv"] {
        leaves_by(door, STATIC, false);
    }
}

#[test]
fn a_dynamic_program_that_may_not_be_preloaded_contains_the_archive() {
    leaves_by("return", DYNAMIC, true);
    leaves_by("last_thread", DYNAMIC, true);
}

fn family(way_of_children: &str) -> Option<Outcome> {
    let run = prepared(&linked("fork_family.c", STATIC)?).arg(way_of_children);
    let outcome = run.unchanged(&Agent::at_interval(1));
    outcome.assert_success();
    Some(outcome)
}

/// Number of profiles in which a function allocated exactly so often.
fn profiles_with(outcome: &Outcome, function: &str, allocations: u64) -> usize {
    let profiles = outcome.profiles();
    let has = |profile: &&support::profile::Profile| profile.site(function).samples == allocations;
    profiles.iter().filter(has).count()
}

#[test]
fn children_of_a_static_program_have_profiles_of_their_own() {
    if let Some(outcome) = family("threads") {
        assert_eq!(profiles_with(&outcome, "allocated_in_the_child", 500), 50);
        assert_eq!(profiles_with(&outcome, "allocated_in_the_parent", 50), 1);
    }
    for way in ["grandchildren", "vfork", "spawn", "clone", "system"] {
        family(way);
    }
}

#[test]
fn every_function_of_the_malloc_family_does_what_its_manual_says() {
    let Some(program) = linked("api_semantics.c", STATIC) else {
        return;
    };
    for interval in ["1", "4K", "off"] {
        let outcome = prepared(&program).observed(&Agent::at_interval(interval));
        outcome.assert_success();
        outcome.assert_same_as(
            &Program::compiled_with("api_semantics.c", STATIC)
                .run()
                .bare(),
        );
    }
}

/// A weak reference would leave libc's function out of the program, and a call within libc would come twice.
#[test]
fn every_other_function_reaches_the_one_of_libc() {
    let Some(program) = linked("wrapped_calls.c", STATIC) else {
        return;
    };
    let bare = Program::compiled_with("wrapped_calls.c", STATIC)
        .run()
        .bare();
    bare.assert_success();
    prepared(&program).bare().assert_same_as(&bare);
    let observed = prepared(&program).observed(&Agent::at_interval(1));
    observed.assert_same_as(&bare);
    assert!(!observed.profile_paths().is_empty());
}

#[test]
fn filters_of_system_calls_and_late_allocations_change_nothing_in_a_static_program() {
    for source in ["seccomp.c", "system_calls.c", "late_allocation.c"] {
        let Some(program) = linked(source, STATIC) else {
            return;
        };
        let outcome = prepared(&program).unchanged(&Agent::at_interval("4K"));
        outcome.assert_success();
        assert!(outcome.profile().is_complete(), "{source}");
    }
}

/// `--wrap` is about names, so it does not matter which allocator has them.
#[test]
fn blocks_of_an_allocator_that_is_linked_into_a_static_program_are_sampled() {
    let allocator = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/programs/bump_allocator.c"
    );
    leaves_by("return", &["-static", allocator], true);
}

#[test]
fn a_virtual_machine_in_a_static_program_finds_the_hook_abi() {
    let Some(program) = linked("../vms/main.c", STATIC) else {
        return;
    };
    let outcome = prepared(&program)
        .args(&["trees", "10", "10"])
        .observed(&Agent::at_interval("4K"));
    outcome.assert_success();
    let profile = outcome.profile();
    assert!(profile.row("heaps", "name", "org.example.vm")["samples"].as_u64() > Some(0));
}

#[test]
fn nothing_is_written_unless_it_is_asked_for() {
    let Some(program) = linked("known_sites.cpp", STATIC) else {
        return;
    };
    let outcome = prepared(&program).bare();
    outcome.assert_success();
    assert_eq!(outcome.profile_paths(), [] as [PathBuf; 0]);
    let off = Agent::at_interval("off");
    assert_eq!(prepared(&program).observed(&off).profile_paths().len(), 0);
}

/// The command recognises the program by a note.
#[test]
fn run_profiles_a_static_program_that_contains_the_archive() {
    let Some(program) = linked("known_sites.cpp", STATIC) else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("app.allocsample");
    let output = Command::new(support::command())
        .args(["run", "--interval", "16K", "--output"])
        .args([&path, Path::new("--"), program.path()])
        .output()
        .expect("the command");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let profile = support::profile::Profile::read(&path);
    assert!(profile.is_complete());
    let known = truth::printed(&output.stdout);
    assert!(truth::deviations(&profile, &known, 4.0, |_| 0.0).is_empty());
}

/// A program may contain another Rust library: nothing of ours may get in its way.
#[test]
fn the_archive_defines_no_other_names_than_those_that_it_promises() {
    if !is_installed("nm") {
        return skip("no nm (Debian: binutils)");
    }
    let output = Command::new("nm")
        .args(["--defined-only", "--extern-only", "--format=posix"])
        .arg(archive().join("liballocsample.a"))
        .output()
        .expect("nm");
    let text = String::from_utf8(output.stdout).expect("names");
    let defined: BTreeSet<&str> = text
        .lines()
        .skip(1)
        .filter_map(|line| line.split(' ').next())
        .collect();
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("c_shim/archive/wrapped.def");
    let table = std::fs::read_to_string(table).expect("the table");
    let rows = table.lines().filter_map(|row| {
        let (group, name) = row.strip_suffix(')')?.split_once('(')?;
        ["WRAP", "INNER"]
            .contains(&group)
            .then(|| format!("__wrap_{name}"))
    });
    let promised: BTreeSet<String> = rows.chain(["allocsample_get_hooks".to_owned()]).collect();
    let promised: BTreeSet<&str> = promised.iter().map(String::as_str).collect();
    assert_eq!(defined, promised);
}
