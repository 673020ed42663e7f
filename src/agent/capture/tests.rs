//! Stacks of a machine among native ones, put together in a work area whose frames the test gives.
#![allow(clippy::indexing_slicing, reason = "a test may fail")]

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::boxed::Box;
use std::vec::Vec;

use allocsample_record::{HeapId, HeapKind, SampleFlags, VmFrame};

use super::{Capture, WorkArea};
use crate::accounting::thread::ShimThread;
use crate::hooks::{Description, Heap};
use crate::setup::{Hooks, Start};
use crate::stack::Captured;
use crate::stack::shadow::ShadowStack;
use crate::stack::vm::{NativeCode, RawFrame};
use crate::trial::{Trial, agent};

const LOOP: u64 = 0x1_0000;
/// In no module.
const COMPILED: u64 = 0x2_0000;

/// What a walker gives: the functions' numbers, leaf first, each an entry.
struct Machine {
    functions: Vec<u32>,
}

unsafe extern "C" fn walk(user: *mut c_void, frames: *mut RawFrame, room: usize) -> usize {
    // SAFETY: the test's own machine, and a buffer as long as it says.
    let (machine, frames) = unsafe {
        (
            &*user.cast::<Machine>(),
            core::slice::from_raw_parts_mut(frames, room),
        )
    };
    let functions = machine.functions.iter();
    for (place, &function) in frames.iter_mut().zip(functions) {
        *place = RawFrame {
            function,
            line: 7,
            flags: RawFrame::ENTRY,
            reserved: 0,
        };
    }
    machine.functions.len()
}

fn described(machine: Option<&Machine>, native_code: NativeCode) -> Description<'static> {
    let mut description = crate::hooks::tests::described(HeapKind::Nursery);
    description.is_walked_in_malloc = true;
    description.native_code = native_code;
    if let Some(machine) = machine {
        description.callbacks.user = core::ptr::from_ref(machine).cast_mut().cast();
        description.callbacks.walk = Some(walk);
    }
    description
}

fn machine(functions: &[u32]) -> &'static Machine {
    Box::leak(Box::new(Machine {
        functions: functions.to_vec(),
    }))
}

/// The address of a function in a module: this test's program.
fn in_module() -> u64 {
    machine as *const () as u64 + 1
}

/// The stack that a native one and the heap's machine make, with its flags.
fn merged(
    capture: &Capture,
    thread: &ShimThread,
    heap: &Heap,
    native: &[u64],
    flags: SampleFlags,
) -> (Vec<u64>, SampleFlags) {
    let found = capture.in_area_once(|area: &mut WorkArea| {
        area.frames[..native.len()].copy_from_slice(native);
        let mut captured = Captured {
            depth: native.len(),
            flags,
            ..Captured::default()
        };
        capture.add_vm_frames(thread, heap, area, &mut captured);
        assert!(captured.is_merged);
        (area.captured(&captured).to_vec(), captured.flags)
    });
    found.unwrap()
}

fn vm(heap: HeapId, function: u32) -> u64 {
    VmFrame {
        heap,
        function,
        line: 7,
    }
    .encode()
}

const WHOLE: SampleFlags = SampleFlags(0);

#[test]
fn a_machines_frames_take_the_place_of_its_loop() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1"), ("MAX_DEPTH", "8")]);
    let description = described(Some(machine(&[1, 2])), NativeCode::Loop);
    let heap = trial.agent.register_heap(&description).unwrap();
    assert!(heap.add_interpreter_range(LOOP, LOOP + 16));
    let (capture, thread) = (&trial.agent.capture, trial.thread());
    let stack = [in_module(), LOOP + 4, in_module(), LOOP + 8, in_module()];
    let (frames, flags) = merged(capture, thread, heap, &stack, WHOLE);
    let (first, second) = (vm(heap.id(), 1), vm(heap.id(), 2));
    let native = in_module();
    assert_eq!(frames, [native, first, native, second, native]);
    assert_eq!(flags, WHOLE);
    // A native walk that failed stays one: the loop's frames say nothing about what is behind the gap.
    let (_, flags) = merged(capture, thread, heap, &stack, SampleFlags::UNWIND_FAILED);
    assert_eq!(flags, SampleFlags::UNWIND_FAILED);
}

