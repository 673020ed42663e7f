//! Writes what was read as a profile.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use allocsample_record::{
    ChunkEncoder, ChunkHeader, ChunkKind, Definition, DefinitionRecord, ExitHow, ExitRecord,
    FileHeader, FileSample, FormatVersion, FreeRecord, HeapId, HeapKind, IntervalRecord, Location,
    ModuleId, ModuleRecord, Note, NoteRecord, ProcessRecord, RingRecord, SampleFlags, SampleId,
    Sampling, StackId, StackNode, SymbolTable, ThreadId, ThreadStartRecord,
};

use crate::buckets::{Bucket, Buckets, Counts};
use crate::runtime::Runtime;

/// The heap's number and name in the profile.
const HEAP: HeapId = HeapId(1);
const HEAP_NAME: &[u8] = b"go";
/// The runtime does not record which thread allocated.
const THREAD: ThreadId = ThreadId(1);
/// The executable is the only module.
const MODULE: ModuleId = ModuleId(1);
/// Raw bytes of a chunk.
const CHUNK_BYTES: usize = 1 << 20;

/// A profile that is being written. What has been added is on the disk when a call returns.
#[derive(Debug)]
pub struct Recorder {
    file: File,
    encoder: ChunkEncoder,
    nodes: HashMap<(StackId, Location), StackId>,
    states: Vec<State>,
    symbols: SymbolTable,
    named: usize,
    /// Whether there was a reading.
    has_begun: bool,
    /// The number of the next sample. 0 is none.
    next: u64,
    chunk_from: u64,
    rate: u64,
    intervals: u16,
}

/// What the profile has of a bucket.
#[derive(Debug)]
struct State {
    stack: StackId,
    allocations: u64,
    frees: u64,
    /// So many of the allocations are from before the profile.
    carried: u64,
    /// Samples that have not been freed. Objects of a bucket are alike: which of them has died cannot be seen, nor matters.
    live: VecDeque<u64>,
}

/// Since when a program is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// Its runtime has taken samples since its start, and all of them count.
    Start,
    /// Earlier allocations are not known, or do not count.
    Attach,
}

/// A moment on two clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// CLOCK_MONOTONIC in nanoseconds.
    pub mono_ns: u64,
    /// CLOCK_REALTIME in nanoseconds.
    pub wall_ns: u64,
}

impl Recorder {
    /// Creates the file, which must not exist, and writes whose profile it is, and since when.
    pub fn create(path: &Path, runtime: &Runtime, since: Since, now: Moment) -> io::Result<Self> {
        let mut file = File::options()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        let random = || RandomState::new().hash_one(now.mono_ns);
        let header = FileHeader {
            version: FormatVersion::WHOLE,
            profile_id: u128::from(random()) << 64 | u128::from(random()),
        };
        file.write_all(&header.encode())?;
        let mut recorder = Self {
            file,
            encoder: ChunkEncoder::new(0),
            nodes: HashMap::new(),
            states: Vec::new(),
            symbols: SymbolTable::default(),
            named: 0,
            has_begun: since == Since::Start,
            next: 1,
            chunk_from: 0,
            rate: 0,
            intervals: 0,
        };
        recorder.begin(runtime, since, now);
        recorder.flush()?;
        Ok(recorder)
    }

    fn begin(&mut self, runtime: &Runtime, since: Since, now: Moment) {
        let pid = runtime.pid();
        let command_line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        self.record(&ProcessRecord {
            pid,
            parent_pid: parent_of(pid).unwrap_or(0),
            start_mono_ns: now.mono_ns,
            start_wall_ns: now.wall_ns,
            executable: runtime.path().as_os_str().as_bytes(),
            command_line: &command_line[..command_line.len().min(4096)],
        });
        let (start, end) = runtime.extent();
        self.record(&ModuleRecord {
            start,
            end,
            bias: runtime.bias(),
            build_id: &runtime.build_id()[..runtime.build_id().len().min(32)],
            path: runtime.path().as_os_str().as_bytes(),
        });
        let mut name = [0; allocsample_record::THREAD_NAME_BYTES];
        name[..10].copy_from_slice(b"goroutines");
        self.record(&ThreadStartRecord {
            time_ns: now.mono_ns,
            thread: THREAD,
            tid: pid,
            name,
        });
        // Deaths are reported one by one, after the collection that found them: nothing that is live waits for another one.
        self.record(&DefinitionRecord {
            kind: Definition::Heap,
            heap: HEAP,
            id: u32::from(HEAP.0),
            value: HeapKind::Malloc as u32,
            name: HEAP_NAME,
            detail: b"",
        });
        if since == Since::Attach {
            self.note(Note::Attached, b"", now);
        }
        self.note(Note::Outside, b"Go's runtime", now);
    }

