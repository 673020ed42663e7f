//! Ends that a machine reports by name.

use allocsample_record::{Decoded, HeapKind, RecordKind, SampleId};

use super::*;

/// A heap of a machine that draws its samples itself and reports their ends by name.
fn machine() -> Machine {
    let description = Description {
        ends_by_id: true,
        ..described(HeapKind::Collected)
    };
    Machine::new(Trial::begin(agent!(), EVERY), &description)
}

/// Names of so many samples, all with the same address.
fn names(machine: &Machine, count: usize) -> Vec<u64> {
    let agent = machine.trial.agent;
    let object = Object {
        address: 0x500,
        size: 64,
        type_id: 0,
    };
    let sample = |_| {
        let drawn = Drawn {
            at: Interval::new(300),
            time_ns: None,
        };
        let caller = Caller::UNKNOWN;
        let id = agent.heap_sampled(machine.thread, machine.heap, object, &[], drawn, &caller);
        agent.name_of(machine.heap, id.unwrap())
    };
    (0..count).map(sample).collect()
}

#[test]
fn ends_by_name_are_few_records_that_end_each_sample_once() {
    let machine = machine();
    let names = names(&machine, 150);
    let agent = machine.trial.agent;
    agent.heap_died(machine.thread, machine.heap, &names);
    let ids: Vec<u64> = machine.trial.samples().iter().map(|it| it.id).collect();
    let ended: Vec<u64> = machine.trial.frees().iter().map(|it| it.0).collect();
    assert_eq!(ended, ids);
    let threads = machine.trial.frees();
    assert!(threads.iter().all(|it| it.1 == machine.thread.number()));
    assert_eq!(machine.trial.of_kind(RecordKind::Deaths).len(), 3);
}

#[test]
fn addresses_say_nothing_of_a_heap_whose_ends_are_reported_by_name() {
    let machine = machine();
    let agent = machine.trial.agent;
    names(&machine, 3);
    agent.heap_freed(machine.thread, machine.heap, 0x500, &Caller::UNKNOWN);
    agent.heap_moved(machine.heap, 0x500, 0x600);
    agent.heap_freed(machine.thread, machine.heap, 0x600, &Caller::UNKNOWN);
    assert_eq!(machine.trial.frees(), []);
}

#[test]
fn a_name_of_an_ended_recording_ends_nothing_in_the_next() {
    let machine = machine();
    let agent = machine.trial.agent;
    let before = names(&machine, 3);
    agent.detach(machine.thread).unwrap();
    agent.switch.set(Switch::On);
    agent.begin_now().unwrap();
    machine.thread.forget();
    let after = names(&machine, 3);
    // Of the same positions in another ring.
    assert!(before.iter().all(|name| !after.contains(name)));
    agent.heap_died(machine.thread, machine.heap, &before);
    assert_eq!(machine.trial.frees(), []);
    assert!(machine.trial.of_kind(RecordKind::Deaths).is_empty());
    agent.heap_died(machine.thread, machine.heap, &[before[0], after[1]]);
    let ended: Vec<u64> = machine.trial.frees().iter().map(|it| it.0).collect();
    assert_eq!(ended, [machine.trial.samples()[1].id]);
}

#[test]
fn a_heap_of_another_kind_has_its_ids_for_names() {
    for (kind, ends_by_id) in [(HeapKind::Collected, false), (HeapKind::Traced, true)] {
        let description = Description {
            ends_by_id,
            ..described(kind)
        };
        let machine = Machine::new(Trial::begin(agent!(), EVERY), &description);
        let agent = machine.trial.agent;
        agent.begin_time_line(machine.thread);
        assert_eq!(agent.name_of(machine.heap, SampleId(7)), 7);
        agent.heap_died(machine.thread, machine.heap, &[7]);
        assert_eq!(machine.trial.frees(), []);
    }
}

#[test]
fn ends_for_which_there_is_no_room_are_counted_each() {
    let machine = machine();
    let names = names(&machine, 10);
    let recording = recording::current().unwrap();
    machine.trial.fill_ring();
    let agent = machine.trial.agent;
    agent.heap_died(machine.thread, machine.heap, &names);
    let lost = recording.ring.lost()[LostReason::FreeRingFull as usize];
    assert_eq!(lost, (10, 0));
}

#[test]
fn a_listener_hears_of_a_sample_and_of_its_end_by_the_same_name() {
    static HEARD: std::sync::Mutex<(Vec<u64>, Vec<u64>)> =
        std::sync::Mutex::new((Vec::new(), Vec::new()));
    let hooks = crate::setup::Hooks {
        has_listener: || true,
        on_sampled: |name, _, _| HEARD.lock().unwrap().0.push(name),
        on_heap_freed: |name| HEARD.lock().unwrap().1.push(name),
        ..crate::setup::Hooks::NONE
    };
    let description = Description {
        ends_by_id: true,
        ..described(HeapKind::Collected)
    };
    let machine = Machine::new(Trial::begin_with(agent!(), EVERY, hooks), &description);
    let names = names(&machine, 100);
    machine
        .trial
        .agent
        .heap_died(machine.thread, machine.heap, &names);
    assert_eq!(*HEARD.lock().unwrap(), (names.clone(), names));
}

#[test]
fn what_a_machine_learns_late_has_the_time_at_which_it_happened() {
    let machine = Machine::new(
        Trial::begin(agent!(), EVERY),
        &described(HeapKind::Collected),
    );
    let agent = machine.trial.agent;
    let object = Object {
        address: 0x500,
        size: 64,
        type_id: 0,
    };
    let drawn = Drawn {
        at: Interval::new(300),
        time_ns: Some(1_000),
    };
    let (thread, heap) = (machine.thread, machine.heap);
    agent.heap_sampled(thread, heap, object, &[], drawn, &Caller::UNKNOWN);
    agent.heap_freed_at(thread, heap, 0x500, 2_000, &Caller::UNKNOWN);
    let times = [RecordKind::Sample, RecordKind::Free].map(|kind| {
        let records = machine.trial.of_kind(kind);
        match Decoded::decode(kind, &records[0], &[]) {
            Some(Decoded::Sample(sample)) => Some(sample.time_ns),
            Some(Decoded::Free(free)) => Some(free.time_ns),
            _ => None,
        }
    });
    assert_eq!(times, [Some(1_000), Some(2_000)]);
}
