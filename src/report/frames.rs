//! The frames of a profile's stacks, each of them once.
//!
//! A program has some ten thousand places that call, a million stacks of them and ten million samples. Names are looked
//! up once for each place; from there on a frame is a number.

use std::ops::Deref;

use allocsample_profile::{Frame, HeapId, Profile, Sample, StackId, StackTable};
use rustc_hash::FxHashMap;

use crate::allocator::{self, Part};
use crate::numbering::NONE;
use crate::steps::Steps;
use crate::wrappers::{self, Skipped};

/// Number of a frame in [`Frames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(u32);

impl FrameId {
    /// Index into [`Names::all`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// All frames, and the way from a stack to its own, without the profile.
#[derive(Debug, Default)]
pub struct Names {
    frames: Vec<Frame>,
    /// Part of `inlined` for each place of the profile's stacks.
    spans: Vec<(u32, u32)>,
    inlined: Vec<FrameId>,
}

impl Names {
    /// A frame.
    pub fn frame(&self, id: FrameId) -> &Frame {
        &self.frames[id.index()]
    }

    /// All of them, in the order of their numbers.
    pub fn all(&self) -> &[Frame] {
        &self.frames
    }

    /// The numbers of all.
    pub fn ids(&self) -> impl Iterator<Item = FrameId> + use<> {
        (0..number(self.frames.len())).map(FrameId)
    }

    /// The caller's stack, and the frames of a node, leaf first; `None` for the empty stack.
    pub fn node_of(&self, stacks: &StackTable, stack: StackId) -> Option<(StackId, &[FrameId])> {
        let (parent, place) = stacks.parent_and_place(stack)?;
        let (start, end) = self.spans[place as usize];
        Some((parent, &self.inlined[start as usize..end as usize]))
    }

    /// Puts the frames of one of the profile's stacks into `stack`, leaf first.
    pub fn fill_of(&self, stacks: &StackTable, of: StackId, stack: &mut Vec<FrameId>) {
        stack.clear();
        let mut at = of;
        while let Some((parent, inlined)) = self.node_of(stacks, at) {
            stack.extend_from_slice(inlined);
            at = parent;
        }
    }
}

/// All frames of a profile, and the way from a sample to those of its stack.
#[derive(Debug)]
pub struct Frames<'a> {
    pub(crate) profile: &'a Profile,
    names: Names,
    parts: Vec<Part>,
    numbers: FxHashMap<Frame, FrameId>,
    skipped: Vec<Skipped>,
}

impl Deref for Frames<'_> {
    type Target = Names;

    fn deref(&self) -> &Names {
        &self.names
    }
}

impl<'a> Frames<'a> {
    /// Names all places of a profile.
    pub fn of(profile: &'a Profile) -> Self {
        let mut frames = Self {
            profile,
            names: Names::default(),
            parts: Vec::new(),
            numbers: FxHashMap::default(),
            skipped: Vec::new(),
        };
        for &location in profile.stacks.places() {
            let start = number(frames.inlined.len());
            for frame in profile.frames(location) {
                let id = frames.intern(frame);
                frames.names.inlined.push(id);
            }
            let end = number(frames.inlined.len());
            frames.names.spans.push((start, end));
        }
        frames.numbers = FxHashMap::default();
        let mut parts = std::mem::take(&mut frames.parts);
        frames.skipped = wrappers::skip(&frames, &mut parts, &profile.charging);
        frames.parts = parts;
        frames
    }

    /// Wrappers of the allocator that are passed over, those of most samples first.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// The functions and modules of all frames that are passed over as allocators.
    pub(crate) fn into_passed_over(self) -> Vec<(String, String)> {
        let frames = self.names.frames.into_iter().zip(self.parts);
        let passed_over = frames.filter(|(_, part)| *part == Part::Allocator);
        passed_over
            .map(|(frame, _)| (frame.function, frame.module))
            .collect()
    }

    /// What they are without the profile.
    pub fn into_names(self) -> Names {
        self.names
    }

    fn intern(&mut self, frame: Frame) -> FrameId {
        if let Some(&id) = self.numbers.get(&frame) {
            return id;
        }
        let id = FrameId(number(self.frames.len()));
        self.parts.push(allocator::part_of(&frame));
        self.names.frames.push(frame.clone());
        self.numbers.insert(frame, id);
        id
    }

    /// The caller's stack, and the frames of a node, leaf first; `None` for the empty stack.
    pub fn node(&self, stack: StackId) -> Option<(StackId, &[FrameId])> {
        self.node_of(&self.profile.stacks, stack)
    }

    /// Puts the frames of a stack into `stack`, leaf first, as [`Profile::stack_frames`] would.
    pub fn fill(&self, of: StackId, stack: &mut Vec<FrameId>) {
        self.fill_of(&self.profile.stacks, of, stack);
    }

