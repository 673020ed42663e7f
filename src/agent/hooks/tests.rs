#![allow(clippy::indexing_slicing, reason = "a test may fail")]

mod collections;
mod deaths;

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};
use std::vec::Vec;

use allocsample_record::{
    CodeChange, CodeRecord, Definition, DefinitionRecord, Fate, FateRecord, GcKind, GcRecord,
    HeapId, HeapKind, LostReason, MarkerRecord, RecordKind, ValueRecord, VmFrame,
};
use allocsample_ring::request;
use allocsample_sampling::Interval;

use super::collect::{Pending, Resolution};
use super::heap::{Callbacks, Description};
use super::nursery::{Drawn, HookSlot, Object};
use super::*;
use crate::accounting::thread::ShimThread;
use crate::recording;
use crate::shim::Caller;
use crate::stack::vm::{NativeCode, RawFrame};
use crate::switch::Switch;
use crate::trial::{Trial, agent};

const EVERY: &[(&str, &str)] = &[("INTERVAL", "1"), ("ON_FULL", "drop")];

/// A heap that offers nothing.
pub(crate) fn described(kind: HeapKind) -> Description<'static> {
    Description {
        kind,
        name: b"toy",
        interval: None,
        is_walked_in_malloc: false,
        is_walked_in_free: false,
        is_walked_everywhere: false,
        is_walked_in_ticks: false,
        scans_stacks: false,
        is_freed_by_malloc: false,
        ends_by_id: false,
        loop_has_thunks: false,
        is_walk_whole: false,
        native_code: NativeCode::Loop,
        callbacks: Callbacks {
            user: core::ptr::null_mut(),
            walk: None,
            on_sample: None,
            on_change: None,
            collect: None,
        },
    }
}

fn slot() -> HookSlot {
    // SAFETY: all zero bytes are a nursery that was not begun.
    unsafe { core::mem::zeroed() }
}

/// A machine with one heap and one thread, whose nursery is at 0x10000.
struct Machine {
    trial: Trial,
    heap: &'static Heap,
    thread: &'static ShimThread,
    slot: HookSlot,
    free: u64,
}

const START: u64 = 0x10000;
const TOP: u64 = START + (1 << 30);

impl Machine {
    fn new(trial: Trial, description: &Description<'_>) -> Self {
        let heap = trial.agent.register_heap(description).unwrap();
        let mut machine = Self {
            heap,
            thread: trial.thread(),
            slot: slot(),
            free: START,
            trial,
        };
        machine.begin();
        machine
    }

    fn begin(&mut self) {
        let agent = self.trial.agent;
        agent.nursery_begin(self.thread, self.heap, &self.slot, self.free, TOP);
    }

    /// An object that comes to the limit.
    fn alloc(&mut self, size: u64) -> u64 {
        let object = Object {
            address: self.free,
            size,
            type_id: 4,
        };
        self.free += size;
        let caller = Caller::UNKNOWN;
        let agent = self.trial.agent;
        agent.nursery_point(self.thread, self.heap, &self.slot, object, TOP, &caller)
    }

    fn pending(&self, is_young: bool) -> Vec<Pending> {
        let nothing = Object {
            address: 0,
            size: 0,
            type_id: 0,
        };
        let none = Pending::new(allocsample_record::SampleId(0), &nothing);
        let mut found = std::vec![none; 100];
        let mut cursor = 0;
        let agent = self.trial.agent;
        let count = match is_young {
            true => agent.pending_young(self.heap, &self.slot, &mut found, &mut cursor),
            false => self.heap.pending_old(&mut found, &mut cursor),
        };
        found.truncate(count);
        found
    }

    fn fates(&self) -> Vec<(u64, Fate, u32, u64)> {
        let fate = |words: Vec<u64>| {
            let fate = FateRecord::decode(&words).unwrap();
            (fate.sample.0, fate.fate, fate.type_id, fate.gc)
        };
        let found = self.trial.of_kind(RecordKind::Fate).into_iter();
        found.map(fate).collect()
    }
}

fn answer(pending: &Pending, fate: Fate) -> Resolution {
    Resolution {
        id: pending.id,
        slot: pending.slot,
        address: pending.address + 0x100,
        content_hash: 9,
        type_id: 0,
        fate: fate as u32,
    }
}

