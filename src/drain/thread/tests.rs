mod on_disk;

use std::sync::atomic::AtomicU64;

use allocsample_agent::process_control::Order;
use allocsample_agent::stack::modules::FindObject;
use allocsample_agent::{Agent, Hooks};
use allocsample_record::{
    CodeChange, CodeRecord, CounterRecord, Event, Fate, FateRecord, FileFreeStackRecord,
    FileSample, FileTickRecord, ForkRecord, FreeRecord, FreeStackRecord, HeapId, LastStackRecord,
    Location, ModuleAgainRecord, ModuleId, ModuleRecord, ModuleUnloadRecord, Note, NoteRecord,
    PartEdge, PartRecord, RecordKind, RingRecord, SampleFlags, SampleId, SampleRecord, StackId,
    StackNode, ThreadEndRecord, ThreadId, ThreadTotalRecord, TickRecord, VmFrame,
};
use allocsample_ring::Priority;

use super::*;
use crate::trial::{self, Trial, agent, chunks, events, is_of_kind, numbers, sample_of};

fn open(trial: &Trial) -> Drain {
    Drain::open(trial.agent, trial.recording).unwrap()
}

fn event<R: RingRecord>(record: &R) -> Event {
    let mut words = vec![0; record.words()];
    assert_eq!(record.encode_into(&mut words), Some(record.words()));
    Event::Words {
        kind: R::KIND as u8,
        words,
    }
}

/// In code that belongs to no module.
fn node(parent: u32, address: u64) -> Event {
    Event::Node(StackNode {
        parent: StackId(parent),
        location: Location {
            module: ModuleId::NONE,
            offset: address,
        },
    })
}

fn file_sample(id: SampleId, sample: &SampleRecord<'_>, stack: u32) -> Event {
    Event::Sample(FileSample {
        id,
        time_ns: sample.time_ns,
        address: sample.address,
        size: sample.size,
        thread: sample.thread,
        heap: sample.heap,
        flags: sample.flags,
        points: sample.points,
        interval: sample.interval,
        thread_bytes: sample.thread_bytes,
        stack: StackId(stack),
    })
}

/// The events of a file after those that every recording begins with.
fn own_events(trial: &Trial) -> Vec<Event> {
    let mut events = events(&trial.path());
    let is_own = |event: &Event| {
        let common = [
            RecordKind::Process,
            RecordKind::Interval,
            RecordKind::Note,
            RecordKind::ThreadStart,
        ];
        !common.iter().any(|&kind| is_of_kind(event, kind))
    };
    events.retain(is_own);
    events
}

fn notes(events: &[Event], wanted: Note) -> usize {
    let is_it = |event: &&Event| match event {
        Event::Words { kind, words } if *kind == RecordKind::Note as u8 => {
            let text: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            NoteRecord::decode(words, &text).is_some_and(|note| note.note == wanted)
        }
        _ => false,
    };
    events.iter().filter(is_it).count()
}

fn of_kind(path: &std::path::Path, kind: ChunkKind) -> Vec<trial::Chunk> {
    let mut chunks = chunks(path);
    chunks.retain(|chunk| chunk.kind == kind as u16);
    chunks
}

