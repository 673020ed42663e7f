//! Builds a profile record by record, from the file's events and from the ring's records alike.

mod held;

use std::ops::Range;

use allocsample_record::{
    AddressSpace, Decoded, Definition, Fate, FateRecord, FreeRecord, HeapId, IntervalRecord,
    ModuleRecord, PartEdge, PartRecord, RecordKind, SampleFlags, SampleId, StackId, StackNode,
    ThreadId, readable,
};
use held::Held;
use rustc_hash::FxHashMap;

use crate::batch::Batch;
use crate::before::Before;
use crate::counts::Counts;
use crate::limits::{DEEPEST, make_room};
use crate::mappings::MappingCall;
use crate::model::{Exit, Freed, IntervalInfo, Lost, Module, Profile, Sample, Tick};
use crate::nodes::{NodeIndex, stack_of};
use crate::reach::ReachBuilder;
use crate::sample_index::SampleIndex;
use crate::samples::FileSamples;

/// A profile in the making.
#[derive(Default)]
pub(crate) struct ProfileBuilder {
    pub(crate) profile: Profile,
    space: AddressSpace,
    nodes: NodeIndex,
    /// The nodes of the file, in the order of its numbers.
    numbers: Vec<StackId>,
    by_id: SampleIndex,
    /// The rows of the last frees; room to work in.
    found: Vec<Option<usize>>,
    /// The last stack of each thread, which its next sample in the ring shares frames with; worked out when the first does.
    last_stacks: Option<FxHashMap<ThreadId, StackId>>,
    before: Before,
    counts: Counts,
    reach: ReachBuilder,
    held: Held,
}

impl ProfileBuilder {
    /// Begins and ends what a file says of the time before it.
    pub(crate) fn set_before(&mut self, is_told: bool) {
        self.before.is_told = is_told;
    }

    /// Numbers of nodes begin anew.
    pub(crate) fn forget_numbers(&mut self) {
        self.numbers.clear();
    }

    /// How many nodes the file has had.
    pub(crate) fn numbers(&self) -> u32 {
        self.numbers.len() as u32
    }

    /// What had been lost when the file began.
    pub(crate) fn set_lost_before(&mut self, lost: Lost) {
        if !self.before.is_known {
            self.before.lost = Some(lost);
        }
    }

    /// What the agent had told of itself when the file began.
    pub(crate) fn set_figures_before(&mut self) {
        if !self.before.is_known {
            self.before.figures = Some(self.profile.own_cost.figures);
        }
    }

    /// When everything is in: what was before the file is taken off.
    pub(crate) fn finish(mut self) -> Profile {
        self.profile.free_stacks.sort_by_key(|(index, _)| *index);
        let before = &self.before;
        let reach = std::mem::take(&mut self.reach);
        self.profile.reach = reach.finish(&self.profile, |thread| before.bytes_of(thread));
        self.profile.memory.sort_by_key(|map| map.totals.time_ns);
        self.profile.mappings.sort_by_key(|it| it.mapped.time_ns);
        self.before.take_off(&mut self.profile);
        self.drop_samples_without_interval();
        self.profile.set_pages_apart();
        self.counts.drop_old(&mut self.profile);
        self.profile.vm.tell_functions_apart();
        self.profile
    }

    /// What they stand for is not known. Not before the end: what a machine had defined may come late in the file.
    fn drop_samples_without_interval(&mut self) {
        let profile = &mut self.profile;
        let has_interval = |sample: Sample| {
            let interval = profile.intervals.get(usize::from(sample.interval));
            interval.is_some_and(|interval| interval.interval_bytes != 0)
        };
        if profile.samples.iter().all(has_interval) {
            return;
        }
        let is_kept: Vec<bool> = profile.samples.iter().map(has_interval).collect();
        let dropped = is_kept.iter().filter(|is_kept| !**is_kept).count();
        profile.keep_rows(&is_kept);
        profile.recovery.malformed_records += dropped as u64;
    }

