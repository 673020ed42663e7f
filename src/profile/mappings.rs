//! Calls of mmap and its kin, and what they had mapped at a moment.

use allocsample_record::{Mapped, MappedRanges, MappingChange, StackId};

use crate::missing_root::MissingRoot;
use crate::model::Profile;

/// A call that changed what is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappingCall {
    /// What it did.
    pub mapped: Mapped,
    /// From where; empty for calls that unmap.
    pub stack: StackId,
}

impl MappingCall {
    /// Of a change and the stack of the call.
    pub fn new(mapped: Mapped, stack: StackId) -> Self {
        Self { mapped, stack }
    }

    /// Why the root of its stack is missing, if it is.
    pub fn missing_root(&self) -> Option<MissingRoot> {
        MissingRoot::of(self.stack, self.mapped.stack_flags)
    }

    /// Whether it mapped memory of no file.
    pub fn is_anonymous(&self) -> bool {
        /// `MAP_ANONYMOUS` of every architecture that the agent knows.
        const MAP_ANONYMOUS: u32 = 0x20;
        match self.mapped.change {
            MappingChange::Map => self.mapped.flags & MAP_ANONYMOUS != 0,
            MappingChange::Remap | MappingChange::Break | MappingChange::Own => true,
            MappingChange::Attach | MappingChange::Thread | MappingChange::Unmap => false,
        }
    }
}

impl Profile {
    /// What the calls up to this moment (CLOCK_MONOTONIC) have mapped: ranges of addresses, with the rows of the calls in
    /// [`Profile::mappings`].
    pub fn mapped_at(&self, time_ns: u64) -> MappedRanges<usize> {
        let mut ranges = MappedRanges::new();
        let calls = self.mappings.iter().enumerate();
        for (row, call) in calls.take_while(|(_, call)| call.mapped.time_ns <= time_ns) {
            let it = &call.mapped;
            ranges.apply(it.change, it.start, it.bytes, row);
        }
        ranges
    }

    /// For each call that mapped memory, when the last of it was unmapped; `None` if some was mapped at the end.
    pub fn unmapped_ns(&self) -> Vec<Option<u64>> {
        let mut ranges = MappedRanges::new();
        let mut left: Vec<u64> = Vec::with_capacity(self.mappings.len());
        let mut ends = vec![None; self.mappings.len()];
        for (row, call) in self.mappings.iter().enumerate() {
            let Mapped {
                time_ns,
                start,
                bytes,
                change,
                ..
            } = call.mapped;
            let end = start.saturating_add(bytes);
            if change != MappingChange::Thread {
                for (from, to, before) in ranges.within(start, end) {
                    let before: usize = before;
                    left[before] = left[before].saturating_sub(to - from);
                    if left[before] == 0 {
                        ends[before] = Some(time_ns);
                    }
                }
            }
            for (_, thread) in ranges.threads_within(start, end.max(start + 1)) {
                ends[thread] = Some(time_ns);
            }
            left.push(bytes);
            ranges.apply(change, start, bytes, row);
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(calls: &[(MappingChange, u64, u64)]) -> Profile {
        let mut profile = Profile::default();
        for (&(change, start, bytes), time_ns) in calls.iter().zip(1..) {
            let mapped = Mapped {
                time_ns,
                start,
                bytes,
                thread: Default::default(),
                change,
                protection: 3,
                flags: 0x22,
                stack_flags: Default::default(),
            };
            profile.mappings.push(MappingCall::new(mapped, StackId(1)));
        }
        profile
    }

    #[test]
    fn what_is_mapped_is_what_the_calls_so_far_have_left() {
        use MappingChange::{Map, Thread, Unmap};
        let profile = profile(&[
            (Map, 100, 100),
            (Map, 300, 50),
            (Unmap, 120, 20),
            (Thread, 330, 0),
            (Unmap, 300, 50),
        ]);
        let at = |time_ns| {
            let ranges = profile.mapped_at(time_ns);
            ranges.within(0, 1000).collect::<Vec<_>>()
        };
        assert_eq!(at(0), []);
        assert_eq!(at(2), [(100, 200, 0), (300, 350, 1)]);
        assert_eq!(at(3), [(100, 120, 0), (140, 200, 0), (300, 350, 1)]);
        assert_eq!(profile.mapped_at(4).threads_within(300, 350).count(), 1);
        assert_eq!(at(9), [(100, 120, 0), (140, 200, 0)]);
        let ends = [None, Some(5), None, Some(5), None];
        assert_eq!(profile.unmapped_ns(), ends);
    }

    #[test]
    fn a_mapping_ends_with_its_last_part() {
        use MappingChange::{Map, Unmap};
        let profile = profile(&[
            (Map, 100, 100),
            (Unmap, 100, 50),
            (Unmap, 100, 50),
            (Map, 150, 50),
        ]);
        assert_eq!(profile.unmapped_ns(), [Some(4), None, None, None]);
    }
}
