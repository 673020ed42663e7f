//! A profile with what all formats look up in it: names by place and type, and the order of time.

use std::borrow::Cow;
use std::collections::HashMap;

use allocsample_profile::{
    Frame, HeapId, Location as Place, Module, ModuleId, Outcome, Profile, Sample, StackId, Thread,
    ThreadId, Tick,
};
use rustc_hash::FxHashMap;

use crate::series::Series;

/// Index into [`Source::locations`].
pub(crate) type LocationIndex = usize;
/// Index into [`Source::heaps`].
pub(crate) type HeapIndex = usize;

/// A profile that is written in a format.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    pub profile: &'a Profile,
    /// In the order of their numbers; there is one at least.
    pub threads: Vec<Cow<'a, Thread>>,
    thread_indices: FxHashMap<ThreadId, usize>,
    /// The profile's places, in their order; behind them types of objects.
    pub locations: Vec<Location>,
    objects: FxHashMap<(HeapId, u32, Survival), LocationIndex>,
    /// The heaps of virtual machines, with their names, in the order of their numbers.
    pub heaps: Vec<(HeapId, &'a str)>,
    pub samples: Series<'a>,
    /// In the order of time.
    pub ticks: Cow<'a, [Tick]>,
}

/// A place in the code.
#[derive(Debug)]
pub(crate) struct Location {
    /// Index of a module of the profile.
    pub module: Option<usize>,
    /// Of the call, in the module's program headers; absolute without a module; `None` for a pseudo-frame.
    pub address: Option<u64>,
    /// Innermost inlined call first; never empty.
    pub lines: Vec<Frame>,
    pub nature: Nature,
}

/// What stands at a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Nature {
    /// Machine code, or a pseudo-frame.
    Native,
    /// A function of a virtual machine's language.
    Interpreted,
    /// No code: the type of the object, with what became of it at its first collection.
    Object(Survival),
}

/// What became of an object at its first collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Survival {
    DiedYoung,
    Survived,
    /// No collection has looked at it.
    Open,
}

impl<'a> Source<'a> {
    /// Names all places of a profile.
    pub fn of(profile: &'a Profile) -> Self {
        let places = profile.stacks.places().iter();
        let mut locations = places.map(|&place| Location::of(profile, place)).collect();
        let objects = objects(profile, &mut locations);
        let mut ticks = Cow::Borrowed(&profile.ticks[..]);
        if !ticks.is_sorted_by_key(|tick| tick.time_ns) {
            ticks.to_mut().sort_by_key(|tick| tick.time_ns);
        }
        let mut threads: Vec<_> = profile.threads.values().map(Cow::Borrowed).collect();
        if threads.is_empty() {
            // Samples and ticks of threads that a damaged file does not have are charged to the first one.
            threads.push(Cow::default());
        }
        let heaps = profile.vm.heaps.iter();
        Self {
            profile,
            threads,
            thread_indices: profile.threads.keys().copied().zip(0..).collect(),
            locations,
            objects,
            heaps: heaps.map(|(&id, heap)| (id, heap.name.as_str())).collect(),
            samples: Series::of(profile),
            ticks,
        }
    }

    /// Base name of the executable.
    pub fn program(&self) -> &str {
        let path = &self.profile.process.executable;
        path.rsplit('/').next().unwrap_or(path)
    }

    /// Whether a module is the executable.
    pub fn is_program(&self, module: &Module) -> bool {
        module.path == self.profile.process.executable
    }

    /// From the start of the profile, CLOCK_MONOTONIC.
    pub fn since_start(&self, time_ns: u64) -> u64 {
        time_ns.saturating_sub(self.profile.process.start_ns)
    }

    /// The index of a thread.
    pub fn thread(&self, id: ThreadId) -> usize {
        self.thread_indices.get(&id).copied().unwrap_or(0)
    }

    /// The virtual machine's heap that a sample is in; `None` for malloc's, and for one whose registration was lost.
    pub fn heap(&self, sample: &Sample) -> Option<HeapIndex> {
        let id = sample.heap;
        let search = || self.heaps.binary_search_by_key(&id, |heap| heap.0).ok();
        (id != HeapId::MALLOC).then(search).flatten()
    }

    /// The type of a sample: a location of [`Nature::Object`], in no stack.
    pub fn object(&self, sample: &Sample) -> Option<LocationIndex> {
        let outcome = sample.outcome()?;
        let key = (sample.heap, outcome.type_id, survival(&outcome));
        self.objects.get(&key).copied()
    }

