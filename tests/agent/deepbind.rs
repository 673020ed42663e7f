//! Promise: libraries that a program opens with `RTLD_DEEPBIND`, whose calls are bound to libc past the agent, are sampled as all
//! others, and run as without the agent.

use std::path::Path;
use std::process::Command;

use crate::support::attached::Attached;
use crate::support::profile::Profile;
use crate::support::{Agent, Program, Run};

/// What deep.c does in one round: blocks of each side, their size, and how many of them stay.
const BLOCKS: u64 = 600;
const BYTES: u64 = 256;
const KEPT: u64 = BLOCKS / 10;
/// Of the program's blocks those that the library makes larger: of each three one, but for those that stay.
const RESIZED: u64 = BLOCKS / 3 - BLOCKS / 30;

/// How a linker binds the slots of a library, and whether they are read-only later.
const BINDINGS: [&str; 2] = ["-Wl,-z,lazy", "-Wl,-z,now,-z,relro"];

const NEEDED: &str = "-Wl,--no-as-needed";

fn text(path: &Path) -> &str {
    path.to_str().expect("a path")
}

/// The flag by which whoever is linked with this library finds it.
fn runpath_to(library: &Program) -> String {
    let directory = library.path().parent().expect("a directory");
    format!("-Wl,--enable-new-dtags,-rpath,{}", directory.display())
}

/// A library, and what it depends on.
fn library(name: &str, binding: &str, dependency: &Program) -> Program {
    let flags = [
        NEEDED,
        text(dependency.path()),
        &runpath_to(dependency),
        binding,
    ];
    Program::library("deep_library.c", name, &flags)
}

fn dependency() -> Program {
    Program::library("deep_dependency.c", "libdeepdependency.so", &[])
}

/// One that depends on nothing but libc.
fn lone_library(name: &str, binding: &str) -> Program {
    Program::library("deep_library.c", name, &[binding])
}

fn program() -> Program {
    Program::compiled("deep.c")
}

/// Runs it as it is and with every allocation sampled: output and status are the same.
fn profile_of(run: &Run) -> Profile {
    let outcome = run.unchanged(&Agent::at_interval(1));
    outcome.assert_success();
    outcome.profile()
}

#[track_caller]
fn assert_site(profile: &Profile, function: &str, blocks: u64, bytes: u64, live_bytes: u64) {
    let site = profile.site(function);
    assert_eq!(
        (site.samples, site.allocated_bytes, site.live_bytes),
        (blocks, bytes as f64, live_bytes as f64),
        "{function}"
    );
}

/// Every block of so many rounds is recorded once, and so is every free, on either side.
#[track_caller]
fn assert_rounds(profile: &Profile, rounds: u64, has_dependency: bool) {
    assert_eq!(profile.number("lost_samples"), 0.0);
    assert_eq!(
        profile.total("allocated_bytes"),
        profile.total("allocated_bytes_exact")
    );
    let blocks = rounds * BLOCKS;
    let (bytes, kept) = (blocks * BYTES, rounds * KEPT * BYTES);
    assert_site(profile, "program_allocates", blocks, bytes, kept);
    assert_site(profile, "deep_allocates", blocks, bytes, kept);
    let resized = rounds * RESIZED;
    assert_site(profile, "deep_resizes", resized, resized * 2 * BYTES, 0);
    if has_dependency {
        assert_site(profile, "dependency_allocates", blocks, bytes, kept);
    }
}

#[test]
fn every_block_of_a_deep_bound_library_and_of_its_dependency_counts_once_however_often_it_is_opened()
 {
    let dependency = dependency();
    for binding in BINDINGS {
        let library = library("libdeep.so", binding, &dependency);
        let run = program().run().arg("rounds").arg(library.path());
        assert_rounds(&profile_of(&run), 3, true);
    }
}

#[test]
fn a_deep_bound_library_that_is_found_by_its_bare_name_is_sampled() {
    for binding in BINDINGS {
        let library = lone_library("libdeepbyname.so", binding);
        let directory = library.path().parent().expect("a directory");
        let run = program().run().arg("named").arg("libdeepbyname.so");
        let run = run.env("LD_LIBRARY_PATH", directory);
        assert_rounds(&profile_of(&run), 1, false);
    }
}

/// The loader must see who calls, so that the moment after its return is not ours.
#[test]
fn a_deep_bound_library_that_only_its_caller_finds_is_sampled_from_the_next_look_up_on() {
    for binding in BINDINGS {
        let library = lone_library("libdeephidden.so", binding);
        let flags = [&runpath_to(&library)[..]];
        let caller = Program::library("deep_caller.c", "libdeepcaller.so", &flags);
        let flags = ["-DBY_NAME", text(caller.path()), &runpath_to(&caller)];
        let run = Program::compiled_with("deep.c", &flags).run();
        let profile = profile_of(&run.arg("named").arg("libdeephidden.so"));
        assert_rounds(&profile, 1, false);
    }
}