#[test]
fn every_record_of_the_ring_comes_to_the_file_in_its_order() {
    let trial = Trial::begin(agent!(), &[]);
    let mut drain = open(&trial);
    let recording = trial.recording;
    let module = |start, path| ModuleRecord {
        start,
        end: start + 100,
        bias: start,
        build_id: &[1, 2, 3],
        path,
    };
    let code = CodeRecord {
        time_ns: 51,
        change: CodeChange::Add,
        start: 700,
        end: 800,
        frame: VmFrame {
            heap: HeapId(3),
            function: 4,
            line: 0,
        },
    };
    let unload = ModuleUnloadRecord {
        time_ns: 52,
        start: 1000,
    };
    let fork = ForkRecord {
        time_ns: 53,
        child_pid: 5,
    };
    assert!(recording.push(&module(1000, b"/lib/a")));
    let first = trial.sample(1, 0, &[1050, 20, 30]);
    let second = trial.sample(1, 2, &[40]);
    // Of a later version, which this one cannot copy: it does not know how to read it.
    trial.put(200, 1, |words| {
        words[0] = 9;
        Some(1)
    });
    let typed = SampleRecord {
        type_id: 6,
        heap: HeapId(3),
        ..sample_of(2, 0)
    };
    let encode = |words: &mut [u64]| typed.encode_into(words);
    let third = SampleId(trial.put(RecordKind::Sample as u8, SampleRecord::words(0), encode));
    let fate = FateRecord {
        time_ns: 54,
        sample: third,
        fate: Fate::Promoted,
        type_id: 0,
        gc: 2,
        content_hash: 0,
    };
    assert!(recording.push(&fate));
    trial.free(first);
    let free_stack = FreeStackRecord {
        sample: first,
        thread: ThreadId(1),
        shared: 1,
        frames: &[41],
    };
    let words = FreeStackRecord::words(1);
    let encode = |words: &mut [u64]| free_stack.encode_into(words);
    trial.put(RecordKind::FreeStack as u8, words, encode);
    let tick = TickRecord {
        time_ns: 55,
        cpu_ns: 1000,
        thread: ThreadId(1),
        flags: SampleFlags::UNWIND_FAILED,
        frames: &[40, 20, 30],
    };
    let encode = |words: &mut [u64]| tick.encode_into(words);
    trial.put(RecordKind::Tick as u8, TickRecord::words(3), encode);
    assert!(recording.push(&code));
    let in_code = trial.sample(2, 0, &[750]);
    assert!(recording.push(&unload));
    assert!(recording.push(&module(2000, b"/lib/a")));
    assert!(recording.push(&fork));
    let end = ThreadEndRecord {
        time_ns: 56,
        total: ThreadTotalRecord {
            thread: ThreadId(1),
            bytes: 1000,
            muted_bytes: 0,
        },
    };
    assert!(recording.push(&end));
    let of_a_thread_that_ended = trial.sample(1, 1, &[60]);
    drain.drain_all().unwrap();

    let in_module = |parent, module, offset| {
        Event::Node(StackNode {
            parent: StackId(parent),
            location: Location {
                module: ModuleId(module),
                offset,
            },
        })
    };
    assert_eq!(
        own_events(&trial),
        [
            event(&module(1000, b"/lib/a")),
            node(0, 30),
            node(1, 20),
            in_module(2, 1, 50),
            file_sample(first, &sample_of(1, 0), 3),
            node(2, 40),
            file_sample(second, &sample_of(1, 0), 4),
            file_sample(third, &typed, 0),
            event(&FateRecord::of_type(third, 6, 50).unwrap()),
            event(&fate),
            Event::Free(FreeRecord {
                time_ns: 60,
                sample: first,
                thread: ThreadId(1)
            }),
            node(1, 41),
            Event::FreeStack(FileFreeStackRecord {
                sample: first,
                stack: 5
            }),
            Event::Words {
                kind: RecordKind::FileTick as u8,
                words: FileTickRecord {
                    time_ns: 55,
                    cpu_ns: 1000,
                    thread: ThreadId(1),
                    flags: SampleFlags::UNWIND_FAILED,
                    stack: 4
                }
                .encode()
                .to_vec(),
            },
            event(&code),
            Event::Node(StackNode {
                parent: StackId(0),
                location: code.frame.location()
            }),
            file_sample(in_code, &sample_of(2, 0), 6),
            event(&unload),
            event(&ModuleAgainRecord {
                module: ModuleId(1),
                start: 2000,
                end: 2100,
                bias: 2000
            }),
            event(&fork),
            event(&end),
            // The thread's last stack was forgotten.
            node(0, 60),
            file_sample(
                of_a_thread_that_ended,
                &SampleRecord {
                    flags: SampleFlags::TRUNCATED,
                    ..sample_of(1, 0)
                },
                7
            ),
        ]
    );
    assert_eq!((drain.drained.samples, drain.drained.frees), (5, 1));
    assert_eq!(drain.drained.words, recording.ring.head());
    assert_eq!(recording.ring.used_words(), 0);
    let file_bytes = std::fs::metadata(trial.path()).unwrap().len();
    let figures = recording.ring.figures();
    assert_eq!(figures[Figure::WrittenBytes as usize], file_bytes);
    assert!(figures[Figure::DrainNs as usize] > 0);
    let of_ring = of_kind(&trial.path(), ChunkKind::Events);
    assert_eq!(of_ring.len(), 1);
    assert_eq!(of_ring[0].ring, 0..recording.ring.head());
    assert_eq!(recording.space.load(Ordering::Relaxed), 1);
}

