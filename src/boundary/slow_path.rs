//! The table through which the C shim calls the agent: converts arguments, calls one safe function, nothing more.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use allocsample_agent::os::safe_read;
use allocsample_agent::{
    Allocation, BlockFilter, Caller, FILTER_GRANULES, Forking, Interrupted, MappingCall, ShimThread,
};
use allocsample_front::here;
use allocsample_record::{Definition, ExitHow, HeapId};

use crate::AGENT;

/// Mirror of `struct shim_slow_path`.
#[repr(C)]
struct SlowPath {
    make_room: extern "C" fn(),
    on_alloc: unsafe extern "C" fn(*const ShimThread, *const Allocation) -> u64,
    take_sampled: extern "C" fn(*const c_void) -> u64,
    on_free: unsafe extern "C" fn(*const ShimThread, u64, *const Caller),
    put_back: extern "C" fn(*const c_void, u64),
    on_borrowed: unsafe extern "C" fn(*const ShimThread, *const Caller),
    on_mapping: unsafe extern "C" fn(*const ShimThread, *const MappingCall),
    before_fork: unsafe extern "C" fn(*const ShimThread) -> c_int,
    after_fork: unsafe extern "C" fn(*const ShimThread, libc::pid_t, c_int),
    on_exit: unsafe extern "C" fn(c_int, c_int, *const c_char) -> bool,
    after_exec_failed: extern "C" fn(),
    on_pthread_exit: extern "C" fn(),
    on_raw_exit: extern "C" fn() -> bool,
    before_unshare: extern "C" fn(),
    after_unshare: extern "C" fn(),
    before_entering_mounts: extern "C" fn(),
    before_confinement: extern "C" fn(),
    before_clock_is_forbidden: extern "C" fn(),
    before_filter: extern "C" fn(),
    after_filter: extern "C" fn(bool),
    before_dlclose: extern "C" fn(),
    after_dlclose: extern "C" fn(),
    on_tick: unsafe extern "C" fn(*const ShimThread, *const Interrupted, u64),
    on_thread_start: unsafe extern "C" fn(*const ShimThread, *const c_void),
    on_faults: unsafe extern "C" fn(*const ShimThread, *const Interrupted) -> bool,
    on_pages: extern "C" fn(u64, usize, u64),
    start_ticks: extern "C" fn(c_int, *const c_void),
    stop_ticks: extern "C" fn(),
    copy_foreign: unsafe extern "C" fn(*mut u8, usize, *const libc::iovec, usize) -> usize,
    own_stack: unsafe extern "C" fn(*const ShimThread, *mut u64, *mut u64),
    define_type: unsafe extern "C" fn(u32, *const c_char),
}

// From the header: each field's offset, parameters and result.
include!(concat!(env!("OUT_DIR"), "/slow_path.rs"));

unsafe extern "C" {
    static shim_slow_path: AtomicPtr<SlowPath>;
    static shim_block_filter: [AtomicU8; FILTER_GRANULES];
    fn shim_this_thread() -> *const c_void;
    safe fn shim_watch_frees();
}

/// The block filter, which lies in the shim.
pub const fn block_filter() -> BlockFilter {
    // SAFETY: the shim defines it with this size; `_Atomic(uint8_t)` and `AtomicU8` are both one byte.
    BlockFilter::new(unsafe { &shim_block_filter }, || shim_watch_frees())
}

/// The calling thread's state.
pub fn this_thread() -> &'static ShimThread {
    // SAFETY: thread-local memory of the shim with this layout, which outlives every use on this thread.
    unsafe { &*shim_this_thread().cast() }
}

/// From now on the shim calls the agent.
pub fn install() {
    static TABLE: SlowPath = SlowPath {
        make_room,
        on_alloc,
        take_sampled,
        on_free,
        put_back,
        on_borrowed,
        on_mapping,
        before_fork,
        after_fork,
        on_exit,
        after_exec_failed,
        on_pthread_exit,
        on_raw_exit,
        before_unshare,
        after_unshare,
        before_entering_mounts,
        before_confinement,
        before_clock_is_forbidden,
        before_filter,
        after_filter,
        before_dlclose,
        after_dlclose,
        on_tick,
        on_thread_start,
        on_faults,
        on_pages,
        start_ticks,
        stop_ticks,
        copy_foreign,
        own_stack,
        define_type,
    };
    // SAFETY: the shim defines it as an atomic pointer to a constant table. Release: pairs with its acquire loads.
    unsafe { shim_slow_path.store((&raw const TABLE).cast_mut(), Ordering::Release) };
}

extern "C" fn make_room() {
    allocsample_agent::make_room();
}

/// # Safety
/// `thread` is the calling thread's state, `allocation` points to one.
unsafe extern "C" fn on_alloc(thread: *const ShimThread, allocation: *const Allocation) -> u64 {
    // SAFETY: the caller's promise.
    let sampled = AGENT.on_alloc(unsafe { &*thread }, unsafe { &*allocation });
    sampled.map_or(0, |id| id.0 + 1)
}

extern "C" fn take_sampled(block: *const c_void) -> u64 {
    AGENT.take_sampled(block.addr() as u64)
}

/// # Safety
/// `thread` is the calling thread's state, `caller` points to one.
unsafe extern "C" fn on_free(thread: *const ShimThread, taken: u64, caller: *const Caller) {
    // SAFETY: the caller's promise.
    AGENT.on_free(unsafe { &*thread }, taken, unsafe { &*caller });
}

/// # Safety
/// `thread` is the calling thread's state, `caller` points to one.
unsafe extern "C" fn on_borrowed(thread: *const ShimThread, caller: *const Caller) {
    // SAFETY: the caller's promise.
    AGENT.on_borrowed(unsafe { &*thread }, unsafe { &*caller });
}