    /// Adds events, and leaves the memory that they were in.
    pub(crate) fn add_batch(&mut self, batch: &mut Batch) {
        let stacks = &mut self.profile.stacks;
        self.nodes
            .intern_all(stacks, &batch.nodes, &mut self.numbers);
        for run in batch.runs() {
            self.add_samples(&mut batch.samples, run.samples);
            self.add_frees(&batch.frees[run.frees]);
            if let Some((kind, words)) = batch.records.get(run.record) {
                self.add_record(SampleId(0), *kind, words);
            }
        }
        for free in &batch.free_stacks {
            self.add_free_stack(free.sample, self.stack(StackId(free.stack)));
        }
    }

    fn add_samples(&mut self, samples: &mut FileSamples, rows: Range<usize>) {
        samples.map_stacks(rows.clone(), |stack| stack_of(&self.numbers, stack));
        if self.before.is_told {
            for row in rows {
                let (sample, thread_bytes) = samples.at(row);
                self.add_sample(sample, thread_bytes);
            }
            return;
        }
        let ids = samples.ids(rows.clone());
        for (row, id) in (self.profile.samples.len()..).zip(ids) {
            self.by_id.insert(id, row);
        }
        let mut rest = rows.clone();
        while !rest.is_empty() {
            let some = samples.alike(rest.clone());
            rest.start = some.end;
            let (Sample { thread, heap, .. }, _) = samples.at(some.start);
            self.add_thread_bytes(thread, heap, samples.thread_bytes(some.clone()));
            let sizes = samples.sizes(some.clone());
            for (interval, &size) in samples.intervals(some.clone()).zip(sizes) {
                self.reach.add_size_of(heap, interval, size);
            }
            if let Some(last_stacks) = &mut self.last_stacks {
                let (last, _) = samples.at(some.end - 1);
                last_stacks.insert(thread, last.stack);
            }
        }
        if !rows.is_empty() {
            self.seen(samples.last_ns(rows.clone()));
            self.profile.part.is_continued = false;
        }
        self.profile.samples.extend(samples, rows);
    }

    /// Adds a record as it stood in the ring.
    pub(crate) fn add_record(&mut self, position: SampleId, kind: u8, words: &[u64]) {
        // A kind that a newer version added.
        let Some(kind) = RecordKind::from_number(kind) else {
            return;
        };
        let text: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.held.add_record(kind, text.len());
        match Decoded::decode(kind, words, &text) {
            Some(decoded) => self.add_decoded(position, decoded),
            None => self.profile.recovery.malformed_records += 1,
        }
    }

