//! Stacks as a tree.

use std::collections::HashMap;

use allocsample_record::{Location, StackId, StackNode};

use crate::limits::make_room;

/// All stacks of a profile. A node takes 8 bytes: there are millions, and a few thousand places that call.
#[derive(Clone, Debug, Default)]
pub struct StackTable {
    /// Parents, and indices into `places`.
    nodes: Vec<(StackId, u32)>,
    places: Vec<Location>,
    /// Hashed with a random seed: locations come from a file, which may be made so that they collide.
    numbers: HashMap<Location, u32, foldhash::fast::RandomState>,
}

impl StackTable {
    /// Adds a node; its parent must be there.
    pub fn push(&mut self, node: StackNode) -> StackId {
        let place = self.place_number(node.location);
        self.push_at(node.parent, place)
    }

    /// A table with the same places, and without stacks.
    pub(crate) fn without_nodes(&self) -> Self {
        Self {
            nodes: Vec::with_capacity(self.nodes.len()),
            places: self.places.clone(),
            numbers: self.numbers.clone(),
        }
    }

    /// Adds a node at a place that has a number.
    pub(crate) fn push_at(&mut self, parent: StackId, place: u32) -> StackId {
        make_room(&mut self.nodes, 1);
        self.nodes.push((parent, place));
        StackId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX))
    }

    /// The number of a place, which becomes a new one unless it is known.
    pub(crate) fn place_number(&mut self, location: Location) -> u32 {
        let places = &mut self.places;
        *self.numbers.entry(location).or_insert_with(|| {
            places.push(location);
            // A number of things in memory, which 32 bits are enough for.
            u32::try_from(places.len() - 1).unwrap_or(u32::MAX)
        })
    }

    /// All nodes; the number of one is its place here plus one.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = StackNode> + '_ {
        let node = |&(parent, place): &(StackId, u32)| StackNode {
            parent,
            location: self.places[place as usize],
        };
        self.nodes.iter().map(node)
    }

    /// The locations of all nodes, each once, in the order in which they first came.
    pub fn places(&self) -> &[Location] {
        &self.places
    }

    /// How many nodes there are.
    pub fn count(&self) -> u32 {
        u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)
    }

    /// The caller's stack and the index of the leaf's location in [`Self::places`]; `None` for the empty stack.
    pub fn parent_and_place(&self, stack: StackId) -> Option<(StackId, u32)> {
        self.nodes.get((stack.0 as usize).checked_sub(1)?).copied()
    }

    /// The leaf's location and its caller's stack; `None` for the empty stack.
    pub fn node(&self, stack: StackId) -> Option<StackNode> {
        let (parent, place) = self.parent_and_place(stack)?;
        let location = *self.places.get(place as usize)?;
        Some(StackNode { parent, location })
    }

    /// Locations of a stack, leaf first.
    pub fn locations(&self, stack: StackId) -> impl Iterator<Item = Location> + '_ {
        std::iter::successors(self.node(stack), |node| self.node(node.parent))
            .map(|node| node.location)
    }
}
