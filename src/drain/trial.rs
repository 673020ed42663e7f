//! For tests: a recording with files of its own, whose ring the test fills and whose drain thread it may be.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use allocsample_agent::config::Config;
use allocsample_agent::process_control::Order;
use allocsample_agent::recording::{self, DrainState, Recording};
use allocsample_agent::{Agent, BlockFilter, FILTER_GRANULES, Hooks, ShimThread, Start};
use allocsample_record::{
    CHUNK_HEADER_BYTES, ChunkDecoder, ChunkHeader, ChunkKind, Event, FILE_HEADER_BYTES, FileHeader,
    FreeRecord, RecordKind, SampleFlags, SampleId, SampleRecord, ThreadId,
};
use allocsample_ring::Priority;

/// A process has one recording at a time.
static ONLY: Mutex<()> = Mutex::new(());

/// An agent that was never switched on, for one test.
macro_rules! agent {
    () => {{
        static AGENT: allocsample_agent::Agent =
            allocsample_agent::Agent::new($crate::trial::block_filter());
        &AGENT
    }};
}
pub(crate) use agent;

pub(crate) const fn block_filter() -> BlockFilter {
    static BYTES: [AtomicU8; FILTER_GRANULES] = [const { AtomicU8::new(0) }; FILTER_GRANULES];
    BlockFilter::new(&BYTES, || {})
}

/// A new directory, removed in the end.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("allocsample-drain-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names of the files in it, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().file_name().into_string().unwrap()
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// See the module.
pub(crate) struct Trial {
    pub(crate) agent: &'static Agent,
    pub(crate) recording: &'static Recording,
    pub(crate) thread: &'static ShimThread,
    pub(crate) directory: Directory,
    _only: MutexGuard<'static, ()>,
}

/// Runs the drain thread as the library does.
fn start_drain(agent: &'static Agent, recording: &'static Recording) {
    std::thread::spawn(move || {
        let state = match crate::run(agent, recording) {
            Ok(()) => DrainState::Done,
            Err(_) => DrainState::Failed,
        };
        recording.set_drain_state(state);
    });
}

impl Trial {
    /// Begins a recording with these settings, named without `ALLOCSAMPLE_`.
    pub(crate) fn begin(agent: &'static Agent, settings: &[(&str, &str)]) -> Self {
        Self::begin_with(agent, settings, Hooks::NONE)
    }

    /// The same with functions of the library around the agent.
    pub(crate) fn begin_with(
        agent: &'static Agent,
        settings: &[(&str, &str)],
        hooks: Hooks,
    ) -> Self {
        let only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        recording::forget();
        let directory = Directory::new();
        let output = directory.path("app.allocsample");
        let lookup = |name: &str| match name.strip_prefix("ALLOCSAMPLE_")? {
            "OUTPUT" => Some(output.to_str()?.as_bytes()),
            "UNWIND" | "RUNTIME" => Some(&b"none"[..]),
            name => {
                let found = settings.iter().find(|(setting, _)| *setting == name)?;
                Some(found.1.as_bytes())
            }
        };
        let config = Config::read(lookup, b"/").unwrap();
        agent.switch_on(Box::leak(Box::new(Start {
            config,
            hooks,
            program: b"app",
            next_allocator: b"libc.so.6",
            malloc_elsewhere: None,
            unknown_setting: None,
        })));
        // SAFETY: all zero bytes are a thread that has not joined.
        let thread: &ShimThread = Box::leak(Box::new(unsafe { std::mem::zeroed() }));
        agent.order(thread, Order::Start(None)).unwrap();
        Self {
            agent,
            recording: recording::current().unwrap(),
            thread,
            directory,
            _only: only,
        }
    }

    /// Starts the drain thread.
    pub(crate) fn start(&self) {
        assert!(self.recording.claim_drain_start());
        start_drain(self.agent, self.recording);
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path("app.allocsample")
    }

