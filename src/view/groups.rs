//! Samples by stack and heap, before anything of them is named.

use allocsample_profile::Profile;
use allocsample_report::Pairs;

/// Samples of one stack in one heap. The same stack may be charged differently in two heaps.
pub(crate) struct Group {
    /// The index of the first of them.
    pub first: u32,
    /// Whether the page tells it apart.
    pub is_kept: bool,
}

/// All of a profile, in the order in which they first came.
pub(crate) struct Groups {
    pub groups: Vec<Group>,
    /// Of each its bytes without what they stand for; live ones twice, as what leaks little by little must not disappear.
    weights: Vec<f64>,
    /// The index of each sample's.
    pub of_sample: Vec<u32>,
}

impl Groups {
    pub fn of(profile: &Profile) -> Self {
        let mut known = Pairs::for_things(profile.stacks.count() as usize + 1);
        let mut groups: Vec<Group> = Vec::new();
        let mut weights: Vec<f64> = Vec::new();
        let numbered = (0..).zip(&profile.samples).map(|(first, sample)| {
            let group = known.number(sample.stack.0, sample.heap.0.into());
            if group as usize == groups.len() {
                groups.push(Group {
                    first,
                    is_kept: true,
                });
                weights.push(0.0);
            }
            let times = if sample.is_live() { 2.0 } else { 1.0 };
            weights[group as usize] += times * sample.size.max(1) as f64;
            group
        });
        let of_sample = numbered.collect();
        Self {
            groups,
            weights,
            of_sample,
        }
    }
}

impl Groups {
    /// Those that the page does not tell apart, with their weights.
    pub fn folded(&self) -> impl Iterator<Item = (&Group, f64)> {
        let all = self.groups.iter().zip(self.weights.iter().copied());
        all.filter(|(group, _)| !group.is_kept)
    }
}

/// Keeps the `most` largest of all profiles; of those that are equal, the first.
pub(crate) fn keep_largest(profiles: &mut [Groups], most: usize) {
    let weights = profiles.iter().flat_map(|it| &it.weights);
    let mut order: Vec<(f64, u32)> = weights.copied().zip(0..).collect();
    if order.len() <= most {
        return;
    }
    order.select_nth_unstable_by(most, |a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut is_kept = vec![false; order.len()];
    for (_, index) in &order[..most] {
        is_kept[*index as usize] = true;
    }
    let all = profiles.iter_mut().flat_map(|it| &mut it.groups);
    for (group, is_kept) in all.zip(is_kept) {
        group.is_kept = is_kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{HeapId, Sample, StackId};
    use std::collections::HashMap;

    #[test]
    fn samples_of_a_group_have_one_stack_and_heap() {
        let mut profile = Profile::default();
        for number in 0..5000u32 {
            profile.samples.push(Sample {
                stack: StackId(number * number % 17),
                heap: HeapId((number % 3) as u16),
                size: 1,
                ..Sample::default()
            });
        }
        let groups = Groups::of(&profile);
        let mut expected = HashMap::new();
        for (sample, group) in profile.samples.iter().zip(&groups.of_sample) {
            let key = (sample.stack, sample.heap);
            let next = expected.len();
            assert_eq!(
                *expected.entry(key).or_insert(next),
                *group as usize,
                "{key:?}"
            );
        }
        assert_eq!(groups.groups.len(), expected.len());
    }

    #[test]
    fn the_largest_are_kept_and_of_equal_ones_the_first() {
        let of = |weights: &[f64]| {
            let group = |_| Group {
                first: 0,
                is_kept: true,
            };
            Groups {
                groups: weights.iter().map(group).collect(),
                weights: weights.to_vec(),
                of_sample: Vec::new(),
            }
        };
        for (most, expected) in [
            (9, [true; 6]),
            (4, [true, false, true, true, false, true]),
            (2, [false, false, true, false, false, true]),
            (0, [false; 6]),
        ] {
            let mut groups = [of(&[2.0, 1.0, 9.0]), of(&[2.0, 2.0, 3.0])];
            keep_largest(&mut groups, most);
            let kept: Vec<bool> = (groups.iter().flat_map(|it| &it.groups))
                .map(|group| group.is_kept)
                .collect();
            assert_eq!(kept, expected, "{most}");
        }
    }
}
