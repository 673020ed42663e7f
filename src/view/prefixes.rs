//! The beginnings of stacks that stay visible where their sites are too small to show.

use allocsample_profile::{Profile, StackId};

use crate::groups::Groups;

/// More would make more cells than the page has room for: each is a site of many samples.
const MOST_SHOWN: usize = 128;

/// Which stacks of a profile stand for those that go on from them.
pub(crate) struct Prefixes {
    /// By number of the stack.
    is_shown: Vec<bool>,
}

impl Prefixes {
    /// The heaviest by what is in sites that are not kept.
    pub fn of(profile: &Profile, groups: &Groups) -> Self {
        let mut weights = vec![0.0; profile.stacks.count() as usize + 1];
        for (group, weight) in groups.folded() {
            let stack = profile.samples.at(group.first as usize).stack;
            weights[stack.0 as usize] += weight;
        }
        // Callers come first: each has its own sum when it is its turn.
        for stack in (1..=profile.stacks.count()).rev() {
            let parent = profile.stacks.parent_and_place(StackId(stack));
            let parent = parent.map_or(StackId::EMPTY, |(parent, _)| parent);
            weights[parent.0 as usize] += weights[stack as usize];
        }
        let mut heaviest: Vec<u32> = (0u32..).take(weights.len()).collect();
        if heaviest.len() > MOST_SHOWN {
            // Of equal ones the first: callers come first.
            heaviest.select_nth_unstable_by(MOST_SHOWN, |&a, &b| {
                let (of_a, of_b): (f64, f64) = (weights[a as usize], weights[b as usize]);
                of_b.total_cmp(&of_a).then(a.cmp(&b))
            });
            heaviest.truncate(MOST_SHOWN);
        }
        let mut is_shown = vec![false; weights.len()];
        for stack in heaviest {
            is_shown[stack as usize] = true;
        }
        Self { is_shown }
    }

    /// The longest beginning of this stack that is shown; the empty one if none is.
    pub fn of_stack(&self, profile: &Profile, stack: StackId) -> StackId {
        let mut at = stack;
        while at != StackId::EMPTY && !self.is_shown[at.0 as usize] {
            let parent = profile.stacks.parent_and_place(at);
            at = parent.map_or(StackId::EMPTY, |(parent, _)| parent);
        }
        at
    }
}
