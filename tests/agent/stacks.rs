//! Promise: stacks are whole, whatever the frames are made of: no frame pointers, signals, PLT, vDSO, C++, Rust, plugins.

use crate::support::{Agent, Outcome, Program};

/// Stacks of a run at interval 1, root first.
fn stacks_of(outcome: &Outcome) -> Vec<Vec<String>> {
    outcome.assert_success();
    let mut stacks: Vec<_> = outcome
        .profile()
        .stacks()
        .into_iter()
        .map(|(frames, _)| frames)
        .collect();
    for stack in &mut stacks {
        // The C++ library's operators stand between a program and malloc.
        stack.pop_if(|frame| frame.starts_with("operator new"));
    }
    stacks
}

/// Whether the functions `wanted` are called by one another in this order in a stack; with `...` anything may be between.
fn has_chain(stack: &[String], wanted: &[&str]) -> bool {
    let is = |frame: &str, name: &str| {
        frame == name
            || frame.contains(&format!("{name}("))
            || frame.ends_with(&format!("::{name}"))
    };
    let [first, rest @ ..] = wanted else {
        return true;
    };
    if *first == "..." {
        return (0..=stack.len()).any(|from| has_chain(&stack[from..], rest));
    }
    stack.first().is_some_and(|frame| is(frame, first)) && has_chain(&stack[1..], rest)
}

/// Every stack that ends in `end` (within the program; allocator frames do not show) must be the chain, from main or
/// from a thread's start.
#[track_caller]
fn assert_chain(stacks: &[Vec<String>], chain: &[&str]) {
    let end = *chain.last().expect("an end");
    let ending: Vec<_> = stacks
        .iter()
        .filter(|stack| {
            stack
                .last()
                .is_some_and(|frame| has_chain(std::slice::from_ref(frame), &[end]))
        })
        .collect();
    assert!(!ending.is_empty(), "no stack ends in {end}: {stacks:#?}");
    let wanted = [&["..."], chain].concat();
    for stack in ending {
        assert!(has_chain(stack, &wanted), "{stack:#?} is not {chain:?}");
        assert!(
            !stack.iter().any(|frame| frame.starts_with('(')),
            "{stack:#?} is not whole"
        );
    }
}

fn chain(way: &str) -> Vec<Vec<String>> {
    let library = Program::library("chain_library.c", "libchain.so", &[]);
    let path = library.path().to_str().expect("a path");
    let flags = [
        "-fomit-frame-pointer",
        "-fno-optimize-sibling-calls",
        path,
        "-Wl,-z,lazy",
    ];
    stacks_of(
        &Program::compiled_with("chain.c", &flags)
            .run()
            .arg(way)
            .unchanged(&Agent::at_interval(1)),
    )
}

#[test]
fn chains_without_frame_pointers_are_whole() {
    assert_chain(
        &chain("plain"),
        &["main", "plain", "chain_start", "chain_middle", "chain_end"],
    );
}

/// The kernel maps such a program with holes between its segments, for each of which the loader has an answer of its own.
#[test]
fn chains_in_a_program_with_holes_are_whole() {
    let library = Program::library("chain_library.c", "libchain.so", &[]);
    let path = library.path().to_str().expect("a path");
    for position in ["-pie", "-no-pie"] {
        let flags = [
            "-fno-optimize-sibling-calls",
            path,
            "-Wl,-z,max-page-size=0x200000",
            position,
        ];
        let program = Program::compiled_with("chain.c", &flags);
        let run = program.run().arg("plain");
        assert_chain(
            &stacks_of(&run.unchanged(&Agent::at_interval(1))),
            &["main", "plain", "chain_start", "chain_middle", "chain_end"],
        );
    }
}

#[test]
fn chains_in_threads_are_whole() {
    assert_chain(
        &chain("thread"),
        &[
            "thread_main",
            "plain",
            "chain_start",
            "chain_middle",
            "chain_end",
        ],
    );
}