#[test]
fn machines_whose_code_is_on_the_stack_add_their_frames_to_those_of_the_first() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1"), ("MAX_DEPTH", "8")]);
    let (capture, thread) = (&trial.agent.capture, trial.thread());
    let at = |functions: &[u32], code, range: u64| {
        let description = described(Some(machine(functions)), code);
        let heap = trial.agent.register_heap(&description).unwrap();
        assert!(heap.add_interpreter_range(range, range + 16));
        heap
    };
    let first = at(&[1, 2], NativeCode::Loop, LOOP);
    let whole = at(&[3], NativeCode::Whole, LOOP + 100);
    let elsewhere = at(&[4], NativeCode::Loop, LOOP + 200);
    // A function of the first calls one of the second, whose library has two native frames.
    let native = in_module();
    let stack = [LOOP + 104, LOOP + 108, native, LOOP + 4, native, LOOP + 8];
    let frames = capture.in_area_once(|area: &mut WorkArea| {
        area.frames[..stack.len()].copy_from_slice(&stack);
        let mut captured = Captured {
            depth: stack.len(),
            ..Captured::default()
        };
        let others = || [whole, elsewhere].into_iter();
        capture.add_frames_of_others(thread, others(), area, &mut captured);
        // Of a stack that no machine is asked for.
        assert!(!captured.is_merged);
        capture.add_vm_frames(thread, first, area, &mut captured);
        capture.add_frames_of_others(thread, others(), area, &mut captured);
        assert_eq!(captured.flags, WHOLE);
        area.captured(&captured).to_vec()
    });
    let of = |heap: &Heap, function| vm(heap.id(), function);
    let expected = [of(whole, 3), native, of(first, 1), native, of(first, 2)];
    assert_eq!(frames.unwrap(), expected);
}

#[test]
fn a_machine_with_more_frames_than_room_is_truncated() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1"), ("MAX_DEPTH", "3")]);
    let (capture, thread) = (&trial.agent.capture, trial.thread());
    let of = |functions: &[u32], native: &[u64]| {
        let description = described(Some(machine(functions)), NativeCode::Loop);
        let heap = trial.agent.register_heap(&description).unwrap();
        let (frames, flags) = merged(capture, thread, heap, native, WHOLE);
        (frames.len(), flags)
    };
    // Two of the machine's and one native one fit; three of the machine's may have been cut off.
    assert_eq!(of(&[1, 2], &[]), (2, WHOLE));
    assert_eq!(of(&[1, 2], &[in_module()]), (3, WHOLE));
    assert_eq!(of(&[1, 2, 3], &[]), (3, SampleFlags::TRUNCATED));
    assert_eq!(of(&[1, 2, 3, 4], &[]), (3, SampleFlags::TRUNCATED));
    // The walker has room, and the merged stack has not.
    let two_native = [in_module(), in_module()];
    assert_eq!(of(&[1, 2], &two_native), (3, SampleFlags::TRUNCATED));
}

#[test]
fn compiled_code_ends_the_native_stack_of_a_machine_that_has_told_all() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1"), ("MAX_DEPTH", "8")]);
    trial
        .agent
        .modules()
        .set_find_object(crate::stack::tests::find_object());
    let (capture, thread) = (&trial.agent.capture, trial.thread());
    let native = in_module();
    let stack = [native, COMPILED, native];
    let failed = SampleFlags::UNWIND_FAILED;
    let of = |functions: &[u32], code, stack: &[u64]| {
        let description = described(Some(machine(functions)), code);
        let heap = trial.agent.register_heap(&description).unwrap();
        let (frames, flags) = merged(capture, thread, heap, stack, failed);
        let is_vm = |frame: &u64| *frame == vm(heap.id(), 1);
        let frames: Vec<u64> = frames
            .iter()
            .map(|frame| if is_vm(frame) { 1 } else { *frame })
            .collect();
        (frames, flags)
    };
    // Behind compiled code the walk follows no rules: what it found there is dropped, and so is its failure.
    for code in [
        NativeCode::OutsideModules,
        NativeCode::WholeAndOutsideModules,
    ] {
        let (frames, flags) = of(&[1], code, &stack);
        assert!(!frames.contains(&COMPILED), "{code:?}: {frames:x?}");
        assert_eq!(frames.iter().filter(|&&frame| frame == 1).count(), 1);
        assert_eq!(flags, WHOLE, "{code:?}");
    }
    // A machine without frames has told nothing.
    for code in [
        NativeCode::OutsideModules,
        NativeCode::WholeAndOutsideModules,
    ] {
        assert_eq!(of(&[], code, &stack), (stack.to_vec(), failed), "{code:?}");
    }
    // Nothing was dropped: the failure is that of the native stack.
    let (frames, flags) = of(&[1], NativeCode::WholeAndOutsideModules, &[native]);
    assert_eq!((frames.len(), flags), (2, failed));
    // Other machines say nothing of code outside of modules.
    for code in [NativeCode::Loop, NativeCode::Whole] {
        let (frames, flags) = of(&[1], code, &stack);
        assert!(frames.contains(&COMPILED), "{code:?}: {frames:x?}");
        assert_eq!(flags, failed, "{code:?}");
    }
}

