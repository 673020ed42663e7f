//! The drain thread's start and end, and the ends of the program's threads.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use allocsample_agent::os::{self, clock, process};
use allocsample_agent::recording::{self, DrainState, Recording};
use allocsample_agent::{Agent, Hooks, ShimThread};
use allocsample_record::Note;

use crate::own_allocator::{OwnAllocator, Shortage, is_reserve_low};

/// A library around the agent.
pub trait Front: 'static {
    /// The agent of this process.
    fn agent() -> &'static Agent;
    /// The calling thread's state.
    fn this_thread() -> &'static ShimThread;
    /// Where our own Rust code has its memory.
    fn memory() -> &'static OwnAllocator;
    /// Bytes of the drain thread's stack; `None` for the C library's default, if that is known to suffice.
    fn drain_stack_bytes() -> Option<usize>;
}

/// The functions that the agent gets from any such library; a library that has more to offer replaces some.
pub const fn hooks<F: Front>() -> Hooks {
    Hooks {
        start_drain: start_drain::<F>,
        compress: allocsample_drain::compress,
        join_drain,
        leave_drain,
        on_thread_joined,
        after_fork_in_child: after_fork_in_child::<F>,
        ..Hooks::NONE
    }
}

/// libc's handle of a thread, as a number.
#[cfg(target_env = "gnu")]
fn number_of(thread: libc::pthread_t) -> u64 {
    thread
}

/// libc's handle of a thread, as a number.
#[cfg(not(target_env = "gnu"))]
fn number_of(thread: libc::pthread_t) -> u64 {
    thread.expose_provenance() as u64
}

/// Undoes [`number_of`].
#[cfg(target_env = "gnu")]
fn thread_of(number: u64) -> libc::pthread_t {
    number
}

/// Undoes [`number_of`].
#[cfg(not(target_env = "gnu"))]
fn thread_of(number: u64) -> libc::pthread_t {
    std::ptr::with_exposed_provenance_mut(number as usize)
}

/// The key plus one; 0 for none.
static THREAD_KEY: AtomicU32 = AtomicU32::new(0);

/// Makes the key by which libc reports the ends of threads, unless there is one. Before the agent is switched on.
pub fn make_thread_key<F: Front>() {
    if THREAD_KEY.load(Ordering::Relaxed) != 0 {
        return;
    }
    let mut key = 0;
    // SAFETY: makes a key whose destructor is a function of ours.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(on_thread_end::<F>)) } == 0 {
        THREAD_KEY.store(key + 1, Ordering::Relaxed);
    }
}

/// libc calls the key's destructor when the thread ends, if its value is set. A thread that allocates in a later
/// destructor joins again and sets it again.
fn on_thread_joined() {
    if let Some(key) = THREAD_KEY.load(Ordering::Relaxed).checked_sub(1) {
        // SAFETY: the key exists. Any value but NULL will do.
        unsafe { libc::pthread_setspecific(key, std::ptr::without_provenance(1)) };
    }
}

unsafe extern "C" fn on_thread_end<F: Front>(_value: *mut c_void) {
    F::agent().on_thread_end(F::this_thread());
}

fn start_drain<F: Front>(recording: &Recording) -> bool {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    let mut thread = thread_of(0);
    // SAFETY: the sets are writable and filled before use. Our thread inherits the full mask: no signal of the program
    // is ever delivered to it.
    let result = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let mut attributes = std::mem::MaybeUninit::uninit();
        libc::pthread_attr_init(attributes.as_mut_ptr());
        if let Some(bytes) = F::drain_stack_bytes() {
            libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), bytes);
        }
        let result = libc::pthread_create(
            &raw mut thread,
            attributes.as_ptr(),
            drain_main::<F>,
            std::ptr::from_ref(recording).cast_mut().cast(),
        );
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        result
    };
    if result == 0 {
        recording.set_drain_thread(number_of(thread));
    }
    result == 0
}

/// Detaches the drain thread: libc frees its stack when it ends.
fn leave_drain(recording: &Recording) {
    let thread = recording.take_drain_thread();
    if thread != 0 {
        // SAFETY: a thread that we made, and have neither joined nor detached.
        unsafe { libc::pthread_detach(thread_of(thread)) };
    }
}

fn join_drain(recording: &Recording) {
    let thread = recording.take_drain_thread();
    if thread == 0 {
        return;
    }
    if os::is_filtered() {
        join_silently(thread_of(thread));
        return;
    }
    // SAFETY: a thread that we made and have not joined.
    unsafe { libc::pthread_join(thread_of(thread), std::ptr::null_mut()) };
    // libc's view: its stack is free. The kernel counts the thread a little longer, and it is the kernel that is
    // going to be asked.
    process::wait_until_gone(recording.drain_tid());
}

/// Behind a filter of system calls, which `pthread_join` may make; and it asks no kernel. The thread is at its end.
fn join_silently(thread: libc::pthread_t) {
    const PATIENCE_MS: u32 = 1_000;
    let patience = clock::Patience::of_ms(PATIENCE_MS);
    // SAFETY: a thread that we made and have not joined. glibc asks the kernel only when the thread is gone, and then for
    // nothing but to have its stack unmapped.
    while unsafe { libc::pthread_tryjoin_np(thread, std::ptr::null_mut()) } != 0
        && patience.left_ms().is_some()
    {
        std::hint::spin_loop();
    }
}

extern "C" fn drain_main<F: Front>(recording: *mut c_void) -> *mut c_void {
    // What libc allocates for this thread is none of the program's doing.
    F::this_thread().mute_for_good();
    // SAFETY: a recording, as `start_drain` passes it; these are never dropped.
    let recording: &'static Recording = unsafe { &*recording.cast() };
    recording.set_drain_tid(process::tid());
    let state = match std::panic::catch_unwind(|| allocsample_drain::run(F::agent(), recording)) {
        Ok(Ok(())) => DrainState::Done,
        Ok(Err(_)) | Err(_) => DrainState::Failed,
    };
    recording.set_drain_state(state);
    recording.let_go();
    std::ptr::null_mut()
}

/// The kernel has no memory for us. The drain thread can wait: the program may give some back. If it does not, the
/// thread ends where it stands, which leaves the ring to the reader. A thread of the program uses the reserve.
pub fn on_shortage<F: Front>(attempt: u32) -> Shortage {
    const ATTEMPTS: u32 = 20;
    const PAUSE_MS: u32 = 10;
    let Some(recording) = recording::with_drain_thread(process::tid()) else {
        if is_reserve_low() {
            F::agent().fail_for_lack_of_memory();
        }
        return Shortage::UseReserve;
    };
    if attempt < ATTEMPTS {
        clock::sleep_ms(PAUSE_MS);
        return Shortage::TryAgain;
    }
    recording.note(Note::NoDrainThread, b"it ran out of memory");
    recording.set_drain_state(DrainState::Failed);
    recording.let_go();
    process::end_this_thread()
}

fn after_fork_in_child<F: Front>() {
    F::memory().abandon();
}
