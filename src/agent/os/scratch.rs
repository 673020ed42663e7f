//! Work areas with a stack of their own, so that a sample costs the program's stack a few hundred bytes.
//!
//! An area belongs to a sample in progress, not to a thread. But a thread comes back to the area that it used last, if it
//! can, for what is remembered there of its stack; so that there are as many as threads sample, up to a limit, and beyond
//! it as many as samples were ever taken at the same time.

use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::{memory, safe_read};

/// Stack for the agent's own code, and for signal handlers that interrupt it.
const STACK_BYTES: usize = 256 * 1024;
const GUARD_BYTES: usize = 4096;
const MAX_AREAS: usize = 1024;
/// Up to here a thread that samples for the first time gets an area of its own. About 60 KiB of each are touched.
const OWN_AREAS: usize = 32;
/// In a thread's own note of the area that it used last: it is at work there.
const AT_WORK: u32 = 1 << 31;

/// Areas of one type `A`, at most 1,024.
pub struct Pool<A: 'static> {
    areas: [AtomicPtr<A>; MAX_AREAS],
    uses: [Use; MAX_AREAS],
    made: AtomicU32,
    /// Areas that were left by a jump and are not in use again, at least.
    left: AtomicU32,
    stays: AtomicBool,
}

/// The use of an area. In a cache line of its own: each sample writes it twice.
#[repr(align(64))]
struct Use {
    /// [`BUSY`] at first: a new area belongs to the thread that made it, until it is pushed.
    state: AtomicU8,
    /// Where the user has noted the area's address in its frame on the program's stack.
    noted_at: AtomicU64,
}

/// Nobody uses it.
const FREE: u8 = 0;
/// Somebody does.
const BUSY: u8 = 1;
/// The user has left by a jump, and may come back.
const LEFT: u8 = 2;
/// The same, while another thread finds out whether it can come back.
const LOOKED_AT: u8 = 3;

impl Use {
    const fn new() -> Self {
        Self {
            state: AtomicU8::new(BUSY),
            noted_at: AtomicU64::new(0),
        }
    }

    fn take(&self) -> bool {
        self.state.load(Ordering::Relaxed) == FREE && self.change(FREE, BUSY)
    }

    /// False: it was in another state.
    fn change(&self, from: u8, to: u8) -> bool {
        // Acquire and release: what the previous owner wrote is done.
        let changed = (self.state).compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        changed.is_ok()
    }
}

/// A type whose values can live in a work area, which begins as zeros.
///
/// # Safety
/// All zero bytes are a valid value of the type.
pub unsafe trait Zeroed {
    /// Resets the value: its last user was interrupted and did not finish.
    fn forget(&mut self);
}

impl<A: Zeroed> Pool<A> {
    /// No areas yet.
    pub const fn new() -> Self {
        Self {
            areas: [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_AREAS],
            uses: [const { Use::new() }; MAX_AREAS],
            made: AtomicU32::new(0),
            left: AtomicU32::new(0),
            stays: AtomicBool::new(false),
        }
    }

    /// From now on [`Self::run`] stays on the program's stack: whoever stops a thread by a signal takes all from its stack
    /// pointer up to its base for its stack.
    pub fn stay(&self) {
        self.stays.store(true, Ordering::Relaxed);
    }

    /// Whether [`Self::run`] stays on the program's stack.
    pub fn stays(&self) -> bool {
        self.stays.load(Ordering::Relaxed)
    }

    /// Runs `work` with an area, on the area's stack (see [`Self::stay`]). `None`: there is no memory for one. `last_used` is
    /// the thread's own, for this pool alone; it starts as 0.
    ///
    /// Any thread; must not be entered again by a signal handler on the same thread more often than there are areas.
    pub fn run<R, F: FnOnce(&mut A) -> R>(&self, last_used: &Cell<u32>, work: F) -> Option<R> {
        self.run_on(self.stays(), Some(last_used), work)
    }

    /// As [`Self::run`], on a thread that does it once: it takes an area that is there, if nobody is at work in one, and
    /// gets none of its own.
    pub fn run_once<R, F: FnOnce(&mut A) -> R>(&self, work: F) -> Option<R> {
        self.run_on(self.stays(), None, work)
    }

    /// As [`Self::run`], and always on the area's stack. While signals are blocked.
    pub fn run_aside<R, F: FnOnce(&mut A) -> R>(
        &self,
        last_used: &Cell<u32>,
        work: F,
    ) -> Option<R> {
        self.run_on(false, Some(last_used), work)
    }

    fn run_on<R, F: FnOnce(&mut A) -> R>(
        &self,
        stays: bool,
        last_used: Option<&Cell<u32>>,
        work: F,
    ) -> Option<R> {
        let index = last_used
            .and_then(|last_used| self.take_last(last_used))
            .or_else(|| self.pop())
            .or_else(|| self.reclaim())
            .or_else(|| self.make())?;
        let area = self.areas.get(index)?.load(Ordering::Acquire);
        if area.is_null() {
            // A signal handler has just forked, and this is the child.
            return None;
        }
        let place = self.uses.get(index)?;
        // A signal handler on a thread that is at work in another area leaves the note alone.
        let noted = last_used.filter(|last_used| last_used.get() & AT_WORK == 0);
        if let Some(noted) = noted {
            noted.set(AT_WORK | (index as u32 + 1));
        }
        let mut job = Job {
            work: Some(work),
            area,
            result: None,
        };
        let noted_at = (&raw const job.area).expose_provenance() as u64;
        place.noted_at.store(noted_at, Ordering::Relaxed);
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
        if let Some(noted) = noted {
            noted.set(index as u32 + 1);
        }
        self.push(index, area);
        job.result
    }

