//! Values of a table, by row and column, read from the profile where they are.
//!
//! Nothing is copied into tables. What a table needs beyond the profile (numbers for stacks, the rows that were freed) is
//! made once, when a value first needs it.

use std::ops::Range;
use std::sync::OnceLock;

use allocsample_profile::{
    Allowance, Estimate, HeapId, MappingCall, Profile, Sample, StackId, Statistic, ThreadId,
    Weights,
};
use allocsample_report::{Coverage, FrameId, Ledger, LedgerRow};

use crate::column::Value;
use crate::index::Index;
use crate::table::Table;

/// What the tables of a profile need beyond it.
#[derive(Default)]
pub(crate) struct Made {
    index: OnceLock<Index>,
    /// Where in `frames` each stack begins, and the last one ends.
    frame_starts: OnceLock<Vec<u64>>,
    freed: OnceLock<Vec<u32>>,
    types: OnceLock<Vec<(HeapId, u32)>>,
    threads: OnceLock<Vec<ThreadId>>,
    heaps: OnceLock<Vec<Heap>>,
    gc_statistics: OnceLock<Vec<(u32, u32)>>,
    coverage: OnceLock<Vec<Owner>>,
    mappings: OnceLock<Vec<Mapping>>,
    residency: OnceLock<Vec<(u64, LedgerRow)>>,
    allocators: OnceLock<Vec<(String, String)>>,
}

impl Made {
    #[cfg(test)]
    pub(crate) fn has_index(&self) -> bool {
        self.index.get().is_some()
    }
}

/// What one who reads keeps from row to row.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The last text that was put together.
    text: String,
    weights: Option<Weights>,
    /// Where the frames of the last stack are among all, and from when `frames` has them.
    stack: Range<u64>,
    stack_index: u32,
    has_frames: bool,
    frames: Vec<FrameId>,
}

/// Reads values of a profile's tables.
pub(crate) struct Reader<'t> {
    pub profile: &'t Profile,
    pub made: &'t Made,
    pub scratch: &'t mut Scratch,
}

/// A row of `heaps`.
pub(crate) struct Heap {
    pub id: HeapId,
    pub name: String,
    pub kind: Option<String>,
    pub exact_bytes: u64,
    pub allowance: Allowance,
}

/// A row of `coverage`.
pub(crate) struct Owner {
    pub owner: String,
    pub is_sampled: bool,
    pub bytes: f64,
    pub likely_owner: Option<String>,
}

/// A row of `mappings`.
pub(crate) struct Mapping {
    /// Its row among the calls of the profile.
    pub call: usize,
    pub unmapped_ns: Option<u64>,
}

/// A row of `counters`.
pub(crate) struct Reading<'t> {
    pub time_ns: u64,
    pub heap: Option<HeapId>,
    pub name: Option<&'t str>,
    pub unit: Option<&'t str>,
    pub value: u64,
}

impl<'t> Reader<'t> {
    /// How many rows a table has.
    pub fn rows(&self, table: &Table) -> usize {
        (table.rows)(self)
    }

