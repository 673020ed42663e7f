//! The library's constructor and destructor, and the ends of threads.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use allocsample_agent::config::{Bridges, Config, UnknownSetting};
use allocsample_agent::os::file::{complain, is_writable_directory};
use allocsample_agent::os::{self, clock, memory, process, vdso};
use allocsample_agent::recording::{self, DrainState, Recording};
use allocsample_agent::stack::modules::FindObject;
use allocsample_agent::{Hooks, Start};
use allocsample_record::{ExitHow, Note};

use crate::allocator::{Shortage, is_reserve_low};
use crate::hooks::{KeepErrno, allocsample_get_hooks};
use crate::slow_path::{here, this_thread};
use crate::{AGENT, ALLOCATOR, attach, slow_path};

unsafe extern "C" {
    fn shim_find_next();
    fn shim_find_functions();
    fn shim_forget_failed_lookups();
    fn bridges_join(groups: u32);
    fn bridges_look(module: u64) -> bool;
    fn bridges_have_scanning_collector() -> bool;
    fn bridges_declined(index: usize, found: *mut Declined) -> bool;
    fn shim_probe_alloc_is_on() -> bool;
    fn shim_probe_alloc(address: u64, size: u64, weighted_bytes: u64);
    fn shim_probe_free(address: u64);
    fn shim_next_malloc_address() -> *const c_void;
    fn shim_start_ticks() -> bool;
    fn shim_end_ticks();
    fn shim_give_back_signal_stack(stack: *mut c_void);
    fn shim_find_object(address: *const c_void, found: *mut Object) -> bool;
    fn shim_is_definition(address: *const c_void) -> bool;
    fn shim_is_glibc() -> bool;
    fn shim_list_of_loader() -> *const c_void;
    static environ: *const *const c_char;
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
    let lookup = |name: &str| {
        // SAFETY: the environment is an array of C strings that ends in NULL.
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
    if let Err(reason) = check_directory(&config) {
        let directory = config.output.directory();
        let parts: [&[u8]; 5] = [
            b"allocsample: ",
            directory.as_bytes(),
            b": ",
            reason.as_bytes(),
            b"; the program runs without a profile\n",
        ];
        return complain(&parts);
    }
    let groups = groups_of(&config);
    let signal = config.snapshot_signal;
    let has_ticks = config.tick_period_ns.is_some();
    // SAFETY: as above.
    let unknown_setting = UnknownSetting::among(unsafe { entries(environment) });
    let is_on = switch_on(config, unknown_setting);
    if let Some(signal) = signal.filter(|_| is_on) {
        take_signal(signal);
    }
    if is_on {
        // SAFETY: all objects of the program are loaded, and none of its code has run.
        unsafe { bridges_join(groups & !EMBEDDED) };
    }
    // Most processes are none of the runtimes that were looked for.
    // SAFETY: no code of the program has run that could have errors of its own.
    unsafe { shim_forget_failed_lookups() };
    // What this thread allocated before (in the loader, in .preinit_array) gave it bytes not to be counted.
    this_thread().forget();
    if is_on {
        // Allocators may map memory, with which the recording begins.
        // SAFETY: as above.
        unsafe { bridges_join(groups & EMBEDDED) };
    }
    if has_ticks && AGENT.is_on() {
        // SAFETY: no code of the program has run.
        if !unsafe { shim_start_ticks() } {
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

/// The groups of bridges that the settings ask for.
pub(crate) fn groups_of(config: &Config) -> u32 {
    let runtimes = match config.bridges {
        Bridges::Auto => RUNTIMES,
        Bridges::Pypy => RUNTIMES | PYPY,
        Bridges::None => 0,
    };
    match config.joins_embedded {
        true => runtimes | EMBEDDED,
        false => runtimes,
    }
}

/// A program that got rights by its file (set-user-id, set-group-id, capabilities) does nothing that an environment asks
/// for which somebody without these rights has made. It does not even complain.
fn has_more_rights_than_its_caller() -> bool {
    // SAFETY: reads the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether a profile can be created where the settings say; if not, why.
pub(crate) fn check_directory(config: &Config) -> Result<(), &'static str> {
    is_writable_directory(config.output.directory().as_c_str()).map_err(|reason| match reason.0 {
        libc::ENOENT | libc::ENOTDIR => "no such directory",
        libc::EROFS => "the file system is read-only",
        _ => "no files can be created there",
    })
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
            start_drain,
            compress: allocsample_drain::compress,
            join_drain,
            leave_drain,
            on_thread_joined,
            after_fork_in_child,
            give_back_signal_stack,
            end_ticks,
            has_listener,
            on_sampled,
            on_heap_freed,
            on_module,
            not_joined,
        },
        program: called_as(),
        next_allocator: path_of_object(next_malloc),
        malloc_elsewhere: (!is_ours).then(|| path_of_object(first_malloc)),
        unknown_setting,
    };
    // SAFETY: looks up names in the program's global scope.
    if unsafe { bridges_have_scanning_collector() } {
        AGENT.stay_on_threads_stacks();
    }
    /// Earlier settings: each attach leaves one behind.
    static RETIRED: memory::Retired<Start> = memory::Retired::new();
    let now_ns = clock::monotonic_ns();
    let Some(start) = memory::leak_again(RETIRED.take(now_ns), start) else {
        return false;
    };
    ask_loader();
    if THREAD_KEY.load(Ordering::Relaxed) == 0 {
        let mut key = 0;
        // SAFETY: makes a key whose destructor is a function of ours.
        if unsafe { libc::pthread_key_create(&raw mut key, Some(on_thread_end)) } == 0 {
            THREAD_KEY.store(key + 1, Ordering::Relaxed);
        }
    }
    if let Some(before) = AGENT.switch_on(start) {
        RETIRED.retire(before, now_ns);
    }
    slow_path::install();
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
    let _errno = KeepErrno::new();
    AGENT.ask_for_snapshot();
}

extern "C" fn destroy() {
    AGENT.on_exit(this_thread(), &here(), ExitHow::Exit, None, &[]);
}

/// The value of a variable in an environment block.
///
/// # Safety
/// `environment` is NULL, or an array of C strings, which live for ever, and NULL.
unsafe fn find_variable(environment: *const *const c_char, name: &str) -> Option<&'static [u8]> {
    // SAFETY: the caller's promise.
    unsafe { entries(environment) }.find_map(|entry| {
        entry
            .strip_prefix(name.as_bytes())
            .and_then(|rest| rest.strip_prefix(b"="))
    })
}

/// The entries of an environment block, `NAME=value`.
///
/// # Safety
/// As for [`find_variable`].
unsafe fn entries(environment: *const *const c_char) -> impl Iterator<Item = &'static [u8]> {
    let mut entry = environment;
    std::iter::from_fn(move || {
        if entry.is_null() {
            return None;
        }
        // SAFETY: the caller's promise: entries up to the NULL.
        let text = unsafe { *entry };
        if text.is_null() {
            return None;
        }
        // SAFETY: not yet at the NULL.
        entry = unsafe { entry.add(1) };
        // SAFETY: the caller's promise.
        Some(unsafe { CStr::from_ptr(text) }.to_bytes())
    })
}