#[test]
fn each_chunk_has_one_reading_of_the_resident_set() {
    let trial = Trial::begin(agent!(), &[]);
    let mut drain = open(&trial);
    drain.drain_all().unwrap();
    drain.drain_all().unwrap();
    trial.sample(1, 0, &[]);
    drain.drain_all().unwrap();
    let chunks = of_kind(&trial.path(), ChunkKind::Events);
    assert_eq!(chunks.len(), 2);
    for chunk in chunks {
        let mut readings = 0;
        for event in allocsample_record::ChunkDecoder::new(&chunk.payload, 0) {
            let Event::Words { kind, words } = event else {
                continue;
            };
            if kind == RecordKind::Counter as u8 {
                let bytes = CounterRecord::decode(&words).unwrap().value;
                assert!((1 << 20..1 << 36).contains(&bytes), "{bytes}");
                assert_eq!(bytes % 4096, 0);
                readings += 1;
            }
        }
        assert_eq!(readings, 1);
    }
}

#[test]
fn what_lies_behind_an_open_record_waits_for_it() {
    let trial = Trial::begin(agent!(), &[]);
    let mut drain = open(&trial);
    drain.drain_all().unwrap();
    let before = own_events(&trial).len();
    let ring = &trial.recording.ring;
    let words = SampleRecord::words(0);
    let mut open_one = ring.reserve(words, Priority::Sample).unwrap();
    assert_eq!(
        sample_of(1, 0).encode_into(open_one.words_mut()),
        Some(words)
    );
    trial.sample(2, 0, &[]);
    let used_words = ring.used_words();
    drain.drain_all().unwrap();
    assert_eq!(own_events(&trial).len(), before);
    assert_eq!(ring.used_words(), used_words);
    open_one.commit(RecordKind::Sample as u8);
    drain.drain_all().unwrap();
    assert_eq!(own_events(&trial).len(), before + 2);
    assert_eq!(ring.used_words(), 0);
}

#[test]
fn a_chunk_ends_after_so_many_words_and_the_next_one_goes_on_there() {
    let trial = Trial::begin(agent!(), &[]);
    let mut drain = open(&trial);
    let frames: Vec<u64> = (1..=1000).collect();
    for _ in 0..300 {
        trial.sample(1, 0, &frames);
    }
    assert!(!drain.is_ring_populated);
    drain.drain_all().unwrap();
    assert!(drain.is_ring_populated);
    let chunks = of_kind(&trial.path(), ChunkKind::Events);
    assert_eq!(chunks.len(), 3);
    let mut from = 0;
    for chunk in &chunks {
        assert_eq!(chunk.ring.start, from);
        let words = chunk.ring.end - from;
        assert!(words < CHUNK_WORDS + 2000, "{words}");
        from = chunk.ring.end;
    }
    assert!(chunks[0].ring.end >= CHUNK_WORDS);
    assert_eq!(from, trial.recording.ring.head());
    assert_eq!(drain.drained.words, from);
    // The stack is written once.
    assert_eq!(own_events(&trial).len(), 1000 + 300);
}

#[test]
fn a_ring_of_which_little_is_used_is_not_populated() {
    let trial = Trial::begin(agent!(), &[]);
    let mut drain = open(&trial);
    let quarter = trial.recording.ring.capacity_words() / 4;
    drain.populate_ring(quarter - 1);
    assert!(!drain.is_ring_populated);
    drain.populate_ring(quarter);
    assert!(drain.is_ring_populated);
}

