//! Numbers for small values of which there are millions, many of them more than once.

use std::hash::{BuildHasher, Hash};

use rustc_hash::FxBuildHasher;

/// In a table of numbers: none. It is not 0, so that a table is written when it is made: of one that the kernel gave as zeroes,
/// a page that is read before it is written costs a second fault, and a signal to every processor that the program runs on.
pub const NONE: u32 = u32::MAX;

/// Gives each different value a number, from 0 in the order of their first appearance. The table has numbers alone, so that
/// a larger one is made without the one before, and a value that is new costs one look at memory.
#[derive(Debug)]
pub struct Numbering<T> {
    values: Vec<T>,
    /// Numbers, or [`NONE`]: open addressing with linear probing. A power of two of them, or none.
    slots: Vec<u32>,
}

impl<T> Default for Numbering<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            slots: Vec::new(),
        }
    }
}

impl<T: Copy + Eq + Hash> Numbering<T> {
    /// The number of a value.
    pub fn number(&mut self, value: T) -> u32 {
        // Three of four at most are in use.
        if (self.values.len() + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }
        let mut place = self.place(&value);
        loop {
            match self.slots[place] {
                NONE => break,
                known if self.values[known as usize] == value => return known,
                _ => place = self.behind(place),
            }
        }
        // There are no more of them than fit into memory beside a profile, whose own numbers have 32 bits.
        let new = u32::try_from(self.values.len()).unwrap_or(NONE);
        self.values.push(value);
        self.slots[place] = new;
        new
    }

    /// All values, by number.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// All values, by number.
    pub fn into_values(self) -> Vec<T> {
        self.values
    }

    fn grow(&mut self) {
        const FEWEST: usize = 1 << 10;
        let slots = (self.slots.len() * 2).max(FEWEST);
        self.slots = Vec::new();
        self.slots = vec![NONE; slots];
        for (number, value) in (0..).zip(&self.values) {
            let mut place = self.place(value);
            while self.slots[place] != NONE {
                place = self.behind(place);
            }
            self.slots[place] = number;
        }
    }

    /// Where a value would like to be.
    fn place(&self, value: &T) -> usize {
        FxBuildHasher.hash_one(value) as usize & (self.slots.len() - 1)
    }

    fn behind(&self, place: usize) -> usize {
        (place + 1) & (self.slots.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_sampling::Random;
    use std::collections::HashMap;

    #[test]
    fn numbers_are_those_that_a_map_would_give() {
        let (mut numbering, mut expected) = (Numbering::default(), HashMap::new());
        let mut random = Random::from_seed(4);
        for _ in 0..50_000 {
            let value = (random.below(3000) as u32, random.below(9) as u32);
            let next = expected.len() as u32;
            let known = *expected.entry(value).or_insert(next);
            assert_eq!(numbering.number(value), known);
        }
        assert_eq!(numbering.values().len(), expected.len());
        for (number, value) in (0..).zip(numbering.values()) {
            assert_eq!(expected[value], number);
        }
    }
}