    /// The value in a row and a column of a table.
    pub fn value(&mut self, table: &Table, row: usize, column: usize) -> Value<'_> {
        (table.columns[column].read)(self, row)
    }

    /// A text that is put together for one value.
    pub fn own(&mut self, text: String) -> Value<'_> {
        self.scratch.text = text;
        Value::Text(&self.scratch.text)
    }

    pub fn since_start(&self, time_ns: u64) -> u64 {
        time_ns.saturating_sub(self.profile.process.start_ns)
    }

    pub fn index(&self) -> &'t Index {
        let (profile, made) = (self.profile, self.made);
        made.index.get_or_init(|| Index::new(profile))
    }

    /// Bytes and objects of a sample.
    #[inline]
    pub fn weight(&mut self, row: usize) -> (Estimate, Estimate) {
        let profile = self.profile;
        let weights = &mut self.scratch.weights;
        let weights = weights.get_or_insert_with(|| Weights::of(profile));
        weights.get(&profile.samples.at(row))
    }

    /// The samples that were freed.
    pub fn freed(&self) -> &'t [u32] {
        let samples = &self.profile.samples;
        self.made.freed.get_or_init(|| {
            // Rows of samples have 32 bits.
            let freed = (0..).zip(samples).filter(|(_, it)| it.freed_ns.is_some());
            freed.map(|(row, _)| row).collect()
        })
    }

    pub fn freed_row(&self, row: usize) -> usize {
        self.freed()[row] as usize
    }

    /// The number of the stack that freed a block.
    pub fn free_stack(&self, row: usize) -> Option<u32> {
        let stack = self.profile.free_stack(self.freed_row(row))?;
        Some(self.of_malloc(stack))
    }

    pub fn tick_stack(&self, row: usize) -> u32 {
        self.of_malloc(self.profile.ticks[row].stack)
    }

    /// The number of a sample's stack.
    pub fn stack_of(&self, row: usize) -> u32 {
        let sample = self.profile.samples.at(row);
        self.index().stack_of(sample.stack, sample.heap)
    }

    /// The number of a stack of malloc's heap, or of none.
    fn of_malloc(&self, stack: StackId) -> u32 {
        self.index().stack_of(stack, HeapId::MALLOC)
    }

    /// The row of a sample's type, from 1.
    pub fn type_of(&self, sample: &Sample) -> Option<usize> {
        let key = (sample.heap, sample.outcome()?.type_id);
        self.types().binary_search(&key).ok().map(|row| row + 1)
    }

    /// In the order of their keys.
    pub fn types(&self) -> &'t [(HeapId, u32)] {
        let types = &self.profile.vm.types;
        self.made
            .types
            .get_or_init(|| types.keys().copied().collect())
    }

    pub fn threads(&self) -> &'t [ThreadId] {
        let threads = &self.profile.threads;
        let made = &self.made.threads;
        made.get_or_init(|| threads.keys().copied().collect())
    }

    pub fn heaps(&self) -> &'t [Heap] {
        self.made.heaps.get_or_init(|| heaps(self.profile))
    }

    /// A collection and one of its statistics in each row.
    pub fn gc_statistics(&self) -> &'t [(u32, u32)] {
        let gcs = &self.profile.vm.gcs;
        self.made.gc_statistics.get_or_init(|| {
            let each = (0..).zip(gcs);
            let rows = |(gc, it): (u32, &allocsample_profile::Gc)| {
                (0..it.statistics.len() as u32).map(move |number| (gc, number))
            };
            each.flat_map(rows).collect()
        })
    }

    /// What a row of `gc_statistics` measures, if it is known, and how much.
    pub fn gc_statistic(&self, row: usize) -> (Option<&'t Statistic>, u64) {
        let (gc, number) = self.gc_statistics()[row];
        let gc = &self.profile.vm.gcs[gc as usize];
        let (statistic, value) = gc.statistics[number as usize];
        let described = self.profile.vm.statistics.get(&(gc.heap, statistic));
        (described, value)
    }

    pub fn reading(&self, row: usize) -> Reading<'t> {
        let resident = &self.profile.resident_bytes;
        if let Some(&(time_ns, value)) = resident.get(row) {
            return Reading {
                time_ns,
                heap: None,
                name: Some("resident set"),
                unit: Some("bytes"),
                value,
            };
        }
        let vm = &self.profile.vm;
        let reading = &vm.values[row - resident.len()];
        let described = vm.statistics.get(&(reading.heap, reading.statistic));
        Reading {
            time_ns: reading.time_ns,
            heap: Some(reading.heap),
            name: described.map(|it| it.name.as_str()),
            unit: described.map(|it| it.unit.as_str()),
            value: reading.value,
        }
    }

    pub fn coverage(&self) -> &'t [Owner] {
        self.made.coverage.get_or_init(|| owners(self.profile))
    }

    /// The calls that map memory.
    pub fn mappings(&self) -> &'t [Mapping] {
        let profile = self.profile;
        self.made.mappings.get_or_init(|| {
            let calls = profile.mappings.iter().enumerate();
            calls
                .zip(profile.unmapped_ns())
                .filter(|((_, call), _)| call.mapped.change.maps())
                .map(|((call, _), unmapped_ns)| Mapping { call, unmapped_ns })
                .collect()
        })
    }

    pub fn mapping(&self, row: usize) -> &'t MappingCall {
        &self.profile.mappings[self.mappings()[row].call]
    }

    pub fn mapping_stack(&self, row: usize) -> u32 {
        self.of_malloc(self.mapping(row).stack)
    }

    /// The rows of the ledgers of all readings with a list of mappings, each with its time.
    pub fn residency(&self) -> &'t [(u64, LedgerRow)] {
        let profile = self.profile;
        self.made.residency.get_or_init(|| {
            let listed = profile.memory.iter().filter(|map| !map.mappings.is_empty());
            let rows = listed.flat_map(|map| {
                let rows = Ledger::of(profile, map).rows.into_iter();
                rows.map(|row| (map.totals.time_ns, row))
            });
            rows.collect()
        })
    }

    /// Modules with an allocator of their own, and its name.
    pub fn allocators(&self) -> &'t [(String, String)] {
        let profile = self.profile;
        let made = &self.made.allocators;
        made.get_or_init(|| allocsample_report::coverage::allocators(profile))
    }

    /// Where in `frames` each stack begins, and the last one ends.
    fn frame_starts(&self) -> &'t [u64] {
        let (index, stacks) = (self.index(), &self.profile.stacks);
        let made = &self.made.frame_starts;
        made.get_or_init(|| index.frame_starts(stacks))
    }

    pub fn frame_count(&self) -> usize {
        let last = self.frame_starts().last().copied().unwrap_or(0);
        usize::try_from(last).unwrap_or(usize::MAX)
    }

    /// How many frames a stack has.
    pub fn depth(&self, stack: usize) -> u64 {
        let starts = self.frame_starts();
        starts[stack + 1] - starts[stack]
    }

    /// The stack that a row of `frames` is on; from there on its frames are in reach.
    pub fn stack_at(&mut self, row: usize) -> u32 {
        let row = row as u64;
        if !self.scratch.stack.contains(&row) {
            let starts = self.frame_starts();
            let next = self.scratch.stack_index as usize + 1;
            let bounds = starts.get(next).zip(starts.get(next + 1));
            let index = match bounds.is_some_and(|(&start, &end)| (start..end).contains(&row)) {
                true => next,
                false => starts.partition_point(|&start| start <= row) - 1,
            };
            self.scratch.stack = starts[index]..starts[index + 1];
            // Stacks have numbers of 32 bits.
            self.scratch.stack_index = index as u32;
            self.scratch.has_frames = false;
        }
        self.scratch.stack_index
    }

    pub fn depth_at(&mut self, row: usize) -> u64 {
        self.stack_at(row);
        row as u64 - self.scratch.stack.start
    }

    pub fn frame_at(&mut self, row: usize) -> Option<FrameId> {
        let (stack, depth) = (self.stack_at(row), self.depth_at(row));
        if !self.scratch.has_frames {
            self.index()
                .fill(self.profile, stack + 1, &mut self.scratch.frames);
            self.scratch.has_frames = true;
        }
        self.scratch.frames.get(depth as usize).copied()
    }

    /// The functions of a stack, outermost first.
    pub fn stack_text(&mut self, stack: usize) -> Value<'_> {
        let (index, scratch) = (self.index(), &mut *self.scratch);
        scratch.has_frames = false;
        // Stacks have numbers of 32 bits.
        index.fill(self.profile, stack as u32 + 1, &mut scratch.frames);
        scratch.text.clear();
        for &frame in scratch.frames.iter().rev() {
            if !scratch.text.is_empty() {
                scratch.text.push(';');
            }
            let function = index.function_of(frame) as usize;
            scratch.text.push_str(&index.functions[function - 1].name);
        }
        Value::Text(&scratch.text)
    }
}

