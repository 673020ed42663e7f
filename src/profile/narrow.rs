//! Parts of a profile: of its samples, and of its time.
//!
//! Readers that look at a part do not each leave something out: they get a profile in which the rest is missing. What
//! belongs to the process and not to a sample (threads, exact bytes, losses, what the agent cost) stays as it was.

use std::num::NonZeroU64;

use crate::model::{Part, Profile, Sample, Thread, Tick};

impl Profile {
    /// Keeps the samples and the ticks that pass, with what is known of them.
    pub fn retain(
        &mut self,
        mut keeps_sample: impl FnMut(&Sample) -> bool,
        keeps_tick: impl FnMut(&Tick) -> bool,
    ) {
        let mut rows = Vec::with_capacity(self.samples.len());
        rows.extend(self.samples.iter().map(|sample| keeps_sample(&sample)));
        self.keep_rows(&rows);
        self.backing.samples.retain(keeps_sample);
        self.ticks.retain(keeps_tick);
        self.narrowed.get_or_insert_default();
    }

    /// Leaves out what was allocated before this moment (CLOCK_MONOTONIC).
    pub fn begin_at(&mut self, from_ns: u64) {
        self.retain(
            |sample| sample.time_ns >= from_ns,
            |tick| tick.time_ns >= from_ns,
        );
        let narrowed = self.narrowed.get_or_insert_default();
        narrowed.from_ns = narrowed.from_ns.max(from_ns);
    }

    /// Makes it what a snapshot at this moment (CLOCK_MONOTONIC) would have been: what came later is left out, and what was
    /// freed later is alive. Moments after the end change nothing.
    pub fn end_at(&mut self, until_ns: u64) {
        if until_ns >= self.process.end_ns {
            return;
        }
        let is_early = |time_ns: u64| time_ns <= until_ns;
        self.retain(
            |sample| is_early(sample.time_ns),
            |tick| is_early(tick.time_ns),
        );
        self.forget_frees(until_ns);
        self.resident_bytes
            .retain(|&(time_ns, _)| is_early(time_ns));
        self.memory.retain(|map| is_early(map.totals.time_ns));
        self.mappings.retain(|call| is_early(call.mapped.time_ns));
        self.pages.samples.retain(|page| is_early(page.time_ns));
        self.vm.gcs.retain(|gc| is_early(gc.end_ns));
        self.vm.markers.retain(|it| is_early(it.begin_ns));
        self.vm.values.retain(|it| is_early(it.time_ns));
        for Thread { end_ns, .. } in self.threads.values_mut() {
            *end_ns = end_ns.filter(|&end_ns| is_early(end_ns));
        }
        self.process.end_ns = until_ns.max(self.process.start_ns);
        self.exit = None;
        self.part = Part {
            is_continued: true,
            ..self.part
        };
        let narrowed = self.narrowed.get_or_insert_default();
        narrowed.until_ns = narrowed.until_ns.min(until_ns);
    }

    /// Undoes the frees after a moment.
    fn forget_frees(&mut self, until_ns: u64) {
        let is_late = |freed_ns: Option<NonZeroU64>| freed_ns.is_some_and(|it| it.get() > until_ns);
        let mut late = Vec::with_capacity(self.samples.len());
        late.extend(self.samples.iter().map(|it| is_late(it.freed_ns)));
        self.free_stacks.retain(|&(row, _)| !late[row as usize]);
        for (row, _) in late.into_iter().enumerate().filter(|(_, is_late)| *is_late) {
            self.samples.forget_freed(row);
        }
        for block in &mut self.backing.samples {
            block.freed_ns = block.freed_ns.filter(|_| !is_late(block.freed_ns));
        }
    }