    fn note(&mut self, note: Note, detail: &[u8], now: Moment) {
        self.record(&NoteRecord {
            time_ns: now.mono_ns,
            note,
            detail,
        });
    }

    /// From now on samples are taken every `rate` bytes on average.
    pub fn set_rate(&mut self, rate: u64, now: Moment) -> io::Result<()> {
        if rate == 0 || rate == self.rate {
            return Ok(());
        }
        if self.rate != 0 {
            self.intervals = self.intervals.saturating_add(1);
        }
        self.rate = rate;
        self.record(&IntervalRecord {
            time_ns: now.mono_ns,
            index: self.intervals,
            sampling: Sampling::Poisson,
            interval_bytes: rate,
            seed: 0,
            heap: HEAP,
        });
        self.flush()
    }

    /// Adds what has changed in the buckets. What was allocated before the first call counts as live only, and what had died
    /// is left out.
    pub fn add(&mut self, runtime: &Runtime, buckets: &Buckets, now: Moment) -> io::Result<()> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        for (index, bucket) in buckets.all().iter().enumerate() {
            if index == self.states.len() {
                let stack = self.stack(runtime, &bucket.stack);
                let Counts {
                    allocations,
                    frees,
                    pending,
                } = bucket.counts;
                let before = |count: u64| if is_first { count } else { 0 };
                self.states.push(State {
                    stack,
                    allocations: before(frees),
                    frees: before(frees),
                    carried: before(allocations + pending),
                    live: VecDeque::new(),
                });
            }
            self.add_bucket(index, bucket, now.mono_ns)?;
        }
        self.flush()?;
        self.write_names()
    }

    fn add_bucket(&mut self, index: usize, bucket: &Bucket, time_ns: u64) -> io::Result<()> {
        let state = &self.states[index];
        let new = bucket.counts.allocations.saturating_sub(state.allocations);
        let dead = bucket.counts.frees.saturating_sub(state.frees);
        for _ in 0..new {
            self.add_sample(index, bucket.size, time_ns)?;
        }
        for _ in 0..dead {
            let Some(id) = self.states[index].live.pop_front() else {
                break;
            };
            self.encoder.free(&FreeRecord {
                time_ns,
                sample: SampleId(id),
                thread: THREAD,
            });
            self.flush_if_full()?;
        }
        self.states[index].frees += dead;
        Ok(())
    }

    fn add_sample(&mut self, index: usize, size: u64, time_ns: u64) -> io::Result<()> {
        let state = &mut self.states[index];
        let id = self.next;
        self.next += 1;
        self.encoder.sample(&FileSample {
            id: SampleId(id),
            time_ns,
            address: 0,
            size,
            thread: THREAD,
            heap: HEAP,
            flags: match state.allocations < state.carried {
                true => SampleFlags::CARRIED,
                false => SampleFlags::default(),
            },
            points: 1,
            interval: self.intervals,
            thread_bytes: 0,
            stack: state.stack,
        });
        state.allocations += 1;
        state.live.push_back(id);
        self.flush_if_full()
    }

    /// The last words: the process runs on, without being read.
    pub fn leave(&mut self, buckets: &Buckets, now: Moment) -> io::Result<()> {
        self.add_pending(buckets, now)?;
        self.exit(ExitHow::Detached, None, now)
    }

    /// The last words: the process runs another program.
    pub fn end_by_exec(&mut self, buckets: &Buckets, now: Moment) -> io::Result<()> {
        self.add_pending(buckets, now)?;
        self.exit(ExitHow::Exec, None, now)
    }

    /// The last words: the process has ended, and with this status if it is known.
    pub fn end(&mut self, buckets: &Buckets, status: Option<i32>, now: Moment) -> io::Result<()> {
        self.add_pending(buckets, now)?;
        self.exit(ExitHow::Exit, status, now)
    }

    /// The last words: a signal has ended the process.
    pub fn end_by_signal(&mut self, buckets: &Buckets, now: Moment) -> io::Result<()> {
        self.add_pending(buckets, now)?;
        self.flush()
    }

    /// The last words: the process cannot be read any more, for this reason.
    pub fn give_up(&mut self, why: &str, now: Moment) -> io::Result<()> {
        self.note(Note::SwitchedOff, why.as_bytes(), now);
        self.flush()
    }

    /// What was allocated since the last collection counts as allocated, and not as live: live is what that collection left.
    fn add_pending(&mut self, buckets: &Buckets, now: Moment) -> io::Result<()> {
        for (index, bucket) in buckets.all().iter().enumerate() {
            for _ in 0..bucket.counts.pending {
                let Some(state) = self.states.get_mut(index) else {
                    break;
                };
                if state.allocations < state.carried {
                    state.allocations += 1;
                    continue;
                }
                self.add_sample(index, bucket.size, now.mono_ns)?;
                let last = self.states[index].live.pop_back();
                self.encoder.free(&FreeRecord {
                    time_ns: now.mono_ns,
                    sample: SampleId(last.unwrap_or(0)),
                    thread: THREAD,
                });
            }
        }
        Ok(())
    }

    fn exit(&mut self, how: ExitHow, status: Option<i32>, now: Moment) -> io::Result<()> {
        self.record(&ExitRecord {
            time_ns: now.mono_ns,
            how,
            status,
        });
        self.flush()
    }

    /// Samples that have been written.
    pub fn samples(&self) -> u64 {
        self.next - 1
    }

    fn stack(&mut self, runtime: &Runtime, frames: &[u64]) -> StackId {
        let (start, end) = runtime.extent();
        frames.iter().rev().fold(StackId::EMPTY, |parent, &frame| {
            let location = match (start..end).contains(&frame) {
                true => Location {
                    module: MODULE,
                    offset: frame.wrapping_sub(runtime.bias()),
                },
                false => Location {
                    module: ModuleId::NONE,
                    offset: frame,
                },
            };
            let encoder = &mut self.encoder;
            let symbols = &mut self.symbols;
            *self.nodes.entry((parent, location)).or_insert_with(|| {
                if !symbols.frames.contains_key(&location)
                    && let Some(named) = runtime.frame(frame)
                {
                    symbols.frames.insert(location, vec![named]);
                }
                encoder.node(StackNode { parent, location })
            })
        })
    }

    /// Writes the names after every reading that has new ones, so that they survive a SIGKILL of this command.
    fn write_names(&mut self) -> io::Result<()> {
        if self.symbols.frames.len() == self.named {
            return Ok(());
        }
        self.named = self.symbols.frames.len();
        let raw = self.symbols.encode();
        self.append(ChunkKind::Symbols, &raw)
    }

    fn record<R: RingRecord>(&mut self, record: &R) {
        let mut words = vec![0; record.words()];
        let encoded = record.encode_into(&mut words);
        debug_assert!(encoded.is_some(), "it takes as many words as it says");
        self.encoder.words(R::KIND, &words);
    }

    fn flush_if_full(&mut self) -> io::Result<()> {
        match self.encoder.len() < CHUNK_BYTES {
            true => Ok(()),
            false => self.flush(),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.encoder.is_empty() {
            return Ok(());
        }
        let raw = self.encoder.take();
        self.append(ChunkKind::Events, &raw)?;
        self.chunk_from = self.next;
        self.encoder.give_back(raw);
        Ok(())
    }

    fn append(&mut self, kind: ChunkKind, raw: &[u8]) -> io::Result<()> {
        let raw_bytes = u32::try_from(raw.len()).map_err(io::Error::other)?;
        let payload = lz4_flex::block::compress(raw);
        let ring = self.chunk_from..self.next;
        let header = ChunkHeader::for_payload(kind, raw_bytes, ring, &[&payload]);
        // In one call: what is cut short is left out by readers.
        let mut chunk = header.encode().to_vec();
        chunk.extend(payload);
        self.file.write_all(&chunk)
    }
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|it| it.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}
