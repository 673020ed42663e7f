//! Work areas with a stack of their own, so that a sample costs the program's stack a few hundred bytes.
//!
//! An area belongs to a sample in progress, not to a thread. But a thread comes back to the area that it used last, if it
//! can, for what is remembered there of its stack; so that there are as many as threads sample, up to a limit, and beyond
//! it as many as samples were ever taken at the same time.

use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use super::memory;

/// Stack for the agent's own code, and for signal handlers that interrupt it.
const STACK_BYTES: usize = 256 * 1024;
const GUARD_BYTES: usize = 4096;
const MAX_AREAS: usize = 1024;
/// Up to here a thread that samples for the first time gets an area of its own. About 60 KiB of each are touched.
const OWN_AREAS: usize = 32;

/// Areas of one type `A`, at most 1,024.
pub struct Pool<A: 'static> {
    areas: [AtomicPtr<A>; MAX_AREAS],
    /// True from birth: an area belongs to who made it until it is pushed.
    is_busy: [Line; MAX_AREAS],
    made: AtomicU32,
    stays: AtomicBool,
}

/// A cache line of its own: each sample writes its area's flag twice.
#[repr(align(64))]
struct Line(AtomicBool);

/// # Safety
/// All zero bytes are a valid value of the type.
pub unsafe trait Zeroed {}

impl<A: Zeroed> Pool<A> {
    /// No areas yet.
    pub const fn new() -> Self {
        Self {
            areas: [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_AREAS],
            is_busy: [const { Line(AtomicBool::new(true)) }; MAX_AREAS],
            made: AtomicU32::new(0),
            stays: AtomicBool::new(false),
        }
    }

    /// From now on [`Self::run`] stays on the program's stack: whoever stops a thread by a signal takes all from its stack
    /// pointer up to its base for its stack.
    pub fn stay(&self) {
        self.stays.store(true, Ordering::Relaxed);
    }

    /// Runs `work` with an area, on the area's stack (see [`Self::stay`]). `None`: there is no memory for one. `last_used` is
    /// the thread's own, for this pool alone; it starts as 0.
    ///
    /// Any thread; must not be entered again by a signal handler on the same thread more often than there are areas.
    pub fn run<R, F: FnOnce(&mut A) -> R>(&self, last_used: &Cell<u32>, work: F) -> Option<R> {
        self.run_on(self.stays.load(Ordering::Relaxed), last_used, work)
    }

    /// As [`Self::run`], and always on the area's stack. While signals are blocked.
    pub fn run_aside<R, F: FnOnce(&mut A) -> R>(
        &self,
        last_used: &Cell<u32>,
        work: F,
    ) -> Option<R> {
        self.run_on(false, last_used, work)
    }

    fn run_on<R, F: FnOnce(&mut A) -> R>(
        &self,
        stays: bool,
        last_used: &Cell<u32>,
        work: F,
    ) -> Option<R> {
        let index = self
            .take_last(last_used)
            .or_else(|| self.pop())
            .or_else(|| self.make())?;
        last_used.set(index as u32 + 1);
        let area = self.areas.get(index)?.load(Ordering::Acquire);
        let mut job = Job {
            work: Some(work),
            area,
            result: None,
        };
        let argument = (&raw mut job).cast();
        if stays {
            // SAFETY: `run_job` gets the job it expects, with an area that is ours alone until `push`.
            unsafe { run_job::<A, R, F>(argument) };
        } else {
            // SAFETY: the area was mapped by `make` with its stack right below it and is ours alone until `push`.
            // `run_job` gets the job it expects, which outlives the call; an `extern "C"` function aborts instead of
            // unwinding.
            unsafe { allocsample_call_on_stack(area.cast(), run_job::<A, R, F>, argument) };
        }
        self.push(index);
        job.result
    }

    /// Forgets all areas: in a forked child some belong to threads that do not exist here.
    pub fn forget(&self) {
        self.made.store(0, Ordering::Relaxed);
        for Line(is_busy) in &self.is_busy {
            is_busy.store(true, Ordering::Relaxed);
        }
    }

    /// The area that the thread used last, or a new one at its first time.
    fn take_last(&self, last_used: &Cell<u32>) -> Option<usize> {
        match (last_used.get() as usize).checked_sub(1) {
            Some(index) => take(&self.is_busy.get(index)?.0).then_some(index),
            None if self.made.load(Ordering::Relaxed) < OWN_AREAS as u32 => self.make(),
            None => None,
        }
    }

