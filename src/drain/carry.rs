//! The facts that a file must begin with to be readable alone, when it continues another one.
//!
//! They are the process, the intervals, the modules in the order of their numbers, the threads, the definitions, and
//! the live samples with their stacks, and what is mapped. [`Carry`] collects them from the events of the file so far. A reader of the
//! new file thus knows as much about live blocks as a reader of both files.

use std::collections::{BTreeMap, BTreeSet};

use allocsample_record::{
    AddressSpace, ChunkEncoder, CodeRecord, Decoded, Definition, Event, Fate, FateRecord,
    FileMappingRecord, FileSample, HeapId, IntervalRecord, LastStackRecord, Mapped, MappedRanges,
    ModuleAgainRecord, ModuleUnloadRecord, PartRecord, RecordKind, RingRecord, SampleFlags,
    SampleId, StackId, StackNode, ThreadId, ThreadTotalRecord, ValueRecord,
};
use rustc_hash::FxHashMap;

/// Maximum number of notes that are repeated in every file. A process has a handful.
const MOST_NOTES: usize = 64;

type Words = Box<[u64]>;

/// Collects the facts; see the module.
#[derive(Default)]
pub struct Carry {
    process: Option<Words>,
    /// The meaning of each interval number.
    intervals: BTreeMap<u16, Words>,
    /// The last interval at which samples were taken, and the last interval of all, which may be "none".
    in_force: [Option<IntervalRecord>; 2],
    /// For each heap, the last record of each of its intervals, and the last record of all. Both are needed, because
    /// live objects may have been allocated under any interval.
    of_heaps: BTreeMap<HeapId, HeapIntervals>,
    modules: Vec<(u64, Words)>,
    space: AddressSpace,
    threads: BTreeMap<ThreadId, Thread>,
    definitions: BTreeMap<(u8, HeapId, u32), Words>,
    notes: Vec<Words>,
    exact_bytes: BTreeMap<HeapId, Words>,
    nodes: Vec<StackNode>,
    live: FxHashMap<SampleId, Alive>,
    mappings: MappedRanges<FileMappingRecord>,
}

struct HeapIntervals {
    each: BTreeMap<u16, IntervalRecord>,
    last: IntervalRecord,
}

/// A record that only says what an interval's number means.
fn meaning_of(interval: &IntervalRecord) -> Words {
    let heap = match interval.heap {
        HeapId::MALLOC => HeapId::MALLOC,
        _ => IntervalRecord::SOME_HEAP,
    };
    let mut words = [0; IntervalRecord::WORDS];
    // There is room.
    let _ = IntervalRecord { heap, ..*interval }.encode_into(&mut words);
    words.into()
}

#[derive(Default)]
struct Thread {
    start: Option<Words>,
    end: Option<Words>,
    bytes: u64,
    muted_bytes: u64,
}

struct Alive {
    sample: FileSample,
    /// The first word of a collector on it, with the last known type and content.
    fate: Option<FateRecord>,
}

impl Carry {
    /// Follows one event.
    pub fn add(&mut self, event: Event) {
        match event {
            Event::Node(node) => self.nodes.push(node),
            Event::Sample(sample) => self.add_sample(sample),
            Event::Free(free) => {
                self.live.remove(&free.sample);
            }
            // The file that begins has no frees of before it.
            Event::FreeStack(_) => {}
            Event::Words { kind, words } => self.add_words(kind, words),
        }
    }

    fn add_sample(&mut self, sample: FileSample) {
        if !sample.flags.contains(SampleFlags::CARRIED) {
            let thread = self.threads.entry(sample.thread).or_default();
            thread.bytes = thread.bytes.max(sample.thread_bytes);
        }
        // No record tells the end of an object that is not tracked.
        if !sample.flags.contains(SampleFlags::UNTRACKED) {
            self.live.insert(sample.id, Alive { sample, fate: None });
        }
    }