    /// Reserves room in the ring, encodes a record there, and commits it. Its position.
    pub(crate) fn put(
        &self,
        kind: u8,
        words: usize,
        encode: impl FnOnce(&mut [u64]) -> Option<usize>,
    ) -> u64 {
        let mut reservation = (self.recording.ring)
            .reserve(words, Priority::Sample)
            .unwrap();
        assert_eq!(encode(reservation.words_mut()), Some(words));
        let position = reservation.position();
        reservation.commit(kind);
        position
    }

    /// A sample of a thread with these frames above `shared` ones of its last stack.
    pub(crate) fn sample(&self, thread: u32, shared: u32, frames: &[u64]) -> SampleId {
        let record = SampleRecord {
            frames,
            ..sample_of(thread, shared)
        };
        let words = SampleRecord::words(frames.len());
        let encode = |words: &mut [u64]| record.encode_into(words);
        SampleId(self.put(RecordKind::Sample as u8, words, encode))
    }

    pub(crate) fn free(&self, sample: SampleId) {
        assert!(self.recording.push(&FreeRecord {
            time_ns: 60,
            sample,
            thread: ThreadId(1),
        }));
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        recording::forget();
    }
}

pub(crate) const fn sample_of(thread: u32, shared: u32) -> SampleRecord<'static> {
    SampleRecord {
        time_ns: 50,
        address: 4096,
        size: 100,
        thread: ThreadId(thread),
        heap: allocsample_record::HeapId::MALLOC,
        flags: SampleFlags(0),
        points: 1,
        interval: 0,
        thread_bytes: 1000,
        shared,
        type_id: 0,
        frames: &[],
    }
}

/// A chunk of a file.
pub(crate) struct Chunk {
    pub(crate) kind: u16,
    /// Positions in the ring.
    pub(crate) ring: std::ops::Range<u64>,
    /// Decompressed.
    pub(crate) payload: Vec<u8>,
}

const PACKED: [ChunkKind; 3] = [ChunkKind::Events, ChunkKind::Carried, ChunkKind::Memory];

/// The chunks of a file, which must be whole.
pub(crate) fn chunks(path: &Path) -> Vec<Chunk> {
    let bytes = std::fs::read(path).unwrap();
    let (header, mut rest) = bytes.split_at(FILE_HEADER_BYTES);
    FileHeader::decode(header).unwrap();
    let mut chunks = Vec::new();
    while !rest.is_empty() {
        let header = ChunkHeader::decode(rest).unwrap();
        let stored = header.stored_bytes as usize;
        let payload = &rest[CHUNK_HEADER_BYTES..][..stored];
        assert!(header.matches(payload));
        let is_packed = PACKED.iter().any(|&kind| kind as u16 == header.kind);
        chunks.push(Chunk {
            kind: header.kind,
            ring: header.ring_from..header.ring_to,
            payload: match is_packed {
                true => lz4_flex::block::decompress(payload, header.raw_bytes as usize).unwrap(),
                false => payload.to_vec(),
            },
        });
        rest = &rest[CHUNK_HEADER_BYTES + stored..];
    }
    chunks
}

/// All events of a file, but for readings of the resident set, and what the tests of this process have mapped.
pub(crate) fn events(path: &Path) -> Vec<Event> {
    let (mut events, mut nodes) = (Vec::new(), 0);
    for chunk in chunks(path) {
        if chunk.kind == ChunkKind::Events as u16 || chunk.kind == ChunkKind::Carried as u16 {
            let mut decoder = ChunkDecoder::new(&chunk.payload, nodes);
            events.extend(decoder.by_ref());
            assert!(!decoder.is_malformed());
            nodes = decoder.nodes();
        }
    }
    events.retain(|event| {
        !is_of_kind(event, RecordKind::Counter) && !is_of_kind(event, RecordKind::FileMapping)
    });
    events
}

pub(crate) fn is_of_kind(event: &Event, wanted: RecordKind) -> bool {
    matches!(event, Event::Words { kind, .. } if *kind == wanted as u8)
}

/// The numbers in the payload of such a chunk.
pub(crate) fn numbers(chunk: &Chunk) -> Vec<u64> {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    chunk.payload.chunks_exact(8).map(number).collect()
}
