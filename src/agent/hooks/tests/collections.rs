//! What collections ask and answer about samples.

use super::*;

#[test]
fn a_minor_collection_resolves_young_samples_and_keeps_the_survivors() {
    let trial = Trial::begin(agent!(), EVERY);
    let mut machine = Machine::new(trial, &described(HeapKind::Nursery));
    for size in [16, 32, 48] {
        machine.alloc(size);
    }
    let young = machine.pending(true);
    let about: Vec<_> = young.iter().map(|it| (it.size, it.type_id)).collect();
    assert_eq!(about, [(16, 4), (32, 4), (48, 4)]);
    assert_eq!(machine.heap.old_count(), 0);
    let answers = [
        answer(&young[0], Fate::Dead),
        answer(&young[1], Fate::Promoted),
        Resolution {
            type_id: 7,
            ..answer(&young[2], Fate::Alive)
        },
    ];
    let agent = machine.trial.agent;
    let taken = agent.resolve_young(machine.heap, &machine.slot, &answers, 5);
    assert_eq!(taken, 3);
    assert_eq!(
        machine.fates(),
        [
            (young[0].id, Fate::Dead, 4, 5),
            (young[1].id, Fate::Promoted, 4, 5),
            (young[2].id, Fate::Alive, 7, 5),
        ]
    );
    assert_eq!(machine.heap.old_count(), 2);
    let old = machine.pending(false);
    let about: Vec<_> = old
        .iter()
        .map(|it| (it.id, it.address, it.type_id))
        .collect();
    assert_eq!(
        about,
        [
            (young[1].id, young[1].address + 0x100, 4),
            (young[2].id, young[2].address + 0x100, 7),
        ]
    );
    assert_eq!(machine.pending(true), []);
    // The nursery begins again, and forgets what was resolved.
    agent.nursery_sync(
        machine.thread,
        machine.heap,
        &machine.slot,
        machine.free,
        START,
        TOP,
    );
    machine.free = START;
    machine.alloc(80);
    assert_eq!(machine.pending(true).len(), 1);

    // A major one: survivors are nothing new, and stay with their address.
    let answers = [answer(&old[0], Fate::Alive), answer(&old[1], Fate::Dead)];
    let publisher = agent.publisher();
    assert_eq!(machine.heap.resolve_old(publisher, &answers, 6), 2);
    assert_eq!(machine.fates()[3..], [(old[1].id, Fate::Dead, 7, 6)]);
    assert_eq!(machine.heap.old_count(), 1);
    let left = machine.pending(false);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].address, old[0].address + 0x100);
    // Answers to what nobody asked.
    assert_eq!(machine.heap.resolve_old(publisher, &answers[1..], 7), 0);
}

#[test]
fn samples_of_a_thread_that_ends_wait_for_the_next_collection() {
    let trial = Trial::begin(agent!(), EVERY);
    let mut machine = Machine::new(trial, &described(HeapKind::Nursery));
    machine.alloc(16);
    machine.alloc(32);
    let agent = machine.trial.agent;
    let young = machine.pending(true);
    let answers = [answer(&young[0], Fate::Dead)];
    agent.resolve_young(machine.heap, &machine.slot, &answers, 1);
    agent.nursery_end(machine.heap, &machine.slot, machine.free);
    assert_eq!(machine.heap.old_count(), 1);
    let mut late = machine.pending(false);
    let mut cursor = 0;
    assert_eq!(machine.heap.pending_late(&mut late, &mut cursor), 1);
    assert_eq!(late[0].id, young[1].id);
    let publisher = agent.publisher();
    let answers = [answer(&late[0], Fate::Promoted)];
    assert_eq!(machine.heap.resolve_late(publisher, &answers, 2), 1);
    // It is told, as nobody has looked at it before; from now on it is an old one.
    assert_eq!(machine.fates()[1..], [(young[1].id, Fate::Promoted, 4, 2)]);
    cursor = 0;
    assert_eq!(machine.heap.pending_late(&mut late, &mut cursor), 0);
    assert_eq!(machine.pending(false).len(), 1);
    // A state that has ended is that of no nursery.
    let limit = agent.nursery_sync(machine.thread, machine.heap, &machine.slot, 0, 0, 77);
    assert_eq!(limit, 77);
}