#[test]
fn losses_are_written_when_they_have_changed() {
    let trial = Trial::begin(agent!(), &[]);
    let mut drain = open(&trial);
    let lost = |trial: &Trial| -> Vec<Vec<u64>> {
        let chunks = of_kind(&trial.path(), ChunkKind::Lost);
        chunks.iter().map(numbers).collect()
    };
    drain.drain_all().unwrap();
    assert!(lost(&trial).is_empty());
    let ring = &trial.recording.ring;
    ring.count_lost(LostReason::FreeRingFull as usize, 2, 70);
    drain.drain_all().unwrap();
    drain.drain_all().unwrap();
    let expected = vec![0, 0, 2, 70, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(lost(&trial), std::slice::from_ref(&expected));
    ring.count_lost(LostReason::LeftOut as usize, 1, 9);
    drain.drain_all().unwrap();
    let later = [&expected[..12], &[1, 9]].concat();
    assert_eq!(lost(&trial), [expected, later]);
}

#[test]
fn the_end_has_the_figures_and_memory_and_removes_the_ring() {
    let trial = Trial::begin(agent!(), &[]);
    let mut drain = open(&trial);
    assert_eq!(
        trial.directory.names(),
        ["app.allocsample", "app.allocsample.ring"]
    );
    trial.sample(1, 0, &[10]);
    drain.drain_rest().unwrap();
    assert!(!trial.recording.ring.is_closed());
    drain.finish().unwrap();
    assert!(trial.recording.ring.is_closed());
    assert_eq!(trial.directory.names(), ["app.allocsample"]);
    assert_eq!(own_events(&trial).len(), 2);
    let figures = of_kind(&trial.path(), ChunkKind::Figures);
    assert_eq!(
        numbers(figures.last().unwrap()),
        trial.recording.ring.figures()
    );
    let memory = of_kind(&trial.path(), ChunkKind::Memory);
    let map = MemoryMap::decode(&memory.last().unwrap().payload).unwrap();
    assert!(map.totals.resident_bytes > 0);
    assert_eq!(memory[0].ring.start, trial.recording.ring.head());
}

#[test]
fn a_reading_of_memory_is_written_when_it_is_due() {
    let trial = Trial::begin(agent!(), &[]);
    let mut drain = open(&trial);
    drain.write_memory().unwrap();
    drain.write_memory().unwrap();
    assert_eq!(of_kind(&trial.path(), ChunkKind::Memory).len(), 1);
}

/// A sample that lives, one that was freed, and the same with frames that the next file must have, too.
fn fill(trial: &Trial) -> SampleId {
    trial.sample(1, 0, &[10, 20, 30]);
    let freed = trial.sample(1, 1, &[50]);
    trial.free(freed);
    trial.sample(2, 0, &[60])
}

#[test]
fn the_thread_does_what_it_is_asked_for_until_the_end() {
    let trial = Trial::begin(agent!(), &[]);
    trial.start();
    let order = |order| trial.agent.order(trial.thread, order).unwrap();
    let live = fill(&trial);
    order(Order::Flush);
    let has_it = |event: &Event| matches!(event, Event::Sample(sample) if sample.id == live);
    assert!(events(&trial.path()).iter().any(has_it));
    assert_eq!(of_kind(&trial.path(), ChunkKind::Figures).len(), 1);
    order(Order::Snapshot);
    assert!(trial.directory.path("app.snapshot-1.allocsample").exists());
    order(Order::Rotate);
    assert!(trial.directory.path("app.part-1.allocsample").exists());
    order(Order::Reset);
    assert!(!trial.directory.path("app.part-2.allocsample").exists());
    let begun_again = events(&trial.path());
    assert!(begun_again.iter().any(has_it));
    let Event::Words { words, .. } = &begun_again[0] else {
        panic!("{:?}", begun_again[0]);
    };
    assert_eq!(PartRecord::decode(words).unwrap().number, 3);
    let last = trial.sample(1, 0, &[]);
    assert!(trial.recording.ask_drain(DrainRequest::Finish, 10_000));
    let has_it = |event: &Event| matches!(event, Event::Sample(sample) if sample.id == last);
    assert!(events(&trial.path()).iter().any(has_it));
    assert!(trial.recording.ring.is_closed());
}

#[test]
fn the_thread_drains_a_ring_of_which_a_quarter_is_used() {
    let trial = Trial::begin(agent!(), &[]);
    trial.start();
    trial.recording.wait_for_drain_start();
    while !trial.recording.has_work() {
        trial.sample(1, 0, &[10; 1000]);
    }
    // At most ten seconds.
    for _ in 0..10_000 {
        if trial.recording.ring.tail() > 0 {
            break;
        }
        trial.recording.wake_drain();
        clock::sleep_ms(1);
    }
    assert!(trial.recording.ring.tail() > 0);
    assert!(trial.recording.ask_drain(DrainRequest::Finish, 10_000));
}

/// Where a module starts that a bridge waits for.
const AWAITED: u64 = 0x7000;

/// A thread that is told of that module, and asks `on_module` whether its runtime is ready.
fn awaiting(agent: &'static Agent, on_module: fn(u64) -> bool) -> Trial {
    let hooks = Hooks {
        on_module,
        ..Hooks::NONE
    };
    let trial = Trial::begin_with(agent, &[], hooks);
    trial.start();
    trial.recording.wait_for_drain_start();
    trial.recording.await_module(AWAITED);
    trial.recording.wake_drain();
    trial
}

/// Whether there have been so many looks after at most ten seconds.
fn has_looked(looks: &AtomicU64, times: u64) -> bool {
    (0..10_000).any(|_| {
        clock::sleep_ms(1);
        looks.load(Ordering::Relaxed) >= times
    })
}

#[test]
fn an_awaited_module_is_looked_at_until_its_runtime_is_ready() {
    static LOOKS: AtomicU64 = AtomicU64::new(0);
    let on_module = |start| start != AWAITED || LOOKS.fetch_add(1, Ordering::Relaxed) == 3;
    let trial = awaiting(agent!(), on_module);
    // Nobody wakes it for the second look and later ones.
    assert!(has_looked(&LOOKS, 4));
    assert_eq!(trial.recording.take_awaited_module(), None);
    assert!(trial.recording.ask_drain(DrainRequest::Finish, 10_000));
    assert_eq!(LOOKS.load(Ordering::Relaxed), 4);
}

#[test]
fn a_runtime_that_is_never_ready_keeps_no_other_module_waiting() {
    static LOOKS: AtomicU64 = AtomicU64::new(0);
    static OTHERS: AtomicU64 = AtomicU64::new(0);
    let trial = awaiting(agent!(), |start| {
        let is_other = start != AWAITED;
        let looks = if is_other { &OTHERS } else { &LOOKS };
        looks.fetch_add(1, Ordering::Relaxed);
        is_other
    });
    assert!(has_looked(&LOOKS, 2));
    let modules = trial.agent.modules();
    // SAFETY: the name ends in a zero.
    let find_object = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    assert!(!find_object.is_null(), "glibc is older than 2.35");
    // SAFETY: this is the type of glibc's function of that name.
    modules.set_find_object(unsafe {
        std::mem::transmute::<*mut libc::c_void, FindObject>(find_object)
    });
    let code = a_runtime_that_is_never_ready_keeps_no_other_module_waiting as *const () as u64;
    assert!(modules.find(code).is_some());
    assert!(has_looked(&OTHERS, 1));
    assert!(has_looked(&LOOKS, 4));
    assert!(trial.recording.ask_drain(DrainRequest::Finish, 10_000));
}

#[test]
fn after_a_pause_the_next_thread_goes_on_with_the_same_stacks() {
    let trial = Trial::begin(agent!(), &[]);
    trial.start();
    trial.sample(1, 0, &[10, 20]);
    assert!(trial.recording.ask_drain(DrainRequest::Pause, 10_000));
    assert!(!trial.recording.ring.is_closed());
    trial.recording.allow_drain_again();
    trial.start();
    trial.sample(1, 2, &[]);
    assert!(trial.recording.ask_drain(DrainRequest::Finish, 10_000));
    let own = own_events(&trial);
    assert_eq!(own[..2], [node(0, 20), node(1, 10)]);
    let stacks: Vec<(u32, SampleFlags)> = own[2..]
        .iter()
        .filter_map(|event| match event {
            Event::Sample(sample) => Some((sample.stack.0, sample.flags)),
            _ => None,
        })
        .collect();
    let complete = SampleFlags::default();
    assert_eq!(stacks, [(2, complete), (2, complete)]);
}

#[test]
fn a_memory_of_another_recording_is_not_used() {
    let other = Trial::begin(agent!(), &[]);
    let mut drain = open(&other);
    other.sample(1, 0, &[10, 20]);
    drain.drain_all().unwrap();
    drain.keep_for_next_thread();
    drop(other);
    let trial = Trial::begin(agent!(), &[]);
    let drain = open(&trial);
    assert_eq!(drain.drained.samples, 0);
    assert!(!drain.interner.knows(ThreadId(1), 1));
}