#[test]
fn objects_of_a_nursery_are_samples_of_their_heap() {
    let trial = Trial::begin(agent!(), EVERY);
    let mut machine = Machine::new(trial, &described(HeapKind::Nursery));
    machine.alloc(48);
    machine.alloc(100);
    let samples = machine.trial.samples();
    let found: Vec<_> = samples
        .iter()
        .map(|it| (it.address, it.size, it.points, it.heap, it.type_id))
        .collect();
    assert_eq!(found, [(START, 48, 48, 1, 4), (START + 48, 100, 100, 1, 4)]);
    let counters = machine.heap.counters();
    assert_eq!((counters.exact_bytes, counters.samples), (148, 2));
    assert_eq!((counters.is_on, counters.interval_bytes), (true, 1));
}

#[test]
fn the_limit_is_the_next_sample_point() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1000")]);
    let mut machine = Machine::new(trial, &described(HeapKind::Nursery));
    let mut sampled = 0;
    for _ in 0..100 {
        let limit = machine.alloc(64);
        // The machine allocates up to the limit by itself.
        assert!(limit > machine.free && limit <= machine.free + 1000);
        machine.free += (limit - machine.free) / 64 * 64;
        sampled += 1;
    }
    let samples = machine.trial.samples();
    // The first object came to the limit before there was a point.
    assert!(samples.len() >= sampled - 1);
    let total = machine.free - START;
    let points: u32 = samples.iter().map(|it| it.points).sum();
    let expected = total / 1000;
    assert!(
        u64::from(points).abs_diff(expected) <= 1,
        "{points} {expected}"
    );
}

#[test]
fn another_profile_counts_from_zero() {
    let trial = Trial::begin(agent!(), EVERY);
    let mut machine = Machine::new(trial, &described(HeapKind::Nursery));
    machine.alloc(16);
    let agent = machine.trial.agent;
    agent.nursery_end(machine.heap, &machine.slot, machine.free);
    let counted = machine.heap.counters();
    assert_eq!((counted.exact_bytes, counted.samples), (16, 1));
    agent.heaps.forget_counts();
    let counted = machine.heap.counters();
    assert_eq!((counted.exact_bytes, counted.samples), (0, 0));
}

#[test]
fn no_nursery_draws_as_a_thread_or_another_nursery_does() {
    let seed = allocsample_sampling::Seed { process: 3 };
    let draws = |mut random: allocsample_sampling::Random| [random.next_u64(), random.next_u64()];
    let heaps = super::heap::Heaps::new();
    let mut drawn: Vec<_> = (0..8).map(|thread| draws(seed.thread(thread))).collect();
    drawn.extend((0..8).map(|_| draws(heaps.new_random(seed))));
    let count = drawn.len();
    drawn.sort_unstable();
    drawn.dedup();
    assert_eq!(drawn.len(), count);
}

#[test]
fn blocks_of_a_heap_end_by_their_address() {
    let trial = Trial::begin(agent!(), EVERY);
    let machine = Machine::new(trial, &described(HeapKind::External));
    let agent = machine.trial.agent;
    let alloc = |address, size| {
        let object = Object {
            address,
            size,
            type_id: 0,
        };
        let caller = Caller::UNKNOWN;
        let (id, limit) = agent.alloc_outside(
            machine.thread,
            machine.heap,
            &machine.slot,
            object,
            START,
            &caller,
        );
        assert!(limit.is_some());
        id.unwrap().0
    };
    let (first, second) = (alloc(0x500, 64), alloc(0x600, 32));
    // malloc's block at the same address is another one.
    let of_malloc = machine.trial.alloc(machine.thread, 0x500, 8).unwrap();
    let number = machine.trial.samples()[2].thread;
    agent.heap_freed(machine.thread, machine.heap, 0x500, &Caller::UNKNOWN);
    agent.heap_freed(machine.thread, machine.heap, 0x500, &Caller::UNKNOWN);
    agent.heap_moved(machine.heap, 0x600, 0x700);
    agent.heap_freed(machine.thread, machine.heap, 0x600, &Caller::UNKNOWN);
    assert_eq!(machine.trial.frees().len(), 1);
    agent.heap_freed(machine.thread, machine.heap, 0x700, &Caller::UNKNOWN);
    let lost = machine.trial.recording().ring.lost();
    machine.trial.free(machine.thread, 0x500);
    assert_eq!(
        machine.trial.frees(),
        [(first, number), (second, number), (of_malloc.0, number)]
    );
    assert_eq!(machine.heap.counters().exact_bytes, 96);
    assert_eq!(lost[LostReason::LiveTableFull as usize], (0, 0));
}

