//! Sums for each stack with its labels.

use rustc_hash::FxHashMap;

use crate::view::StackIndex;

/// Thread, heap, type and survival; each the number of a text, or 0.
pub(super) type Labels = [i64; 4];

/// What was added up for one stack with one set of labels.
#[derive(Debug)]
pub(super) struct Sum {
    pub stack: StackIndex,
    pub labels: Labels,
    pub values: [f64; 5],
}

/// A million stacks, most of which have one set of labels: a hash table is for the others.
#[derive(Debug)]
pub(super) struct Sums {
    all: Vec<Sum>,
    /// For each stack the index of its first sum plus one; 0 for none.
    first: Vec<u32>,
    others: FxHashMap<(StackIndex, Labels), usize>,
}

impl Sums {
    /// For so many stacks.
    pub fn new(stacks: usize) -> Self {
        Self {
            all: Vec::new(),
            first: vec![0; stacks],
            others: FxHashMap::default(),
        }
    }

    /// The values of a stack with these labels.
    pub fn at(&mut self, stack: StackIndex, labels: Labels) -> &mut [f64; 5] {
        let next = self.all.len();
        let known = match (self.first[stack] as usize).checked_sub(1) {
            Some(first) if self.all[first].labels == labels => first,
            Some(_) => *self.others.entry((stack, labels)).or_insert(next),
            None => {
                // Not more than stacks and samples, whose numbers have 32 bits.
                self.first[stack] = next as u32 + 1;
                next
            }
        };
        if known == next {
            self.all.push(Sum {
                stack,
                labels,
                values: [0.0; 5],
            });
        }
        &mut self.all[known].values
    }

    /// In the order in which they were asked for.
    pub fn into_all(self) -> Vec<Sum> {
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn each_stack_with_its_labels_has_a_sum() {
        let (mut sums, mut expected) = (Sums::new(7), HashMap::new());
        for step in 0..500_usize {
            let (stack, label) = (step * step % 7, (step * 31 % 11 / 4) as i64);
            let labels = [label, 1, 0, 0];
            sums.at(stack, labels)[label as usize] += step as f64;
            let values: &mut [f64; 5] = expected.entry((stack, labels)).or_default();
            values[label as usize] += step as f64;
        }
        let all = sums.into_all();
        assert_eq!(all.len(), expected.len());
        for sum in all {
            assert_eq!(expected[&(sum.stack, sum.labels)], sum.values);
        }
    }
}
