use std::convert::Infallible;

use allocsample_record::{
    ChunkDecoder, CodeChange, CounterId, CounterRecord, DefinitionRecord, FreeRecord, Location,
    MarkerRecord, ModuleId, ModuleRecord, Note, NoteRecord, PartEdge, ProcessRecord, Sampling,
    ThreadEndRecord, ThreadStartRecord, VmFrame,
};

use super::*;

const PART: PartRecord = PartRecord {
    time_ns: 9_000,
    wall_ns: 10_000,
    number: 2,
    edge: PartEdge::Begin,
};

fn event<R: RingRecord>(record: &R) -> Event {
    let mut words = vec![0; record.words()];
    assert_eq!(record.encode_into(&mut words), Some(record.words()));
    Event::Words {
        kind: R::KIND as u8,
        words,
    }
}

fn following(events: impl IntoIterator<Item = Event>) -> Carry {
    let mut carry = Carry::default();
    events.into_iter().for_each(|event| carry.add(event));
    carry
}

/// What the next file begins with, its chunks one after the other, and the new numbers of nodes.
fn next_file_with(carry: &Carry, last_stacks: &[(u32, u32)]) -> (Vec<Vec<Event>>, Vec<u32>) {
    let (mut chunks, mut nodes) = (Vec::new(), 0);
    let last_stacks = last_stacks
        .iter()
        .map(|&(thread, stack)| (ThreadId(thread), StackId(stack)));
    let take = |encoder: &mut ChunkEncoder| {
        let raw = encoder.take();
        let mut decoder = ChunkDecoder::new(&raw, nodes);
        chunks.push(decoder.by_ref().collect::<Vec<_>>());
        assert!(!decoder.is_malformed());
        nodes = decoder.nodes();
        Ok::<_, Infallible>(())
    };
    let Ok(numbers) = carry.write(&PART, last_stacks, &mut ChunkEncoder::new(0), take);
    (chunks, numbers.iter().map(|number| number.0).collect())
}

/// The same without its first event, which is the part.
fn next_file(carry: &Carry) -> Vec<Event> {
    let (chunks, _) = next_file_with(carry, &[]);
    let mut events = chunks.concat();
    assert_eq!(events.remove(0), event(&PART));
    events
}

fn of_kind(events: &[Event], wanted: RecordKind) -> Vec<Event> {
    let is_wanted =
        |event: &&Event| matches!(event, Event::Words { kind, .. } if *kind == wanted as u8);
    events.iter().filter(is_wanted).cloned().collect()
}

fn samples(events: &[Event]) -> Vec<FileSample> {
    let sample = |event: &Event| match event {
        Event::Sample(sample) => Some(*sample),
        _ => None,
    };
    events.iter().filter_map(sample).collect()
}

fn sample(id: u64, stack: u32) -> FileSample {
    FileSample {
        id: SampleId(id),
        time_ns: 100 + id,
        address: 4096 * id,
        size: 10 + id,
        thread: ThreadId(1),
        heap: HeapId::MALLOC,
        flags: SampleFlags::default(),
        points: 1,
        interval: 3,
        thread_bytes: 1000 * id,
        stack: StackId(stack),
    }
}

fn node(parent: u32, offset: u64) -> StackNode {
    StackNode {
        parent: StackId(parent),
        location: Location {
            module: ModuleId(1),
            offset,
        },
    }
}

fn free(id: u64) -> Event {
    Event::Free(FreeRecord {
        time_ns: 500,
        sample: SampleId(id),
        thread: ThreadId(1),
    })
}

fn fate(id: u64, fate: Fate, type_id: u32, content_hash: u64) -> FateRecord {
    FateRecord {
        time_ns: 600,
        sample: SampleId(id),
        fate,
        type_id,
        gc: 1,
        content_hash,
    }
}

fn interval(index: u16, heap: HeapId, interval_bytes: u64) -> IntervalRecord {
    IntervalRecord {
        time_ns: 50 + u64::from(index),
        index,
        sampling: Sampling::Poisson,
        interval_bytes,
        seed: 7,
        heap,
    }
}

