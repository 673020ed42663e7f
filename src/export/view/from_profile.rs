//! Makes the view of a profile.

use std::borrow::Cow;
use std::collections::HashMap;

use allocsample_profile::{
    Frame, Location as Place, MissingRoot, ModuleId, Outcome, Profile, StackId,
};
use rustc_hash::FxHashMap;

use super::samples::{CutStacks, Samples, Source};
use super::{
    Line, Location, LocationIndex, Nature, Stack, StackIndex, Stacks, Survival, Tick, View,
    type_name_with,
};

impl<'a> From<&'a Profile> for View<'a> {
    fn from(profile: &'a Profile) -> View<'a> {
        let thread_indices: FxHashMap<_, _> = profile.threads.keys().copied().zip(0..).collect();
        let mut names = Names::new(profile);
        let mut objects = FxHashMap::default();
        for sample in &profile.samples {
            if let Some(missing) = sample.missing_root() {
                names.cut(sample.stack, missing);
            }
            if let Some(outcome) = sample.outcome() {
                let survival = survival(&outcome);
                let key = (sample.heap, outcome.type_id, survival);
                objects.entry(key).or_insert_with(|| {
                    let name = profile.vm.type_name(sample.heap, &outcome);
                    names.object(name.unwrap_or("(unknown type)"), survival)
                });
            }
        }
        let mut ticks: Vec<Tick> = profile
            .ticks
            .iter()
            .map(|tick| Tick {
                time_ns: tick.time_ns,
                thread: thread_indices.get(&tick.thread).copied().unwrap_or(0),
                stack: match tick.missing_root() {
                    Some(missing) => names.cut(tick.stack, missing),
                    None => tick.stack.0 as usize - 1,
                },
                cpu_ns: tick.cpu_ns,
            })
            .collect();
        ticks.sort_by_key(|tick| tick.time_ns);
        let mut threads: Vec<_> = profile.threads.values().map(Cow::Borrowed).collect();
        if threads.is_empty() {
            // Samples and ticks of threads that a damaged file does not have are charged to the first one.
            threads.push(Cow::default());
        }
        let heaps = profile.vm.heaps.iter();
        let heaps = heaps.map(|(&id, heap)| (id, heap.name.as_str())).collect();
        View {
            profile,
            threads,
            locations: names.locations,
            stacks: names.stacks,
            ticks,
            samples: Samples::Recorded(Source {
                profile,
                order: Source::order(profile),
                threads: thread_indices,
                cut: names.cut,
                heaps: profile.vm.heaps.keys().copied().zip(0..).collect(),
                objects,
            }),
            heaps,
        }
    }
}

/// The profile's places and what stands beside them: pseudo-frames, types, stacks that end in pseudo-frames.
struct Names<'a> {
    profile: &'a Profile,
    /// The profile's places first, in their order.
    locations: Vec<Location>,
    by_root: [Option<LocationIndex>; MissingRoot::COUNT],
    by_type: HashMap<(&'a str, Survival), LocationIndex>,
    stacks: Stacks<'a>,
    cut: CutStacks,
}

impl<'a> Names<'a> {
    fn new(profile: &'a Profile) -> Self {
        let places = profile.stacks.places().iter();
        Self {
            profile,
            locations: places.map(|&place| location(profile, place)).collect(),
            by_root: Default::default(),
            by_type: HashMap::new(),
            stacks: Stacks::new(&profile.stacks),
            cut: CutStacks::default(),
        }
    }

    /// A stack whose root is missing for this reason. It is another one than the same frames with a root.
    fn cut(&mut self, leaf: StackId, missing: MissingRoot) -> StackIndex {
        let stacks = &self.profile.stacks;
        let mut new = Vec::new();
        let mut stack = leaf;
        let mut known = self.cut.get(stack, missing);
        while known.is_none()
            && let Some((parent, place)) = stacks.parent_and_place(stack)
        {
            new.push((stack, place));
            stack = parent;
            known = self.cut.get(stack, missing);
        }
        let mut index = known.unwrap_or_else(|| {
            let location = self.pseudo_frame(missing);
            self.push(StackId::EMPTY, missing, None, location)
        });
        for (stack, place) in new.into_iter().rev() {
            index = self.push(stack, missing, Some(index), place as usize);
        }
        index
    }

    fn push(
        &mut self,
        stack: StackId,
        missing: MissingRoot,
        parent: Option<StackIndex>,
        location: LocationIndex,
    ) -> StackIndex {
        let index = self.stacks.push(Stack { parent, location });
        self.cut.insert(stack, missing, index);
        index
    }

    fn pseudo_frame(&mut self, missing: MissingRoot) -> LocationIndex {
        let locations = &mut self.locations;
        *self.by_root[missing as usize].get_or_insert_with(|| {
            locations.push(Location {
                lines: vec![Line {
                    function: missing.name().to_owned(),
                    ..Line::default()
                }],
                ..Location::default()
            });
            locations.len() - 1
        })
    }

    fn object(&mut self, type_name: &'a str, survival: Survival) -> LocationIndex {
        let locations = &mut self.locations;
        *self
            .by_type
            .entry((type_name, survival))
            .or_insert_with(|| {
                locations.push(Location {
                    lines: vec![Line {
                        function: type_name_with(type_name, survival),
                        ..Line::default()
                    }],
                    nature: Nature::Object(survival),
                    ..Location::default()
                });
                locations.len() - 1
            })
    }
}

