//! Promise: every function of the malloc family does under the agent exactly what it does without, from the first
//! instruction of the process to its last, whatever allocator comes next.

use crate::support::{Agent, Program, Run, allocators, skip};

/// Every allocation is a sample, so that each call takes the slow path.
fn every_allocation() -> Agent {
    Agent::at_interval(1)
}

/// Both kinds of path, in some mixture.
fn some_allocations() -> Agent {
    Agent::at_interval(2048)
}

#[track_caller]
fn comes_through(run: &Run) {
    let bare = run.bare();
    bare.assert_success();
    for agent in [
        every_allocation(),
        some_allocations(),
        Agent::at_interval("512K"),
    ] {
        let outcome = run.observed(&agent);
        outcome.assert_success();
        outcome.assert_same_as(&bare);
    }
}

#[test]
fn the_malloc_family_keeps_its_semantics() {
    let program = Program::compiled_with("api_semantics.c", &["-fno-builtin"]);
    comes_through(&program.run());
}

#[test]
fn the_malloc_family_keeps_its_semantics_on_other_allocators_behind_the_agent() {
    let program = Program::compiled_with("api_semantics.c", &["-fno-builtin"]);
    for (name, library) in allocators::installed() {
        eprintln!("{name}");
        comes_through(
            &program
                .run()
                .arg("--as-it-comes")
                .preload_after_agent(&library),
        );
    }
}

#[test]
fn the_malloc_family_keeps_its_semantics_on_other_allocators_in_front_of_the_agent() {
    let program = Program::compiled_with("api_semantics.c", &["-fno-builtin"]);
    for (name, library) in allocators::installed() {
        eprintln!("{name}");
        comes_through(
            &program
                .run()
                .arg("--as-it-comes")
                .preload_before_agent(&library),
        );
    }
}

#[test]
fn other_allocators_linked_into_the_program_are_the_next_allocator() {
    for (name, library) in allocators::installed() {
        eprintln!("{name}");
        let path = library.to_str().expect("a path");
        let program = Program::compiled_with(
            "api_semantics.c",
            &["-fno-builtin", "-Wl,--no-as-needed", path],
        );
        comes_through(&program.run().arg("--as-it-comes"));
    }
}

#[test]
fn every_form_of_operator_new_and_delete_works() {
    comes_through(&Program::compiled("operators.cpp").run());
}

#[test]
fn operators_that_a_program_brings_itself_are_not_bypassed() {
    comes_through(&Program::compiled("own_operators.cpp").run());
}

#[test]
fn allocations_before_all_constructors_are_served_and_seen() {
    let program = Program::compiled("preinit.c");
    comes_through(&program.run());
    let site = program
        .run()
        .observed(&every_allocation())
        .profile()
        .site("allocated_before_constructors");
    assert_eq!((site.samples, site.live_bytes), (3000, 0.0));
}

#[test]
fn a_library_may_allocate_and_call_dlsym_in_its_constructor() {
    let hostile = Program::library("hostile_constructor.c", "libhostile.so", &[]);
    let hello = Program::compiled("hello.c");
    comes_through(&hello.run().preload_after_agent(hostile.path()));
    comes_through(&hello.run().preload_before_agent(hostile.path()));
}

#[test]
fn destructors_of_thread_specific_values_may_allocate() {
    comes_through(&Program::compiled("late_allocation.c").run());
}

#[test]
fn destructors_of_thread_local_objects_of_another_library_may_allocate() {
    let library = Program::library("tls_destructor_library.cpp", "libdiary.so", &[]);
    let program = Program::compiled_with(
        "tls_destructor.c",
        &[library.path().to_str().expect("a path")],
    );
    comes_through(&program.run());
}

#[test]
fn libraries_with_big_thread_local_storage_load_late() {
    let program = Program::compiled("big_tls.c");
    let mut run = program.run();
    for number in 0..24 {
        let library = Program::library(
            "big_tls_library.c",
            &format!("libbig{number}.so"),
            &[&format!("-DNUMBER={number}")],
        );
        run = run.arg(library.path());
    }
    // Some static thread-local storage must be left for those who come late.
    let greedy = Program::library("big_tls_library.c", "libgreedy.so", &["-DINITIAL_EXEC"]);
    comes_through(&run.arg(greedy.path()));
}

