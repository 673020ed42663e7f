//! A small profile with one of everything: inlined calls, a cut stack, a library without symbols, generated code, two
//! threads, blocks that are live, freed and unwatched, a weight beyond 32 bits.

use allocsample_profile::{
    Exit, ExitHow, Freed, Gc, GcKind, Heap, HeapId, IntervalInfo, LostReason, Marker, Module,
    ModuleId, Profile, Sample as Recorded, SampleId, Sampling, StackId, StackNode, Statistic,
    Thread, ThreadId, Value,
};

use crate::view::{
    End, Line, Location, Nature, Sample, Stack, Stacks, Survival, View, type_name_with,
};

const START_NS: u64 = 5_000_000_000;

/// Three blocks of 100 bytes, every allocation recorded: two of them were live at once, and none at the end.
pub(crate) fn ended() -> Profile {
    let mut profile = Profile::default();
    profile.intervals.push(IntervalInfo {
        time_ns: 0,
        sampling: Sampling::Poisson,
        interval_bytes: 1,
        seed: 0,
    });
    profile.process.end_ns = 100;
    let stack = profile.stacks.push(StackNode {
        parent: StackId::EMPTY,
        location: allocsample_profile::Location {
            module: ModuleId::NONE,
            offset: 0x1000,
        },
    });
    for (id, born, died) in [(1, 10, 30), (2, 20, 40), (3, 50, 60)] {
        let mut sample = Recorded {
            id: SampleId(id),
            time_ns: born,
            size: 100,
            points: 100,
            stack,
            ..Recorded::default()
        };
        sample.set_freed(Freed {
            time_ns: died,
            thread: ThreadId(0),
        });
        profile.samples.push(sample);
    }
    profile
}

pub(crate) fn view() -> View<'static> {
    of(profile())
}

/// What the view does not have of its own.
fn profile() -> Profile {
    let mut profile = Profile::default();
    let process = &mut profile.process;
    process.executable = "/usr/bin/app".into();
    process.command_line = vec!["/usr/bin/app".into(), "--fast".into()];
    process.pid = 4711;
    process.start_wall_ns = 1_700_000_000_000_000_000;
    process.start_ns = START_NS;
    process.end_ns = START_NS + 2_000_000_000;
    profile.intervals.push(IntervalInfo {
        time_ns: 0,
        sampling: Sampling::Poisson,
        interval_bytes: 524_288,
        seed: 0,
    });
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
    profile
}

fn of(profile: Profile) -> View<'static> {
    let profile = &*Box::leak(Box::new(profile));
    let samples = vec![
        sample(1, 10, 0, (1, 1_500.4, 2.5), End::Live),
        sample(2, 20, 1, (1, 1_499.6, 2.5), End::Freed(START_NS + 50)),
        sample(3, 30, 0, (2, 524_300.2, 1.0), End::Unknown),
        sample(4, 40, 1, (4, 1_048_577.3, 7.7), End::Freed(START_NS + 35)),
        sample(5, 60, 1, (2, 3e9, 1.0), End::Live),
    ];
    View {
        locations: vec![
            symbolized(0x1100, &[("main", "src/main.c", 3)]),
            symbolized(
                0x1200,
                &[("inlined", "src/app.c", 7), ("outer", "src/app.c", 20)],
            ),
            Location {
                module: Some(1),
                address: Some(0x98),
                lines: vec![named("libx.so.1+0x98")],
                is_symbolized: false,
                ..Location::default()
            },
            Location {
                address: Some(0xdead_0000),
                lines: vec![named("leaf; part")],
                ..Location::default()
            },
            Location {
                lines: vec![named("(truncated)")],
                ..Location::default()
            },
        ],
        stacks: stacks(
            profile,
            &[
                stack(None, 0),
                stack(Some(0), 1),
                stack(Some(0), 2),
                stack(None, 4),
                stack(Some(3), 3),
            ],
        ),
        ..View::from(profile)
    }
    .with_listed(samples)
}

fn stacks(profile: &'static Profile, all: &[Stack]) -> Stacks<'static> {
    let mut stacks = Stacks::new(&profile.stacks);
    for &stack in all {
        stacks.push(stack);
    }
    stacks
}

/// The same with a virtual machine: of its three objects one died young, one survived, one was never looked at.
pub(crate) fn view_with_machine() -> View<'static> {
    let mut view = of(with_machine(profile()));
    view.locations.push(Location {
        lines: vec![Line {
            function: "interpreted".into(),
            file: Some("a.vm".into()),
            line: 9,
        }],
        is_symbolized: true,
        nature: Nature::Interpreted,
        ..Location::default()
    });
    view.stacks.push(stack(Some(0), view.locations.len() - 1));
    let leaf = view.stacks.len() - 1;
    let fates = [
        (6, "Node", Survival::DiedYoung, End::Freed(START_NS + 900)),
        (7, "Node", Survival::Survived, End::Live),
        (8, "Text", Survival::Open, End::Live),
    ];
    for (id, type_name, survival, end) in fates {
        view.locations.push(Location {
            lines: vec![named(&type_name_with(type_name, survival))],
            nature: Nature::Object(survival),
            ..Location::default()
        });
        view.samples.list().push(Sample {
            heap: Some(0),
            object: Some(view.locations.len() - 1),
            ..sample(id, 10 * id + 100, 1, (leaf, 1000.0 * id as f64, 1.0), end)
        });
    }
    view
}

fn with_machine(mut profile: Profile) -> Profile {
    const HEAP: HeapId = HeapId(1);
    let heap = Heap {
        name: "org.example.vm".into(),
        ..Heap::default()
    };
    profile.vm.heaps.insert(HEAP, heap);
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
    profile
}

fn named(function: &str) -> Line {
    Line {
        function: function.into(),
        ..Line::default()
    }
}

fn symbolized(address: u64, lines: &[(&str, &str, u32)]) -> Location {
    Location {
        module: Some(0),
        address: Some(address),
        lines: lines
            .iter()
            .map(|&(function, file, line)| Line {
                function: function.into(),
                file: Some(file.into()),
                line,
            })
            .collect(),
        is_symbolized: true,
        ..Location::default()
    }
}

fn stack(parent: Option<usize>, location: usize) -> Stack {
    Stack { parent, location }
}

fn sample(id: u64, after_ns: u64, thread: usize, what: (usize, f64, f64), end: End) -> Sample {
    let (stack, bytes, objects) = what;
    Sample {
        id,
        time_ns: START_NS + after_ns,
        address: 0x1000 * id,
        size: 64,
        thread,
        stack,
        bytes,
        objects,
        end,
        ..Sample::default()
    }
}
