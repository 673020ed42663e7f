//! Stacks by number: functions and places once, stacks as a tree.

use allocsample_profile::{HeapId, Profile, StackId, missing_root};
use allocsample_report::{FrameId, Frames, heaps};
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
    pub nodes: Vec<Node>,
    /// Name and module of each function.
    pub functions: Vec<(String, u32)>,
    pub modules: Vec<String>,
    /// File and line.
    pub places: Vec<(u32, u32)>,
    pub files: Vec<String>,
    pub heaps: Vec<String>,
    known: Known,
}

#[derive(Default)]
struct Known {
    nodes: FxHashMap<Node, u32>,
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
        let mut stack: Vec<FrameId> = Vec::new();
        let mut of_sample = Vec::with_capacity(profile.samples.len());
        for sample in &profile.samples {
            let key = (sample.stack, missing_root(sample), sample.heap);
            if let Some(&site) = numbers.get(&key) {
                of_sample.push(site);
                continue;
            }
            frames.fill(sample, &mut stack);
            let charged = frames.charged(sample.heap, &stack);
            let mut site = Site {
                node: NONE,
                charged: NONE,
                heap: text(
                    &mut self.known.heaps,
                    &mut self.heaps,
                    heaps::name(profile, sample.heap),
                ),
            };
            for (depth, id) in stack.iter().enumerate().rev() {
                let (function, place) = of_frame[id.index()];
                site.node = self.node(Node {
                    parent: site.node,
                    function,
                    place,
                });
                if charged == Some(depth) {
                    site.charged = site.node;
                }
            }
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
        let root = self.node(Node {
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
            let charged = self.nodes.get(site.charged as usize).copied();
            let function = charged.map_or(NONE, |node| node.function);
            let place = *by_function.entry((function, site.heap)).or_insert(next);
            if place == next {
                let node = match charged {
                    Some(node) => self.node(Node {
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
        let mut is_used = vec![false; self.nodes.len()];
        for site in &self.sites {
            if let Some(used) = is_used.get_mut(site.node as usize) {
                *used = true;
            }
        }
        for index in (0..self.nodes.len()).rev() {
            let parent = self.nodes[index].parent;
            if is_used[index] && parent != NONE {
                is_used[parent as usize] = true;
            }
        }
        let mut numbers = vec![NONE; self.nodes.len()];
        let renumbered = |numbers: &[u32], node: u32| numbers.get(node as usize).copied();
        let mut nodes = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            if is_used[index] {
                numbers[index] = number(nodes.len());
                let parent = renumbered(&numbers, node.parent).unwrap_or(NONE);
                nodes.push(Node { parent, ..*node });
            }
        }
        for site in &mut self.sites {
            site.node = renumbered(&numbers, site.node).unwrap_or(NONE);
            site.charged = renumbered(&numbers, site.charged).unwrap_or(NONE);
        }
        self.nodes = nodes;
        self.known.nodes = FxHashMap::default();
    }

    /// The function that a site is charged to.
    pub fn function_of(&self, site: &Site) -> u32 {
        self.nodes
            .get(site.charged as usize)
            .map_or(NONE, |node| node.function)
    }

    /// Nodes from one to its root.
    pub fn path(&self, node: u32) -> impl Iterator<Item = &Node> {
        let at = |node: u32| self.nodes.get(node as usize);
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

    fn node(&mut self, node: Node) -> u32 {
        let next = number(self.nodes.len());
        *self.known.nodes.entry(node).or_insert_with_key(|node| {
            self.nodes.push(*node);
            next
        })
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