    /// The locations of a stack, leaf first.
    pub fn locations_of(&self, stack: StackId) -> impl Iterator<Item = LocationIndex> + use<'a> {
        let stacks = &self.profile.stacks;
        let step = |stack| stacks.parent_and_place(stack);
        let nodes = std::iter::successors(step(stack), move |&(parent, _)| {
            stacks.parent_and_place(parent)
        });
        nodes.map(|(_, place)| place as usize)
    }

    /// Where a location is in memory; 0 for a pseudo-frame.
    pub fn address_in_memory(&self, location: &Location) -> u64 {
        let address = location.address.unwrap_or(0);
        let module = location.module.map(|module| &self.profile.modules[module]);
        address.wrapping_add(module.map_or(0, |module| module.bias))
    }
}

impl Location {
    fn of(profile: &Profile, place: Place) -> Self {
        let module = (place.module.0 as usize).checked_sub(1);
        let has_address =
            ![ModuleId::VM, ModuleId::CODE, ModuleId::NO_ROOT].contains(&place.module);
        Self {
            module: module.filter(|&module| module < profile.modules.len()),
            // The call stands before the address that it returns to.
            address: has_address.then_some(place.offset.wrapping_sub(1)),
            nature: match place.module {
                ModuleId::VM => Nature::Interpreted,
                _ => Nature::Native,
            },
            lines: profile.frames(place),
        }
    }

    /// Whether its names come from symbols.
    pub fn is_symbolized(&self) -> bool {
        self.lines.iter().any(|line| line.is_symbolized)
    }
}

/// The location of each type with each fate, which is added to `locations`.
fn objects(
    profile: &Profile,
    locations: &mut Vec<Location>,
) -> FxHashMap<(HeapId, u32, Survival), LocationIndex> {
    let mut objects = FxHashMap::default();
    let mut by_name = HashMap::new();
    for sample in &profile.samples {
        let Some(outcome) = sample.outcome() else {
            continue;
        };
        let survival = survival(&outcome);
        let key = (sample.heap, outcome.type_id, survival);
        objects.entry(key).or_insert_with(|| {
            let name = profile.vm.type_name(sample.heap, &outcome);
            let name = name.unwrap_or("(unknown type)");
            *by_name.entry((name, survival)).or_insert_with(|| {
                locations.push(Location {
                    module: None,
                    address: None,
                    lines: vec![Frame {
                        function: type_name_with(name, survival),
                        file: None,
                        line: 0,
                        module: String::new(),
                        is_symbolized: false,
                        file_end: None,
                    }],
                    nature: Nature::Object(survival),
                });
                locations.len() - 1
            })
        });
    }
    objects
}

fn survival(outcome: &Outcome) -> Survival {
    match outcome.survived() {
        Some(true) => Survival::Survived,
        Some(false) => Survival::DiedYoung,
        None => Survival::Open,
    }
}

/// A type as a frame. Each fate has a name of its own: the viewers colour a function, not a frame.
fn type_name_with(name: &str, survival: Survival) -> String {
    match survival {
        Survival::DiedYoung => format!("{name} (died young)"),
        Survival::Survived => format!("{name} (survived)"),
        Survival::Open => name.to_owned(),
    }
}

/// What a thread is called.
pub(crate) fn thread_name(thread: &Thread) -> Cow<'_, str> {
    match thread.name.as_str() {
        "" => format!("thread {}", thread.tid).into(),
        name => name.into(),
    }
}

/// As hexadecimal digits.
pub(crate) fn build_id_hex(module: &Module) -> String {
    let bytes = module.build_id.iter();
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use crate::fixture;

    #[test]
    fn locations_are_calls_in_their_modules() {
        let source = fixture::source();
        let found = |name: &str| {
            let mut all = source.locations.iter();
            all.find(|it| it.lines[0].function == name).unwrap()
        };
        let main = found("main");
        assert_eq!((main.module, main.address), (Some(0), Some(0x1100)));
        assert!(main.is_symbolized() && source.is_program(&source.profile.modules[0]));
        assert_eq!(source.address_in_memory(main), 0x5000_1100);
        let unnamed = found("libx.so.1+0x98");
        assert!(!unnamed.is_symbolized() && unnamed.module == Some(1));
        assert_eq!(found("leaf; part").address, Some(0xdead_0000));
        assert_eq!(found("(truncated)").address, None);
    }
}