    fn add_decoded(&mut self, position: SampleId, decoded: Decoded<'_>) {
        match decoded {
            Decoded::Process(_) if self.is_known_before() => {}
            Decoded::Process(process) => {
                let info = &mut self.profile.process;
                info.pid = process.pid;
                info.parent_pid = process.parent_pid;
                info.executable = lossy(process.executable);
                let arguments = process
                    .command_line
                    .strip_suffix(b"\0")
                    .unwrap_or(process.command_line);
                info.command_line = arguments.split(|&byte| byte == 0).map(lossy).collect();
                if self.before.is_told {
                    // The file begins later.
                    self.profile.part.recording_start_ns = Some(process.start_mono_ns);
                } else {
                    info.start_ns = process.start_mono_ns;
                    info.start_wall_ns = process.start_wall_ns;
                    self.seen(process.start_mono_ns);
                }
            }
            Decoded::Part(part) => self.add_part(&part),
            Decoded::LastStack(last) => {
                let stack = self.stack(StackId(last.stack));
                let last_stacks = self.last_stacks.get_or_insert_default();
                last_stacks.insert(last.thread, stack);
            }
            Decoded::Sample(sample) => {
                let shared = self.last_stack_to(sample.thread, sample.shared as usize);
                let flags = match shared {
                    Some(_) => sample.flags,
                    // Not what the agent writes, but a file may say anything.
                    None => sample.flags.with(SampleFlags::TRUNCATED),
                };
                let stack = self.intern(shared.unwrap_or_default(), sample.frames);
                self.add_sample(
                    Sample {
                        id: position,
                        time_ns: sample.time_ns,
                        address: sample.address,
                        size: sample.size,
                        thread: sample.thread,
                        heap: sample.heap,
                        flags,
                        points: sample.points,
                        interval: sample.interval,
                        stack,
                        ..Sample::default()
                    },
                    sample.thread_bytes,
                );
                if let Some(typed) = FateRecord::of_type(position, sample.type_id, sample.time_ns) {
                    self.add_fate(&typed);
                }
            }
            Decoded::Free(free) => self.add_frees(&[free]),
            Decoded::Deaths(deaths) => {
                let frees: Vec<_> = deaths.frees().collect();
                self.add_frees(&frees);
            }
            Decoded::Module(module) => self.add_module_once(&module),
            Decoded::ModuleAgain(module) => self.space.map_again(&module),
            Decoded::ModuleUnload(module) => self.space.unmap(&module),
            Decoded::ThreadStart(start) => {
                self.seen(start.time_ns);
                let name = start.name.split(|&byte| byte == 0).next().unwrap_or(&[]);
                let thread = self.profile.threads.entry(start.thread).or_default();
                thread.tid = start.tid;
                thread.name = lossy(name);
                thread.start_ns = start.time_ns;
            }
            Decoded::ThreadEnd(end) if self.before.is_told => {
                let thread = self.profile.threads.entry(end.total.thread).or_default();
                thread.end_ns = Some(end.time_ns);
            }
            Decoded::ThreadTotal(total) if self.before.is_told => {
                if !self.before.is_known {
                    let counted = (total.bytes, total.muted_bytes);
                    self.before.threads.insert(total.thread, counted);
                    self.set_total(total.thread, total.bytes, total.muted_bytes);
                }
            }
            Decoded::ThreadEnd(end) => {
                self.seen(end.time_ns);
                self.set_total(end.total.thread, end.total.bytes, end.total.muted_bytes)
                    .end_ns = Some(end.time_ns);
            }
            Decoded::ThreadTotal(total) => {
                self.set_total(total.thread, total.bytes, total.muted_bytes);
            }
            Decoded::Interval(interval) => {
                let info = IntervalInfo {
                    time_ns: interval.time_ns,
                    sampling: interval.sampling,
                    interval_bytes: interval.interval_bytes,
                    seed: interval.seed,
                };
                if !self.is_known_before() {
                    self.add_interval(interval.index, info, interval.heap);
                }
            }
            Decoded::Event(_, _) if self.is_known_before() => {}
            Decoded::Event(kind, words) => {
                if let Some(&time_ns) = words.first() {
                    self.seen(time_ns);
                }
                self.profile.events.push(kind, words);
            }
            Decoded::Exec(exec) => self.seen(exec.time_ns),
            Decoded::Exit(exit) => {
                self.seen(exit.time_ns);
                self.profile.exit = Some(Exit {
                    time_ns: exit.time_ns,
                    how: exit.how,
                    status: exit.status,
                });
            }
            Decoded::Counter(counter) => {
                self.seen(counter.time_ns);
                self.profile
                    .resident_bytes
                    .push((counter.time_ns, counter.value));
            }
            Decoded::Definition(definition) => {
                if definition.kind == Definition::Thread {
                    let thread = ThreadId(definition.id);
                    self.profile.threads.entry(thread).or_default().name = lossy(definition.name);
                }
                self.profile.vm.define(&definition);
            }
            Decoded::Fate(fate) => self.add_fate(&fate),
            Decoded::Code(code) => {
                if !self.before.is_told {
                    self.seen(code.time_ns);
                }
                self.space.change_code(&code);
            }
            Decoded::Gc(gc) => {
                self.seen(gc.end_ns);
                self.profile.vm.add_gc(&gc);
            }
            Decoded::Marker(marker) => {
                self.seen(marker.end_ns);
                self.profile.vm.add_marker(&marker);
            }
            Decoded::Value(value) if self.before.is_told => {
                if !self.before.is_known {
                    self.before.heaps.insert(value.heap, value.value);
                    self.profile.vm.add_value(&value);
                }
            }
            Decoded::Value(value) => {
                self.seen(value.time_ns);
                self.counts.add(&value);
                self.profile.vm.add_value(&value);
            }
            Decoded::Tick(tick) => {
                let stack = self.intern(StackId::EMPTY, tick.frames);
                self.add_tick(Tick {
                    time_ns: tick.time_ns,
                    cpu_ns: tick.cpu_ns,
                    thread: tick.thread,
                    stack,
                    flags: tick.flags,
                });
            }
            Decoded::FileTick(tick) => {
                let stack = self.stack(StackId(tick.stack));
                self.add_tick(Tick {
                    time_ns: tick.time_ns,
                    cpu_ns: tick.cpu_ns,
                    thread: tick.thread,
                    stack,
                    flags: tick.flags,
                });
            }
            Decoded::Mapping(_) | Decoded::FileMapping(_) if self.is_known_before() => {}
            Decoded::Mapping(call) => {
                let (thread, shared) = (call.mapped.thread, call.shared as usize);
                let mut mapped = call.mapped;
                let shared = self.last_stack_to(thread, shared);
                if shared.is_none() {
                    mapped.stack_flags = mapped.stack_flags.with(SampleFlags::TRUNCATED);
                }
                let stack = self.intern(shared.unwrap_or_default(), call.frames);
                self.add_mapping(MappingCall::new(mapped, stack));
            }
            Decoded::FileMapping(call) => {
                let stack = self.stack(StackId(call.stack));
                self.add_mapping(MappingCall::new(call.mapped, stack));
            }
            Decoded::FreeStack(free) => {
                if let Some(shared) = self.last_stack_to(free.thread, free.shared as usize) {
                    let stack = self.intern(shared, free.frames);
                    self.add_free_stack(free.sample, stack);
                }
            }
            Decoded::FileFreeStack(free) => {
                let stack = self.stack(StackId(free.stack));
                self.add_free_stack(free.sample, stack);
            }
            Decoded::Note(_) if self.is_known_before() => {}
            Decoded::Note(note) => self.profile.notes.push((note.note, lossy(note.detail))),
        }
    }

