//! aarch64: registers, system calls, and the instructions that are looked for.
//!
//! A stopped thread does not show that it was in a system call. The kernel has either moved it back to the `svc`, with
//! the call's arguments, so that it makes the call again; or the call has ended with EINTR, and its first argument is
//! lost. So a thread's call is read from `/proc` just before the thread is stopped ([`Before`]).

use std::fs;
use std::io;

use crate::image::Memory;
use crate::target::Mapping;
use crate::tracee::{read_set, write_set};

/// Of programs for this processor.
pub(crate) const ELF_MACHINE: u16 = 183;

/// The instruction `svc #0`.
pub(crate) const SYSTEM_CALL: [u8; 4] = 0xd400_0001_u32.to_le_bytes();
const SVC_BYTES: u64 = SYSTEM_CALL.len() as u64;

/// `svc #0; ret`
pub(crate) const SYSTEM_CALL_AND_RETURN: [u8; 8] = [0x01, 0, 0, 0xd4, 0xc0, 0x03, 0x5f, 0xd6];

/// `mov x8, #139; svc #0`: what a signal handler returns to, in the kernel's own code in the process.
pub(crate) const SIGNAL_RETURN: [u8; 8] = [0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4];

/// A function finds the address that it returns to in a register.
pub(crate) const RETURN_ADDRESS_BYTES: u64 = 0;

/// Bytes of the memory for a helper that are code: the largest page that kernels for this processor have.
pub(crate) const CODE_BYTES: u64 = 64 << 10;

/// System calls in which threads wait.
pub(crate) const WAITING_CALLS: [i64; 21] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
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
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_futex,
    libc::SYS_io_getevents,
    // One of the above, after it was interrupted by a stop.
    libc::SYS_restart_syscall,
];

/// Addresses of code have no more bits; above them, a signed return address has its signature.
const ADDRESS_BITS: u32 = 48;

/// The kind of branch that led to an instruction, in PSTATE: none. Code that checks it (BTI) may begin anywhere then.
const BRANCH_TYPE: u64 = 3 << 10;

const NT_PRSTATUS: usize = 1;
const NT_PRFPREG: usize = 2;
const NT_ARM_SYSTEM_CALL: usize = 0x404;
const NT_ARM_SVE: usize = 0x405;
const NT_ARM_SSVE: usize = 0x40b;
const NT_ARM_ZA: usize = 0x40c;
const NT_ARM_GCS: usize = 0x410;

/// The system call in which a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    number: i64,
    first_argument: u64,
    stack: u64,
    /// The instruction after the `svc`.
    code: u64,
}

impl Call {
    /// Of a line of `/proc/PID/syscall`: the number, six arguments, the stack pointer, the code.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        let number = fields.next()?.parse().ok().filter(|&number| number >= 0)?;
        let mut numbers = fields.map_while(|field| {
            let digits = field.strip_prefix("0x")?;
            u64::from_str_radix(digits, 16).ok()
        });
        Some(Self {
            number,
            first_argument: numbers.next()?,
            stack: numbers.nth(5)?,
            code: numbers.next()?,
        })
    }

    /// Whether a stop has ended this call, and the thread makes it again.
    fn is_restarted(&self, general: &libc::user_regs_struct) -> bool {
        general.sp == self.stack
            && general.pc == self.code.wrapping_sub(SVC_BYTES)
            && general.regs[0] == self.first_argument
            && general.regs[8] == self.number.cast_unsigned()
    }

    /// Whether a stop has ended this call with EINTR.
    fn has_failed(&self, general: &libc::user_regs_struct) -> bool {
        general.sp == self.stack
            && general.pc == self.code
            && result_of(general) == -i64::from(libc::EINTR)
            && general.regs[8] == self.number.cast_unsigned()
    }
}

/// What must be known of a thread before it is stopped: the system call in which it waits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before(Option<Call>);

impl Before {
    /// Nothing is known of a thread that is running, or if the kernel has no such file.
    pub fn of(thread: i32) -> Self {
        let line = fs::read_to_string(format!("/proc/{thread}/syscall"));
        Self(line.ok().and_then(|line| Call::parse(&line)))
    }
}

/// The general registers, and the system call that the stop has interrupted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registers {
    general: libc::user_regs_struct,
    interrupted: Option<Call>,
}

const GENERAL_BYTES: usize = size_of::<libc::user_regs_struct>();
const GENERAL_WORDS: usize = GENERAL_BYTES / 8;

