//! The operating system, one file per detail. No function here allocates from the program's heap, locks, or is a
//! cancellation point: system calls are made directly, because libc's wrappers of `open` or `write` may end the thread.

pub mod clock;
pub mod fault_events;
pub mod file;
pub mod futex;
pub mod leaked;
pub mod memory;
pub mod pagemap;
pub mod process;
pub mod residency;
pub mod safe_read;
pub mod scratch;
pub mod signals;
pub mod spin;
pub mod stack_room;
pub mod timer;
pub mod vdso;
pub mod vector;

/// An error number of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// A system call's result: the kernel's value, or its error number.
fn check(result: libc::c_long) -> Result<usize, Errno> {
    if result >= 0 {
        return Ok(result.cast_unsigned() as usize);
    }
    // SAFETY: errno is always readable; it belongs to this thread.
    Err(Errno(unsafe { *libc::__errno_location() }))
}

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Whether a filter of system calls may be in force that ends the process at one that it does not know.
static IS_FILTERED: AtomicBool = AtomicBool::new(false);

/// From now on the program's threads make no system call for us that a program which only computes and allocates does not
/// make itself.
pub fn set_filtered() {
    IS_FILTERED.store(true, Ordering::Relaxed);
}

/// There is no filter after all.
pub fn set_unfiltered() {
    IS_FILTERED.store(false, Ordering::Relaxed);
}

/// See [`set_filtered`].
pub fn is_filtered() -> bool {
    IS_FILTERED.load(Ordering::Relaxed)
}

/// Which limit.
#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
/// Which limit.
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

/// One of this process's limits; the largest number if there is none.
fn limit(which: Resource) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` is writable.
    unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            0_i64,
            which,
            core::ptr::null::<libc::rlimit64>(),
            &raw mut limit,
        )
    };
    limit.rlim_cur
}

/// `__libc_stack_end` of the loader, if it has one.
static MAIN_STACK_END: AtomicU64 = AtomicU64::new(0);

/// Tells where the main thread's stack begins.
pub fn set_main_stack_end(address: u64) {
    MAIN_STACK_END.store(address, Ordering::Relaxed);
}

/// The highest address that the calling thread's own stack can have: where the loader put the program's arguments for
/// the main thread; for others the thread control block, which libc keeps at the top of the stack. Behind a filter nobody
/// can be asked which thread this is: there it is below the main thread's stack.
pub fn stack_top() -> u64 {
    let main_end = MAIN_STACK_END.load(Ordering::Relaxed);
    if main_end != 0 && !is_filtered() && process::tid() == process::pid() {
        main_end
    } else {
        thread_pointer()
    }
}

#[cfg(target_arch = "x86_64")]
fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: the first word of the thread control block is its own address, by the ABI.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags))
    };
    pointer
}

#[cfg(target_arch = "aarch64")]
fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nomem, nostack, preserves_flags))
    };
    pointer
}