    /// Whether this is of before a later one of joined files: what is known already.
    fn is_known_before(&self) -> bool {
        self.before.is_told && self.before.is_known
    }

    fn add_part(&mut self, part: &PartRecord) {
        self.seen(part.time_ns);
        let is_first = self.profile.process.pid == 0 && self.profile.samples.is_empty();
        let own = &mut self.profile.part;
        own.is_continued = part.edge == PartEdge::End;
        if part.edge == PartEdge::End {
            return;
        }
        self.before.modules = 0;
        self.before.is_known = !is_first;
        if is_first {
            own.before = part.number.saturating_sub(1);
            self.profile.process.start_ns = part.time_ns;
            self.profile.process.start_wall_ns = part.wall_ns;
        }
    }

    /// The module with this number may be known from the file before.
    fn add_module_once(&mut self, module: &ModuleRecord<'_>) {
        if self.before.is_told {
            self.before.modules += 1;
            if self.before.modules <= self.profile.modules.len() {
                return;
            }
        }
        self.add_module(module);
    }

    fn add_sample(&mut self, sample: Sample, thread_bytes: u64) {
        if let Some(last_stacks) = &mut self.last_stacks {
            last_stacks.insert(sample.thread, sample.stack);
        }
        if self.before.is_told {
            if self.before.is_known && self.by_id.get(sample.id, &self.profile.samples).is_some() {
                return;
            }
        } else {
            self.seen(sample.time_ns);
            self.add_thread_bytes(sample.thread, sample.heap, &[thread_bytes]);
            // Whatever a border said: it went on here.
            self.profile.part.is_continued = false;
        }
        self.reach.add_size(&sample);
        self.by_id.insert(sample.id, self.profile.samples.len());
        self.profile.samples.push(sample);
    }

