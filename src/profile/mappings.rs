//! Calls of mmap and its kin, and what they had mapped at a moment.

use std::collections::BTreeMap;

use allocsample_record::{
    HeapId, HeapKind, Mapped, MappedRanges, MappingChange, ModuleId, SampleId, Sampling, StackId,
    ThreadId,
};

use crate::model::{Freed, IntervalInfo, Profile, Sample};
use crate::vm::Heap;

/// A call that changed what is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappingCall {
    /// What it did.
    pub mapped: Mapped,
    /// From where; empty for calls without a stack, see [`MappingChange::has_stack`].
    pub stack: StackId,
    /// See [`Profile::mapper_of`]; noted where frames are about to be taken out of the stack.
    mapper: Option<ModuleId>,
}

impl MappingCall {
    /// Of a change and the stack of the call.
    pub fn new(mapped: Mapped, stack: StackId) -> Self {
        Self {
            mapped,
            stack,
            mapper: None,
        }
    }

    /// Whether it mapped memory of no file.
    pub fn is_anonymous(&self) -> bool {
        /// `MAP_ANONYMOUS` of every architecture that the agent knows.
        const MAP_ANONYMOUS: u32 = 0x20;
        match self.mapped.change {
            MappingChange::Map => self.mapped.flags & MAP_ANONYMOUS != 0,
            MappingChange::Remap | MappingChange::Break | MappingChange::Own => true,
            MappingChange::Commit | MappingChange::Uncommit => true,
            MappingChange::Thread | MappingChange::OwnThread => true,
            MappingChange::Attach | MappingChange::Unmap | MappingChange::Discard => false,
        }
    }
}

/// Files of the C library, by their beginnings.
const LIBC: [&str; 3] = ["libc.so", "ld-linux", "libpthread.so"];

/// The heap that stands for mappings in [`Profile::of_mappings`].
pub const MAPPINGS: &str = "mappings";

impl Profile {
    /// A profile of the same process whose samples are its mappings and the stacks of its threads: each of them, as in a
    /// heap of its own, [`MAPPINGS`], in which every byte is a sample point. Their sizes are those of addresses, touched or
    /// not. What says nothing of mappings is missing.
    pub fn of_mappings(&self) -> Self {
        self.of_some_mappings(|_| true)
    }

    /// The same of some calls.
    pub fn of_some_mappings(&self, is_wanted: impl Fn(&MappingCall) -> bool) -> Self {
        const HEAP: HeapId = HeapId(u16::MAX);
        let mut profile = self.without_samples();
        let every_byte = IntervalInfo {
            time_ns: self.process.start_ns,
            sampling: Sampling::Poisson,
            interval_bytes: 1,
            seed: 0,
        };
        profile.intervals = vec![every_byte];
        profile.interval_history = vec![every_byte];
        let mut exact_bytes = 0;
        let calls = self.mappings.iter().zip(self.unmapped_ns());
        for ((call, unmapped_ns), id) in calls.zip(1..) {
            let it = &call.mapped;
            if !it.change.maps() || it.change.is_own() || !is_wanted(call) {
                continue;
            }
            exact_bytes += it.bytes;
            let mut sample = Sample {
                id: SampleId(id),
                time_ns: it.time_ns,
                address: it.start,
                size: it.bytes,
                thread: it.thread,
                heap: HEAP,
                flags: it.stack_flags,
                points: 1,
                stack: call.stack,
                ..Sample::default()
            };
            if let Some(time_ns) = unmapped_ns {
                sample.set_freed(Freed {
                    time_ns,
                    thread: ThreadId(0),
                });
            }
            profile.samples.push(sample);
        }
        profile.vm.heaps.clear();
        let heap = Heap {
            name: MAPPINGS.to_owned(),
            kind: Some(HeapKind::External),
            exact_bytes,
        };
        profile.vm.heaps.insert(HEAP, heap);
        profile
    }

    /// A profile of the same process, without what samples tell.
    pub(crate) fn without_samples(&self) -> Self {
        Self {
            process: self.process.clone(),
            modules: self.modules.clone(),
            threads: self.threads.clone(),
            stacks: self.stacks.clone(),
            symbols: self.symbols.clone(),
            resident_bytes: self.resident_bytes.clone(),
            memory: self.memory.clone(),
            inspected: self.inspected.clone(),
            notes: self.notes.clone(),
            exit: self.exit,
            is_running: self.is_running,
            part: self.part,
            vm: self.vm.clone(),
            charging: self.charging.clone(),
            runtimes: self.runtimes.clone(),
            narrowed: Some(self.narrowed.unwrap_or_default()),
            ..Self::default()
        }
    }

