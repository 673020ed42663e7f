//! An agent that is a part of the program: it is switched on before `main`, and finds the modules by itself.
//!
//! The global allocator for Rust programs (`global`) and the archive for C programs (`archive`) are such agents.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use allocsample_agent::os::{self, clock, leaked, vdso};
use allocsample_agent::stack::modules::FindObject;
use allocsample_agent::{Agent, Start};

use crate::settings::{called_as, entries, has_more_rights_than_its_caller, read as read_settings};
use crate::threads::{Front, hooks, make_thread_key};

/// Finds what the process has under a name; NULL if it has nothing.
pub type Lookup = fn(&CStr) -> *mut c_void;

/// An ELF note, which `strip` and the linker's garbage collection keep. By its section, `.note.allocsample`, `allocsample run`
/// recognises a program that profiles itself: it then preloads nothing.
#[repr(C, align(4))]
pub struct Mark {
    name_bytes: u32,
    description_bytes: u32,
    kind: u32,
    name: [u8; 12],
}

/// The only one.
pub const MARK: Mark = Mark {
    name_bytes: 12,
    description_bytes: 0,
    kind: 1,
    name: *b"allocsample\0",
};

/// Switches the agent on, if the environment asks for a profile. Before `main`, when there is one thread.
///
/// # Safety
/// `environment` is NULL, or an array of C strings, which live for ever, and NULL.
pub unsafe fn switch_on_if_asked<F: Front>(
    environment: *const *const c_char,
    symbol: Lookup,
) -> bool {
    // SAFETY: the caller's promise.
    let is_asked_for = unsafe { entries(environment) }.any(|entry| {
        entry.starts_with(b"ALLOCSAMPLE_OUTPUT=") || entry.starts_with(b"ALLOCSAMPLE_INTERVAL=")
    });
    if !is_asked_for || has_more_rights_than_its_caller() {
        return false;
    }
    let program = Program::find();
    // An agent that is preloaded sees the same blocks where they come from malloc.
    if program.has_loader && !symbol(c"allocsample_attach").is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let Some((config, unknown_setting)) = (unsafe { read_settings(environment) }) else {
        return false;
    };
    static START: leaked::Retired<Start> = leaked::Retired::new();
    let start = Start {
        config,
        hooks: hooks::<F>(),
        program: called_as(),
        next_allocator: called_as(),
        malloc_elsewhere: None,
        unknown_setting,
    };
    let Some(start) = leaked::leak_again(START.take(clock::monotonic_ns()), start) else {
        return false;
    };
    ask_loader(F::agent(), &program, symbol);
    make_thread_key::<F>();
    F::agent().switch_on(start);
    true
}

/// How the agent finds the modules that stacks run through.
fn ask_loader(agent: &Agent, program: &Program, symbol: Lookup) {
    let modules = agent.modules();
    modules.set_program_range(program.range.clone());
    // SAFETY: the auxiliary vector has the address of the vDSO, or nothing.
    if let Some(clock) = unsafe { vdso::clock_gettime(libc::getauxval(libc::AT_SYSINFO_EHDR)) } {
        clock::set_source(clock);
    }
    // The kernel puts these bytes above the main thread's first frame.
    // SAFETY: reads the auxiliary vector.
    os::set_main_stack_end(unsafe { libc::getauxval(libc::AT_RANDOM) });
    if !program.has_loader {
        modules.set_list(program.list());
        modules.set_permanent(&[program.range.start]);
        return;
    }
    let find_object = symbol(c"_dl_find_object");
    // glibc's name, and musl's.
    let names = [c"_r_debug", c"_dl_debug_addr"];
    let [of_glibc, of_musl] = names.map(symbol);
    let rendezvous = match of_musl.is_null() {
        true => of_glibc.cast_const(),
        // SAFETY: musl's variable of that name is a pointer.
        false => unsafe { *of_musl.cast::<*const c_void>() },
    };
    if find_object.is_null() {
        modules.set_list(rendezvous.addr());
    } else {
        // SAFETY: this is the type of glibc's function of that name.
        modules.set_find_object(unsafe {
            std::mem::transmute::<*mut c_void, FindObject>(find_object)
        });
    }
    let others = [c"getauxval", c"pthread_getconcurrency"].map(symbol);
    let [libc, threads] = others.map(|address| address.addr() as u64);
    let loader = rendezvous.addr() as u64;
    let own = program.range.start;
    // The wrapped allocator is done when the agent is called.
    let locking = [libc, threads, loader, libc, libc];
    modules.set_permanent(&[libc, threads, loader, own]);
    agent.locking_code().set(modules, locking);
}

/// Where the program is.
struct Program {
    range: Range<u64>,
    bias: u64,
    dynamic: u64,
    /// Whether a dynamic loader has loaded it, which keeps a list of modules.
    has_loader: bool,
}

impl Program {
    fn find() -> Self {
        let mut program = Self {
            range: 0..0,
            bias: 0,
            dynamic: 0,
            has_loader: true,
        };
        // SAFETY: the function gets the pointer that is passed here, and is done with it before the call returns.
        unsafe { libc::dl_iterate_phdr(Some(of_first), (&raw mut program).cast()) };
        program
    }

    /// The address of a list as a loader would keep it: that of a static program, which has none.
    fn list(&self) -> usize {
        /// `struct link_map`: bias, name, dynamic section, next, previous.
        static ENTRY: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];
        /// `struct r_debug`: version, first entry.
        static LIST: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];
        let [bias, name, dynamic, ..] = &ENTRY;
        bias.store(self.bias, Ordering::Relaxed);
        let empty = c"".as_ptr().expose_provenance();
        name.store(empty as u64, Ordering::Relaxed);
        dynamic.store(self.dynamic, Ordering::Relaxed);
        let [version, first, ..] = &LIST;
        version.store(1, Ordering::Relaxed);
        let entry = ENTRY.as_ptr().expose_provenance();
        first.store(entry as u64, Ordering::Relaxed);
        LIST.as_ptr().expose_provenance()
    }
}

/// Describes the first object, which is the program.
unsafe extern "C" fn of_first(
    object: *mut libc::dl_phdr_info,
    _bytes: usize,
    program: *mut c_void,
) -> c_int {
    // SAFETY: libc's structure, and the program that `Program::find` passes.
    let (object, program) = unsafe { (&*object, &mut *program.cast::<Program>()) };
    // SAFETY: so many headers are there.
    let headers =
        unsafe { std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
    program.bias = object.dlpi_addr;
    program.has_loader = headers
        .iter()
        .any(|header| header.p_type == libc::PT_INTERP);
    let (mut low, mut high) = (u64::MAX, 0);
    for header in headers {
        let place = object.dlpi_addr.wrapping_add(header.p_vaddr);
        match header.p_type {
            libc::PT_LOAD => {
                low = low.min(place);
                high = high.max(place.wrapping_add(header.p_memsz));
            }
            libc::PT_DYNAMIC => program.dynamic = place,
            _ => {}
        }
    }
    if low < high {
        program.range = low & !0xFFF..high;
    }
    1
}
