//! Profiles that are made to do harm: every checksum is right, and little of the rest.

use allocsample_record::{
    ChunkEncoder, ChunkHeader, ChunkKind, Definition, DefinitionRecord, Fate, FateRecord,
    FileHeader, FileSample, FormatVersion, HeapId, HeapKind, IntervalRecord, Location,
    MarkerRecord, ModuleId, ModuleRecord, Note, NoteRecord, ProcessRecord, RecordKind, SampleFlags,
    SampleId, Sampling, StackId, StackNode, THREAD_NAME_BYTES, ThreadId, ThreadStartRecord,
    VmFrame,
};

/// Small, fast, and the same everywhere.
pub struct Random {
    state: u64,
    has_all_kinds: bool,
}

/// From here on a seed draws kinds of records that came after the seeds which once failed, and whatever kinds come next.
pub const ALL_KINDS: u64 = 1 << 32;

impl Random {
    pub fn new(seed: u64) -> Self {
        Self {
            state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            has_all_kinds: seed >= ALL_KINDS,
        }
    }

    pub fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// The number of a kind of record.
    fn kind(&mut self) -> u8 {
        let known = |number: &u8| RecordKind::from_number(*number).is_some();
        let last = match self.has_all_kinds {
            true => (1..=127).rev().find(known).expect("a kind"),
            false => 28,
        };
        1 + self.below(last.into()) as u8
    }

    fn definition(&mut self) -> Definition {
        let kinds = [
            Definition::Heap,
            Definition::Type,
            Definition::Function,
            Definition::Statistic,
            Definition::Thread,
            Definition::Inlined,
            Definition::Range,
        ];
        let known = if self.has_all_kinds { kinds.len() } else { 6 };
        kinds[self.below(known as u64) as usize]
    }

    /// Mostly small, sometimes anything.
    pub fn number(&mut self) -> u64 {
        let bits = self.below(8) * 8;
        self.next() & ((1 << bits) - 1)
    }

    /// From 1 to 2 to the power of `log2`, each order of magnitude as likely.
    pub fn count(&mut self, log2: u64) -> u64 {
        let most = 1 << self.below(log2 + 1);
        1 + self.below(most)
    }

    pub fn is_one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// The bytes of a profile in the making.
pub struct Hostile(Vec<u8>);

impl Default for Hostile {
    fn default() -> Self {
        let header = FileHeader {
            version: FormatVersion::CURRENT,
            profile_id: 1,
        };
        Self(header.encode().to_vec())
    }
}

impl Hostile {
    pub fn bytes(self) -> Vec<u8> {
        self.0
    }

    /// A chunk as it is.
    pub fn stored(mut self, kind: ChunkKind, raw_bytes: u32, payload: &[u8]) -> Self {
        let header = ChunkHeader::for_payload(kind, raw_bytes, 0..0, &[payload]);
        self.0.extend(header.encode());
        self.0.extend(payload);
        self
    }

    /// A chunk that is compressed.
    pub fn packed(self, kind: ChunkKind, raw: &[u8]) -> Self {
        let payload = lz4_flex::block::compress(raw);
        self.stored(kind, raw.len() as u32, &payload)
    }

    /// A chunk of records and frames.
    pub fn records(self, records: &[u8], frames: &[u8]) -> Self {
        let length = (records.len() as u32).to_le_bytes();
        let payload = [&length, records, &lz4_flex::block::compress(frames)].concat();
        self.stored(ChunkKind::Packed, frames.len() as u32, &payload)
    }

    /// A chunk of events; the process, an interval and a module are told before the first.
    pub fn events(self, fill: impl FnOnce(&mut ChunkEncoder)) -> Self {
        let mut encoder = ChunkEncoder::new(0);
        begin(&mut encoder);
        fill(&mut encoder);
        self.packed(ChunkKind::Events, &encoder.take())
    }

