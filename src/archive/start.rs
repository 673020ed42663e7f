//! Reads the settings before `main`, and ends the profile at an exit.

use std::ffi::{CStr, c_char, c_void};

use allocsample_agent::{Agent, ShimThread};
use allocsample_boundary::{AGENT, allocsample_get_hooks, install, this_thread};
use allocsample_front::{Front, MARK, Mark, OwnAllocator, here, switch_on_if_asked};
use allocsample_record::ExitHow;

use crate::ALLOCATOR;

unsafe extern "C" {
    static environ: *const *const c_char;
    fn shim_symbol(name: *const c_char) -> *mut c_void;
}

/// This library, for what it shares with other libraries around the agent.
pub enum Archive {}

/// Of the drain thread. musl's default is 128 KiB.
const MUSL_STACK_BYTES: usize = 1 << 20;

impl Front for Archive {
    fn agent() -> &'static Agent {
        &AGENT
    }

    fn this_thread() -> &'static ShimThread {
        this_thread()
    }

    fn memory() -> &'static OwnAllocator {
        &ALLOCATOR
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

/// After the functions that the program has registered by `atexit`.
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destroy;

extern "C" fn construct() {
    std::hint::black_box((&MARK_OF_PROGRAM, allocsample_get_hooks as *const ()));
    // SAFETY: libc has set `environ` before the program's constructors: an array of C strings that ends in NULL. Only `setenv`
    // and its kin change it.
    if unsafe { switch_on_if_asked::<Archive>(environ, symbol) } {
        install();
        // Constructors that came before this one may have allocated.
        this_thread().forget();
    }
}

extern "C" fn destroy() {
    AGENT.on_exit(this_thread(), &here(), ExitHow::Exit, None, &[]);
}

/// What the process has under this name; NULL if it has nothing, as in a static program.
fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a lookup by name.
    unsafe { shim_symbol(name.as_ptr()) }
}
