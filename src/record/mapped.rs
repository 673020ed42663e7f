//! What is mapped where, and by which call: the changes replayed.
//!
//! The drain thread keeps the state for the beginning of its next file, and a reader replays the changes of a profile up to a
//! moment.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::MappingChange;

/// Ranges of addresses, each with the call that mapped it or made it usable.
#[derive(Clone, Debug)]
pub struct MappedRanges<T> {
    mappings: Ranges<T>,
    /// Parts of reservations that were made usable. They lie above the mappings, and end with them.
    commits: Ranges<T>,
    /// Starts of threads, by the address of the descriptor.
    threads: BTreeMap<u64, T>,
}

impl<T> Default for MappedRanges<T> {
    fn default() -> Self {
        Self {
            mappings: Ranges::default(),
            commits: Ranges::default(),
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
            MappingChange::Commit => {
                let end = start.saturating_add(bytes);
                self.commits.clear(start, end);
                self.commits.insert(start, end, call);
            }
            MappingChange::Uncommit => self.commits.clear(start, start.saturating_add(bytes)),
            MappingChange::Discard => {}
            MappingChange::Map
            | MappingChange::Remap
            | MappingChange::Break
            | MappingChange::Attach
            | MappingChange::Own => {
                let end = start.saturating_add(bytes);
                self.clear(start, end);
                self.mappings.insert(start, end, call);
            }
        }
    }

    /// Removes all that is in the range.
    fn clear(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        self.mappings.clear(start, end);
        self.commits.clear(start, end);
        let threads = self.threads.range(start..end).map(|(&at, _)| at);
        let gone: Vec<u64> = threads.collect();
        for at in gone {
            self.threads.remove(&at);
        }
    }

    /// The parts of the range `start..end` that some call has mapped or made usable, with the last such call: start, end, call.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64, T)> + '_ {
        let mut parts: Vec<(u64, u64, T)> = self.commits.within(start, end).collect();
        let commits = parts.len();
        for (from, to, call) in self.mappings.within(start, end) {
            let mut at = from;
            for (committed, committed_to, _) in self.commits.within(from, to) {
                parts.push((at, committed, call));
                at = committed_to;
            }
            parts.push((at, to, call));
        }
        if commits > 0 {
            parts.sort_unstable_by_key(|&(from, ..)| from);
        }
        parts.into_iter().filter(|(from, to, _)| from < to)
    }

    /// The parts of the range `start..end` that are mapped, usable or not, each with the call that mapped it: start, end, call.
    pub fn mapped_within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64, T)> + '_ {
        self.mappings.within(start, end)
    }

    /// The parts of the range `start..end` that mprotect has made usable, each with its call: start, end, call.
    pub fn committed_within(
        &self,
        start: u64,
        end: u64,
    ) -> impl Iterator<Item = (u64, u64, T)> + '_ {
        self.commits.within(start, end)
    }

    /// The threads whose descriptors are in the range, with the calls that started them.
    pub fn threads_within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, T)> + '_ {
        let range = self.threads.range(start..end.max(start));
        range.map(|(&at, &call)| (at, call))
    }

    /// All mappings, what is committed of them, and all threads: start, bytes, call. Applying the changes of these calls in this
    /// order to an empty state makes the same state.
    pub fn state(&self) -> impl Iterator<Item = (u64, u64, T)> + '_ {
        let ranges = self.mappings.iter().chain(self.commits.iter());
        let threads = self.threads.iter();
        ranges.chain(threads.map(|(&at, &call)| (at, 0, call)))
    }

    /// Number of ranges and threads.
    pub fn len(&self) -> usize {
        self.mappings.0.len() + self.commits.0.len() + self.threads.len()
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Ranges that do not overlap. By start: end, and call.
#[derive(Clone, Debug)]
struct Ranges<T>(BTreeMap<u64, (u64, T)>);

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Copy> Ranges<T> {
    /// Adds a range where there is none.
    fn insert(&mut self, start: u64, end: u64, call: T) {
        if start < end {
            self.0.insert(start, (end, call));
        }
    }

    /// Removes all that is in the range. Of a range that is partly in it, the rest stays.
    fn clear(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        if let Some((&before, &(before_end, call))) = self.0.range(..start).next_back()
            && before_end > start
        {
            self.0.insert(before, (start, call));
            self.insert(end, before_end, call);
        }
        while let Some((&at, &(at_end, call))) = self.0.range(start..end).next() {
            self.0.remove(&at);
            self.insert(end, at_end, call);
        }
    }

    /// The parts of `start..end` that are in a range: start, end, call.
    fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64, T)> + '_ {
        let first = self.0.range(..start).next_back();
        let others = self.0.range(start..end.max(start));
        first
            .into_iter()
            .chain(others)
            .map(move |(&from, &(to, call))| (from.max(start), to.min(end), call))
            .filter(|(from, to, _)| from < to)
    }

    /// All of them: start, bytes, call.
    fn iter(&self) -> impl Iterator<Item = (u64, u64, T)> + '_ {
        let ranges = self.0.iter();
        ranges.map(|(&start, &(end, call))| (start, end - start, call))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SPACE: u64 = 40;

    fn change() -> impl Strategy<Value = (MappingChange, u64, u64)> {
        let kinds = prop_oneof![
            3 => Just(MappingChange::Map),
            1 => Just(MappingChange::Remap),
            2 => Just(MappingChange::Unmap),
            1 => Just(MappingChange::Thread),
            2 => Just(MappingChange::Commit),
            1 => Just(MappingChange::Uncommit),
            1 => Just(MappingChange::Discard),
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
            let mut commits = [None; 2 * SPACE as usize];
            let mut threads = [None; 2 * SPACE as usize];
            for (call, &(change, start, bytes)) in changes.iter().enumerate() {
                ranges.apply(change, start, bytes, call);
                let range = start as usize..(start + bytes) as usize;
                match change {
                    MappingChange::Thread | MappingChange::OwnThread => threads[start as usize] = Some(call),
                    MappingChange::Commit => commits[range].fill(Some(call)),
                    MappingChange::Uncommit => commits[range].fill(None),
                    MappingChange::Discard => {}
                    MappingChange::Unmap => {
                        model[range.clone()].fill(None);
                        commits[range.clone()].fill(None);
                        threads[range].fill(None);
                    }
                    _ => {
                        model[range.clone()].fill(Some(call));
                        commits[range.clone()].fill(None);
                        threads[range].fill(None);
                    }
                }
            }
            let expected = |at: u64| commits[at as usize].or(model[at as usize]);
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
