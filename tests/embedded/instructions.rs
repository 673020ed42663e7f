//! Promise: code that the agent moves does what it did, and its decoder sees instructions as they are.

use std::process::Command;

use crate::support::Program;
use crate::support::room::stdout;

/// The include directories of the agent's code.
const INCLUDES: [&str; 2] = [
    concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c_shim"),
    concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c_shim/bridges"),
];

/// The program that moves random code of this processor.
#[cfg(target_arch = "x86_64")]
const MOVED_CODE: &str = "moved_code.c";
#[cfg(target_arch = "aarch64")]
const MOVED_CODE: &str = "moved_code_aarch64.c";

#[test]
fn moved_code_does_what_it_did() {
    let program = Program::compiled_with(MOVED_CODE, &INCLUDES);
    for seed in ["1", "2", "3"] {
        let mut command = Command::new(program.path());
        let output = command.args(["compare", "20000", seed]).output();
        let output = output.expect("the program");
        assert_eq!(stdout(&output), "0 differences\n", "seed {seed}");
    }
}

// ---- the decoder ----

#[cfg(target_arch = "x86_64")]
mod decoder {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::{INCLUDES, Program, stdout};
    use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

    /// What the agent's decoder says of an instruction: see instructions.h.
    #[derive(Debug, PartialEq)]
    struct Decoded {
        kind: u32,
        length: usize,
        target: i64,
    }
    const UNKNOWN: u32 = 0;
    const DATA: u32 = 2;

    const BASE: u64 = 0x0100_0000;

    /// The same by iced-x86; `None`: it is no instruction.
    fn by_another(code: &[u8]) -> Option<Decoded> {
        let mut decoder = Decoder::with_ip(64, code, BASE, DecoderOptions::NO_INVALID_CHECK);
        let instruction: Instruction = decoder.decode();
        let is_data = instruction.is_ip_rel_memory_operand();
        let is_indirect = instruction.near_branch_target() == 0;
        let kind = match instruction.flow_control() {
            FlowControl::Next if is_data => DATA,
            FlowControl::Next => 1,
            FlowControl::ConditionalBranch => 3,
            FlowControl::UnconditionalBranch => 4,
            FlowControl::Call | FlowControl::IndirectCall => 5,
            _ => 6,
        };
        let target = match is_indirect {
            true => 0,
            false => instruction.near_branch_target().wrapping_sub(BASE) as i64,
        };
        let length = instruction.len();
        (!instruction.is_invalid()).then_some(Decoded {
            kind,
            length,
            target,
        })
    }

    /// Random bytes in which opcodes that compilers use are frequent.
    fn random_code(state: &mut u64) -> Vec<u8> {
        let mut next = |below: u64| {
            *state ^= *state << 13;
            *state ^= *state >> 7;
            *state ^= *state << 17;
            (*state >> 16) % below
        };
        let mut code = Vec::new();
        let prefixes = [0x66, 0xf2, 0xf3, 0x64, 0x2e];
        if next(6) == 0 {
            code.push(prefixes[next(5) as usize]);
        }
        if next(2) == 0 {
            code.push(0x40 | next(16) as u8);
        }
        if next(3) == 0 {
            code.push(0x0f);
        }
        while code.len() < 16 {
            code.push(next(256) as u8);
        }
        code
    }

    #[test]
    fn instructions_are_as_another_decoder_sees_them() {
        let program = Program::compiled_with("moved_code.c", &INCLUDES);
        let mut state = 88_172_645_463_325_252;
        let codes: Vec<Vec<u8>> = (0..200_000).map(|_| random_code(&mut state)).collect();
        let mut child = Command::new(program.path())
            .arg("lengths")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program");
        let mut input = child.stdin.take().expect("a pipe");
        let lines: String = codes
            .iter()
            .map(|code| {
                code.iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect::<String>()
                    + "\n"
            })
            .collect();
        let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
        let output = child.wait_with_output().expect("the program");
        writer.join().expect("a thread").expect("it reads all");
        let mut known = 0;
        for (code, line) in codes.iter().zip(stdout(&output).lines()) {
            let numbers: Vec<i64> = line.split(' ').map(|it| it.parse().expect(line)).collect();
            let [kind, length, _, target] = numbers[..] else {
                panic!("{line}");
            };
            let found = Decoded {
                kind: kind as u32,
                length: length as usize,
                target,
            };
            // Bytes that are no instruction are in no function.
            if let (false, Some(expected)) = (found.kind == UNKNOWN, by_another(code)) {
                assert_eq!(found, expected, "{code:02x?}");
                known += 1;
            }
        }
        assert!(known > 80_000, "{known}");
    }
}
