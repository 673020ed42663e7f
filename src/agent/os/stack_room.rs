//! Room on the program's stack.

use core::hint::black_box;
use core::mem::MaybeUninit;

/// Stack that a slow path uses before it moves to its own, with some reserve.
const BYTES: usize = 1024;

/// Takes the fault now if the stack cannot grow as far as the slow path will need: a program that handles its stack
/// overflows on another stack then does so with a thread that is in no slow path, and nothing half done.
///
/// It is less than a page, so it cannot step over the page that guards a stack's end.
#[inline(never)]
pub fn make_room() {
    let mut room = [MaybeUninit::<u8>::uninit(); BYTES];
    // The stack grows down: the first byte is the furthest.
    room[0].write(0);
    black_box(&mut room);
}