#[test]
fn blocks_of_an_allocator_end_by_their_address_and_its_threads_stay_with_their_machine() {
    let trial = Trial::begin(agent!(), EVERY);
    let machine = Machine::new(trial, &described(HeapKind::Nursery));
    let agent = machine.trial.agent;
    let allocator = agent
        .register_heap(&described(HeapKind::Allocator))
        .unwrap();
    let blocks = slot();
    let of_machine = u32::from(machine.heap.id.0);
    assert_eq!(machine.thread.vm_heap(), of_machine);
    agent.nursery_begin(machine.thread, allocator, &blocks, 1, TOP);
    assert_eq!(machine.thread.vm_heap(), of_machine);
    let block = Object {
        address: 0x500,
        size: 24,
        type_id: 0,
    };
    let caller = Caller::UNKNOWN;
    let (id, _) = agent.alloc_outside(machine.thread, allocator, &blocks, block, 1, &caller);
    let id = id.unwrap().0;
    agent.heap_freed(machine.thread, machine.heap, 0x500, &Caller::UNKNOWN);
    assert_eq!(machine.trial.frees(), []);
    agent.heap_freed(machine.thread, allocator, 0x500, &Caller::UNKNOWN);
    let number = machine.thread.number();
    assert_eq!(machine.trial.frees(), [(id, number)]);
    assert_eq!(allocator.counters().exact_bytes, 24);
}

#[test]
fn a_heap_whose_objects_are_blocks_of_malloc_shares_its_table() {
    let trial = Trial::begin(agent!(), EVERY);
    let description = Description {
        is_freed_by_malloc: true,
        ..described(HeapKind::Malloc)
    };
    let machine = Machine::new(trial, &description);
    let agent = machine.trial.agent;
    let object = Object {
        address: 0x500,
        size: 64,
        type_id: 0,
    };
    let id = agent.heap_sampled(
        machine.thread,
        machine.heap,
        object,
        &[],
        Drawn::default(),
        &Caller::UNKNOWN,
    );
    machine.trial.free(machine.thread, 0x500);
    let frees = machine.trial.frees();
    assert_eq!(frees.len(), 1);
    assert_eq!(frees[0].0, id.unwrap().0);
}

#[test]
fn a_machine_that_samples_by_itself_keeps_its_interval() {
    let trial = Trial::begin(agent!(), EVERY);
    let machine = Machine::new(trial, &described(HeapKind::External));
    let agent = machine.trial.agent;
    let sampled = |address, drawn_at| {
        let object = Object {
            address,
            size: 64,
            type_id: 0,
        };
        let caller = Caller::UNKNOWN;
        agent.heap_sampled(
            machine.thread,
            machine.heap,
            object,
            &[],
            Drawn {
                at: drawn_at,
                time_ns: None,
            },
            &caller,
        )
    };
    // The recording begins, so that all that is defined from now on is in its ring.
    agent.begin_time_line(machine.thread);
    let at = Interval::new(300);
    sampled(0x500, at).unwrap();
    assert!(!machine.heap.samples_by_itself());
    sampled(0x600, None).unwrap();
    assert!(machine.heap.samples_by_itself());
    let samples = machine.trial.samples();
    assert!(samples.iter().all(|it| (it.points, it.heap) == (1, 1)));
    let meaning = machine.trial.intervals();
    let bytes = |index| meaning.iter().find(|it| it.0 == index).unwrap().1;
    assert_eq!(bytes(samples[0].interval), 300);
    assert_eq!(bytes(samples[1].interval), 1);
    // An interval has the number that it had.
    let third = sampled(0x700, at).unwrap();
    let samples = machine.trial.samples();
    let found = samples.iter().find(|it| it.id == third.0).unwrap();
    assert_eq!(found.interval, samples[0].interval);
    // malloc's interval changes, and that of the heap does not.
    assert!(agent.change_interval(
        machine.trial.recording(),
        Interval::EVERY_ALLOCATION,
        Interval::new(5000)
    ));
    assert_eq!(machine.heap.counters().interval_bytes, 1);
    machine.heap.switch(false);
    assert_eq!(sampled(0x800, None), None);
    assert_eq!(machine.heap.counters().samples, 3);
}