/// Takes what it finds in its buffer for a frame.
unsafe extern "C" fn echo(_: *mut c_void, frames: *mut RawFrame, _: usize) -> usize {
    // SAFETY: the buffer has room for a frame.
    usize::from(unsafe { (*frames).function } != 0)
}

#[test]
fn a_walker_is_told_where_the_native_stack_enters_compiled_code() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1"), ("MAX_DEPTH", "8")]);
    trial
        .agent
        .modules()
        .set_find_object(crate::stack::tests::find_object());
    let (capture, thread, native) = (&trial.agent.capture, trial.thread(), in_module());
    let told = |code, stack: &[u64]| {
        let mut description = described(None, code);
        description.callbacks.walk = Some(echo);
        let heap = trial.agent.register_heap(&description).unwrap();
        let (frames, _) = merged(capture, thread, heap, stack, WHOLE);
        let mut told = frames.iter().filter_map(|&frame| VmFrame::decode(frame));
        told.next().map(|frame| u64::from(frame.function))
    };
    let code = NativeCode::WholeAndOutsideModules;
    assert_eq!(told(code, &[native, COMPILED, native]), Some(COMPILED));
    // Nothing of an earlier walk is left in the buffer.
    assert_eq!(told(code, &[native, native]), None);
    assert_eq!(told(NativeCode::Loop, &[native, COMPILED]), None);
}

#[test]
fn what_calls_a_loop_from_outside_of_modules_is_a_thunk_if_the_machine_says_so() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1"), ("MAX_DEPTH", "8")]);
    trial
        .agent
        .modules()
        .set_find_object(crate::stack::tests::find_object());
    let (capture, thread) = (&trial.agent.capture, trial.thread());
    let native = in_module();
    // Its caller is the machine's own entry, which goes with the thunk.
    let stack = [LOOP + 4, COMPILED, native, native + 1];
    for (has_thunks, expected) in [(true, 2), (false, 4)] {
        let mut description = described(Some(machine(&[1])), NativeCode::Loop);
        description.loop_has_thunks = has_thunks;
        let heap = trial.agent.register_heap(&description).unwrap();
        assert!(heap.add_interpreter_range(LOOP, LOOP + 16));
        let (frames, _) = merged(capture, thread, heap, &stack, WHOLE);
        assert_eq!(frames.len(), expected, "{frames:x?}");
    }
    // Code in a module is none.
    let mut description = described(Some(machine(&[1])), NativeCode::Loop);
    description.loop_has_thunks = true;
    let heap = trial.agent.register_heap(&description).unwrap();
    assert!(heap.add_interpreter_range(LOOP, LOOP + 16));
    let (frames, _) = merged(
        capture,
        thread,
        heap,
        &[LOOP + 4, native, native + 1],
        WHOLE,
    );
    assert_eq!(frames.len(), 3);
}

#[test]
fn a_stack_that_the_machine_keeps_is_read_on_its_own_threads() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1"), ("MAX_DEPTH", "2")]);
    let heap = (trial.agent)
        .register_heap(&described(None, NativeCode::Loop))
        .unwrap();
    let other = (trial.agent)
        .register_heap(&described(Some(machine(&[9])), NativeCode::Loop))
        .unwrap();
    let (capture, thread) = (&trial.agent.capture, trial.thread());
    let rows = [1, 7, 2, 7, 3, 7].map(AtomicU32::new);
    let base = rows.as_ptr() as u64;
    let top = AtomicU64::new(base + 16);
    let shadow = ShadowStack {
        size: 40,
        frame_bytes: 8,
        top: top.as_ptr() as u64,
        base,
        function_offset: 0,
        line_offset: 4,
        entry_offset: ShadowStack::NOWHERE,
        caller_offset: 0,
    };
    let of = |heap: &Heap| merged(capture, thread, heap, &[], WHOLE);
    // Nobody has told of one.
    assert_eq!(of(heap), (Vec::new(), WHOLE));
    thread.set_shadow_stack(&raw const shadow as u64);
    thread.set_vm_heap(u32::from(heap.id().0));
    assert_eq!(
        of(heap),
        (Vec::from([vm(heap.id(), 2), vm(heap.id(), 1)]), WHOLE)
    );
    // Another machine has a walker of its own.
    assert_eq!(of(other), (Vec::from([vm(other.id(), 9)]), WHOLE));
    // Three are more than there is room for.
    top.store(base + 24, Ordering::Relaxed);
    let (frames, flags) = of(heap);
    assert_eq!((frames.len(), flags), (2, SampleFlags::TRUNCATED));
    // Memory that is no frame.
    top.store(base + 4, Ordering::Relaxed);
    assert_eq!(of(heap), (Vec::new(), SampleFlags::UNWIND_FAILED));
    rows[0].store(5, Ordering::Relaxed);
    top.store(base + 8, Ordering::Relaxed);
    assert_eq!(of(heap).0, [vm(heap.id(), 5)]);
}

