//! What the formats want of a profile and it does not have: names of places, and numbers for what they refer to.
//!
//! Locations carry their names, stacks are a tree that ends in pseudo-frames where the real root is missing, samples
//! carry the weight that they stand for; all else is read from the profile itself. Weights stay 64-bit floats until a format rounds the sum that it prints. There
//! may be millions of stacks and samples: those are made as they are asked for, from the profile's.

mod from_profile;
mod merged;
mod samples;
mod stacks;

use std::borrow::Cow;
use std::collections::HashMap;

use allocsample_profile::{HeapId, Module, Profile, Thread};
use from_profile::survival;
pub(crate) use samples::Samples;
pub(crate) use stacks::Stacks;

/// Index into [`View::locations`].
pub(crate) type LocationIndex = usize;
/// Index into [`View::stacks`].
pub(crate) type StackIndex = usize;
/// Index into [`View::heaps`].
pub(crate) type HeapIndex = usize;

/// A profile in indices.
#[derive(Debug)]
pub(crate) struct View<'a> {
    pub profile: &'a Profile,
    /// In the order of their numbers; there is one at least.
    pub threads: Vec<Cow<'a, Thread>>,
    pub locations: Vec<Location>,
    pub stacks: Stacks<'a>,
    pub samples: Samples<'a>,
    /// In the order of time.
    pub ticks: Vec<Tick>,
    /// The heaps of virtual machines, with their names.
    pub heaps: Vec<(HeapId, &'a str)>,
}

/// A place in the code.
#[derive(Debug, Default)]
pub(crate) struct Location {
    /// Index of a module of the profile.
    pub module: Option<usize>,
    /// Of the call, in the module's program headers; absolute without a module; `None` for a pseudo-frame.
    pub address: Option<u64>,
    /// Innermost inlined call first; never empty.
    pub lines: Vec<Line>,
    /// Whether `lines` come from symbols.
    pub is_symbolized: bool,
    pub nature: Nature,
}

/// What stands at a location.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Nature {
    /// Machine code, or a pseudo-frame.
    #[default]
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

/// A function, with the line where it calls the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Line {
    pub function: String,
    pub file: Option<String>,
    /// From 1; 0 for unknown.
    pub line: u32,
}

/// A frame on top of its callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Stack {
    pub parent: Option<StackIndex>,
    pub location: LocationIndex,
}

/// A sampled allocation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    /// Unique in the profile.
    pub id: u64,
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    pub address: u64,
    /// Requested bytes.
    pub size: u64,
    /// Index into [`View::threads`].
    pub thread: usize,
    pub stack: StackIndex,
    /// Bytes that it stands for.
    pub bytes: f64,
    /// Allocations that it stands for.
    pub objects: f64,
    pub end: End,
    /// It was alive when the file began: it does not count as allocated.
    pub is_carried: bool,
    /// The virtual machine's heap that it is in; `None` for malloc's.
    pub heap: Option<HeapIndex>,
    /// Its type: a location of [`Nature::Object`], in no stack.
    pub object: Option<LocationIndex>,
}

/// A thread that was found at work.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tick {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Index into [`View::threads`].
    pub thread: usize,
    pub stack: StackIndex,
    /// Time of a processor that it stands for.
    pub cpu_ns: u64,
}

/// What became of a sampled block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum End {
    /// Still allocated at the end of the profile.
    #[default]
    Live,
    /// Freed, or moved by realloc, at this CLOCK_MONOTONIC time.
    Freed(u64),
    /// Nobody was watching: it counts as allocated and not as live.
    Unknown,
}

/// What a format shows that can show one kind of figure only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Metric {
    /// All bytes that were allocated.
    #[default]
    Allocated,
    /// Those that were live when the process held most.
    Peak,
    /// Those that were still allocated at the end.
    Live,
    /// Nanoseconds of processors, from samples of time.
    Cpu,
}

impl Metric {
    /// As a heading.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Metric::Allocated => "Allocated bytes",
            Metric::Live => "Live bytes",
            Metric::Peak => "Bytes live at the peak",
            Metric::Cpu => "CPU time in nanoseconds",
        }
    }

    /// What a profile has that has none of it.
    pub(crate) fn absent(self) -> &'static str {
        match self {
            Metric::Allocated => "no allocations",
            Metric::Live => "no live bytes",
            Metric::Peak => "no bytes that were live at the peak",
            Metric::Cpu => "no CPU time, which `allocsample run --time-hz 99` records",
        }
    }

    /// The bytes that `sample` adds; none of those that not a sample alone decides.
    pub(crate) fn bytes(self, sample: &Sample) -> f64 {
        match self {
            Metric::Cpu | Metric::Peak => 0.0,
            Metric::Live if sample.end != End::Live => 0.0,
            Metric::Allocated if sample.is_carried => 0.0,
            _ => sample.bytes,
        }
    }
}