impl Registers {
    /// x0 to x30, sp, pc, pstate.
    pub fn words(&self) -> [u64; GENERAL_WORDS] {
        let mut words = [0; GENERAL_WORDS];
        let general = &self.general;
        words[..31].copy_from_slice(&general.regs);
        words[31..].copy_from_slice(&[general.sp, general.pc, general.pstate]);
        words
    }
}

pub(crate) fn read_registers(thread: i32, before: Before) -> io::Result<Registers> {
    let bytes = read_set(thread, NT_PRSTATUS, GENERAL_BYTES)?;
    let mut words = [0_u64; GENERAL_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().unwrap_or([0; 8]));
    }
    let [regs @ .., sp, pc, pstate] = words;
    let general = libc::user_regs_struct {
        regs,
        sp,
        pc,
        pstate,
    };
    let interrupted = before
        .0
        .filter(|call| call.is_restarted(&general) || call.has_failed(&general));
    Ok(Registers {
        general,
        interrupted,
    })
}

/// A thread that is about to make a system call, or has just ended one, makes none and restarts none.
///
/// The registers come first: if we are killed before the second step, a thread that is about to return from the frame does
/// so, and finds the frame at its stack pointer.
pub(crate) fn write_registers(thread: i32, registers: &Registers) -> io::Result<()> {
    let words = registers.words();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    write_set(thread, NT_PRSTATUS, &bytes)?;
    write_set(thread, NT_ARM_SYSTEM_CALL, &(-1_i32).to_le_bytes())
}

/// Floating-point and vector registers, as ptrace reads them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Vectors {
    /// v0 to v31, the state, the control register.
    pub basic: Vec<u8>,
    /// With a header: all of the registers of SVE, if they hold more than the above.
    pub scalable: Option<Vec<u8>>,
}

/// `struct user_fpsimd_state`.
pub(crate) const BASIC_BYTES: usize = 528;
/// `struct user_sve_header`, and `struct user_za_header`.
pub(crate) const SCALABLE_HEADER_BYTES: usize = 16;
/// All registers of SVE, with vectors of 2,048 bits.
const SCALABLE_BYTES: usize = 16 << 10;
const LENGTH_AT: usize = 8;
const FLAGS_AT: usize = 12;
/// In the flags: the registers of SVE are in use.
const HOLDS_SCALABLE: u16 = 1;
/// So long may vectors be for their registers to fit into a signal frame without an extension. No processor has longer
/// ones.
const LONGEST_VECTOR_BYTES: u16 = 64;

fn half(bytes: &[u8], at: usize) -> u16 {
    let half = bytes.get(at..at + 2).and_then(|half| half.try_into().ok());
    half.map_or(0, u16::from_le_bytes)
}

/// Bytes with the header, by the header.
fn size_in(header: &[u8]) -> usize {
    usize::from(half(header, 0)) | usize::from(half(header, 2)) << 16
}

/// Bytes in a vector register of SVE, by the header.
pub(crate) fn vector_bytes(scalable: &[u8]) -> u16 {
    half(scalable, LENGTH_AT)
}

/// `None` for a thread with state that a call would change and that we could not restore: matrix registers in use
/// (SME), or vectors that are too long.
pub(crate) fn read_vectors(thread: i32) -> io::Result<Option<Vectors>> {
    let header = |kind| read_set(thread, kind, SCALABLE_HEADER_BYTES).unwrap_or_default();
    let holds_scalable = |kind| half(&header(kind), FLAGS_AT) & HOLDS_SCALABLE != 0;
    let has_matrix = size_in(&header(NT_ARM_ZA)) > SCALABLE_HEADER_BYTES;
    if has_matrix || holds_scalable(NT_ARM_SSVE) {
        return Ok(None);
    }
    let scalable = match holds_scalable(NT_ARM_SVE) {
        true => Some(read_scalable(thread)?),
        false => None,
    };
    let is_too_long = |scalable: &Vec<u8>| vector_bytes(scalable) > LONGEST_VECTOR_BYTES;
    if scalable.as_ref().is_some_and(is_too_long) {
        return Ok(None);
    }
    Ok(Some(Vectors {
        basic: read_set(thread, NT_PRFPREG, BASIC_BYTES)?,
        scalable,
    }))
}

/// As many bytes as the header says.
fn read_scalable(thread: i32) -> io::Result<Vec<u8>> {
    let mut scalable = read_set(thread, NT_ARM_SVE, SCALABLE_BYTES)?;
    scalable.truncate(size_in(&scalable));
    Ok(scalable)
}

