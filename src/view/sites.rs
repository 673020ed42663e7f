//! Stacks by number: functions and places once, stacks as a tree.

use allocsample_profile::{Profile, StackId};
use allocsample_report::{FrameId, Frames, NONE, Numbering, heaps};
use rustc_hash::FxHashMap;

use crate::groups::{Group, Groups, keep_largest};
use crate::prefixes::Prefixes;

/// What stands for the callers of sites that are not told apart.
pub(crate) const FOLDED: &str = "(sites too small to show)";

/// Sites of functions below callers that are shown; further ones have no callers.
const MOST_FOLDED: usize = 1_000;

/// A stack of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// The innermost frame's node.
    pub node: u32,
    /// The node of the frame that is charged.
    pub charged: u32,
    /// Index into [`Sites::heaps`].
    pub heap: u32,
}

/// A frame on top of its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub parent: u32,
    pub function: u32,
    /// Index into [`Sites::places`], or [`NONE`].
    pub place: u32,
}

/// The sites of one profile, or of two that are compared.
#[derive(Default)]
pub(crate) struct Sites {
    pub sites: Vec<Site>,
    /// Parents come first.
    pub nodes: Numbering<Node>,
    /// Name and module of each function.
    pub functions: Vec<(String, u32)>,
    pub modules: Vec<String>,
    /// File and line.
    pub places: Vec<(u32, u32)>,
    pub files: Vec<String>,
    pub heaps: Vec<String>,
    /// How many there were before the smallest were folded.
    pub in_all: usize,
    known: Known,
}

/// What a frame shows.
#[derive(Clone, Copy)]
struct Called {
    function: u32,
    place: u32,
}

#[derive(Default)]
struct Known {
    functions: FxHashMap<(String, u32), u32>,
    modules: FxHashMap<String, u32>,
    places: FxHashMap<(u32, u32), u32>,
    files: FxHashMap<String, u32>,
    heaps: FxHashMap<String, u32>,
    /// By the node of their callers, function and heap.
    folded: FxHashMap<(u32, u32, u32), u32>,
}

impl Sites {
    /// The sites of some profiles, and for each of them that of each sample. If there are more than `most`, the smallest
    /// become one for each function and heap below the beginnings of stacks that most of them share ([`Prefixes`]). Every
    /// sum but those of callers stays what it is.
    pub fn of(profiles: &[&Profile], most: usize) -> (Self, Vec<Vec<u32>>) {
        let mut groups: Vec<Groups> = profiles.iter().map(|it| Groups::of(it)).collect();
        let mut sites = Self {
            in_all: groups.iter().map(|it| it.groups.len()).sum(),
            ..Self::default()
        };
        keep_largest(&mut groups, most);
        let added = groups.into_iter().zip(profiles);
        let of_samples = added
            .map(|(groups, profile)| sites.add(profile, groups))
            .collect();
        (sites, of_samples)
    }

    /// Returns the site of each sample.
    fn add(&mut self, profile: &Profile, groups: Groups) -> Vec<u32> {
        let frames = Frames::of(profile);
        let of_frame: Vec<Called> = (frames.all().iter())
            .map(|frame| {
                let module = text(&mut self.known.modules, &mut self.modules, &frame.module);
                let place = match &frame.file {
                    Some(file) if frame.line > 0 => self.place(file, frame.line),
                    _ => NONE,
                };
                Called {
                    function: self.function(&frame.label(), module),
                    place,
                }
            })
            .collect();
        let is_folded = groups.folded().next().is_some();
        let prefixes = is_folded.then(|| Prefixes::of(profile, &groups));
        // By the profile's number: ours, or [`NONE`] for one that was not looked for.
        let mut known = vec![NONE; profile.stacks.count() as usize + 1];
        let mut stack: Vec<FrameId> = Vec::new();
        let site_of = |group: &Group| {
            let sample = &profile.samples.at(group.first as usize);
            let name = heaps::name(profile, sample.heap);
            let heap = text(&mut self.known.heaps, &mut self.heaps, name);
            let charged = frames.charged_to(sample, &mut stack);
            if !group.is_kept {
                let called = charged.map(|(_, id)| of_frame[id.index()]);
                let callers = frames.caller_of(sample.stack, charged.map_or(0, |(depth, _)| depth));
                let callers = prefixes
                    .as_ref()
                    .map_or(StackId::EMPTY, |it| it.of_stack(profile, callers));
                let callers = self.node_of(&frames, &of_frame, &mut known, callers);
                return self.folded(callers, called, heap);
            }
            let node = self.node_of(&frames, &of_frame, &mut known, sample.stack);
            let charged = charged.and_then(|(depth, _)| self.way(node).nth(depth));
            let charged = charged.unwrap_or(NONE);
            self.sites.push(Site {
                node,
                charged,
                heap,
            });
            number(self.sites.len() - 1)
        };
        let of_group: Vec<u32> = groups.groups.iter().map(site_of).collect();
        let mut of_sample = groups.of_sample;
        for it in &mut of_sample {
            *it = of_group[*it as usize];
        }
        of_sample
    }

