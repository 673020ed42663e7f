//! Steps that call-frame information does not cover.

use framehop::UnwindRegsNative;

use super::modules::{Module, Modules};
use super::reader::StackReader;

/// From a frame of unknown code to its caller, if it keeps a frame pointer: `(ip, sp, fp) = (*(fp + 8), fp + 16, *fp)`.
pub(super) fn by_frame_pointer(
    registers: &mut UnwindRegsNative,
    read: &mut impl FnMut(u64) -> Result<u64, ()>,
) -> Result<Option<u64>, ()> {
    let frame = frame_pointer(registers);
    if frame < registers.sp() || !frame.is_multiple_of(8) {
        return Err(());
    }
    let caller_frame = read(frame)?;
    let return_address = unsigned(read(frame + 8)?);
    if return_address == 0 {
        return Ok(None);
    }
    set(registers, return_address, frame + 16, caller_frame);
    Ok(Some(return_address))
}

/// From a frame of unknown code to its caller, if all that it still does is `add $n, %rsp; ret`: a thunk, such as those of
/// CPython's `-X perf`. `(ip, sp, fp) = (*(sp + n), sp + n + 8, fp)`; `None`: it does something else. `code` is what is at the
/// frame's address.
#[cfg(target_arch = "x86_64")]
pub(super) fn by_epilogue(
    registers: &mut UnwindRegsNative,
    code: Option<[u8; 5]>,
    read: &mut impl FnMut(u64) -> Result<u64, ()>,
) -> Option<Result<Option<u64>, ()>> {
    let [0x48, 0x83, 0xc4, bytes @ 0..0x80, 0xc3] = code? else {
        return None;
    };
    let at = registers.sp() + u64::from(bytes);
    let fp = frame_pointer(registers);
    Some(read(at).map(|return_address| {
        set(registers, return_address, at + 8, fp);
        Some(return_address)
    }))
}

/// A function keeps its return address in a pair with the frame pointer.
#[cfg(target_arch = "aarch64")]
pub(super) fn by_epilogue(
    _registers: &mut UnwindRegsNative,
    _code: Option<[u8; 5]>,
    _read: &mut impl FnMut(u64) -> Result<u64, ()>,
) -> Option<Result<Option<u64>, ()>> {
    None
}

/// Whether the bytes before `return_address` end in a call instruction. A wrong guess rarely does.
#[cfg(target_arch = "x86_64")]
pub(super) fn is_behind_call(return_address: u64, reader: &mut StackReader) -> bool {
    let Some(start) = return_address.checked_sub(7) else {
        return false;
    };
    if reader.code::<1>(return_address).is_none() {
        return false;
    }
    let bytes = reader.code(start).unwrap_or_else(|| {
        // Code may begin with its page, and the call be one of its first instructions.
        let mut bytes = [0; 7];
        for (at, byte) in (start..).zip(&mut bytes) {
            *byte = reader.code(at).map_or(0, |[byte]| byte);
        }
        bytes
    });
    let is_call_through = |byte: u8| byte & 0x38 == 0x10; // ModRM /2 after the opcode FF
    match bytes {
        [.., 0xe8, _, _, _, _] => true,
        [.., 0xff, modrm] if is_call_through(modrm) => true,
        [.., 0xff, modrm, _] if is_call_through(modrm) => true,
        [.., 0xff, modrm, _, _] if is_call_through(modrm) => true,
        [_, 0xff, modrm, _, _, _, _] if is_call_through(modrm) => true,
        [0xff, modrm, _, _, _, _, _] if is_call_through(modrm) => true,
        _ => false,
    }
}

/// Whether the instruction before `return_address` is a branch with link.
#[cfg(target_arch = "aarch64")]
pub(super) fn is_behind_call(return_address: u64, reader: &mut StackReader) -> bool {
    let start = return_address.checked_sub(4).filter(|start| start % 4 == 0);
    let Some(instruction) = start
        .and_then(|start| reader.code(start))
        .map(u32::from_le_bytes)
    else {
        return false;
    };
    instruction >> 26 == 0b100101 || instruction & 0xffff_fc1f == 0xd63f_0000
}

#[cfg(target_arch = "x86_64")]
const SIGNAL_RETURN: &[u8] = &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]; // mov $15, %rax; syscall
#[cfg(target_arch = "aarch64")]
const SIGNAL_RETURN: &[u8] = &[0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4]; // mov x8, #139; svc #0