#[cfg(test)]
impl Default for View<'_> {
    fn default() -> Self {
        View::from(&*Box::leak(Box::<Profile>::default())).with_listed(Vec::new())
    }
}

impl View<'_> {
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

    /// A stack and those of its callers, leaf first.
    pub fn stacks_of(&self, stack: StackIndex) -> impl Iterator<Item = StackIndex> {
        std::iter::successors(Some(stack), |&stack| self.stacks.get(stack).parent)
    }

    /// The same with these samples.
    #[cfg(test)]
    pub fn with_listed(self, samples: Vec<Sample>) -> Self {
        let samples = Samples::Listed(samples);
        Self { samples, ..self }
    }

    /// The functions of a stack with inlined ones, root first.
    #[cfg(test)]
    pub fn functions_of(&self, stack: StackIndex) -> Vec<&str> {
        let mut functions: Vec<&str> = self
            .stacks_of(stack)
            .flat_map(|stack| &self.locations[self.stacks.get(stack).location].lines)
            .map(|line| line.function.as_str())
            .collect();
        functions.reverse();
        functions
    }

    /// Bytes (or nanoseconds) by stack, for stacks that have any, in the order of their indices.
    pub fn bytes_by_stack(&self, metric: Metric) -> Vec<(StackIndex, f64)> {
        let mut bytes = vec![0.0; self.stacks.len()];
        match metric {
            Metric::Peak => {
                let mut add = |sample: &Sample, more: f64| bytes[sample.stack] += more;
                self.samples.at_peak(&mut add);
            }
            _ => {
                for sample in self.samples.iter() {
                    bytes[sample.stack] += metric.bytes(&sample);
                }
            }
        }
        if metric == Metric::Cpu {
            for tick in &self.ticks {
                bytes[tick.stack] += tick.cpu_ns as f64;
            }
        }
        let with_bytes = |&(_, bytes): &(StackIndex, f64)| bytes > 0.0;
        bytes.into_iter().enumerate().filter(with_bytes).collect()
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

/// A type as a frame. Each fate has a name of its own: the viewers colour a function, not a frame.
pub(crate) fn type_name_with(name: &str, survival: Survival) -> String {
    match survival {
        Survival::DiedYoung => format!("{name} (died young)"),
        Survival::Survived => format!("{name} (survived)"),
        Survival::Open => name.to_owned(),
    }
}

/// Gives each different value a number, in the order of their first appearance.
#[derive(Debug)]
pub(crate) struct Interner<T> {
    numbers: HashMap<T, usize>,
    values: Vec<T>,
}

impl<T: Clone + Eq + std::hash::Hash> Interner<T> {
    pub fn new() -> Self {
        Self {
            numbers: HashMap::new(),
            values: Vec::new(),
        }
    }

    /// The number of `value`.
    pub fn intern(&mut self, value: T) -> usize {
        let values = &mut self.values;
        *self.numbers.entry(value).or_insert_with_key(|value| {
            values.push(value.clone());
            values.len() - 1
        })
    }

    /// The value with this number.
    pub fn value(&self, number: usize) -> &T {
        &self.values[number]
    }

    /// The values, by number.
    pub fn into_values(self) -> Vec<T> {
        self.values
    }
}

/// A sum in whole bytes or objects. Sums are never negative, and 2^63 of either is beyond any machine.
pub(crate) fn rounded(value: f64) -> i64 {
    // Saturates, by the definition of `as`.
    value.round() as i64
}

/// Rounds one after the other so that the sum of the rounded is the rounded sum: weights of one size would all be
/// rounded to the same side.
#[derive(Debug, Default)]
pub(crate) struct Rounding {
    owed: f64,
}

impl Rounding {
    /// The next value, rounded together with what was left of those before.
    pub fn next(&mut self, value: f64) -> i64 {
        // Half a byte owed is no reason for a negative weight.
        let rounded = rounded(value + self.owed).max(0);
        self.owed += value - rounded as f64;
        rounded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_values_add_up_to_the_rounded_sum() {
        let mut rounding = Rounding::default();
        let values = [0.4; 1000];
        let rounded: Vec<i64> = values.iter().map(|&value| rounding.next(value)).collect();
        assert_eq!(rounded.iter().sum::<i64>(), 400);
        assert!(rounded.iter().all(|&value| value == 0 || value == 1));
    }
}
