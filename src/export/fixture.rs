//! A small profile with one of everything: inlined calls, a cut stack, a library without symbols, generated code, two
//! threads, blocks that are live, freed and unwatched, a weight beyond 32 bits.

use allocsample_profile::{
    Exit, ExitHow, Fate, Freed, Function, Gc, GcKind, Heap, HeapId, IntervalInfo, Location,
    LostReason, Marker, Module, ModuleId, Profile, Sample, SampleFlags, SampleId, Sampling,
    StackId, StackNode, Statistic, SymbolFrame, Thread, ThreadId, Type, Value,
};
use allocsample_record::VmFrame;

use crate::source::Source;

const START_NS: u64 = 5_000_000_000;

/// The interval under which samples stand for their own bytes.
pub(crate) const EVERY_BYTE: u16 = 1;

/// A source that lives as long as the test.
pub(crate) fn source_of(profile: Profile) -> Source<'static> {
    Source::of(Box::leak(Box::new(profile)))
}

pub(crate) fn source() -> Source<'static> {
    source_with(|_| ())
}

/// The same with changes.
pub(crate) fn source_with(change: impl FnOnce(&mut Profile)) -> Source<'static> {
    let mut profile = profile();
    change(&mut profile);
    source_of(profile)
}

/// A call in code of no module, with the name of its function.
pub(crate) fn call(
    profile: &mut Profile,
    parent: StackId,
    function: &str,
    address: u64,
) -> StackId {
    let location = Location {
        module: ModuleId::NONE,
        offset: address + 1,
    };
    let frame = SymbolFrame {
        function: Some(function.into()),
        ..SymbolFrame::default()
    };
    profile.symbols.frames.insert(location, vec![frame]);
    profile.stacks.push(StackNode { parent, location })
}

/// A sampling interval.
pub(crate) fn interval(interval_bytes: u64) -> IntervalInfo {
    IntervalInfo {
        time_ns: 0,
        sampling: Sampling::Poisson,
        interval_bytes,
        seed: 0,
    }
}

/// Three blocks of 100 bytes, every allocation recorded: two of them were live at once, and none at the end.
pub(crate) fn ended() -> Profile {
    let mut profile = Profile::default();
    profile.intervals.push(interval(1));
    profile.process.end_ns = 100;
    let stack = call(&mut profile, StackId::EMPTY, "main", 0x1000);
    for (id, born, died) in [(1, 10, 30), (2, 20, 40), (3, 50, 60)] {
        let mut sample = Sample {
            id: SampleId(id),
            time_ns: born,
            size: 100,
            points: 100,
            stack,
            ..Sample::default()
        };
        sample.set_freed(Freed {
            time_ns: died,
            thread: ThreadId(0),
        });
        profile.samples.push(sample);
    }
    profile
}

pub(crate) fn profile() -> Profile {
    let mut profile = Profile::default();
    let process = &mut profile.process;
    process.executable = "/usr/bin/app".into();
    process.command_line = vec!["/usr/bin/app".into(), "--fast".into()];
    process.pid = 4711;
    process.start_wall_ns = 1_700_000_000_000_000_000;
    process.start_ns = START_NS;
    process.end_ns = START_NS + 2_000_000_000;
    profile.intervals = vec![interval(524_288), interval(1)];
    profile.lost.0[LostReason::RingFull as usize] = (1, 524_300);
    profile.exit = Some(Exit {
        time_ns: START_NS + 2_000_000_000,
        how: ExitHow::Exit,
        status: None,
    });
    let module = |path: &str, build_id: &[u8], start, bytes| Module {
        path: path.into(),
        build_id: build_id.to_vec(),
        start,
        end: start + bytes,
        bias: start,
    };
    profile.modules = vec![
        module("/usr/bin/app", &[0x00, 0xff, 0x10], 0x5000_0000, 0x1_0000),
        module("/usr/lib/libx.so.1", &[], 0x7000_0000, 0x4000),
    ];
    for (id, name, after_ns) in [(1, "main thread", 0), (2, "worker", 1_000)] {
        let thread = Thread {
            name: name.into(),
            tid: 4710 + id,
            start_ns: START_NS + after_ns,
            exact_bytes: 1_500_000,
            ..Thread::default()
        };
        profile.threads.insert(ThreadId(id), thread);
    }
    profile.resident_bytes = vec![(START_NS + 5, 1 << 20), (START_NS + 1_000_000, 3 << 20)];
    add_samples(&mut profile);
    profile.end_stacks_without_root();
    profile
}

