//! The hook ABI's table (`c_shim/include/allocsample.h`): converts arguments, calls one safe function of the agent.
//!
//! A heap's handle is the address of its description here, which lives for ever; an unregistered one is switched off.

use std::ffi::{CStr, c_char, c_void};

use allocsample_agent::Interval;
use allocsample_agent::hooks::{
    Callbacks, Description, Heap, HookSlot, Object, Pending, Resolution,
};
use allocsample_agent::os::{clock, thread::Caller};
use allocsample_agent::stack::shadow::ShadowStack;
use allocsample_agent::stack::vm::{NativeCode, RawFrame, VmWalk};
use allocsample_record::{
    CodeChange, CodeRecord, Definition, GcKind, GcRecord, HeapKind, MAX_GC_STATISTICS,
    MAX_NAME_BYTES, MarkerRecord, VmFrame,
};

use crate::AGENT;
use crate::process_table::{RawStatus, process_control, process_status, thread_select};
use crate::slow_path::this_thread;

pub const OK: i32 = 0;
pub const INVALID: i32 = -1;
pub const LIMIT: i32 = -2;
pub const OFF: i32 = -3;
const NO_SAMPLE: u64 = u64::MAX;
const VERSION: u32 = 1;
/// Shadow stacks, inlined functions, switches of threads, late samples, walks in ticks: a program's own control:
/// all that the header has bits for.
const CAPABILITIES: u64 = 1 | 2 | 4 | 8 | 16 | 32;

/// Mirror of `allocsample_heap_description`.
#[repr(C)]
struct RawDescription {
    size: u32,
    kind: u32,
    name: *const c_char,
    interval: u64,
    flags: u32,
    reserved: u32,
    user: *mut c_void,
    walk: Option<VmWalk>,
    on_sample: Option<unsafe extern "C" fn(*mut c_void, u64, usize, u64, u32)>,
}

/// Mirror of `allocsample_gc`.
#[repr(C)]
struct RawGc {
    size: u32,
    kind: u32,
    id: u64,
    begin_ns: u64,
    end_ns: u64,
    statistics: u32,
    reserved: u32,
    values: *const u64,
}

/// Mirror of `allocsample_counters`.
#[repr(C)]
struct RawCounters {
    size: u32,
    is_on: u32,
    interval: u64,
    exact_bytes: u64,
    samples: u64,
    pending: u64,
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
}

