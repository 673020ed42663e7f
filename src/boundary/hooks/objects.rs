//! The hooks about objects: sampling, and their fates.

use allocsample_agent::Interval;
use allocsample_agent::hooks::{Drawn, Object, Pending, Resolution};
use allocsample_agent::stack::vm::RawFrame;
use allocsample_front::here;
use allocsample_record::GcKind;

use super::{Entered, HeapHandle, INVALID, NO_SAMPLE, SlotHandle, heap_of, result, slot_of};
use crate::AGENT;
use crate::slow_path::this_thread;

pub(super) unsafe extern "C" fn nursery_begin(
    heap: HeapHandle,
    slot: SlotHandle,
    free: u64,
    top: u64,
) -> u64 {
    let _entered = Entered::new();
    // SAFETY: the header's rules.
    let (Some(heap), Some(slot)) = (unsafe { (heap_of(heap), slot_of(slot)) }) else {
        return top;
    };
    AGENT.nursery_begin(this_thread(), heap, slot, free, top)
}

pub(super) unsafe extern "C" fn nursery_point(
    heap: HeapHandle,
    slot: SlotHandle,
    address: u64,
    size: u64,
    top: u64,
    type_id: u32,
) -> u64 {
    let _entered = Entered::new();
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

pub(super) unsafe extern "C" fn nursery_sync(
    heap: HeapHandle,
    slot: SlotHandle,
    old_free: u64,
    free: u64,
    top: u64,
) -> u64 {
    let _entered = Entered::new();
    // SAFETY: the header's rules.
    let (Some(heap), Some(slot)) = (unsafe { (heap_of(heap), slot_of(slot)) }) else {
        return top;
    };
    AGENT.nursery_sync(this_thread(), heap, slot, old_free, free, top)
}

pub(super) unsafe extern "C" fn nursery_enable(
    heap: HeapHandle,
    slot: SlotHandle,
    free: u64,
    top: u64,
    is_on: u32,
) -> u64 {
    let _entered = Entered::new();
    // SAFETY: the header's rules.
    let (Some(heap), Some(slot)) = (unsafe { (heap_of(heap), slot_of(slot)) }) else {
        return top;
    };
    AGENT
        .nursery_enable(heap, slot, free, is_on != 0)
        .unwrap_or(top)
}

pub(super) unsafe extern "C" fn nursery_end(heap: HeapHandle, slot: SlotHandle, free: u64) {
    let _entered = Entered::new();
    // SAFETY: the header's rules.
    if let (Some(heap), Some(slot)) = unsafe { (heap_of(heap), slot_of(slot)) } {
        AGENT.nursery_end(heap, slot, free);
    }
}

pub(super) unsafe extern "C" fn alloc(
    heap: HeapHandle,
    slot: SlotHandle,
    address: u64,
    size: u64,
    type_id: u32,
    free: u64,
    limit: *mut u64,
) -> u64 {
    let _entered = Entered::new();
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
    id.map_or(NO_SAMPLE, |id| AGENT.name_of(heap, id))
}

pub(super) unsafe extern "C" fn sampled(
    heap: HeapHandle,
    address: u64,
    size: u64,
    type_id: u32,
    frames: *const RawFrame,
    count: usize,
) -> u64 {
    // SAFETY: the header's rules.
    unsafe {
        tell(
            heap,
            address,
            size,
            type_id,
            frames,
            count,
            Drawn::default(),
        )
    }
}

pub(super) unsafe extern "C" fn sampled_at(
    heap: HeapHandle,
    address: u64,
    size: u64,
    type_id: u32,
    frames: *const RawFrame,
    count: usize,
    interval: u64,
) -> u64 {
    let at = Interval::new(interval);
    if at.is_none() {
        let _entered = Entered::new();
        AGENT.apply_new_request(this_thread());
        return NO_SAMPLE;
    }
    let drawn = Drawn { at, time_ns: None };
    // SAFETY: the header's rules.
    unsafe { tell(heap, address, size, type_id, frames, count, drawn) }
}

pub(super) unsafe extern "C" fn sampled_earlier(
    heap: HeapHandle,
    address: u64,
    size: u64,
    type_id: u32,
    frames: *const RawFrame,
    count: usize,
    interval: u64,
    time_ns: u64,
) -> u64 {
    let at = Interval::new(interval);
    if at.is_none() {
        return NO_SAMPLE;
    }
    let time_ns = Some(time_ns);
    // SAFETY: the header's rules.
    unsafe {
        tell(
            heap,
            address,
            size,
            type_id,
            frames,
            count,
            Drawn { at, time_ns },
        )
    }
}

/// An object that the machine has drawn. Inlined, so that `here` is in the hook's own frame.
///
/// # Safety
/// The header's rules.
#[inline(always)]
unsafe fn tell(
    heap: HeapHandle,
    address: u64,
    size: u64,
    type_id: u32,
    frames: *const RawFrame,
    count: usize,
    drawn: Drawn,
) -> u64 {
    let _entered = Entered::new();
    let caller = here();
    // SAFETY: the caller's promise.
    let Some(heap) = (unsafe { heap_of(heap) }) else {
        return NO_SAMPLE;
    };
    let frames = if frames.is_null() {
        &[]
    } else {
        // SAFETY: the caller's promise: that many frames.
        unsafe { std::slice::from_raw_parts(frames, count) }
    };
    let object = Object {
        address,
        size,
        type_id,
    };
    AGENT
        .heap_sampled(this_thread(), heap, object, frames, drawn, &caller)
        .map_or(NO_SAMPLE, |id| AGENT.name_of(heap, id))
}

pub(super) unsafe extern "C" fn typed(heap: HeapHandle, id: u64, type_id: u32) -> i32 {
    let _entered = Entered::new();
    // SAFETY: the header's rules.
    let Some(heap) = (unsafe { heap_of(heap) }) else {
        return INVALID;
    };
    match AGENT.sample_named(heap, id) {
        Some(sample) if id != NO_SAMPLE && type_id != 0 => {
            result(AGENT.publisher().write_type(sample, type_id))
        }
        _ => INVALID,
    }
}

pub(super) unsafe extern "C" fn freed(heap: HeapHandle, address: u64) {
    let _entered = Entered::new();
    let caller = here();
    // SAFETY: the header's rules.
    if let Some(heap) = unsafe { heap_of(heap) } {
        AGENT.heap_freed(this_thread(), heap, address, &caller);
    }
}

pub(super) unsafe extern "C" fn freed_earlier(heap: HeapHandle, address: u64, time_ns: u64) {
    let _entered = Entered::new();
    let caller = here();
    // SAFETY: the header's rules.
    if let Some(heap) = unsafe { heap_of(heap) } {
        AGENT.heap_freed_at(this_thread(), heap, address, time_ns, &caller);
    }
}

pub(super) unsafe extern "C" fn died(heap: HeapHandle, samples: *const u64, count: usize) {
    let _entered = Entered::new();
    if samples.is_null() {
        return;
    }
    // SAFETY: the header's rules.
    if let Some(heap) = unsafe { heap_of(heap) } {
        // SAFETY: the header's rules: that many.
        let samples = unsafe { std::slice::from_raw_parts(samples, count) };
        AGENT.heap_died(this_thread(), heap, samples);
    }
}

pub(super) unsafe extern "C" fn moved(heap: HeapHandle, from: u64, to: u64) {
    let _entered = Entered::new();
    // SAFETY: the header's rules.
    if let Some(heap) = unsafe { heap_of(heap) } {
        AGENT.heap_moved(heap, from, to);
    }
}

pub(super) unsafe extern "C" fn pending(
    heap: HeapHandle,
    slot: SlotHandle,
    kind: u32,
    samples: *mut Pending,
    capacity: usize,
    cursor: *mut u64,
) -> usize {
    let _entered = Entered::new();
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
        (Some(GcKind::Minor), Some(heap), None) => heap.pending_late(samples, cursor),
        (Some(GcKind::Major | GcKind::MajorStep), Some(heap), _) => {
            heap.pending_old(samples, cursor)
        }
        _ => 0,
    }
}

pub(super) unsafe extern "C" fn resolve(
    heap: HeapHandle,
    slot: SlotHandle,
    kind: u32,
    resolutions: *const Resolution,
    count: usize,
    gc_id: u64,
) -> usize {
    let _entered = Entered::new();
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
        (Some(GcKind::Minor), Some(heap), None) => {
            heap.resolve_late(AGENT.publisher(), resolutions, gc_id)
        }
        (Some(GcKind::Major | GcKind::MajorStep), Some(heap), _) => {
            heap.resolve_old(AGENT.publisher(), resolutions, gc_id)
        }
        _ => 0,
    }
}