pub(crate) fn write_vectors(thread: i32, vectors: &Vectors) -> io::Result<()> {
    match &vectors.scalable {
        Some(scalable) => write_set(thread, NT_ARM_SVE, scalable),
        None => write_set(thread, NT_PRFPREG, &vectors.basic),
    }
}

/// Whether the processor compares return addresses with a stack of its own (GCS).
pub(crate) fn has_shadow_stack(thread: i32) -> bool {
    let state = read_set(thread, NT_ARM_GCS, 24).unwrap_or_default();
    state.first().is_some_and(|enabled| enabled & 1 != 0)
}

/// Where the thread is.
pub(crate) fn code(registers: &Registers) -> u64 {
    registers.general.pc
}

/// Its stack pointer.
pub(crate) fn stack(registers: &Registers) -> u64 {
    registers.general.sp
}

/// A return address that may not be on the stack: in a function that calls nothing.
pub(crate) fn link(registers: &Registers) -> Option<u64> {
    Some(registers.general.regs[30])
}

/// The address that a word of the stack is, if it is a return address.
pub(crate) fn code_address(word: u64) -> u64 {
    word & ((1 << ADDRESS_BITS) - 1)
}

/// Whether this is code in which [`SYSTEM_CALL_AND_RETURN`] and [`SIGNAL_RETURN`] are looked for: the kernel's own. No
/// thread waits in a system call that is made there.
pub(crate) fn has_instructions(mapping: &Mapping) -> bool {
    mapping.is_executable && mapping.path == "[vdso]"
}

/// The system call that a stopped thread was in, or is about to make: neither its registers nor its locks tell one from
/// the other.
pub(crate) fn interrupted_call(memory: &Memory, registers: &Registers) -> Option<i64> {
    if let Some(call) = registers.interrupted {
        return Some(call.number);
    }
    let is_about_to = *memory.read_some(registers.general.pc, SYSTEM_CALL.len()) == SYSTEM_CALL;
    is_about_to.then_some(registers.general.regs[8].cast_signed())
}

const FUTEX_COMMAND: u64 = 0x7f;

/// Whether a thread waits at a futex, or is about to.
pub(crate) fn waits_at_futex(memory: &Memory, registers: &Registers) -> bool {
    let operation = (registers.general.regs[1] & FUTEX_COMMAND) as i32;
    interrupted_call(memory, registers) == Some(libc::SYS_futex)
        && matches!(operation, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET)
}

/// Whether it waits at the futex of this address.
pub(crate) fn waits_at(memory: &Memory, registers: &Registers, word: u64) -> bool {
    interrupted_call(memory, registers) == Some(libc::SYS_futex)
        && registers.general.regs[0] == word
}

/// The thread at other code, with these arguments of a system call or of a function.
pub(crate) fn sent_to(
    registers: &Registers,
    code: u64,
    stack: u64,
    return_to: u64,
    arguments: [u64; 6],
) -> Registers {
    let mut general = registers.general;
    general.regs[..arguments.len()].copy_from_slice(&arguments);
    general.regs[30] = return_to;
    general.sp = stack;
    general.pc = code;
    general.pstate &= !BRANCH_TYPE;
    Registers {
        general,
        interrupted: None,
    }
}

/// With the number of the system call that it is about to make.
pub(crate) fn with_call(mut registers: Registers, number: i64) -> Registers {
    registers.general.regs[8] = number.cast_unsigned();
    registers
}

/// The result of a system call that has just ended.
pub(crate) fn result(registers: &Registers) -> i64 {
    result_of(&registers.general)
}

fn result_of(general: &libc::user_regs_struct) -> i64 {
    general.regs[0].cast_signed()
}

/// The system call that an interrupted thread restarts unless we put the thread back first.
///
/// A call that the kernel has restarted once has the number of `restart_syscall`, which does not survive a return
/// from a signal frame. The original number is in one of the instructions before, where the C library loads it.
pub(crate) fn call_again(memory: &Memory, registers: &Registers) -> u64 {
    const INSTRUCTIONS: u64 = 8;
    let number = registers.general.regs[8];
    if interrupted_call(memory, registers) != Some(libc::SYS_restart_syscall) {
        return number;
    }
    let bytes = INSTRUCTIONS * SVC_BYTES;
    let start = registers.general.pc.wrapping_sub(bytes);
    let before = memory.read_some(start, bytes as usize);
    let mut before = before
        .chunks_exact(4)
        .rev()
        .map(|instruction| u32::from_le_bytes(instruction.try_into().unwrap_or([0; 4])));
    before.find_map(loaded_call).unwrap_or(number)
}

