//! How often each stack of a profile is used, and by what.

use allocsample_record::{SampleFlags, StackId};
use rayon::prelude::*;

use crate::model::Profile;
use crate::roots::end_of;

/// Counted once for all checks of a reader: a profile may have ten million samples.
pub(crate) struct Uses {
    /// Of each stack, by its number: of samples, ticks, calls that map memory, sampled pages and frees.
    pub(crate) counts: Vec<u32>,
    /// A bit for each way in which those uses end; see [`end_of`].
    pub(crate) ends: Vec<u8>,
}

impl Uses {
    /// Of all stacks of a profile.
    pub(crate) fn of(profile: &Profile) -> Self {
        let rows = profile.samples.len();
        let each = rows.div_ceil(parts_of(rows)).max(1);
        let parts: Vec<Self> = (0..rows.div_ceil(each))
            .into_par_iter()
            .map(|part| {
                let mut uses = Self::none(profile);
                for row in part * each..rows.min((part + 1) * each) {
                    uses.add(profile.samples.stack(row), profile.samples.flags(row));
                }
                uses
            })
            .collect();
        let mut all = Self::none(profile);
        all.add_others(profile);
        parts.iter().for_each(|part| all.merge(part));
        all
    }

    fn none(profile: &Profile) -> Self {
        let stacks = profile.stacks.count() as usize + 1;
        Self {
            counts: vec![0; stacks],
            ends: vec![0; stacks],
        }
    }

    /// Counts the stacks of ticks, mappings, pages and frees.
    fn add_others(&mut self, profile: &Profile) {
        for tick in &profile.ticks {
            self.add(tick.stack, tick.flags);
        }
        for call in &profile.mappings {
            self.add(call.stack, call.mapped.stack_flags);
        }
        for page in &profile.pages.samples {
            self.add(page.stack, page.flags);
        }
        for &(_, stack) in &profile.free_stacks {
            self.add_with_end(stack, crate::roots::WHOLE);
        }
    }

    #[inline]
    fn add(&mut self, stack: StackId, flags: SampleFlags) {
        self.add_with_end(stack, end_of(stack, flags));
    }

    #[inline]
    fn add_with_end(&mut self, stack: StackId, end: usize) {
        let stack = stack.0 as usize;
        if let (Some(count), Some(ends)) = (self.counts.get_mut(stack), self.ends.get_mut(stack)) {
            *count = count.saturating_add(1);
            *ends |= 1 << end;
        }
    }

    fn merge(&mut self, other: &Self) {
        for (count, &more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(more);
        }
        for (ends, &more) in self.ends.iter_mut().zip(&other.ends) {
            *ends |= more;
        }
    }
}

/// In how many parts to go through so many rows.
fn parts_of(rows: usize) -> usize {
    /// Fewer are done before a thread has begun.
    const EACH: usize = 1 << 18;
    /// Each has a count for every stack.
    const MOST: usize = 4;
    rayon::current_num_threads()
        .min(MOST)
        .min(rows / EACH)
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Sample, Tick};
    use crate::{Location, ModuleId, StackNode};

    #[test]
    fn uses_are_those_of_all_rows_however_many_threads_count_them() {
        const STACKS: u64 = 100;
        for rows in [0, 7, 3 << 18] {
            let mut profile = Profile::default();
            for offset in 0..STACKS {
                let location = Location {
                    module: ModuleId::NONE,
                    offset,
                };
                let parent = StackId::EMPTY;
                profile.stacks.push(StackNode { parent, location });
            }
            let stack = |row: u64| StackId((row * row % (STACKS + 1)) as u32);
            let flags = |row: u64| match row % 1000 {
                0 => SampleFlags::TRUNCATED,
                1 => SampleFlags::UNWIND_FAILED,
                _ => SampleFlags::default(),
            };
            let mut counts = vec![0; STACKS as usize + 1];
            let mut ends = vec![0; STACKS as usize + 1];
            for row in 0..rows {
                let (stack, flags) = (stack(row), flags(row));
                profile.samples.push(Sample {
                    stack,
                    flags,
                    ..Sample::default()
                });
                counts[stack.0 as usize] += 1;
                ends[stack.0 as usize] |= 1 << end_of(stack, flags);
            }
            profile.ticks.push(Tick {
                stack: StackId(9),
                ..Tick::default()
            });
            profile.free_stacks.push((0, StackId(8)));
            // Of no node: not counted.
            profile.free_stacks.push((0, StackId(u32::MAX)));
            for stack in [8, 9] {
                counts[stack] += 1;
                ends[stack] |= 1 << crate::roots::WHOLE;
            }
            let uses = Uses::of(&profile);
            assert_eq!((uses.counts, uses.ends), (counts, ends), "{rows} rows");
        }
    }
}