/// The path that the program was started by, which the kernel keeps beside its arguments.
fn called_as() -> &'static [u8] {
    // SAFETY: reads the auxiliary vector.
    let path = unsafe { libc::getauxval(libc::AT_EXECFN) };
    let path: *const c_char = std::ptr::with_exposed_provenance(path as usize);
    if path.is_null() {
        b"unknown"
    } else {
        // SAFETY: not 0, so the address of a C string that lives as long as the process.
        unsafe { CStr::from_ptr(path) }.to_bytes()
    }
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

/// The key plus one; 0 for none.
static THREAD_KEY: AtomicU32 = AtomicU32::new(0);

/// libc calls the key's destructor when the thread ends, if its value is set. A thread that allocates in a later
/// destructor joins again and sets it again.
fn on_thread_joined() {
    if let Some(key) = THREAD_KEY.load(Ordering::Relaxed).checked_sub(1) {
        // SAFETY: the key exists. Any value but NULL will do.
        unsafe { libc::pthread_setspecific(key, std::ptr::without_provenance(1)) };
    }
}

unsafe extern "C" fn on_thread_end(_value: *mut c_void) {
    AGENT.on_thread_end(this_thread());
}

/// Of the drain thread. musl's default is 128 KiB.
const MUSL_STACK_BYTES: usize = 1 << 20;

