//! Start and stop: the library's constructor and destructor, and the threads' ends.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use allocsample_agent::config::Config;
use allocsample_agent::os::file::{complain, is_writable_directory};
use allocsample_agent::os::{self, memory, process};
use allocsample_agent::recording::{self, DrainState};
use allocsample_agent::{Hooks, Start};
use allocsample_record::ExitHow;

use crate::slow_path::this_thread;
use crate::{AGENT, ALLOCATOR, slow_path};

unsafe extern "C" {
    fn shim_find_next();
    fn shim_next_malloc_address() -> *const c_void;
    fn shim_own_malloc_address() -> *const c_void;
}

/// Entry of `.init_array`. With `-z initfirst` it runs before any other object's, and before libc has set `environ`:
/// the environment comes from the arguments, which glibc passes to every constructor.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) = construct;

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destroy;

unsafe extern "C" fn construct(_count: c_int, _arguments: *const *const c_char, environment: *const *const c_char) {
    // SAFETY: finds the next allocator before anything of ours can need it.
    unsafe { shim_find_next() };
    let lookup = |name: &str| {
        // SAFETY: glibc passes the environment, an array of C strings that ends in NULL.
        unsafe { find_variable(environment, name) }
    };
    let mut buffer = [0; 4096];
    let config = match Config::read(lookup, process::working_directory(&mut buffer)) {
        Ok(config) => config,
        Err(error) => {
            let parts: [&[u8]; 7] = [
                b"allocsample: ",
                error.name.as_bytes(),
                b"=",
                error.value,
                b": ",
                error.expected.as_bytes(),
                b"; the program runs without a profile\n",
            ];
            return complain(&parts);
        }
    };
    if config.interval.is_none() {
        return;
    }
    if let Err(reason) = is_writable_directory(config.output.directory().as_c_str()) {
        let reason: &[u8] = match reason.0 {
            libc::ENOENT | libc::ENOTDIR => b"no such directory",
            libc::EROFS => b"the file system is read-only",
            _ => b"no files can be created there",
        };
        let directory = config.output.directory();
        let parts: [&[u8]; 5] =
            [b"allocsample: ", directory.as_bytes(), b": ", reason, b"; the program runs without a profile\n"];
        return complain(&parts);
    }
    // SAFETY: addresses of functions.
    let (next_malloc, own_malloc) = unsafe { (shim_next_malloc_address(), shim_own_malloc_address()) };
    // SAFETY: a lookup by name in the program's global scope.
    let first_malloc = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
    let start = Start {
        config,
        hooks: Hooks { start_drain, join_drain, on_thread_joined, after_fork_in_child },
        next_allocator: module_of(next_malloc),
        malloc_elsewhere: (!std::ptr::eq(first_malloc, own_malloc)).then(|| module_of(first_malloc)),
    };
    let Some(start) = memory::leak(start) else { return };
    find_loader_facts();
    // SAFETY: creates a key with a function of ours as its destructor.
    let result = unsafe { libc::pthread_key_create(&raw mut key, Some(on_thread_end)) };
    let _ = result;
    THREAD_KEY.store(key, Ordering::Relaxed);
    AGENT.switch_on(start);
    slow_path::install();
}

extern "C" fn destroy() {
    AGENT.on_exit(this_thread(), ExitHow::Exit, None, &[]);
}