    /// Tables of `strings`, of which `locations` places have `frames` frames each: all of string 1.
    pub fn symbols(self, strings: &[&[u8]], locations: u64, frames: u64) -> Self {
        let mut raw = Vec::new();
        varint(&mut raw, strings.len() as u64);
        for string in strings {
            varint(&mut raw, string.len() as u64);
            raw.extend(*string);
        }
        varint(&mut raw, locations);
        for _ in 0..locations {
            raw.extend([1, 2]);
            varint(&mut raw, frames);
            for _ in 0..frames {
                raw.extend([1, 1, 0]);
            }
        }
        self.packed(ChunkKind::Symbols, &raw)
    }
}

/// A module of this path, which holds the addresses from `start`.
pub fn module(encoder: &mut ChunkEncoder, start: u64, path: &[u8]) {
    let module = ModuleRecord {
        start,
        end: start + (1 << 20),
        bias: 0,
        build_id: &[],
        path,
    };
    let mut words = [0; 640];
    let length = module.encode_into(&mut words).unwrap();
    encoder.words(RecordKind::Module, &words[..length]);
}

fn begin(encoder: &mut ChunkEncoder) {
    let mut words = [0; 64];
    let process = ProcessRecord {
        pid: 1,
        parent_pid: 1,
        start_mono_ns: 1,
        start_wall_ns: 1,
        executable: b"/nonexistent/hostile",
        command_line: b"hostile\0",
    };
    let length = process.encode_into(&mut words).unwrap();
    encoder.words(RecordKind::Process, &words[..length]);
    interval(encoder, 0, 4096);
    module(encoder, 1 << 20, b"/nonexistent/hostile");
}

/// An interval with its number, in force from now on.
pub fn interval(encoder: &mut ChunkEncoder, index: u16, interval_bytes: u64) {
    let interval = IntervalRecord {
        index,
        sampling: Sampling::Poisson,
        interval_bytes,
        seed: 1,
        time_ns: 1 + u64::from(index),
        heap: HeapId::MALLOC,
    };
    let mut words = [0; 64];
    let length = interval.encode_into(&mut words).unwrap();
    encoder.words(RecordKind::Interval, &words[..length]);
}

pub fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A node below a stack of the file, at the first module.
pub fn node(encoder: &mut ChunkEncoder, parent: StackId, offset: u64) -> StackId {
    let module = ModuleId(1);
    encoder.node(StackNode {
        parent,
        location: Location { module, offset },
    })
}

/// A sample that is like the others.
pub fn sample(encoder: &mut ChunkEncoder, number: u64, stack: StackId) {
    encoder.sample(&plain(number, stack));
}

/// A sample with an interval, and of a thread, of its own.
pub fn sample_in(encoder: &mut ChunkEncoder, number: u16, heap: HeapId) {
    let plain = plain(u64::from(number) << 16 | u64::from(heap.0), StackId::EMPTY);
    encoder.sample(&FileSample {
        thread: ThreadId(u32::from(number)),
        interval: number,
        heap,
        ..plain
    });
}

fn plain(number: u64, stack: StackId) -> FileSample {
    FileSample {
        id: SampleId(number * 16),
        time_ns: 1000 + number,
        address: number * 16,
        size: 64,
        thread: ThreadId(1),
        heap: HeapId::MALLOC,
        flags: SampleFlags::default(),
        points: 1,
        interval: 0,
        thread_bytes: number * 64,
        stack,
    }
}

/// What one number stands for: some chunks of every kind, with much of the same in some of them.
pub fn anything(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut file = Hostile::default();
    for chunk in 0..random.count(3) {
        file = match random.below(if chunk == 0 { 1 } else { 8 }) {
            0..=2 => file.events(|encoder| events(encoder, &mut random)),
            3 => symbols(file, &mut random),
            4 => packed_records(file, &mut random),
            5 => {
                let mut encoder = ChunkEncoder::new(0);
                events(&mut encoder, &mut random);
                file.packed(ChunkKind::Carried, &encoder.take())
            }
            6 => {
                // One byte, or a few, over and over.
                let pattern: Vec<u8> = (0..random.count(5))
                    .map(|_| random.number() as u8)
                    .collect();
                let raw = pattern.repeat(random.count(18) as usize);
                let kinds = [ChunkKind::Events, ChunkKind::Symbols, ChunkKind::Carried];
                file.packed(kinds[random.below(3) as usize], &raw)
            }
            _ => {
                let raw: Vec<u8> = (0..random.count(9))
                    .map(|_| random.number() as u8)
                    .collect();
                let kinds = [ChunkKind::Definitions, ChunkKind::Lost, ChunkKind::Figures];
                file.stored(
                    kinds[random.below(3) as usize],
                    random.number() as u32,
                    &raw,
                )
            }
        };
    }
    file.bytes()
}

fn events(encoder: &mut ChunkEncoder, random: &mut Random) {
    let (mut stack, mut number) = (StackId::EMPTY, 1);
    for _ in 0..random.count(5) {
        let count = random.count(17);
        let (step, value) = (random.number(), random.number());
        match random.below(9) {
            // Deep.
            0 => (0..count).for_each(|_| stack = node(encoder, stack, value)),
            // Wide.
            1 => (0..count).for_each(|index| {
                stack = node(encoder, StackId::EMPTY, index.wrapping_mul(step));
            }),
            2 => (0..count).for_each(|index| {
                stack = node(encoder, StackId(stack.0 / 2), index.wrapping_mul(step) % 64);
            }),
            3 => (0..count).for_each(|_| {
                number += 1 + step % 64;
                sample(encoder, number, stack);
            }),
            4 => (0..count).for_each(|index| definition(encoder, random, index, value as usize)),
            5 => (0..count).for_each(|index| {
                let name = b"thread\0\0\0\0\0\0\0\0\0\0";
                let mut words = [0; ThreadStartRecord::WORDS];
                let start = ThreadStartRecord {
                    thread: ThreadId(index.wrapping_mul(step) as u32),
                    tid: 1,
                    time_ns: 1,
                    name: *name.first_chunk().unwrap(),
                };
                let length = start.encode_into(&mut words).unwrap();
                encoder.words(RecordKind::ThreadStart, &words[..length]);
            }),
            _ => {
                // Records of any kind, alike but for one word.
                let kind = random.kind();
                let Some(kind) = RecordKind::from_number(kind) else {
                    continue;
                };
                let shaped = [RecordKind::Sample, RecordKind::Free, RecordKind::FileFate];
                if shaped.contains(&kind) {
                    continue;
                }
                let mut words: Vec<u64> = (0..random.below(12)).map(|_| random.number()).collect();
                let changed = random.below(12) as usize;
                for _ in 0..count {
                    if let Some(word) = words.get_mut(changed) {
                        *word = word.wrapping_add(step);
                    }
                    encoder.words(kind, &words);
                }
            }
        }
    }
}

fn definition(encoder: &mut ChunkEncoder, random: &mut Random, index: u64, length: usize) {
    let name = vec![b'n'; length % 512];
    let record = DefinitionRecord {
        heap: HeapId(1 + (index % 3) as u16),
        kind: random.definition(),
        id: index as u32,
        value: 1,
        name: &name,
        detail: b"/detail",
    };
    let mut words = [0; 256];
    if let Some(length) = record.encode_into(&mut words) {
        encoder.words(RecordKind::Definition, &words[..length]);
    }
}

fn symbols(file: Hostile, random: &mut Random) -> Hostile {
    let long = vec![b'x'; random.count(20) as usize];
    let (locations, frames) = (random.count(16), random.count(9));
    let frames = frames.min((1 << 22) / locations).max(1);
    file.symbols(&[&long, b"short"], locations, frames)
}

fn packed_records(file: Hostile, random: &mut Random) -> Hostile {
    let mut records = Vec::new();
    for _ in 0..random.count(3) {
        let kind = random.kind();
        let (words, mask) = (random.below(40), random.number() as u8);
        records.push(kind);
        varint(&mut records, words);
        records.push(mask);
        (0..mask.count_ones()).for_each(|_| varint(&mut records, random.number()));
        // The same again, which takes a byte and what changes.
        let again: Vec<u8> = (0..mask.count_ones())
            .map(|_| random.below(128) as u8)
            .collect();
        for _ in 0..random.count(15) {
            records.push(kind | 128);
            records.extend(&again);
        }
    }
    let frames = vec![random.number() as u8 & 0x7f; random.count(21) as usize];
    file.records(&records, &frames)
}

/// Some bytes of a file changed, and the checksums of its chunks made right again.
pub fn mutated(file: &[u8], random: &mut Random) -> Vec<u8> {
    use allocsample_record::{CHUNK_HEADER_BYTES, FILE_HEADER_BYTES};
    let mut out = file.get(..FILE_HEADER_BYTES).unwrap_or(file).to_vec();
    let mut rest = file.get(FILE_HEADER_BYTES..).unwrap_or(&[]);
    while let Some(header) = ChunkHeader::decode(rest) {
        let end = CHUNK_HEADER_BYTES + header.stored_bytes as usize;
        let Some(payload) = rest.get(CHUNK_HEADER_BYTES..end) else {
            break;
        };
        let mut payload = payload.to_vec();
        for _ in 0..random.below(4) {
            let at = random.below(payload.len() as u64) as usize;
            if let Some(byte) = payload.get_mut(at) {
                *byte = random.number() as u8;
            }
        }
        let mut header = header;
        if random.is_one_in(8) {
            header.raw_bytes = random.number() as u32;
        }
        // The checksum covers the header's other fields, and is its last.
        let mut bytes = header.encode();
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&bytes[..CHUNK_HEADER_BYTES - 4]);
        checksum.update(&payload);
        bytes[CHUNK_HEADER_BYTES - 4..].copy_from_slice(&checksum.finalize().to_le_bytes());
        out.extend(bytes);
        out.extend(payload);
        rest = &rest[end..];
    }
    out
}