#[test]
fn threads_and_signal_handlers_on_the_smallest_stacks_survive_a_sample() {
    comes_through(&Program::compiled("small_stacks.c").run());
}

#[test]
fn a_sample_takes_less_than_two_kib_of_the_programs_stack() {
    let run = Program::compiled("stack_use.c").run();
    let measure = |outcome: &crate::support::Outcome| -> usize {
        outcome
            .assert_success()
            .text()
            .trim()
            .parse()
            .expect("bytes")
    };
    let bare = measure(&run.bare());
    let observed = measure(&run.observed(&every_allocation()));
    assert!(
        observed <= bare + 2048,
        "{observed} bytes under the agent, {bare} without"
    );
}

#[test]
fn signal_handlers_may_allocate_whatever_they_interrupt() {
    let allocator = Program::library("bump_allocator.c", "libbump.so", &[]);
    let program = Program::compiled("signals_under_load.c");
    comes_through(&program.run().preload_after_agent(allocator.path()));
}

/// The interrupted slow path never ends: its thread stays muted, and its record stays open, where the profile stops.
#[test]
fn a_handler_that_jumps_out_of_the_agent_loses_samples_and_the_profile_tells() {
    let allocator = Program::library("bump_allocator.c", "libbump.so", &[]);
    let run = Program::compiled("signals_under_load.c")
        .run()
        .arg("--jump")
        .preload_after_agent(allocator.path());
    comes_through(&run);
    let profile = run.observed(&every_allocation()).profile();
    let afterwards = profile.site("allocated_afterwards");
    let muted: f64 = profile.report["threads"]
        .as_array()
        .expect("threads")
        .iter()
        .filter_map(|thread| thread["muted_bytes"].as_f64())
        .sum();
    // Four threads, 5,000 blocks of 200 bytes each, after the last jump.
    assert!(
        !profile.is_complete() || afterwards.samples as f64 * 200.0 + muted >= 20_000.0 * 200.0,
        "{afterwards:?} and {muted} bytes"
    );
}

#[test]
fn a_program_with_a_malloc_of_its_own_runs_and_its_profile_says_so() {
    let run = Program::compiled("own_malloc.c").run();
    comes_through(&run);
    let outcome = run.observed(&every_allocation());
    for profile in outcome.profiles() {
        let text = profile.report.to_string();
        assert!(
            text.contains("malloc"),
            "no word about the program's own malloc in {text}"
        );
    }
}

/// The loader frees the text of its last failure while it still refers to it.
#[test]
fn a_malloc_that_gives_memory_back_under_its_lock_is_not_entered_twice() {
    comes_through(
        &Program::compiled_with("own_malloc_with_lock.c", &["-D_GNU_SOURCE", "-lpthread"]).run(),
    );
}

#[test]
fn plugins_bound_straight_to_libc_may_exchange_blocks_with_the_program() {
    let plugin = Program::library("plugin.c", "libplugin.so", &[]);
    comes_through(&Program::compiled("deepbind.c").run().arg(plugin.path()));
}

#[test]
fn programs_in_other_languages_come_through() {
    for source in [
        "rust_program.rs",
        "fortran_program.f90",
        "cgo_program.go",
        "exceptions_in_many_threads",
    ] {
        let run = match source {
            "exceptions_in_many_threads" => {
                let library = Program::library("exceptions_library.cpp", "libthrower.so", &[]);
                Program::compiled("exceptions.cpp")
                    .run()
                    .arg(library.path())
            }
            source if !crate::support::compile::can_compile(source) => {
                skip(&format!("no compiler for {source}"));
                continue;
            }
            source => Program::compiled(source).run(),
        };
        eprintln!("{source}");
        comes_through(&run);
    }
}