#[test]
fn live_samples_are_carried_in_order_with_the_stacks_that_they_need() {
    let carry = following([
        Event::Node(node(0, 10)),
        Event::Node(node(1, 20)),
        Event::Node(node(1, 30)),
        Event::Node(node(3, 40)),
        Event::Sample(sample(8, 4)),
        Event::Sample(sample(5, 2)),
        Event::Sample(sample(6, 3)),
        Event::Sample(sample(7, 3)),
        free(5),
        free(99),
    ]);
    let (chunks, numbers) = next_file_with(&carry, &[]);
    let carried = |id, stack| {
        Event::Sample(FileSample {
            flags: SampleFlags::CARRIED,
            thread_bytes: 0,
            ..sample(id, stack)
        })
    };
    // Node 2 belonged to the freed sample alone; the others are numbered anew, parents first.
    assert_eq!(numbers, [1, 0, 2, 3]);
    assert_eq!(
        chunks.concat()[1..],
        [
            event(&ThreadTotalRecord {
                thread: ThreadId(1),
                bytes: 8000,
                muted_bytes: 0
            }),
            Event::Node(node(0, 10)),
            Event::Node(node(1, 30)),
            carried(6, 2),
            carried(7, 2),
            Event::Node(node(2, 40)),
            carried(8, 3),
        ]
    );
}

#[test]
fn a_sample_whose_end_is_not_recorded_is_not_carried() {
    let untracked = FileSample {
        flags: SampleFlags::UNTRACKED,
        ..sample(1, 0)
    };
    let carry = following([
        Event::Sample(untracked),
        Event::Sample(sample(2, 0)),
        event(&fate(2, Fate::Dead, 0, 0)),
    ]);
    assert_eq!(samples(&next_file(&carry)), []);
}

#[test]
fn what_was_carried_is_carried_again_and_was_allocated_once() {
    let first = following([Event::Node(node(0, 10)), Event::Sample(sample(5, 1))]);
    let second = following(next_file(&first));
    let (once, twice) = (next_file(&first), next_file(&second));
    assert_eq!(samples(&twice), samples(&once));
    let of_unknown_bytes = following([Event::Sample(FileSample {
        flags: SampleFlags::CARRIED,
        ..sample(5, 0)
    })]);
    // Its bytes are those of a file before; the thread is of no use to the reader.
    let totals = of_kind(&next_file(&of_unknown_bytes), RecordKind::ThreadTotal);
    assert_eq!(totals, []);
}

#[test]
fn the_fate_of_a_live_sample_is_the_first_with_the_last_type_and_content() {
    let fates = |said: &[FateRecord]| {
        let mut events = vec![Event::Sample(sample(1, 0))];
        events.extend(said.iter().map(event));
        of_kind(&next_file(&following(events)), RecordKind::Fate)
    };
    let promoted = fate(1, Fate::Promoted, 0, 0);
    assert_eq!(fates(&[]), []);
    assert_eq!(fates(&[promoted]), [event(&promoted)]);
    assert_eq!(
        fates(&[promoted, fate(1, Fate::Alive, 4, 0)]),
        [event(&fate(1, Fate::Promoted, 4, 0))]
    );
    assert_eq!(
        fates(&[fate(1, Fate::Open, 4, 0), fate(1, Fate::Alive, 0, 77)]),
        [event(&fate(1, Fate::Alive, 4, 77))]
    );
    assert_eq!(
        fates(&[fate(1, Fate::Alive, 4, 77), fate(1, Fate::Alive, 0, 0)]),
        [event(&fate(1, Fate::Alive, 4, 77))]
    );
    // Of another sample.
    assert_eq!(fates(&[fate(2, Fate::Alive, 4, 77)]), []);
}

#[test]
fn the_process_and_the_meanings_of_intervals_come_first_and_then_the_one_in_force() {
    let process = ProcessRecord {
        pid: 1,
        parent_pid: 2,
        start_mono_ns: 3,
        start_wall_ns: 4,
        executable: b"/bin/program",
        command_line: b"program\0",
    };
    let first = interval(0, HeapId::MALLOC, 4096);
    let second = interval(1, HeapId::MALLOC, 8192);
    let again = |interval: IntervalRecord| {
        event(&IntervalRecord {
            time_ns: PART.time_ns,
            ..interval
        })
    };
    let running = [event(&process), event(&first), event(&second)];
    let expected = [&running[..], &[again(second)]].concat();
    assert_eq!(next_file(&following(running.clone())), expected);
    // Sampling is stopped: threads still use the interval of before until they see it.
    let stopped = interval(2, HeapId::MALLOC, 0);
    let events = [&running[..], &[event(&stopped)]].concat();
    let expected = [&events[..], &[again(second), again(stopped)]].concat();
    assert_eq!(next_file(&following(events)), expected);
}

#[test]
fn a_number_of_an_interval_keeps_its_first_meaning() {
    let first = interval(0, HeapId::MALLOC, 4096);
    let later = IntervalRecord {
        time_ns: 700,
        ..first
    };
    let expected = [
        event(&first),
        event(&IntervalRecord {
            time_ns: PART.time_ns,
            ..first
        }),
    ];
    assert_eq!(
        next_file(&following([event(&first), event(&later)])),
        expected
    );
}