fn heaps(profile: &Profile) -> Vec<Heap> {
    let allowances = profile.allowances(0, u64::MAX);
    let malloc = Heap {
        id: HeapId::MALLOC,
        name: "malloc".to_owned(),
        kind: Some("malloc".to_owned()),
        exact_bytes: profile.exact_bytes_of(HeapId::MALLOC),
        allowance: allowances.of(HeapId::MALLOC),
    };
    let others = profile.vm.heaps.iter().map(|(&id, heap)| Heap {
        id,
        name: heap.name.clone(),
        kind: heap.kind.map(|kind| format!("{kind:?}").to_lowercase()),
        exact_bytes: heap.exact_bytes,
        allowance: allowances.of(id),
    });
    std::iter::once(malloc).chain(others).collect()
}

fn owners(profile: &Profile) -> Vec<Owner> {
    let Some(coverage) = Coverage::of(profile) else {
        return Vec::new();
    };
    let owner = |owner: &str, bytes, likely_owner| Owner {
        owner: owner.to_owned(),
        is_sampled: false,
        bytes,
        likely_owner,
    };
    let mut owners = vec![Owner {
        is_sampled: true,
        ..owner("the sampled heaps", coverage.seen_bytes, None)
    }];
    let likely = |name: &str| {
        coverage
            .likely
            .clone()
            .filter(|_| name == Coverage::UNKNOWN)
    };
    if coverage.agent_bytes > 0.0 {
        owners.push(owner("allocsample itself", coverage.agent_bytes, None));
    }
    let others = coverage.owners.iter();
    owners.extend(others.map(|(name, bytes)| owner(name, *bytes, likely(name))));
    // Without a list of mappings.
    let known: f64 = coverage.owners.iter().map(|(_, bytes)| bytes).sum();
    let rest = coverage.anonymous_bytes - coverage.agent_bytes - coverage.seen_bytes - known;
    if coverage.owners.is_empty() && rest > 0.0 {
        owners.push(owner("not known", rest, coverage.likely));
    }
    owners
}
