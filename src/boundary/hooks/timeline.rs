//! The hooks about the timeline: collections, phases, markers, readings.

use std::ffi::c_char;

use allocsample_agent::os::clock;
use allocsample_record::{GcKind, GcRecord, MAX_GC_STATISTICS, MarkerRecord};

use super::{Entered, HeapHandle, INVALID, heap_of, result, text_of};
use crate::AGENT;
use crate::slow_path::this_thread;

/// Mirror of `allocsample_gc`.
#[repr(C)]
pub(super) struct RawGc {
    size: u32,
    kind: u32,
    id: u64,
    begin_ns: u64,
    end_ns: u64,
    statistics: u32,
    reserved: u32,
    values: *const u64,
}

pub(super) extern "C" fn now_ns() -> u64 {
    let _entered = Entered::new();
    clock::monotonic_ns()
}

pub(super) unsafe extern "C" fn gc(heap: HeapHandle, gc: *const RawGc) -> i32 {
    let _entered = Entered::new();
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
    result(AGENT.write_gc(&GcRecord {
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
    let _entered = Entered::new();
    // SAFETY: the caller's promise.
    let (heap, name) = unsafe { (heap_of(heap), text_of(name)) };
    let Some(heap) = heap else {
        return INVALID;
    };
    AGENT.begin_time_line(this_thread());
    result(AGENT.publisher().write_marker(&MarkerRecord {
        heap: heap.id(),
        is_phase,
        begin_ns,
        end_ns,
        name,
    }))
}

pub(super) unsafe extern "C" fn phase(heap: HeapHandle, name: *const c_char) -> i32 {
    let now = now_ns();
    // SAFETY: the header's rules.
    unsafe { mark(heap, name, true, now, now) }
}

pub(super) unsafe extern "C" fn marker(
    heap: HeapHandle,
    name: *const c_char,
    begin_ns: u64,
    end_ns: u64,
) -> i32 {
    // SAFETY: the header's rules.
    unsafe { mark(heap, name, false, begin_ns, end_ns) }
}

pub(super) unsafe extern "C" fn value(heap: HeapHandle, statistic: u32, value: u64) -> i32 {
    let _entered = Entered::new();
    // SAFETY: the header's rules.
    match unsafe { heap_of(heap) } {
        Some(heap) => {
            AGENT.begin_time_line(this_thread());
            result(AGENT.publisher().write_value(heap, statistic, value))
        }
        None => INVALID,
    }
}