    /// Where in a stack the frame is that an allocation in `heap` is charged to: the first one that is not of the allocator.
    pub fn charged(&self, heap: HeapId, stack: &[FrameId]) -> Option<usize> {
        allocator::charged_position(
            self.profile,
            heap,
            stack,
            |id| self.frame(*id),
            |id| self.parts[id.index()],
        )
    }

    /// The frame that a sample is charged to, and its index in the sample's stack. `stack` is working memory.
    pub fn charged_to(
        &self,
        sample: &Sample,
        stack: &mut Vec<FrameId>,
    ) -> Option<(usize, FrameId)> {
        // Without a machine it is the first of the program, if there is one, whatever comes behind it.
        if self.profile.vm.heaps.is_empty() {
            let mut before = 0;
            let mut at = sample.stack;
            while let Some((parent, inlined)) = self.node(at) {
                let own = inlined.iter().position(|id| !self.is_library(*id));
                if let Some(own) = own {
                    return Some((before + own, inlined[own]));
                }
                before += inlined.len();
                at = parent;
            }
        }
        self.fill(sample.stack, stack);
        let charged = self.charged(sample.heap, stack)?;
        Some((charged, stack[charged]))
    }

    /// The stack of the caller of the code that the frame at this index of a stack is part of; empty if there is none.
    pub fn caller_of(&self, stack: StackId, index: usize) -> StackId {
        let (mut at, mut before) = (stack, 0);
        while let Some((parent, inlined)) = self.node(at) {
            at = parent;
            before += inlined.len();
            if before > index {
                break;
            }
        }
        at
    }

    /// Whether a frame is of the standard library of C++ or Rust, or of the allocator.
    pub fn is_library(&self, id: FrameId) -> bool {
        self.parts[id.index()] != Part::Program
    }

    /// Frames of one function get the same number.
    pub(crate) fn function_keys(&self) -> FrameKeys {
        self.keys(|frame| (&frame.function, &frame.module, &frame.file_end))
    }

    /// Frames that are the same by what `key` sees of them get the same number.
    pub(crate) fn keys<'b, K: std::hash::Hash + Eq>(
        &'b self,
        key: impl Fn(&'b Frame) -> K,
    ) -> FrameKeys {
        let mut numbers: FxHashMap<K, u32> = FxHashMap::default();
        let mut keys = FrameKeys::default();
        for (id, frame) in self.ids().zip(&self.frames) {
            let next = number(keys.first.len());
            let key = *numbers.entry(key(frame)).or_insert(next);
            if key == next {
                keys.first.push(id);
            }
            keys.of_frame.push(key);
        }
        keys
    }
}

/// Groups of frames.
#[derive(Debug, Default)]
pub(crate) struct FrameKeys {
    /// The group of each frame.
    pub(crate) of_frame: Vec<u32>,
    /// The first frame of each group.
    pub(crate) first: Vec<FrameId>,
}

/// Stacks by the names of their functions: those with the same names have the same number.
#[derive(Debug)]
pub struct Paths<'a> {
    frames: &'a Frames<'a>,
    names: FrameKeys,
    /// Steps from a path to the next one, by the name of that.
    steps: Steps,
    /// The number of the path to each node of the profile's stacks; [`NONE`] for a node that nobody has asked for. A step
    /// costs a cache miss or two, and there are far fewer nodes than frames of all stacks.
    of_node: Vec<u32>,
    /// Room to work in.
    way: Vec<StackId>,
}

impl<'a> Paths<'a> {
    /// For the stacks of a profile.
    pub fn new(frames: &'a Frames<'a>) -> Self {
        let nodes = frames.profile.stacks.count() as usize;
        let mut of_node = vec![NONE; nodes + 1];
        of_node[0] = 0;
        Self {
            frames,
            names: frames.keys(|frame| (&frame.function, &frame.file_end)),
            steps: Steps::for_steps(nodes),
            of_node,
            way: Vec::new(),
        }
    }

    /// Works out the numbers of all stacks; otherwise each is when it is asked for.
    pub fn prepare(&mut self) {
        for node in 1..=self.frames.profile.stacks.count() {
            self.path(StackId(node));
        }
    }

    /// How many there are so far: their numbers are below it.
    pub fn count(&self) -> usize {
        self.steps.all().len() + 1
    }

    /// The number of the path to a node: from the nearest caller whose path is known.
    fn path(&mut self, stack: StackId) -> u32 {
        let frames = self.frames;
        let mut way = std::mem::take(&mut self.way);
        let mut at = stack;
        let mut path = loop {
            match self.of_node[at.0 as usize] {
                NONE => way.push(at),
                path => break path,
            }
            at = frames.node(at).map_or(StackId::EMPTY, |(parent, _)| parent);
        };
        while let Some(node) = way.pop() {
            let (_, inlined) = frames.node(node).unwrap_or_default();
            path = self.step(path, inlined);
            self.of_node[node.0 as usize] = path;
        }
        self.way = way;
        path
    }

