//! Numbers for stacks and functions: a stack with the heap that allocates with it, a function with its module.

use std::collections::HashMap;

use allocsample_profile::{Frame, HeapId, Profile, StackId, StackTable};
use allocsample_report::{FrameId, Frames, Names, Pairs};

/// Stacks and functions by number. Made once, as the samples refer to both.
///
/// There may be a million stacks, with tens of millions of frames: those are walked again for each row that needs them.
pub(crate) struct Index {
    names: Names,
    /// By stack of the profile and heap, in which it may be charged differently.
    stack_numbers: Pairs,
    stacks: Vec<Stack>,
    pub functions: Vec<Function>,
    /// The function of each frame; 0 for those that are on no stack.
    function_of_frame: Vec<u32>,
    /// All frames that are on a stack.
    pub calls: Vec<FrameId>,
}

/// A stack.
struct Stack {
    of_profile: StackId,
    /// The function that its allocations are charged to; 0 for none.
    charged: u32,
}

/// A function.
pub(crate) struct Function {
    pub name: String,
    pub module: String,
    pub file: Option<String>,
}

impl Index {
    pub fn new(profile: &Profile) -> Self {
        let frames = Frames::of(profile);
        let mut index = Self {
            function_of_frame: vec![0; frames.all().len()],
            names: Names::default(),
            stack_numbers: Pairs::for_things(profile.stacks.count() as usize + 1),
            stacks: Vec::new(),
            functions: Vec::new(),
            calls: Vec::new(),
        };
        let mut numbers = Numbers::default();
        let mut room = Vec::new();
        for sample in &profile.samples {
            index.add(&frames, sample.stack, sample.heap, &mut numbers, &mut room);
        }
        let ticks = profile.ticks.iter().map(|tick| tick.stack);
        let frees = profile.free_stacks.iter().map(|&(_, stack)| stack);
        let calls = profile.mappings.iter().map(|call| call.stack);
        for stack in ticks.chain(frees).chain(calls) {
            index.add(&frames, stack, HeapId::MALLOC, &mut numbers, &mut room);
        }
        index.names = frames.into_names();
        let calls = index.names.ids();
        index.calls = calls.filter(|&id| index.function_of(id) != 0).collect();
        index
    }

    /// Numbers a stack and its functions. `room` is to work in.
    fn add(
        &mut self,
        frames: &Frames<'_>,
        stack: StackId,
        heap: HeapId,
        numbers: &mut Numbers,
        room: &mut Vec<FrameId>,
    ) {
        let number = self.stack_numbers.number(stack.0, heap.0.into());
        if (number as usize) < self.stacks.len() {
            return;
        }
        frames.fill(stack, room);
        let charged = frames.charged(heap, room);
        let mut function = |id| self.number_function(numbers, frames, id);
        let charged = charged.map_or(0, |charged| function(room[charged]));
        for &frame in room.iter() {
            function(frame);
        }
        self.stacks.push(Stack {
            of_profile: stack,
            charged,
        });
    }

    /// Number of the stack of what is in a heap, from 1.
    #[inline]
    pub fn stack_of(&self, stack: StackId, heap: HeapId) -> u32 {
        let number = self.stack_numbers.get(stack.0, heap.0.into());
        number.map_or(0, |number| number + 1)
    }

    pub fn stack_count(&self) -> usize {
        self.stacks.len()
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
    pub fn fill(&self, profile: &Profile, stack: u32, frames: &mut Vec<FrameId>) {
        frames.clear();
        if let Some(stack) = self.stack(stack) {
            self.names
                .fill_of(&profile.stacks, stack.of_profile, frames);
        }
    }

    /// The innermost function of a stack.
    pub fn innermost(&self, profile: &Profile, stack: u32) -> Option<u32> {
        let stack = self.stack(stack)?;
        let node = self.names.node_of(&profile.stacks, stack.of_profile);
        let leaf = node.and_then(|(_, inlined)| inlined.first().copied());
        leaf.map(|id| self.function_of(id))
    }

    /// Where the frames of each stack begin if all are put behind each other, and where the last ones end.
    pub fn frame_starts(&self, stacks: &StackTable) -> Vec<u64> {
        // Callers have lower numbers than what they call.
        let mut depths = vec![0_u32; stacks.count() as usize + 1];
        for node in 1..=stacks.count() {
            if let Some((caller, inlined)) = self.names.node_of(stacks, StackId(node)) {
                let above = depths.get(caller.0 as usize).copied().unwrap_or(0);
                depths[node as usize] = above.saturating_add(inlined.len() as u32);
            }
        }
        let mut starts = Vec::with_capacity(self.stacks.len() + 1);
        let mut next = 0;
        for stack in &self.stacks {
            starts.push(next);
            let depth = depths.get(stack.of_profile.0 as usize).copied();
            next += u64::from(depth.unwrap_or(0));
        }
        starts.push(next);
        starts
    }

    /// The function of a frame of a stack.
    pub fn function_of(&self, id: FrameId) -> u32 {
        self.function_of_frame[id.index()]
    }

    /// What a row of `calls` is.
    pub fn call(&self, row: usize) -> &Frame {
        self.names.frame(self.calls[row])
    }

    fn number_function(&mut self, numbers: &mut Numbers, frames: &Frames<'_>, id: FrameId) -> u32 {
        let of_frame = &mut self.function_of_frame[id.index()];
        if *of_frame == 0 {
            let frame = frames.frame(id);
            let functions = &mut self.functions;
            let key = (
                frame.function.clone(),
                frame.module.clone(),
                frame.file_end.clone(),
            );
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

/// What has a number already: functions by name, module and what else tells them apart.
type Numbers = HashMap<(String, String, Option<String>), u32>;

/// Rows have numbers from 1, so that 0 never means one.
pub(crate) fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{Location, ModuleId, Sample, SampleFlags, StackNode, Tick};
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
        profile.end_stacks_without_root();
        profile
    }

    #[test]
    fn stacks_have_the_frames_that_the_profile_names() {
        let profile = profile();
        let index = Index::new(&profile);
        let ticks: Vec<Sample> = (profile.ticks.iter())
            .map(|tick| Sample {
                stack: tick.stack,
                ..Sample::default()
            })
            .collect();
        let mut numbers = HashMap::new();
        for sample in profile.samples.iter().chain(ticks) {
            let number = index.stack_of(sample.stack, sample.heap);
            assert!((1..=index.stack_count() as u32).contains(&number));
            let named: Vec<Frame> = profile.stack_frames(&sample);
            let key = (sample.stack, named.last().cloned(), sample.heap);
            assert_eq!(*numbers.entry(key).or_insert(number), number);
            let name = |function: u32| &index.functions[function as usize - 1].name;
            let mut frames = Vec::new();
            index.fill(&profile, number, &mut frames);
            let calls: Vec<_> = (frames.iter())
                .map(|&id| name(index.function_of(id)))
                .collect();
            let expected: Vec<_> = named.iter().map(|frame| &frame.function).collect();
            assert_eq!(calls, expected);
            let charged = charged_frame(&profile, sample.heap, &named);
            let expected = charged.map(|frame| &frame.function);
            assert_eq!(index.charged(number).map(name), expected);
        }
        assert_eq!(numbers.len(), index.stack_count());
    }
}
