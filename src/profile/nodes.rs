//! Finds stack nodes that are there already, by parent and location.
//!
//! A writer of bounded memory writes many nodes more than once: a large profile of random stacks has 17 times as many in
//! its file as it has stacks. Looking for them takes long, and most of that is waiting for memory: there are more nodes than
//! fit into the processor's caches, and a node can only be looked for when its parent was found. So the nodes of a chunk are
//! looked for in the order of their depth. Those of one depth do not wait for each other, and the processor fetches what many
//! of them need at the same time.
//!
//! A node's children are a list, in the order in which they came. A new node mostly has a parent that is new too, whose list
//! is empty and in the processor's cache: it costs no look at memory, as it would in a table with all nodes.

use std::collections::HashMap;

use allocsample_record::{StackId, StackNode};

use crate::limits::make_room;
use crate::stacks::StackTable;

/// What is known of a node beside its place and parent; 0 is none.
#[derive(Clone, Copy, Debug, Default)]
struct Links {
    first_child: u32,
    next_sibling: u32,
}

/// The lists of children.
#[derive(Debug, Default)]
pub(crate) struct NodeIndex {
    /// Of each stack; the empty one is the first.
    links: Vec<Links>,
    /// Children by parent and place where a list has [`LONGEST`] of them: a dispatcher can have thousands. Hashed with a
    /// random seed, as a file may be made so that they collide.
    others: HashMap<(StackId, u32), StackId, foldhash::fast::RandomState>,
    depths: Depths,
}

/// So many children are looked at one by one.
const LONGEST: usize = 8;

/// The nodes of a batch by their depth, as far as it is known from the batch alone.
#[derive(Debug, Default)]
struct Depths {
    /// For each node how many of its callers are in the same batch.
    of_node: Vec<u32>,
    /// The nodes by their depths, and where those of each depth end.
    order: Vec<u32>,
    ends: Vec<u32>,
    /// For each node the number of its place.
    places: Vec<u32>,
}

/// What stands for a stack that was not found yet.
const UNKNOWN: StackId = StackId(u32::MAX);

/// What a search has found.
enum Search {
    Found(StackId),
    /// It is not there. Its list ends with this child; 0 is none.
    Behind(u32),
    /// It is not there, and its list is full.
    Full,
}

impl NodeIndex {
    /// The stack of this node, which becomes a new one of `stacks` unless it is known.
    pub(crate) fn intern(&mut self, stacks: &mut StackTable, node: StackNode) -> StackId {
        let place = stacks.place_number(node.location);
        self.intern_at(stacks, node.parent, place)
    }

    /// Adds the stacks of nodes as a file has them to `numbers`, which has those of all nodes before them. Parents are
    /// numbers of the file, from 1, and come before their children.
    pub(crate) fn intern_all(
        &mut self,
        stacks: &mut StackTable,
        nodes: &[StackNode],
        numbers: &mut Vec<StackId>,
    ) {
        let mut depths = std::mem::take(&mut self.depths);
        depths.places.clear();
        let places = nodes.iter().map(|node| stacks.place_number(node.location));
        depths.places.extend(places);
        let before = numbers.len();
        depths.sort(nodes, before);
        make_room(numbers, nodes.len());
        numbers.resize(before + nodes.len(), UNKNOWN);
        for &node in &depths.order {
            let node = node as usize;
            let parent = stack_of(numbers, nodes[node].parent);
            if parent != UNKNOWN
                && let Search::Found(stack) = self.find(stacks, parent, depths.places[node])
            {
                numbers[before + node] = stack;
            }
        }
        // The others are new. They come in the order of the file, so that a stack's nodes are neighbours.
        for (number, (node, &place)) in nodes.iter().zip(&depths.places).enumerate() {
            if numbers[before + number] == UNKNOWN {
                let parent = stack_of(numbers, node.parent);
                numbers[before + number] = self.intern_at(stacks, parent, place);
            }
        }
        self.depths = depths;
    }

    fn intern_at(&mut self, stacks: &mut StackTable, parent: StackId, place: u32) -> StackId {
        let last = match self.find(stacks, parent, place) {
            Search::Found(stack) => return stack,
            Search::Behind(last) => Some(last),
            Search::Full => None,
        };
        let stack = stacks.push_at(parent, place);
        let count = stack.0 as usize + 1;
        let more = count.saturating_sub(self.links.len());
        make_room(&mut self.links, more);
        self.links.resize(count, Links::default());
        match last {
            Some(0) => self.links[parent.0 as usize].first_child = stack.0,
            Some(last) => self.links[last as usize].next_sibling = stack.0,
            None => {
                self.others.insert((parent, place), stack);
            }
        }
        stack
    }

