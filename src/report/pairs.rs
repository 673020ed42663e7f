//! Numbers for things that samples have in common: found without a search for most of them.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// No kind, and no number.
const NONE: u32 = u32::MAX;

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
        let next = u32::try_from(self.numbers.len()).unwrap_or(NONE);
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

/// Values for pairs of a thing with a small number (a stack, a path) and a kind of it. Most things have one kind: they take
/// 8 bytes, and are found at once.
#[derive(Debug, Default)]
pub struct Pairs {
    /// For each thing the first kind of it that has a value, and that; [`NONE`] is no kind.
    first: Vec<(u32, u32)>,
    others: FxHashMap<(u32, u32), u32>,
}

impl Pairs {
    /// None yet, with room for things below `count`: what grows by steps leaves holes in memory behind it.
    pub fn with_room(count: usize) -> Self {
        Self {
            first: Vec::with_capacity(count),
            others: FxHashMap::default(),
        }
    }

    /// The value of a pair.
    pub fn get(&self, thing: u32, kind: u32) -> Option<u32> {
        match *self.first.get(thing as usize)? {
            (first, value) if first == kind => Some(value),
            (NONE, _) => None,
            _ => self.others.get(&(thing, kind)).copied(),
        }
    }

    /// Adds a value that is not there.
    pub fn insert(&mut self, thing: u32, kind: u32, value: u32) {
        if self.first.len() <= thing as usize {
            self.first.resize(thing as usize + 1, (NONE, NONE));
        }
        match &mut self.first[thing as usize] {
            first @ (NONE, _) => *first = (kind, value),
            _ => {
                self.others.insert((thing, kind), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_sampling::Random;
    use std::collections::HashMap;

    #[test]
    fn pairs_have_the_values_that_they_were_given() {
        let (mut pairs, mut expected) = (Pairs::with_room(10), HashMap::new());
        let mut random = Random::from_seed(7);
        for value in 0..10_000 {
            // Most things have one kind.
            let thing = random.below(3000) as u32;
            let kind = (random.below(10) as u32).saturating_sub(7);
            let known = expected.get(&(thing, kind)).copied();
            assert_eq!(pairs.get(thing, kind), known);
            if known.is_none() {
                pairs.insert(thing, kind, value);
                expected.insert((thing, kind), value);
            }
        }
        assert!(!pairs.others.is_empty());
        for (&(thing, kind), &value) in &expected {
            assert_eq!(pairs.get(thing, kind), Some(value));
        }
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
