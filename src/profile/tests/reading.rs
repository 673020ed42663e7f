//! Reading holds for whole profiles, for profiles cut at any byte, and for bytes that nobody wrote.

#[path = "../../ring/tests/mapping/mod.rs"]
mod mapping;

use std::path::{Path, PathBuf};

use allocsample_profile::{Profile, ReadError, StackId};
use allocsample_record::{
    ChunkEncoder, ChunkHeader, ChunkKind, ExitHow, ExitRecord, FileFreeStackRecord, FileHeader,
    FileSample, FormatVersion, FreeRecord, FreeStackRecord, HeapId, IntervalRecord, Location,
    ModuleId, ModuleRecord, Packer, RecordKind, SampleFlags, SampleId, SampleRecord, Sampling,
    StackNode, ThreadId,
};
use allocsample_ring::Priority;
use mapping::{Mapping, PROFILE_ID};

const INTERVAL: u64 = 4096;

/// The first of its thread.
fn sample_of_64_bytes(id: SampleId, stack: StackId) -> FileSample {
    FileSample {
        id,
        time_ns: 5000 + id.0,
        address: 0x10000 + id.0 * 16,
        size: 64,
        thread: ThreadId(1),
        heap: HeapId::MALLOC,
        flags: SampleFlags::default(),
        points: 1,
        interval: 0,
        thread_bytes: 64,
        stack,
    }
}

/// A profile of `chunks` chunks with ten samples each, of which every second is freed.
fn profile_bytes(chunks: u64) -> Vec<u8> {
    let header = FileHeader {
        version: FormatVersion::CURRENT,
        profile_id: PROFILE_ID,
    };
    let mut bytes = header.encode().to_vec();
    let mut encoder = ChunkEncoder::new(0);
    let mut stack = StackId::EMPTY;
    for chunk in 0..chunks {
        if chunk == 0 {
            add_beginning(&mut encoder);
            for offset in [100, 200, 300] {
                stack = encoder.node(StackNode {
                    parent: stack,
                    location: Location {
                        module: ModuleId(1),
                        offset,
                    },
                });
            }
        }
        for index in 0..10 {
            let id = SampleId(1000 * chunk + 10 * index);
            encoder.sample(&FileSample {
                thread_bytes: 64 * (id.0 + 1),
                ..sample_of_64_bytes(id, stack)
            });
            if index % 2 == 0 {
                encoder.free(&FreeRecord {
                    time_ns: 5001 + id.0,
                    sample: id,
                    thread: ThreadId(1),
                });
            }
        }
        let raw = encoder.take();
        let stored = lz4_flex::block::compress(&raw);
        let ring = 1000 * chunk..1000 * (chunk + 1);
        let header =
            ChunkHeader::for_payload(ChunkKind::Events, raw.len() as u32, ring, &[&stored]);
        bytes.extend_from_slice(&header.encode());
        bytes.extend_from_slice(&stored);
    }
    bytes
}

fn add_beginning(encoder: &mut ChunkEncoder) {
    let mut words = [0; 64];
    let interval = IntervalRecord {
        time_ns: 1,
        index: 0,
        sampling: Sampling::Poisson,
        interval_bytes: INTERVAL,
        seed: 3,
        heap: HeapId::MALLOC,
    };
    let used = interval.encode_into(&mut words).unwrap();
    encoder.words(RecordKind::Interval, &words[..used]);
    let module = ModuleRecord {
        start: 0x1000,
        end: 0x9000,
        bias: 0x1000,
        build_id: b"id",
        path: b"/lib/none.so",
    };
    let used = module.encode_into(&mut words).unwrap();
    encoder.words(RecordKind::Module, &words[..used]);
}

/// Ends of the header and of each chunk.
fn boundaries(bytes: &[u8]) -> Vec<usize> {
    let mut ends = vec![allocsample_record::FILE_HEADER_BYTES];
    let mut at = ends[0];
    while let Some(header) = ChunkHeader::decode(&bytes[at..]) {
        at += allocsample_record::CHUNK_HEADER_BYTES + header.stored_bytes as usize;
        ends.push(at);
    }
    ends
}

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("x.allocsample")
    }

    fn open(&self, bytes: &[u8]) -> Result<Profile, ReadError> {
        std::fs::write(self.path(), bytes).unwrap();
        Profile::open(&self.path())
    }
}