extern "C" fn put_back(block: *const c_void, taken: u64) {
    AGENT.put_back(block.addr() as u64, taken);
}

/// # Safety
/// `thread` is the calling thread's state, `call` points to one.
unsafe extern "C" fn on_mapping(thread: *const ShimThread, call: *const MappingCall) {
    // SAFETY: the caller's promise.
    AGENT.on_mapping(unsafe { &*thread }, unsafe { &*call }, here());
}

/// # Safety
/// `thread` is the calling thread's state.
unsafe extern "C" fn before_fork(thread: *const ShimThread) -> c_int {
    // SAFETY: the caller's promise.
    AGENT.before_fork(unsafe { &*thread }, &here()) as c_int
}

/// # Safety
/// `thread` is the calling thread's state.
unsafe extern "C" fn after_fork(thread: *const ShimThread, child: libc::pid_t, before: c_int) {
    let forking = match before {
        0 => Forking::Unnoticed,
        1 => Forking::Muted,
        _ => Forking::WithinSlowPath,
    };
    // SAFETY: the caller's promise.
    AGENT.after_fork(unsafe { &*thread }, child, forking);
}

/// # Safety
/// `path` is NULL or a C string.
unsafe extern "C" fn on_exit(how: c_int, status: c_int, path: *const c_char) -> bool {
    let (how, status) = match how {
        0 => (ExitHow::Exit, None),
        1 => (ExitHow::ImmediateExit, Some(status)),
        2 => (ExitHow::QuickExit, Some(status)),
        3 => (ExitHow::Abort, None),
        5 => (ExitHow::Detached, None),
        _ => (ExitHow::Exec, None),
    };
    let path = if path.is_null() {
        &[]
    } else {
        // SAFETY: the caller's promise.
        unsafe { CStr::from_ptr(path) }.to_bytes()
    };
    AGENT.on_exit(this_thread(), &here(), how, status, path)
}

extern "C" fn after_exec_failed() {
    AGENT.after_exec_failed(this_thread());
}

extern "C" fn on_pthread_exit() {
    AGENT.on_pthread_exit();
}

extern "C" fn on_raw_exit() -> bool {
    AGENT.on_raw_exit()
}

extern "C" fn before_unshare() {
    AGENT.before_unshare();
}

extern "C" fn after_unshare() {
    AGENT.after_unshare();
}

extern "C" fn before_entering_mounts() {
    AGENT.before_entering_mounts();
}

extern "C" fn before_clock_is_forbidden() {
    allocsample_agent::read_clock_by_system_calls();
}

extern "C" fn before_filter() {
    AGENT.before_filter(this_thread(), here());
}

extern "C" fn after_filter(is_installed: bool) {
    AGENT.after_filter(is_installed);
}

extern "C" fn before_confinement() {
    AGENT.before_confinement(this_thread(), &here());
}

extern "C" fn before_dlclose() {
    AGENT.modules().before_dlclose();
}

extern "C" fn after_dlclose() {
    AGENT.modules().after_dlclose();
}

/// # Safety
/// `thread` is the calling thread's state, `interrupted` points to registers.
unsafe extern "C" fn on_tick(
    thread: *const ShimThread,
    interrupted: *const Interrupted,
    periods: u64,
) {
    // SAFETY: the caller's promise.
    AGENT.on_tick(unsafe { &*thread }, unsafe { &*interrupted }, periods);
}

/// # Safety
/// `thread` is the calling thread's state.
unsafe extern "C" fn on_thread_start(thread: *const ShimThread, signal_stack: *const c_void) {
    // SAFETY: the caller's promise.
    AGENT.on_thread_start(unsafe { &*thread }, signal_stack.expose_provenance() as u64);
}

/// # Safety
/// `thread` is the calling thread's state, `interrupted` points to registers.
unsafe extern "C" fn on_faults(thread: *const ShimThread, interrupted: *const Interrupted) -> bool {
    // SAFETY: the caller's promise.
    AGENT.on_faults(unsafe { &*thread }, unsafe { &*interrupted })
}

extern "C" fn on_pages(start: u64, bytes: usize, moved_to: u64) {
    AGENT.on_pages(start, bytes as u64, (moved_to != 0).then_some(moved_to));
}

extern "C" fn start_ticks(signal: c_int, mark: *const c_void) {
    AGENT.start_ticks(signal, mark.expose_provenance() as u64);
}

extern "C" fn stop_ticks() {
    AGENT.stop_ticks();
}

/// # Safety
/// `to` has `room` initialised bytes that nobody else uses meanwhile; `from` points to `count` pieces.
unsafe extern "C" fn copy_foreign(
    to: *mut u8,
    room: usize,
    from: *const libc::iovec,
    count: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let (from, to) = unsafe {
        (
            std::slice::from_raw_parts(from, count),
            std::slice::from_raw_parts_mut(to, room),
        )
    };
    safe_read::copy_pieces(from, to)
}

/// # Safety
/// `thread` is the calling thread's state; `start` and `end` can be written.
unsafe extern "C" fn own_stack(thread: *const ShimThread, start: *mut u64, end: *mut u64) {
    // SAFETY: the caller's promise.
    let stack = unsafe { &*thread }.stack();
    // SAFETY: the caller's promise.
    unsafe { start.write(stack.start) };
    // SAFETY: the caller's promise.
    unsafe { end.write(stack.end) };
}

/// # Safety
/// `name` is a C string.
unsafe extern "C" fn define_type(type_id: u32, name: *const c_char) {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    AGENT
        .publisher()
        .define_name(Definition::Type, HeapId::MALLOC, type_id, 0, name, &[]);
}