/// A machine asks in batches, and answers each before it asks for the next.
#[test]
fn each_old_sample_is_asked_for_once_whatever_the_batch() {
    for batch in 1..4 {
        let trial = Trial::begin(agent!(), EVERY);
        let mut machine = Machine::new(trial, &described(HeapKind::Nursery));
        for size in 1..8 {
            machine.alloc(16 * size);
        }
        let agent = machine.trial.agent;
        let young = machine.pending(true);
        let promoted: Vec<_> = young.iter().map(|it| answer(it, Fate::Promoted)).collect();
        agent.resolve_young(machine.heap, &machine.slot, &promoted, 1);
        // Late ones of an ended thread beside them.
        machine.alloc(16);
        machine.alloc(16);
        agent.nursery_end(machine.heap, &machine.slot, machine.free);
        let publisher = agent.publisher();
        let asked = |heap: &Heap, is_late: bool| {
            let (mut cursor, mut ids) = (0, Vec::new());
            loop {
                let mut room = std::vec![young[0]; batch];
                let count = match is_late {
                    true => heap.pending_late(&mut room, &mut cursor),
                    false => heap.pending_old(&mut room, &mut cursor),
                };
                if count == 0 {
                    return ids;
                }
                for pending in &room[..count] {
                    ids.push(pending.id);
                    let answers = [answer(pending, Fate::Dead)];
                    let taken = match is_late {
                        true => heap.resolve_late(publisher, &answers, 2),
                        false => heap.resolve_old(publisher, &answers, 2),
                    };
                    assert_eq!(taken, 1);
                }
            }
        };
        let late = asked(machine.heap, true);
        let old = asked(machine.heap, false);
        assert_eq!((late.len(), old.len()), (2, 7), "{batch}");
        assert!(old.iter().eq(young.iter().map(|it| &it.id)), "{batch}");
        assert_eq!(asked(machine.heap, false), []);
        assert_eq!(machine.heap.old_count(), 0);
    }
}

/// What a collection has not asked about is open after it, and not in a forked child, whose heap has its parent's samples no more.
#[test]
fn open_samples_stay_until_the_process_forks() {
    let trial = Trial::begin(agent!(), EVERY);
    let mut machine = Machine::new(trial, &described(HeapKind::Nursery));
    for size in [16, 32, 48] {
        machine.alloc(size);
    }
    let agent = machine.trial.agent;
    let young = machine.pending(true);
    let answers = [
        answer(&young[0], Fate::Dead),
        answer(&young[1], Fate::Promoted),
    ];
    agent.resolve_young(machine.heap, &machine.slot, &answers, 1);
    let (thread, heap) = (machine.thread, machine.heap);
    agent.nursery_sync(thread, heap, &machine.slot, machine.free, machine.free, TOP);
    let open: Vec<_> = machine.pending(true).iter().map(|it| it.id).collect();
    assert_eq!(open, [young[2].id]);
    assert_eq!((heap.old_count(), machine.pending(false).len()), (1, 1));
    agent.heaps.restart();
    assert_eq!((heap.old_count(), machine.pending(false).len()), (0, 0));
    assert_eq!(heap.counters().samples, 0);
}

#[test]
fn discarded_samples_have_an_unknown_fate() {
    let trial = Trial::begin(agent!(), EVERY);
    let mut machine = Machine::new(trial, &described(HeapKind::Nursery));
    machine.alloc(16);
    let young = machine.pending(true);
    let answers = [answer(&young[0], Fate::Alive)];
    let agent = machine.trial.agent;
    agent.resolve_young(machine.heap, &machine.slot, &answers, 1);
    machine.alloc(32);
    let second = machine.pending(true)[0].id;
    machine.heap.discard(agent.publisher());
    assert_eq!(machine.heap.old_count(), 0);
    assert_eq!(machine.pending(false), []);
    // The young ones at the next call with their nursery.
    assert_eq!(machine.pending(true), []);
    assert_eq!(
        machine.fates()[1..],
        [
            (young[0].id, Fate::Unknown, 4, 0),
            (second, Fate::Unknown, 4, 0)
        ]
    );
}