    /// The number of a stack without the frames before the one at `from`.
    pub fn number(&mut self, mut stack: StackId, from: usize) -> u32 {
        let frames = self.frames;
        let mut before = from;
        while before > 0
            && let Some((parent, inlined)) = frames.node(stack)
        {
            if before < inlined.len() {
                let path = self.path(parent);
                return self.step(path, &inlined[before..]);
            }
            before -= inlined.len();
            stack = parent;
        }
        self.path(stack)
    }

    /// For each path, without the empty one: the path that it goes on from, which comes before it, and the number of a name.
    pub(crate) fn into_steps(self) -> (Vec<(u32, u32)>, FrameKeys) {
        (self.steps.into_all(), self.names)
    }

    /// The path that goes on from `path` with these frames, of which the last comes first.
    pub(crate) fn step(&mut self, path: u32, frames: &[FrameId]) -> u32 {
        frames.iter().rev().fold(path, |path, id| {
            let name = self.names.of_frame[id.index()];
            self.steps.number(path, name) + 1
        })
    }
}

/// Profiles have 32-bit numbers for their stacks, and no more frames or paths than fit into memory beside them.
fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charged_frame;
    use allocsample_profile::{Function, Heap, Location, ModuleId, SampleFlags, StackNode};
    use allocsample_sampling::Random;

    /// Stacks of native frames and frames of a language, and samples of them in both heaps.
    fn random() -> Profile {
        let mut random = Random::from_seed(2);
        let mut profile = Profile::default();
        let machine = HeapId(1);
        let heap = Heap {
            name: "python".to_owned(),
            kind: None,
            exact_bytes: 0,
        };
        profile.vm.heaps.insert(machine, heap);
        for function in 1..4 {
            let known = Function {
                name: format!("language_{function}"),
                file: String::new(),
                line: 7,
            };
            profile.vm.functions.insert((machine, function), known);
        }
        for nodes in 0..500 {
            let location = match random.below(3) {
                0 => Location {
                    module: ModuleId::VM,
                    // Heap, function and line as `VmFrame` packs them are a matter of the record room.
                    offset: random.next_u64(),
                },
                _ => Location {
                    module: ModuleId::NONE,
                    offset: random.below(40),
                },
            };
            profile.stacks.push(StackNode {
                parent: StackId(random.below(nodes + 1) as u32),
                location,
            });
        }
        for stack in 0..=500 {
            profile.samples.push(Sample {
                stack: StackId(stack),
                heap: HeapId(random.below(2) as u16),
                flags: SampleFlags(random.below(4) as u16),
                ..Sample::default()
            });
        }
        profile
    }

    #[test]
    fn numbers_stand_for_the_frames_that_the_profile_names() {
        let with_a_machine = random();
        let mut without = random();
        without.vm.heaps.clear();
        for profile in [with_a_machine, without] {
            are_those_that_the_profile_names(&profile);
        }
    }

    fn are_those_that_the_profile_names(profile: &Profile) {
        let frames = Frames::of(profile);
        let mut stack = Vec::new();
        for sample in &profile.samples {
            frames.fill(sample.stack, &mut stack);
            let named: Vec<Frame> = stack.iter().map(|id| frames.frame(*id).clone()).collect();
            let expected = profile.stack_frames(&sample);
            assert_eq!(named, expected);
            frames.fill(sample.stack, &mut stack);
            let mut callers = Vec::new();
            for index in 0..stack.len() {
                // None of these places has inlined calls.
                frames.fill(frames.caller_of(sample.stack, index), &mut callers);
                assert_eq!(callers, stack[index + 1..]);
            }
            frames.fill(sample.stack, &mut stack);
            let charged = frames
                .charged(sample.heap, &stack)
                .map(|place| &named[place]);
            assert_eq!(charged, charged_frame(profile, sample.heap, &expected));
            let to = frames.charged_to(&sample, &mut Vec::new());
            assert_eq!(to.map(|(_, id)| frames.frame(id)), charged);
            assert_eq!(to.map(|(at, _)| &named[at]), charged);
        }
    }

    #[test]
    fn paths_are_equal_if_their_names_are() {
        let profile = random();
        let frames = Frames::of(&profile);
        let mut paths = Paths::new(&frames);
        let mut by_names: FxHashMap<Vec<String>, u32> = FxHashMap::default();
        let mut by_number: FxHashMap<u32, Vec<String>> = FxHashMap::default();
        let mut random = Random::from_seed(3);
        let mut stack = Vec::new();
        for sample in &profile.samples {
            frames.fill(sample.stack, &mut stack);
            let from = random.below(stack.len() as u64) as usize;
            for from in [0, from] {
                let number = paths.number(sample.stack, from);
                let rest = stack[from..].iter();
                let names: Vec<String> =
                    rest.map(|id| frames.frame(*id).function.clone()).collect();
                assert_eq!(*by_names.entry(names.clone()).or_insert(number), number);
                assert_eq!(*by_number.entry(number).or_insert(names.clone()), names);
            }
        }
        assert!(by_names.len() > 100);
    }
}
