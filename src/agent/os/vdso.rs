//! Functions that the kernel maps into every process.

use core::ffi::CStr;

use super::clock::ClockGetTime;

#[cfg(target_arch = "x86_64")]
const CLOCK_GETTIME: &CStr = c"__vdso_clock_gettime";
#[cfg(target_arch = "aarch64")]
const CLOCK_GETTIME: &CStr = c"__kernel_clock_gettime";

const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;

/// `clock_gettime` of the vDSO at this address; `None` if there is none (0: a debugger hides it, or the kernel has none).
///
/// # Safety
/// `base` is 0 or what `getauxval(AT_SYSINFO_EHDR)` returned.
pub unsafe fn clock_gettime(base: u64) -> Option<ClockGetTime> {
    if base == 0 {
        return None;
    }
    // SAFETY: the kernel maps a whole ELF image there, with the header that its format demands.
    let headers = unsafe {
        let header = &*core::ptr::with_exposed_provenance::<libc::Elf64_Ehdr>(base as usize);
        core::slice::from_raw_parts(
            core::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(
                (base + header.e_phoff) as usize,
            ),
            usize::from(header.e_phnum),
        )
    };
    let load = headers.iter().find(|header| header.p_type == PT_LOAD)?;
    let dynamic = headers.iter().find(|header| header.p_type == PT_DYNAMIC)?;
    let bias = base.wrapping_sub(load.p_vaddr);
    // SAFETY: as above: the dynamic section is an array of pairs of words.
    let dynamic = unsafe {
        core::slice::from_raw_parts(
            core::ptr::with_exposed_provenance::<[u64; 2]>(
                bias.wrapping_add(dynamic.p_vaddr) as usize
            ),
            dynamic.p_memsz as usize / 16,
        )
    };
    let find = |wanted| {
        let [_, address] = dynamic.iter().find(|[tag, _]| *tag == wanted)?;
        Some(bias.wrapping_add(*address))
    };
    let (symbols, strings) = (find(DT_SYMTAB)?, find(DT_STRTAB)?);
    // The strings of a vDSO follow its symbols; a count is found in hash tables only, of which there are two kinds.
    let count = strings.checked_sub(symbols)? as usize / size_of::<libc::Elf64_Sym>();
    // SAFETY: as above: the symbol table reaches up to the strings.
    let symbols = unsafe {
        core::slice::from_raw_parts(
            core::ptr::with_exposed_provenance::<libc::Elf64_Sym>(symbols as usize),
            count,
        )
    };
    let symbol = symbols.iter().find(|symbol| {
        let name = (strings + u64::from(symbol.st_name)) as usize;
        // SAFETY: names of symbols are C strings in the string table.
        let name = unsafe { CStr::from_ptr(core::ptr::with_exposed_provenance(name)) };
        symbol.st_value != 0 && name == CLOCK_GETTIME
    })?;
    let address = bias.wrapping_add(symbol.st_value) as usize;
    // SAFETY: the kernel's function of this name has this type.
    Some(unsafe { core::mem::transmute::<usize, ClockGetTime>(address) })
}

/// `clock_gettime` where there is no vDSO, as under valgrind: every sample and every sampled free read the time. libc's
/// `syscall` is the shim's, which looks for system calls by which the process gives up rights.
pub(super) fn kernel_clock_gettime(clock: libc::clockid_t, time: &mut libc::timespec) {
    let number = libc::SYS_clock_gettime;
    // SAFETY: the kernel writes to `time` alone, and leaves all registers but those of the result, and on x86-64 rcx and r11.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => _,
            in("rdi") clock,
            in("rsi") core::ptr::from_mut(time),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") i64::from(clock) => _,
            in("x1") core::ptr::from_mut(time),
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_clock_is_the_systems() {
        // SAFETY: the auxiliary vector has it.
        let Some(clock) = (unsafe { clock_gettime(libc::getauxval(libc::AT_SYSINFO_EHDR)) }) else {
            return; // a machine without a vDSO
        };
        let read = |clock: ClockGetTime| {
            let mut time = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // SAFETY: `time` is writable.
            assert_eq!(unsafe { clock(libc::CLOCK_MONOTONIC, &raw mut time) }, 0);
            time.tv_sec * 1_000_000_000 + time.tv_nsec
        };
        let (before, there, after) = (
            read(libc::clock_gettime),
            read(clock),
            read(libc::clock_gettime),
        );
        assert!((before..=after).contains(&there));
    }
}