#[test]
fn a_walker_that_gives_whole_stacks_leaves_the_native_ones_out() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1"), ("UNWIND", "auto")]);
    trial
        .agent
        .modules()
        .set_find_object(crate::stack::tests::find_object());
    let thread = trial.thread();
    let capture = &trial.agent.capture;
    let depth_of = |functions: &[u32], is_whole: bool| {
        let mut description = described(Some(machine(functions)), NativeCode::Loop);
        description.is_walk_whole = is_whole;
        let heap = trial.agent.register_heap(&description).unwrap();
        let found = capture.in_area_once(|area| {
            let caller = crate::stack::tests::here();
            let captured = capture.call(thread, caller, Some(heap), area, trial.recording());
            let frames = area.captured(&captured);
            let machines = frames
                .iter()
                .filter(|frame| VmFrame::decode(**frame).is_some());
            (machines.count(), captured.depth)
        });
        found.unwrap()
    };
    trial.agent.begin_now().unwrap();
    assert_eq!(depth_of(&[1, 2], true), (2, 2));
    // Where its walker finds nothing, and where native frames are wanted, they are there.
    let (machines, all) = depth_of(&[], true);
    assert!(machines == 0 && all > 1, "{all}");
    let (machines, all) = depth_of(&[1, 2], false);
    assert!(machines == 2 && all > 3, "{all}");
}

#[test]
fn what_was_remembered_of_a_stack_ends_with_its_epoch_and_with_changed_code() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1")]);
    let (capture, thread) = (&trial.agent.capture, trial.thread());
    let before = capture.written_key(thread);
    assert!(before == capture.written_key(thread));
    capture.code_changed();
    let changed = capture.written_key(thread);
    assert!(before != changed);
    capture.after_epoch(77);
    assert!(changed != capture.written_key(thread));
    assert_eq!(capture.memo_key(thread).epoch, 77);
}

#[test]
fn an_area_that_is_left_by_a_jump_is_not_used_again_and_forked_children_have_their_own() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1")]);
    let (capture, thread) = (&trial.agent.capture, trial.thread());
    let address = |area: &mut WorkArea| core::ptr::from_mut(area).addr();
    let first = capture.in_area(thread, address).unwrap();
    assert_eq!(capture.in_area(thread, address), Some(first));
    let mut is_within = false;
    let second = capture.in_area(thread, |area| {
        let sp = core::ptr::from_ref(&is_within).addr() as u64;
        let on_area = address(area) as u64 - 64;
        is_within = capture.is_in_area(thread, on_area) && !capture.is_in_area(thread, sp);
        // As a handler does that finds the slow path gone.
        capture.give_up_area(thread);
        capture.in_area(thread, address).unwrap()
    });
    assert!(is_within);
    assert_ne!(second, Some(first));
    assert!(!capture.is_in_area(thread, first as u64 - 64));
    // Nothing of the parent's is touched in a child.
    capture.restart();
    let third = capture.in_area(thread, address).unwrap();
    assert!(third != first && Some(third) != second);
}

#[test]
fn samples_stay_on_the_stacks_of_their_threads_if_a_machine_asks_for_that() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1")]);
    let thread = trial.thread();
    let distance = || {
        let here = 0_u8;
        let found = (trial.agent.capture).in_area(thread, |_| {
            let there = 0_u8;
            (&raw const there).addr()
        });
        found.unwrap().abs_diff((&raw const here).addr())
    };
    let aside = distance();
    trial.agent.stay_on_threads_stacks();
    let on_own = distance();
    assert!(on_own < 1 << 16 && aside > 1 << 16, "{aside} and {on_own}");
}

fn started(malloc_elsewhere: Option<&'static [u8]>) -> Start {
    Start {
        config: crate::config::Config::OFF,
        hooks: Hooks::NONE,
        program: b"app",
        next_allocator: b"libc.so.6",
        malloc_elsewhere,
        unknown_setting: None,
    }
}