fn start_drain(recording: &Recording) -> bool {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    let mut thread = 0;
    // SAFETY: the sets are writable and filled before use. Our thread inherits the full mask: no signal of the program
    // is ever delivered to it.
    let result = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let mut attributes = std::mem::MaybeUninit::uninit();
        libc::pthread_attr_init(attributes.as_mut_ptr());
        if !shim_is_glibc() {
            libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), MUSL_STACK_BYTES);
        }
        let result = libc::pthread_create(
            &raw mut thread,
            attributes.as_ptr(),
            drain_main,
            std::ptr::from_ref(recording).cast_mut().cast(),
        );
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        result
    };
    if result == 0 {
        recording.set_drain_thread(thread);
    }
    result == 0
}

/// Detaches the drain thread: libc frees its stack when it ends.
fn leave_drain(recording: &Recording) {
    let thread = recording.take_drain_thread();
    if thread != 0 {
        // SAFETY: a thread that we made, and have neither joined nor detached.
        unsafe { libc::pthread_detach(thread) };
    }
}

fn join_drain(recording: &Recording) {
    let thread = recording.take_drain_thread();
    if thread == 0 {
        return;
    }
    if os::is_filtered() {
        join_silently(thread);
        return;
    }
    // SAFETY: a thread that we made and have not joined.
    unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
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

extern "C" fn drain_main(recording: *mut c_void) -> *mut c_void {
    // What libc allocates for this thread is none of the program's doing.
    this_thread().mute_for_good();
    // SAFETY: a recording, as `start_drain` passes it; these are never dropped.
    let recording: &'static Recording = unsafe { &*recording.cast() };
    recording.set_drain_tid(process::tid());
    let state = match std::panic::catch_unwind(|| allocsample_drain::run(&AGENT, recording)) {
        Ok(Ok(())) => DrainState::Done,
        Ok(Err(_)) | Err(_) => DrainState::Failed,
    };
    recording.set_drain_state(state);
    recording.let_go();
    std::ptr::null_mut()
}

/// The kernel has no memory for us. The drain thread can wait: the program may give some back. If it does not, the
/// thread ends where it stands, which leaves the ring to the reader. A thread of the program uses the reserve.
pub(crate) fn on_shortage(attempt: u32) -> Shortage {
    const ATTEMPTS: u32 = 20;
    const PAUSE_MS: u32 = 10;
    let Some(recording) = recording::with_drain_thread(process::tid()) else {
        if is_reserve_low() {
            AGENT.fail_for_lack_of_memory();
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

fn give_back_signal_stack(stack: u64) {
    // SAFETY: the shim's own, which it passed when the thread began; the thread is about to end.
    unsafe { shim_give_back_signal_stack(std::ptr::with_exposed_provenance_mut(stack as usize)) };
}

fn end_ticks() {
    // SAFETY: stops what the shim started; any thread.
    unsafe { shim_end_ticks() };
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
    // SAFETY: they are literals of the shim's.
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

fn on_heap_freed(address: u64) {
    // SAFETY: as above.
    unsafe { shim_probe_free(address) };
}

fn after_fork_in_child() {
    ALLOCATOR.abandon();
}
