//! Promise: functions that V8 inlines stand between the machine frames, draws are noticed only where V8 draws, and code from before
//! an attach is known as such.

use crate::support::bridge;

#[test]
fn stacks_are_joined_and_draws_found_whatever_the_calls_are() {
    bridge::assert_part_prints("v8_inlined.c", "named\n");
}

#[test]
fn functions_are_old_from_an_attach_until_v8_compiles_them_again() {
    bridge::assert_part_prints("v8_older.c", "old\n");
}
