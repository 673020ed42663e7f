//! Finds stack nodes that are there already, by parent and location.
//!
//! A writer of bounded memory writes many nodes more than once: a large profile of random stacks has 17 times as many in
//! its file as it has stacks. Looking for them is most of the time of reading it, and most of that is waiting for memory:
//! the table is larger than the processor's caches, and a node can only be looked for when its parent was found. So the
//! nodes of a chunk are looked for in the order of their depth. Those of one depth do not wait for each other, and the
//! processor fetches what many of them need at the same time.

use std::hash::{BuildHasher, RandomState};

use allocsample_record::{StackId, StackNode};

use crate::limits::make_room;
use crate::stacks::StackTable;

/// What is known of a node: 16 bytes, so that none lies across the border of a cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(16))]
struct Slot {
    parent: u32,
    location: u32,
    /// 0: the slot is free.
    stack: u32,
}

const _: () = assert!(size_of::<Slot>() == 16);

/// The table of nodes, open addressing with linear probing.
#[derive(Debug, Default)]
pub(crate) struct NodeIndex {
    /// A power of two of them, or none.
    slots: Vec<Slot>,
    used: usize,
    places: Places,
    mixer: Mixer,
}

/// A random odd number: a file that was made to put all its nodes into the same slots would take quadratic time to read.
#[derive(Clone, Copy, Debug)]
struct Mixer(u64);

impl Default for Mixer {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0) | 1)
    }
}

/// Working memory of [`NodeIndex::intern_all`].
#[derive(Debug, Default)]
struct Places {
    /// For each node the number of its location.
    locations: Vec<u32>,
    /// For each node how many of its callers are in the same chunk.
    depths: Vec<u32>,
    /// The nodes by their depths, and where those of each depth end.
    order: Vec<u32>,
    ends: Vec<u32>,
    /// For each node of a depth its key, and what stands where it belongs.
    keys: Vec<(u32, u32)>,
    found: Vec<Slot>,
}

/// What stands for a stack that was not found yet.
const UNKNOWN: StackId = StackId(u32::MAX);

impl NodeIndex {
    /// The stack of this node, which becomes a new one of `stacks` unless it is known.
    pub(crate) fn intern(&mut self, stacks: &mut StackTable, node: StackNode) -> StackId {
        let location = stacks.place_number(node.location);
        self.intern_at(stacks, node.parent, location)
    }

    /// Adds the stacks of nodes as a file has them to `numbers`, which has those of all nodes before them. Parents are
    /// numbers of the file, from 1, and come before their children.
    pub(crate) fn intern_all(
        &mut self,
        stacks: &mut StackTable,
        nodes: &[StackNode],
        numbers: &mut Vec<StackId>,
    ) {
        let mut places = std::mem::take(&mut self.places);
        places.locations.clear();
        let locations = nodes.iter().map(|node| stacks.place_number(node.location));
        places.locations.extend(locations);
        places.sort_by_depth(nodes, numbers.len());
        let before = numbers.len();
        make_room(numbers, nodes.len());
        numbers.resize(before + nodes.len(), UNKNOWN);
        let mut start = 0;
        for &end in &places.ends {
            let level = &places.order[start..end as usize];
            start = end as usize;
            // First all addresses, then all that is there: nothing in these two loops waits for anything else in them.
            places.keys.clear();
            places.keys.extend(level.iter().map(|&node| {
                let parent = stack_of(numbers, nodes[node as usize].parent);
                (parent.0, places.locations[node as usize])
            }));
            places.found.clear();
            let at = |&(parent, location): &(u32, u32)| self.slot(parent, location);
            let slots = places.keys.iter().map(|key| {
                let slot = self.slots.get(at(key));
                slot.copied().unwrap_or_default()
            });
            places.found.extend(slots);
            for ((&node, &(parent, location)), slot) in
                level.iter().zip(&places.keys).zip(&places.found)
            {
                let found = match slot {
                    _ if parent == UNKNOWN.0 => None,
                    slot if (slot.parent, slot.location) == (parent, location) => Some(slot.stack),
                    slot if slot.stack == 0 => None,
                    _ => self.get(parent, location),
                };
                if let Some(stack) = found.filter(|&stack| stack != 0) {
                    numbers[before + node as usize] = StackId(stack);
                }
            }
        }
        // The others are new. They come in the order of the file, so that a stack's nodes are neighbours.
        for (place, (node, &location)) in nodes.iter().zip(&places.locations).enumerate() {
            if numbers[before + place] == UNKNOWN {
                let parent = stack_of(numbers, node.parent);
                numbers[before + place] = self.intern_at(stacks, parent, location);
            }
        }
        self.places = places;
    }