#[test]
fn each_heap_has_all_its_intervals_in_order_of_time_and_the_last_one_in_force() {
    let heap = HeapId(2);
    let of_heap = |index, time_ns, bytes| IntervalRecord {
        time_ns,
        ..interval(index, heap, bytes)
    };
    let (late, early) = (of_heap(1, 60, 4096), of_heap(4, 55, 8192));
    let back = of_heap(1, 80, 4096);
    let meaning = |record: IntervalRecord| IntervalRecord {
        heap: IntervalRecord::SOME_HEAP,
        ..record
    };
    let carry = following([&late, &early, &back].map(event));
    let in_force = IntervalRecord {
        time_ns: PART.time_ns,
        ..back
    };
    assert_eq!(
        next_file(&carry),
        [meaning(late), meaning(early), early, back, in_force].map(|it| event(&it))
    );
    // The meaning alone says of no heap that it is sampled so.
    let carry = following([event(&meaning(late))]);
    assert_eq!(next_file(&carry), [event(&meaning(late))]);
}

#[test]
fn modules_keep_their_numbers_and_those_that_are_mapped_are_mapped_again() {
    let module = |start, path| ModuleRecord {
        start,
        end: start + 100,
        bias: start,
        build_id: &[1, 2],
        path,
    };
    let again = |number, start| ModuleAgainRecord {
        module: ModuleId(number),
        start,
        end: start + 100,
        bias: start,
    };
    let unload = |time_ns, start| ModuleUnloadRecord { time_ns, start };
    let code = |time_ns, change, start, end| CodeRecord {
        time_ns,
        change,
        start,
        end,
        frame: VmFrame {
            heap: HeapId(1),
            function: 5,
            line: 0,
        },
    };
    let carry = following([
        event(&module(1000, b"/a")),
        event(&module(2000, b"/b")),
        event(&unload(60, 1000)),
        event(&module(1000, b"/c")),
        event(&unload(70, 2000)),
        event(&again(2, 3000)),
        event(&code(80, CodeChange::Add, 5000, 5100)),
        event(&code(80, CodeChange::Add, 6000, 6100)),
        event(&code(90, CodeChange::Remove, 6000, 0)),
    ]);
    assert_eq!(
        next_file(&carry),
        [
            event(&module(1000, b"/a")),
            event(&module(2000, b"/b")),
            event(&module(1000, b"/c")),
            event(&unload(PART.time_ns, 1000)),
            event(&unload(PART.time_ns, 2000)),
            event(&again(3, 1000)),
            event(&again(2, 3000)),
            event(&code(PART.time_ns, CodeChange::Add, 5000, 5100)),
        ]
    );
}

#[test]
fn running_threads_are_carried_and_ended_ones_that_own_a_live_block() {
    let start = |thread| ThreadStartRecord {
        time_ns: 20,
        thread: ThreadId(thread),
        tid: 100 + thread,
        name: *b"worker\0\0\0\0\0\0\0\0\0\0",
    };
    let total = |thread, bytes, muted_bytes| ThreadTotalRecord {
        thread: ThreadId(thread),
        bytes,
        muted_bytes,
    };
    let end = |thread| ThreadEndRecord {
        time_ns: 30,
        total: total(thread, 70, 2),
    };
    let of_thread = |id, thread| {
        Event::Sample(FileSample {
            thread: ThreadId(thread),
            thread_bytes: 900,
            ..sample(id, 0)
        })
    };
    let carry = following([
        event(&start(1)),
        event(&start(2)),
        event(&start(3)),
        event(&start(4)),
        of_thread(11, 1),
        of_thread(12, 2),
        of_thread(13, 3),
        free(11),
        free(13),
        event(&end(2)),
        event(&end(3)),
        // Never less than what was known, whatever the order.
        event(&total(1, 800, 6)),
        event(&total(4, 400, 5)),
        event(&total(4, 300, 3)),
    ]);
    let events = next_file(&carry);
    assert_eq!(
        events[..6],
        [
            event(&start(1)),
            event(&total(1, 900, 6)),
            event(&start(2)),
            event(&end(2)),
            event(&start(4)),
            event(&total(4, 400, 5)),
        ]
    );
    assert_eq!(samples(&events).len(), 1);
}

#[test]
fn definitions_are_carried_as_last_said_heaps_before_all_others() {
    let definition = |kind, heap, id, name| DefinitionRecord {
        kind,
        heap: HeapId(heap),
        id,
        value: 0,
        name,
        detail: b"",
    };
    use Definition::{Function, Heap, Type};
    let carry = following([
        event(&definition(Type, 1, 5, b"old")),
        event(&definition(Heap, 2, 2, b"second")),
        event(&definition(Heap, 1, 1, b"first")),
        event(&definition(Function, 1, 5, b"main")),
        event(&definition(Type, 2, 5, b"other")),
        event(&definition(Type, 1, 5, b"new")),
    ]);
    assert_eq!(
        next_file(&carry),
        [
            event(&definition(Heap, 1, 1, b"first")),
            event(&definition(Heap, 2, 2, b"second")),
            event(&definition(Type, 1, 5, b"new")),
            event(&definition(Type, 2, 5, b"other")),
            event(&definition(Function, 1, 5, b"main")),
        ]
    );
}

