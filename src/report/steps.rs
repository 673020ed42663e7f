//! Numbers for the steps from a path to the next one, of which there are millions.

use rustc_hash::FxHashMap;

use crate::numbering::NONE;

/// Steps on from one path that are looked at one after the other; a map has the others.
const FEW: usize = 8;

/// Gives each different step a number, from 0 in the order of their first appearance. Stacks come with their neighbours, and
/// most paths go on in a few ways: those are beside what was looked at just before, where a place in a hash table is one
/// more that the processor's caches do not have.
#[derive(Debug)]
pub(crate) struct Steps {
    /// By number: the path that it goes on from, and its name. The path that it leads to is its number plus one; the empty
    /// path is 0.
    steps: Vec<(u32, u32)>,
    /// For each path the step from it that came last, but for those in `others`.
    last: Vec<u32>,
    /// For each step the one from the same path that came before it.
    before: Vec<u32>,
    others: FxHashMap<(u32, u32), u32>,
}

impl Steps {
    /// None yet, with room for so many.
    pub(crate) fn for_steps(count: usize) -> Self {
        let mut last = Vec::with_capacity(count + 1);
        last.push(NONE);
        Self {
            steps: Vec::with_capacity(count),
            last,
            before: Vec::with_capacity(count),
            others: FxHashMap::default(),
        }
    }

    /// The number of a step; the next one if it is new. The path must be there.
    pub(crate) fn number(&mut self, path: u32, name: u32) -> u32 {
        let last = self.last[path as usize];
        let (mut at, mut looked_at) = (last, 0);
        while at != NONE {
            if self.steps[at as usize].1 == name {
                return at;
            }
            at = self.before[at as usize];
            looked_at += 1;
        }
        // There are no more of them than fit into memory beside a profile, whose own numbers have 32 bits.
        let new = self.steps.len() as u32;
        if looked_at < FEW {
            self.last[path as usize] = new;
        } else {
            let known = *self.others.entry((path, name)).or_insert(new);
            if known != new {
                return known;
            }
        }
        self.steps.push((path, name));
        self.before.push(if looked_at < FEW { last } else { NONE });
        self.last.push(NONE);
        new
    }

    /// All of them, by number.
    pub(crate) fn all(&self) -> &[(u32, u32)] {
        &self.steps
    }

    /// All of them, by number.
    pub(crate) fn into_all(self) -> Vec<(u32, u32)> {
        self.steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_sampling::Random;
    use std::collections::HashMap;

    #[test]
    fn numbers_are_those_that_a_map_would_give() {
        let (mut steps, mut expected) = (Steps::for_steps(10), HashMap::new());
        let mut random = Random::from_seed(4);
        for _ in 0..50_000 {
            // The first paths go on in many ways.
            let path = random.below(1 + expected.len().min(2000) as u64) as u32;
            let name = random.below(if path < 5 { 100 } else { 12 }) as u32;
            let next = expected.len() as u32;
            let known = *expected.entry((path, name)).or_insert(next);
            assert_eq!(steps.number(path, name), known);
        }
        assert!(!steps.others.is_empty() && steps.others.len() < expected.len() / 2);
        assert_eq!(steps.all().len(), expected.len());
        for (number, step) in (0..).zip(steps.into_all()) {
            assert_eq!(expected[&step], number);
        }
    }
}