#[test]
fn a_whole_profile_gives_its_samples_stacks_and_frees() {
    let profile = Scratch::new().open(&profile_bytes(2)).unwrap();
    assert_eq!(profile.samples.len(), 20);
    assert_eq!(
        profile
            .samples
            .iter()
            .filter(|sample| sample.is_live())
            .count(),
        10
    );
    let offsets: Vec<u64> = profile
        .stacks
        .locations(profile.samples.at(13).stack)
        .map(|place| place.offset)
        .collect();
    assert_eq!(offsets, [300, 200, 100]);
    assert_eq!(profile.recovery.stopped, None);
    assert_eq!(profile.exact_bytes(), 64 * 1091);
    let frames = profile.stack_frames(&profile.samples.at(0));
    assert_eq!(frames[0].function, "none.so+0x12b");
    // No record of the end: the process was killed.
    assert!(!profile.is_complete());
}

#[test]
fn a_chunk_that_was_being_written_is_made_up_for_by_the_ring() {
    let bytes = profile_bytes(3);
    let ends = boundaries(&bytes);
    let scratch = Scratch::new();
    let ring_path = scratch.path().with_extension("allocsample.ring");
    // What the file has at least, up to 2000, is released; or the consumer has gone on beyond that.
    for (released, is_whole) in [(2000, true), (2001, false)] {
        let mapping = Mapping::new(4096);
        let push = |words: usize, kind: u8| {
            let mut reservation = mapping.ring().reserve(words, Priority::Last).unwrap();
            let exit = ExitRecord {
                time_ns: 9000,
                how: ExitHow::Exit,
                status: Some(3),
            };
            exit.encode_into(reservation.words_mut());
            reservation.commit(kind);
        };
        (0..2).for_each(|_| push(999, 0));
        // SAFETY: nobody else consumes.
        let mut consumer = unsafe { mapping.ring().consumer() };
        if released > 2000 {
            push(ExitRecord::WORDS, RecordKind::Exit as u8);
        }
        while consumer.next().is_some() {}
        consumer.release();
        push(ExitRecord::WORDS, RecordKind::Exit as u8);
        std::fs::write(&ring_path, mapping.file()).unwrap();
        for cut in ends[2] + 1..ends[3] {
            let profile = scratch.open(&bytes[..cut]).unwrap();
            assert_eq!(profile.samples.len(), 20, "{cut}");
            assert_eq!(profile.exit.and_then(|exit| exit.status), Some(3));
            assert_eq!(profile.recovery.stopped.is_none(), is_whole, "{cut}");
            assert_eq!(profile.is_complete(), is_whole, "{cut}");
        }
    }
}

#[test]
fn where_a_block_was_freed_is_read_from_the_ring_and_from_the_file() {
    let mut encoder = ChunkEncoder::new(0);
    add_beginning(&mut encoder);
    let places: Vec<u32> = [100, 200]
        .into_iter()
        .map(|offset| Location {
            module: ModuleId(1),
            offset,
        })
        .scan(StackId::EMPTY, |parent, location| {
            *parent = encoder.node(StackNode {
                parent: *parent,
                location,
            });
            Some(parent.0)
        })
        .collect();
    let sample = |encoder: &mut ChunkEncoder, id| {
        encoder.sample(&sample_of_64_bytes(SampleId(id), StackId(places[0])));
    };
    (0..3).for_each(|id| sample(&mut encoder, 10 * id));
    let in_file = FileFreeStackRecord {
        sample: SampleId(20),
        stack: places[1],
    };
    encoder.words(RecordKind::FileFreeStack, &in_file.encode());
    // Of a sample that is not there.
    let of_none = FileFreeStackRecord {
        sample: SampleId(25),
        ..in_file
    };
    encoder.words(RecordKind::FileFreeStack, &of_none.encode());
    let raw = encoder.take();
    let stored = lz4_flex::block::compress(&raw);
    let mut bytes = profile_bytes(0);
    bytes.extend_from_slice(&chunk(ChunkKind::Events, raw.len(), &(0..1000), &stored));
    let mapping = Mapping::new(4096);
    for (words, kind) in [(999, 0), (3, RecordKind::FreeStack as u8)] {
        let mut reservation = mapping.ring().reserve(words, Priority::Last).unwrap();
        let in_ring = FreeStackRecord {
            sample: SampleId(0),
            thread: ThreadId(1),
            shared: 1,
            frames: &[0x1000 + 200],
        };
        in_ring.encode_into(reservation.words_mut()).unwrap();
        reservation.commit(kind);
    }
    let scratch = Scratch::new();
    let ring_path = scratch.path().with_extension("allocsample.ring");
    std::fs::write(&ring_path, mapping.file()).unwrap();
    let profile = scratch.open(&bytes).unwrap();
    let offsets = |index| -> Option<Vec<u64>> {
        let stack = profile.free_stack(index)?;
        Some(
            profile
                .stacks
                .locations(stack)
                .map(|place| place.offset)
                .collect(),
        )
    };
    assert_eq!(
        [0, 1, 2].map(offsets),
        [Some(vec![200, 100]), None, Some(vec![200, 100])]
    );
}