#[test]
fn notes_are_repeated_once_each_and_never_more_than_64() {
    let note = |time_ns| {
        event(&NoteRecord {
            time_ns,
            note: Note::Selection,
            detail: b"threads",
        })
    };
    let carry = following([note(1), note(2), note(1)]);
    assert_eq!(next_file(&carry), [note(1), note(2)]);
    let many = following((0..1000).map(note));
    assert_eq!(next_file(&many), (0..64).map(note).collect::<Vec<_>>());
}

#[test]
fn exact_bytes_of_heaps_are_carried_and_events_of_a_moment_are_not() {
    let value = |heap, statistic, value| ValueRecord {
        time_ns: 40,
        heap: HeapId(heap),
        statistic,
        value,
    };
    let carry = following([
        event(&value(2, ValueRecord::EXACT_BYTES, 100)),
        event(&value(1, ValueRecord::EXACT_BYTES, 50)),
        event(&value(2, ValueRecord::EXACT_BYTES, 300)),
        event(&value(2, 7, 1)),
        event(&CounterRecord {
            time_ns: 40,
            counter: CounterId::ResidentBytes,
            value: 1,
        }),
        event(&MarkerRecord {
            heap: HeapId(1),
            is_phase: false,
            begin_ns: 1,
            end_ns: 2,
            name: b"request",
        }),
        // Of a later version, and malformed.
        Event::Words {
            kind: 200,
            words: vec![1, 2, 3],
        },
        Event::Words {
            kind: RecordKind::Interval as u8,
            words: vec![1],
        },
    ]);
    assert_eq!(
        next_file(&carry),
        [
            event(&value(1, ValueRecord::EXACT_BYTES, 50)),
            event(&value(2, ValueRecord::EXACT_BYTES, 300)),
        ]
    );
}

#[test]
fn last_stacks_are_carried_with_the_nodes_that_no_sample_needs() {
    let carry = following([
        Event::Node(node(0, 10)),
        Event::Node(node(1, 20)),
        Event::Node(node(1, 30)),
        Event::Sample(sample(5, 2)),
    ]);
    assert_eq!(carry.nodes(), 3);
    // The third is of a stack that this file does not have.
    let (chunks, numbers) = next_file_with(&carry, &[(1, 2), (2, 3), (3, 0), (4, 9)]);
    assert_eq!(numbers, [1, 2, 3]);
    let last = |thread, stack| {
        event(&LastStackRecord {
            thread: ThreadId(thread),
            stack,
        })
    };
    let events = chunks.concat();
    assert_eq!(
        events[events.len() - 5..],
        [
            last(1, 2),
            Event::Node(node(1, 30)),
            last(2, 3),
            last(3, 0),
            last(4, 0),
        ]
    );
}

#[test]
fn what_is_carried_comes_in_chunks_of_about_a_mebibyte() {
    let name = [b'x'; 1000];
    let definition = |id| {
        event(&DefinitionRecord {
            kind: Definition::Type,
            heap: HeapId(1),
            id,
            value: 0,
            name: &name,
            detail: b"",
        })
    };
    let size = |events: &[Event]| -> usize {
        let words = |event: &Event| match event {
            Event::Words { words, .. } => 8 * words.len(),
            _ => 8,
        };
        events.iter().map(words).sum()
    };
    let (chunks, _) = next_file_with(&following((1..=2500).map(definition)), &[]);
    let sizes: Vec<usize> = chunks.iter().map(|chunk| size(chunk)).collect();
    assert_eq!(sizes.len(), 3, "{sizes:?}");
    assert!(
        sizes[..2]
            .iter()
            .all(|size| size.abs_diff(1 << 20) < 1 << 17),
        "{sizes:?}"
    );
    // Far apart from each other, so that a sample takes some 30 bytes.
    let far = |id: u64| {
        Event::Sample(FileSample {
            address: id << 60,
            size: u64::MAX - id,
            ..sample(id, 0)
        })
    };
    let (chunks, _) = next_file_with(&following((1..=60_000).map(far)), &[]);
    let samples: Vec<usize> = chunks.iter().map(|chunk| samples(chunk).len()).collect();
    assert_eq!(samples.iter().sum::<usize>(), 60_000);
    assert!(samples.len() == 2 || samples.len() == 3, "{samples:?}");
}
