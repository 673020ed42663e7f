//! Which calls that map are recorded, how, and which are counted instead.
#![allow(clippy::indexing_slicing, reason = "a test may fail")]

use std::vec::Vec;

use super::*;
use crate::setup::Hooks;
use crate::trial::{Trial, agent};

const PAGE: u64 = 4096;

fn call(change: MappingChange, start: u64, bytes: u64) -> MappingCall {
    MappingCall {
        start,
        bytes,
        change: change as u32,
        protection: 3,
        flags: 0x22,
        unused: 0,
    }
}

/// Change, start, bytes and thread of each record that is not of the agent's own memory.
fn recorded(trial: &Trial) -> Vec<(MappingChange, u64, u64, u32)> {
    let records = trial.of_kind(RecordKind::Mapping).into_iter();
    let found = records.map(|words| MappingRecord::decode(&words).unwrap().mapped);
    let found = found.filter(|mapped| mapped.change != MappingChange::Own);
    let parts = found.map(|it| (it.change, it.start, it.bytes, it.thread.0));
    parts.collect()
}

fn not_recorded(trial: &Trial) -> u64 {
    trial.recording().ring.figures()[Figure::MappingsNotRecorded as usize]
}

fn tell(trial: &Trial, thread: &ShimThread, call: &MappingCall) {
    trial.agent.on_mapping(thread, call, Caller::UNKNOWN);
}

#[test]
fn a_process_without_a_sample_has_a_profile_once_it_has_mapped_an_interval() {
    use MappingChange::{Attach, Map, OwnThread, Remap, Thread, Unmap};
    let trial = Trial::begin(agent!(), &[("INTERVAL", "64K")]);
    let thread = trial.thread();
    // A thread's stack is hardly touched, and what is unmapped or ours is not mapped by the program.
    for change in [Thread, Unmap, MappingChange::Own, OwnThread] {
        tell(&trial, thread, &call(change, 0x10_0000, 1 << 30));
    }
    tell(&trial, thread, &call(Map, 0x20_0000, (64 << 10) - PAGE));
    assert!(recording::current().is_none());
    tell(&trial, thread, &call(Remap, 0x40_0000, PAGE));
    assert_eq!(recorded(&trial), [(Remap, 0x40_0000, PAGE, 1)]);
    // From here on all are there, with their threads; without a stack it need not be known.
    tell(&trial, thread, &call(Attach, 0x50_0000, PAGE));
    tell(&trial, thread, &call(Thread, 0x60_0000, PAGE));
    tell(&trial, thread, &call(Unmap, 0x40_0000, PAGE));
    let other = trial.thread();
    tell(&trial, other, &call(Unmap, 0x50_0000, PAGE));
    let expected = [
        (Attach, 0x50_0000, PAGE, 1),
        (Thread, 0x60_0000, PAGE, 1),
        (Unmap, 0x40_0000, PAGE, 1),
        (Unmap, 0x50_0000, PAGE, 0),
    ];
    assert_eq!(recorded(&trial)[1..], expected);
    assert_eq!(not_recorded(&trial), 0);
    let words = &trial.of_kind(RecordKind::Mapping)[0];
    let mapped = MappingRecord::decode(words).unwrap().mapped;
    assert_eq!((mapped.protection, mapped.flags), (3, 0x22));
}

