//! The signal frame that puts a borrowed thread back even if we die: it holds the thread's whole state.
//!
//! Wherever the thread is sent, it returns to `rt_sigreturn` with this frame on its stack, as from a signal handler.
//! While we are alive, we intercept that system call and replace it. If we were killed, the kernel executes it, and
//! the thread is where it was, with its registers, vector registers and blocked signals.

#[cfg_attr(target_arch = "x86_64", path = "frame/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "frame/aarch64.rs")]
mod layout;

use crate::machine::{self, Registers, Vectors};

#[cfg(test)]
pub(crate) use layout::put_frame;
pub(crate) use layout::{
    FRAME_BYTES, SIGNAL_AT, SIGNAL_BYTES, handler_frame_bytes, signal_frame_at,
};

/// Neither of the values that the kernel knows: the alternate stack, which nobody can read from outside, stays.
const NO_ALTERNATE_STACK: u64 = 3;

/// Results of system calls that the kernel makes again, which only tracers see: ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND,
/// ERESTART_RESTARTBLOCK.
pub(crate) const RESTARTED: [i64; 4] = [-512, -513, -514, -516];

/// The state of a thread.
pub(crate) struct Saved {
    pub registers: Registers,
    /// The system call that it was in, if any.
    pub call_again: u64,
    /// As ptrace reads it.
    pub vectors: Vectors,
    pub signal_mask: u64,
}

/// Bytes that form a frame when they are at this address.
pub(crate) struct Frame {
    /// A function that is called with the stack pointer here finds its stack aligned.
    pub start: u64,
    pub bytes: Vec<u8>,
}

impl Saved {
    /// The frame to be put below what the thread uses of its stack.
    pub fn below_stack(&self, return_address: u64) -> Frame {
        let stack = machine::stack(&self.registers);
        self.below(stack - layout::RED_ZONE, return_address)
    }
}

/// What a signal frame on a stack says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SignalFrame {
    /// Where its handler interrupted the thread.
    pub interrupted: Option<u64>,
    /// The signals that are blocked once the handler has returned.
    pub mask: Option<u64>,
}
