//! Reads the settings before `main` and ends the profile at an exit.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use allocsample_agent::{Agent, Forking, ShimThread};
use allocsample_front::{Front, KeepErrno, MARK, Mark, OwnAllocator, here, switch_on_if_asked};
use allocsample_record::ExitHow;

use crate::thread::this_thread;
use crate::{AGENT, MEMORY};

unsafe extern "C" {
    static environ: *const *const c_char;
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
    fn atexit(handler: extern "C" fn()) -> c_int;
}

/// This crate, for what it shares with `liballocsample.so`.
pub enum Global {}

/// Of the drain thread. musl's default is 128 KiB.
const MUSL_STACK_BYTES: usize = 1 << 20;

impl Front for Global {
    fn agent() -> &'static Agent {
        &AGENT
    }

    fn this_thread() -> &'static ShimThread {
        this_thread()
    }

    fn memory() -> &'static OwnAllocator {
        &MEMORY
    }

    fn drain_stack_bytes() -> Option<usize> {
        cfg!(target_env = "musl").then_some(MUSL_STACK_BYTES)
    }
}

#[used]
#[unsafe(link_section = ".note.allocsample")]
static MARK_OF_PROGRAM: Mark = MARK;

/// Before `main`, when there is one thread.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

static IS_STARTED: AtomicBool = AtomicBool::new(false);

/// Whether the agent was ever switched on.
#[inline]
pub fn is_started() -> bool {
    IS_STARTED.load(Ordering::Relaxed)
}

extern "C" fn construct() {
    std::hint::black_box(&MARK_OF_PROGRAM);
    // SAFETY: libc has set `environ` before the program's constructors: an array of C strings that ends in NULL. Only `setenv`
    // and its kin change it, and nothing has called them.
    if !unsafe { switch_on_if_asked::<Global>(environ, symbol) } {
        return;
    }
    IS_STARTED.store(true, Ordering::Relaxed);
    // SAFETY: functions of ours, which stay loaded.
    unsafe {
        pthread_atfork(
            Some(before_fork),
            Some(after_fork_in_parent),
            Some(after_fork_in_child),
        );
        atexit(on_exit);
    }
    this_thread().forget();
}

extern "C" fn on_exit() {
    AGENT.on_exit(this_thread(), &here(), ExitHow::Exit, None, &[]);
}

thread_local! {
    /// What the thread was at when it forked.
    static FORKING: Cell<Forking> = const { Cell::new(Forking::Unnoticed) };
}

extern "C" fn before_fork() {
    let _errno = KeepErrno::save();
    FORKING.set(AGENT.before_fork(this_thread(), &here()));
}

extern "C" fn after_fork_in_parent() {
    let _errno = KeepErrno::save();
    // libc says neither the child's number nor whether there is one.
    const UNKNOWN_CHILD: i32 = -1;
    AGENT.after_fork(this_thread(), UNKNOWN_CHILD, FORKING.get());
}

extern "C" fn after_fork_in_child() {
    let _errno = KeepErrno::save();
    AGENT.after_fork(this_thread(), 0, FORKING.get());
}

/// What the process has under this name; NULL if it has nothing.
fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a lookup by name.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}