/// The number that `mov x8, #NUMBER` or `mov w8, #NUMBER` loads.
fn loaded_call(instruction: u32) -> Option<u64> {
    let is_load = instruction & 0x7fe0_001f == 0x5280_0008;
    is_load.then_some(u64::from(instruction >> 5 & 0xffff))
}

/// The thread about to make a system call once more that a stop has ended with EINTR; `None` if it is no such thread.
pub(crate) fn made_again(registers: &Registers) -> Option<Registers> {
    let call = registers
        .interrupted
        .filter(|call| call.has_failed(&registers.general))?;
    let mut again = *registers;
    again.general.pc -= SVC_BYTES;
    again.general.regs[0] = call.first_argument;
    Some(again)
}

/// The registers for a thread that was elsewhere meanwhile. The kernel has forgotten that it would have restarted a call
/// with a timeout by `restart_syscall`, which waits for the rest of the time.
pub(crate) fn continued(mut registers: Registers) -> Registers {
    let general = &mut registers.general;
    let is_restarted = |call: Call| call.is_restarted(general);
    if registers.interrupted.is_some_and(is_restarted) && has_rest(general) {
        general.regs[8] = libc::SYS_restart_syscall as u64;
    }
    registers
}

/// Whether a call with these arguments waits for a time from its begin.
fn has_rest(general: &libc::user_regs_struct) -> bool {
    let [_, second, _, fourth, ..] = general.regs;
    match general.regs[8].cast_signed() {
        libc::SYS_nanosleep => true,
        libc::SYS_clock_nanosleep => second & libc::TIMER_ABSTIME as u64 == 0,
        libc::SYS_futex => (second & FUTEX_COMMAND) as i32 == libc::FUTEX_WAIT && fourth != 0,
        _ => false,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Registers of a thread that runs `code` with its stack at `stack`, or is in a system call there.
    pub(crate) fn registers(code: u64, stack: u64, call: Option<i64>) -> Registers {
        let general = libc::user_regs_struct {
            regs: [0; 31],
            sp: stack,
            pc: code,
            pstate: 0,
        };
        let mut registers = Registers {
            general,
            interrupted: call.map(|number| Call {
                number,
                first_argument: 0,
                stack,
                code: code + SVC_BYTES,
            }),
        };
        registers.general.regs[8] = call.unwrap_or(0).cast_unsigned();
        registers
    }

    const LINE: &str = "115 0x1 0x0 0xffffd0 0xffffd0 0x0 0x0 0xffffa0 0x4008\n";

    #[test]
    fn a_call_is_recognized_after_the_stop_that_interrupted_it() {
        let call = Call::parse(LINE).unwrap();
        let mut general = libc::user_regs_struct {
            regs: [0; 31],
            sp: 0xff_ffa0,
            pc: 0x4004,
            pstate: 0,
        };
        general.regs[8] = 115;
        // Another first argument.
        assert!(!call.is_restarted(&general) && !call.has_failed(&general));
        general.regs[0] = 1;
        assert!(call.is_restarted(&general) && !call.has_failed(&general));
        // It waits for the rest of its time; with an absolute time it is made as before.
        let mut registers = Registers {
            general,
            interrupted: Some(call),
        };
        assert_eq!(continued(registers).general.regs[8], 128);
        registers.general.regs[1] = 1;
        assert_eq!(continued(registers).general.regs[8], 115);
        // Ended by the stop.
        general.pc = 0x4008;
        general.regs[0] = (-4_i64).cast_unsigned();
        assert!(!call.is_restarted(&general) && call.has_failed(&general));
        registers.general = general;
        let again = made_again(&registers).unwrap();
        assert_eq!((again.general.pc, again.general.regs[0]), (0x4004, 1));
        // A handler has run since, or nothing was known.
        registers.general.sp -= 16;
        assert!(made_again(&registers).is_none());
        for line in ["running\n", "-1 0xffffa0 0x4008\n"] {
            assert_eq!(Call::parse(line), None, "{line}");
        }
    }

    #[test]
    fn the_number_of_a_call_is_found_where_it_is_loaded() {
        // `mov x8, #115` and `mov w8, #98`; `mov x9, #115`.
        assert_eq!(loaded_call(0xd280_0e68), Some(115));
        assert_eq!(loaded_call(0x5280_0c48), Some(98));
        assert_eq!(loaded_call(0xd280_0e69), None);
    }
}