fn location(profile: &Profile, place: Place) -> Location {
    let module = (place.module.0 as usize).checked_sub(1);
    let frames = profile.frames(place);
    let is_native = place.module != ModuleId::VM;
    Location {
        module: module.filter(|&module| module < profile.modules.len()),
        // The call stands before the address that it returns to.
        address: (is_native && place.module != ModuleId::CODE)
            .then_some(place.offset.wrapping_sub(1)),
        nature: match is_native {
            true => Nature::Native,
            false => Nature::Interpreted,
        },
        is_symbolized: frames.iter().any(|frame| frame.is_symbolized),
        lines: frames.into_iter().map(line).collect(),
    }
}

pub(super) fn survival(outcome: &Outcome) -> Survival {
    match outcome.survived() {
        Some(true) => Survival::Survived,
        Some(false) => Survival::DiedYoung,
        None => Survival::Open,
    }
}

fn line(frame: Frame) -> Line {
    Line {
        function: frame.function,
        file: frame.file,
        line: frame.line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{End, Metric};
    use allocsample_profile::{
        Freed, HeapId, IntervalInfo, SampleFlags, SampleId, Sampling, SymbolFrame, ThreadId,
    };
    use allocsample_record::StackNode;

    const MAIN: Place = Place {
        module: ModuleId(1),
        offset: 0x101,
    };
    const GENERATED: Place = Place {
        module: ModuleId::NONE,
        offset: 0x9001,
    };

    fn profile() -> Profile {
        let mut profile = Profile::default();
        profile.process.executable = "/opt/app".into();
        profile.intervals.push(IntervalInfo {
            time_ns: 0,
            sampling: Sampling::Poisson,
            interval_bytes: 4096,
            seed: 0,
        });
        profile.modules.push(allocsample_profile::Module {
            path: "/opt/app".into(),
            build_id: vec![1],
            start: 0x1000,
            end: 0x2000,
            bias: 0x1000,
        });
        profile.threads.insert(ThreadId(7), Default::default());
        let frame = |name: &str| SymbolFrame {
            function: Some(name.into()),
            ..SymbolFrame::default()
        };
        let frames = vec![frame("inlined"), frame("main")];
        profile.symbols.frames.insert(MAIN, frames);
        let main = profile.stacks.push(StackNode {
            parent: StackId::EMPTY,
            location: MAIN,
        });
        let generated = profile.stacks.push(StackNode {
            parent: main,
            location: GENERATED,
        });
        let sample = |id, time_ns, stack, flags| allocsample_profile::Sample {
            id: SampleId(id),
            time_ns,
            address: 0,
            size: 100 * id,
            thread: ThreadId(7),
            heap: HeapId::MALLOC,
            flags,
            points: 1,
            interval: 0,
            stack,
            ..allocsample_profile::Sample::default()
        };
        profile.samples = vec![
            sample(1, 30, generated, SampleFlags::default()),
            sample(2, 10, generated, SampleFlags::TRUNCATED),
            sample(3, 20, main, SampleFlags::UNTRACKED),
            sample(4, 40, StackId::EMPTY, SampleFlags::default()),
        ]
        .into();
        let mut freed = profile.samples.at(0);
        freed.set_freed(Freed {
            time_ns: 50,
            thread: ThreadId(0),
        });
        profile.samples.set(0, freed);
        profile
    }

    #[test]
    fn stacks_end_in_what_is_missing_of_them() {
        let profile = profile();
        let view = View::from(&profile);
        let stacks: Vec<_> = view
            .samples
            .iter()
            .map(|sample| view.functions_of(sample.stack).join(";"))
            .collect();
        let expected = [
            "(truncated);main;inlined;0x9000",
            "main;inlined",
            "main;inlined;0x9000",
            "(no stack)",
        ];
        assert_eq!(stacks, expected);
    }

    #[test]
    fn samples_are_in_the_order_of_time_with_their_ends() {
        let profile = profile();
        let view = View::from(&profile);
        let ends: Vec<_> = view.samples.iter().map(|s| (s.time_ns, s.end)).collect();
        let expected = [
            (10, End::Live),
            (20, End::Unknown),
            (30, End::Freed(50)),
            (40, End::Live),
        ];
        assert_eq!(ends, expected);
    }

    #[test]
    fn weights_are_the_profiles() {
        let profile = profile();
        let view = View::from(&profile);
        let bytes: f64 = view.samples.iter().map(|sample| sample.bytes).sum();
        let expected: f64 = profile
            .samples
            .iter()
            .map(|s| profile.bytes(&s).value())
            .sum();
        assert!((bytes / expected - 1.0).abs() < 1e-12);
        let live: f64 = view.samples.iter().map(|s| Metric::Live.bytes(&s)).sum();
        let is_live = |s: &allocsample_profile::Sample| s.is_live();
        let expected: f64 = profile
            .samples
            .iter()
            .filter(is_live)
            .map(|s| profile.bytes(&s).value())
            .sum();
        assert!((live / expected - 1.0).abs() < 1e-12);
    }

    #[test]
    fn locations_are_calls_in_their_modules() {
        let profile = profile();
        let view = View::from(&profile);
        let main = view.locations.iter().find(|l| l.module.is_some()).unwrap();
        assert_eq!((main.address, main.is_symbolized), (Some(0x100), true));
        let generated = view
            .locations
            .iter()
            .find(|l| l.lines[0].function == "0x9000");
        assert_eq!(generated.unwrap().address, Some(0x9000));
        assert!(view.is_program(&profile.modules[0]));
    }
}
