//! The library's constructor and destructor.

use std::ffi::{CStr, c_char, c_int, c_void};

use allocsample_agent::config::{Bridges, Config, Inlining, UnknownSetting};
use allocsample_agent::hooks::Heap;
use allocsample_agent::os::file::complain;
use allocsample_agent::os::{self, clock, leaked, vdso};
use allocsample_agent::stack::modules::FindObject;
use allocsample_agent::{Agent, Hooks, KeptMapping, ShimThread, Start};
use allocsample_boundary::{self as boundary, AGENT, allocsample_get_hooks, this_thread};
use allocsample_front::{
    self as front, Front, KeepErrno, OwnAllocator, called_as, has_more_rights_than_its_caller,
    here, read_settings,
};
use allocsample_record::{ExitHow, HeapId, OwnFigure, ValueRecord};

use crate::{ALLOCATOR, attach, go};

unsafe extern "C" {
    fn shim_find_next();
    fn shim_find_functions();
    fn shim_redirect_extensions();
    fn shim_forget_failed_lookups();
    fn bridges_join(groups: u32);
    fn bridges_look(module: u64) -> bool;
    fn bridges_await(path: *const u8, length: usize) -> bool;
    fn bridges_count(own: *mut Own, room: usize) -> usize;
    fn bridges_have_scanning_collector() -> bool;
    fn bridges_declined(index: usize, found: *mut Declined) -> bool;
    fn shim_probe_alloc_is_on() -> bool;
    fn shim_probe_alloc(address: u64, size: u64, weighted_bytes: u64);
    fn shim_probe_free(address: u64);
    fn shim_next_malloc_address() -> *const c_void;
    fn shim_start_ticks(with_faults: bool) -> bool;
    fn shim_end_ticks();
    fn shim_may_stop_threads() -> bool;
    fn shim_note_handlers();
    fn shim_give_back_signal_stack(stack: *mut c_void);
    fn shim_find_object(address: *const c_void, found: *mut Object) -> bool;
    fn shim_is_definition(address: *const c_void) -> bool;
    fn shim_is_glibc() -> bool;
    fn shim_kept_mapping(index: usize, found: *mut KeptMapping) -> bool;
    fn shim_list_of_loader() -> *const c_void;
    static mut environ: *const *const c_char;
}

/// This library, for what it shares with other libraries around the agent.
pub(crate) enum Preload {}

/// Of the drain thread. musl's default is 128 KiB.
const MUSL_STACK_BYTES: usize = 1 << 20;

impl Front for Preload {
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
        // SAFETY: asks which C library this is.
        (!unsafe { shim_is_glibc() }).then_some(MUSL_STACK_BYTES)
    }
}

/// Entry of `.init_array`. With `-z initfirst` it runs before any other object's, and before libc has set `environ`:
/// the environment comes from the arguments, which glibc passes to every constructor.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) =
    construct;

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destroy;

unsafe extern "C" fn construct(
    _count: c_int,
    _arguments: *const *const c_char,
    environment: *const *const c_char,
) {
    if attach::is_to_wait() {
        return attach::prepare();
    }
    // A malloc of the program's own may read its settings when it is first called: the loader calls it where a symbol is missing.
    // SAFETY: this is the only thread, and glibc will set it to the same.
    unsafe {
        if shim_is_glibc() && environ.is_null() {
            environ = environment;
        }
    }
    // SAFETY: finds the next allocator, and the other functions that we stand before, before anything can need them.
    unsafe {
        shim_find_next();
        shim_find_functions();
    }
    if has_more_rights_than_its_caller() {
        return;
    }
    // SAFETY: 1. asks which C library this is; 2. musl sets `environ` before it calls constructors, and passes them nothing.
    let environment = unsafe {
        match shim_is_glibc() {
            true => environment,
            false => environ,
        }
    };
    // SAFETY: the environment is an array of C strings that ends in NULL.
    let Some((config, unknown_setting)) = (unsafe { read_settings(environment) }) else {
        return;
    };
    let groups = groups_of(&config);
    let signal = config.snapshot_signal;
    let has_ticks = config.tick_period_ns.is_some();
    let is_go = config.pages_interval.is_some() && go::is_program();
    let is_on = switch_on(config, unknown_setting);
    if let Some(signal) = signal.filter(|_| is_on) {
        take_signal(signal);
    }
    if is_on {
        // SAFETY: all objects of the program are loaded and relocated, and none of its code has run.
        unsafe {
            shim_redirect_extensions();
            bridges_join(groups & !EMBEDDED);
        }
    }
    // Most processes are none of the runtimes that were looked for.
    // SAFETY: no code of the program has run that could have errors of its own.
    unsafe { shim_forget_failed_lookups() };
    // What this thread allocated before (in the loader, in .preinit_array) gave it bytes not to be counted. Where it has not
    // allocated, as with musl's loader, a bridge may have made it join, and it would join once more.
    if this_thread().epoch() == 0 {
        this_thread().forget();
    }
    if is_on {
        // Allocators may map memory, with which the recording begins.
        // SAFETY: as above.
        unsafe { bridges_join(groups & EMBEDDED) };
        AGENT.note_late_bridges();
    }
    let has_pages = AGENT.is_on() && AGENT.prepare_pages(is_go);
    if (has_ticks || has_pages) && AGENT.is_on() {
        // SAFETY: no code of the program has run.
        let has_signal = unsafe { shim_start_ticks(has_pages) };
        if !has_signal && has_ticks {
            complain(&[
                b"allocsample: no signal is free for ALLOCSAMPLE_TIME_HZ; time is not sampled\n",
            ]);
        }
    }
}