    /// Samples of a thread in a heap were taken when the thread had allocated so many bytes.
    fn add_thread_bytes(&mut self, id: ThreadId, heap: HeapId, bytes: &[u64]) {
        let thread = self.profile.threads.entry(id).or_default();
        thread.exact_bytes = bytes
            .iter()
            .fold(thread.exact_bytes, |most, &it| most.max(it));
        if heap == HeapId::MALLOC {
            let before = self.before.bytes_of(id);
            let history = &self.profile.interval_history;
            self.reach.add_bytes(id, bytes, before, history);
        }
    }

    fn add_tick(&mut self, tick: Tick) {
        self.seen(tick.time_ns);
        self.profile.threads.entry(tick.thread).or_default();
        make_room(&mut self.profile.ticks, 1);
        self.profile.ticks.push(tick);
    }

    /// What a file brings along was mapped before.
    fn add_mapping(&mut self, call: MappingCall) {
        if !self.before.is_told {
            self.seen(call.mapped.time_ns);
        }
        make_room(&mut self.profile.mappings, 1);
        self.profile.mappings.push(call);
    }

    /// The first record of a number says what it means; those that come later say when it was in force again.
    fn add_interval(&mut self, index: u16, info: IntervalInfo, heap: HeapId) {
        let number = index;
        let (index, intervals) = (usize::from(index), &mut self.profile.intervals);
        if index >= intervals.len() {
            // Numbers of other intervals, which a forked child's parent had.
            let unknown = IntervalInfo {
                interval_bytes: 0,
                ..info
            };
            intervals.resize(index, unknown);
            intervals.push(info);
        } else if let Some(place) = intervals.get_mut(index)
            && place.interval_bytes == 0
        {
            *place = info;
        }
        match heap {
            HeapId::MALLOC => {}
            IntervalRecord::SOME_HEAP => {
                self.reach.add_heaps_interval(number);
                return;
            }
            heap => {
                let own = self.profile.vm.intervals.entry(heap).or_default();
                make_room(own, 1);
                own.push(info);
                return;
            }
        }
        // One that a file brings along was in force before, unless it is as of now.
        let history = &mut self.profile.interval_history;
        let is_same = (history.last()).is_some_and(|last| {
            (last.interval_bytes, last.sampling) == (info.interval_bytes, info.sampling)
        });
        if !is_same && (!self.before.is_told || info.time_ns >= self.profile.process.start_ns) {
            history.push(info);
        }
    }

    /// The end of a sample that is not there (it was malformed, or its chunk is) says nothing.
    fn add_frees(&mut self, frees: &[FreeRecord]) {
        let last_ns = frees.iter().map(|free| free.time_ns).max();
        last_ns.into_iter().for_each(|time_ns| self.seen(time_ns));
        let samples = &mut self.profile.samples;
        let ids = frees.iter().map(|free| free.sample);
        self.by_id.get_all(ids, samples, &mut self.found);
        for (free, row) in frees.iter().zip(&self.found) {
            let Some(row) = *row else { continue };
            if samples.at(row).freed_ns.is_none() {
                let freed = Freed {
                    time_ns: free.time_ns,
                    thread: free.thread,
                };
                samples.set_freed(row, freed);
            }
        }
    }

    fn add_free_stack(&mut self, id: SampleId, stack: StackId) {
        let index = self.by_id.get(id, &self.profile.samples);
        if let Some(index) = index.and_then(|index| u32::try_from(index).ok()) {
            make_room(&mut self.profile.free_stacks, 1);
            self.profile.free_stacks.push((index, stack));
        }
    }

