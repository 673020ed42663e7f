//! Promise: functions that V8 inlines stand between the machine frames, and draws are noticed only where V8 draws.

use crate::support::Program;

#[test]
fn stacks_are_joined_and_draws_found_whatever_the_calls_are() {
    let flags = [
        concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c_shim"),
        concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c_shim/include"),
        concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c_shim/bridges"),
    ];
    let program = Program::compiled_with("v8_inlined.c", &flags);
    let outcome = program.run().bare();
    assert_eq!(outcome.assert_success().text(), "named\n");
}