    /// Forgets all areas: in a forked child some belong to threads that do not exist here. One that this thread was at work
    /// in before the fork stays its own, for as long as it goes on there.
    pub fn forget(&self) {
        self.made.store(0, Ordering::Relaxed);
        self.left.store(0, Ordering::Relaxed);
        for (place, area) in self.uses.iter().zip(&self.areas) {
            place.state.store(BUSY, Ordering::Relaxed);
            area.store(core::ptr::null_mut(), Ordering::Relaxed);
        }
    }

    /// Whether `sp` is on the stack of the area that the calling thread is at work in: only from there does anybody come to
    /// such a place, so the thread has not left the area.
    pub fn is_at_work_at(&self, last_used: &Cell<u32>, sp: u64) -> bool {
        let noted = last_used.get();
        let index = ((noted & !AT_WORK) as usize).checked_sub(1);
        let area = index.and_then(|index| self.areas.get(index));
        let area = area.map_or(0, |area| area.load(Ordering::Relaxed).addr() as u64);
        noted & AT_WORK != 0 && area != 0 && (area - STACK_BYTES as u64..area).contains(&sp)
    }

    /// The calling thread has left the area that it was at work in by a jump, and takes another one. For all that is known it
    /// may come back.
    pub fn leave(&self, last_used: &Cell<u32>) {
        let noted = last_used.get();
        if noted & AT_WORK == 0 {
            return;
        }
        last_used.set(0);
        let index = ((noted & !AT_WORK) as usize).checked_sub(1);
        if index
            .and_then(|index| self.uses.get(index))
            .is_some_and(|place| place.change(BUSY, LEFT))
        {
            self.left.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An area that somebody has left, and to which nobody can come back, which is ours then.
    fn reclaim(&self) -> Option<usize> {
        if self.left.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let made = self.made.load(Ordering::Relaxed) as usize;
        let index = self.uses.iter().take(made).enumerate();
        let index = index.into_iter().find_map(|(index, place)| {
            if place.state.load(Ordering::Relaxed) != LEFT || !place.change(LEFT, LOOKED_AT) {
                return None;
            }
            let next = if self.is_forsaken(index, place) {
                BUSY
            } else {
                LEFT
            };
            // Its user may have come back meanwhile, and has given it back then.
            (place.change(LOOKED_AT, next) && next == BUSY).then_some(index)
        })?;
        self.left.fetch_sub(1, Ordering::Relaxed);
        let mut area = NonNull::new(self.areas.get(index)?.load(Ordering::Acquire))?;
        // SAFETY: an area of ours that was marked as left, and whose user's frame is no more. We have claimed it.
        unsafe { area.as_mut() }.forget();
        Some(index)
    }

    /// Whether the frame from which this area is used is gone for good: while it exists nobody else writes there.
    fn is_forsaken(&self, index: usize, place: &Use) -> bool {
        let area = self.areas.get(index);
        let area = area.map(|area| area.load(Ordering::Relaxed).addr() as u64);
        let mut noted = [0; 8];
        safe_read::copy_if_mapped(place.noted_at.load(Ordering::Relaxed), &mut noted)
            && Some(u64::from_ne_bytes(noted)) != area
    }

    /// The area that the thread used last, or a new one at its first time.
    fn take_last(&self, last_used: &Cell<u32>) -> Option<usize> {
        if last_used.get() & AT_WORK != 0 {
            return None;
        }
        match (last_used.get() as usize).checked_sub(1) {
            Some(index) => self.uses.get(index)?.take().then_some(index),
            None => self.reclaim().or_else(|| {
                let has_own = self.made.load(Ordering::Relaxed) < OWN_AREAS as u32;
                has_own.then(|| self.make()).flatten()
            }),
        }
    }

    /// An area that nobody uses, which is ours then.
    fn pop(&self) -> Option<usize> {
        let made = self.made.load(Ordering::Relaxed) as usize;
        self.uses.iter().take(made).position(Use::take)
    }

    /// Returns an area to the pool, unless the process was forked since: then it is not one of this pool.
    fn push(&self, index: usize, area: *mut A) {
        let place = self.areas.get(index);
        let is_here = place.is_some_and(|place| place.load(Ordering::Relaxed) == area);
        if let Some(place) = self.uses.get(index).filter(|_| is_here) {
            // Somebody who has left and come back has it no more, either.
            if !place.change(BUSY, FREE) && place.state.swap(FREE, Ordering::AcqRel) != BUSY {
                self.left.fetch_sub(1, Ordering::Relaxed);
            }
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

#[cfg(test)]
mod tests;
