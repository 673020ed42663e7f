//! Promise: a block counts once, by whatever way an allocator's C++ operators get it.

use crate::support::profile::figure;
use crate::support::{Agent, Program};

const BLOCKS: f64 = 400.0;
/// Half of them have 128 bytes, the others 3,008; half of both are deleted.
const BYTES: f64 = BLOCKS / 2.0 * 3136.0;

/// Counts every block in a program whose allocator has operators of these shapes.
#[track_caller]
fn counts_once(shapes: &[&str]) {
    let allocator = Program::library(
        "allocator_with_operators.cpp",
        "liballocator.so",
        &[&["-fno-builtin"], shapes].concat(),
    );
    let program = Program::compiled_with("counts_operators.cpp", &["-fno-builtin"]);
    let outcome = program
        .run()
        .preload_after_agent(allocator.path())
        .observed(&Agent::at_interval(1));
    let profile = outcome.assert_success().profile();
    for function in ["by_malloc", "by_new", "by_aligned_new"] {
        let row = profile.row("functions", "function", function);
        let counted = ["total_allocated_bytes", "total_live_bytes"].map(|name| figure(row, name));
        assert_eq!(counted, [BYTES, BYTES / 2.0], "{function}, {shapes:?}");
    }
    for (stack, _) in profile.stacks() {
        let ours = stack
            .iter()
            .find(|frame| frame.starts_with("_Zn") && frame.ends_with("_slow"));
        assert_eq!(ours, None, "{shapes:?}: {stack:?}");
    }
}

#[test]
fn operators_that_bypass_malloc_count_once() {
    counts_once(&["-DSHAPE=OWN", "-DALIGNED=OWN"]);
}

#[test]
fn operators_that_call_malloc_count_once() {
    counts_once(&["-DSHAPE=PASSED_ON", "-DALIGNED=PASSED_ON"]);
}

#[test]
fn aligned_operators_that_call_malloc_count_once_beside_others_that_do_not() {
    counts_once(&["-DSHAPE=OWN", "-DALIGNED=PASSED_ON"]);
}

#[test]
fn operators_that_sometimes_call_malloc_count_once() {
    counts_once(&["-DSHAPE=MIXED", "-DALIGNED=MIXED"]);
}

#[test]
fn an_allocator_without_aligned_operators_counts_once() {
    counts_once(&["-DSHAPE=OWN"]);
}