// Bits of `enum bridge_group`.
const RUNTIMES: u32 = 1;
const PYPY: u32 = 2;
const EMBEDDED: u32 = 4;
const APART: u32 = 8;
const NAMED: u32 = 16;
const RECOMPILED: u32 = 32;
const OBJECTS: u32 = 64;

/// The groups of bridges that the settings ask for.
pub(crate) fn groups_of(config: &Config) -> u32 {
    let runtimes = match config.bridges {
        Bridges::Auto => RUNTIMES,
        Bridges::Pypy => RUNTIMES | PYPY,
        Bridges::None => 0,
    };
    let wanted = |group, is_wanted| if is_wanted { group } else { 0 };
    runtimes
        | wanted(EMBEDDED, config.joins_embedded)
        | wanted(APART, config.inlining == Inlining::Off)
        | wanted(NAMED, config.inlining.is_named())
        | wanted(RECOMPILED, config.inlining == Inlining::Recompiled)
        | wanted(OBJECTS, config.samples_objects)
}

/// Switches the agent on with these settings. False: there is no memory for it.
pub(crate) fn switch_on(config: Config, unknown_setting: Option<UnknownSetting>) -> bool {
    // SAFETY: reads a pointer of the shim.
    let next_malloc = unsafe { shim_next_malloc_address() };
    // SAFETY: a lookup by name in the program's global scope.
    let first_malloc = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
    let is_ours = attach::is_late()
        || is_same_object(first_malloc, (&raw const CONSTRUCTOR).cast())
        // SAFETY: asks the loader about an address.
        || !unsafe { shim_is_definition(first_malloc) };
    let start = Start {
        config,
        hooks: Hooks {
            give_back_signal_stack,
            end_ticks,
            has_listener,
            may_stop_threads,
            on_sampled,
            on_heap_freed,
            on_module,
            awaits_module,
            kept_mapping,
            own_counts,
            not_joined,
            ..front::hooks::<Preload>()
        },
        program: called_as(),
        next_allocator: path_of_object(next_malloc),
        // Where calls are redirected, libraries' calls of the program's malloc are seen, and the program's own are not.
        malloc_elsewhere: match attach::is_late() {
            true => is_allocator_in_program().then(|| path_of_object(next_malloc)),
            false => (!is_ours).then(|| path_of_object(first_malloc)),
        },
        unknown_setting,
    };
    // SAFETY: looks up names in the program's global scope.
    if unsafe { bridges_have_scanning_collector() } {
        AGENT.stay_on_threads_stacks();
    }
    if attach::is_late() {
        // SAFETY: asks the kernel.
        unsafe { shim_note_handlers() };
    }
    /// Earlier settings: each attach leaves one behind.
    static RETIRED: leaked::Retired<Start> = leaked::Retired::new();
    let now_ns = clock::monotonic_ns();
    let Some(start) = leaked::leak_again(RETIRED.take(now_ns), start) else {
        return false;
    };
    ask_loader();
    front::make_thread_key::<Preload>();
    if let Some(before) = AGENT.switch_on(start) {
        RETIRED.retire(before, now_ns);
    }
    boundary::install();
    true
}

/// Installs the handler of the snapshot signal, unless the signal has one. A program may replace it later.
fn take_signal(signal: c_int) {
    // SAFETY: the kernel fills in what all zero bytes are a value of.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut before) };
    if asked != 0 || before.sa_sigaction != libc::SIG_DFL {
        return;
    }
    before.sa_sigaction = on_snapshot_signal as extern "C" fn(c_int) as usize;
    before.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler calls nothing that is not safe in one.
    unsafe { libc::sigaction(signal, &raw const before, std::ptr::null_mut()) };
}

