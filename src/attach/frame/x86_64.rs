//! The frame on x86-64.
//!
//! ```text
//! frame: | return address | struct ucontext, 304 | siginfo, not read |
//! state:   at a multiple of 64: as the processor stores it, and a mark
//! ```
//!
//! Layout: `struct rt_sigframe`, `struct ucontext` and `struct _fpx_sw_bytes` of Linux' uapi for x86-64.

use super::{Frame, NO_ALTERNATE_STACK, Saved, SignalFrame};
use crate::machine::{Registers, is_restarted};

/// Bytes below the stack pointer that functions may use without moving it.
pub(super) const RED_ZONE: u64 = 128;

/// Return address, context, siginfo.
pub(crate) const FRAME_BYTES: u64 = 8 + 304 + SIGNAL_BYTES;
/// Nobody reads what is there.
pub(crate) const SIGNAL_AT: u64 = 8 + 304;
pub(crate) const SIGNAL_BYTES: u64 = 128;
const STATE_ALIGNMENT: u64 = 64;

/// All components are present; the stack segment is restored.
const CONTEXT_FLAGS: u64 = 7;

/// Words of the frame.
const FLAGS: usize = 1;
const ALTERNATE_STACK_FLAGS: usize = 4;
const GENERAL: usize = 6;
const STATE: usize = GENERAL + 23;
/// The signals that are blocked after the return.
const SIGNAL_MASK: usize = GENERAL + 32;
/// The interrupted instruction's address, after 16 registers.
const INTERRUPTED: usize = GENERAL + 16;

/// The part of the processor's state that is reserved for software: in signal frames the kernel describes the state
/// there.
const MARK_AT: usize = 464;
const COMPONENTS_AT: usize = 512;
const FIRST_MARK: u32 = 0x4650_5853;
const LAST_MARK: u32 = 0x4650_5845;
/// The first 512 bytes, and the header.
const LEAST_STATE_BYTES: usize = 576;
/// Matrix registers: not part of a frame unless the process has asked for them.
const TILES: u64 = 1 << 18;

/// The frame that begins at this word of a stack. `is_return` recognizes the address that a handler returns to.
pub(crate) fn signal_frame_at(
    stack: &[u64],
    at: usize,
    is_return: impl Fn(u64) -> bool,
) -> Option<SignalFrame> {
    let word = |by: usize| stack.get(at + by).copied();
    word(0).filter(|&word| is_return(word))?;
    Some(SignalFrame {
        interrupted: word(INTERRUPTED),
        mask: word(SIGNAL_MASK),
    })
}

/// How large the kernel makes the frame of a handler that interrupts a thread with this frame of ours: the same.
pub(crate) fn handler_frame_bytes(frame: &Frame) -> u64 {
    frame.bytes.len() as u64
}

impl Saved {
    /// The frame to be put below this address. Its first word is the return address.
    pub fn below(&self, end: u64, return_address: u64) -> Frame {
        let state = self.state();
        let state_at = (end - state.len() as u64) & !(STATE_ALIGNMENT - 1);
        // As the kernel places it: a multiple of 16, minus 8.
        let start = ((state_at - FRAME_BYTES) & !15) - 8;
        let mut words = [0_u64; FRAME_BYTES as usize / 8];
        words[0] = return_address;
        words[FLAGS] = CONTEXT_FLAGS;
        words[ALTERNATE_STACK_FLAGS] = NO_ALTERNATE_STACK;
        words[GENERAL..GENERAL + 19].copy_from_slice(&general(&self.restarted()));
        words[STATE] = state_at;
        words[SIGNAL_MASK] = self.signal_mask;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize((state_at - start) as usize, 0);
        bytes.extend_from_slice(&state);
        Frame { start, bytes }
    }

    /// The registers from which an interrupted system call is restarted. The kernel restarts it when a thread
    /// continues from a stop, but not when it returns from a handler. A call with a timeout starts its time again.
    fn restarted(&self) -> Registers {
        const SYSCALL_BYTES: u64 = 2;
        let registers = self.registers;
        if !is_restarted(&registers) {
            return registers;
        }
        Registers {
            rip: registers.rip - SYSCALL_BYTES,
            rax: self.call_again,
            ..registers
        }
    }

    /// The vector registers with the marks by which the kernel takes all of them.
    fn state(&self) -> Vec<u8> {
        let word = |at: usize| {
            let word = self.vectors.get(at..at + 8);
            word.map_or(0, |word| {
                u64::from_le_bytes(word.try_into().unwrap_or([0; 8]))
            })
        };
        let mut components = word(MARK_AT);
        if word(COMPONENTS_AT) & TILES == 0 {
            components &= !TILES;
        }
        let size = state_bytes(components)
            .clamp(LEAST_STATE_BYTES, self.vectors.len().max(LEAST_STATE_BYTES));
        let mut state = self.vectors.clone();
        state.resize(size, 0);
        let whole = size + size_of_val(&LAST_MARK);
        let mark = [
            FIRST_MARK,
            whole as u32,
            components as u32,
            (components >> 32) as u32,
            size as u32,
        ];
        let mark = mark.iter().flat_map(|word| word.to_le_bytes());
        state.splice(MARK_AT..MARK_AT + 20, mark);
        state.extend_from_slice(&LAST_MARK.to_le_bytes());
        state
    }
}

