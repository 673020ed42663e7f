//! Frames in compiled code get the name that the code had when the sample was taken.

use std::collections::{BTreeMap, HashMap};

use allocsample_record::{CodeGeneration, Location, ModuleId, StackId, StackNode};

use crate::model::Profile;
use crate::stacks::StackTable;

impl Profile {
    /// Gives names to code of no module by `code`, of which what no sample needs is dropped.
    pub(crate) fn name_code(&mut self, code: Vec<CodeGeneration>) {
        let ranges = Ranges::of(&code);
        let has_code = stacks_with_code(&self.stacks, &ranges);
        let is_with_code = |stack: StackId| {
            let index = (stack.0 as usize).wrapping_sub(1);
            has_code.get(index) == Some(&true)
        };
        // In the order of time, as the code changed. Most are already.
        let samples = (0..).zip(&self.samples);
        let mut with_code: Vec<u32> = samples
            .filter(|(_, sample)| is_with_code(sample.stack))
            .map(|(index, _)| index)
            .collect();
        with_code.sort_by_key(|&index| self.samples.at(index as usize).time_ns);
        let mut needed = Needed {
            living: Living::of(&code),
            numbers: HashMap::new(),
            first: self.symbols.code.len(),
        };
        let mut stacks = Stacks::of(&mut self.stacks, self.samples.len());
        for index in with_code {
            let sample = self.samples.at(index as usize);
            needed.living.advance(sample.time_ns);
            let renamed = stacks.renamed(sample.stack, |location| {
                needed.location(location, sample.time_ns)
            });
            let Some(stack) = renamed else { break };
            self.samples.set_stack(index as usize, stack);
        }
        let mut numbered: Vec<(usize, usize)> = needed.numbers.into_iter().collect();
        numbered.sort_by_key(|&(_, number)| number);
        let used = numbered.into_iter().map(|(index, _)| code[index].clone());
        self.symbols.code.extend(used);
    }

    /// The same for what the profile itself holds: names that were found when it was symbolised.
    pub(crate) fn name_code_again(&mut self) {
        let code = std::mem::take(&mut self.symbols.code);
        if !code.is_empty() {
            self.name_code(code);
        }
    }
}

/// Whether each stack has a frame that may get a name. A caller's stack stands before its callees'.
fn stacks_with_code(stacks: &StackTable, ranges: &Ranges) -> Vec<bool> {
    let mut has_code: Vec<bool> = Vec::with_capacity(stacks.nodes().len());
    for node in stacks.nodes() {
        let is_of_caller = (node.parent.0 as usize)
            .checked_sub(1)
            .is_some_and(|caller| has_code.get(caller) == Some(&true));
        let own = || call_address(node.location).is_some_and(|at| ranges.contains(at));
        has_code.push(is_of_caller || own());
    }
    has_code
}

/// Where the call stands, in code of no module.
fn call_address(location: Location) -> Option<u64> {
    (location.module == ModuleId::NONE).then(|| location.offset.wrapping_sub(1))
}

/// Addresses where there was code at any time, in their order. They neither overlap nor touch.
struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    fn of(code: &[CodeGeneration]) -> Self {
        let mut all: Vec<(u64, u64)> = code.iter().map(|code| (code.start, code.end)).collect();
        all.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (start, end) in all.into_iter().filter(|(start, end)| start < end) {
            match ranges.last_mut() {
                Some((_, last)) if *last >= start => *last = end.max(*last),
                _ => ranges.push((start, end)),
            }
        }
        Self(ranges)
    }

    fn contains(&self, address: u64) -> bool {
        let after = self.0.partition_point(|&(start, _)| start <= address);
        let range = after.checked_sub(1).and_then(|index| self.0.get(index));
        range.is_some_and(|&(_, end)| address < end)
    }
}

/// The generations that are there at a time, which moves on. Generations do not overlap in both address and time; where
/// those of a file do, the one that came last counts.
struct Living<'a> {
    code: &'a [CodeGeneration],
    /// Those to come, the next one last.
    to_come: Vec<usize>,
    /// By their addresses; some may be gone already.
    by_start: BTreeMap<u64, usize>,
}

