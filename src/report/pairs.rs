//! Numbers for things that samples have in common: found without a search for most of them.

use std::hash::Hash;

use rustc_hash::FxHashMap;

use crate::numbering::NONE;

/// Numbers for keys of which one comes again and again before another does.
#[derive(Debug)]
pub struct Kinds<K> {
    last: Option<(K, u32)>,
    numbers: FxHashMap<K, u32>,
}

impl<K> Default for Kinds<K> {
    fn default() -> Self {
        Self {
            last: None,
            numbers: FxHashMap::default(),
        }
    }
}

impl<K: Copy + Eq + Hash> Kinds<K> {
    /// The number of a key: from 0 on, in the order in which they first came.
    pub fn number(&mut self, key: K) -> u32 {
        if let Some((last, number)) = self.last
            && last == key
        {
            return number;
        }
        // Numbers of things in memory, which 32 bits are enough for.
        let next = self.numbers.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        self.last = Some((key, number));
        number
    }

    /// The number of a key that has one.
    pub fn get(&self, key: K) -> Option<u32> {
        match self.last {
            Some((last, number)) if last == key => Some(number),
            _ => self.numbers.get(&key).copied(),
        }
    }
}

/// Numbers, from 0 on, for pairs of a thing with a small number (a stack, a path) and a kind of it. Most things have one kind:
/// they are found at once, and take 4 bytes each, and 4 for the pair.
#[derive(Debug, Default)]
pub struct Pairs {
    /// For each thing the number of its first pair, or [`NONE`].
    first: Vec<u32>,
    /// Of each pair.
    kinds: Vec<u32>,
    /// Further kinds of things.
    others: FxHashMap<(u32, u32), u32>,
}

impl Pairs {
    /// None yet, for things below `count`, or a few more.
    pub fn for_things(count: usize) -> Self {
        Self {
            first: vec![NONE; count],
            ..Self::default()
        }
    }

    /// The number of a pair that has one.
    pub fn get(&self, thing: u32, kind: u32) -> Option<u32> {
        let first = *self.first.get(thing as usize).filter(|&&it| it != NONE)?;
        if self.kinds[first as usize] == kind {
            return Some(first);
        }
        self.others.get(&(thing, kind)).copied()
    }

    /// The number of a pair: the next one if it is new.
    pub fn number(&mut self, thing: u32, kind: u32) -> u32 {
        if let Some(known) = self.get(thing, kind) {
            return known;
        }
        // Numbers of things in memory, which 32 bits are enough for.
        let number = self.kinds.len() as u32;
        self.kinds.push(kind);
        if self.first.len() <= thing as usize {
            self.first.resize(thing as usize + 1, NONE);
        }
        match &mut self.first[thing as usize] {
            first @ &mut NONE => *first = number,
            _ => {
                self.others.insert((thing, kind), number);
            }
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_sampling::Random;
    use std::collections::HashMap;

    #[test]
    fn pairs_have_one_number_each() {
        let (mut pairs, mut expected) = (Pairs::for_things(10), HashMap::new());
        let mut random = Random::from_seed(7);
        for _ in 0..10_000 {
            // Most things have one kind.
            let thing = random.below(3000) as u32;
            let kind = (random.below(10) as u32).saturating_sub(7);
            let known = expected.get(&(thing, kind)).copied();
            assert_eq!(pairs.get(thing, kind), known);
            let next = expected.len() as u32;
            let number = *expected.entry((thing, kind)).or_insert(next);
            assert_eq!(pairs.number(thing, kind), number);
        }
        assert!(!pairs.others.is_empty());
    }

    #[test]
    fn kinds_have_one_number_each() {
        let mut kinds = Kinds::default();
        let numbers = ["a", "a", "b", "a", "c", "b"].map(|key| kinds.number(key));
        assert_eq!(numbers, [0, 0, 1, 0, 2, 1]);
        let known = ["c", "b", "d"].map(|key| kinds.get(key));
        assert_eq!(known, [Some(2), Some(1), None]);
    }
}
