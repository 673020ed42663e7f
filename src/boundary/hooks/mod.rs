//! The hook ABI's table (`c_shim/include/allocsample.h`). Each of its functions converts arguments, and calls one safe
//! function of the agent.
//!
//! A heap's handle is the address of its description here, which lives for ever; an unregistered one is switched off.
//!
//! In all functions of this room the header's rules are the safety contract: handles are NULL or what we gave out, structs
//! are the machine's and live during the call, strings end in NUL.

mod heaps;
mod names;
mod objects;
mod process;
mod timeline;

use std::ffi::{CStr, c_char};

use allocsample_agent::hooks::{Heap, HookSlot, Pending, Resolution};
use allocsample_agent::stack::shadow::ShadowStack;
use allocsample_agent::stack::vm::RawFrame;
use allocsample_front::KeepErrno;

use crate::AGENT;
use crate::slow_path::this_thread;
use heaps::{RawCounters, RawDescription};
use process::RawStatus;
use timeline::RawGc;

const OK: i32 = 0;
const INVALID: i32 = -1;
const LIMIT: i32 = -2;
const OFF: i32 = -3;
const NO_SAMPLE: u64 = u64::MAX;
const VERSION: u32 = 1;
/// All capabilities of the header: shadow stacks, inlined functions, switches of threads, late samples, walks in ticks,
/// control by the program, notices of changes, collections on request.
const CAPABILITIES: u64 = 1 | 2 | 4 | 8 | 16 | 32 | 64 | 128;

/// Every hook begins with this. A child that was forked past libc, or while no agent was attached, must be noticed before anything of the
/// recording is touched: that is the parent's, and its ring is not mapped in the child.
struct Entered {
    _errno: KeepErrno,
}

impl Entered {
    fn new() -> Self {
        let errno = KeepErrno::save();
        AGENT.notice_fork_on(this_thread());
        Self { _errno: errno }
    }
}

type HeapHandle = *const Heap;
type SlotHandle = *const HookSlot;

/// Mirror of `allocsample_hooks`.
#[repr(C)]
pub struct HookTable {
    size: u32,
    version: u32,
    heap_register: unsafe extern "C" fn(*const RawDescription) -> HeapHandle,
    heap_unregister: unsafe extern "C" fn(HeapHandle) -> i32,
    thread_name: unsafe extern "C" fn(*const c_char) -> i32,
    nursery_begin: unsafe extern "C" fn(HeapHandle, SlotHandle, u64, u64) -> u64,
    nursery_point: unsafe extern "C" fn(HeapHandle, SlotHandle, u64, u64, u64, u32) -> u64,
    nursery_sync: unsafe extern "C" fn(HeapHandle, SlotHandle, u64, u64, u64) -> u64,
    nursery_enable: unsafe extern "C" fn(HeapHandle, SlotHandle, u64, u64, u32) -> u64,
    nursery_end: unsafe extern "C" fn(HeapHandle, SlotHandle, u64),
    alloc: unsafe extern "C" fn(HeapHandle, SlotHandle, u64, u64, u32, u64, *mut u64) -> u64,
    freed: unsafe extern "C" fn(HeapHandle, u64),
    moved: unsafe extern "C" fn(HeapHandle, u64, u64),
    pending:
        unsafe extern "C" fn(HeapHandle, SlotHandle, u32, *mut Pending, usize, *mut u64) -> usize,
    resolve:
        unsafe extern "C" fn(HeapHandle, SlotHandle, u32, *const Resolution, usize, u64) -> usize,
    define_type: unsafe extern "C" fn(HeapHandle, u32, *const c_char, *const c_char) -> i32,
    define_function:
        unsafe extern "C" fn(HeapHandle, u32, *const c_char, *const c_char, u32) -> i32,
    define_statistic: unsafe extern "C" fn(HeapHandle, u32, *const c_char, *const c_char) -> i32,
    interpreter_range: unsafe extern "C" fn(HeapHandle, u64, u64) -> i32,
    code_add: unsafe extern "C" fn(HeapHandle, u64, u64, u32) -> i32,
    code_move: unsafe extern "C" fn(HeapHandle, u64, u64) -> i32,
    code_remove: unsafe extern "C" fn(HeapHandle, u64) -> i32,
    now_ns: extern "C" fn() -> u64,
    gc: unsafe extern "C" fn(HeapHandle, *const RawGc) -> i32,
    phase: unsafe extern "C" fn(HeapHandle, *const c_char) -> i32,
    marker: unsafe extern "C" fn(HeapHandle, *const c_char, u64, u64) -> i32,
    value: unsafe extern "C" fn(HeapHandle, u32, u64) -> i32,
    control: unsafe extern "C" fn(HeapHandle, u32, u64) -> i32,
    counters: unsafe extern "C" fn(HeapHandle, *mut RawCounters) -> i32,
    sampled: unsafe extern "C" fn(HeapHandle, u64, u64, u32, *const RawFrame, usize) -> u64,
    capabilities: u64,
    shadow_stack: unsafe extern "C" fn(HeapHandle, *const ShadowStack) -> i32,
    define_inlined: unsafe extern "C" fn(HeapHandle, u32, *const RawFrame, usize) -> i32,
    thread_enable: extern "C" fn(u32) -> i32,
    process_control: extern "C" fn(u32, u64) -> i32,
    process_status: unsafe extern "C" fn(*mut RawStatus) -> i32,
    thread_select: extern "C" fn(u32, u32) -> i32,
    process_filter: unsafe extern "C" fn(*const process::RawFilter) -> i32,
    sampled_at: unsafe extern "C" fn(HeapHandle, u64, u64, u32, *const RawFrame, usize, u64) -> u64,
    typed: unsafe extern "C" fn(HeapHandle, u64, u32) -> i32,
    collected: unsafe extern "C" fn(HeapHandle, i32) -> i32,
    heap_range: unsafe extern "C" fn(HeapHandle, u32, u64, u64) -> i32,
    died: unsafe extern "C" fn(HeapHandle, *const u64, usize),
    sampled_earlier:
        unsafe extern "C" fn(HeapHandle, u64, u64, u32, *const RawFrame, usize, u64, u64) -> u64,
    freed_earlier: unsafe extern "C" fn(HeapHandle, u64, u64),
}

