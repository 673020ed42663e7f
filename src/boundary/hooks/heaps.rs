//! The hooks about heaps.

use std::ffi::{c_char, c_void};
use std::mem::offset_of;

use allocsample_agent::Interval;
use allocsample_agent::hooks::{Callbacks, Description};
use allocsample_agent::stack::vm::{NativeCode, VmWalk};
use allocsample_record::HeapKind;

use super::{Entered, HeapHandle, INVALID, OK, heap_of, result, text_of};
use crate::AGENT;

/// Mirror of `allocsample_heap_description`.
#[repr(C)]
pub(super) struct RawDescription {
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

/// Mirror of `allocsample_heap_description` as it is now. The part above is what the first header had.
#[repr(C)]
struct RawDescriptionNow {
    first: RawDescription,
    on_change: Option<unsafe extern "C" fn(*mut c_void)>,
    collect: Option<unsafe extern "C" fn(*mut c_void) -> i32>,
}

/// Mirror of `allocsample_counters`.
#[repr(C)]
pub(super) struct RawCounters {
    size: u32,
    is_on: u32,
    interval: u64,
    exact_bytes: u64,
    samples: u64,
    pending: u64,
}

pub(super) unsafe extern "C" fn heap_register(description: *const RawDescription) -> HeapHandle {
    let _entered = Entered::new();
    // SAFETY: the header's rules.
    let Some(raw) = (unsafe { description.as_ref() }) else {
        return std::ptr::null();
    };
    // Pages are the agent's own.
    let kind = HeapKind::from_number(raw.kind).filter(|&kind| kind != HeapKind::Pages);
    let Some(kind) = kind else {
        return std::ptr::null();
    };
    if (raw.size as usize) < size_of::<RawDescription>() || raw.name.is_null() {
        return std::ptr::null();
    }
    let now = description.cast::<RawDescriptionNow>();
    let has = |end: usize| raw.size as usize >= end;
    // SAFETY: the header's rules: so many bytes are there.
    let on_change = has(offset_of!(RawDescriptionNow, collect))
        .then(|| unsafe { (*now).on_change })
        .flatten();
    // SAFETY: as above.
    let collect = has(size_of::<RawDescriptionNow>())
        .then(|| unsafe { (*now).collect })
        .flatten();
    const WALK_IN_MALLOC: u32 = 1;
    const WALK_EVERYWHERE: u32 = 2;
    const WHOLE_CODE: u32 = 4;
    const WALK_IN_TICKS: u32 = 8;
    const SCANS_STACKS: u32 = 16;
    const WALK_IS_WHOLE: u32 = 32;
    const LOOP_HAS_THUNKS: u32 = 64;
    const CODE_IS_NO_MODULE: u32 = 128;
    const FREED_BY_MALLOC: u32 = 256;
    const WALK_IN_FREE: u32 = 512;
    const ENDS_BY_ID: u32 = 1024;
    let description = Description {
        kind,
        // SAFETY: the header's rules.
        name: unsafe { text_of(raw.name) },
        interval: Interval::new(raw.interval),
        is_walked_in_malloc: raw.flags & (WALK_IN_MALLOC | WALK_EVERYWHERE) != 0,
        is_walked_in_free: raw.flags & WALK_IN_FREE != 0,
        is_walked_everywhere: raw.flags & WALK_EVERYWHERE != 0,
        is_walked_in_ticks: raw.flags & WALK_IN_TICKS != 0,
        scans_stacks: raw.flags & SCANS_STACKS != 0,
        is_freed_by_malloc: raw.flags & FREED_BY_MALLOC != 0,
        ends_by_id: raw.flags & ENDS_BY_ID != 0,
        loop_has_thunks: raw.flags & LOOP_HAS_THUNKS != 0,
        is_walk_whole: raw.flags & WALK_IS_WHOLE != 0,
        native_code: match raw.flags & (WHOLE_CODE | CODE_IS_NO_MODULE) {
            0 => NativeCode::Loop,
            WHOLE_CODE => NativeCode::Whole,
            CODE_IS_NO_MODULE => NativeCode::OutsideModules,
            _ => NativeCode::WholeAndOutsideModules,
        },
        callbacks: Callbacks {
            user: raw.user,
            walk: raw.walk,
            on_sample: raw.on_sample,
            on_change,
            collect,
        },
    };
    AGENT
        .register_heap(&description)
        .map_or(std::ptr::null(), std::ptr::from_ref)
}

pub(super) unsafe extern "C" fn heap_unregister(heap: HeapHandle) -> i32 {
    let _entered = Entered::new();
    // SAFETY: the header's rules.
    let Some(heap) = (unsafe { heap_of(heap) }) else {
        return INVALID;
    };
    heap.take_back();
    heap.discard(AGENT.publisher());
    OK
}

pub(super) unsafe extern "C" fn control(heap: HeapHandle, operation: u32, value: u64) -> i32 {
    let _entered = Entered::new();
    // SAFETY: the header's rules.
    let Some(heap) = (unsafe { heap_of(heap) }) else {
        return INVALID;
    };
    match operation {
        1 => heap.switch(true),
        2 => heap.switch(false),
        3 => match Interval::new(value) {
            Some(interval) => return result(AGENT.set_heap_interval(heap, interval)),
            None => return INVALID,
        },
        4 => heap.discard(AGENT.publisher()),
        _ => return INVALID,
    }
    OK
}

pub(super) unsafe extern "C" fn collected(heap: HeapHandle, status: i32) -> i32 {
    let _entered = Entered::new();
    // SAFETY: the header's rules.
    match unsafe { heap_of(heap) } {
        Some(heap) if AGENT.heap_collected(heap, status >= 0) => OK,
        _ => INVALID,
    }
}

pub(super) unsafe extern "C" fn counters(heap: HeapHandle, counters: *mut RawCounters) -> i32 {
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
    to.pending = heap.old_count();
    OK
}
