//! For tests: an agent of its own that records to files of its own, and threads that allocate as the shim's do.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::boxed::Box;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use allocsample_record::{
    CounterRecord, Decoded, ExitHow, FreeRecord, IntervalRecord, NoteRecord, RecordKind, SampleId,
    ThreadEndRecord, ThreadStartRecord, ThreadTotalRecord,
};

use crate::accounting::thread::{ShimThread, THREAD_BYTES};
use crate::agent::Agent;
use crate::config::Config;
use crate::live::{BlockFilter, FILTER_GRANULES};
use crate::recording::{self, Recording};
use crate::setup::{Hooks, Start};
use crate::shim::{Allocation, Caller};

/// A process has one recording at a time.
static ONLY: Mutex<()> = Mutex::new(());

/// An agent that was never switched on, for one test.
macro_rules! agent {
    () => {{
        static AGENT: $crate::agent::Agent = $crate::agent::Agent::new($crate::trial::filter());
        &AGENT
    }};
}
pub(crate) use agent;

pub(crate) const fn filter() -> BlockFilter {
    static BYTES: [AtomicU8; FILTER_GRANULES] = [const { AtomicU8::new(0) }; FILTER_GRANULES];
    BlockFilter::new(&BYTES, || {})
}

/// See the module.
pub(crate) struct Trial {
    pub(crate) agent: &'static Agent,
    pub(crate) directory: PathBuf,
    _only: MutexGuard<'static, ()>,
}

/// A record of the ring.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) position: u64,
    pub(crate) kind: RecordKind,
    pub(crate) words: Vec<u64>,
}

/// A sample of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundSample {
    pub(crate) id: u64,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) points: u32,
    pub(crate) interval: u16,
    pub(crate) thread: u32,
    pub(crate) thread_bytes: u64,
    pub(crate) heap: u16,
    pub(crate) type_id: u32,
    pub(crate) flags: u16,
}

impl Trial {
    /// Switches the agent on with these settings, named without `ALLOCSAMPLE_`. Sample points are as far apart as the interval,
    /// from an offset that the seed gives.
    pub(crate) fn begin(agent: &'static Agent, settings: &[(&str, &str)]) -> Self {
        Self::begin_with(agent, settings, Hooks::NONE)
    }

    pub(crate) fn begin_with(
        agent: &'static Agent,
        settings: &[(&str, &str)],
        hooks: Hooks,
    ) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        recording::forget();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = std::format!("allocsample-agent-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let output = directory.join("app.allocsample");
        let lookup = |name: &str| {
            let name = name.strip_prefix("ALLOCSAMPLE_")?;
            let found = settings.iter().find(|(setting, _)| *setting == name);
            match (found, name) {
                (Some((_, value)), _) => Some(value.as_bytes()),
                (None, "OUTPUT") => Some(output.to_str()?.as_bytes()),
                (None, "UNWIND") => Some(&b"none"[..]),
                (None, "SAMPLING") => Some(&b"periodic"[..]),
                (None, "SEED") => Some(&b"1"[..]),
                _ => None,
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
        Self {
            agent,
            directory,
            _only: only,
        }
    }

    /// A thread that has not joined.
    pub(crate) fn thread(&self) -> &'static ShimThread {
        let memory = Box::leak(Box::new([0_u64; THREAD_BYTES / 8]));
        // SAFETY: all zero bytes, as many as the shim reserves, are a thread that has not joined.
        unsafe { &*core::ptr::from_ref(memory).cast() }
    }

    pub(crate) fn recording(&self) -> &'static Recording {
        recording::current().unwrap()
    }

    /// Allocates as the shim does.
    pub(crate) fn alloc(&self, thread: &ShimThread, address: u64, size: u64) -> Option<SampleId> {
        self.alloc_at(thread, address, size, Caller::UNKNOWN)
    }

    /// The same, called from there.
    pub(crate) fn alloc_at(
        &self,
        thread: &ShimThread,
        address: u64,
        size: u64,
        caller: Caller,
    ) -> Option<SampleId> {
        let charged = size.max(1);
        if thread.charge(charged) {
            return None;
        }
        let allocation = Allocation {
            address,
            size,
            charged,
            is_realloc: 0,
            has_own_frame: 0,
            caller,
        };
        self.agent.on_alloc(thread, &allocation)
    }

    /// Frees as the shim does.
    pub(crate) fn free(&self, thread: &ShimThread, address: u64) {
        let taken = self.agent.take_sampled(address);
        if taken != 0 {
            self.agent.on_free(thread, taken, &Caller::UNKNOWN);
        }
    }

