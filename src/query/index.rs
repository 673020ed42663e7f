//! Numbers for stacks and functions: a sample's stack with the pseudo-frame at its root, a function with its module.

use std::collections::HashMap;

use allocsample_profile::{Frame, HeapId, Profile, Sample, StackId, Tick};
use allocsample_report::{FrameId, Frames, Kinds, Pairs};

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
///
/// There may be a million stacks, with tens of millions of frames: those are walked again for each row that needs them.
pub(crate) struct Index<'a> {
    frames: Frames<'a>,
    /// What tells apart what is allocated with one stack: its missing root, and the heap, in which it may be charged
    /// differently.
    kinds: Kinds<(Option<FrameId>, HeapId)>,
    /// By stack of the profile and kind.
    stack_numbers: Pairs,
    stacks: Vec<Stack>,
    pub functions: Vec<Function>,
    /// The function of each frame; 0 for those that are on no stack.
    function_of_frame: Vec<u32>,
    pub types: HashMap<(HeapId, u32), u32>,
}

/// A stack.
struct Stack {
    of_profile: StackId,
    missing_root: Option<FrameId>,
    /// The function that its allocations are charged to; 0 for none.
    charged: u32,
}

/// A function.
pub(crate) struct Function {
    pub name: String,
    pub module: String,
    pub file: Option<String>,
}

impl<'a> Index<'a> {
    pub fn new(profile: &'a Profile) -> Self {
        let frames = Frames::of(profile);
        let mut index = Self {
            function_of_frame: vec![0; frames.all().len()],
            frames,
            kinds: Kinds::default(),
            stack_numbers: Pairs::for_things(profile.stacks.count() as usize + 1),
            stacks: Vec::new(),
            functions: Vec::new(),
            types: profile.vm.types.keys().copied().zip(1..).collect(),
        };
        let mut numbers = Numbers::default();
        let mut frames = Vec::new();
        for sample in &profile.samples {
            index.add(&sample, &mut numbers, &mut frames);
        }
        for tick in &profile.ticks {
            index.add(&stand_in(tick), &mut numbers, &mut frames);
        }
        for (_, stack) in &profile.free_stacks {
            index.add(&stand_in_at(*stack), &mut numbers, &mut frames);
        }
        index
    }

    /// Numbers a sample's stack and its functions. `frames` is room to work in.
    fn add(&mut self, sample: &Sample, numbers: &mut Numbers, frames: &mut Vec<FrameId>) {
        let missing_root = self.frames.missing_root(sample);
        let kind = self.kinds.number((missing_root, sample.heap));
        let number = self.stack_numbers.number(sample.stack.0, kind);
        if (number as usize) < self.stacks.len() {
            return;
        }
        self.frames.fill(sample, frames);
        let charged = self.frames.charged(sample.heap, frames);
        let charged = charged.map_or(0, |charged| self.number_function(numbers, frames[charged]));
        for &frame in frames.iter() {
            self.number_function(numbers, frame);
        }
        self.stacks.push(Stack {
            of_profile: sample.stack,
            missing_root,
            charged,
        });
    }

    /// Number of a sample's stack, from 1.
    pub fn stack_of(&self, sample: &Sample) -> u32 {
        let kind = (self.frames.missing_root(sample), sample.heap);
        let number = self.kinds.get(kind);
        number
            .and_then(|kind| self.stack_numbers.get(sample.stack.0, kind))
            .map_or(0, |number| number + 1)
    }

    /// The number of the last stack.
    pub fn last_stack(&self) -> u32 {
        number(self.stacks.len())
    }

    fn stack(&self, number: u32) -> Option<&Stack> {
        self.stacks.get((number as usize).checked_sub(1)?)
    }

    /// The function that allocations with this stack are charged to.
    pub fn charged(&self, stack: u32) -> Option<u32> {
        let charged = self.stack(stack)?.charged;
        Some(charged).filter(|&charged| charged != 0)
    }