extern "C" fn on_snapshot_signal(_signal: c_int) {
    let _errno = KeepErrno::save();
    AGENT.ask_for_snapshot();
}

extern "C" fn destroy() {
    AGENT.on_exit(this_thread(), &here(), ExitHow::Exit, None, &[]);
}

/// Mirror of `struct shim_object`.
#[repr(C)]
struct Object {
    headers: *const c_void,
    path: *const c_char,
}

const _: () = assert!(size_of::<Object>() == 16 && std::mem::offset_of!(Object, path) == 8);

/// The loaded object that holds an address.
fn object_of(address: *const c_void) -> Option<Object> {
    let mut object = std::mem::MaybeUninit::uninit();
    // SAFETY: the place is writable, and filled in if the answer is true.
    unsafe { shim_find_object(address, object.as_mut_ptr()).then(|| object.assume_init()) }
}

/// Path of the object that holds an address; empty if there is none.
fn path_of_object(address: *const c_void) -> &'static [u8] {
    let Some(object) = object_of(address) else {
        return &[];
    };
    // SAFETY: the loader's own string, which lives as long as the object: an allocator is not unloaded.
    match unsafe { CStr::from_ptr(object.path) }.to_bytes() {
        [] => called_as(),
        path => path,
    }
}

/// Whether the next allocator is part of the program's own file: its calls of it pass no slot.
pub(crate) fn is_allocator_in_program() -> bool {
    // SAFETY: reads a pointer of the shim.
    let next_malloc = unsafe { shim_next_malloc_address() };
    object_of(next_malloc).is_some_and(|object| {
        // SAFETY: the loader's own string, which lives as long as the object. The program's is empty.
        unsafe { CStr::from_ptr(object.path) }.is_empty()
    })
}

/// Path by which the loader opened this library.
///
/// By `dladdr`, which has few symbols to look at here: ThreadSanitizer puts itself before `dl_iterate_phdr`, and is not
/// ready for it when our constructor begins.
pub(crate) fn own_path() -> &'static [u8] {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the place is writable, and all zero bytes are a value of its type.
    let info = unsafe {
        libc::dladdr((&raw const CONSTRUCTOR).cast(), info.as_mut_ptr());
        info.assume_init()
    };
    if info.dli_fname.is_null() {
        return &[];
    }
    // SAFETY: the loader's own string, which lives as long as this library.
    unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes()
}

fn is_same_object(a: *const c_void, b: *const c_void) -> bool {
    let headers = |address| object_of(address).map(|object| object.headers);
    headers(a) == headers(b)
}

/// What the process has under this name; NULL if it has nothing.
fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a lookup by name.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Looks up functions that only some C libraries have.
fn ask_loader() {
    let find_object = symbol(c"_dl_find_object");
    let stack_end = symbol(c"__libc_stack_end");
    // SAFETY: an address.
    let rendezvous = unsafe { shim_list_of_loader() };
    if !find_object.is_null() {
        // SAFETY: this is the type of glibc's function of that name.
        AGENT.modules().set_find_object(unsafe {
            std::mem::transmute::<*mut c_void, FindObject>(find_object)
        });
    }
    // SAFETY: the kernel's own figures.
    unsafe {
        let [headers, count] = [libc::AT_PHDR, libc::AT_PHNUM].map(|of| libc::getauxval(of));
        if headers != 0 {
            AGENT.modules().set_program(headers, count as usize);
        }
    }
    if find_object.is_null() {
        AGENT.modules().set_list(rendezvous.addr());
    }
    // SAFETY: the auxiliary vector has the address of the vDSO, or nothing.
    if let Some(clock) = unsafe { vdso::clock_gettime(libc::getauxval(libc::AT_SYSINFO_EHDR)) } {
        clock::set_source(clock);
    }
    let own = allocsample_get_hooks as *const () as usize as u64;
    AGENT.modules().set_own(own);
    // SAFETY: a pointer of the shim.
    let next_malloc = unsafe { shim_next_malloc_address() };
    let others = [
        symbol(c"getauxval").cast_const(),
        symbol(c"pthread_getconcurrency").cast_const(),
        rendezvous,
        next_malloc,
    ];
    let [libc, threads, loader, allocator] = others.map(|address| address.addr() as u64);
    let locking = [libc, threads, loader, allocator, own];
    AGENT.modules().set_permanent(&locking);
    AGENT.locking_code().set(AGENT.modules(), locking);
    if !stack_end.is_null() {
        // SAFETY: glibc's variable of that name is a pointer.
        os::set_main_stack_end(unsafe { *stack_end.cast::<u64>() });
    }
}