    fn add_words(&mut self, number: u8, words: Vec<u64>) {
        let Some(kind) = RecordKind::from_number(number) else {
            return;
        };
        let text: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let Some(decoded) = Decoded::decode(kind, &words, &text) else {
            return;
        };
        let own = || words.clone().into_boxed_slice();
        match decoded {
            Decoded::Process(_) => self.process = Some(own()),
            Decoded::Interval(interval) => {
                self.intervals
                    .entry(interval.index)
                    .or_insert_with(|| meaning_of(&interval));
                match interval.heap {
                    HeapId::MALLOC => {}
                    IntervalRecord::SOME_HEAP => return,
                    heap => {
                        self.add_interval_of(heap, interval);
                        return;
                    }
                }
                if interval.interval_bytes > 0 {
                    self.in_force[0] = Some(interval);
                }
                self.in_force[1] = Some(interval);
            }
            Decoded::Module(module) => {
                self.space.map(&module);
                self.modules.push((module.start, own()));
            }
            Decoded::ModuleAgain(again) => self.space.map_again(&again),
            Decoded::ModuleUnload(unload) => self.space.unmap(&unload),
            Decoded::Code(code) => self.space.change_code(&code),
            Decoded::ThreadStart(start) => {
                self.threads.entry(start.thread).or_default().start = Some(own());
            }
            Decoded::ThreadEnd(end) => {
                let thread = self.threads.entry(end.total.thread).or_default();
                thread.end = Some(own());
                thread.bytes = thread.bytes.max(end.total.bytes);
            }
            Decoded::ThreadTotal(total) => {
                let thread = self.threads.entry(total.thread).or_default();
                thread.bytes = thread.bytes.max(total.bytes);
                thread.muted_bytes = thread.muted_bytes.max(total.muted_bytes);
            }
            Decoded::Definition(definition) => {
                let key = (definition.kind as u8, definition.heap, definition.id);
                self.definitions.insert(key, own());
            }
            Decoded::Fate(fate) => self.add_fate(&fate),
            // Not what the agent writes, but the reader takes it from files, too.
            Decoded::Deaths(deaths) => {
                for free in deaths.frees() {
                    self.live.remove(&free.sample);
                }
            }
            Decoded::FileMapping(it) => {
                let Mapped {
                    change,
                    start,
                    bytes,
                    ..
                } = it.mapped;
                self.mappings.apply(change, start, bytes, it);
            }
            Decoded::Value(value) if value.statistic == ValueRecord::EXACT_BYTES => {
                self.exact_bytes.insert(value.heap, own());
            }
            Decoded::Note(_) if self.notes.len() < MOST_NOTES => {
                let note = own();
                if !self.notes.contains(&note) {
                    self.notes.push(note);
                }
            }
            _ => {}
        }
    }

    fn add_interval_of(&mut self, heap: HeapId, interval: IntervalRecord) {
        let nothing = || HeapIntervals {
            each: BTreeMap::new(),
            last: interval,
        };
        let intervals = self.of_heaps.entry(heap).or_insert_with(nothing);
        intervals.each.insert(interval.index, interval);
        intervals.last = interval;
    }

    fn add_fate(&mut self, fate: &FateRecord) {
        if fate.fate == Fate::Dead {
            self.live.remove(&fate.sample);
            return;
        }
        let Some(alive) = self.live.get_mut(&fate.sample) else {
            return;
        };
        let kept = alive.fate.get_or_insert(*fate);
        if kept.fate == Fate::Open {
            kept.fate = fate.fate;
        }
        if fate.type_id != 0 {
            kept.type_id = fate.type_id;
        }
        if fate.content_hash != 0 {
            kept.content_hash = fate.content_hash;
        }
    }

    /// Writes the facts for a file that begins with `part`, with the last stacks of running threads. Calls `next`
    /// whenever the encoder has enough for a chunk, and at the end. Returns the new number of each stack node of this
    /// file, or [`StackId::EMPTY`] for a node that the new file does not have.
    pub fn write<E>(
        &self,
        part: &PartRecord,
        last_stacks: impl Iterator<Item = (ThreadId, StackId)>,
        encoder: &mut ChunkEncoder,
        mut next: impl FnMut(&mut ChunkEncoder) -> Result<(), E>,
    ) -> Result<Vec<StackId>, E> {
        /// Bytes before compression.
        const CHUNK: usize = 1 << 20;
        let mut begin = [0; PartRecord::WORDS];
        if part.encode_into(&mut begin).is_some() {
            encoder.words(PartRecord::KIND, &begin);
        }
        self.write_process(part.time_ns, encoder);
        self.write_modules(part.time_ns, encoder);
        let mut live: Vec<&Alive> = self.live.values().collect();
        live.sort_unstable_by_key(|alive| alive.sample.id);
        self.write_threads(&live, encoder);
        for (&(kind, ..), words) in &self.definitions {
            if kind == Definition::Heap as u8 {
                encoder.words(RecordKind::Definition, words);
            }
        }
        for (&(kind, ..), words) in &self.definitions {
            if kind != Definition::Heap as u8 {
                encoder.words(RecordKind::Definition, words);
            }
            if encoder.len() > CHUNK {
                next(encoder)?;
            }
        }
        for words in self.exact_bytes.values() {
            encoder.words(RecordKind::Value, words);
        }
        let mut numbers = vec![StackId::EMPTY; self.nodes.len()];
        for alive in live {
            let stack = self.write_stack(alive.sample.stack, &mut numbers, encoder);
            encoder.sample(&FileSample {
                flags: alive.sample.flags.with(SampleFlags::CARRIED),
                thread_bytes: 0,
                stack,
                ..alive.sample
            });
            if let Some(fate) = &alive.fate {
                encoder.fate(fate);
            }
            if encoder.len() > CHUNK {
                next(encoder)?;
            }
        }
        for (start, bytes, call) in self.mappings.state() {
            let record = FileMappingRecord {
                mapped: Mapped {
                    start,
                    bytes,
                    ..call.mapped
                },
                stack: self
                    .write_stack(StackId(call.stack), &mut numbers, encoder)
                    .0,
            };
            encoder.words(RecordKind::FileMapping, &record.encode());
            if encoder.len() > CHUNK {
                next(encoder)?;
            }
        }
        for (thread, stack) in last_stacks {
            let record = LastStackRecord {
                thread,
                stack: self.write_stack(stack, &mut numbers, encoder).0,
            };
            let mut words = [0; LastStackRecord::WORDS];
            if record.encode_into(&mut words).is_some() {
                encoder.words(LastStackRecord::KIND, &words);
            }
        }
        next(encoder)?;
        Ok(numbers)
    }