    pub(crate) fn exit(&self, thread: &ShimThread) -> bool {
        let caller = Caller::UNKNOWN;
        self.agent
            .on_exit(thread, &caller, ExitHow::Exit, Some(0), b"")
    }

    /// All that is in the ring.
    pub(crate) fn records(&self) -> Vec<Found> {
        let mut records = Vec::new();
        // SAFETY: no drain thread runs in these tests, so this is the only consumer, and it gives nothing back.
        let mut consumer = unsafe { self.recording().ring.consumer() };
        while let Some(record) = consumer.next() {
            records.push(Found {
                position: record.position,
                kind: RecordKind::from_number(record.kind).unwrap(),
                words: record.words.to_vec(),
            });
        }
        records
    }

    /// The records of a kind.
    pub(crate) fn of_kind(&self, kind: RecordKind) -> Vec<Vec<u64>> {
        let records = self.records().into_iter();
        let found = records.filter(|record| record.kind == kind);
        found.map(|record| record.words).collect()
    }

    pub(crate) fn samples(&self) -> Vec<FoundSample> {
        let sample = |record: Found| match Decoded::decode(record.kind, &record.words, &[])? {
            Decoded::Sample(sample) => Some(FoundSample {
                id: record.position,
                address: sample.address,
                size: sample.size,
                points: sample.points,
                interval: sample.interval,
                thread: sample.thread.0,
                thread_bytes: sample.thread_bytes,
                heap: sample.heap.0,
                type_id: sample.type_id,
                flags: sample.flags.0,
            }),
            _ => None,
        };
        let is_sample = |record: &Found| record.kind == RecordKind::Sample;
        let records = self.records().into_iter().filter(is_sample);
        records.filter_map(sample).collect()
    }

    /// Ids and threads of the frees.
    pub(crate) fn frees(&self) -> Vec<(u64, u32)> {
        let mut frees = Vec::new();
        for record in self.records() {
            match Decoded::decode(record.kind, &record.words, &[]) {
                Some(Decoded::Free(free)) => frees.push(free),
                Some(Decoded::Deaths(deaths)) => frees.extend(deaths.frees()),
                _ => {}
            }
        }
        let fact = |free: &FreeRecord| (free.sample.0, free.thread.0);
        frees.iter().map(fact).collect()
    }

    /// Number, bytes and heap of each interval.
    pub(crate) fn intervals(&self) -> Vec<(u16, u64, u16)> {
        let interval = |words: Vec<u64>| {
            let interval = IntervalRecord::decode(&words).unwrap();
            (interval.index, interval.interval_bytes, interval.heap.0)
        };
        let found = self.of_kind(RecordKind::Interval).into_iter();
        found.map(interval).collect()
    }

    /// Thread, bytes and muted bytes of each total.
    pub(crate) fn totals(&self) -> Vec<(u32, u64, u64)> {
        let total = |words: Vec<u64>| {
            let total = ThreadTotalRecord::decode(&words).unwrap();
            (total.thread.0, total.bytes, total.muted_bytes)
        };
        let found = self.of_kind(RecordKind::ThreadTotal).into_iter();
        found.map(total).collect()
    }

    /// Numbers of the threads that were announced.
    pub(crate) fn starts(&self) -> Vec<u32> {
        let start = |words: Vec<u64>| ThreadStartRecord::decode(&words).unwrap().thread.0;
        let found = self.of_kind(RecordKind::ThreadStart).into_iter();
        found.map(start).collect()
    }

    /// Thread, bytes and muted bytes of each thread that ended.
    pub(crate) fn ends(&self) -> Vec<(u32, u64, u64)> {
        let end = |words: Vec<u64>| {
            let total = ThreadEndRecord::decode(&words).unwrap().total;
            (total.thread.0, total.bytes, total.muted_bytes)
        };
        let found = self.of_kind(RecordKind::ThreadEnd).into_iter();
        found.map(end).collect()
    }

    /// The notes with their details.
    pub(crate) fn notes(&self) -> Vec<(allocsample_record::Note, Vec<u8>)> {
        let note = |words: Vec<u64>| {
            let text: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let note = NoteRecord::decode(&words, &text).unwrap();
            (note.note, note.detail.to_vec())
        };
        self.of_kind(RecordKind::Note)
            .into_iter()
            .map(note)
            .collect()
    }

    /// Fills the ring until nothing fits.
    pub(crate) fn fill_ring(&self) {
        let record = CounterRecord {
            time_ns: 1,
            counter: allocsample_record::CounterId::ResidentBytes,
            value: 1,
        };
        while self.recording().push(&record) {}
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        recording::forget();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
