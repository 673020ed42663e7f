//! x86-64: registers, system calls, and the instructions that are looked for.

use std::io;
use std::mem::MaybeUninit;

pub(crate) use libc::user_regs_struct as Registers;

use crate::borrow::is_c_library;
use crate::frame::RESTARTED;
use crate::image::Memory;
use crate::target::{Mapping, file_name};
use crate::tracee::{ptrace, read_set, write_set};

/// Of programs for this processor.
pub(crate) const ELF_MACHINE: u16 = 62;

/// The instruction `syscall`.
pub(crate) const SYSTEM_CALL: [u8; 2] = [0x0f, 0x05];
const SYSCALL_BYTES: u64 = SYSTEM_CALL.len() as u64;

/// `syscall; ret`
pub(crate) const SYSTEM_CALL_AND_RETURN: [u8; 3] = [0x0f, 0x05, 0xc3];

/// `mov $15, %rax; syscall`: what a signal handler returns to, in every C library.
pub(crate) const SIGNAL_RETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// A function finds the address that it returns to on its stack, and removes it.
pub(crate) const RETURN_ADDRESS_BYTES: u64 = 8;

/// Bytes of the memory for a helper that are code.
pub(crate) const CODE_BYTES: u64 = 4096;

/// System calls in which threads wait.
pub(crate) const WAITING_CALLS: [i64; 25] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_pause,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_futex,
    libc::SYS_io_getevents,
    // One of the above, after it was interrupted by a stop.
    libc::SYS_restart_syscall,
];

/// What must be known of a thread before it is stopped: nothing, since its registers say everything.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before(());

impl Before {
    pub fn of(_thread: i32) -> Self {
        Self(())
    }
}

pub(crate) fn read_registers(thread: i32, _before: Before) -> io::Result<Registers> {
    let mut registers = MaybeUninit::<Registers>::uninit();
    ptrace(
        libc::PTRACE_GETREGS,
        thread,
        0,
        registers.as_mut_ptr().expose_provenance(),
    )?;
    // SAFETY: the kernel has filled all of it.
    Ok(unsafe { registers.assume_init() })
}

pub(crate) fn write_registers(thread: i32, registers: &Registers) -> io::Result<()> {
    ptrace(
        libc::PTRACE_SETREGS,
        thread,
        0,
        std::ptr::from_ref(registers).expose_provenance(),
    )
}

/// Floating-point and vector registers, as the processor stores them.
pub(crate) type Vectors = Vec<u8>;

const NT_X86_XSTATE: usize = 0x202;
/// Enough for all state components that processors have.
const XSTATE_BYTES: usize = 64 * 1024;

/// Always known here.
pub(crate) fn read_vectors(thread: i32) -> io::Result<Option<Vectors>> {
    read_set(thread, NT_X86_XSTATE, XSTATE_BYTES).map(Some)
}

pub(crate) fn write_vectors(thread: i32, vectors: &Vectors) -> io::Result<()> {
    write_set(thread, NT_X86_XSTATE, vectors)
}

/// Such a thread is refused by its process's status.
pub(crate) fn has_shadow_stack(_thread: i32) -> bool {
    false
}

/// Where the thread is.
pub(crate) fn code(registers: &Registers) -> u64 {
    registers.rip
}

/// Its stack pointer.
pub(crate) fn stack(registers: &Registers) -> u64 {
    registers.rsp
}

/// A return address that may not be on the stack: there is none.
pub(crate) fn link(_registers: &Registers) -> Option<u64> {
    None
}

/// The address that a word of the stack is, if it is a return address.
pub(crate) fn code_address(word: u64) -> u64 {
    word
}

/// Whether this is code in which [`SYSTEM_CALL_AND_RETURN`] and [`SIGNAL_RETURN`] are looked for.
pub(crate) fn has_instructions(mapping: &Mapping) -> bool {
    mapping.is_executable && is_c_library(file_name(&mapping.path))
}

/// Whether the thread stopped in a system call that the kernel makes again.
///
/// The number of the call is not enough: it is still there after the call has ended, and at the first instruction of
/// a handler that interrupted the call.
pub(crate) fn is_restarted(registers: &Registers) -> bool {
    let is_call = registers.orig_rax.cast_signed() >= 0;
    is_call && RESTARTED.contains(&registers.rax.cast_signed())
}