fn give_back_signal_stack(stack: u64) {
    // SAFETY: the shim's own, which it passed when the thread began; the thread is about to end.
    unsafe { shim_give_back_signal_stack(std::ptr::with_exposed_provenance_mut(stack as usize)) };
}

fn end_ticks() {
    // SAFETY: stops what the shim started; any thread.
    unsafe { shim_end_ticks() };
}

fn may_stop_threads() -> bool {
    // SAFETY: reads a word of the shim.
    unsafe { shim_may_stop_threads() }
}

fn has_listener() -> bool {
    // SAFETY: looks at a semaphore of the shim.
    unsafe { shim_probe_alloc_is_on() }
}

fn on_sampled(address: u64, size: u64, weight: u64) {
    // SAFETY: looks at a semaphore of the shim and, if somebody listens, passes a nop with these numbers in registers.
    unsafe { shim_probe_alloc(address, size, weight) };
}

/// Mirror of `struct bridge_declined`.
#[repr(C)]
struct Declined {
    heap: *const c_char,
    what: *const c_char,
    why: *const c_char,
}

const _: () = assert!(
    size_of::<Declined>() == 24
        && std::mem::offset_of!(Declined, what) == 8
        && std::mem::offset_of!(Declined, why) == 16
);

fn not_joined(index: usize, detail: &mut [u8]) -> usize {
    let mut found = Declined {
        heap: std::ptr::null(),
        what: std::ptr::null(),
        why: std::ptr::null(),
    };
    // SAFETY: it writes to `found` only.
    if !unsafe { bridges_declined(index, &raw mut found) } {
        return 0;
    }
    // SAFETY: they are the shim's, and stay as they are.
    let [heap, what, why] =
        [found.heap, found.what, found.why].map(|it| unsafe { CStr::from_ptr(it) }.to_bytes());
    let mut length = 0;
    for part in [heap, b": ", what, b" ", why] {
        let room = detail.get_mut(length..).unwrap_or_default();
        let bytes = part.len().min(room.len());
        if let (Some(room), Some(part)) = (room.get_mut(..bytes), part.get(..bytes)) {
            room.copy_from_slice(part);
        }
        length += bytes;
    }
    length
}

fn on_module(start: u64) -> bool {
    // SAFETY: on the drain thread; the module was relocated before a stack could run through it.
    unsafe { bridges_look(start) }
}

fn awaits_module(path: &[u8]) -> bool {
    // SAFETY: it reads the path, and nothing after it.
    unsafe { bridges_await(path.as_ptr(), path.len()) }
}

fn kept_mapping(index: usize) -> Option<KeptMapping> {
    let mut found = std::mem::MaybeUninit::zeroed();
    // SAFETY: it writes to `found`, whose zeros are a mapping, too.
    unsafe { shim_kept_mapping(index, found.as_mut_ptr()).then(|| found.assume_init()) }
}

/// Mirror of `struct bridge_own`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Own {
    heap: *const c_void,
    bytes: [u64; OwnFigure::ALL.len()],
}

const _: () = assert!(size_of::<Own>() == 48 && std::mem::offset_of!(Own, bytes) == 8);

fn own_counts(write: &mut dyn FnMut(ValueRecord)) {
    /// More than the bridges join.
    const MOST: usize = 8;
    const UNKNOWN: u64 = u64::MAX;
    let none = Own {
        heap: std::ptr::null(),
        bytes: [UNKNOWN; OwnFigure::ALL.len()],
    };
    let mut all = [none; MOST];
    // SAFETY: on the drain thread; it writes to `all` only.
    let count = unsafe { bridges_count(all.as_mut_ptr(), all.len()) };
    let time_ns = clock::monotonic_ns();
    for own in all.iter().take(count) {
        // SAFETY: NULL, or a heap that a bridge has registered; heaps live for ever.
        let heap = unsafe { own.heap.cast::<Heap>().as_ref() }.map_or(HeapId::MALLOC, Heap::id);
        for (figure, &value) in OwnFigure::ALL.into_iter().zip(&own.bytes) {
            if value != UNKNOWN {
                let statistic = figure.statistic();
                write(ValueRecord {
                    time_ns,
                    heap,
                    statistic,
                    value,
                });
            }
        }
    }
}

fn on_heap_freed(address: u64) {
    // SAFETY: as above.
    unsafe { shim_probe_free(address) };
}