static TABLE: HookTable = HookTable {
    size: size_of::<HookTable>() as u32,
    version: VERSION,
    heap_register,
    heap_unregister,
    thread_name,
    nursery_begin,
    nursery_point,
    nursery_sync,
    nursery_enable,
    nursery_end,
    alloc,
    freed,
    moved,
    pending,
    resolve,
    define_type,
    define_function,
    define_statistic,
    interpreter_range,
    code_add,
    code_move,
    code_remove,
    now_ns,
    gc,
    phase,
    marker,
    value,
    control,
    counters,
    sampled,
    capabilities: CAPABILITIES,
    shadow_stack,
    define_inlined,
    thread_enable,
    process_control,
    process_status,
    thread_select,
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

/// Keeps errno over a call.
pub(crate) struct KeepErrno(i32);

impl KeepErrno {
    /// As it is now.
    pub(crate) fn new() -> Self {
        // SAFETY: errno is always readable.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        // SAFETY: as above, and writable.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// Where this thread stands; inlined, so that it is the caller of the hook whose frame comes next.
#[inline(always)]
fn here() -> Caller {
    let (pc, sp, fp): (u64, u64, u64);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads registers.
    unsafe {
        std::arch::asm!(
            "lea {pc}, [rip]", "mov {sp}, rsp", "mov {fp}, rbp",
            pc = out(reg) pc, sp = out(reg) sp, fp = out(reg) fp,
            options(nomem, nostack, preserves_flags)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads registers.
    unsafe {
        std::arch::asm!(
            "adr {pc}, .", "mov {sp}, sp", "mov {fp}, x29",
            pc = out(reg) pc, sp = out(reg) sp, fp = out(reg) fp,
            options(nomem, nostack, preserves_flags)
        );
    }
    // As a return address: the walker looks one byte before it.
    Caller { pc: pc + 1, sp, fp }
}

fn result(is_done: bool) -> i32 {
    if is_done { OK } else { LIMIT }
}

// In all functions below: the header's rules are the safety contract. Handles are NULL or what we gave out, structs are
// the machine's and live during the call, strings end in NUL.

unsafe extern "C" fn heap_register(description: *const RawDescription) -> HeapHandle {
    let _errno = KeepErrno::new();
    // SAFETY: the header's rules.
    let Some(raw) = (unsafe { description.as_ref() }) else {
        return std::ptr::null();
    };
    let Some(kind) = HeapKind::from_number(raw.kind) else {
        return std::ptr::null();
    };
    if (raw.size as usize) < size_of::<RawDescription>() || raw.name.is_null() {
        return std::ptr::null();
    }
    const WALK_IN_MALLOC: u32 = 1;
    const WALK_EVERYWHERE: u32 = 2;
    const WHOLE_CODE: u32 = 4;
    const WALK_IN_TICKS: u32 = 8;
    const SCANS_STACKS: u32 = 16;
    let description = Description {
        kind,
        // SAFETY: the header's rules.
        name: unsafe { text_of(raw.name) },
        interval: Interval::new(raw.interval),
        is_walked_in_malloc: raw.flags & (WALK_IN_MALLOC | WALK_EVERYWHERE) != 0,
        is_walked_everywhere: raw.flags & WALK_EVERYWHERE != 0,
        is_walked_in_ticks: raw.flags & WALK_IN_TICKS != 0,
        scans_stacks: raw.flags & SCANS_STACKS != 0,
        native_code: match raw.flags & WHOLE_CODE {
            0 => NativeCode::Loop,
            _ => NativeCode::Whole,
        },
        callbacks: Callbacks {
            user: raw.user,
            walk: raw.walk,
            on_sample: raw.on_sample,
        },
    };
    AGENT
        .register_heap(&description)
        .map_or(std::ptr::null(), std::ptr::from_ref)
}

unsafe extern "C" fn heap_unregister(heap: HeapHandle) -> i32 {
    // SAFETY: the header's rules.
    let Some(heap) = (unsafe { heap_of(heap) }) else {
        return INVALID;
    };
    AGENT.switch_heap(heap, false);
    AGENT.discard(heap);
    OK
}

unsafe extern "C" fn thread_name(name: *const c_char) -> i32 {
    let _errno = KeepErrno::new();
    // SAFETY: the header's rules.
    let name = unsafe { text_of(name) };
    if AGENT.name_thread(this_thread(), name) {
        OK
    } else {
        OFF
    }
}

unsafe extern "C" fn nursery_begin(heap: HeapHandle, slot: SlotHandle, free: u64, top: u64) -> u64 {
    let _errno = KeepErrno::new();
    // SAFETY: the header's rules.
    let (Some(heap), Some(slot)) = (unsafe { (heap_of(heap), slot_of(slot)) }) else {
        return top;
    };
    AGENT.nursery_begin(this_thread(), heap, slot, free, top)
}

unsafe extern "C" fn nursery_point(
    heap: HeapHandle,
    slot: SlotHandle,
    address: u64,
    size: u64,
    top: u64,
    type_id: u32,
) -> u64 {
    let _errno = KeepErrno::new();
    let caller = here();
    // SAFETY: the header's rules.
    let (Some(heap), Some(slot)) = (unsafe { (heap_of(heap), slot_of(slot)) }) else {
        return top;
    };
    let object = Object {
        address,
        size,
        type_id,
    };
    AGENT.nursery_point(this_thread(), heap, slot, object, top, &caller)
}

unsafe extern "C" fn nursery_sync(
    heap: HeapHandle,
    slot: SlotHandle,
    old_free: u64,
    free: u64,
    top: u64,
) -> u64 {
    let _errno = KeepErrno::new();
    // SAFETY: the header's rules.
    let (Some(heap), Some(slot)) = (unsafe { (heap_of(heap), slot_of(slot)) }) else {
        return top;
    };
    AGENT.nursery_sync(heap, slot, old_free, free, top)
}

unsafe extern "C" fn nursery_enable(
    heap: HeapHandle,
    slot: SlotHandle,
    free: u64,
    top: u64,
    is_on: u32,
) -> u64 {
    // SAFETY: the header's rules.
    let (Some(heap), Some(slot)) = (unsafe { (heap_of(heap), slot_of(slot)) }) else {
        return top;
    };
    AGENT
        .nursery_enable(heap, slot, free, is_on != 0)
        .unwrap_or(top)
}

unsafe extern "C" fn nursery_end(heap: HeapHandle, slot: SlotHandle, free: u64) {
    // SAFETY: the header's rules.
    if let (Some(heap), Some(slot)) = unsafe { (heap_of(heap), slot_of(slot)) } {
        AGENT.nursery_end(heap, slot, free);
    }
}

unsafe extern "C" fn alloc(
    heap: HeapHandle,
    slot: SlotHandle,
    address: u64,
    size: u64,
    type_id: u32,
    free: u64,
    limit: *mut u64,
) -> u64 {
    let _errno = KeepErrno::new();
    let caller = here();
    // SAFETY: the header's rules.
    let (Some(heap), Some(slot)) = (unsafe { (heap_of(heap), slot_of(slot)) }) else {
        return NO_SAMPLE;
    };
    let object = Object {
        address,
        size,
        type_id,
    };
    let (id, new_limit) = AGENT.alloc_outside(this_thread(), heap, slot, object, free, &caller);
    if let Some(new_limit) = new_limit
        && !limit.is_null()
    {
        // SAFETY: the header's rules: a place for it.
        unsafe { limit.write(new_limit) };
    }
    id.map_or(NO_SAMPLE, |id| id.0)
}

unsafe extern "C" fn sampled(
    heap: HeapHandle,
    address: u64,
    size: u64,
    type_id: u32,
    frames: *const RawFrame,
    count: usize,
) -> u64 {
    let _errno = KeepErrno::new();
    let caller = here();
    // SAFETY: the header's rules.
    let Some(heap) = (unsafe { heap_of(heap) }) else {
        return NO_SAMPLE;
    };
    let frames = if frames.is_null() {
        &[]
    } else {
        // SAFETY: the header's rules: that many frames.
        unsafe { std::slice::from_raw_parts(frames, count) }
    };
    let object = Object {
        address,
        size,
        type_id,
    };
    AGENT
        .heap_sampled(this_thread(), heap, object, frames, &caller)
        .map_or(NO_SAMPLE, |id| id.0)
}

unsafe extern "C" fn freed(heap: HeapHandle, address: u64) {
    let _errno = KeepErrno::new();
    // SAFETY: the header's rules.
    if let Some(heap) = unsafe { heap_of(heap) } {
        AGENT.heap_freed(this_thread(), heap, address);
    }
}

unsafe extern "C" fn moved(heap: HeapHandle, from: u64, to: u64) {
    // SAFETY: the header's rules.
    if let Some(heap) = unsafe { heap_of(heap) } {
        AGENT.heap_moved(heap, from, to);
    }
}

unsafe extern "C" fn pending(
    heap: HeapHandle,
    slot: SlotHandle,
    kind: u32,
    samples: *mut Pending,
    capacity: usize,
    cursor: *mut u64,
) -> usize {
    if samples.is_null() || cursor.is_null() {
        return 0;
    }
    // SAFETY: the header's rules: room for that many, all of plain numbers, and a cursor.
    let (samples, cursor) = unsafe {
        (
            std::slice::from_raw_parts_mut(samples, capacity),
            &mut *cursor,
        )
    };
    // SAFETY: the header's rules.
    match unsafe { (GcKind::from_number(kind), heap_of(heap), slot_of(slot)) } {
        (Some(GcKind::Minor), Some(heap), Some(slot)) => {
            AGENT.pending_young(heap, slot, samples, cursor)
        }
        (Some(GcKind::Minor), Some(heap), None) => AGENT.pending_late(heap, samples, cursor),
        (Some(GcKind::Major | GcKind::MajorStep), Some(heap), _) => {
            AGENT.pending_old(heap, samples, cursor)
        }
        _ => 0,
    }
}

unsafe extern "C" fn resolve(
    heap: HeapHandle,
    slot: SlotHandle,
    kind: u32,
    resolutions: *const Resolution,
    count: usize,
    gc_id: u64,
) -> usize {
    let _errno = KeepErrno::new();
    if resolutions.is_null() {
        return 0;
    }
    // SAFETY: the header's rules: that many.
    let resolutions = unsafe { std::slice::from_raw_parts(resolutions, count) };
    // SAFETY: the header's rules.
    match unsafe { (GcKind::from_number(kind), heap_of(heap), slot_of(slot)) } {
        (Some(GcKind::Minor), Some(heap), Some(slot)) => {
            AGENT.resolve_young(heap, slot, resolutions, gc_id)
        }
        (Some(GcKind::Minor), Some(heap), None) => AGENT.resolve_late(heap, resolutions, gc_id),
        (Some(GcKind::Major | GcKind::MajorStep), Some(heap), _) => {
            AGENT.resolve_old(heap, resolutions, gc_id)
        }
        _ => 0,
    }
}

/// # Safety
/// The header's rules.
unsafe fn define(
    heap: HeapHandle,
    kind: Definition,
    id: u32,
    value: u32,
    name: *const c_char,
    detail: *const c_char,
) -> i32 {
    let _errno = KeepErrno::new();
    // SAFETY: the caller's promise.
    let (heap, name, detail) = unsafe { (heap_of(heap), text_of(name), text_of(detail)) };
    let Some(heap) = heap else {
        return INVALID;
    };
    result(AGENT.define_name(kind, heap.id(), id, value, name, detail))
}

unsafe extern "C" fn define_type(
    heap: HeapHandle,
    id: u32,
    name: *const c_char,
    detail: *const c_char,
) -> i32 {
    // SAFETY: the header's rules.
    unsafe { define(heap, Definition::Type, id, 0, name, detail) }
}

unsafe extern "C" fn define_function(
    heap: HeapHandle,
    id: u32,
    name: *const c_char,
    file: *const c_char,
    line: u32,
) -> i32 {
    // SAFETY: the header's rules.
    unsafe { define(heap, Definition::Function, id, line, name, file) }
}

unsafe extern "C" fn define_statistic(
    heap: HeapHandle,
    id: u32,
    name: *const c_char,
    unit: *const c_char,
) -> i32 {
    // SAFETY: the header's rules.
    unsafe { define(heap, Definition::Statistic, id, 0, name, unit) }
}

unsafe extern "C" fn define_inlined(
    heap: HeapHandle,
    id: u32,
    frames: *const RawFrame,
    count: usize,
) -> i32 {
    let _errno = KeepErrno::new();
    // SAFETY: the header's rules.
    let Some(heap) = (unsafe { heap_of(heap) }) else {
        return INVALID;
    };
    let mut pairs = [0; MAX_NAME_BYTES];
    if frames.is_null() || count == 0 || count > pairs.len() / 8 {
        return INVALID;
    }
    // SAFETY: the header's rules: that many frames.
    let frames = unsafe { std::slice::from_raw_parts(frames, count) };
    for (place, frame) in pairs.chunks_exact_mut(8).zip(frames) {
        let (function, line) = place.split_at_mut(4);
        function.copy_from_slice(&frame.function.to_le_bytes());
        line.copy_from_slice(&frame.line.to_le_bytes());
    }
    let told = pairs.get(..count * 8).unwrap_or(&[]);
    result(AGENT.define_name(Definition::Inlined, heap.id(), id, 0, told, &[]))
}

unsafe extern "C" fn shadow_stack(heap: HeapHandle, stack: *const ShadowStack) -> i32 {
    // SAFETY: the header's rules.
    let (heap, stack) = unsafe { (heap_of(heap), stack.as_ref()) };
    let thread = this_thread();
    let is_its_own = heap.is_some_and(|heap| thread.vm_heap() == u32::from(heap.id().0));
    if !is_its_own || !stack.is_none_or(ShadowStack::is_sensible) {
        return INVALID;
    }
    let address = stack.map_or(0, |stack| {
        std::ptr::from_ref(stack).expose_provenance() as u64
    });
    thread.set_shadow_stack(address);
    OK
}

extern "C" fn thread_enable(is_on: u32) -> i32 {
    let _errno = KeepErrno::new();
    match AGENT.enable_thread(this_thread(), is_on != 0) {
        true => OK,
        false => OFF,
    }
}

unsafe extern "C" fn interpreter_range(heap: HeapHandle, start: u64, end: u64) -> i32 {
    // SAFETY: the header's rules.
    match unsafe { heap_of(heap) } {
        Some(heap) if start < end => result(AGENT.add_interpreter_range(heap, start, end)),
        _ => INVALID,
    }
}

/// # Safety
/// The header's rules.
unsafe fn change_code(
    heap: HeapHandle,
    change: CodeChange,
    start: u64,
    end: u64,
    function: u32,
) -> i32 {
    let _errno = KeepErrno::new();
    // SAFETY: the caller's promise.
    let Some(heap) = (unsafe { heap_of(heap) }) else {
        return INVALID;
    };
    result(AGENT.tell_code(&CodeRecord {
        time_ns: clock::monotonic_ns(),
        change,
        start,
        end,
        frame: VmFrame {
            heap: heap.id(),
            function,
            line: 0,
        },
    }))
}

unsafe extern "C" fn code_add(heap: HeapHandle, start: u64, end: u64, function: u32) -> i32 {
    // SAFETY: the header's rules.
    unsafe { change_code(heap, CodeChange::Add, start, end, function) }
}

unsafe extern "C" fn code_move(heap: HeapHandle, from: u64, to: u64) -> i32 {
    // SAFETY: the header's rules.
    unsafe { change_code(heap, CodeChange::Move, from, to, 0) }
}

unsafe extern "C" fn code_remove(heap: HeapHandle, start: u64) -> i32 {
    // SAFETY: the header's rules.
    unsafe { change_code(heap, CodeChange::Remove, start, 0, 0) }
}

extern "C" fn now_ns() -> u64 {
    let _errno = KeepErrno::new();
    clock::monotonic_ns()
}

unsafe extern "C" fn gc(heap: HeapHandle, gc: *const RawGc) -> i32 {
    let _errno = KeepErrno::new();
    // SAFETY: the header's rules.
    let (Some(heap), Some(raw)) = (unsafe { (heap_of(heap), gc.as_ref()) }) else {
        return INVALID;
    };
    let Some(kind) = GcKind::from_number(raw.kind) else {
        return INVALID;
    };
    if (raw.size as usize) < size_of::<RawGc>() {
        return INVALID;
    }
    let count = (raw.statistics as usize * 2).min(MAX_GC_STATISTICS);
    let statistics = if raw.values.is_null() {
        &[]
    } else {
        // SAFETY: the header's rules: that many pairs.
        unsafe { std::slice::from_raw_parts(raw.values, count) }
    };
    AGENT.begin_time_line(this_thread());
    result(AGENT.tell_gc(&GcRecord {
        heap: heap.id(),
        kind,
        id: raw.id,
        begin_ns: raw.begin_ns,
        end_ns: raw.end_ns,
        statistics,
    }))
}

/// # Safety
/// The header's rules.
unsafe fn mark(
    heap: HeapHandle,
    name: *const c_char,
    is_phase: bool,
    begin_ns: u64,
    end_ns: u64,
) -> i32 {
    let _errno = KeepErrno::new();
    // SAFETY: the caller's promise.
    let (heap, name) = unsafe { (heap_of(heap), text_of(name)) };
    let Some(heap) = heap else {
        return INVALID;
    };
    AGENT.begin_time_line(this_thread());
    result(AGENT.tell_marker(&MarkerRecord {
        heap: heap.id(),
        is_phase,
        begin_ns,
        end_ns,
        name,
    }))
}

unsafe extern "C" fn phase(heap: HeapHandle, name: *const c_char) -> i32 {
    let now = now_ns();
    // SAFETY: the header's rules.
    unsafe { mark(heap, name, true, now, now) }
}

unsafe extern "C" fn marker(
    heap: HeapHandle,
    name: *const c_char,
    begin_ns: u64,
    end_ns: u64,
) -> i32 {
    // SAFETY: the header's rules.
    unsafe { mark(heap, name, false, begin_ns, end_ns) }
}

unsafe extern "C" fn value(heap: HeapHandle, statistic: u32, value: u64) -> i32 {
    let _errno = KeepErrno::new();
    // SAFETY: the header's rules.
    match unsafe { heap_of(heap) } {
        Some(heap) => {
            AGENT.begin_time_line(this_thread());
            result(AGENT.tell_value(heap, statistic, value))
        }
        None => INVALID,
    }
}

unsafe extern "C" fn control(heap: HeapHandle, operation: u32, value: u64) -> i32 {
    let _errno = KeepErrno::new();
    // SAFETY: the header's rules.
    let Some(heap) = (unsafe { heap_of(heap) }) else {
        return INVALID;
    };
    match operation {
        1 => AGENT.switch_heap(heap, true),
        2 => AGENT.switch_heap(heap, false),
        3 => match Interval::new(value) {
            Some(interval) => return result(AGENT.set_heap_interval(heap, interval)),
            None => return INVALID,
        },
        4 => AGENT.discard(heap),
        _ => return INVALID,
    }
    OK
}

unsafe extern "C" fn counters(heap: HeapHandle, counters: *mut RawCounters) -> i32 {
    // SAFETY: the header's rules.
    let (Some(heap), Some(to)) = (unsafe { (heap_of(heap), counters.as_mut()) }) else {
        return INVALID;
    };
    if (to.size as usize) < size_of::<RawCounters>() {
        return INVALID;
    }
    let found = heap.counters();
    to.is_on = u32::from(found.is_on);
    to.interval = found.interval_bytes;
    to.exact_bytes = found.exact_bytes;
    to.samples = found.samples;
    to.pending = AGENT.old_count(heap);
    OK
}