    /// The site of those that are charged to a function below this node and are not told apart.
    fn folded(&mut self, below: u32, charged: Option<Called>, heap: u32) -> u32 {
        let function = charged.map_or(NONE, |it| it.function);
        let key = (below, function, heap);
        if let Some(&known) = self.known.folded.get(&key) {
            return known;
        }
        if self.known.folded.len() >= MOST_FOLDED && below != NONE {
            // However many functions there are: those left have no callers that are shown.
            return self.folded(NONE, charged, heap);
        }
        let module = text(&mut self.known.modules, &mut self.modules, "");
        let callers = Called {
            function: self.function(FOLDED, module),
            place: NONE,
        };
        let node = charged.map_or(NONE, |charged| {
            let callers = self.node(below, callers);
            self.node(callers, charged)
        });
        let next = number(self.sites.len());
        self.sites.push(Site {
            node,
            charged: node,
            heap,
        });
        self.known.folded.insert(key, next);
        next
    }

    /// The function that a site is charged to.
    pub fn function_of(&self, site: &Site) -> u32 {
        self.nodes
            .values()
            .get(site.charged as usize)
            .map_or(NONE, |node| node.function)
    }

    /// Nodes from one to its root.
    pub fn path(&self, node: u32) -> impl Iterator<Item = &Node> {
        self.way(node)
            .map(|node| &self.nodes.values()[node as usize])
    }

    /// The same by number.
    fn way(&self, node: u32) -> impl Iterator<Item = u32> {
        let there = |node: u32| ((node as usize) < self.nodes.values().len()).then_some(node);
        let caller = move |node: &u32| there(self.nodes.values()[*node as usize].parent);
        std::iter::successors(there(node), caller)
    }

    fn function(&mut self, name: &str, module: u32) -> u32 {
        let next = number(self.functions.len());
        *self
            .known
            .functions
            .entry((name.to_owned(), module))
            .or_insert_with_key(|key| {
                self.functions.push(key.clone());
                next
            })
    }

    fn place(&mut self, file: &str, line: u32) -> u32 {
        let file = text(&mut self.known.files, &mut self.files, file);
        let next = number(self.places.len());
        *self
            .known
            .places
            .entry((file, line))
            .or_insert_with_key(|place| {
                self.places.push(*place);
                next
            })
    }

    fn node(&mut self, parent: u32, called: Called) -> u32 {
        let Called { function, place } = called;
        self.nodes.number(Node {
            parent,
            function,
            place,
        })
    }

    /// The node of a stack. Each node of the profile's own tree is looked for once: a look costs a cache miss or two, and
    /// there are far fewer nodes than frames of all stacks.
    fn node_of(
        &mut self,
        frames: &Frames<'_>,
        of_frame: &[Called],
        known: &mut [u32],
        stack: StackId,
    ) -> u32 {
        // Upwards to a node that is known, or to none; then down again.
        let mut new = Vec::new();
        let (mut at, mut node) = (stack, NONE);
        while let Some((parent, inlined)) = frames.node(at) {
            node = known[at.0 as usize];
            if node != NONE {
                break;
            }
            new.push((at, inlined));
            at = parent;
        }
        for (stack, inlined) in new.into_iter().rev() {
            let inlined = inlined.iter().rev();
            node = inlined.fold(node, |node, id| self.node(node, of_frame[id.index()]));
            known[stack.0 as usize] = node;
        }
        node
    }
}

