//! The stacks of a view, by index.

use allocsample_profile::{StackId, StackTable};

use super::{Stack, StackIndex};

/// The profile's own stacks, and behind them those whose root is missing. Parents come before their children.
#[derive(Debug)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct Stacks<'a> {
    /// Its places have the same indices as the view's locations.
    pub(crate) table: Option<&'a StackTable>,
    pub(crate) more: Vec<Stack>,
}

impl Stacks<'_> {
    fn of_profile(&self) -> usize {
        self.table.map_or(0, |table| table.count() as usize)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.of_profile() + self.more.len()
    }

    /// The stack with this index.
    pub fn get(&self, index: StackIndex) -> Stack {
        // Those of the profile count from 1.
        let in_profile = u32::try_from(index + 1).ok().map(StackId);
        let known = in_profile.and_then(|id| self.table?.parent_and_place(id));
        match known {
            Some((parent, place)) => Stack {
                parent: (parent.0 as usize).checked_sub(1),
                location: place as usize,
            },
            None => self.more[index - self.of_profile()],
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Stack> + '_ {
        (0..self.len()).map(|index| self.get(index))
    }
}
