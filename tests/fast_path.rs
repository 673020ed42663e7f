//! Promise: an allocation that is not sampled costs a known, small number of instructions.
//!
//! Counted by callgrind, so the figures are the same on a busy machine. docs/cost.md shows them beside times and peers.

mod support;

use support::{Agent, Program, Run, is_installed, skip};

/// What one malloc and its free cost over glibc's own, at most, if neither is a sample's.
const INSTRUCTIONS_WHILE_ON: f64 = 12.0;
/// The same with the agent loaded and switched off.
const INSTRUCTIONS_WHILE_OFF: f64 = 6.0;
/// The slow path renews a thread's grant of bytes each mebibyte, which is each 16,384th pair here.
const INSTRUCTIONS_FOR_GRANTS: f64 = 0.1;

/// An interval that the program reaches at its very start, and never again.
const NEVER: u64 = 1 << 36;

const FEW: u32 = 20_000;
const MANY: u32 = 120_000;

/// All instructions of a process that makes so many pairs of 64 bytes.
fn counted(pairs: u32, agent: Option<&Agent>) -> f64 {
    let program = Program::compiled("../../bench/programs/pairs.c");
    let run = Run::of("valgrind")
        .args(&["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program.path())
        .args(&["64", &pairs.to_string(), "1", "0", "0"])
        .patience(300);
    let outcome = match agent {
        Some(agent) => run.observed(agent),
        None => run.bare(),
    };
    let told = outcome.assert_success().complaints();
    let (_, count) = told.rsplit_once("Collected : ").expect("a count");
    let count = count.lines().next().expect("a line");
    count.trim().parse().expect("a number")
}

/// Instructions of one pair: start and end of the process cancel out.
fn instructions_of_a_pair(agent: Option<&Agent>) -> f64 {
    (counted(MANY, agent) - counted(FEW, agent)) / f64::from(MANY - FEW)
}

#[track_caller]
fn assert_adds_at_most(instructions: f64, agent: &Agent) {
    if !is_installed("valgrind") {
        skip("instructions cannot be counted without valgrind (Debian: valgrind)");
        return;
    }
    let bare = instructions_of_a_pair(None);
    let added = instructions_of_a_pair(Some(agent)) - bare;
    eprintln!("malloc and free: {bare:.2} instructions, under the agent {added:.2} more");
    // At least two jumps, or it was not there.
    assert!(added >= 2.0, "the agent's malloc was not called: {added}");
    assert!(
        added <= instructions + INSTRUCTIONS_FOR_GRANTS,
        "{added:.2} instructions more, where {instructions} are allowed"
    );
}

#[test]
fn an_allocation_that_is_not_sampled_costs_no_more_than_documented() {
    assert_adds_at_most(INSTRUCTIONS_WHILE_ON, &Agent::at_interval(NEVER).seeded(1));
}

#[test]
fn an_agent_that_sleeps_costs_no_more_than_one_that_is_switched_off() {
    let agent = Agent::at_interval(NEVER).with("ALLOCSAMPLE_START", "off");
    assert_adds_at_most(INSTRUCTIONS_WHILE_OFF, &agent);
}

#[test]
fn an_agent_that_is_switched_off_costs_no_more_than_documented() {
    assert_adds_at_most(INSTRUCTIONS_WHILE_OFF, &Agent::at_interval("off"));
}