#[test]
fn nothing_is_recorded_of_a_stopped_agent_or_if_the_user_wants_none_or_by_the_agents_own_threads() {
    let large = call(MappingChange::Map, 0x10_0000, 1 << 20);
    for settings in [
        &[("INTERVAL", "64K"), ("MAPPINGS", "off")][..],
        &[("INTERVAL", "64K"), ("START", "off")],
        &[("INTERVAL", "off")],
    ] {
        let trial = Trial::begin(agent!(), settings);
        tell(&trial, trial.thread(), &large);
        assert!(recording::current().is_none(), "{settings:?}");
    }
    let trial = Trial::begin(agent!(), &[("INTERVAL", "64K")]);
    let own = trial.thread();
    own.mute_for_good();
    tell(&trial, own, &large);
    assert!(recording::current().is_none());
    trial.agent.begin_now().unwrap();
    tell(&trial, own, &large);
    assert_eq!(recorded(&trial), []);
    let thread = trial.thread();
    trial.agent.switch.set(Switch::Off);
    tell(&trial, thread, &large);
    assert_eq!(recorded(&trial), []);
    trial.agent.switch.set(Switch::On);
    tell(&trial, thread, &large);
    assert_eq!(recorded(&trial).len(), 1);
    // A change that a newer shim may know.
    tell(
        &trial,
        thread,
        &MappingCall {
            change: 99,
            ..large
        },
    );
    assert_eq!((recorded(&trial).len(), not_recorded(&trial)), (1, 0));
}

#[test]
fn a_call_without_room_or_beyond_the_rate_is_counted() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "64K"), ("ON_FULL", "drop")]);
    let thread = trial.thread();
    tell(
        &trial,
        thread,
        &call(MappingChange::Map, 0x10_0000, 1 << 20),
    );
    assert_eq!((recorded(&trial).len(), not_recorded(&trial)), (1, 0));
    trial.fill_ring();
    tell(&trial, thread, &call(MappingChange::Map, 0x30_0000, PAGE));
    assert_eq!(not_recorded(&trial), 1);
    // However long the machine takes: the next call is due in a day.
    const DAY_NS: u64 = 86_400_000_000_000;
    let due_ns = clock::monotonic_ns() + DAY_NS + BURST * PERIOD_NS;
    let limits = &trial.agent.mappings;
    limits.changes.due_ns.store(due_ns, Ordering::Relaxed);
    tell(&trial, thread, &call(MappingChange::Unmap, 0x30_0000, PAGE));
    assert_eq!((recorded(&trial).len(), not_recorded(&trial)), (1, 2));
}

#[test]
fn discards_have_a_limit_of_their_own() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "64K")]);
    let thread = trial.thread();
    trial.agent.begin_now().unwrap();
    const DAY_NS: u64 = 86_400_000_000_000;
    let due_ns = clock::monotonic_ns() + DAY_NS + BURST * PERIOD_NS;
    let limits = &trial.agent.mappings;
    limits.discards.due_ns.store(due_ns, Ordering::Relaxed);
    let discard = call(MappingChange::Discard, 0x10_0000, PAGE);
    let commit = call(MappingChange::Commit, 0x10_0000, PAGE);
    tell(&trial, thread, &discard);
    tell(&trial, thread, &commit);
    assert_eq!(
        recorded(&trial),
        [(MappingChange::Commit, 0x10_0000, PAGE, 1)]
    );
    assert_eq!(not_recorded(&trial), 1);
    limits.discards.due_ns.store(0, Ordering::Relaxed);
    tell(&trial, thread, &discard);
    assert_eq!((recorded(&trial).len(), not_recorded(&trial)), (2, 1));
}

#[test]
fn what_a_function_maps_that_the_shim_calls_is_the_programs() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "64K"), ("UNWIND", "auto")]);
    (trial.agent.modules()).set_find_object(crate::stack::tests::find_object());
    let thread = trial.thread();
    let map = call(MappingChange::Map, 0x10_0000, 1 << 20);
    let caller = crate::stack::tests::here();
    // No recording begins there: what the shim calls may hold locks.
    thread.mute_by_the_shim(true);
    trial.agent.on_mapping(thread, &map, caller);
    assert!(recording::current().is_none());
    thread.mute_by_the_shim(false);
    trial.agent.on_mapping(thread, &map, caller);
    let totals = thread.totals();
    thread.mute_by_the_shim(true);
    trial.agent.on_mapping(thread, &map, caller);
    assert!(thread.is_muted_by_the_shim_alone());
    thread.mute_by_the_shim(false);
    assert_eq!(thread.totals(), totals);
    let records = trial.of_kind(RecordKind::Mapping);
    let frames = |words: &Vec<u64>| {
        let record = MappingRecord::decode(words).unwrap();
        (record.mapped.change == MappingChange::Map)
            .then(|| record.shared as usize + record.frames.len())
    };
    let frames: Vec<usize> = records.iter().filter_map(frames).collect();
    assert!(frames.len() == 2 && frames[1] > 1, "{frames:?}");
}

