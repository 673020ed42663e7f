//! Allocations and frees in the order of time, without a list of both.
//!
//! Samples are in the order of time already. Their frees are not: those are sorted, in 4 bytes each, and the two are merged.

use allocsample_profile::Sample;

use crate::source::Source;

/// The samples that a track is about, by index and in their order.
#[derive(Clone, Debug)]
pub(super) enum Chosen {
    All(usize),
    Some(Vec<u32>),
}

impl Chosen {
    pub fn len(&self) -> usize {
        match self {
            Chosen::All(count) => *count,
            Chosen::Some(indices) => indices.len(),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let (all, some) = match self {
            Chosen::All(count) => (0..*count, &[][..]),
            Chosen::Some(indices) => (0..0, &indices[..]),
        };
        all.chain(some.iter().map(|&index| index as usize))
    }
}

/// The samples of each group, into which `group` puts one by its index; no list is made where all are in one.
pub(super) fn grouped(
    source: &Source,
    groups: usize,
    group: impl Fn(usize) -> Option<usize>,
) -> Vec<Chosen> {
    let all = source.samples.len();
    let mut counts = vec![0; groups];
    for group in (0..all).filter_map(&group) {
        counts[group] += 1;
    }
    let mut chosen: Vec<Chosen> = counts
        .iter()
        .map(|&count| match count == all {
            true => Chosen::All(all),
            false => Chosen::Some(Vec::with_capacity(count)),
        })
        .collect();
    if chosen.iter().any(|it| matches!(it, Chosen::All(_))) {
        return chosen;
    }
    for index in 0..all {
        if let Some(Chosen::Some(indices)) = group(index).map(|group| &mut chosen[group]) {
            // There are no more than 32 bits can number: they would not fit into memory.
            indices.push(index as u32);
        }
    }
    chosen
}

/// An allocation, or its free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Moment {
    pub time_ns: u64,
    /// The index of the sample.
    pub number: usize,
    pub is_free: bool,
}

/// When a sample was freed, if it was. Clocks of two threads may disagree by a moment; a free must not come first.
pub(super) fn freed_ns(source: &Source, number: usize) -> Option<u64> {
    let sample = source.samples.at(number);
    Some(sample.freed()?.time_ns.max(sample.time_ns))
}

/// Samples and their frees.
#[derive(Debug)]
pub(super) struct Moments<'a> {
    source: &'a Source<'a>,
    chosen: &'a Chosen,
    /// The indices of samples that were freed, in the order of their frees and then of the samples. (There are no more
    /// samples than 32 bits can number: they would not fit into memory.)
    frees: Vec<u32>,
}

impl<'a> Moments<'a> {
    pub fn of(source: &'a Source<'a>, chosen: &'a Chosen) -> Self {
        let mut moments = Self {
            source,
            chosen,
            frees: Vec::new(),
        };
        moments.frees = moments.sorted_frees();
        moments
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.chosen.len() + self.frees.len()
    }

    /// By stretches of time, and then each of those, whose samples are near each other in memory, too: blocks are freed in
    /// the order in which they were allocated more or less.
    fn sorted_frees(&self) -> Vec<u32> {
        const STRETCHES: usize = 1 << 16;
        let freed = || {
            let with_time = |number| Some((freed_ns(self.source, number)?, number));
            self.chosen.iter().filter_map(with_time)
        };
        let (mut first_ns, mut last_ns) = (u64::MAX, 0);
        for (time_ns, _) in freed() {
            (first_ns, last_ns) = (first_ns.min(time_ns), last_ns.max(time_ns));
        }
        let stretch_ns = last_ns.saturating_sub(first_ns) / STRETCHES as u64 + 1;
        let stretch = |time_ns: u64| ((time_ns - first_ns) / stretch_ns) as usize;
        let mut ends = vec![0_u32; STRETCHES + 1];
        for (time_ns, _) in freed() {
            ends[stretch(time_ns) + 1] += 1;
        }
        for at in 1..ends.len() {
            ends[at] += ends[at - 1];
        }
        // From where each stretch begins to where it ends, as they fill up.
        let mut frees = vec![0; ends.last().map_or(0, |&all| all as usize)];
        for (time_ns, number) in freed() {
            let end = &mut ends[stretch(time_ns)];
            frees[*end as usize] = number as u32;
            *end += 1;
        }
        let mut rest = &mut frees[..];
        let mut start = 0;
        for &end in &ends[..STRETCHES] {
            let (stretch, behind) = rest.split_at_mut((end - start) as usize);
            // Stable: of one moment the first sample comes first.
            stretch.sort_by_key(|&number| freed_ns(self.source, number as usize));
            (rest, start) = (behind, end);
        }
        frees
    }