#[test]
fn a_machine_that_never_calls_malloc_obeys_requests_too() {
    let trial = Trial::begin(agent!(), EVERY);
    let mut machine = Machine::new(trial, &described(HeapKind::Nursery));
    machine.alloc(16);
    let recording = machine.trial.recording();
    recording.ring.ask(request::SET_INTERVAL, 5000, [0; 4]);
    machine.alloc(16);
    let in_force = machine.trial.agent.interval_in_force();
    assert_eq!(in_force, Interval::new(5000));
    assert_eq!(machine.heap.counters().interval_bytes, 5000);
}

#[test]
fn what_a_machine_draws_on_a_thread_that_is_left_out_is_no_sample() {
    let trial = Trial::begin(agent!(), EVERY);
    let machine = Machine::new(trial, &described(HeapKind::External));
    let agent = machine.trial.agent;
    let sampled = |address| {
        let object = Object {
            address,
            size: 64,
            type_id: 0,
        };
        let caller = Caller::UNKNOWN;
        let id = agent.heap_sampled(
            machine.thread,
            machine.heap,
            object,
            &[],
            Drawn::default(),
            &caller,
        );
        id.is_some()
    };
    assert!(sampled(0x500));
    agent.order_thread(machine.thread, 0, false).unwrap();
    assert!(!sampled(0x600));
    agent.order_thread(machine.thread, 0, true).unwrap();
    assert!(sampled(0x700));
}

#[test]
fn a_stack_that_the_machine_gives_is_the_whole_stack() {
    use allocsample_record::{SampleFlags, SampleRecord};
    for (depth, frames, flags) in [
        ("2", 2, SampleFlags::default()),
        ("1", 1, SampleFlags::TRUNCATED),
    ] {
        let settings = [("INTERVAL", "1"), ("ON_FULL", "drop"), ("MAX_DEPTH", depth)];
        let trial = Trial::begin(agent!(), &settings);
        let machine = Machine::new(trial, &described(HeapKind::External));
        let frame = |function, line| RawFrame {
            function,
            line,
            flags: 0,
            reserved: 0,
        };
        let object = Object {
            address: 0x500,
            size: 64,
            type_id: 0,
        };
        let stack = [frame(5, 7), frame(6, 8)];
        let caller = Caller::UNKNOWN;
        let agent = machine.trial.agent;
        agent.heap_sampled(
            machine.thread,
            machine.heap,
            object,
            &stack,
            Drawn::default(),
            &caller,
        );
        let words = machine.trial.of_kind(RecordKind::Sample);
        let sample = SampleRecord::decode(&words[0]).unwrap();
        let expected = [(5, 7), (6, 8)].map(|(function, line)| {
            let heap = machine.heap.id();
            VmFrame {
                heap,
                function,
                line,
            }
            .encode()
        });
        assert_eq!(sample.frames, &expected[..frames]);
        assert_eq!(sample.flags, flags);
    }
}

#[test]
fn other_heaps_follow_the_interval_of_malloc_and_its_stop() {
    let trial = Trial::begin(agent!(), EVERY);
    let mut machine = Machine::new(trial, &described(HeapKind::Nursery));
    machine.alloc(16);
    let agent = machine.trial.agent;
    let recording = machine.trial.recording();
    let to = Interval::new(5000);
    assert!(agent.change_interval(recording, Interval::EVERY_ALLOCATION, to));
    assert_eq!(machine.heap.counters().interval_bytes, 5000);
    // The object at hand was drawn before.
    machine.alloc(16);
    let limit = machine.alloc(16);
    assert!(limit > machine.free);
    assert!(agent.change_interval(recording, to.unwrap(), None));
    assert!(!machine.heap.counters().is_on);
    machine.free = limit - 16;
    assert_eq!(machine.alloc(64), TOP);
    let samples = machine.trial.samples().len();
    let exact = machine.heap.counters().exact_bytes;
    machine.alloc(10_000);
    assert_eq!(machine.trial.samples().len(), samples);
    assert_eq!(machine.heap.counters().exact_bytes, exact);
}