    /// The module that a call came from: the first one on its stack that is not the C library, be it a runtime or not.
    /// [`ModuleId::NONE`] is code of no module. `None`: the stack has no native frame, or none before the first of a language. Such a
    /// frame stands in for the native code of its machine, which has made the call.
    pub fn mapper_of(&self, call: &MappingCall) -> Option<ModuleId> {
        let is_of_libc = |module: ModuleId| {
            let module = self.module(module).map_or("", |module| module.name());
            LIBC.iter().any(|name| module.starts_with(name))
        };
        call.mapper.or_else(|| {
            let mut modules = self.stacks.locations(call.stack).map(|it| it.module);
            let first = modules.find(|&module| module == ModuleId::VM || !is_of_libc(module));
            first.filter(|module| ![ModuleId::VM, ModuleId::NO_ROOT].contains(module))
        })
    }

    /// To be called before frames are taken out of the stacks.
    pub(crate) fn note_mappers(&mut self) {
        for row in 0..self.mappings.len() {
            self.mappings[row].mapper = self.mapper_of(&self.mappings[row]);
        }
    }

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

    /// For each call that mapped memory, when the last of it was unmapped; `None` if some was mapped at the end. Memory that mprotect
    /// made usable ends when it is made inaccessible, too. A thread's stack is given back when another stack or mapping is where it
    /// was: the C library keeps the stacks of threads that have ended, or unmaps them unseen.
    pub fn unmapped_ns(&self) -> Vec<Option<u64>> {
        let mut ranges = MappedRanges::new();
        let mut stacks = Stacks::default();
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
            let end = match change.is_thread() {
                true => start.saturating_add(1),
                false => start.saturating_add(bytes),
            };
            let (removes_mappings, removes_commits) = match change {
                _ if change.is_thread() => (false, false),
                MappingChange::Discard => (false, false),
                MappingChange::Commit | MappingChange::Uncommit => (false, true),
                _ => (true, true),
            };
            let mappings = removes_mappings.then(|| ranges.mapped_within(start, end));
            let commits = removes_commits.then(|| ranges.committed_within(start, end));
            let removed = mappings.into_iter().flatten();
            for (from, to, before) in removed.chain(commits.into_iter().flatten()) {
                let before: usize = before;
                left[before] = left[before].saturating_sub(to - from);
                if left[before] == 0 {
                    ends[before] = Some(time_ns);
                }
            }
            if change.is_thread() {
                let low = start.saturating_sub(certain_stack(bytes));
                stacks.end_within(low, end, |thread| ends[thread] = Some(time_ns));
                stacks.begin(start, bytes, row);
            } else if removes_mappings {
                stacks.end_within(start, end, |thread| ends[thread] = Some(time_ns));
            }
            left.push(bytes);
            ranges.apply(change, start, bytes, row);
        }
        ends
    }
}

/// Stacks of threads, by the address of the descriptor, which is at the upper end: length, and row of the call.
#[derive(Default)]
struct Stacks {
    threads: BTreeMap<u64, (u64, usize)>,
    /// The longest so far.
    longest: u64,
}

/// Of a stack, what lies below the descriptor in any case.
fn certain_stack(bytes: u64) -> u64 {
    bytes - bytes / 8
}

impl Stacks {
    fn begin(&mut self, descriptor: u64, bytes: u64, row: usize) {
        self.longest = self.longest.max(bytes);
        self.threads.insert(descriptor, (bytes, row));
    }

