//! Encodes the ring's records as a chunk of the file, with numbers of their stacks.

use allocsample_agent::os::{self, clock, file};
use allocsample_record::{
    ChunkEncoder, CounterId, CounterRecord, Decoded, FateRecord, FileFreeStackRecord,
    FileMappingRecord, FileSample, FileTickRecord, MappingRecord, ModuleAgainRecord, RecordKind,
    RingRecord, SampleFlags, SampleId, SampleRecord, StackId, TickRecord,
};

use super::Drain;
use crate::intern::StackInterner;

/// Kinds that are encoded differently in the file, or affect the interning of stacks. All others are copied.
const CHANGED: [RecordKind; 11] = [
    RecordKind::Sample,
    RecordKind::Tick,
    RecordKind::Fate,
    RecordKind::Free,
    RecordKind::Deaths,
    RecordKind::FreeStack,
    RecordKind::Mapping,
    RecordKind::Module,
    RecordKind::ModuleUnload,
    RecordKind::ThreadEnd,
    RecordKind::Code,
];

impl Drain {
    /// Takes records from the ring up to this position, or to the first that is not committed yet.
    pub(super) fn read_chunk(&mut self, until: u64) {
        while self.consumer.position() < until {
            let Some(record) = self.consumer.next() else {
                return;
            };
            let Some(kind) = RecordKind::from_number(record.kind) else {
                continue;
            };
            let (position, words) = (record.position, record.words);
            let bytes: Vec<u8>;
            // Only these records borrow text.
            let text: &[u8] = if kind == RecordKind::Module {
                bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                &bytes
            } else {
                &[]
            };
            if !CHANGED.contains(&kind) {
                self.encoder.words(kind, words);
                continue;
            }
            match Decoded::decode(kind, words, text) {
                Some(Decoded::Sample(sample)) => {
                    write_sample(&mut self.interner, &mut self.encoder, position, &sample);
                    self.drained.samples += 1;
                }
                Some(Decoded::Fate(fate)) => self.encoder.fate(&fate),
                Some(Decoded::Tick(tick)) => {
                    write_tick(&mut self.interner, &mut self.encoder, &tick);
                }
                Some(Decoded::Free(free)) => {
                    self.drained.frees += 1;
                    self.encoder.free(&free);
                }
                Some(Decoded::Deaths(deaths)) => {
                    for free in deaths.frees() {
                        self.drained.frees += 1;
                        self.encoder.free(&free);
                    }
                }
                Some(Decoded::FreeStack(free)) => {
                    let shared = (self.interner).last_stack_to(free.thread, free.shared as usize);
                    if let Some(shared) = shared {
                        let encoder = &mut self.encoder;
                        let stack = self.interner.intern_below(shared, free.frames, encoder);
                        let record = FileFreeStackRecord {
                            sample: free.sample,
                            stack: stack.0,
                        };
                        encoder.words(RecordKind::FileFreeStack, &record.encode());
                    }
                }
                Some(Decoded::Mapping(mapping)) => {
                    write_mapping(&mut self.interner, &mut self.encoder, &mapping);
                }
                Some(Decoded::Module(module)) => {
                    let again = self.interner.map(&module);
                    write_module(&mut self.encoder, words, again);
                }
                Some(Decoded::ThreadEnd(end)) => {
                    self.interner.end_thread(end.total.thread);
                    self.encoder.words(kind, words);
                }
                Some(Decoded::Code(code)) => {
                    self.interner.change_code(&code);
                    self.encoder.words(kind, words);
                }
                Some(Decoded::ModuleUnload(module)) => {
                    self.interner.unmap(&module);
                    self.encoder.words(kind, words);
                }
                _ => {}
            }
        }
    }

    /// Writes the resident set, once per chunk.
    pub(super) fn write_counter(&mut self) {
        let Some(value) = resident_bytes() else {
            return;
        };
        let record = CounterRecord {
            time_ns: clock::monotonic_ns(),
            counter: CounterId::ResidentBytes,
            value,
        };
        let mut words = [0; CounterRecord::WORDS];
        if record.encode_into(&mut words).is_some() {
            self.encoder.words(RecordKind::Counter, &words);
        }
    }
}

fn write_sample(
    interner: &mut StackInterner,
    encoder: &mut ChunkEncoder,
    position: u64,
    sample: &SampleRecord<'_>,
) {
    let id = SampleId(position);
    let shared = sample.shared as usize;
    let flags = if interner.knows(sample.thread, shared) {
        sample.flags
    } else {
        sample.flags.with(SampleFlags::TRUNCATED)
    };
    let stack = interner.intern(sample.thread, shared, sample.frames, encoder);
    encoder.sample(&FileSample {
        id,
        time_ns: sample.time_ns,
        address: sample.address,
        size: sample.size,
        thread: sample.thread,
        heap: sample.heap,
        flags,
        points: sample.points,
        interval: sample.interval,
        thread_bytes: sample.thread_bytes,
        stack,
    });
    if let Some(typed) = FateRecord::of_type(id, sample.type_id, sample.time_ns) {
        encoder.fate(&typed);
    }
}

fn write_tick(interner: &mut StackInterner, encoder: &mut ChunkEncoder, tick: &TickRecord<'_>) {
    let stack = interner.intern_below(StackId::EMPTY, tick.frames, encoder);
    let record = FileTickRecord {
        time_ns: tick.time_ns,
        cpu_ns: tick.cpu_ns,
        thread: tick.thread,
        flags: tick.flags,
        stack: stack.0,
    };
    encoder.words(RecordKind::FileTick, &record.encode());
}

fn write_mapping(
    interner: &mut StackInterner,
    encoder: &mut ChunkEncoder,
    mapping: &MappingRecord<'_>,
) {
    let shared = interner.last_stack_to(mapping.mapped.thread, mapping.shared as usize);
    let mut mapped = mapping.mapped;
    if shared.is_none() {
        mapped.stack_flags = mapped.stack_flags.with(SampleFlags::TRUNCATED);
    }
    let stack = interner.intern_below(shared.unwrap_or_default(), mapping.frames, encoder);
    let record = FileMappingRecord {
        mapped,
        stack: stack.0,
    };
    encoder.words(RecordKind::FileMapping, &record.encode());
}

fn write_module(encoder: &mut ChunkEncoder, described: &[u64], again: Option<ModuleAgainRecord>) {
    let mut words = [0; ModuleAgainRecord::WORDS];
    match again {
        Some(again) if again.encode_into(&mut words).is_some() => {
            encoder.words(ModuleAgainRecord::KIND, &words);
        }
        _ => encoder.words(RecordKind::Module, described),
    }
}

fn resident_bytes() -> Option<u64> {
    if os::is_filtered() {
        return None;
    }
    let mut buffer = [0; 128];
    let length = file::File::read_start(c"/proc/self/statm", &mut buffer).ok()?;
    let text = std::str::from_utf8(buffer.get(..length)?).ok()?;
    let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    // SAFETY: no arguments that could be wrong.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(pages * u64::try_from(page_bytes).ok()?)
}