    /// The row of a sample whose end was not told yet.
    fn living(&mut self, id: SampleId) -> Option<usize> {
        let row = self.by_id.get(id, &self.profile.samples)?;
        let sample = self.profile.samples.get(row)?;
        sample.freed_ns.is_none().then_some(row)
    }

    fn add_fate(&mut self, fate: &FateRecord) {
        if !self.before.is_told {
            self.seen(fate.time_ns);
        }
        let Some(row) = self.living(fate.sample) else {
            return;
        };
        let samples = &mut self.profile.samples;
        let sample = samples.at(row);
        let type_id = match fate.type_id {
            0 => sample.type_id,
            type_id => type_id,
        };
        let first_fate = match sample.first_fate {
            None | Some(Fate::Open) => fate.fate,
            Some(first_fate) => first_fate,
        };
        samples.set_outcome(row, type_id, Some(first_fate));
        if fate.fate == Fate::Dead {
            let freed = Freed {
                time_ns: fate.time_ns,
                thread: ThreadId(0),
            };
            samples.set_freed(row, freed);
        }
        if fate.content_hash != 0 {
            let hashes = &mut self.profile.content_hashes;
            hashes.insert(row, fate.content_hash);
        }
    }

    fn add_module(&mut self, module: &ModuleRecord<'_>) {
        self.space.map(module);
        self.profile.modules.push(Module {
            path: lossy(module.path),
            build_id: module.build_id.to_vec(),
            start: module.start,
            end: module.end,
            bias: module.bias,
        });
    }

    fn set_total(
        &mut self,
        thread: ThreadId,
        bytes: u64,
        muted_bytes: u64,
    ) -> &mut crate::model::Thread {
        let is_sum_of_ended = thread == ThreadId(0);
        let thread = self.profile.threads.entry(thread).or_default();
        if is_sum_of_ended {
            "(ended before the first sample)".clone_into(&mut thread.name);
        }
        thread.exact_bytes = bytes;
        thread.muted_bytes = muted_bytes;
        thread
    }

    /// The first `shared` frames of the thread's last stack, counted from the root; `None` if it is not that deep.
    fn last_stack_to(&mut self, thread: ThreadId, shared: usize) -> Option<StackId> {
        if shared == 0 {
            return Some(StackId::EMPTY);
        }
        let Profile {
            samples, stacks, ..
        } = &self.profile;
        let last_stacks = self.last_stacks.get_or_insert_with(|| {
            let stack = |sample: Sample| (sample.thread, sample.stack);
            samples.iter().map(stack).collect()
        });
        let last = *last_stacks.get(&thread)?;
        // No agent's is deeper; a chain of samples that share frames could get as deep as it is long.
        let depth = stacks.locations(last).take(DEEPEST as usize + 1).count();
        let above = depth.checked_sub(shared)?;
        if depth > DEEPEST as usize {
            return None;
        }
        let to_root = std::iter::successors(Some(last), |&stack| Some(stacks.node(stack)?.parent));
        to_root.into_iter().nth(above)
    }

    /// The stack of these frames, leaf first, on top of `below`.
    fn intern(&mut self, below: StackId, frames: &[u64]) -> StackId {
        frames.iter().rev().fold(below, |parent, &address| {
            let location = self.space.locate(address);
            self.intern_node(StackNode { parent, location })
        })
    }

    fn intern_node(&mut self, node: StackNode) -> StackId {
        self.nodes.intern(&mut self.profile.stacks, node)
    }

    fn stack(&self, number: StackId) -> StackId {
        stack_of(&self.numbers, number)
    }

    fn seen(&mut self, time_ns: u64) {
        self.profile.process.end_ns = self.profile.process.end_ns.max(time_ns);
    }
}

fn lossy(bytes: &[u8]) -> String {
    readable(bytes).into_owned()
}
