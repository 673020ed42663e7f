//! The profile that is being written: its two files, its ring, and how the drain thread is told.
//!
//! A recording starts with the first sample of a process (one without a sample leaves no file) and ends at its exit.
//! `NAME.allocsample` gets a header at once, and chunks from the drain thread; `NAME.allocsample.ring` is the ring,
//! which outlives a killed process and is removed when everything in it is in the profile.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use allocsample_record::{
    ExitRecord, Figure, FileHeader, FormatVersion, IntervalRecord, LostReason, Note, NoteRecord,
    ProcessRecord, RecordKind, THREAD_NAME_BYTES, ThreadStartRecord,
};
use allocsample_ring::{Priority, Ring};

use crate::config::{Config, OnFull};
use crate::hooks::Definitions;
use crate::os::file::{self, File};
use crate::os::futex::{self, Woken};
use crate::os::memory::{self, StaticRef};
use crate::os::{self, clock, process};
use crate::path::{Path, file_name};

/// Ring sizes that are tried in turn, in words: 4 MiB, 1 MiB, 256 KiB.
const CAPACITIES_WORDS: [u64; 3] = [1 << 19, 1 << 17, 1 << 15];

/// Bits of a request that say what is wanted.
const ASKED_BITS: u32 = 8;

/// Whether our thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum DrainState {
    /// Never started, or stopped for a while.
    None = 0,
    /// Being started by some thread.
    Starting = 1,
    /// At work: the profile is open.
    Running = 2,
    /// It has written all and goes.
    Done = 3,
    /// It could not be started, or could not write.
    Failed = 4,
}

impl DrainState {
    fn from_number(number: u32) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Starting,
            2 => Self::Running,
            3 => Self::Done,
            _ => Self::Failed,
        }
    }
}

/// What the drain thread is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum DrainRequest {
    /// Drain whenever enough has gathered.
    Work = 0,
    /// Drain everything and end, but leave the ring: it is to be used again.
    Pause = 1,
    /// Drain everything, remove the ring and end.
    Finish = 2,
}

/// A profile in the making.
pub struct Recording {
    /// The ring that all threads write.
    pub ring: Ring,
    /// Path of the profile.
    pub path: Path,
    /// Path of the ring.
    pub ring_path: Path,
    /// Counts the reasons to wake the drain thread.
    pub wake: AtomicU32,
    /// Whether the drain thread sleeps, or is about to: who finds work for it wakes it once.
    is_drain_asleep: AtomicBool,
    /// Counts the times that the drain thread has given space back.
    pub space: AtomicU32,
    /// Where the ring is mapped, and its bytes.
    ring_place: (NonNull<u8>, usize),
    given_up_at: AtomicU32,
    /// Definitions up to here are in the file.
    pub(crate) definitions_to: u64,
    state: AtomicU32,
    request: AtomicU32,
    main_exited: AtomicU32,
    /// What somebody outside wants of the files, below the generation of the request; 0 for nothing.
    asked: AtomicU64,
    /// Threads of the program that wait for such work have taken numbers up to this one.
    pub(crate) tickets: AtomicU32,
    /// Up to this one it is done.
    pub(crate) tickets_done: AtomicU32,
}

// SAFETY: of its fields only the place of the ring is a pointer, and that is only passed to the kernel.
unsafe impl Sync for Recording {}

/// Why no recording can be made.
#[derive(Clone, Copy, Debug)]
pub struct CannotRecord {
    /// One line.
    pub reason: &'static str,
}

static CURRENT: StaticRef<Recording> = StaticRef::new();

/// The recording of this process, if it has one.
pub fn current() -> Option<&'static Recording> {
    CURRENT.get()
}

/// Forgets the recording: it is the parent's, or it is finished. Only while the process has a single thread.
pub fn forget() {
    CURRENT.set(None);
    // In a forked child: who was creating one does not exist here.
    BEGINNING.store(0, Ordering::Relaxed);
}

/// What a new recording says of itself first.
pub struct Beginning<'a> {
    /// The settings.
    pub config: &'a Config,
    /// The seed in use.
    pub seed: u64,
    /// The program's name.
    pub program: &'a [u8],
    /// The module of the next allocator.
    pub next_allocator: &'a [u8],
    /// The module of a malloc that stands before ours.
    pub malloc_elsewhere: Option<&'a [u8]>,
    /// The process this one was forked from.
    pub forked_from: Option<u32>,
    /// What virtual machines have defined so far.
    pub definitions: &'a Definitions,
    /// For paths and arguments.
    pub buffer: &'a mut [u8; 8192],
}