#[test]
fn one_thread_of_a_heap_can_be_switched_off() {
    let trial = Trial::begin(agent!(), EVERY);
    let mut machine = Machine::new(trial, &described(HeapKind::Nursery));
    machine.alloc(16);
    let agent = machine.trial.agent;
    let enable = |machine: &Machine, is_on| {
        agent.nursery_enable(machine.heap, &machine.slot, machine.free, is_on)
    };
    assert_eq!(enable(&machine, false), Some(TOP));
    machine.alloc(32);
    assert_eq!(machine.trial.samples().len(), 1);
    assert!(enable(&machine, true).unwrap() < TOP);
    machine.alloc(48);
    assert_eq!(machine.trial.samples().len(), 2);
    assert_eq!(machine.heap.counters().exact_bytes, 64);
    assert_eq!(
        agent.nursery_enable(machine.heap, &slot(), START, true),
        None
    );
}

#[test]
fn a_heap_that_was_taken_back_is_sampled_no_more() {
    let trial = Trial::begin(agent!(), EVERY);
    let mut machine = Machine::new(trial, &described(HeapKind::Nursery));
    machine.alloc(16);
    machine.heap.take_back();
    machine.heap.switch(true);
    assert!(!machine.heap.counters().is_on);
    machine.alloc(16);
    machine.alloc(16);
    // The point of the next object was there already; nobody asks about it any more.
    assert_eq!(machine.pending(true).len(), 1);
    assert!(machine.trial.samples().len() <= 2);
}

#[test]
fn heaps_are_defined_by_name_and_have_numbers_from_1() {
    let trial = Trial::begin(agent!(), EVERY);
    let first = trial
        .agent
        .register_heap(&described(HeapKind::Nursery))
        .unwrap();
    let description = Description {
        name: b"other",
        interval: Interval::new(700),
        ..described(HeapKind::External)
    };
    let second = trial.agent.register_heap(&description).unwrap();
    assert_eq!((first.id(), second.id()), (HeapId(1), HeapId(2)));
    assert_eq!(second.counters().interval_bytes, 700);
    // Before there is a recording: it begins with all that was defined.
    trial.alloc(trial.thread(), 0x1000, 8).unwrap();
    let found = std::fs::read(trial.directory.join("app.allocsample")).unwrap();
    let has = |name: &[u8]| found.windows(name.len()).any(|window| window == name);
    assert!(has(b"toy") && has(b"other"));
    let of_heaps = trial.intervals();
    assert!(of_heaps.contains(&(0, 1, 1)), "{of_heaps:?}");
    assert!(
        of_heaps.iter().any(|it| (it.1, it.2) == (700, 2)),
        "{of_heaps:?}"
    );
    // What is defined later is in the ring.
    let publisher = trial.agent.publisher();
    assert!(publisher.define_name(Definition::Type, HeapId(1), 5, 0, b"Point", b"x, y"));
    let words = trial.of_kind(RecordKind::Definition);
    let text: Vec<u8> = words[0]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let record = DefinitionRecord::decode(&words[0], &text).unwrap();
    assert_eq!(
        (record.name, record.detail, record.id),
        (&b"Point"[..], &b"x, y"[..], 5)
    );
}

static CHANGES: AtomicU64 = AtomicU64::new(0);
static COLLECTIONS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn on_change(_: *mut c_void) {
    CHANGES.fetch_add(1, Ordering::Relaxed);
}

unsafe extern "C" fn collect(user: *mut c_void) -> i32 {
    COLLECTIONS.fetch_add(1, Ordering::Relaxed);
    user.addr() as i32
}

#[test]
fn a_machine_hears_of_changes_and_of_collections_that_are_wanted() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    let of_user = |user| Description {
        callbacks: Callbacks {
            user: core::ptr::without_provenance_mut(user),
            on_change: Some(on_change),
            collect: Some(collect),
            ..described(HeapKind::Nursery).callbacks
        },
        ..described(HeapKind::Nursery)
    };
    let willing = trial.agent.register_heap(&of_user(0)).unwrap();
    let unwilling = trial.agent.register_heap(&of_user(usize::MAX)).unwrap();
    trial
        .agent
        .register_heap(&described(HeapKind::External))
        .unwrap();
    let before = CHANGES.load(Ordering::Relaxed);
    willing.switch(false);
    trial
        .agent
        .set_heap_interval(unwilling, Interval::new(9).unwrap());
    assert_eq!(CHANGES.load(Ordering::Relaxed), before + 2);
    trial.alloc(thread, 0x1000, 8).unwrap();
    assert!(
        !trial.agent.heap_collected(willing, true),
        "nobody has asked"
    );
    let ring = &trial.recording().ring;
    ring.ask(request::COLLECT, 0, [0; 4]);
    trial.alloc(thread, 0x2000, 8).unwrap();
    assert_eq!(COLLECTIONS.load(Ordering::Relaxed), 2);
    assert!(trial.agent.heap_collected(willing, true));
    assert!(!trial.agent.heap_collected(willing, true), "once");
    assert!(
        !trial.agent.heap_collected(unwilling, true),
        "it has declined"
    );
    let markers: Vec<Vec<u8>> = trial
        .of_kind(RecordKind::Marker)
        .iter()
        .map(|words| {
            let text: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            MarkerRecord::decode(words, &text).unwrap().name.to_vec()
        })
        .collect();
    assert!(markers.contains(&b"collection on request".to_vec()));
}

