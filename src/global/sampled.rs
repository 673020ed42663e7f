//! The allocator: fast paths, and what they do when a sample is due.
//!
//! It does what the C shim does for `malloc` (`c_shim/interpose.c`), with one difference. The drain thread is a thread of this
//! program, and its own allocations come here too. It never has a grant, so all of them take the slow path, which sends
//! them to memory of our own.

use std::alloc::{GlobalAlloc, Layout};

use allocsample_agent::{Allocation, ShimThread, make_room};
use allocsample_front::{KeepErrno, here};

use crate::thread::this_thread;
use crate::{AGENT, FILTER, MEMORY, start};

/// Wraps a global allocator: samples what it allocates, and follows every sampled block until it is freed.
///
/// While sampling is off it costs a comparison and a subtraction for each allocation, and the test of a flag for each free.
#[derive(Debug, Default)]
pub struct Sampled<A>(A);

impl<A> Sampled<A> {
    /// Wraps `allocator`.
    pub const fn new(allocator: A) -> Self {
        Self(allocator)
    }
}

// SAFETY: every block comes from the wrapped allocator and goes back to it, with the layout that it was allocated with; those of
// the drain thread, which allocates and frees on its own, come from and go to `MEMORY`.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Sampled<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if this_thread().charge(layout.size() as u64) {
            // SAFETY: the caller's promise.
            return unsafe { self.0.alloc(layout) };
        }
        // SAFETY: the caller's promise.
        unsafe { alloc_due(&self.0, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if this_thread().charge(layout.size() as u64) {
            // SAFETY: the caller's promise.
            return unsafe { self.0.alloc_zeroed(layout) };
        }
        // SAFETY: the caller's promise.
        unsafe { alloc_zeroed_due(&self.0, layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // While sampling is off the table stays out of the cache.
        if start::is_started()
            && (FILTER.may_hold(block.addr() as u64) || this_thread().is_of_the_agent())
        {
            // SAFETY: the caller's promise.
            return unsafe { dealloc_due(&self.0, block, layout) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.0.dealloc(block, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let may_be_sampled = start::is_started() && FILTER.may_hold(block.addr() as u64);
        if !may_be_sampled && this_thread().charge(size as u64) {
            // SAFETY: the caller's promise.
            return unsafe { self.0.realloc(block, layout, size) };
        }
        // SAFETY: the caller's promise.
        unsafe { realloc_due(&self.0, block, layout, size) }
    }
}

/// # Safety
/// As for [`GlobalAlloc::alloc`].
#[cold]
#[inline(never)]
unsafe fn alloc_due<A: GlobalAlloc>(allocator: &A, layout: Layout) -> *mut u8 {
    let thread = this_thread();
    if thread.is_of_the_agent() {
        // SAFETY: the caller's promise.
        return unsafe { MEMORY.alloc(layout) };
    }
    // SAFETY: the caller's promise.
    let block = unsafe { allocator.alloc(layout) };
    after_alloc(thread, block, layout.size(), false);
    block
}

/// # Safety
/// As for [`GlobalAlloc::alloc_zeroed`].
#[cold]
#[inline(never)]
unsafe fn alloc_zeroed_due<A: GlobalAlloc>(allocator: &A, layout: Layout) -> *mut u8 {
    let thread = this_thread();
    if thread.is_of_the_agent() {
        // SAFETY: the caller's promise.
        return unsafe { MEMORY.alloc_zeroed(layout) };
    }
    // SAFETY: the caller's promise.
    let block = unsafe { allocator.alloc_zeroed(layout) };
    after_alloc(thread, block, layout.size(), false);
    block
}

/// # Safety
/// As for [`GlobalAlloc::dealloc`].
#[cold]
#[inline(never)]
unsafe fn dealloc_due<A: GlobalAlloc>(allocator: &A, block: *mut u8, layout: Layout) {
    let thread = this_thread();
    if thread.is_of_the_agent() {
        // SAFETY: the drain thread frees what it has allocated.
        return unsafe { MEMORY.dealloc(block, layout) };
    }
    before_free(thread, AGENT.take_sampled(block.addr() as u64));
    // SAFETY: the caller's promise.
    unsafe { allocator.dealloc(block, layout) };
}

/// # Safety
/// As for [`GlobalAlloc::realloc`].
#[cold]
#[inline(never)]
unsafe fn realloc_due<A: GlobalAlloc>(
    allocator: &A,
    block: *mut u8,
    layout: Layout,
    size: usize,
) -> *mut u8 {
    let thread = this_thread();
    if thread.is_of_the_agent() {
        // SAFETY: the drain thread reallocates what it has allocated.
        return unsafe { MEMORY.realloc(block, layout, size) };
    }
    // Taken out first: another thread may have the old address before the call returns.
    let taken = AGENT.take_sampled(block.addr() as u64);
    // SAFETY: the caller's promise.
    let moved = unsafe { allocator.realloc(block, layout, size) };
    if !moved.is_null() {
        before_free(thread, taken);
    } else if taken != 0 {
        AGENT.put_back(block.addr() as u64, taken);
    }
    after_alloc(thread, moved, size, true);
    moved
}

/// Charges an allocation for which the grant did not suffice, and asks the agent if it still does not. Inlined, so that the
/// stack begins at the allocator's function.
#[inline(always)]
fn after_alloc(thread: &ShimThread, block: *mut u8, size: usize, is_realloc: bool) {
    if block.is_null() {
        return;
    }
    if !start::is_started() {
        thread.look_again_later();
        return;
    }
    make_room();
    let size = size as u64;
    // A look at the agent's state, an allocation of another function or a filter's mark may have led here.
    if thread.charge(size) {
        return;
    }
    let _errno = KeepErrno::save();
    let allocation = Allocation {
        address: block.addr() as u64,
        size,
        charged: size,
        is_realloc: u32::from(is_realloc),
        has_own_frame: 0,
        caller: here(),
    };
    let _sampled = AGENT.on_alloc(thread, &allocation);
}

/// Records the end of a block, if it was a sample: `taken` is what [`allocsample_agent::Agent::take_sampled`] returned.
#[inline(always)]
fn before_free(thread: &ShimThread, taken: u64) {
    if taken != 0 {
        let _errno = KeepErrno::save();
        AGENT.on_free(thread, taken, &here());
    }
}
