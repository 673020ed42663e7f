//! The sampling state of the program's threads.

use allocsample_agent::ShimThread;

thread_local! {
    // Constant and without a destructor: to look at it never allocates, and it is there until the thread is gone.
    static THREAD: ShimThread = const { ShimThread::new() };
}

/// The calling thread's state.
#[inline]
pub fn this_thread() -> &'static ShimThread {
    THREAD.with(|thread| {
        // SAFETY: thread-local memory without a destructor outlives every use on this thread. `ShimThread` is not `Sync`, so the
        // reference stays on it.
        unsafe { &*std::ptr::from_ref(thread) }
    })
}