#[test]
fn the_time_line_begins_a_profile_unless_the_agent_is_off() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.agent.switch.set(Switch::Off);
    trial.agent.begin_time_line(thread);
    assert!(recording::current().is_none());
    trial.agent.switch.set(Switch::On);
    trial.agent.begin_time_line(thread);
    assert!(recording::current().is_some());
    assert_eq!(trial.of_kind(RecordKind::ThreadStart).len(), 1);
    // Another thread has nothing to begin.
    trial.agent.begin_time_line(trial.thread());
    assert_eq!(trial.of_kind(RecordKind::ThreadStart).len(), 1);
}

#[test]
fn collections_values_markers_and_code_are_on_the_time_line() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.agent.begin_time_line(thread);
    let heap = trial
        .agent
        .register_heap(&described(HeapKind::Nursery))
        .unwrap();
    heap.exact_bytes.store(900, Ordering::Relaxed);
    let publisher = trial.agent.publisher();
    assert!(trial.agent.write_gc(&GcRecord {
        heap: heap.id(),
        kind: GcKind::Major,
        id: 3,
        begin_ns: 10,
        end_ns: 20,
        statistics: &[],
    }));
    assert!(publisher.write_value(heap, 6, 77));
    assert!(publisher.write_marker(&MarkerRecord {
        heap: heap.id(),
        is_phase: false,
        begin_ns: 1,
        end_ns: 2,
        name: &[b'x'; 5000],
    }));
    assert!(trial.agent.write_code(&CodeRecord {
        time_ns: 5,
        change: CodeChange::Add,
        start: 100,
        end: 200,
        frame: VmFrame {
            heap: heap.id(),
            function: 2,
            line: 0,
        },
    }));
    let values: Vec<(u32, u64)> = trial
        .of_kind(RecordKind::Value)
        .iter()
        .map(|words| {
            let value = ValueRecord::decode(words).unwrap();
            (value.statistic, value.value)
        })
        .collect();
    assert_eq!(values, [(ValueRecord::EXACT_BYTES, 900), (6, 77)]);
    assert_eq!(trial.of_kind(RecordKind::Gc).len(), 1);
    assert_eq!(trial.of_kind(RecordKind::Code).len(), 1);
    let marker = &trial.of_kind(RecordKind::Marker)[0];
    assert!(marker.len() * 8 < 2000, "{}", marker.len());
    // A name for the calling thread.
    assert!(trial.agent.name_thread(thread, b"worker"));
    assert_eq!(trial.of_kind(RecordKind::Definition).len(), 2);
}

#[test]
fn the_end_has_the_exact_bytes_of_each_heap() {
    let trial = Trial::begin(agent!(), EVERY);
    let mut machine = Machine::new(trial, &described(HeapKind::Nursery));
    machine.alloc(16);
    machine.alloc(100);
    assert!(machine.trial.exit(machine.thread));
    let values = machine.trial.of_kind(RecordKind::Value);
    let value = ValueRecord::decode(&values[0]).unwrap();
    assert_eq!(
        (value.statistic, value.value),
        (ValueRecord::EXACT_BYTES, 116)
    );
}