#[test]
fn a_thread_may_be_started_where_the_whole_stack_shows_that_no_lock_is_held() {
    const PROGRAM: u64 = 77;
    const LIBC: u64 = 1005;
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1")]);
    let capture = &trial.agent.capture;
    capture.locking_code.set_one_to_five();
    let may = |frames: &[u64], captured: Captured| {
        let found = capture.in_area_once(|area| {
            area.frames[..frames.len()].copy_from_slice(frames);
            capture.may_start_thread(area, &captured)
        });
        found.unwrap()
    };
    let frames = [PROGRAM, LIBC, LIBC, PROGRAM];
    let captured = Captured {
        depth: frames.len(),
        ..Captured::default()
    };
    assert!(may(&frames, captured));
    assert!(!may(&[LIBC, PROGRAM, LIBC, PROGRAM], captured));
    // A stack that is not whole shows nothing.
    let failed = Captured {
        flags: SampleFlags::UNWIND_FAILED,
        ..captured
    };
    assert!(!may(&frames, failed));
    let in_loader = Captured {
        may_hold_loader_locks: true,
        ..captured
    };
    assert!(!may(&frames, in_loader));
    // A malloc that stands before ours has locks that nobody knows.
    let elsewhere = started(Some(b"libjemalloc.so.2"));
    capture.setup.set(Box::leak(Box::new(elsewhere)));
    assert!(!may(&frames, captured));
    capture.setup.set(Box::leak(Box::new(started(None))));
    assert!(may(&frames, captured));
}

#[test]
fn callees_at_the_leaf_are_taken_away_but_never_all_frames() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1")]);
    const CALLEE: u64 = 0x9000;
    let stripped = |frames: &[u64], is_merged| {
        let found = (trial.agent.capture).in_area_once(|area| {
            let place = match is_merged {
                true => &mut area.merged,
                false => &mut area.frames,
            };
            place[..frames.len()].copy_from_slice(frames);
            let mut captured = Captured {
                depth: frames.len(),
                is_merged,
                ..Captured::default()
            };
            // The frame is where the callee returns to, behind its call.
            area.strip_leaf(&mut captured, |pc| pc == CALLEE - 1);
            area.captured(&captured).to_vec()
        });
        found.unwrap()
    };
    for is_merged in [false, true] {
        // Up to the last one, with what has no name among them.
        let frames = [CALLEE, 7, CALLEE, 8, 9];
        assert_eq!(stripped(&frames, is_merged), [8, 9]);
        assert_eq!(stripped(&[CALLEE, 9], is_merged), [9]);
        assert_eq!(stripped(&[7, 8], is_merged), [7, 8]);
        assert_eq!(stripped(&[7, CALLEE], is_merged), [7, CALLEE]);
        assert_eq!(stripped(&[CALLEE], is_merged), [CALLEE]);
        // An allocator does not call so deep.
        let mut deep: Vec<u64> = (1..=18).collect();
        deep[15] = CALLEE;
        assert_eq!(stripped(&deep, is_merged), [17, 18]);
        deep[15] = 16;
        deep[16] = CALLEE;
        assert_eq!(stripped(&deep, is_merged).len(), 18);
    }
}

#[test]
fn frames_of_our_own_code_are_taken_away() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1")]);
    let modules = trial.agent.modules();
    modules.set_find_object(crate::stack::tests::find_object());
    modules.set_own(in_module());
    let found = (trial.agent.capture).in_area_once(|area| {
        area.frames[..3].copy_from_slice(&[in_module(), COMPILED, COMPILED + 1]);
        let mut captured = Captured {
            depth: 3,
            ..Captured::default()
        };
        trial.agent.capture.strip_own(area, &mut captured);
        area.captured(&captured).to_vec()
    });
    assert_eq!(found.unwrap(), [COMPILED, COMPILED + 1]);
}

/// By its caller's frames, as a handler does that wonders whether the slow path it has interrupted is still there.
#[test]
fn our_own_code_is_found_on_a_stack_that_it_is_on() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1"), ("UNWIND", "auto")]);
    let modules = trial.agent.modules();
    modules.set_find_object(crate::stack::tests::find_object());
    let thread = trial.thread();
    let caller = crate::stack::tests::here();
    // No module is ours: the whole stack is the program's.
    let finds = |pc| trial.agent.capture.finds_own_code(&caller, thread, pc);
    assert_eq!(finds(None), Some(false));
    assert_eq!(finds(Some(in_module())), Some(false));
    // Ours is the test's program, all callers of this function in it: they are what calls us now, and libc's are behind.
    modules.set_own(in_module());
    assert_eq!(finds(None), Some(false));
}
