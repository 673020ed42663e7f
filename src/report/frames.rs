//! The frames of a profile's stacks, each of them once.
//!
//! A program has some ten thousand places that call, a million stacks of them and ten million samples. Names are looked
//! up once for each place; from there on a frame is a number.

use allocsample_profile::{Frame, HeapId, Profile, Sample, StackId, missing_root};
use rustc_hash::FxHashMap;

use crate::allocator;

/// Number of a frame in [`Frames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(u32);

impl FrameId {
    /// Index into [`Frames::all`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// All frames, and the way from a sample to those of its stack.
#[derive(Debug)]
pub struct Frames<'a> {
    profile: &'a Profile,
    frames: Vec<Frame>,
    is_allocator: Vec<bool>,
    /// Part of `inlined` for each place of the profile's stacks.
    spans: Vec<(u32, u32)>,
    inlined: Vec<FrameId>,
    numbers: FxHashMap<Frame, FrameId>,
    missing: Vec<(&'static str, FrameId)>,
}

impl<'a> Frames<'a> {
    /// Names all places of a profile.
    pub fn of(profile: &'a Profile) -> Self {
        let mut frames = Self {
            profile,
            frames: Vec::new(),
            is_allocator: Vec::new(),
            spans: Vec::new(),
            inlined: Vec::new(),
            numbers: FxHashMap::default(),
            missing: Vec::new(),
        };
        for &location in profile.stacks.places() {
            let start = number(frames.inlined.len());
            for frame in profile.frames(location) {
                let id = frames.intern(frame);
                frames.inlined.push(id);
            }
            frames.spans.push((start, number(frames.inlined.len())));
        }
        for sample in &profile.samples {
            if let Some(missing) = missing_root(sample) {
                frames.add_missing(missing);
            }
        }
        for missing in crate::time::missing_roots(profile) {
            frames.add_missing(missing);
        }
        frames.numbers = FxHashMap::default();
        frames
    }

    fn add_missing(&mut self, missing: &'static str) {
        if !self.missing.iter().any(|(name, _)| *name == missing) {
            let id = self.intern(Frame {
                function: missing.to_owned(),
                file: None,
                line: 0,
                module: String::new(),
                is_symbolized: true,
            });
            self.missing.push((missing, id));
        }
    }

    fn intern(&mut self, frame: Frame) -> FrameId {
        if let Some(&id) = self.numbers.get(&frame) {
            return id;
        }
        let id = FrameId(number(self.frames.len()));
        self.is_allocator
            .push(allocator::is_allocator(&frame.function));
        self.frames.push(frame.clone());
        self.numbers.insert(frame, id);
        id
    }

    /// A frame.
    pub fn frame(&self, id: FrameId) -> &Frame {
        &self.frames[id.index()]
    }

    /// All of them, in the order of their numbers.
    pub fn all(&self) -> &[Frame] {
        &self.frames
    }

    /// The caller's stack, and the frames of a node, leaf first; `None` for the empty stack.
    pub fn node(&self, stack: StackId) -> Option<(StackId, &[FrameId])> {
        let (parent, place) = self.profile.stacks.parent_and_place(stack)?;
        let (start, end) = self.spans[place as usize];
        Some((parent, &self.inlined[start as usize..end as usize]))
    }

    /// Puts the frames of a sample's stack into `stack`, leaf first, as [`Profile::stack_frames`] would.
    pub fn fill(&self, sample: &Sample, stack: &mut Vec<FrameId>) {
        self.fill_stack(sample.stack, stack);
        stack.extend(self.missing_root(sample));
    }

    /// The same for a stack that is not a sample's: what may be missing at its root is not known.
    pub fn fill_stack(&self, of: StackId, stack: &mut Vec<FrameId>) {
        stack.clear();
        let mut at = of;
        while let Some((parent, inlined)) = self.node(at) {
            stack.extend_from_slice(inlined);
            at = parent;
        }
    }

    /// The pseudo-frame that stands for the root of a sample's stack, if that is missing.
    pub fn missing_root(&self, sample: &Sample) -> Option<FrameId> {
        let missing = missing_root(sample)?;
        let known = self.missing.iter().find(|(name, _)| *name == missing);
        known.map(|(_, id)| *id)
    }

    /// Where in a stack the frame is that an allocation in `heap` is charged to, see [`allocator`].
    pub fn charged(&self, heap: HeapId, stack: &[FrameId]) -> Option<usize> {
        allocator::charged_position(
            self.profile,
            heap,
            stack,
            |id| self.frame(*id),
            |id| self.is_allocator[id.index()],
        )
    }

