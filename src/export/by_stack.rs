//! Something for each stack with what tells its samples apart.

use std::hash::Hash;

use allocsample_profile::{Profile, StackId};
use rustc_hash::FxHashMap;

/// A million stacks, most of which have one key: a hash table is for the others.
#[derive(Debug)]
pub(crate) struct ByStack<K, V> {
    all: Vec<Entry<K, V>>,
    /// For each stack the index of its first entry plus one; 0 for none. (Neither are there more stacks than 32 bits can
    /// number, nor more entries.)
    first: Vec<u32>,
    others: FxHashMap<(StackId, K), u32>,
}

/// What one stack has with one key.
#[derive(Debug)]
pub(crate) struct Entry<K, V> {
    pub stack: StackId,
    pub key: K,
    pub value: V,
}

impl<K: Copy + Eq + Hash, V: Default> ByStack<K, V> {
    /// For the stacks of a profile.
    pub fn of(profile: &Profile) -> Self {
        Self {
            all: Vec::new(),
            first: vec![0; profile.stacks.count() as usize + 1],
            others: FxHashMap::default(),
        }
    }

    /// The value of a stack with this key; a new one if it was not asked for before.
    pub fn at(&mut self, stack: StackId, key: K) -> &mut V {
        let next = self.all.len() as u32;
        let first = &mut self.first[stack.0 as usize];
        let known = match first.checked_sub(1) {
            Some(first) if self.all[first as usize].key == key => first,
            Some(_) => *self.others.entry((stack, key)).or_insert(next),
            None => {
                *first = next + 1;
                next
            }
        };
        if known == next {
            let value = V::default();
            self.all.push(Entry { stack, key, value });
        }
        &mut self.all[known as usize].value
    }

    /// In the order in which they were asked for.
    pub fn into_all(self) -> Vec<Entry<K, V>> {
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use std::collections::HashMap;

    #[test]
    fn each_stack_has_a_value_for_each_key() {
        let mut profile = Profile::default();
        for address in 0..6 {
            fixture::call(&mut profile, StackId::EMPTY, "f", address);
        }
        let (mut sums, mut expected) = (ByStack::<u32, u32>::of(&profile), HashMap::new());
        for step in 0..500_u32 {
            let (stack, key) = (StackId(step * step % 7), step * 31 % 11 / 4);
            *sums.at(stack, key) += step;
            *expected.entry((stack, key)).or_insert(0) += step;
        }
        let all = sums.into_all();
        assert_eq!(all.len(), expected.len());
        for Entry { stack, key, value } in all {
            assert_eq!(expected[&(stack, key)], value);
        }
    }
}