    /// In the order of time. Of one moment those of the first sample come first, its allocation before its free.
    pub fn iter(&self) -> impl Iterator<Item = Moment> + '_ {
        let mut born = self.chosen.iter().peekable();
        let mut frees = self.frees.iter().peekable();
        std::iter::from_fn(move || {
            let birth = born
                .peek()
                .map(|&number| (self.source.samples.at(number).time_ns, number));
            let free = frees.peek().and_then(|&&number| {
                let number = number as usize;
                Some((freed_ns(self.source, number)?, number))
            });
            let is_free = match (birth, free) {
                (Some(birth), Some(free)) => free < birth,
                (None, None) => return None,
                (birth, _) => birth.is_none(),
            };
            let (time_ns, number) = if is_free {
                frees.next();
                free?
            } else {
                born.next();
                birth?
            };
            Some(Moment {
                time_ns,
                number,
                is_free,
            })
        })
    }
}

/// Whole bytes of samples, which add up to the whole of their sum. One byte each: it is known from what a sample stands for
/// but for the side to which it was rounded.
#[derive(Debug)]
pub(super) struct Weights(Vec<i8>);

impl Weights {
    /// `rounded` says what the next sample is rounded to.
    pub fn new(source: &Source, mut rounded: impl FnMut(&Sample, f64) -> i64) -> Self {
        let side = |(sample, bytes): (Sample, f64)| {
            // Half a byte is owed at most, so that it is one of three.
            i8::try_from(rounded(&sample, bytes) - whole(bytes)).unwrap_or_default()
        };
        Self(source.samples.with_bytes().map(side).collect())
    }

    /// The weight of the sample with this index, which stands for these bytes.
    pub fn of(&self, bytes: f64, number: usize) -> i64 {
        whole(bytes) + i64::from(self.0[number])
    }
}

fn whole(bytes: f64) -> i64 {
    // Never negative, and 2^63 bytes are beyond any machine.
    bytes.floor() as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::rounding::Rounding;
    use allocsample_profile::{Freed, Profile, ThreadId};
    use proptest::prelude::*;

    #[test]
    fn groups_have_their_samples_and_one_of_all_has_no_list() {
        let source = fixture::source();
        let all = grouped(&source, 2, |_| Some(1));
        assert!(matches!(&all[..], [Chosen::Some(none), Chosen::All(_)] if none.is_empty()));
        let by_thread = grouped(&source, source.threads.len(), |index| {
            Some(source.thread(source.samples.at(index).thread))
        });
        let mut found: Vec<usize> = Vec::new();
        for (thread, chosen) in by_thread.iter().enumerate() {
            assert!(chosen.iter().is_sorted());
            let is_of = |number| source.thread(source.samples.at(number).thread) == thread;
            assert!(chosen.iter().all(is_of));
            found.extend(chosen.iter());
        }
        found.sort_unstable();
        assert_eq!(found, (0..source.samples.len()).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn moments_are_those_of_a_stable_sort(
            lives in proptest::collection::vec((0u64..20, proptest::option::of(0u64..25), 1u64..9), 0..60),
        ) {
            let mut profile = Profile::default();
            profile.intervals.push(fixture::interval(3));
            let mut lives = lives;
            lives.sort_by_key(|life| life.0);
            let mut expected = Vec::new();
            for (number, &(time_ns, freed_ns, size)) in lives.iter().enumerate() {
                // Also beyond 32 bits.
                let time_ns = time_ns << 31;
                let mut sample = Sample { time_ns, size, ..Sample::default() };
                if let Some(freed_ns) = freed_ns {
                    sample.set_freed(Freed { time_ns: freed_ns << 31, thread: ThreadId(0) });
                }
                profile.samples.push(sample);
                expected.push(Moment { time_ns, number, is_free: false });
                if let Some(freed) = sample.freed() {
                    expected.push(Moment { time_ns: freed.time_ns.max(time_ns), number, is_free: true });
                }
            }
            expected.sort_by_key(|moment| moment.time_ns);
            let source = fixture::source_of(profile);
            let chosen = Chosen::All(lives.len());
            let found: Vec<Moment> = Moments::of(&source, &chosen).iter().collect();
            prop_assert_eq!(found, expected);
            let (mut one, mut other) = (Rounding::default(), Rounding::default());
            let weights = Weights::new(&source, |_, bytes| one.next(bytes));
            for (number, (_, bytes)) in source.samples.with_bytes().enumerate() {
                prop_assert_eq!(weights.of(bytes, number), other.next(bytes));
            }
        }
    }
}