/// Whether this is the code that a signal handler returns to.
pub(super) fn is_signal_return(
    return_address: u64,
    current: Option<&'static Module>,
    modules: &Modules,
) -> bool {
    // The address itself: the trampoline is a function's first instruction, with no call before it.
    let module = current
        .filter(|module| module.contains(return_address))
        .or_else(|| modules.find(return_address));
    if module.is_none_or(|module| !module.contains(return_address + SIGNAL_RETURN.len() as u64)) {
        return false;
    }
    let pointer: *const u8 = core::ptr::with_exposed_provenance(return_address as usize);
    // SAFETY: inside the mapped range of a module, in the page of an instruction that is about to run; a module's text
    // is readable unless linked otherwise, which glibc and the kernel's vDSO are not.
    let byte = |at: usize| unsafe { pointer.add(at).read() };
    // Byte by byte, and the first one rules out nearly everything.
    SIGNAL_RETURN
        .iter()
        .enumerate()
        .all(|(at, &expected)| byte(at) == expected)
}

/// Takes the registers that the kernel saved; returns the interrupted address.
///
/// x86-64: the handler's return left sp at the `ucontext`, whose general registers start 40 bytes in
/// (`r8..r15 rdi rsi rbp rbx rdx rax rcx rsp rip`).
#[cfg(target_arch = "x86_64")]
pub(super) fn out_of_signal_frame(
    registers: &mut UnwindRegsNative,
    read: &mut impl FnMut(u64) -> Result<u64, ()>,
) -> Option<u64> {
    let saved = registers.sp() + 40;
    let (fp, sp, ip) = (
        read(saved + 10 * 8).ok()?,
        read(saved + 15 * 8).ok()?,
        read(saved + 16 * 8).ok()?,
    );
    set(registers, ip, sp, fp);
    Some(ip)
}

/// aarch64: sp is at `siginfo` (128 bytes), then `ucontext`, whose registers start 176 bytes in, after the fault address.
#[cfg(target_arch = "aarch64")]
pub(super) fn out_of_signal_frame(
    registers: &mut UnwindRegsNative,
    read: &mut impl FnMut(u64) -> Result<u64, ()>,
) -> Option<u64> {
    let saved = registers.sp() + 128 + 176 + 8;
    let (fp, lr) = (read(saved + 29 * 8).ok()?, read(saved + 30 * 8).ok()?);
    let (sp, pc) = (read(saved + 31 * 8).ok()?, read(saved + 32 * 8).ok()?);
    set(registers, lr, sp, fp);
    Some(pc)
}

#[cfg(target_arch = "x86_64")]
pub(super) fn frame_pointer(registers: &UnwindRegsNative) -> u64 {
    registers.bp()
}

/// At `pc`; `link` is where aarch64 keeps the return address until it is saved.
#[cfg(target_arch = "x86_64")]
pub(super) fn registers(pc: u64, sp: u64, fp: u64, _link: u64) -> UnwindRegsNative {
    UnwindRegsNative::new(pc, sp, fp)
}

/// At `pc`; `link` is where aarch64 keeps the return address until it is saved.
#[cfg(target_arch = "aarch64")]
pub(super) fn registers(_pc: u64, sp: u64, fp: u64, link: u64) -> UnwindRegsNative {
    UnwindRegsNative::new_with_ptr_auth_mask(address_mask(), link, sp, fp)
}

#[cfg(target_arch = "x86_64")]
fn set(registers: &mut UnwindRegsNative, ip: u64, sp: u64, fp: u64) {
    *registers = UnwindRegsNative::new(ip, sp, fp);
}

#[cfg(target_arch = "aarch64")]
pub(super) fn frame_pointer(registers: &UnwindRegsNative) -> u64 {
    registers.fp()
}

#[cfg(target_arch = "aarch64")]
pub(super) fn link(registers: &UnwindRegsNative) -> u64 {
    registers.lr()
}

#[cfg(target_arch = "aarch64")]
fn set(registers: &mut UnwindRegsNative, lr: u64, sp: u64, fp: u64) {
    *registers = self::registers(lr, sp, fp, lr);
}

/// A return address as it was before the function that saved it signed it.
#[cfg(target_arch = "x86_64")]
pub(super) fn unsigned(return_address: u64) -> u64 {
    return_address
}

/// A return address as it was before the function that saved it signed it.
#[cfg(target_arch = "aarch64")]
pub(super) fn unsigned(return_address: u64) -> u64 {
    address_mask().strip_ptr_auth(return_address)
}

/// The bits of a return address that are no signature. With pointer authentication, a function signs its return address before
/// it saves it, in the bits above the size of an address, which differs between kernels.
#[cfg(target_arch = "aarch64")]
fn address_mask() -> framehop::aarch64::PtrAuthMask {
    // All bits that an address of a program's can have, or a signature. Bit 55 is 0: an address of the kernel's has 1 there.
    let mut mask: u64 = (1 << 55) - 1;
    // SAFETY: `xpaclri` removes the signature of the address in x30. Without pointer authentication it does nothing.
    unsafe {
        core::arch::asm!("hint #7", inout("x30") mask, options(pure, nomem, nostack, preserves_flags));
    }
    framehop::aarch64::PtrAuthMask(mask)
}

#[cfg(test)]
mod tests;