    fn intern_at(&mut self, stacks: &mut StackTable, parent: StackId, location: u32) -> StackId {
        self.make_room();
        // There is a free slot: one search finds the node, or where it belongs.
        let place = self.place_of(parent.0, location).unwrap_or_default();
        let slot = &mut self.slots[place];
        if slot.stack == 0 {
            let stack = stacks.push_at(parent, location).0;
            *slot = Slot {
                parent: parent.0,
                location,
                stack,
            };
            self.used += 1;
        }
        StackId(slot.stack)
    }

    /// Where a node would like to be. The upper bits of a product depend on all of the key.
    fn slot(&self, parent: u32, location: u32) -> usize {
        let key = u64::from(parent) << 32 | u64::from(location);
        let mixed = (key ^ key >> 29).wrapping_mul(self.mixer.0);
        (mixed >> 32) as usize & self.slots.len().wrapping_sub(1)
    }

    fn get(&self, parent: u32, location: u32) -> Option<u32> {
        let slot = self.slots[self.place_of(parent, location)?];
        (slot.stack != 0).then_some(slot.stack)
    }

    /// The slot of a node, or the free one where it belongs; `None` if there are no slots.
    fn place_of(&self, parent: u32, location: u32) -> Option<usize> {
        let mut place = self.slot(parent, location);
        loop {
            let slot = self.slots.get(place)?;
            if slot.stack == 0 || (slot.parent, slot.location) == (parent, location) {
                return Some(place);
            }
            place = (place + 1) & (self.slots.len() - 1);
        }
    }

    /// Makes room for one more node.
    fn make_room(&mut self) {
        const FEWEST: usize = 1 << 10;
        // Four of five at most are in use.
        if (self.used + 1) * 5 > self.slots.len() * 4 {
            let more = (self.slots.len() * 2).max(FEWEST);
            let old = std::mem::replace(&mut self.slots, vec![Slot::default(); more]);
            for slot in old.into_iter().filter(|slot| slot.stack != 0) {
                self.put(slot);
            }
        }
    }

    fn put(&mut self, new: Slot) {
        let mut place = self.slot(new.parent, new.location);
        while self.slots[place].stack != 0 {
            place = (place + 1) & (self.slots.len() - 1);
        }
        self.slots[place] = new;
    }
}

impl Places {
    fn sort_by_depth(&mut self, nodes: &[StackNode], before: usize) {
        self.depths.clear();
        self.ends.clear();
        for node in nodes {
            let parent = (node.parent.0 as usize).checked_sub(before + 1);
            let depth = parent.map_or(0, |parent| self.depths[parent] + 1);
            self.depths.push(depth);
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
        for (node, &depth) in (0..).zip(&self.depths) {
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
    use std::collections::HashMap;

    fn location(offset: u64) -> Location {
        let module = ModuleId(1);
        Location { module, offset }
    }

    proptest! {
        #[test]
        fn many_at_once_are_the_same_as_one_by_one(
            chunks in proptest::collection::vec(proptest::collection::vec((any::<prop::sample::Index>(), 0u64..5), 0..200), 1..5),
        ) {
            let (mut index, mut stacks, mut numbers) = (NodeIndex::default(), StackTable::default(), vec![]);
            let (mut known, mut expected) = (HashMap::new(), vec![]);
            for chunk in chunks {
                let nodes: Vec<StackNode> = chunk.iter().zip(numbers.len()..).map(|((parent, offset), number)| {
                    let parent = StackId(parent.index(number + 1) as u32);
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