impl<'a> Living<'a> {
    fn of(code: &'a [CodeGeneration]) -> Self {
        let mut to_come: Vec<usize> = (0..code.len())
            .filter(|&index| code[index].start < code[index].end)
            .collect();
        to_come.sort_by_key(|&index| std::cmp::Reverse((code[index].since_ns, index)));
        Self {
            code,
            to_come,
            by_start: BTreeMap::new(),
        }
    }

    fn advance(&mut self, time_ns: u64) {
        while let Some(index) = self
            .to_come
            .pop_if(|&mut index| self.code[index].since_ns <= time_ns)
        {
            let CodeGeneration { start, end, .. } = self.code[index];
            while let Some((&other, &before)) = self.by_start.range(..end).next_back()
                && self.code[before].end > start
            {
                self.by_start.remove(&other);
            }
            self.by_start.insert(start, index);
        }
    }

    /// The one that is at an address now.
    fn at(&self, address: u64, time_ns: u64) -> Option<usize> {
        let (_, &index) = self.by_start.range(..=address).next_back()?;
        self.code[index].holds(address, time_ns).then_some(index)
    }
}

/// Which generations samples were in.
struct Needed<'a> {
    living: Living<'a>,
    /// Index into the table, and into the profile's.
    numbers: HashMap<usize, usize>,
    first: usize,
}

impl Needed<'_> {
    fn location(&mut self, location: Location, time_ns: u64) -> Location {
        let found = call_address(location).and_then(|address| self.living.at(address, time_ns));
        let Some(index) = found else { return location };
        let next = self.first + self.numbers.len();
        let number = *self.numbers.entry(index).or_insert(next);
        Location {
            module: ModuleId::CODE,
            offset: number as u64,
        }
    }
}

/// Stacks that can be found by what they are.
struct Stacks<'a> {
    table: &'a mut StackTable,
    numbers: HashMap<(StackId, Location), StackId>,
    /// So many there may be. A program makes its code anew a few times; a file could have it made anew for each sample.
    most: usize,
}

impl<'a> Stacks<'a> {
    fn of(table: &'a mut StackTable, samples: usize) -> Self {
        const TIMES: usize = 8;
        Self {
            most: table.count() as usize * TIMES + samples,
            table,
            numbers: HashMap::new(),
        }
    }

    /// The same stack with other locations; `None` if there are too many.
    fn renamed(
        &mut self,
        stack: StackId,
        mut rename: impl FnMut(Location) -> Location,
    ) -> Option<StackId> {
        let frames: Vec<Location> = self.table.locations(stack).collect();
        if self.numbers.len() + frames.len() > self.most {
            return None;
        }
        let mut parent = StackId::default();
        for location in frames.into_iter().rev().map(&mut rename) {
            let table = &mut *self.table;
            parent = *self
                .numbers
                .entry((parent, location))
                .or_insert_with(|| table.push(StackNode { parent, location }));
        }
        Some(parent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_record::SymbolFrame;
    use proptest::prelude::*;

    proptest! {
        /// Against a look at all of them, the last first.
        #[test]
        fn code_is_found_where_and_when_it_was(
            code in proptest::collection::vec((0u64..50, 1u64..20, 0u64..20, 1u64..20), 0..30),
        ) {
            // As `generations` gives them: what takes another's place ends it.
            let mut all: Vec<CodeGeneration> = Vec::new();
            let mut since = 0;
            for (start, size, pause, _) in code {
                since += pause;
                let end = start + size;
                for old in all.iter_mut().filter(|it| it.start < end && start < it.end) {
                    old.until_ns = old.until_ns.min(since);
                }
                let frame = SymbolFrame::default();
                all.push(CodeGeneration { start, end, since_ns: since, until_ns: u64::MAX, frame });
            }
            let ranges = Ranges::of(&all);
            let mut living = Living::of(&all);
            for time in 0..since + 2 {
                living.advance(time);
                for address in 0..75 {
                    let expected = all.iter().rposition(|it| it.holds(address, time));
                    prop_assert_eq!(living.at(address, time), expected);
                    prop_assert!(expected.is_none() || ranges.contains(address));
                }
            }
            for address in 0..75 {
                let is_code = all.iter().any(|it| (it.start..it.end).contains(&address));
                prop_assert_eq!(ranges.contains(address), is_code);
            }
        }
    }
}
