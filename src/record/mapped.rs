//! What is mapped where, and by which call: the changes replayed.
//!
//! The drain thread keeps the state for the beginning of its next file, and a reader replays the changes of a profile up to a
//! moment.

use alloc::collections::BTreeMap;

use crate::MappingChange;

/// Ranges of addresses that do not overlap, each with the call that made it.
#[derive(Clone, Debug)]
pub struct MappedRanges<T> {
    /// By start: end, and who.
    ranges: BTreeMap<u64, (u64, T)>,
    /// Starts of threads, by the address of the descriptor.
    threads: BTreeMap<u64, T>,
}

impl<T> Default for MappedRanges<T> {
    fn default() -> Self {
        Self {
            ranges: BTreeMap::new(),
            threads: BTreeMap::new(),
        }
    }
}

impl<T: Copy> MappedRanges<T> {
    /// Nothing mapped.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies a change; `call` stands for it.
    pub fn apply(&mut self, change: MappingChange, start: u64, bytes: u64, call: T) {
        match change {
            MappingChange::Thread | MappingChange::OwnThread => {
                self.threads.insert(start, call);
            }
            MappingChange::Unmap => self.clear(start, start.saturating_add(bytes)),
            MappingChange::Map
            | MappingChange::Remap
            | MappingChange::Break
            | MappingChange::Attach
            | MappingChange::Own => {
                let end = start.saturating_add(bytes);
                self.clear(start, end);
                if start < end {
                    self.ranges.insert(start, (end, call));
                }
            }
        }
    }

    /// Removes all that is in the range. Of a range that is partly in it, the rest stays.
    fn clear(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        if let Some((&before, &(before_end, call))) = self.ranges.range(..start).next_back()
            && before_end > start
        {
            self.ranges.insert(before, (start, call));
            if before_end > end {
                self.ranges.insert(end, (before_end, call));
            }
        }
        while let Some((&at, &(at_end, call))) = self.ranges.range(start..end).next() {
            self.ranges.remove(&at);
            if at_end > end {
                self.ranges.insert(end, (at_end, call));
            }
        }
        let threads = self.threads.range(start..end).map(|(&at, _)| at);
        let gone: alloc::vec::Vec<u64> = threads.collect();
        for at in gone {
            self.threads.remove(&at);
        }
    }

    /// The parts of the range `start..end` that some call has mapped, with that call: start, end, call.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64, T)> + '_ {
        let first = self.ranges.range(..start).next_back();
        let others = self.ranges.range(start..end.max(start));
        first
            .into_iter()
            .chain(others)
            .map(move |(&from, &(to, call))| (from.max(start), to.min(end), call))
            .filter(|(from, to, _)| from < to)
    }

    /// The threads whose descriptors are in the range, with the calls that started them.
    pub fn threads_within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, T)> + '_ {
        let range = self.threads.range(start..end.max(start));
        range.map(|(&at, &call)| (at, call))
    }

    /// All ranges, and then all threads: start, bytes, call. Whoever applies the changes of these calls in this order has the
    /// same state.
    pub fn state(&self) -> impl Iterator<Item = (u64, u64, T)> + '_ {
        let ranges = self.ranges.iter();
        let ranges = ranges.map(|(&start, &(end, call))| (start, end - start, call));
        let threads = self.threads.iter();
        ranges.chain(threads.map(|(&at, &call)| (at, 0, call)))
    }

    /// Number of ranges and threads.
    pub fn len(&self) -> usize {
        self.ranges.len() + self.threads.len()
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const SPACE: u64 = 40;

    fn change() -> impl Strategy<Value = (MappingChange, u64, u64)> {
        let kinds = prop_oneof![
            3 => Just(MappingChange::Map),
            1 => Just(MappingChange::Remap),
            2 => Just(MappingChange::Unmap),
            1 => Just(MappingChange::Thread),
        ];
        (kinds, 0..SPACE, 0..SPACE / 2)
    }

    proptest! {
        /// The model: an array with the call of every address, and one with the thread at it.
        #[test]
        fn ranges_are_what_an_array_of_addresses_says(
            changes in proptest::collection::vec(change(), 0..60), from in 0..SPACE, length in 0..SPACE,
        ) {
            let mut ranges = MappedRanges::new();
            let mut model = [None; 2 * SPACE as usize];
            let mut threads = [None; 2 * SPACE as usize];
            for (call, &(change, start, bytes)) in changes.iter().enumerate() {
                ranges.apply(change, start, bytes, call);
                let range = start as usize..(start + bytes) as usize;
                match change {
                    MappingChange::Thread | MappingChange::OwnThread => threads[start as usize] = Some(call),
                    MappingChange::Unmap => {
                        model[range.clone()].fill(None);
                        threads[range].fill(None);
                    }
                    _ => {
                        model[range.clone()].fill(Some(call));
                        threads[range].fill(None);
                    }
                }
            }
            let expected = |at: u64| model[at as usize];
            let mut found = [None; 2 * SPACE as usize];
            let mut last_end = from;
            for (start, end, call) in ranges.within(from, from + length) {
                prop_assert!(start >= last_end && end <= from + length);
                last_end = end;
                found[start as usize..end as usize].fill(Some(call));
            }
            for at in 0..2 * SPACE {
                let is_in = (from..from + length).contains(&at);
                prop_assert_eq!(found[at as usize], if is_in { expected(at) } else { None });
            }
            let of_threads: Vec<_> = ranges.threads_within(0, 2 * SPACE).collect();
            let of_model: Vec<_> =
                (0..).zip(threads).filter_map(|(at, call)| Some((at, call?))).collect();
            prop_assert_eq!(of_threads, of_model);
            let mut again = MappedRanges::new();
            for (start, bytes, call) in ranges.state() {
                again.apply(changes[call].0, start, bytes, call);
            }
            prop_assert!(again.state().eq(ranges.state()));
            prop_assert_eq!(again.len(), ranges.state().count());
        }
    }
}
