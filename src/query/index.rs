//! Numbers for stacks and functions: a sample's stack with the pseudo-frame at its root, a function with its module.

use std::collections::HashMap;
use std::num::NonZeroU32;

use allocsample_profile::{Frame, HeapId, Profile, Sample, StackId, Tick, missing_root};
use allocsample_report::charged_frame;

/// One stack may be charged differently in two heaps.
type Key = (StackId, Option<&'static str>, HeapId);

fn key_of(sample: &Sample) -> Key {
    (sample.stack, missing_root(sample), sample.heap)
}

/// A sample with the stack of a tick.
pub(crate) fn stand_in(tick: &Tick) -> Sample {
    Sample {
        flags: tick.flags,
        ..stand_in_at(tick.stack)
    }
}

/// A sample with the stack of a free.
pub(crate) fn stand_in_at(stack: StackId) -> Sample {
    Sample {
        stack,
        heap: HeapId::MALLOC,
        ..Sample::default()
    }
}

/// Stacks and functions by number. Made once, as the samples refer to both.
pub(crate) struct Index {
    stack_numbers: HashMap<Key, u32>,
    pub stacks: Vec<Stack>,
    pub functions: Vec<Function>,
    files: Vec<String>,
    pub types: HashMap<(HeapId, u32), u32>,
}

/// A stack.
pub(crate) struct Stack {
    /// The function that its allocations are charged to.
    pub charged: Option<u32>,
    /// Innermost first.
    pub frames: Vec<Call>,
}

/// A function on a stack.
pub(crate) struct Call {
    pub function: u32,
    /// The function's number does not say it: a function may be made of several files. By number, as there are tens of
    /// millions of calls in a large profile: see [`Index::file`].
    file: Option<NonZeroU32>,
    /// 0 for unknown.
    pub line: u32,
}

/// A function.
pub(crate) struct Function {
    pub name: String,
    pub module: String,
    pub file: Option<String>,
}

impl Index {
    pub fn new(profile: &Profile) -> Self {
        let types = profile.vm.types.keys().copied().zip(1..).collect();
        let mut index = Self {
            stack_numbers: HashMap::new(),
            stacks: Vec::new(),
            functions: Vec::new(),
            files: Vec::new(),
            types,
        };
        let mut numbers = Numbers::default();
        let ticks = profile.ticks.iter().map(stand_in);
        let frees = profile.free_stacks.iter().map(|free| stand_in_at(free.1));
        for sample in profile.samples.iter().copied().chain(ticks).chain(frees) {
            let sample = &sample;
            let key = key_of(sample);
            if index.stack_numbers.contains_key(&key) {
                continue;
            }
            let frames = profile.stack_frames(sample);
            let charged = charged_frame(profile, sample.heap, &frames);
            let stack = Stack {
                charged: charged.map(|frame| index.function_number(&mut numbers, frame)),
                frames: frames
                    .iter()
                    .map(|frame| Call {
                        function: index.function_number(&mut numbers, frame),
                        file: index.file_number(&mut numbers, frame),
                        line: frame.line,
                    })
                    .collect(),
            };
            index.stacks.push(stack);
            index.stack_numbers.insert(key, number(index.stacks.len()));
        }
        index
    }

    /// Number of a sample's stack, from 1.
    pub fn stack_of(&self, sample: &Sample) -> u32 {
        self.stack_numbers
            .get(&key_of(sample))
            .copied()
            .unwrap_or(0)
    }

    /// The stack with this number.
    pub fn stack(&self, number: u32) -> Option<&Stack> {
        self.stacks.get((number as usize).checked_sub(1)?)
    }

    /// The file that a call is in.
    pub fn file(&self, call: &Call) -> Option<&str> {
        let number = call.file?.get() as usize;
        self.files.get(number - 1).map(String::as_str)
    }

    fn function_number(&mut self, numbers: &mut Numbers, frame: &Frame) -> u32 {
        // Not by a pair of names, which would be copied for each frame.
        let of_name = numbers.functions.get(&frame.function);
        if let Some(number) = of_name.and_then(|modules| modules.get(&frame.module)) {
            return *number;
        }
        self.functions.push(Function {
            name: frame.function.clone(),
            module: frame.module.clone(),
            file: frame.file.clone(),
        });
        let number = number(self.functions.len());
        let modules = numbers.functions.entry(frame.function.clone());
        modules.or_default().insert(frame.module.clone(), number);
        number
    }

    fn file_number(&mut self, numbers: &mut Numbers, frame: &Frame) -> Option<NonZeroU32> {
        let file = frame.file.as_ref()?;
        if let Some(number) = numbers.files.get(file) {
            return Some(*number);
        }
        self.files.push(file.clone());
        let number = NonZeroU32::new(number(self.files.len()))?;
        numbers.files.insert(file.clone(), number);
        Some(number)
    }
}

/// What has a number already.
#[derive(Default)]
struct Numbers {
    /// By name, then by module.
    functions: HashMap<String, HashMap<String, u32>>,
    files: HashMap<String, NonZeroU32>,
}

/// Rows have numbers from 1, so that 0 never means one.
pub(crate) fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
