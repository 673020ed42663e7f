//! Stacks by number: functions and places once, stacks as a tree.

use allocsample_profile::{HeapId, Profile, Sample, StackId, missing_root};
use allocsample_report::{FrameId, Frames, Numbering, heaps};
use rustc_hash::FxHashMap;

/// No parent, no function, no place.
pub(crate) const NONE: u32 = u32::MAX;

/// The page draws no more sites than this; the smallest of those beyond become one for each function.
const MOST_SITES: usize = 60_000;

/// What stands for the callers of sites that are not told apart.
const FOLDED: &str = "(sites too small to show)";

/// One stack may be charged differently in two heaps.
type Key = (StackId, Option<&'static str>, HeapId);

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
    known: Known,
}

/// The nodes of a profile's stacks whose root is missing for one reason, or is there.
struct Below {
    root: Option<FrameId>,
    /// By the profile's number: ours plus one, 0 for one that was not looked for.
    of_stack: Vec<u32>,
}

impl Below {
    fn new(root: Option<FrameId>) -> Self {
        let of_stack = Vec::new();
        Self { root, of_stack }
    }

    fn get(&self, stack: StackId) -> Option<u32> {
        let known = self.of_stack.get(stack.0 as usize)?;
        known.checked_sub(1)
    }

    fn set(&mut self, stack: StackId, node: u32) {
        let place = stack.0 as usize;
        if self.of_stack.len() <= place {
            self.of_stack.resize(place + 1, 0);
        }
        // A node is none only if no frame is there, and then it is asked for again.
        self.of_stack[place] = node.wrapping_add(1);
    }
}

#[derive(Default)]
struct Known {
    functions: FxHashMap<(String, u32), u32>,
    modules: FxHashMap<String, u32>,
    places: FxHashMap<(u32, u32), u32>,
    files: FxHashMap<String, u32>,
    heaps: FxHashMap<String, u32>,
}

impl Sites {
    /// Takes the stacks of a profile in; returns the site of each of its samples.
    pub fn add(&mut self, profile: &Profile) -> Vec<u32> {
        let frames = Frames::of(profile);
        let of_frame: Vec<(u32, u32)> = frames
            .all()
            .iter()
            .map(|frame| {
                let module = text(&mut self.known.modules, &mut self.modules, &frame.module);
                let function = self.function(&frame.function, module);
                let place = match &frame.file {
                    Some(file) if frame.line > 0 => {
                        let file = text(&mut self.known.files, &mut self.files, file);
                        let next = number(self.places.len());
                        *self
                            .known
                            .places
                            .entry((file, frame.line))
                            .or_insert_with_key(|place| {
                                self.places.push(*place);
                                next
                            })
                    }
                    _ => NONE,
                };
                (function, place)
            })
            .collect();
        let mut numbers: FxHashMap<Key, u32> = FxHashMap::default();
        let mut below: Vec<Below> = Vec::new();
        let mut stack: Vec<FrameId> = Vec::new();
        let mut of_sample = Vec::with_capacity(profile.samples.len());
        for sample in &profile.samples {
            let key = (sample.stack, missing_root(sample), sample.heap);
            if let Some(&site) = numbers.get(&key) {
                of_sample.push(site);
                continue;
            }
            frames.fill(sample, &mut stack);
            let node = self.node_of(&frames, &of_frame, &mut below, sample);
            let caller = |node: u32| {
                self.nodes
                    .values()
                    .get(node as usize)
                    .map_or(NONE, |it| it.parent)
            };
            let charged = frames
                .charged(sample.heap, &stack)
                .map_or(NONE, |depth| (0..depth).fold(node, |node, _| caller(node)));
            let name = heaps::name(profile, sample.heap);
            let site = Site {
                node,
                charged,
                heap: text(&mut self.known.heaps, &mut self.heaps, name),
            };
            let next = number(self.sites.len());
            self.sites.push(site);
            numbers.insert(key, next);
            of_sample.push(next);
        }
        of_sample
    }

