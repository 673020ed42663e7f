//! Promise: functions that V8 inlines stand between the machine frames, draws are noticed only where V8 draws, and code from before
//! an attach is known as such.

use crate::support::Program;

fn assert_prints(program: &str, line: &str) {
    let flags = [
        concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c_shim"),
        concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c_shim/include"),
        concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c_shim/bridges"),
    ];
    let program = Program::compiled_with(program, &flags);
    let outcome = program.run().bare();
    assert_eq!(outcome.assert_success().text(), line);
}

#[test]
fn stacks_are_joined_and_draws_found_whatever_the_calls_are() {
    assert_prints("v8_inlined.c", "named\n");
}

#[test]
fn functions_are_old_from_an_attach_until_v8_compiles_them_again() {
    assert_prints("v8_older.c", "old\n");
}