// From the header: each field's offset, parameters and result.
include!(concat!(env!("OUT_DIR"), "/hook_table.rs"));

static TABLE: HookTable = HookTable {
    size: size_of::<HookTable>() as u32,
    version: VERSION,
    heap_register: heaps::heap_register,
    heap_unregister: heaps::heap_unregister,
    thread_name: names::thread_name,
    nursery_begin: objects::nursery_begin,
    nursery_point: objects::nursery_point,
    nursery_sync: objects::nursery_sync,
    nursery_enable: objects::nursery_enable,
    nursery_end: objects::nursery_end,
    alloc: objects::alloc,
    freed: objects::freed,
    moved: objects::moved,
    pending: objects::pending,
    resolve: objects::resolve,
    define_type: names::define_type,
    define_function: names::define_function,
    define_statistic: names::define_statistic,
    interpreter_range: names::interpreter_range,
    code_add: names::code_add,
    code_move: names::code_move,
    code_remove: names::code_remove,
    now_ns: timeline::now_ns,
    gc: timeline::gc,
    phase: timeline::phase,
    marker: timeline::marker,
    value: timeline::value,
    control: heaps::control,
    counters: heaps::counters,
    sampled: objects::sampled,
    capabilities: CAPABILITIES,
    shadow_stack: names::shadow_stack,
    define_inlined: names::define_inlined,
    thread_enable: process::thread_enable,
    process_control: process::process_control,
    process_status: process::process_status,
    thread_select: process::thread_select,
    process_filter: process::process_filter,
    sampled_at: objects::sampled_at,
    typed: objects::typed,
    collected: heaps::collected,
    heap_range: names::heap_range,
    died: objects::died,
    sampled_earlier: objects::sampled_earlier,
    freed_earlier: objects::freed_earlier,
};

/// The one function that a machine looks for. NULL for a version that this library does not know, and while the agent is
/// off for good (`ALLOCSAMPLE_INTERVAL=off`): the machine then runs as if there were none.
#[unsafe(no_mangle)]
pub extern "C" fn allocsample_get_hooks(version: u32) -> *const HookTable {
    if version == VERSION && AGENT.is_on() {
        &raw const TABLE
    } else {
        std::ptr::null()
    }
}

/// # Safety
/// NULL, or a heap that `heap_register` returned.
unsafe fn heap_of(heap: HeapHandle) -> Option<&'static Heap> {
    // SAFETY: the caller's promise; heaps live for ever.
    unsafe { heap.as_ref() }
}

/// # Safety
/// NULL, or the machine's `allocsample_nursery`, which lives during the call and is used by no other thread.
unsafe fn slot_of<'a>(slot: SlotHandle) -> Option<&'a HookSlot> {
    // SAFETY: the caller's promise; the struct is plain words of the right size and alignment.
    unsafe { slot.as_ref() }
}

/// # Safety
/// NULL, or a C string.
unsafe fn text_of<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

fn result(is_done: bool) -> i32 {
    if is_done { OK } else { LIMIT }
}
