//! Frames in compiled code get the name that the code had when the sample was taken.

use std::collections::{BTreeMap, HashMap};

use allocsample_record::{CodeGeneration, Location, ModuleId, StackId, StackNode};

use crate::model::Profile;
use crate::stacks::StackTable;

impl Profile {
    /// Gives names to code of no module by `code`, of which what no sample needs is dropped.
    pub(crate) fn name_code(&mut self, code: Vec<CodeGeneration>) {
        let mut needed = Needed {
            table: ByAddress::of(&code),
            numbers: HashMap::new(),
            first: self.symbols.code.len(),
        };
        let has_code = stacks_with_code(&self.stacks, &needed.table);
        let mut stacks = Stacks::of(&mut self.stacks);
        for sample in &mut self.samples {
            let index = (sample.stack.0 as usize).wrapping_sub(1);
            if has_code.get(index) == Some(&true) {
                sample.stack = stacks.renamed(sample.stack, |location| {
                    needed.location(location, sample.time_ns)
                });
            }
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
fn stacks_with_code(stacks: &StackTable, table: &ByAddress<'_>) -> Vec<bool> {
    let mut has_code: Vec<bool> = Vec::with_capacity(stacks.nodes().len());
    for node in stacks.nodes() {
        let is_of_caller = (node.parent.0 as usize)
            .checked_sub(1)
            .is_some_and(|caller| has_code.get(caller) == Some(&true));
        let own = || call_address(node.location).is_some_and(|at| table.at(at).next().is_some());
        has_code.push(is_of_caller || own());
    }
    has_code
}

/// Where the call stands, in code of no module.
fn call_address(location: Location) -> Option<u64> {
    (location.module == ModuleId::NONE).then(|| location.offset.wrapping_sub(1))
}

/// Generations in the order of their addresses.
struct ByAddress<'a> {
    code: &'a [CodeGeneration],
    by_start: BTreeMap<(u64, usize), usize>,
    longest: u64,
}

impl<'a> ByAddress<'a> {
    fn of(code: &'a [CodeGeneration]) -> Self {
        let indices = code.iter().enumerate();
        Self {
            code,
            by_start: indices
                .map(|(index, code)| ((code.start, index), index))
                .collect(),
            longest: code
                .iter()
                .map(|code| code.end.saturating_sub(code.start))
                .max()
                .unwrap_or(0),
        }
    }

    /// Those that held the address at any time.
    fn at(&self, address: u64) -> impl Iterator<Item = usize> + '_ {
        let first = address.saturating_sub(self.longest);
        self.by_start
            .range((first, 0)..=(address, usize::MAX))
            .map(|(_, &index)| index)
            .filter(move |&index| address < self.code[index].end)
    }
}

/// Which generations samples were in.
struct Needed<'a> {
    table: ByAddress<'a>,
    /// Index into the table, and into the profile's.
    numbers: HashMap<usize, usize>,
    first: usize,
}

impl Needed<'_> {
    fn location(&mut self, location: Location, time_ns: u64) -> Location {
        let found = call_address(location).and_then(|address| {
            let mut all = self.table.at(address);
            all.find(|&index| self.table.code[index].holds(address, time_ns))
        });
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
}

impl<'a> Stacks<'a> {
    fn of(table: &'a mut StackTable) -> Self {
        Self {
            table,
            numbers: HashMap::new(),
        }
    }

    fn renamed(&mut self, stack: StackId, mut rename: impl FnMut(Location) -> Location) -> StackId {
        let frames: Vec<Location> = self.table.locations(stack).collect();
        let mut parent = StackId::default();
        for location in frames.into_iter().rev().map(&mut rename) {
            let table = &mut *self.table;
            parent = *self
                .numbers
                .entry((parent, location))
                .or_insert_with(|| table.push(StackNode { parent, location }));
        }
        parent
    }
}