    /// An area that nobody uses, which is ours then.
    fn pop(&self) -> Option<usize> {
        let made = self.made.load(Ordering::Relaxed) as usize;
        self.is_busy
            .iter()
            .take(made)
            .position(|Line(is_busy)| take(is_busy))
    }

    fn push(&self, index: usize) {
        if let Some(Line(is_busy)) = self.is_busy.get(index) {
            // Release: pairs with `pop`.
            is_busy.store(false, Ordering::Release);
        }
    }

    fn make(&self) -> Option<usize> {
        let index = self.made.fetch_add(1, Ordering::Relaxed) as usize;
        let Some(place) = self.areas.get(index) else {
            self.made.fetch_sub(1, Ordering::Relaxed);
            return None;
        };
        let base = memory::map(GUARD_BYTES + STACK_BYTES + size_of::<A>())?;
        // SAFETY: the first page of our own mapping becomes the guard.
        unsafe {
            libc::syscall(
                libc::SYS_mprotect,
                base.as_ptr(),
                GUARD_BYTES,
                libc::PROT_NONE,
            )
        };
        // SAFETY: inside the mapping; page-aligned, which suffices for any area; zeroed, as `Zeroed` allows.
        let area = unsafe { base.add(GUARD_BYTES + STACK_BYTES) }.cast::<A>();
        // Release: pairs with the acquire in `run`.
        place.store(area.as_ptr(), Ordering::Release);
        Some(index)
    }
}

fn take(is_busy: &AtomicBool) -> bool {
    // Acquire: pairs with the release in `push`; the previous owner's writes are done.
    !is_busy.load(Ordering::Relaxed) && !is_busy.swap(true, Ordering::Acquire)
}

struct Job<A, R, F> {
    work: Option<F>,
    area: *mut A,
    result: Option<R>,
}

/// # Safety
/// `job` points to a `Job<A, R, F>` whose area is valid and ours.
unsafe extern "C" fn run_job<A, R, F: FnOnce(&mut A) -> R>(job: *mut u8) {
    // SAFETY: the caller's promise.
    let job = unsafe { &mut *job.cast::<Job<A, R, F>>() };
    let Some(mut area) = NonNull::new(job.area) else {
        return;
    };
    if let Some(work) = job.work.take() {
        // SAFETY: the caller's promise.
        job.result = Some(work(unsafe { area.as_mut() }));
    }
}

unsafe extern "C" {
    /// Calls `function(argument)` with the stack pointer at `top`.
    ///
    /// # Safety
    /// `top` is aligned to 16 and ends a stack that nobody else uses; `function` does not unwind.
    fn allocsample_call_on_stack(
        top: *mut u8,
        function: unsafe extern "C" fn(*mut u8),
        argument: *mut u8,
    );
}

// Functions of their own with call-frame information: the frame pointer says where the caller's stack goes on, so that
// unwinders which interrupt the agent (a profiler's signal handler, gdb, perf) come back from the area's stack to the
// program's.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.allocsample_call_on_stack, \"ax\", @progbits",
    ".globl allocsample_call_on_stack",
    ".hidden allocsample_call_on_stack",
    ".type allocsample_call_on_stack, @function",
    "allocsample_call_on_stack:",
    ".cfi_startproc",
    "endbr64",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "mov rsp, rdi",
    "mov rdi, rdx",
    "call rsi",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size allocsample_call_on_stack, . - allocsample_call_on_stack",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".pushsection .text.allocsample_call_on_stack, \"ax\", @progbits",
    ".globl allocsample_call_on_stack",
    ".hidden allocsample_call_on_stack",
    ".type allocsample_call_on_stack, @function",
    "allocsample_call_on_stack:",
    ".cfi_startproc",
    "hint #34", // bti c
    "stp x29, x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x29, -16",
    ".cfi_offset x30, -8",
    "mov x29, sp",
    ".cfi_def_cfa x29, 16",
    "mov sp, x0",
    "mov x0, x2",
    "blr x1",
    "mov sp, x29",
    ".cfi_def_cfa sp, 16",
    "ldp x29, x30, [sp], #16",
    ".cfi_restore x29",
    ".cfi_restore x30",
    ".cfi_def_cfa_offset 0",
    "ret",
    ".cfi_endproc",
    ".size allocsample_call_on_stack, . - allocsample_call_on_stack",
    ".popsection",
);