/// The system call that a stopped thread was in.
pub(crate) fn interrupted_call(_memory: &Memory, registers: &Registers) -> Option<i64> {
    let call = registers.orig_rax.cast_signed();
    (call >= 0).then_some(call)
}

/// Whether a thread waits at a futex, or is about to: the kernel restarts the call, or a handler has just returned to
/// it.
pub(crate) fn waits_at_futex(memory: &Memory, registers: &Registers) -> bool {
    if is_restarted(registers) {
        return interrupted_call(memory, registers) == Some(libc::SYS_futex);
    }
    let operation = (registers.rsi & FUTEX_COMMAND) as i32;
    interrupted_call(memory, registers).is_none()
        && *memory.read_some(registers.rip, SYSTEM_CALL.len()) == SYSTEM_CALL
        && registers.rax == libc::SYS_futex as u64
        && matches!(operation, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET)
}

const FUTEX_COMMAND: u64 = 0x7f;

/// Whether it waits at the futex of this address.
pub(crate) fn waits_at(_memory: &Memory, registers: &Registers, word: u64) -> bool {
    registers.orig_rax == libc::SYS_futex as u64 && registers.rdi == word
}

/// The thread at other code, with these arguments of a system call or of a function. `code` returns to the address in
/// the first word of the stack.
pub(crate) fn sent_to(
    registers: &Registers,
    code: u64,
    stack: u64,
    _return_to: u64,
    arguments: [u64; 6],
) -> Registers {
    let [rdi, rsi, rdx, r10, r8, r9] = arguments;
    Registers {
        rip: code,
        rsp: stack,
        rdi,
        rsi,
        rdx,
        // A function's fourth argument, and a system call's.
        rcx: r10,
        r10,
        r8,
        r9,
        // No system call may be restarted in place of this one.
        orig_rax: u64::MAX,
        // Direction: up, as functions expect it.
        eflags: registers.eflags & !0x400,
        ..*registers
    }
}

/// With the number of the system call that it is about to make. A function finds 0 there.
pub(crate) fn with_call(registers: Registers, number: i64) -> Registers {
    Registers {
        rax: number.cast_unsigned(),
        ..registers
    }
}

/// The result of a system call that has just ended.
pub(crate) fn result(registers: &Registers) -> i64 {
    registers.rax.cast_signed()
}

/// The system call that an interrupted thread restarts unless we put the thread back first.
///
/// A call that the kernel has restarted once has the number of `restart_syscall`, which does not survive a return
/// from a signal frame. The original number is in the instruction before, where the C library loads it.
pub(crate) fn call_again(memory: &Memory, registers: &Registers) -> u64 {
    if registers.orig_rax != libc::SYS_restart_syscall as u64 {
        return registers.orig_rax;
    }
    match *memory.read_some(registers.rip.wrapping_sub(7), 7) {
        // `mov $number, %eax; syscall`
        [0xb8, a, b, c, d, 0x0f, 0x05] => u64::from(u32::from_le_bytes([a, b, c, d])),
        _ => registers.orig_rax,
    }
}

/// The thread about to make a system call once more that a stop has ended with EINTR; `None` if it is no such thread.
pub(crate) fn made_again(registers: &Registers) -> Option<Registers> {
    let call = registers.orig_rax.cast_signed();
    let is_interrupted = registers.rax.cast_signed() == -i64::from(libc::EINTR);
    (call >= 0 && is_interrupted).then(|| Registers {
        rip: registers.rip - SYSCALL_BYTES,
        rax: call.cast_unsigned(),
        orig_rax: u64::MAX,
        ..*registers
    })
}

/// The registers for a thread that was elsewhere meanwhile: the kernel still knows how to restart its call.
pub(crate) fn continued(registers: Registers) -> Registers {
    registers
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Registers of a thread that runs `code` with its stack at `stack`, or is in a system call there.
    pub(crate) fn registers(code: u64, stack: u64, call: Option<i64>) -> Registers {
        // SAFETY: numbers, for which 0 is a value.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        registers.rip = code;
        registers.rsp = stack;
        registers.orig_rax = call.unwrap_or(-1).cast_unsigned();
        registers
    }
}