    fn write_process(&self, time_ns: u64, encoder: &mut ChunkEncoder) {
        if let Some(words) = &self.process {
            encoder.words(RecordKind::Process, words);
        }
        for words in self.intervals.values() {
            encoder.words(RecordKind::Interval, words);
        }
        let [sampled, last] = &self.in_force;
        // A process whose sampling is stopped still uses the earlier interval for a while.
        let sampled = sampled.filter(|sampled| Some(*sampled) != *last);
        let again = |interval: &IntervalRecord| IntervalRecord {
            time_ns,
            ..*interval
        };
        let mut write = |interval: IntervalRecord| {
            let mut words = [0; IntervalRecord::WORDS];
            if interval.encode_into(&mut words).is_some() {
                encoder.words(IntervalRecord::KIND, &words);
            }
        };
        for interval in [sampled, *last].iter().flatten() {
            write(again(interval));
        }
        for intervals in self.of_heaps.values() {
            let mut each: Vec<&IntervalRecord> = intervals.each.values().collect();
            each.sort_by_key(|it| it.time_ns);
            each.into_iter().for_each(|it| write(*it));
            write(again(&intervals.last));
        }
        for words in &self.notes {
            encoder.words(RecordKind::Note, words);
        }
    }

    /// Writes all modules in the order of their numbers, so that these stay valid; then that none is mapped; then the
    /// modules that are mapped.
    fn write_modules(&self, time_ns: u64, encoder: &mut ChunkEncoder) {
        for (_, words) in &self.modules {
            encoder.words(RecordKind::Module, words);
        }
        let starts: BTreeSet<u64> = self.modules.iter().map(|(start, _)| *start).collect();
        for start in starts {
            let mut words = [0; ModuleUnloadRecord::WORDS];
            let unload = ModuleUnloadRecord { time_ns, start };
            if unload.encode_into(&mut words).is_some() {
                encoder.words(ModuleUnloadRecord::KIND, &words);
            }
        }
        for again in self.space.placements() {
            let mut words = [0; ModuleAgainRecord::WORDS];
            if again.encode_into(&mut words).is_some() {
                encoder.words(ModuleAgainRecord::KIND, &words);
            }
        }
        for code in self.space.code(time_ns) {
            let mut words = [0; CodeRecord::WORDS];
            if code.encode_into(&mut words).is_some() {
                encoder.words(CodeRecord::KIND, &words);
            }
        }
    }

    /// Writes the threads that run, and those that allocated a live block.
    fn write_threads(&self, live: &[&Alive], encoder: &mut ChunkEncoder) {
        let used: BTreeSet<ThreadId> = live.iter().map(|alive| alive.sample.thread).collect();
        for (&id, thread) in &self.threads {
            if thread.end.is_some() && !used.contains(&id) {
                continue;
            }
            if let Some(words) = &thread.start {
                encoder.words(RecordKind::ThreadStart, words);
            }
            if let Some(words) = &thread.end {
                encoder.words(RecordKind::ThreadEnd, words);
                continue;
            }
            let total = ThreadTotalRecord {
                thread: id,
                bytes: thread.bytes,
                muted_bytes: thread.muted_bytes,
            };
            let mut words = [0; ThreadTotalRecord::WORDS];
            if total.encode_into(&mut words).is_some() {
                encoder.words(ThreadTotalRecord::KIND, &words);
            }
        }
    }

    /// Returns a stack's number in the new file, and writes its nodes if necessary.
    fn write_stack(
        &self,
        stack: StackId,
        numbers: &mut [StackId],
        encoder: &mut ChunkEncoder,
    ) -> StackId {
        let index = |stack: StackId| (stack.0 as usize).checked_sub(1);
        let mut missing = Vec::new();
        let mut at = stack;
        let mut parent = StackId::EMPTY;
        while let Some(place) = index(at).filter(|&place| place < self.nodes.len()) {
            if numbers[place] != StackId::EMPTY {
                parent = numbers[place];
                break;
            }
            missing.push(place);
            at = self.nodes[place].parent;
        }
        for place in missing.into_iter().rev() {
            parent = encoder.node(StackNode {
                parent,
                location: self.nodes[place].location,
            });
            numbers[place] = parent;
        }
        parent
    }

    /// Stack nodes of the file so far.
    pub fn nodes(&self) -> u32 {
        // The decoder counts nodes in 32 bits.
        self.nodes.len() as u32
    }
}

#[cfg(test)]
mod tests;