fn add_samples(profile: &mut Profile) {
    let main = in_program(
        profile,
        StackId::EMPTY,
        0x1100,
        &[("main", "src/main.c", 3)],
    );
    let lines = [("inlined", "src/app.c", 7), ("outer", "src/app.c", 20)];
    let inlined = in_program(profile, main, 0x1200, &lines);
    let unnamed = profile.stacks.push(StackNode {
        parent: main,
        location: Location {
            module: ModuleId(2),
            offset: 0x99,
        },
    });
    let generated = call(profile, StackId::EMPTY, "leaf; part", 0xdead_0000);
    let cut = SampleFlags::TRUNCATED;
    let unwatched = SampleFlags::UNTRACKED;
    let none = SampleFlags::default();
    let samples = [
        sample(1, 10, 1, (inlined, 64, none), None),
        sample(2, 20, 2, (inlined, 1_000, none), Some(50)),
        sample(3, 30, 1, (unnamed, 100, unwatched), None),
        sample(4, 40, 2, (generated, 1_048_577, cut), Some(35)),
        sample(5, 60, 2, (unnamed, 3_000_000_000, none), None),
    ];
    profile.samples = samples.into_iter().collect();
}

fn in_program(
    profile: &mut Profile,
    parent: StackId,
    address: u64,
    lines: &[(&str, &str, u32)],
) -> StackId {
    let location = Location {
        module: ModuleId(1),
        offset: address + 1,
    };
    let frame = |&(function, file, line): &(&str, &str, u32)| SymbolFrame {
        function: Some(function.into()),
        file: Some(file.into()),
        line,
    };
    let frames = lines.iter().map(frame).collect();
    profile.symbols.frames.insert(location, frames);
    profile.stacks.push(StackNode { parent, location })
}

/// `what` is its stack, its size and its flags; `freed_after_ns` when it was freed.
fn sample(
    id: u64,
    after_ns: u64,
    thread: u32,
    what: (StackId, u64, SampleFlags),
    freed_after_ns: Option<u64>,
) -> Sample {
    let (stack, size, flags) = what;
    let thread = ThreadId(thread);
    let mut sample = Sample {
        id: SampleId(id),
        time_ns: START_NS + after_ns,
        address: 0x1000 * id,
        size,
        thread,
        stack,
        flags,
        points: 1,
        ..Sample::default()
    };
    if let Some(after_ns) = freed_after_ns {
        let time_ns = START_NS + after_ns;
        sample.set_freed(Freed { time_ns, thread });
    }
    sample
}

/// The same with a virtual machine: of its three objects one died young, one survived, one was never looked at.
pub(crate) fn source_with_machine() -> Source<'static> {
    source_with(|profile| {
        add_machine(profile);
        let main = profile.samples.stack(0);
        let main = profile.stacks.node(main).unwrap().parent;
        let interpreted = VmFrame {
            heap: HEAP,
            function: 1,
            line: 9,
        };
        let stack = profile.stacks.push(StackNode {
            parent: main,
            location: Location {
                module: ModuleId::VM,
                offset: interpreted.encode(),
            },
        });
        for (id, type_id, fate, freed_after_ns) in [
            (6, 1, Fate::Dead, Some(900)),
            (7, 1, Fate::Alive, None),
            (8, 2, Fate::Open, None),
        ] {
            let what = (stack, 1000 * id, SampleFlags::default());
            profile.samples.push(Sample {
                heap: HEAP,
                type_id,
                first_fate: Some(fate),
                interval: EVERY_BYTE,
                ..sample(id, 10 * id + 100, 2, what, freed_after_ns)
            });
        }
    })
}

const HEAP: HeapId = HeapId(1);

fn add_machine(profile: &mut Profile) {
    let heap = Heap {
        name: "org.example.vm".into(),
        ..Heap::default()
    };
    profile.vm.heaps.insert(HEAP, heap);
    for (number, name) in [(1, "Node"), (2, "Text")] {
        let kind = Type {
            name: name.into(),
            detail: String::new(),
        };
        profile.vm.types.insert((HEAP, number), kind);
    }
    let function = Function {
        name: "interpreted".into(),
        file: "a.vm".into(),
        line: 1,
    };
    profile.vm.functions.insert((HEAP, 1), function);
    for (number, name, unit) in [
        (0, "survived", "bytes"),
        (1, "roots", "count"),
        (2, "arena", "bytes"),
    ] {
        let (name, unit) = (name.into(), unit.into());
        let statistic = Statistic { name, unit };
        profile.vm.statistics.insert((HEAP, number), statistic);
    }
    let marker = |name: &str, is_phase, begin, end| Marker {
        heap: HEAP,
        is_phase,
        begin_ns: START_NS + begin,
        end_ns: START_NS + end,
        name: name.into(),
    };
    profile.vm.markers = vec![
        marker("start-up", true, 0, 0),
        marker("request", false, 2_000, 4_000),
    ];
    let gc = |id, kind, begin, end, statistics| Gc {
        heap: HEAP,
        kind,
        id,
        begin_ns: START_NS + begin,
        end_ns: START_NS + end,
        looked_until_ns: START_NS + begin,
        statistics,
    };
    profile.vm.gcs = vec![
        gc(1, GcKind::Minor, 800, 900, vec![(0, 4096)]),
        gc(2, GcKind::Major, 1_000, 3_000, vec![(0, 64), (1, 7)]),
    ];
    let value = |after_ns, value| Value {
        time_ns: START_NS + after_ns,
        heap: HEAP,
        statistic: 2,
        value,
    };
    profile.vm.values = vec![value(100, 1 << 20), value(5_000, 2 << 20)];
}