    #[inline]
    fn find(&self, stacks: &StackTable, parent: StackId, place: u32) -> Search {
        let mut last = 0;
        let mut child = (self.links.get(parent.0 as usize)).map_or(0, |links| links.first_child);
        for _ in 0..LONGEST {
            let Some((_, known)) = stacks.parent_and_place(StackId(child)) else {
                return Search::Behind(last);
            };
            if known == place {
                return Search::Found(StackId(child));
            }
            (last, child) = (child, self.links[child as usize].next_sibling);
        }
        match self.others.get(&(parent, place)) {
            Some(&stack) => Search::Found(stack),
            None => Search::Full,
        }
    }
}

impl Depths {
    /// Of nodes that come behind so many others.
    fn sort(&mut self, nodes: &[StackNode], before: usize) {
        self.of_node.clear();
        self.ends.clear();
        for node in nodes {
            let parent = (node.parent.0 as usize).checked_sub(before + 1);
            let depth = parent.map_or(0, |parent| self.of_node[parent] + 1);
            self.of_node.push(depth);
            if self.ends.len() <= depth as usize {
                self.ends.resize(depth as usize + 1, 0);
            }
            self.ends[depth as usize] += 1;
        }
        // From how many there are of each depth to where those begin; they end where the next begin.
        let mut start = 0;
        for end in &mut self.ends {
            start += std::mem::replace(end, start);
        }
        self.order.clear();
        self.order.resize(nodes.len(), 0);
        for (node, &depth) in (0..).zip(&self.of_node) {
            let end = &mut self.ends[depth as usize];
            self.order[*end as usize] = node;
            *end += 1;
        }
    }
}

/// The stack with this number of the file. The decoder has checked that it is there.
pub(crate) fn stack_of(numbers: &[StackId], number: StackId) -> StackId {
    let index = (number.0 as usize).checked_sub(1);
    let stack = index.and_then(|index| numbers.get(index));
    stack.copied().unwrap_or(StackId::EMPTY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_record::{Location, ModuleId};
    use proptest::prelude::*;

    fn location(offset: u64) -> Location {
        let module = ModuleId(1);
        Location { module, offset }
    }

    proptest! {
        #[test]
        fn many_at_once_are_the_same_as_one_by_one(
            chunks in proptest::collection::vec(proptest::collection::vec((any::<prop::sample::Index>(), 0u64..12), 0..200), 1..5),
        ) {
            let (mut index, mut stacks, mut numbers) = (NodeIndex::default(), StackTable::default(), vec![]);
            let (mut known, mut expected) = (HashMap::new(), vec![]);
            for chunk in chunks {
                let nodes: Vec<StackNode> = chunk.iter().zip(numbers.len()..).map(|((parent, offset), number)| {
                    // Some parents have more children than a list holds.
                    let parent = StackId(parent.index(number + 1) as u32 % 50);
                    StackNode { parent, location: location(*offset) }
                }).collect();
                index.intern_all(&mut stacks, &nodes, &mut numbers);
                for node in nodes {
                    let parent = stack_of(&expected, node.parent);
                    let next = StackId(known.len() as u32 + 1);
                    expected.push(*known.entry((parent, node.location.offset)).or_insert(next));
                }
            }
            prop_assert_eq!(&numbers, &expected);
            prop_assert_eq!(stacks.count() as usize, known.len());
            for (&(parent, offset), &stack) in &known {
                let node = StackNode { parent, location: location(offset) };
                prop_assert_eq!(stacks.node(stack), Some(node));
                prop_assert_eq!(index.intern(&mut stacks, node), stack);
            }
        }
    }

    #[test]
    fn many_nodes_have_many_numbers() {
        let (mut index, mut stacks) = (NodeIndex::default(), StackTable::default());
        for round in 0..2 {
            for number in 0..100_000u32 {
                let node = StackNode {
                    parent: StackId(number / 3),
                    location: location(u64::from(number % 3)),
                };
                let stack = index.intern(&mut stacks, node);
                assert_eq!(stack, StackId(number + 1), "{round}");
            }
        }
    }
}