    /// Leaves only so many sites as a page can show: the smallest become one for each function and heap, so that every
    /// sum but those of callers stays what it is. Says how many there were.
    pub fn fold(&mut self, profiles: &mut [(&Profile, &mut Vec<u32>)]) -> usize {
        let before = self.sites.len();
        if before <= MOST_SITES {
            return before;
        }
        let mut weights = vec![0.0; before];
        for (profile, of_sample) in profiles.iter() {
            for (sample, &site) in profile.samples.iter().zip(of_sample.iter()) {
                // Live bytes count twice: what leaks little by little must not disappear.
                let times = if sample.is_live() { 2.0 } else { 1.0 };
                weights[site as usize] += times * sample.size.max(1) as f64;
            }
        }
        let mut order: Vec<u32> = (0..number(before)).collect();
        order.sort_by(|&a, &b| weights[b as usize].total_cmp(&weights[a as usize]));
        let mut kept = vec![false; before];
        for &site in &order[..MOST_SITES] {
            kept[site as usize] = true;
        }
        let module = text(&mut self.known.modules, &mut self.modules, "");
        let folded = self.function(FOLDED, module);
        let root = self.nodes.number(Node {
            parent: NONE,
            function: folded,
            place: NONE,
        });
        let mut sites = Vec::new();
        let mut by_function: FxHashMap<(u32, u32), u32> = FxHashMap::default();
        let mut numbers = Vec::with_capacity(before);
        for (site, is_kept) in self.sites.clone().into_iter().zip(kept) {
            let next = number(sites.len());
            if is_kept {
                sites.push(site);
                numbers.push(next);
                continue;
            }
            let charged = self.nodes.values().get(site.charged as usize).copied();
            let function = charged.map_or(NONE, |node| node.function);
            let place = *by_function.entry((function, site.heap)).or_insert(next);
            if place == next {
                let node = match charged {
                    Some(node) => self.nodes.number(Node {
                        parent: root,
                        ..node
                    }),
                    None => NONE,
                };
                sites.push(Site {
                    node,
                    charged: node,
                    heap: site.heap,
                });
            }
            numbers.push(place);
        }
        self.sites = sites;
        for (_, of_sample) in profiles {
            for site in of_sample.iter_mut() {
                *site = numbers[*site as usize];
            }
        }
        self.drop_unused_nodes();
        before
    }

    /// Parents come first, so that one pass from the back finds all that are needed.
    fn drop_unused_nodes(&mut self) {
        let mut is_used = vec![false; self.nodes.values().len()];
        for site in &self.sites {
            if let Some(used) = is_used.get_mut(site.node as usize) {
                *used = true;
            }
        }
        for index in (0..self.nodes.values().len()).rev() {
            let parent = self.nodes.values()[index].parent;
            if is_used[index] && parent != NONE {
                is_used[parent as usize] = true;
            }
        }
        let mut numbers = vec![NONE; self.nodes.values().len()];
        let renumbered = |numbers: &[u32], node: u32| numbers.get(node as usize).copied();
        let mut nodes = Numbering::default();
        for (index, node) in self.nodes.values().iter().enumerate() {
            if is_used[index] {
                let parent = renumbered(&numbers, node.parent).unwrap_or(NONE);
                numbers[index] = nodes.number(Node { parent, ..*node });
            }
        }
        for site in &mut self.sites {
            site.node = renumbered(&numbers, site.node).unwrap_or(NONE);
            site.charged = renumbered(&numbers, site.charged).unwrap_or(NONE);
        }
        self.nodes = nodes;
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
        let at = |node: u32| self.nodes.values().get(node as usize);
        std::iter::successors(at(node), move |node| at(node.parent))
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

    /// The node of a sample's stack. Each node of the profile's own tree is looked for once: a look costs a cache miss or
    /// two, and there are far fewer nodes than frames of all stacks.
    fn node_of(
        &mut self,
        frames: &Frames<'_>,
        of_frame: &[(u32, u32)],
        below: &mut Vec<Below>,
        sample: &Sample,
    ) -> u32 {
        let root = frames.missing_root(sample);
        let known = below.iter().position(|it| it.root == root);
        let place = known.unwrap_or_else(|| {
            below.push(Below::new(root));
            below.len() - 1
        });
        let below = &mut below[place];
        // Upwards to a node that is known, or to none; then down again.
        let mut missing = Vec::new();
        let (mut at, mut node) = (sample.stack, None);
        while let Some((parent, inlined)) = frames.node(at) {
            node = below.get(at);
            if node.is_some() {
                break;
            }
            missing.push((at, inlined));
            at = parent;
        }
        let step = |sites: &mut Self, node, id: &FrameId| {
            let (function, place) = of_frame[id.index()];
            sites.nodes.number(Node {
                parent: node,
                function,
                place,
            })
        };
        let root = root.iter();
        let mut node = node.unwrap_or_else(|| root.fold(NONE, |node, id| step(self, node, id)));
        for (stack, inlined) in missing.into_iter().rev() {
            let inlined = inlined.iter().rev();
            node = inlined.fold(node, |node, id| step(self, node, id));
            below.set(stack, node);
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
    use allocsample_profile::{Location, ModuleId, SampleFlags, StackNode};
    use allocsample_report::charged_frame;

    #[test]
    fn a_sites_nodes_are_the_frames_of_its_stack() {
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
        let mut sites = Sites::default();
        let of_sample = sites.add(&profile);
        let nodes = sites.nodes.values();
        let name = |node: u32| {
            let (name, _) = &sites.functions[nodes[node as usize].function as usize];
            name.as_str()
        };
        for (sample, site) in profile.samples.iter().zip(of_sample) {
            let site = sites.sites[site as usize];
            let there = |node: u32| Some(node).filter(|it| *it != NONE);
            let parent = |node: &u32| there(nodes[*node as usize].parent);
            let path = std::iter::successors(there(site.node), parent);
            let names: Vec<&str> = path.map(name).collect();
            let frames = profile.stack_frames(sample);
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
}