#[test]
fn chains_through_the_plt_are_whole() {
    assert_chain(
        &chain("plt"),
        &[
            "main",
            "through_the_plt",
            "linked_start",
            "chain_middle",
            "chain_end",
        ],
    );
}

#[test]
fn chains_through_qsort_are_whole() {
    assert_chain(
        &chain("qsort"),
        &[
            "main",
            "sort_numbers",
            "...",
            "allocating_compare",
            "chain_end",
        ],
    );
}

#[test]
fn chains_through_signal_frames_are_whole() {
    assert_chain(
        &chain("signal"),
        &[
            "main",
            "with_alarms",
            "spin_without_calls",
            "...",
            "on_alarm",
            "chain_middle",
            "chain_end",
        ],
    );
}

#[test]
fn chains_through_an_interrupted_vdso_are_whole() {
    assert_chain(
        &chain("vdso"),
        &[
            "main",
            "with_alarms",
            "...",
            "on_alarm",
            "chain_middle",
            "chain_end",
        ],
    );
}

#[test]
fn chains_through_an_interrupted_plt_are_whole() {
    assert_chain(
        &chain("plt_signal"),
        &[
            "main",
            "with_alarms",
            "...",
            "on_alarm",
            "chain_middle",
            "chain_end",
        ],
    );
}

#[test]
fn chains_through_virtual_calls_templates_and_catch_blocks_are_whole() {
    let stacks = stacks_of(
        &Program::compiled("chain_cxx.cpp")
            .run()
            .unchanged(&Agent::at_interval(1)),
    );
    let has = |wanted: &[&str]| {
        let wanted = [&["..."], wanted].concat();
        stacks.iter().any(|stack| has_chain(stack, &wanted))
    };
    assert!(
        has(&["main", "...", "paint_all", "draw", "allocate_here"]),
        "{stacks:#?}"
    );
    assert!(
        has(&["main", "allocate_in_catch", "allocate_here"]),
        "{stacks:#?}"
    );
    assert!(
        has(&[
            "main",
            "allocate_in_catch",
            "throw_it",
            "throw_it",
            "throw_it",
            "...",
            "~AllocatesWhenUnwound",
            "allocate_here"
        ]),
        "{stacks:#?}"
    );
    assert_chain(&stacks, &["main", "...", "allocate_here"]);
}

#[test]
fn chains_in_rust_are_whole() {
    let stacks = stacks_of(
        &Program::compiled("rust_program.rs")
            .run()
            .unchanged(&Agent::at_interval(1)),
    );
    let wanted = ["...", "main", "rust_branch", "rust_leaf", "..."];
    let named = |frame: &str, name: &str| frame.contains(name);
    let whole = stacks.iter().filter(|stack| {
        let mut names = wanted[1..4].iter();
        let mut next = names.next();
        for frame in stack.iter() {
            if next.is_some_and(|name| named(frame, name)) {
                next = names.next();
            }
        }
        next.is_none()
    });
    assert!(whole.count() > 0, "{stacks:#?}");
    assert!(
        stacks.iter().flatten().all(|frame| !frame.starts_with('(')),
        "{stacks:#?}"
    );
}

#[test]
fn frames_of_an_unloaded_plugin_keep_their_names() {
    let plugin = Program::library("plugin.c", "libplugin.so", &[]);
    // Another library of another shape, which is likely to be mapped where the first one was.
    let other = Program::library(
        "plugin.c",
        "libother.so",
        &["-Dplugin_allocates=other_allocates", "-fno-inline", "-O1"],
    );
    let run = Program::compiled("chain_plugin.c")
        .run()
        .arg(plugin.path())
        .arg(other.path());
    let stacks = stacks_of(&run.unchanged(&Agent::at_interval(1)));
    assert_chain(
        &stacks,
        &["main", "call_plugin", "plugin_entry", "plugin_allocates"],
    );
    assert_chain(
        &stacks,
        &["main", "call_plugin", "plugin_entry", "other_allocates"],
    );
}

