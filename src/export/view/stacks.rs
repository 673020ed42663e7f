//! The stacks of a view, by index.

use allocsample_profile::{StackId, StackTable};

use super::{Stack, StackIndex};

/// The profile's own stacks, and behind them those whose root is missing. Parents come before their children.
#[derive(Debug)]
pub(crate) struct Stacks<'a> {
    /// Its places have the same indices as the view's locations.
    table: &'a StackTable,
    more: Vec<Cut>,
}

/// A stack in 8 bytes: there may be millions.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// Index of the caller's stack plus one; 0 for none.
    parent: u32,
    location: u32,
}

impl<'a> Stacks<'a> {
    /// Those of a profile.
    pub fn new(table: &'a StackTable) -> Self {
        Self {
            table,
            more: Vec::new(),
        }
    }

    /// Adds one; its parent must be there.
    pub fn push(&mut self, stack: Stack) -> StackIndex {
        // Numbers of things in memory, which 32 bits are enough for.
        self.more.push(Cut {
            parent: stack.parent.map_or(0, |parent| parent as u32 + 1),
            location: stack.location as u32,
        });
        self.len() - 1
    }

    fn of_profile(&self) -> usize {
        self.table.count() as usize
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.of_profile() + self.more.len()
    }

    /// The stack with this index.
    pub fn get(&self, index: StackIndex) -> Stack {
        // Those of the profile count from 1.
        let in_profile = u32::try_from(index + 1).ok().map(StackId);
        let known = in_profile.and_then(|id| self.table.parent_and_place(id));
        match known {
            Some((parent, place)) => Stack {
                parent: (parent.0 as usize).checked_sub(1),
                location: place as usize,
            },
            None => {
                let Cut { parent, location } = self.more[index - self.of_profile()];
                Stack {
                    parent: (parent as usize).checked_sub(1),
                    location: location as usize,
                }
            }
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Stack> + '_ {
        (0..self.len()).map(|index| self.get(index))
    }
}
