//! A small profile with one of everything: inlined calls, a cut stack, a library without symbols, generated code, two
//! threads, blocks that are live, freed and unwatched, a weight beyond 32 bits.

use allocsample_profile::{
    Freed, IntervalInfo, ModuleId, Profile, Sample as Recorded, SampleId, Sampling, StackId,
    StackNode, ThreadId,
};

use crate::view::{
    About, End, Line, Location, Module, Nature, Reading, Sample, Samples, Span, SpanNature, Stack,
    Stacks, Statistic, Survival, Thread, View, type_name_with,
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
    View {
        about: About {
            program: "app".into(),
            command: vec!["/usr/bin/app".into(), "--fast".into()],
            pid: 4711,
            start_wall_ns: 1_700_000_000_000_000_000,
            start_ns: START_NS,
            end_ns: START_NS + 2_000_000_000,
            interval_bytes: 524_288,
            is_periodic: false,
            allocated_stderr: Some(12_345.6),
            exact_bytes: 3_000_000,
            lost_samples: 1,
            lost_bytes: 524_300,
            is_complete: true,
        },
        modules: vec![
            Module {
                name: "app".into(),
                path: "/usr/bin/app".into(),
                build_id: vec![0x00, 0xff, 0x10],
                start: 0x5000_0000,
                end: 0x5001_0000,
                bias: 0x5000_0000,
                is_program: true,
            },
            Module {
                name: "libx.so.1".into(),
                path: "/usr/lib/libx.so.1".into(),
                start: 0x7000_0000,
                end: 0x7000_4000,
                bias: 0x7000_0000,
                ..Module::default()
            },
        ],
        threads: vec![
            thread("main thread", 4711, 0),
            thread("worker", 4712, 1_000),
        ],
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
        stacks: stacks(&[
            stack(None, 0),
            stack(Some(0), 1),
            stack(Some(0), 2),
            stack(None, 4),
            stack(Some(3), 3),
        ]),
        samples: Samples::Listed(vec![
            sample(1, 10, 0, (1, 1_500.4, 2.5), End::Live),
            sample(2, 20, 1, (1, 1_499.6, 2.5), End::Freed(START_NS + 50)),
            sample(3, 30, 0, (2, 524_300.2, 1.0), End::Unknown),
            sample(4, 40, 1, (4, 1_048_577.3, 7.7), End::Freed(START_NS + 35)),
            sample(5, 60, 1, (2, 3e9, 1.0), End::Live),
        ]),
        resident: vec![(START_NS + 5, 1 << 20), (START_NS + 1_000_000, 3 << 20)],
        ..View::default()
    }
}

fn stacks(all: &[Stack]) -> Stacks<'static> {
    let mut stacks = Stacks::default();
    for &stack in all {
        stacks.push(stack);
    }
    stacks
}

/// The same with a virtual machine: of its three objects one died young, one survived, one was never looked at.
pub(crate) fn view_with_machine() -> View<'static> {
    let mut view = view();
    view.heaps = vec!["org.example.vm".into()];
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
    view.statistics = vec![
        statistic("survived", "bytes"),
        statistic("roots", "count"),
        statistic("arena", "bytes"),
    ];
    let span = |name: &str, nature, begin, end, statistics| Span {
        heap: 0,
        name: name.into(),
        nature,
        begin_ns: START_NS + begin,
        end_ns: START_NS + end,
        statistics,
    };
    use SpanNature::{Collection, Other, Phase};
    view.spans = vec![
        span("start-up", Phase, 0, 500_000, vec![]),
        span("Minor collection", Collection, 800, 900, vec![(0, 4096)]),
        span(
            "Major collection",
            Collection,
            1_000,
            3_000,
            vec![(0, 64), (1, 7)],
        ),
        span("request", Other, 2_000, 4_000, vec![]),
    ];
    view.readings = vec![Reading {
        statistic: 2,
        values: vec![(START_NS + 100, 1 << 20), (START_NS + 5_000, 2 << 20)],
    }];
    view
}

fn statistic(name: &str, unit: &str) -> Statistic {
    Statistic {
        heap: 0,
        name: name.into(),
        unit: unit.into(),
    }
}

fn thread(name: &str, tid: u32, after_ns: u64) -> Thread {
    Thread {
        name: name.into(),
        tid,
        start_ns: START_NS + after_ns,
        end_ns: None,
    }
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