#[test]
fn stacks_that_are_too_deep_say_so_at_their_root() {
    let run = Program::compiled("deep_stacks.c").run();
    let outcome = run.unchanged(&Agent::at_interval(4096).with("ALLOCSAMPLE_MAX_DEPTH", 64));
    let stacks = stacks_of(&outcome);
    let deep: Vec<_> = stacks
        .iter()
        .filter(|stack| stack.iter().filter(|frame| *frame == "dive").count() > 60)
        .collect();
    assert!(!deep.is_empty(), "{stacks:#?}");
    for stack in deep {
        assert_eq!(stack[0], "(truncated)", "{stack:#?}");
        assert!(stack.len() <= 66, "{} frames", stack.len());
    }
}

/// What is left of a stack that is too deep is another part of it at each depth.
#[test]
fn the_part_that_is_kept_of_a_deep_stack_is_the_right_one() {
    let run = Program::compiled("turns.c").run();
    let outcome = run.unchanged(&Agent::at_interval(1).with("ALLOCSAMPLE_MAX_DEPTH", 64));
    let stacks = stacks_of(&outcome);
    let is_of_turns = |frame: &&String| ["there", "back"].contains(&frame.as_str());
    let mut cut = 0;
    for stack in &stacks {
        let turns: Vec<_> = stack.iter().filter(is_of_turns).collect();
        assert!(turns.windows(2).all(|pair| pair[0] != pair[1]), "{stack:?}");
        cut += usize::from(stack[0] == "(truncated)");
    }
    // Stacks that differ in their depth alone are the same after the cut.
    assert!(cut >= 2, "{cut} of {}", stacks.len());
}

/// Programs whose stacks change in every way that the unwinder's memory of the last stack must notice.
#[test]
fn what_is_known_of_a_stack_is_what_a_full_walk_finds() {
    // 10^7 and more: ALLOCSAMPLE_TEST_STACKS=10000000 cargo test --release --test agent stacks::known
    const STACKS_OF_A_RUN: u64 = 400_000;
    let stacks = std::env::var("ALLOCSAMPLE_TEST_STACKS").ok();
    let stacks: u64 = stacks.map_or(2 * STACKS_OF_A_RUN, |number| {
        number.parse().expect("a number")
    });
    let random = Program::compiled("random_stacks.cpp");
    let library = Program::library("exceptions_library.cpp", "libthrower.so", &[]);
    let plugin = Program::library("plugin.c", "libplugin.so", &[]);
    let other = Program::library("plugin.c", "libotherplugin.so", &[]);
    // No two random stacks are alike: a profile of all would be too large to read.
    let random_runs = (0..stacks.div_ceil(STACKS_OF_A_RUN)).map(|seed| {
        let arguments = [STACKS_OF_A_RUN.to_string(), (seed + 1).to_string()];
        random.run().args(&arguments.each_ref().map(String::as_str))
    });
    let others = [
        Program::compiled("exceptions.cpp")
            .run()
            .arg(library.path()),
        Program::compiled("coroutines.c").run(),
        Program::compiled("deep_stacks.c").run(),
        Program::compiled("signals_under_load.c").run(),
        Program::compiled("dlopen_storm.c")
            .run()
            .arg(plugin.path())
            .arg(other.path()),
    ];
    let mut compared = 0;
    for run in random_runs.chain(others) {
        let outcome = run.observed(&Agent::at_interval(64).with("ALLOCSAMPLE_UNWIND", "verify"));
        let notes = outcome.assert_success().profile().report["notes"].to_string();
        let (known, rest) = notes
            .split_once("stacks compared: ")
            .and_then(|(_, text)| text.split_once(" with a known rest, "))
            .expect("a note on compared stacks");
        compared += known.parse::<u64>().expect("a number");
        assert!(rest.starts_with("0 different"), "{notes}");
    }
    println!("{compared} stacks compared, all the same");
    assert!(compared > stacks / 8, "{compared} stacks");
}