#[test]
fn a_type_is_told_later_unless_the_ring_is_full() {
    let trial = Trial::begin(agent!(), EVERY);
    let mut machine = Machine::new(trial, &described(HeapKind::Nursery));
    machine.alloc(16);
    let id = machine.trial.samples()[0].id;
    let publisher = machine.trial.agent.publisher();
    let id = allocsample_record::SampleId(id);
    assert!(publisher.write_type(id, 8));
    assert!(!publisher.write_type(id, 0));
    assert_eq!(machine.fates(), [(id.0, Fate::Open, 8, 0)]);
    machine.trial.fill_ring();
    assert!(!publisher.write_type(id, 9));
    let lost = machine.trial.recording().ring.lost();
    assert_eq!(lost[LostReason::FreeRingFull as usize], (0, 0));
    // What cannot be told is counted.
    assert!(!publisher.write_value(machine.heap, 1, 1));
    let lost = machine.trial.recording().ring.lost();
    assert_eq!(lost[LostReason::FreeRingFull as usize], (1, 0));
    // And so is a sample.
    machine.alloc(16);
    let lost = machine.trial.recording().ring.lost();
    assert_eq!(lost[LostReason::RingFull as usize], (1, 16));
}

#[test]
fn the_interpreter_is_in_at_most_sixteen_ranges() {
    let trial = Trial::begin(agent!(), EVERY);
    let heap = trial
        .agent
        .register_heap(&described(HeapKind::Nursery))
        .unwrap();
    assert!(!heap.is_interpreter(0));
    for range in 1..=16 {
        assert!(heap.add_interpreter_range(range * 100, range * 100 + 10));
    }
    assert!(!heap.add_interpreter_range(5000, 5010));
    assert!(heap.is_interpreter(100) && heap.is_interpreter(1609));
    assert!(!heap.is_interpreter(99) && !heap.is_interpreter(110));
    assert!(!heap.is_interpreter(5000));
}

#[test]
fn the_machine_of_a_thread_is_the_one_whose_nursery_it_has() {
    let trial = Trial::begin(agent!(), EVERY);
    let description = Description {
        is_walked_in_malloc: true,
        is_walked_in_ticks: true,
        ..described(HeapKind::Nursery)
    };
    let machine = Machine::new(trial, &description);
    let heaps = &machine.trial.agent.heaps;
    let id = |heap: Option<&Heap>| heap.map(|heap| heap.id().0);
    let other = machine.trial.thread();
    assert_eq!(id(heaps.walked_in_malloc(machine.thread)), Some(1));
    assert_eq!(id(heaps.walked_in_ticks(machine.thread)), Some(1));
    assert_eq!(id(heaps.walked_in_free(machine.thread)), None);
    assert_eq!(id(heaps.walked_in_malloc(other)), None);
    let everywhere = Description {
        is_walked_everywhere: true,
        is_walked_in_malloc: true,
        is_walked_in_free: true,
        ..described(HeapKind::Nursery)
    };
    let description = everywhere;
    let everywhere = machine.trial.agent.register_heap(&description).unwrap();
    let later = machine.trial.agent.register_heap(&description).unwrap();
    assert_eq!(later.id().0, 3);
    assert_eq!(id(heaps.walked_in_malloc(other)), Some(2));
    assert_eq!(id(heaps.walked_in_free(other)), Some(2));
    assert_eq!(id(heaps.walked_in_ticks(other)), None);
    assert_eq!(id(heaps.walked_in_malloc(machine.thread)), Some(1));
    let ids = |heaps: &mut dyn Iterator<Item = &'static Heap>| -> Vec<u16> {
        heaps.map(|heap| heap.id().0).collect()
    };
    assert_eq!(ids(&mut heaps.others_in_malloc(Some(everywhere))), [3]);
    assert_eq!(ids(&mut heaps.others_in_malloc(Some(machine.heap))), [2, 3]);
    assert_eq!(ids(&mut heaps.others_in_free(Some(later))), [2]);
    assert_eq!(ids(&mut heaps.others_in_ticks(Some(later))), [0; 0]);
    // A thread that nobody is asked about.
    assert_eq!(ids(&mut heaps.others_in_malloc(None)), [0; 0]);
    let of_no_language = described(HeapKind::Collected);
    let collector = machine.trial.agent.register_heap(&of_no_language).unwrap();
    other.set_vm_heap(u32::from(collector.id().0));
    assert_eq!(id(heaps.walked_in_malloc(other)), Some(2));
    assert!(!collector.has_frames(other));
    everywhere.take_back();
    assert_eq!(id(heaps.walked_in_malloc(other)), None);
    machine.trial.agent.register_heap(&description).unwrap();
    assert_eq!(id(heaps.walked_in_malloc(other)), Some(5));
}