/// The number of a text, which is made if it is new.
fn text(known: &mut FxHashMap<String, u32>, all: &mut Vec<String>, wanted: &str) -> u32 {
    if let Some(&found) = known.get(wanted) {
        return found;
    }
    let next = number(all.len());
    all.push(wanted.to_owned());
    known.insert(wanted.to_owned(), next);
    next
}

pub(crate) fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(NONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{Location, ModuleId, Sample, SampleFlags, StackNode};
    use allocsample_report::charged_frame;

    fn random() -> Profile {
        let mut profile = Profile::default();
        let mut state: u32 = 1;
        let mut below = |bound: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % bound
        };
        for nodes in 0..400 {
            let location = Location {
                module: ModuleId::NONE,
                offset: u64::from(below(30)),
            };
            let parent = StackId(below(nodes + 1));
            profile.stacks.push(StackNode { parent, location });
        }
        for _ in 0..600 {
            profile.samples.push(Sample {
                stack: StackId(below(401)),
                flags: SampleFlags(below(4) as u16),
                ..Sample::default()
            });
        }
        profile.end_stacks_without_root();
        profile
    }

    #[test]
    fn a_sites_nodes_are_the_frames_of_its_stack() {
        let profile = random();
        let (sites, of_samples) = Sites::of(&[&profile], usize::MAX);
        let nodes = sites.nodes.values();
        let name = |node: u32| {
            let (name, _) = &sites.functions[nodes[node as usize].function as usize];
            name.as_str()
        };
        for (sample, site) in profile.samples.iter().zip(&of_samples[0]) {
            let site = sites.sites[*site as usize];
            let there = |node: u32| Some(node).filter(|it| *it != NONE);
            let parent = |node: &u32| there(nodes[*node as usize].parent);
            let path = std::iter::successors(there(site.node), parent);
            let names: Vec<&str> = path.map(name).collect();
            let frames = profile.stack_frames(&sample);
            let expected: Vec<&str> = frames.iter().map(|it| it.function.as_str()).collect();
            assert_eq!(names, expected);
            let charged = charged_frame(&profile, sample.heap, &frames);
            let expected = charged.map(|frame| frame.function.as_str());
            assert_eq!((site.charged != NONE).then(|| name(site.charged)), expected);
        }
        // Each node once, behind its parent.
        let mut known = std::collections::HashSet::new();
        for (at, node) in nodes.iter().enumerate() {
            assert!(node.parent == NONE || (node.parent as usize) < at);
            assert!(known.insert(*node));
        }
    }

    #[test]
    fn folded_sites_are_charged_to_the_same_function() {
        let profile = random();
        let (all, of_all) = Sites::of(&[&profile], usize::MAX);
        let (few, of_few) = Sites::of(&[&profile, &profile], 40);
        assert_eq!(few.in_all, 2 * all.in_all);
        let names = |sites: &Sites, node: u32| -> Vec<String> {
            let name = |node: &Node| sites.functions[node.function as usize].0.clone();
            sites.path(node).map(name).collect()
        };
        let mut kept = std::collections::HashSet::new();
        let mut longest = 0;
        for of_few in &of_few {
            for (of_all, of_few) in of_all[0].iter().zip(of_few) {
                let (full, folded) = (all.sites[*of_all as usize], few.sites[*of_few as usize]);
                let (charged, path) = (names(&all, full.charged), names(&few, folded.node));
                assert_eq!(
                    all.heaps[full.heap as usize],
                    few.heaps[folded.heap as usize]
                );
                match path.get(1).is_some_and(|caller| caller == FOLDED) {
                    true => {
                        assert_eq!(path[0], charged[0]);
                        // What is left of the callers is where the whole stack begins.
                        assert!(names(&all, full.node).ends_with(&path[2..]));
                        longest = longest.max(path.len());
                    }
                    false => {
                        assert_eq!(path, names(&all, full.node));
                        assert_eq!(names(&few, folded.charged), charged);
                        kept.insert(of_few);
                    }
                }
            }
        }
        assert_eq!(kept.len(), 40);
        assert!(longest > 3);
    }
}
