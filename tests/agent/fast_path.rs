//! Promise: an allocation that is not sampled costs a known, small number of instructions.
//!
//! Counted by callgrind, so the figures are the same on a busy machine. docs/cost.md shows them beside times and peers.
//! Machine code shows the same for processors that this machine does not have.

use std::path::Path;
use std::process::Command;

use crate::support::{Agent, Program, Run, is_installed, scratch, skip};

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

/// A processor's compiler and disassembler, and what its fast paths may take, each up to its jump into the next allocator.
struct Machine {
    name: &'static str,
    compiler: &'static str,
    disassembler: &'static str,
    /// The instruction that leaves a function for an address in memory or in a register.
    jump: &'static str,
    calls: &'static [&'static str],
    /// Names of the stack pointer.
    stack: &'static [&'static str],
    instructions: [(&'static str, usize); 5],
}

const X86_64: Machine = Machine {
    name: "x86_64",
    compiler: "gcc",
    disassembler: "objdump",
    jump: "jmp *",
    calls: &["call"],
    stack: &["%rsp", "push", "pop"],
    instructions: [
        ("malloc", 5),
        ("free", 1),
        ("free_watched", 6),
        ("calloc", 8),
        ("realloc", 10),
    ],
};

const AARCH64: Machine = Machine {
    name: "aarch64",
    compiler: "aarch64-linux-gnu-gcc",
    disassembler: "aarch64-linux-gnu-objdump",
    jump: "br x",
    calls: &["bl ", "blr "],
    stack: &["sp"],
    instructions: [
        ("malloc", 13),
        ("free", 4),
        ("free_watched", 12),
        ("calloc", 20),
        ("realloc", 21),
    ],
};

/// The C shim's entries as src/preload/build.rs compiles them.
fn compiled_entries(machine: &Machine) -> String {
    let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("c_shim");
    let object = scratch().join(format!("fast_path.{}.o", machine.name));
    let status = Command::new(machine.compiler)
        .args([
            "-std=gnu11",
            "-O2",
            "-fPIC",
            "-fvisibility=hidden",
            "-fomit-frame-pointer",
        ])
        .args([
            "-fno-builtin",
            "-ftls-model=initial-exec",
            "-fno-plt",
            "-fno-section-anchors",
            "-fexceptions",
        ])
        .arg("-I")
        .arg(&shim)
        .arg("-I")
        .arg(shim.join("include"))
        .arg("-c")
        .arg(shim.join("interpose.c"))
        .arg("-o")
        .arg(&object)
        .status();
    assert!(status.is_ok_and(|status| status.success()));
    let output = Command::new(machine.disassembler)
        .args(["-d", "--no-show-raw-insn"])
        .arg(&object)
        .output()
        .expect("a disassembler");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("text")
}

/// The instructions of a function up to its jump into the next allocator: no conditional branch is taken.
fn fast_path<'a>(code: &'a str, function: &str, machine: &Machine) -> Vec<&'a str> {
    let (_, body) = code
        .split_once(&format!("<{function}>:\n"))
        .unwrap_or_else(|| panic!("no {function} in {code}"));
    let mut path = Vec::new();
    for line in body.lines().take_while(|line| !line.is_empty()) {
        let (_, instruction) = line.split_once(':').expect("an address");
        let instruction = instruction.trim();
        path.push(instruction);
        let words: Vec<_> = instruction.split_whitespace().collect();
        if words.join(" ").starts_with(machine.jump) {
            return path;
        }
    }
    panic!("{function} does not jump into the next allocator: {path:#?}");
}

#[track_caller]
fn assert_fast_paths_are_short(machine: &Machine) {
    if !is_installed(machine.compiler) || !is_installed(machine.disassembler) {
        return skip(&format!(
            "no {} (Debian: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross)",
            machine.compiler
        ));
    }
    let code = compiled_entries(machine);
    for (function, allowed) in machine.instructions {
        let path = fast_path(&code, function, machine);
        eprintln!(
            "{}: {function} takes {} instructions",
            machine.name,
            path.len()
        );
        assert!(path.len() <= allowed, "{function}: {path:#?}");
        for instruction in path {
            let is_call = machine
                .calls
                .iter()
                .any(|call| instruction.starts_with(call));
            let mut operands = instruction.split([' ', '\t', ',', '[', ']', '(', ')']);
            let uses_stack = operands.any(|operand| machine.stack.contains(&operand));
            assert!(!is_call && !uses_stack, "{function}: {instruction}");
        }
    }
}

#[test]
fn the_fast_paths_are_a_few_instructions_without_a_call_or_a_frame() {
    let own = [X86_64, AARCH64]
        .into_iter()
        .find(|machine| machine.name == std::env::consts::ARCH);
    let Some(machine) = own else {
        return skip("another processor than x86-64 and aarch64");
    };
    let native = Machine {
        compiler: "gcc",
        disassembler: "objdump",
        ..machine
    };
    assert_fast_paths_are_short(&native);
}

#[test]
fn the_fast_paths_for_aarch64_are_a_few_instructions_without_a_call_or_a_frame() {
    assert_fast_paths_are_short(&AARCH64);
}