#[test]
fn a_profile_cut_at_any_byte_is_read_up_to_its_last_whole_chunk() {
    let bytes = profile_bytes(3);
    let ends = boundaries(&bytes);
    assert_eq!(ends.len(), 4);
    let scratch = Scratch::new();
    for cut in 1..bytes.len() {
        let result = scratch.open(&bytes[..cut]);
        if cut < ends[0] {
            assert!(matches!(result, Err(ReadError::Truncated)), "{cut}");
            continue;
        }
        if cut < ends[1] {
            // Not even the process is known.
            assert!(matches!(result, Err(ReadError::Nothing(_))), "{cut}");
            continue;
        }
        let profile = result.unwrap();
        let whole = ends.iter().filter(|&&end| end <= cut).count() - 1;
        assert_eq!(profile.samples.len(), 10 * whole, "{cut}");
        assert_eq!(
            profile.recovery.stopped.is_none(),
            ends.contains(&cut),
            "{cut}"
        );
    }
}

#[test]
fn each_kind_of_wrong_file_has_its_own_line() {
    let scratch = Scratch::new();
    assert!(matches!(scratch.open(&[]), Err(ReadError::Empty)));
    let gzip = scratch
        .open(b"\x1f\x8b\x08\0\0\0\0\0")
        .unwrap_err()
        .to_string();
    assert!(gzip.contains("gzip"), "{gzip}");
    let newer = FileHeader {
        version: FormatVersion { major: 9, minor: 1 },
        profile_id: 1,
    };
    let newer = scratch.open(&newer.encode()).unwrap_err().to_string();
    assert!(newer.contains("9.1") && newer.contains("update"), "{newer}");
    assert!(matches!(
        Profile::open(Path::new("/nonexistent")),
        Err(ReadError::Io(_))
    ));
}

#[test]
fn damage_is_found_and_what_stands_before_it_kept() {
    let bytes = profile_bytes(3);
    let ends = boundaries(&bytes);
    let scratch = Scratch::new();
    for at in ends[1]..ends[2] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        let profile = scratch.open(&damaged).unwrap();
        // Reserved bytes of the chunk's header mean nothing.
        let is_reserved = matches!(at - ends[1], 6..8 | 32..36);
        let (samples, is_stopped) = (profile.samples.len(), profile.recovery.stopped.is_some());
        assert_eq!(
            (samples, is_stopped),
            if is_reserved { (30, false) } else { (10, true) },
            "{at}"
        );
    }
}

#[test]
fn mutated_profiles_are_read_without_panic() {
    let good = profile_bytes(3);
    let scratch = Scratch::new();
    let mut state = 0x1234_5678_u64;
    let mut random = |bound: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    for _ in 0..3000 {
        let mut bytes = good.clone();
        for _ in 0..=random(4) {
            if bytes.is_empty() {
                break;
            }
            let at = random(bytes.len());
            match random(4) {
                0 => bytes[at] = random(256) as u8,
                1 => bytes.truncate(at.max(1)),
                2 => bytes.insert(at, random(256) as u8),
                _ => {
                    bytes.remove(at);
                }
            }
            // A damaged payload would stop at its checksum: give some of them a right one.
            if random(2) == 0 {
                repair_checksums(&mut bytes);
            }
        }
        if let Ok(mut profile) = scratch.open(&bytes) {
            for sample in &profile.samples {
                let _ = (profile.stack_frames(&sample), profile.bytes(&sample));
            }
            profile.symbolize();
        }
    }
}

fn repair_checksums(bytes: &mut [u8]) {
    let mut at = allocsample_record::FILE_HEADER_BYTES;
    while let Some(header) = bytes.get(at..).and_then(ChunkHeader::decode) {
        let start = at + allocsample_record::CHUNK_HEADER_BYTES;
        let end = start.saturating_add(header.stored_bytes as usize);
        let Some(payload) = bytes.get(start..end) else {
            return;
        };
        let kind = match header.kind {
            1 => ChunkKind::Events,
            2 => ChunkKind::Packed,
            3 => ChunkKind::Symbols,
            7 => ChunkKind::Carried,
            _ => ChunkKind::Lost,
        };
        let ring = header.ring_from..header.ring_to;
        let repaired = ChunkHeader::for_payload(kind, header.raw_bytes, ring, &[payload]).encode();
        bytes[at..start].copy_from_slice(&repaired);
        at = end;
    }
}