#[test]
fn a_call_within_a_slow_path_has_no_stack() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "64K"), ("UNWIND", "auto")]);
    (trial.agent.modules()).set_find_object(crate::stack::tests::find_object());
    let thread = trial.thread();
    let frames = |trial: &Trial| {
        let records = trial.of_kind(RecordKind::Mapping).into_iter();
        let depths = records.map(|words| MappingRecord::decode(&words).unwrap().frames.len());
        depths.collect::<Vec<_>>()
    };
    let map = call(MappingChange::Map, 0x10_0000, 1 << 20);
    let caller = crate::stack::tests::here();
    trial.agent.on_mapping(thread, &map, caller);
    assert!(frames(&trial)[0] > 1);
    // As malloc maps while it serves a sample: deeper on the stack than the entry. Nothing shows that a jump has left it, as the
    // stack cannot be walked from there.
    let deeper = Caller {
        pc: 8,
        sp: caller.sp - 64,
        fp: 0,
    };
    let entered = trial.agent.enter(thread, 0, &caller);
    trial.agent.on_mapping(thread, &map, deeper);
    drop(entered);
    assert_eq!(frames(&trial)[1..], [0]);
}

#[test]
fn calls_of_before_the_recording_come_first_and_without_a_time() {
    fn kept(index: usize) -> Option<KeptMapping> {
        let caller = kept as *const () as u64 + 1;
        let of = |start, bytes, caller| KeptMapping {
            mapping: call(MappingChange::Map, start, bytes),
            caller,
        };
        match index {
            0 => Some(of(0x10_0000, 1 << 30, caller)),
            // Unmapped since, and by code of nobody.
            1 => Some(of(0x20_0000, 0, caller)),
            2 => Some(of(0x30_0000, PAGE, 8)),
            _ => None,
        }
    }
    let hooks = Hooks {
        kept_mapping: kept,
        ..Hooks::NONE
    };
    let trial = Trial::begin_with(agent!(), &[("INTERVAL", "64K")], hooks);
    let modules = trial.agent.modules();
    modules.set_find_object(crate::stack::tests::find_object());
    let code = kept as *const () as u64;
    modules.set_program_range(code..code + 16);
    trial.agent.begin_now().unwrap();
    assert_eq!(
        recorded(&trial),
        [(MappingChange::Map, 0x10_0000, 1 << 30, 0)]
    );
    let words = &trial.of_kind(RecordKind::Mapping)[0];
    let record = MappingRecord::decode(words).unwrap();
    assert_eq!((record.mapped.time_ns, record.frames.len()), (0, 1));
}

#[test]
fn a_burst_is_admitted_and_then_one_call_in_each_period() {
    let limit = Limit::new();
    const START_NS: u64 = 1 << 50;
    let admitted = |calls: u64, at: &dyn Fn(u64) -> u64| {
        let calls = (0..calls).filter(|&call| limit.admits(at(call)));
        calls.count() as u64
    };
    assert_eq!(admitted(3 * BURST, &|_| START_NS), BURST);
    // A hundred calls in each period.
    let later = |call: u64| START_NS + call * PERIOD_NS / 100;
    assert_eq!(admitted(100_000, &later), 1_000);
    // After a rest as long as the burst would have taken, all is as at the beginning.
    let rested = START_NS + (1_000 + BURST) * PERIOD_NS;
    assert_eq!(admitted(3 * BURST, &|_| rested), BURST);
    // A clock that another processor reads a little late.
    assert!(!limit.admits(rested - 1));
    assert_eq!(admitted(5, &|call| rested + 2 * PERIOD_NS - call), 2);
}