    /// Ends the threads whose stacks overlap a range that is something else now.
    fn end_within(&mut self, start: u64, end: u64, mut ended: impl FnMut(usize)) {
        let near = (self.threads).range(start..end.saturating_add(self.longest).max(start));
        let gone = near.filter(|(descriptor, (bytes, _))| {
            start < end && descriptor.saturating_sub(certain_stack(*bytes)) < end
        });
        let gone: Vec<u64> = gone.map(|(&descriptor, _)| descriptor).collect();
        for descriptor in gone {
            if let Some((_, row)) = self.threads.remove(&descriptor) {
                ended(row);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Module;
    use crate::{Location, StackNode};

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

    /// A machine that told of its code as a whole has no native frames on a stack. Below its own frames there are those of the program
    /// that started it, or of an extension, which has not made the call.
    #[test]
    fn a_call_below_a_frame_of_a_language_is_the_machines_and_not_the_next_modules() {
        let module = |name: &str| Module {
            path: format!("/usr/lib/{name}"),
            build_id: Vec::new(),
            start: 0,
            end: 0,
            bias: 0,
        };
        let [libc, extension, runtime] = [1, 2, 3].map(ModuleId);
        let mapper_of = |innermost_first: &[ModuleId]| {
            let mut profile = profile(&[(MappingChange::Map, 100, 100)]);
            profile.modules = ["libc.so.6", "psych.so", "ruby3.1"].map(module).to_vec();
            let root_first = innermost_first.iter().rev();
            let stack = root_first.fold(StackId::EMPTY, |parent, &module| {
                let location = Location { module, offset: 1 };
                profile.stacks.push(StackNode { parent, location })
            });
            profile.mappings[0].stack = stack;
            profile.mapper_of(&profile.mappings[0])
        };
        let vm = ModuleId::VM;
        assert_eq!(mapper_of(&[vm, extension, vm, runtime]), None);
        assert_eq!(mapper_of(&[libc, vm, runtime]), None);
        assert_eq!(mapper_of(&[libc, extension, vm, runtime]), Some(extension));
        assert_eq!(mapper_of(&[runtime]), Some(runtime));
        assert_eq!(mapper_of(&[libc]), None);
        assert_eq!(mapper_of(&[]), None);
    }

    #[test]
    fn what_is_mapped_is_what_the_calls_so_far_have_left() {
        use MappingChange::{Map, Thread, Unmap};
        let profile = profile(&[
            (Map, 100, 100),
            (Map, 300, 50),
            (Unmap, 120, 20),
            (Thread, 330, 50),
            (Unmap, 300, 30),
            (Thread, 330, 50),
        ]);
        let at = |time_ns| {
            let ranges = profile.mapped_at(time_ns);
            ranges.within(0, 1000).collect::<Vec<_>>()
        };
        assert_eq!(at(0), []);
        assert_eq!(at(2), [(100, 200, 0), (300, 350, 1)]);
        assert_eq!(at(3), [(100, 120, 0), (140, 200, 0), (300, 350, 1)]);
        assert_eq!(profile.mapped_at(4).threads_within(300, 350).count(), 1);
        assert_eq!(at(9), [(100, 120, 0), (140, 200, 0), (330, 350, 1)]);
        let ends = [None, None, None, Some(5), None, None];
        assert_eq!(profile.unmapped_ns(), ends);
    }

    /// The C library unmaps the stacks of threads that have ended, unseen.
    #[test]
    fn a_thread_has_ended_when_something_else_is_where_its_stack_was() {
        use MappingChange::{Map, Thread};
        let profile = profile(&[
            (Thread, 10_000, 800),
            (Thread, 9_200, 800),  // the next one below
            (Thread, 9_700, 800),  // over both
            (Thread, 20_000, 800), // far away
            (Map, 19_300, 100),    // in the last one
            (Map, 9_700, 300),     // above a descriptor
            (Thread, 9_700, 64),   // the same descriptor
        ]);
        let ends = [Some(3), Some(3), Some(6), Some(5), None, None, None];
        assert_eq!(profile.unmapped_ns(), ends);
    }

    #[test]
    fn as_samples_mappings_stand_for_themselves() {
        use MappingChange::{Map, Own, Thread, Unmap};
        let profile = profile(&[
            (Map, 4096, 100),
            (Own, 8192, 4096),
            (Thread, 9000, 64),
            (Unmap, 4096, 100),
        ]);
        let mappings = profile.of_mappings();
        let rows: Vec<_> = (mappings.samples.iter())
            .map(|it| {
                (
                    it.size,
                    it.freed_ns.map(|it| it.get()),
                    mappings.bytes(&it).value(),
                )
            })
            .collect();
        assert_eq!(rows, [(100, Some(4), 100.0), (64, None, 64.0)]);
        assert!(
            mappings
                .samples
                .iter()
                .all(|it| mappings.bytes(&it).is_exact())
        );
    }

    #[test]
    fn a_commit_ends_when_it_is_inaccessible_and_its_reservation_goes_on() {
        use MappingChange::{Commit, Discard, Map, Uncommit, Unmap};
        let profile = profile(&[
            (Map, 100, 1000),
            (Commit, 200, 100),
            (Commit, 300, 100),
            (Discard, 200, 200),
            (Uncommit, 200, 150),
            (Commit, 350, 50),
            (Unmap, 100, 1000),
        ]);
        let ends = [Some(7), Some(5), Some(6), None, None, Some(7), None];
        assert_eq!(profile.unmapped_ns(), ends);
        let at = |time_ns| {
            let ranges = profile.mapped_at(time_ns);
            ranges.within(0, 5000).collect::<Vec<_>>()
        };
        assert_eq!(
            at(4),
            [(100, 200, 0), (200, 300, 1), (300, 400, 2), (400, 1100, 0)]
        );
        assert_eq!(at(5), [(100, 350, 0), (350, 400, 2), (400, 1100, 0)]);
        assert_eq!(at(7), []);
        // Neither what is discarded nor what is taken back maps anything.
        assert_eq!(profile.of_mappings().samples.len(), 4);
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
