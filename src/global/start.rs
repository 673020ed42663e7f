//! Reads the settings before `main` and ends the profile at an exit.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use allocsample_agent::os::{self, clock, memory, vdso};
use allocsample_agent::stack::modules::FindObject;
use allocsample_agent::{Agent, Forking, ShimThread, Start};
use allocsample_front::{
    Front, KeepErrno, OwnAllocator, called_as, entries, has_more_rights_than_its_caller, here,
    hooks, make_thread_key, read_settings,
};
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

/// By its section `allocsample run` recognises a program that profiles itself: it then preloads nothing.
#[used]
#[unsafe(link_section = ".note.allocsample")]
static MARK: Note = Note {
    name_bytes: 12,
    description_bytes: 0,
    kind: 1,
    name: *b"allocsample\0",
};

/// An ELF note, which `strip` and the linker's garbage collection keep.
#[repr(C, align(4))]
struct Note {
    name_bytes: u32,
    description_bytes: u32,
    kind: u32,
    name: [u8; 12],
}

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
    std::hint::black_box(&MARK);
    // SAFETY: libc has set it before the program's constructors.
    let environment = unsafe { environ };
    // SAFETY: an array of C strings that ends in NULL; only `setenv` and its kin change it, and nothing has called them.
    let is_asked_for = unsafe { entries(environment) }.any(|entry| {
        entry.starts_with(b"ALLOCSAMPLE_OUTPUT=") || entry.starts_with(b"ALLOCSAMPLE_INTERVAL=")
    });
    if !is_asked_for || has_more_rights_than_its_caller() {
        return;
    }
    let program = Program::find();
    // An agent that is preloaded sees the same blocks where they come from malloc.
    if program.has_loader && !symbol(c"allocsample_get_hooks").is_null() {
        return;
    }
    // SAFETY: as above.
    let Some((config, unknown_setting)) = (unsafe { read_settings(environment) }) else {
        return;
    };
    static START: memory::Retired<Start> = memory::Retired::new();
    let start = Start {
        config,
        hooks: hooks::<Global>(),
        program: called_as(),
        next_allocator: called_as(),
        malloc_elsewhere: None,
        unknown_setting,
    };
    let Some(start) = memory::leak_again(START.take(clock::monotonic_ns()), start) else {
        return;
    };
    ask_loader(&program);
    make_thread_key::<Global>();
    AGENT.switch_on(start);
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

/// How the agent finds the modules that stacks run through.
fn ask_loader(program: &Program) {
    let modules = AGENT.modules();
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
    AGENT.locking_code().set(modules, locking);
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