    /// Puts the frames of the stack with this number into `frames`, innermost first.
    pub fn fill(&self, stack: u32, frames: &mut Vec<FrameId>) {
        frames.clear();
        if let Some(stack) = self.stack(stack) {
            self.frames.fill_stack(stack.of_profile, frames);
            frames.extend(stack.missing_root);
        }
    }

    /// The function of a frame of a stack.
    pub fn function_of(&self, id: FrameId) -> u32 {
        self.function_of_frame[id.index()]
    }

    /// All frames that are on a stack.
    pub fn frames_on_stacks(&self) -> impl Iterator<Item = (FrameId, &Frame)> {
        let all = self.frames.ids().zip(self.frames.all());
        all.filter(|(id, _)| self.function_of(*id) != 0)
    }

    fn number_function(&mut self, numbers: &mut Numbers, id: FrameId) -> u32 {
        let of_frame = &mut self.function_of_frame[id.index()];
        if *of_frame == 0 {
            let frame = self.frames.frame(id);
            let functions = &mut self.functions;
            let key = (frame.function.clone(), frame.module.clone());
            *of_frame = *numbers.entry(key).or_insert_with(|| {
                functions.push(Function {
                    name: frame.function.clone(),
                    module: frame.module.clone(),
                    file: frame.file.clone(),
                });
                number(functions.len())
            });
        }
        *of_frame
    }
}

/// What has a number already: functions by name and module.
type Numbers = HashMap<(String, String), u32>;

/// Rows have numbers from 1, so that 0 never means one.
pub(crate) fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{Location, ModuleId, SampleFlags, StackNode};
    use allocsample_report::charged_frame;

    /// Stacks with shared callers, with and without their roots, in two heaps; and ticks with some of them.
    fn profile() -> Profile {
        let mut profile = Profile::default();
        for node in 0..300_u32 {
            profile.stacks.push(StackNode {
                parent: StackId(node * 7 % (node + 1)),
                location: Location {
                    module: ModuleId::NONE,
                    offset: u64::from(node * 13 % 29),
                },
            });
        }
        for number in 0..2000_u32 {
            profile.samples.push(Sample {
                stack: StackId(number * 31 % 301),
                heap: HeapId((number % 5 / 4) as u16),
                flags: SampleFlags((number % 11 / 9) as u16),
                ..Sample::default()
            });
        }
        profile.ticks = (0..300)
            .map(|stack| Tick {
                stack: StackId(stack),
                flags: SampleFlags::UNWIND_FAILED,
                ..Tick::default()
            })
            .collect();
        profile
    }

    #[test]
    fn stacks_have_the_frames_that_the_profile_names() {
        let profile = profile();
        let index = Index::new(&profile);
        let ticks: Vec<Sample> = profile.ticks.iter().map(stand_in).collect();
        let mut numbers = HashMap::new();
        for sample in profile.samples.iter().chain(ticks) {
            let number = index.stack_of(&sample);
            assert!((1..=index.last_stack()).contains(&number));
            let named: Vec<Frame> = profile.stack_frames(&sample);
            let key = (sample.stack, named.last().cloned(), sample.heap);
            assert_eq!(*numbers.entry(key).or_insert(number), number);
            let name = |function: u32| &index.functions[function as usize - 1].name;
            let mut frames = Vec::new();
            index.fill(number, &mut frames);
            let calls: Vec<_> = (frames.iter())
                .map(|&id| name(index.function_of(id)))
                .collect();
            let expected: Vec<_> = named.iter().map(|frame| &frame.function).collect();
            assert_eq!(calls, expected);
            let charged = charged_frame(&profile, sample.heap, &named);
            let expected = charged.map(|frame| &frame.function);
            assert_eq!(index.charged(number).map(name), expected);
        }
        assert_eq!(numbers.len(), index.last_stack() as usize);
    }
}