/// How many bytes these components take, as this processor stores them.
fn state_bytes(components: u64) -> usize {
    let present = (2..63).filter(|component| components & (1 << component) != 0);
    let ends = present.map(|component| {
        #[allow(unused_unsafe, reason = "newer versions of Rust declare it safe")]
        // SAFETY: every x86-64 processor has the instruction.
        let found = unsafe { std::arch::x86_64::__cpuid_count(0xd, component) };
        (found.eax + found.ebx) as usize
    });
    ends.fold(LEAST_STATE_BYTES, usize::max)
}

/// In the order of `struct sigcontext`, from r8 to the interrupted system call's place.
fn general(registers: &Registers) -> [u64; 19] {
    let r = registers;
    let segments = (r.cs & 0xffff) | (r.ss & 0xffff) << 48;
    [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx,
        r.rax, r.rcx, r.rsp, r.rip, r.eflags, segments,
    ]
}

/// Makes words of a stack a frame that returns here and has interrupted this.
#[cfg(test)]
pub(crate) fn put_frame(stack: &mut [u64], at: usize, return_to: u64, interrupted: u64) {
    stack[at] = return_to;
    stack[at + INTERRUPTED] = interrupted;
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;
    use crate::tracee::{Stop, Tracee, Until};

    fn saved(vectors: Vec<u8>) -> Saved {
        // SAFETY: numbers, for which 0 is a value.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        registers.rsp = 0x7fff_0000_1234;
        registers.rip = 0x40_0000;
        registers.r8 = 8;
        registers.orig_rax = u64::MAX;
        registers.ss = 0x2b;
        registers.cs = 0x33;
        Saved {
            registers,
            call_again: u64::MAX,
            vectors,
            signal_mask: 0xa0,
        }
    }

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn the_words_are_where_the_c_library_reads_them_in_a_handler() {
        let frame = saved(vec![0; 832]).below_stack(0x1000);
        let general = offset_of!(libc::ucontext_t, uc_mcontext);
        let register = |register: i32| word(&frame.bytes, 8 + general + 8 * register as usize);
        assert_eq!(word(&frame.bytes, 0), 0x1000);
        assert_eq!(register(libc::REG_R8), 8);
        assert_eq!(register(libc::REG_RSP), 0x7fff_0000_1234);
        assert_eq!(register(libc::REG_RIP), 0x40_0000);
        assert_eq!(register(libc::REG_CSGSFS), 0x002b_0000_0000_0033);
        let mask = offset_of!(libc::ucontext_t, uc_sigmask);
        assert_eq!(word(&frame.bytes, 8 + mask), 0xa0);
        let state = word(&frame.bytes, 8 + general + 8 * 23);
        assert_eq!(state % 64, 0);
        assert_eq!(frame.start % 16, 8);
        let mark = (state - frame.start) as usize + MARK_AT;
        assert_eq!(word(&frame.bytes, mark) as u32, FIRST_MARK);
        // It ends above the red zone's low end.
        assert!(frame.start + frame.bytes.len() as u64 <= 0x7fff_0000_1234 - RED_ZONE);
    }

    #[test]
    fn a_state_has_the_size_that_its_components_have() {
        let mut vectors = vec![0; 4096];
        // x87, SSE and AVX.
        vectors[MARK_AT] = 7;
        vectors[LEAST_STATE_BYTES] = 0xee;
        let state = saved(vectors).state();
        if std::is_x86_feature_detected!("avx") {
            assert_eq!(state.len(), LEAST_STATE_BYTES + 256 + 4);
        }
        assert_eq!(state[LEAST_STATE_BYTES], 0xee);
        assert_eq!(word(&state, MARK_AT + 8), 7);
        assert_eq!(state[state.len() - 4..], LAST_MARK.to_le_bytes());
    }

    #[test]
    fn an_interrupted_call_is_made_again_and_nothing_else_is() {
        let mut saved = saved(Vec::new());
        saved.registers.rax = (-514_i64).cast_unsigned();
        assert_eq!(saved.restarted().rip, saved.registers.rip);
        (saved.registers.orig_rax, saved.call_again) = (219, 7);
        let again = saved.restarted();
        assert_eq!((again.rip, again.rax), (saved.registers.rip - 2, 7));
        saved.registers.rax = (-4_i64).cast_unsigned();
        assert_eq!(saved.restarted().rip, saved.registers.rip);
    }

    /// A handler that was mistaken for the call that it interrupts would never run.
    #[test]
    fn a_handler_about_to_run_is_told_from_the_call_that_it_interrupts() {
        const PATIENCE: Duration = Duration::from_secs(60);
        // The shell waits for its child in one system call, and has a handler.
        let mut shell = Command::new("bash")
            .args(["-c", "trap : USR1; cat; read line"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = i32::try_from(shell.id()).unwrap();
        let waits = || {
            let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap();
            call.starts_with(&format!("{} ", libc::SYS_wait4))
        };
        while !waits() {
            std::thread::yield_now();
        }
        let mut tracee = Tracee::seize(pid).unwrap();
        assert!(tracee.settle(PATIENCE).unwrap());
        assert!(is_restarted(&tracee.registers().unwrap()));
        tracee.resume(Until::Anything).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGUSR1).unwrap();
        assert_eq!(tracee.wait(PATIENCE).unwrap(), Some(Stop::Signal));
        assert!(tracee.settle(PATIENCE).unwrap());
        let registers = tracee.registers().unwrap();
        assert_eq!(registers.orig_rax, libc::SYS_wait4 as u64);
        assert!(!is_restarted(&registers));
        drop(tracee);
        shell.kill().unwrap();
        shell.wait().unwrap();
    }
}
