//! The hooks about names, code and frames.

use std::ffi::c_char;

use allocsample_agent::os::clock;
use allocsample_agent::stack::shadow::ShadowStack;
use allocsample_agent::stack::vm::RawFrame;
use allocsample_record::{CodeChange, CodeRecord, Definition, MAX_NAME_BYTES, VmFrame};

use super::{Entered, HeapHandle, INVALID, OFF, OK, heap_of, result, text_of};
use crate::AGENT;
use crate::slow_path::this_thread;

pub(super) unsafe extern "C" fn thread_name(name: *const c_char) -> i32 {
    let _entered = Entered::new();
    // SAFETY: the header's rules.
    let name = unsafe { text_of(name) };
    if AGENT.name_thread(this_thread(), name) {
        OK
    } else {
        OFF
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
    let _entered = Entered::new();
    // SAFETY: the caller's promise.
    let (heap, name, detail) = unsafe { (heap_of(heap), text_of(name), text_of(detail)) };
    let Some(heap) = heap else {
        return INVALID;
    };
    result(
        AGENT
            .publisher()
            .define_name(kind, heap.id(), id, value, name, detail),
    )
}

pub(super) unsafe extern "C" fn define_type(
    heap: HeapHandle,
    id: u32,
    name: *const c_char,
    detail: *const c_char,
) -> i32 {
    // SAFETY: the header's rules.
    unsafe { define(heap, Definition::Type, id, 0, name, detail) }
}

pub(super) unsafe extern "C" fn define_function(
    heap: HeapHandle,
    id: u32,
    name: *const c_char,
    file: *const c_char,
    line: u32,
) -> i32 {
    // SAFETY: the header's rules.
    unsafe { define(heap, Definition::Function, id, line, name, file) }
}

pub(super) unsafe extern "C" fn define_statistic(
    heap: HeapHandle,
    id: u32,
    name: *const c_char,
    unit: *const c_char,
) -> i32 {
    // SAFETY: the header's rules.
    unsafe { define(heap, Definition::Statistic, id, 0, name, unit) }
}

pub(super) unsafe extern "C" fn define_inlined(
    heap: HeapHandle,
    id: u32,
    frames: *const RawFrame,
    count: usize,
) -> i32 {
    let _entered = Entered::new();
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
    result(
        AGENT
            .publisher()
            .define_name(Definition::Inlined, heap.id(), id, 0, told, &[]),
    )
}

pub(super) unsafe extern "C" fn heap_range(
    heap: HeapHandle,
    number: u32,
    start: u64,
    end: u64,
) -> i32 {
    let _entered = Entered::new();
    // SAFETY: the header's rules.
    let Some(heap) = (unsafe { heap_of(heap) }).filter(|_| start <= end) else {
        return INVALID;
    };
    let mut range = [0; 16];
    let (first, last) = range.split_at_mut(8);
    first.copy_from_slice(&start.to_le_bytes());
    last.copy_from_slice(&end.to_le_bytes());
    result(
        AGENT
            .publisher()
            .define_name(Definition::Range, heap.id(), number, 0, &range, &[]),
    )
}

pub(super) unsafe extern "C" fn shadow_stack(heap: HeapHandle, stack: *const ShadowStack) -> i32 {
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

pub(super) unsafe extern "C" fn interpreter_range(heap: HeapHandle, start: u64, end: u64) -> i32 {
    // SAFETY: the header's rules.
    match unsafe { heap_of(heap) } {
        Some(heap) if start < end => result(heap.add_interpreter_range(start, end)),
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
    let _entered = Entered::new();
    // SAFETY: the caller's promise.
    let Some(heap) = (unsafe { heap_of(heap) }) else {
        return INVALID;
    };
    result(AGENT.write_code(&CodeRecord {
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

pub(super) unsafe extern "C" fn code_add(
    heap: HeapHandle,
    start: u64,
    end: u64,
    function: u32,
) -> i32 {
    // SAFETY: the header's rules.
    unsafe { change_code(heap, CodeChange::Add, start, end, function) }
}

pub(super) unsafe extern "C" fn code_move(heap: HeapHandle, from: u64, to: u64) -> i32 {
    // SAFETY: the header's rules.
    unsafe { change_code(heap, CodeChange::Move, from, to, 0) }
}

pub(super) unsafe extern "C" fn code_remove(heap: HeapHandle, start: u64) -> i32 {
    // SAFETY: the header's rules.
    unsafe { change_code(heap, CodeChange::Remove, start, 0, 0) }
}