    /// Frames that are the same by what `key` sees of them get the same number.
    pub(crate) fn keys<'b, K: std::hash::Hash + Eq>(
        &'b self,
        key: impl Fn(&'b Frame) -> K,
    ) -> FrameKeys {
        let mut numbers: FxHashMap<K, u32> = FxHashMap::default();
        let mut keys = FrameKeys::default();
        for (id, frame) in (0..).map(FrameId).zip(&self.frames) {
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
    steps: Steps,
    /// For each root that may be missing, and for none: the numbers of the paths to each node of the profile's stacks,
    /// and to no node. A step costs a cache miss or two, and there are far fewer nodes than frames of all stacks.
    of_nodes: Vec<(Option<FrameId>, Vec<u32>)>,
}

impl<'a> Paths<'a> {
    /// For the stacks of a profile.
    pub fn new(frames: &'a Frames<'a>) -> Self {
        Self {
            frames,
            names: frames.keys(|frame| frame.function.as_str()),
            steps: Steps::default(),
            of_nodes: Vec::new(),
        }
    }

    /// Works out the numbers of stacks that reach their thread's start, which else the first one that is asked for does.
    pub fn prepare(&mut self) {
        self.below(None);
    }

    /// How many there are so far: their numbers are below it.
    pub fn count(&self) -> usize {
        self.steps.all.len() + 1
    }

    /// The index in `of_nodes` of the stacks whose root is this frame.
    fn below(&mut self, root: Option<FrameId>) -> usize {
        let known = self.of_nodes.iter().position(|(known, _)| *known == root);
        known.unwrap_or_else(|| {
            let frames = self.frames;
            let count = frames.profile.stacks.count();
            let mut of_node = Vec::with_capacity(count as usize + 1);
            of_node.push(self.step(0, root.as_slice()));
            for node in 1..=count {
                let (parent, inlined) = frames.node(StackId(node)).unwrap_or_default();
                of_node.push(self.step(of_node[parent.0 as usize], inlined));
            }
            self.of_nodes.push((root, of_node));
            self.of_nodes.len() - 1
        })
    }

    /// The number of a sample's stack without the frames before the one at `from`.
    pub fn number(&mut self, sample: &Sample, from: usize) -> u32 {
        let frames = self.frames;
        let below = self.below(frames.missing_root(sample));
        let (mut stack, mut before) = (sample.stack, from);
        while before > 0
            && let Some((parent, inlined)) = frames.node(stack)
        {
            if before < inlined.len() {
                let path = self.of_nodes[below].1[parent.0 as usize];
                return self.step(path, &inlined[before..]);
            }
            before -= inlined.len();
            stack = parent;
        }
        self.of_nodes[below].1[stack.0 as usize]
    }

    /// The path that goes on from `path` with these frames, of which the last comes first.
    fn step(&mut self, path: u32, frames: &[FrameId]) -> u32 {
        frames.iter().rev().fold(path, |path, id| {
            let name = self.names.of_frame[id.index()];
            self.steps.number(path, name)
        })
    }
}

/// Steps from a path to the next one, by the name of that: millions. The table has numbers alone, so that a larger one is
/// made without the one before, and a step that is new costs one look at memory.
#[derive(Debug, Default)]
struct Steps {
    /// Paths and names; the number of a step is its place here plus one.
    all: Vec<(u32, u32)>,
    /// Numbers, or 0: open addressing with linear probing. A power of two of them, or none.
    slots: Vec<u32>,
}

impl Steps {
    /// The number of a step, which becomes a new one unless it is known.
    fn number(&mut self, path: u32, name: u32) -> u32 {
        // Three of four at most are in use.
        if (self.all.len() + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }
        let mut place = self.place(path, name);
        loop {
            match self.slots[place] {
                0 => break,
                known if self.all[known as usize - 1] == (path, name) => return known,
                _ => place = self.behind(place),
            }
        }
        self.all.push((path, name));
        self.slots[place] = number(self.all.len());
        self.slots[place]
    }

    fn grow(&mut self) {
        const FEWEST: usize = 1 << 10;
        let slots = (self.slots.len() * 2).max(FEWEST);
        self.slots = Vec::new();
        self.slots = vec![0; slots];
        for (step, &(path, name)) in (1..).zip(&self.all) {
            let mut place = self.place(path, name);
            while self.slots[place] != 0 {
                place = self.behind(place);
            }
            self.slots[place] = step;
        }
    }

    /// Where a step would like to be. The upper bits of a product with the golden ratio depend on all of the key.
    fn place(&self, path: u32, name: u32) -> usize {
        let key = u64::from(path) << 32 | u64::from(name);
        let mixed = (key ^ key >> 29).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 32) as usize & (self.slots.len() - 1)
    }

    fn behind(&self, place: usize) -> usize {
        (place + 1) & (self.slots.len() - 1)
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
        let profile = random();
        let frames = Frames::of(&profile);
        let mut stack = Vec::new();
        for sample in &profile.samples {
            frames.fill(sample, &mut stack);
            let named: Vec<Frame> = stack.iter().map(|id| frames.frame(*id).clone()).collect();
            let expected = profile.stack_frames(sample);
            assert_eq!(named, expected);
            let charged = frames
                .charged(sample.heap, &stack)
                .map(|place| &named[place]);
            assert_eq!(charged, charged_frame(&profile, sample.heap, &expected));
        }
    }

    #[test]
    fn steps_have_the_numbers_that_a_map_would_give_them() {
        let (mut steps, mut expected) = (Steps::default(), FxHashMap::default());
        let mut random = Random::from_seed(4);
        for _ in 0..50_000 {
            let (path, name) = (random.below(3000) as u32, random.below(9) as u32);
            let next = number(expected.len()) + 1;
            let known = *expected.entry((path, name)).or_insert(next);
            assert_eq!(steps.number(path, name), known);
        }
        assert_eq!(steps.all.len(), expected.len());
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
            frames.fill(sample, &mut stack);
            let from = random.below(stack.len() as u64) as usize;
            for from in [0, from] {
                let number = paths.number(sample, from);
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