#[test]
fn packed_records_are_interned_with_the_rest() {
    // The same places as the chunk's stack, as addresses; then what was left of them, on top of what the thread had last.
    let frames = [0x1000 + 300, 0x1000 + 200, 0x1000 + 100];
    for (shared, frames) in [(0, &frames[..]), (1, &frames[..2]), (3, &[])] {
        let profile = with_packed_sample(shared, frames);
        assert_eq!(profile.samples.len(), 11);
        assert_eq!(profile.samples.at(10).stack, profile.samples.at(0).stack);
        assert_eq!(profile.samples.at(10).id, SampleId(1000));
        assert_eq!(profile.samples.at(10).type_id, 5);
    }
    // A stack that was never told.
    let profile = with_packed_sample(4, &frames[..1]);
    assert!(
        profile
            .samples
            .at(10)
            .flags
            .contains(SampleFlags::TRUNCATED)
    );
}

/// Ten samples of a thread in a chunk of events, and one in a packed chunk.
fn with_packed_sample(shared: u32, frames: &[u64]) -> Profile {
    let sample = SampleRecord {
        time_ns: 9000,
        address: 1,
        size: 64,
        thread: ThreadId(1),
        heap: HeapId::MALLOC,
        flags: SampleFlags::default(),
        points: 1,
        interval: 0,
        thread_bytes: 640,
        shared,
        type_id: 5,
        frames,
    };
    let mut words = [0; 16];
    let used = sample.encode_into(&mut words).unwrap();
    let ring = 1000..1000 + used as u64 + 1;
    let (mut records, mut frames) = ([0; Packer::most_bytes(16)], [0; Packer::most_bytes(16)]);
    let mut packer = Packer::new(&mut records, &mut frames);
    packer.record(2, &words[..used]).unwrap();
    let (records_used, frames_used) = packer.used();
    let compressed = lz4_flex::block::compress(&frames[..frames_used]);
    let records_bytes = (records_used as u32).to_le_bytes();
    let stored = [&records_bytes, &records[..records_used], &compressed].concat();
    let mut bytes = profile_bytes(1);
    bytes.extend_from_slice(&chunk(ChunkKind::Packed, frames_used, &ring, &stored));
    Scratch::new().open(&bytes).unwrap()
}

/// A writer that has forgotten a node writes it, and those below it, under new numbers.
#[test]
fn equal_nodes_are_one() {
    let mut bytes = profile_bytes(1);
    let mut encoder = ChunkEncoder::new(3);
    let node = |parent, offset| StackNode {
        parent,
        location: Location {
            module: ModuleId(1),
            offset,
        },
    };
    let root = encoder.node(node(StackId::EMPTY, 100));
    let known = encoder.node(node(root, 200));
    let other = encoder.node(node(known, 400));
    for (id, stack) in [(2000, known), (2010, other)] {
        encoder.sample(&FileSample {
            id: SampleId(id),
            time_ns: 9000,
            address: id,
            size: 64,
            thread: ThreadId(1),
            heap: HeapId::MALLOC,
            flags: SampleFlags::default(),
            points: 1,
            interval: 0,
            thread_bytes: id,
            stack,
        });
    }
    let raw = encoder.take();
    let stored = lz4_flex::block::compress(&raw);
    bytes.extend_from_slice(&chunk(ChunkKind::Events, raw.len(), &(2000..2020), &stored));
    let profile = Scratch::new().open(&bytes).unwrap();
    let stacks = &profile.stacks;
    assert_eq!(stacks.count(), 4);
    let parent = |stack| stacks.node(stack).unwrap().parent;
    let [first, known, other] = [0, 10, 11].map(|index| profile.samples.at(index).stack);
    assert_eq!(known, parent(first));
    assert_eq!(parent(other), known);
}

fn chunk(kind: ChunkKind, raw_bytes: usize, ring: &std::ops::Range<u64>, stored: &[u8]) -> Vec<u8> {
    let header = ChunkHeader::for_payload(kind, raw_bytes as u32, ring.clone(), &[stored]);
    [&header.encode(), stored].concat()
}