    /// Keeps samples by their rows, and moves what refers to rows.
    pub(crate) fn keep_rows(&mut self, is_kept: &[bool]) {
        if is_kept.iter().all(|is_kept| *is_kept) {
            return;
        }
        let mut next = 0_u32;
        let numbers = is_kept.iter().map(|&is_kept| {
            let number = next;
            next += u32::from(is_kept);
            is_kept.then_some(number)
        });
        let numbers: Vec<Option<u32>> = numbers.collect();
        let moved = |row: usize| numbers.get(row).copied().flatten();
        self.samples.keep_rows(is_kept);
        let hashes = self.content_hashes.drain();
        self.content_hashes = hashes
            .filter_map(|(row, hash)| Some((moved(row)? as usize, hash)))
            .collect();
        let stacks = std::mem::take(&mut self.free_stacks).into_iter();
        self.free_stacks = stacks
            .filter_map(|(row, stack)| Some((moved(row as usize)?, stack)))
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_record::{SampleId, StackId, ThreadId};

    use crate::model::{Exit, Freed};

    /// Samples at 10, 20, ..., which die after 25 ns, all but every fourth one; each has a hash, and a stack where it was freed.
    fn profile() -> Profile {
        let mut profile = Profile::default();
        profile.process.end_ns = 1000;
        profile.exit = Some(Exit {
            time_ns: 1000,
            how: allocsample_record::ExitHow::Exit,
            status: Some(0),
        });
        for row in 0..40_u32 {
            let time_ns = u64::from(row) * 10 + 10;
            let mut sample = Sample {
                id: SampleId(time_ns),
                time_ns,
                size: u64::from(row),
                thread: ThreadId(row % 3),
                ..Sample::default()
            };
            if row % 4 != 0 {
                sample.set_freed(Freed {
                    time_ns: time_ns + 25,
                    thread: ThreadId(9),
                });
                profile.free_stacks.push((row, StackId(row)));
            }
            profile.samples.push(sample);
            profile
                .content_hashes
                .insert(row as usize, u64::from(row) * 7);
            profile.ticks.push(Tick {
                time_ns,
                ..Tick::default()
            });
        }
        profile.resident_bytes = (0..100).map(|number| (number * 10, 1)).collect();
        profile
    }

    /// What belongs to a sample by its row still does.
    fn assert_rows_belong_together(profile: &Profile) {
        for (row, sample) in profile.samples.iter().enumerate() {
            assert_eq!(profile.content_hashes.get(&row), Some(&(sample.size * 7)));
            let stack = sample.freed_ns.map(|_| StackId(sample.size as u32));
            assert_eq!(profile.free_stack(row), stack, "row {row}");
        }
        let freed = profile.samples.iter().filter(|it| it.freed_ns.is_some());
        assert_eq!(profile.content_hashes.len(), profile.samples.len());
        assert_eq!(profile.free_stacks.len(), freed.count());
    }

    #[test]
    fn what_refers_to_rows_moves_with_them() {
        let mut profile = profile();
        profile.retain(|sample| sample.thread == ThreadId(1), |_| true);
        assert_eq!(profile.samples.len(), 13);
        assert!(profile.samples.iter().all(|it| it.size % 3 == 1));
        assert_rows_belong_together(&profile);
        profile.retain(|_| false, |_| false);
        assert_rows_belong_together(&profile);
        assert!(profile.samples.is_empty() && profile.ticks.is_empty());
    }

    #[test]
    fn a_profile_that_ends_early_is_a_snapshot_of_that_moment() {
        let mut snapshot = profile();
        snapshot.end_at(205);
        assert_rows_belong_together(&snapshot);
        let whole = profile();
        for (then, later) in snapshot.samples.iter().zip(&whole.samples) {
            assert_eq!(then.id, later.id);
            let freed_by_then = later.freed_ns.filter(|it| it.get() <= 205);
            assert_eq!(then.freed_ns, freed_by_then, "{then:?}");
            assert_eq!(then.freed().is_some(), freed_by_then.is_some());
        }
        assert_eq!((snapshot.samples.len(), snapshot.ticks.len()), (20, 20));
        assert_eq!(snapshot.resident_bytes.len(), 21);
        assert_eq!(snapshot.process.end_ns, 205);
        assert!(snapshot.exit.is_none() && snapshot.is_complete());
    }

    #[test]
    fn a_moment_after_the_end_changes_nothing() {
        let mut same = profile();
        same.end_at(1000);
        same.end_at(u64::MAX);
        assert_eq!(same.narrowed, None);
        assert!(same.exit.is_some());
        assert_eq!(same.samples.len(), 40);
    }

    #[test]
    fn a_later_beginning_leaves_out_what_was_there_before() {
        let mut late = profile();
        late.begin_at(300);
        assert_rows_belong_together(&late);
        assert_eq!((late.samples.len(), late.ticks.len()), (11, 11));
        assert!(late.samples.iter().all(|it| it.time_ns >= 300));
        let narrowed = late.narrowed.unwrap();
        assert_eq!((narrowed.from_ns, narrowed.until_ns), (300, u64::MAX));
    }
}
