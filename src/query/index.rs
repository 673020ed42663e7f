//! Numbers for stacks and functions: a sample's stack with the pseudo-frame at its root, a function with its module.

use std::collections::HashMap;

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
        stack: tick.stack,
        flags: tick.flags,
        heap: HeapId::MALLOC,
        ..Sample::default()
    }
}

/// Stacks and functions by number. Made once, as the samples refer to both.
pub(crate) struct Index {
    stack_numbers: HashMap<Key, u32>,
    pub stacks: Vec<Stack>,
    pub functions: Vec<Function>,
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
    /// Index into [`Index::functions`] does not say it: a function may be made of several files.
    pub file: Option<String>,
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
            types,
        };
        let mut numbers = HashMap::new();
        let ticks = profile.ticks.iter().map(stand_in);
        for sample in profile.samples.iter().copied().chain(ticks) {
            let sample = &sample;
            let key = key_of(sample);
            if index.stack_numbers.contains_key(&key) {
                continue;
            }
            let frames = profile.stack_frames(sample);
            let mut function = |frame: &Frame| index.functions_number(&mut numbers, frame);
            let stack = Stack {
                charged: charged_frame(profile, sample.heap, &frames).map(&mut function),
                frames: frames
                    .iter()
                    .map(|frame| Call {
                        function: function(frame),
                        file: frame.file.clone(),
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

    fn functions_number(
        &mut self,
        numbers: &mut HashMap<(String, String), u32>,
        frame: &Frame,
    ) -> u32 {
        let key = (frame.function.clone(), frame.module.clone());
        *numbers.entry(key).or_insert_with(|| {
            self.functions.push(Function {
                name: frame.function.clone(),
                module: frame.module.clone(),
                file: frame.file.clone(),
            });
            number(self.functions.len())
        })
    }
}

/// Rows have numbers from 1, so that 0 never means one.
pub(crate) fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