/// A profile in which everything that has a name has this one: the program, its arguments, a thread, a module, functions
/// with symbols and of a machine, a heap, a type, a statistic, a marker and a note.
pub fn named(name: &str) -> Vec<u8> {
    let name = name.as_bytes();
    let name = &name[..name.len().min(200)];
    let words = &mut [0; 256];
    let file = Hostile::default().events(|encoder| {
        let process = ProcessRecord {
            pid: 1,
            parent_pid: 1,
            start_mono_ns: 1,
            start_wall_ns: 1,
            executable: &[b"/nonexistent/", name].concat(),
            command_line: &[b"a\0", name, b"\0"].concat(),
        };
        let length = process.encode_into(words).unwrap();
        encoder.words(RecordKind::Process, &words[..length]);
        let mut short = [0; THREAD_NAME_BYTES];
        let length = name.len().min(THREAD_NAME_BYTES);
        short[..length].copy_from_slice(&name[..length]);
        let start = ThreadStartRecord {
            thread: ThreadId(1),
            tid: 1,
            time_ns: 1,
            name: short,
        };
        let length = start.encode_into(words).unwrap();
        encoder.words(RecordKind::ThreadStart, &words[..length]);
        let path = [b"/nonexistent/", name].concat();
        module(encoder, 1 << 40, &path);
        let heap = HeapId(1);
        let define = |encoder: &mut ChunkEncoder, kind, id, value| {
            let definition = DefinitionRecord {
                heap,
                kind,
                id,
                value,
                name,
                detail: name,
            };
            let words = &mut [0; 256];
            let length = definition.encode_into(words).unwrap();
            encoder.words(RecordKind::Definition, &words[..length]);
        };
        define(encoder, Definition::Heap, 1, HeapKind::Nursery as u32);
        define(encoder, Definition::Type, 1, 0);
        define(encoder, Definition::Function, 1, 7);
        define(encoder, Definition::Statistic, 1, 0);
        define(encoder, Definition::Thread, 1, 0);
        let marker = MarkerRecord {
            heap,
            is_phase: false,
            begin_ns: 1001,
            end_ns: 1002,
            name,
        };
        let length = marker.encode_into(words).unwrap();
        encoder.words(RecordKind::Marker, &words[..length]);
        let note = NoteRecord {
            time_ns: 1,
            note: Note::MallocIsElsewhere,
            detail: name,
        };
        let length = note.encode_into(words).unwrap();
        encoder.words(RecordKind::Note, &words[..length]);
        let frame = VmFrame {
            heap,
            function: 1,
            line: 3,
        };
        let of_machine = frame.location();
        let places = [
            (1, 8),
            (2, 4096),
            (of_machine.module.0, of_machine.offset),
            (2, 9999),
        ];
        let mut stack = StackId::EMPTY;
        for (number, (module, offset)) in (1..).zip(places) {
            let module = ModuleId(module);
            let location = Location { module, offset };
            stack = encoder.node(StackNode {
                parent: stack,
                location,
            });
            let heap = if number % 2 == 0 {
                heap
            } else {
                HeapId::MALLOC
            };
            let id = SampleId(number * 16);
            encoder.sample(&FileSample {
                id,
                time_ns: 1000 + number,
                address: number * 16,
                size: 64,
                thread: ThreadId(1),
                heap,
                flags: SampleFlags::default(),
                points: 1,
                interval: 0,
                thread_bytes: number * 64,
                stack,
            });
            encoder.fate(&FateRecord {
                sample: id,
                time_ns: 1000 + number,
                fate: Fate::Open,
                type_id: 1,
                gc: 0,
                content_hash: 0,
            });
        }
    });
    // Places 1 and 2 of the first module.
    file.symbols(&[name], 2, 2).bytes()
}