/// Whether some thread is creating the files.
static BEGINNING: AtomicU32 = AtomicU32::new(0);

/// Creates the files and makes the recording current. `Ok(None)`: another thread is at it, and takes long.
///
/// Any thread, also in a signal handler: the thread is muted, so the one it waits for is not itself.
pub fn begin(beginning: Beginning<'_>) -> Result<Option<&'static Recording>, CannotRecord> {
    // A disk that takes longer stalls one thread of the program, not all, unless all are to wait.
    let patience_ms = match beginning.config.on_full {
        OnFull::Drop => 100,
        OnFull::Wait => 10_000,
    };
    // Acquire and release: who comes later sees the recording that was made.
    while BEGINNING.swap(1, Ordering::AcqRel) != 0 {
        let woken = futex::wait(&BEGINNING, 1, Some(patience_ms));
        if current().is_some() || woken == Woken::TimedOut {
            return Ok(current());
        }
    }
    let begun = current().map_or_else(|| create(beginning), Ok);
    BEGINNING.store(0, Ordering::Release);
    futex::wake_all(&BEGINNING);
    begun.map(Some)
}

fn create(beginning: Beginning<'_>) -> Result<&'static Recording, CannotRecord> {
    let config = beginning.config;
    let (path_buffer, argument_buffer) = beginning.buffer.split_at_mut(4096);
    let executable = process::executable(path_buffer);
    let command_line = process::command_line(argument_buffer);
    let wall_ns = clock::wall_ns();
    let (profile, path) = create_profile(config, file_name(beginning.program), wall_ns)?;
    let profile_id = process::random_u128();
    let header = FileHeader {
        version: FormatVersion::WHOLE,
        profile_id,
    }
    .encode();
    let mut ring_path = path.clone();
    ring_path.push(b".ring");
    let discard = |reason| {
        file::unlink(path.as_c_str());
        file::unlink(ring_path.as_c_str());
        Err(CannotRecord { reason })
    };
    if profile.write_all(&header).is_err() {
        return discard("the profile cannot be written (is the disk full?)");
    }
    let Some(definitions_to) = beginning.definitions.write(&profile, 0) else {
        return discard("the profile cannot be written (is the disk full?)");
    };
    drop(profile);
    let Some((ring, ring_place)) = create_ring(&ring_path, profile_id) else {
        return discard("no room for the ring file (is the disk full, or a file size limit set?)");
    };
    let recording = Recording {
        ring,
        path: path.clone(),
        ring_path: ring_path.clone(),
        wake: AtomicU32::new(0),
        is_drain_asleep: AtomicBool::new(false),
        space: AtomicU32::new(0),
        ring_place,
        given_up_at: AtomicU32::new(u32::MAX),
        definitions_to,
        state: AtomicU32::new(DrainState::None as u32),
        request: AtomicU32::new(DrainRequest::Work as u32),
        main_exited: AtomicU32::new(0),
        asked: AtomicU64::new(0),
        tickets: AtomicU32::new(0),
        tickets_done: AtomicU32::new(0),
    };
    let Some(recording) = memory::leak(recording) else {
        return discard("out of memory");
    };
    recording.write_beginning(
        &ProcessRecord {
            pid: process::pid(),
            parent_pid: process::parent_pid(),
            start_mono_ns: clock::monotonic_ns(),
            start_wall_ns: wall_ns,
            executable,
            command_line,
        },
        &beginning.config.interval,
        beginning.config,
        beginning.seed,
    );
    recording.tell_figures();
    recording.note(Note::NextAllocator, beginning.next_allocator);
    if let Some(module) = beginning.malloc_elsewhere {
        recording.note(Note::MallocIsElsewhere, module);
    }
    if let Some(parent) = beginning.forked_from {
        recording.note(
            Note::ForkedFrom,
            crate::path::decimal(u64::from(parent), &mut [0; 20]),
        );
    }
    CURRENT.set(Some(recording));
    Ok(recording)
}

fn create_profile(
    config: &Config,
    program: &[u8],
    wall_ns: u64,
) -> Result<(File, Path), CannotRecord> {
    const ATTEMPTS: u32 = 1000;
    for attempt in 0..ATTEMPTS {
        let path = config.output_path(process::pid(), program, wall_ns, attempt);
        if path.is_too_long() || path.as_bytes().len() + b".ring".len() >= crate::path::PATH_BYTES {
            return Err(CannotRecord {
                reason: "the output path is too long",
            });
        }
        match File::create_new(path.as_c_str()) {
            Ok(file) => return Ok((file, path)),
            Err(crate::os::Errno(libc::EEXIST)) => {}
            Err(_) => break,
        }
    }
    Err(CannotRecord {
        reason: "the profile cannot be created",
    })
}

fn create_ring(path: &Path, profile_id: u128) -> Option<(Ring, (NonNull<u8>, usize))> {
    let file = File::create_new(path.as_c_str()).ok()?;
    for capacity_words in CAPACITIES_WORDS {
        let bytes = allocsample_ring::file_bytes(capacity_words);
        // A file beyond the limit would not only fail: the kernel would send SIGXFSZ to the program.
        if bytes as u64 > file::size_limit() || file.allocate(bytes).is_err() {
            continue;
        }
        let base = memory::map_shared(file.number(), bytes)?;
        // SAFETY: freshly allocated, so zeroed; mapped for ever, page-aligned, a power of two; the file is new and
        // only this process maps it (a forked child does not inherit the mapping).
        let ring = unsafe { Ring::create(base, capacity_words, profile_id) };
        return Some((ring, (base, bytes)));
    }
    None
}

impl Recording {
    fn write_beginning(
        &self,
        process: &ProcessRecord<'_>,
        interval: &Option<allocsample_sampling::Interval>,
        config: &Config,
        seed: u64,
    ) {
        let time_ns = process.start_mono_ns;
        self.push(RecordKind::Process, process.words(), |words| {
            process.encode_into(words)
        });
        let record = IntervalRecord {
            time_ns,
            index: 0,
            sampling: config.sampling,
            interval_bytes: interval.map_or(0, allocsample_sampling::Interval::bytes),
            seed,
        };
        self.push(RecordKind::Interval, IntervalRecord::WORDS, |words| {
            record.encode_into(words)
        });
    }

    /// Writes an essential record; false if even the reserve for those is used up. Any thread, also in a signal handler.
    pub fn push(
        &self,
        kind: RecordKind,
        words: usize,
        encode: impl FnOnce(&mut [u64]) -> Option<usize>,
    ) -> bool {
        self.push_as(Priority::Essential, kind, words, encode)
    }

    /// The same for a record that is written once, at an end. There is room for it also where frees have filled the ring,
    /// and a filter of system calls lets nobody wait.
    pub fn push_at_end(
        &self,
        kind: RecordKind,
        words: usize,
        encode: impl FnOnce(&mut [u64]) -> Option<usize>,
    ) -> bool {
        self.push_as(Priority::Last, kind, words, encode)
    }

    fn push_as(
        &self,
        priority: Priority,
        kind: RecordKind,
        words: usize,
        encode: impl FnOnce(&mut [u64]) -> Option<usize>,
    ) -> bool {
        let Ok(mut reservation) = self.ring.reserve(words, priority) else {
            return false;
        };
        if encode(reservation.words_mut()).is_none() {
            return false;
        }
        let used_words = reservation.used_words();
        reservation.commit(kind as u8);
        if self.is_worth_draining(used_words) && self.drain_state() == DrainState::Running {
            self.nudge_drain();
        }
        true
    }

    /// Writes a note.
    pub fn note(&self, note: Note, detail: &[u8]) {
        let record = NoteRecord {
            time_ns: clock::monotonic_ns(),
            note,
            detail,
        };
        self.push(RecordKind::Note, record.words(), |words| {
            record.encode_into(words)
        });
    }

    /// Writes the start of the calling thread.
    pub fn announce_thread(&self, number: u32) -> bool {
        // Behind a filter a thread has no name: asking for it may end the process.
        let (tid, name) = match os::is_filtered() {
            true => (0, [0; THREAD_NAME_BYTES]),
            false => (process::tid(), process::thread_name()),
        };
        let record = ThreadStartRecord {
            time_ns: clock::monotonic_ns(),
            thread: allocsample_record::ThreadId(number),
            tid,
            name,
        };
        self.push(RecordKind::ThreadStart, ThreadStartRecord::WORDS, |words| {
            record.encode_into(words)
        })
    }

    /// Writes the end of the process.
    pub fn announce_exit(&self, record: &ExitRecord) {
        self.push_at_end(RecordKind::Exit, ExitRecord::WORDS, |words| {
            record.encode_into(words)
        });
    }

    /// Counts something that could not be kept.
    pub fn count_lost(&self, reason: LostReason, events: u64, bytes: u64) {
        self.ring.count_lost(reason as usize, events, bytes);
    }

    /// Whether there is enough in the ring to be worth draining.
    pub fn has_work(&self) -> bool {
        self.is_worth_draining(self.ring.used_words())
    }

    /// Whether so many words in the ring are.
    pub fn is_worth_draining(&self, used_words: u64) -> bool {
        used_words >= self.ring.capacity_words() / 4
    }

    /// Wakes the drain thread if it sleeps. There is work for it until it has caught up: without the flag, each sample
    /// and each free until then would be a system call.
    pub fn nudge_drain(&self) {
        // Either we see that it sleeps, or it sees our record: see `sleep_until_work`.
        fence(Ordering::SeqCst);
        if self.is_drain_asleep.load(Ordering::Relaxed)
            && self.is_drain_asleep.swap(false, Ordering::Relaxed)
        {
            self.wake_drain();
        }
    }

    /// Sleeps unless there is work, or `wake` was counted up beyond `wake`. The drain thread's.
    pub fn sleep_until_work(&self, wake: u32, timeout_ms: Option<u32>) {
        self.is_drain_asleep.store(true, Ordering::Relaxed);
        // Pairs with the fence in `nudge_drain`.
        fence(Ordering::SeqCst);
        if !self.has_work() {
            futex::wait(&self.wake, wake, timeout_ms);
        }
        self.is_drain_asleep.store(false, Ordering::Relaxed);
    }

    /// Tells figures that come from elsewhere. Any thread.
    pub fn tell_figures(&self) {
        if os::is_filtered() {
            return;
        }
        let tell = |figure: Figure, value| self.ring.set_figure(figure as usize, value);
        let used = self.ring.used_words();
        self.ring.raise_figure(Figure::MostRingWords as usize, used);
        tell(Figure::RingWords, self.ring.capacity_words());
        tell(Figure::MappedBytes, memory::mapped_bytes());
        tell(Figure::ProcessNs, clock::process_ns());
    }

    /// Counts the time of a slow path in which a sample was taken or ended; `timed` is the figure of their number, and the
    /// next one that of their time.
    pub(crate) fn count_time(&self, timed: Figure, elapsed_ns: u64) {
        /// What takes many times longer than others was waiting for a processor, which is nobody's cost.
        const LONGEST: u64 = 16;
        const ENOUGH_FOR_A_MEAN: u64 = 16;
        let number = timed as usize;
        let figures = self.ring.figures();
        let of = |number: usize| figures.get(number).copied().unwrap_or(0);
        let longest = match of(number) {
            ..ENOUGH_FOR_A_MEAN => 1_000_000,
            timed => LONGEST * (of(number + 1) / timed).max(100),
        };
        self.ring.add_figure(number, 1);
        self.ring.add_figure(number + 1, elapsed_ns.min(longest));
    }

    /// Wakes the drain thread, which looks for itself what there is to do.
    pub fn wake_drain(&self) {
        // Release: pairs with the drain thread's acquire; it sees the request.
        self.wake.fetch_add(1, Ordering::Release);
        if !os::is_filtered() {
            futex::wake_all(&self.wake);
        }
    }

    /// As [`Self::wake_drain`], when a filter is about to forbid it: from here on the thread looks by itself.
    pub fn wake_drain_for_the_last_time(&self) {
        self.wake.fetch_add(1, Ordering::Release);
        futex::wake_all(&self.wake);
    }

    /// Waits until the drain thread has given space back, if the settings say so and it can. False: do not wait (again).
    pub fn wait_for_space(&self, on_full: OnFull) -> bool {
        /// A thread that moves nothing for this long is stuck.
        const PATIENCE_MS: u32 = 10_000;
        let can_come = matches!(
            self.drain_state(),
            DrainState::Starting | DrainState::Running
        );
        let before = self.space.load(Ordering::Acquire);
        if on_full == OnFull::Drop
            || !can_come
            || os::is_filtered()
            || self.given_up_at.load(Ordering::Relaxed) == before
        {
            return false;
        }
        self.wake_drain();
        let woken = futex::wait(&self.space, before, Some(PATIENCE_MS));
        if woken == Woken::TimedOut && self.space.load(Ordering::Acquire) == before {
            // Nobody else waits for it until it moves.
            self.given_up_at.store(before, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Leaves a request about the files to the drain thread: one of `allocsample_ring::request`'s numbers, and its
    /// generation, 0 for one from inside. Any thread, also in a signal handler.
    pub(crate) fn ask_for_file_work(&self, what: u64, generation: u64) {
        // Of two that nobody has taken yet the one that does more: a flush, a copy, a new file, a new beginning.
        let of = |before: u64| {
            let what = what.max(before & ((1 << ASKED_BITS) - 1));
            let generation = generation.max(before >> ASKED_BITS);
            Some(generation << ASKED_BITS | what)
        };
        let _always = (self.asked).fetch_update(Ordering::AcqRel, Ordering::Acquire, of);
        self.wake_drain();
    }

    /// Whether there is such a request.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) != 0
    }

    /// Takes the request: what, and its generation. The drain thread's.
    pub fn take_asked(&self) -> Option<(u64, u64)> {
        match self.asked.swap(0, Ordering::Acquire) {
            0 => None,
            asked => Some((asked & ((1 << ASKED_BITS) - 1), asked >> ASKED_BITS)),
        }
    }

    /// Whether the drain thread runs.
    pub fn drain_state(&self) -> DrainState {
        DrainState::from_number(self.state.load(Ordering::Acquire))
    }

    /// Takes the right to start the drain thread.
    pub fn claim_drain_start(&self) -> bool {
        let (from, to) = (DrainState::None as u32, DrainState::Starting as u32);
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// The drain thread (or who failed to start it) says how it is.
    pub fn set_drain_state(&self, state: DrainState) {
        self.state.store(state as u32, Ordering::Release);
        futex::wake_all(&self.state);
    }

    /// Waits until the drain thread, if it is being started, has opened the profile or has failed to.
    pub fn wait_for_drain_start(&self) {
        const PATIENCE_MS: u64 = 2_000;
        let deadline_ns = clock::monotonic_ns() + PATIENCE_MS * 1_000_000;
        while self.drain_state() == DrainState::Starting && clock::monotonic_ns() < deadline_ns {
            futex::wait(&self.state, DrainState::Starting as u32, Some(100));
        }
    }

    /// What the drain thread is to do.
    pub fn drain_request(&self) -> DrainRequest {
        match self.request.load(Ordering::Acquire) {
            0 => DrainRequest::Work,
            1 => DrainRequest::Pause,
            _ => DrainRequest::Finish,
        }
    }

    /// Asks the drain thread for something and waits until it has gone, as long as it moves: it may stand still for
    /// `patience_ms`. True if it has done it.
    pub fn ask_drain(&self, request: DrainRequest, patience_ms: u32) -> bool {
        if os::is_filtered() {
            // What is in the ring is in a file.
            return false;
        }
        self.request.store(request as u32, Ordering::Release);
        let deadline_after = || clock::monotonic_ns() + u64::from(patience_ms) * 1_000_000;
        let mut deadline_ns = deadline_after();
        let mut moved = self.space.load(Ordering::Relaxed);
        loop {
            let now_moved = self.space.load(Ordering::Relaxed);
            if now_moved != moved {
                moved = now_moved;
                deadline_ns = deadline_after();
            }
            match self.drain_state() {
                DrainState::Done => return true,
                DrainState::None | DrainState::Failed => return false,
                DrainState::Starting | DrainState::Running
                    if clock::monotonic_ns() > deadline_ns =>
                {
                    return false;
                }
                state => {
                    self.wake_drain();
                    futex::wait(&self.state, state as u32, Some(100));
                }
            }
        }
    }

    /// Lets go of the ring's file, when the recording is finished and the process goes on. A thread that is still at a
    /// record writes it into memory that nobody reads.
    pub(crate) fn release_ring(&self) {
        let (base, bytes) = self.ring_place;
        // SAFETY: our own mapping, which stays readable and writable, and in which nobody relies on what is there: the
        // recording is no longer the current one, and its drain thread is gone.
        unsafe { memory::replace_by_zeros(base, bytes) };
    }

    /// The main thread has called `pthread_exit`: the process now ends with its last thread.
    pub fn main_has_exited(&self) {
        self.main_exited.store(1, Ordering::Relaxed);
        self.wake_drain();
    }

    /// Whether [`Self::main_has_exited`].
    pub fn has_main_exited(&self) -> bool {
        self.main_exited.load(Ordering::Relaxed) != 0
    }

    /// After [`DrainRequest::Pause`]: a drain thread may be started again.
    pub fn allow_drain_again(&self) {
        self.request
            .store(DrainRequest::Work as u32, Ordering::Release);
        self.set_drain_state(DrainState::None);
    }
}