/// One for each thread.
fn lone_libraries(binding: &str) -> [Program; 4] {
    let names = ["libdeep1.so", "libdeep2.so", "libdeep3.so", "libdeep4.so"];
    names.map(|name| lone_library(name, binding))
}

/// How often a thread opens its library, times the blocks that it has it allocate then, for four of them.
const BLOCKS_OF_THREADS: u64 = 4 * 40 * 12;

#[test]
fn deep_bound_libraries_may_be_opened_and_closed_by_many_threads_at_once() {
    for binding in BINDINGS {
        let mut run = program().run().arg("threads");
        for library in &lone_libraries(binding) {
            run = run.arg(library.path());
        }
        let (blocks, bytes) = (BLOCKS_OF_THREADS, BLOCKS_OF_THREADS * BYTES);
        assert_site(&profile_of(&run), "deep_allocates", blocks, bytes, 0);
    }
}

#[test]
fn libraries_that_many_threads_open_at_once_after_an_attach_are_sampled_from_their_first_call_on() {
    const TURNS: u64 = 3;
    for binding in BINDINGS {
        let libraries = lone_libraries(binding);
        let mut running = Attached::start_by("deep.c", &[], |room| {
            let mut command = Command::new(room.path("attached"));
            let paths = libraries.iter().map(|library| library.path());
            command.arg("attached").args(paths);
            command
        });
        running.attach(&["--interval", "1", "--on-full", "wait"]);
        for _ in 0..TURNS {
            assert_eq!(running.ask("again"), "done");
        }
        let profile = running.detach();
        let blocks = TURNS * BLOCKS_OF_THREADS;
        assert_site(&profile, "deep_allocates", blocks, blocks * BYTES, 0);
        running.ends_well();
    }
}

#[test]
fn a_malloc_in_the_scope_of_a_deep_bound_library_stays_its_own() {
    let flags = ["-fno-builtin"];
    let allocator = Program::library("deep_allocator.c", "libdeepallocator.so", &flags);
    for binding in BINDINGS {
        let library = library("libdeepown.so", binding, &allocator);
        let run = program().run().arg("own").arg(library.path());
        let profile = profile_of(&run);
        assert_eq!(profile.site("deep_churns").samples, 0);
    }
}

/// The loader would bind slots that it has yet to fill to a library in front of the agent, not to the agent.
#[test]
fn slots_of_other_libraries_still_lead_to_an_allocator_in_front_of_the_agent() {
    let flags = ["-fno-builtin"];
    let allocator = Program::library("deep_allocator.c", "libdeepallocator.so", &flags);
    for binding in BINDINGS {
        let library = lone_library("libdeep.so", binding);
        // Opened without the mode, its blocks come from the preloaded allocator, and only there may they be freed.
        let ordinary = lone_library("libordinary.so", binding);
        let run = program().run().arg("ordinary").arg(library.path());
        let run = run.arg(ordinary.path());
        let run = run.preload_before_agent(allocator.path());
        run.unchanged(&Agent::at_interval(1)).assert_success();
    }
}

#[test]
fn a_library_that_a_constructor_opens_is_sampled() {
    let dependency = dependency();
    for binding in BINDINGS {
        let outer = library("libdeepouter.so", binding, &dependency);
        let inner = library("libdeepinner.so", binding, &dependency);
        let run = program().run().arg("inner");
        let run = run.arg(outer.path()).arg(inner.path());
        let profile = profile_of(&run.env("DEEP_INNER", inner.path()));
        assert_rounds(&profile, 1, true);
    }
}

#[test]
fn a_child_that_a_deep_bound_library_forks_has_a_profile_of_its_own() {
    let dependency = dependency();
    for binding in BINDINGS {
        let library = library("libdeep.so", binding, &dependency);
        let run = program().run().arg("fork").arg(library.path());
        let outcome = run.unchanged(&Agent::at_interval(1));
        outcome.assert_success();
        let profiles = outcome.profiles();
        let is_of_child = |profile: &&Profile| profile.exit().starts_with("_exit");
        let child = profiles.iter().find(is_of_child).expect("a child");
        assert_eq!(profiles.len(), 2);
        assert_site(child, "deep_allocates", BLOCKS, BLOCKS * 64, 0);
    }
}

/// A filter may kill for the calls by which slots are changed. The library stays past the agent then.
#[test]
fn no_slot_is_changed_behind_a_filter_of_system_calls() {
    let dependency = dependency();
    for binding in BINDINGS {
        let library = library("libdeep.so", binding, &dependency);
        let run = program().run().arg("filter").arg(library.path());
        let profile = profile_of(&run);
        assert_eq!(profile.site("program_allocates").samples, BLOCKS);
        assert_eq!(profile.site("deep_allocates").samples, 0);
    }
}
