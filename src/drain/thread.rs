//! The thread's loop.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use allocsample_agent::Agent;
use allocsample_agent::os::{self, clock, file, futex, process};
use allocsample_agent::recording::{DrainRequest, DrainState, Recording};
use allocsample_record::{
    ChunkEncoder, ChunkKind, CounterId, CounterRecord, Decoded, ExitHow, ExitRecord, FateRecord,
    Figure, FileSample, FileTickRecord, LostReason, ModuleAgainRecord, Note, PartEdge, PartRecord,
    RecordKind, SampleFlags, SampleId,
};
use allocsample_ring::{Consumer, request};

use crate::follow::Follower;
use crate::intern::StackInterner;
use crate::keeper::{self, Drained, Keeper};
use crate::rotation::{Border, Rotation};
use crate::writer::ChunkWriter;

/// A chunk ends after this many ring words, so that a reader's memory for one is bounded.
const CHUNK_WORDS: u64 = 1 << 17;

/// Why the thread gave up. The ring stays, and keeps what fits.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// The profile cannot be opened or written.
    #[error("the profile cannot be written: {0}")]
    Write(#[from] std::io::Error),
}

/// Works until it is asked to end.
pub fn run(agent: &'static Agent, recording: &'static Recording) -> Result<(), DrainError> {
    isolate();
    let memory = MEMORY
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .take();
    // Of another recording, if the process was forked or an exec failed.
    let memory = memory.filter(|memory| std::ptr::eq(memory.recording, recording));
    let Memory {
        interner,
        encoder,
        drained,
        rotation,
        ..
    } = memory.unwrap_or_else(|| Memory {
        recording,
        interner: StackInterner::new(),
        encoder: ChunkEncoder::new(0),
        drained: Drained::default(),
        rotation: Rotation::new(
            agent.config(),
            path_of(recording),
            clock::monotonic_ns(),
            clock::wall_ns(),
        ),
    });
    let config = agent.config();
    let writer = ChunkWriter::open(recording.path.as_c_str(), rotation.room())?;
    // Whatever the program does to its root, its rights and its descriptors from here on, this thread can write.
    recording.set_drain_state(DrainState::Running);
    let mut drain = Drain {
        agent,
        recording,
        writer,
        // SAFETY: the right to start the thread is taken once, so this is the only consumer; after a pause the one
        // before it is gone.
        consumer: unsafe { recording.ring.consumer() },
        interner,
        encoder,
        drained,
        rotation,
        is_rotating: false,
        keeper: keeper::is_needed(config).then(|| Keeper::new(agent, recording)),
        // What was lost before this thread began is not in the file yet.
        lost: [(0, 0); allocsample_record::LOST_REASONS],
    };
    drain.run().inspect_err(|error| {
        let DrainError::Write(error) = error;
        if error.kind() == std::io::ErrorKind::FileTooLarge && config.max_size_bytes.is_some() {
            keeper::stop_for_size(agent, recording);
        }
        // From here on samples gather in the ring; those that find no room are counted there.
        recording
            .ring
            .count_lost(LostReason::WriteFailed as usize, 1, 0);
    })
}

/// A table of descriptors of our own, empty: the program may close or replace any of its descriptors, and finds none
/// of ours; and none of its files is kept open by us. Without kernel support (before 5.9) the table stays shared.
///
/// A root and a working directory of our own, too: a program that shares them with another thread cannot enter another
/// mount namespace, and where it goes by `chroot` the profile may be out of sight. The working directory is the root's,
/// so that no file system is kept busy.
fn isolate() {
    const CLOSE_RANGE_UNSHARE: libc::c_uint = 2;
    // SAFETY: this thread uses no descriptor yet. The change of directory is this thread's alone, or is not made.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            0,
            libc::c_uint::MAX,
            CLOSE_RANGE_UNSHARE,
        );
        if libc::syscall(libc::SYS_unshare, libc::CLONE_FS) == 0 {
            libc::syscall(libc::SYS_chdir, c"/".as_ptr());
        }
    }
}

/// What a paused thread leaves to the next one.
struct Memory {
    recording: &'static Recording,
    interner: StackInterner,
    encoder: ChunkEncoder,
    drained: Drained,
    rotation: Rotation,
}

/// Locked by drain threads only, one after the other.
static MEMORY: std::sync::Mutex<Option<Memory>> = std::sync::Mutex::new(None);

struct Drain {
    agent: &'static Agent,
    recording: &'static Recording,
    writer: ChunkWriter,
    consumer: Consumer,
    interner: StackInterner,
    encoder: ChunkEncoder,
    drained: Drained,
    rotation: Rotation,
    is_rotating: bool,
    keeper: Option<Keeper>,
    lost: [(u64, u64); allocsample_record::LOST_REASONS],
}

impl Drain {
    fn run(&mut self) -> Result<(), DrainError> {
        loop {
            // Acquire: pairs with the waker's release. Read before the request, so that no wake is missed.
            let wake = self.recording.wake.load(Ordering::Acquire);
            let request = self.recording.drain_request();
            if self.recording.has_work() || request != DrainRequest::Work {
                self.drain_all()?;
            }
            self.do_file_work()?;
            if let Some(keeper) = &mut self.keeper {
                keeper.keep(&self.drained, self.writer.length());
            }
            match request {
                DrainRequest::Work if self.is_last_thread() => return self.end_with_process(),
                DrainRequest::Work if self.recording.has_work() => {}
                DrainRequest::Work => self.sleep(wake),
                DrainRequest::Pause => {
                    self.tell_figures()?;
                    self.remember();
                    return Ok(());
                }
                DrainRequest::Finish => {
                    self.drain_rest()?;
                    return self.finish();
                }
            }
        }
    }

    /// For the thread that goes on after a pause: the numbers of the stacks in the file.
    fn remember(&mut self) {
        let memory = Memory {
            recording: self.recording,
            interner: std::mem::take(&mut self.interner),
            encoder: std::mem::take(&mut self.encoder),
            drained: self.drained,
            rotation: self.rotation.clone(),
        };
        *MEMORY
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(memory);
    }

    fn sleep(&self, wake: u32) {
        /// How soon the end of the last thread is noticed, once main has gone by pthread_exit. Otherwise nothing polls.
        const LOOK_FOR_LAST_THREAD_MS: u32 = 50;
        /// Behind a filter of system calls nobody wakes us.
        const LOOK_FOR_WORK_MS: u32 = 20;
        let timeout_ms = if os::is_filtered() {
            Some(LOOK_FOR_WORK_MS)
        } else if self.recording.has_main_exited() {
            Some(LOOK_FOR_LAST_THREAD_MS)
        } else {
            let patience = [
                self.keeper.as_ref().and_then(Keeper::patience_ms),
                self.rotation.patience_ms(clock::monotonic_ns()),
            ];
            patience.into_iter().flatten().min()
        };
        self.recording.sleep_until_work(wake, timeout_ms);
    }

    fn is_last_thread(&self) -> bool {
        self.recording.has_main_exited() && process::is_only_zombie_leader_left()
    }

    /// When this thread returns, libc finds no other, and exits with status 0 as it would have without us.
    fn end_with_process(&mut self) -> Result<(), DrainError> {
        let record = ExitRecord {
            time_ns: clock::monotonic_ns(),
            how: ExitHow::LastThread,
            status: Some(0),
        };
        self.recording.announce_exit(&record);
        self.drain_all()?;
        self.finish()
    }

    fn tell_figures(&mut self) -> Result<(), DrainError> {
        self.recording.tell_figures();
        let figures = self.recording.ring.figures();
        let position = self.consumer.position();
        (self.writer).append_figures(ChunkKind::Figures, &figures, position)?;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), DrainError> {
        self.tell_figures()?;
        // What other threads still add goes nowhere: the process is at its end.
        self.recording.ring.close();
        file::unlink(self.recording.ring_path.as_c_str());
        Ok(())
    }

    /// Everything, if those that are at a record finish it soon: on a busy machine a thread may have lost the processor
    /// between the begin of its record and the end, and what others have written since lies behind it.
    fn drain_rest(&mut self) -> Result<(), DrainError> {
        const LOOKS: u32 = 1000;
        for _ in 0..LOOKS {
            self.drain_all()?;
            if self.consumer.position() >= self.recording.ring.head() {
                break;
            }
            clock::sleep_ms(1);
        }
        Ok(())
    }

    /// Everything that is committed now, in one chunk or more.
    fn drain_all(&mut self) -> Result<(), DrainError> {
        let end = self.recording.ring.head();
        while self.consumer.position() < end {
            self.make_room()?;
            let from = self.consumer.position();
            self.read_chunk(from + CHUNK_WORDS);
            let to = self.consumer.position();
            if to == from {
                // A record is reserved and not committed yet; its writer is at it, or died with it.
                break;
            }
            self.write_counter();
            let raw = self.encoder.take();
            while let Err(error) = self.writer.append_events(&raw, from..to) {
                // A full disk, or all files together have what they may: the oldest goes first.
                if !is_for_want_of_room(&error) || !self.rotation.drop_oldest() {
                    return Err(error.into());
                }
                self.writer.set_most_bytes(self.rotation.room());
            }
            // Only now: until here the ring had it too.
            self.consumer.release();
            self.drained.words += to - from;
            self.recording.tell_figures();
            let ring = &self.recording.ring;
            if !os::is_filtered() {
                ring.set_figure(Figure::DrainNs as usize, clock::thread_ns());
            }
            let written = self.rotation.parts_bytes() + self.writer.length();
            ring.set_figure(Figure::WrittenBytes as usize, written);
            self.recording.space.fetch_add(1, Ordering::Release);
            futex::wake_all(&self.recording.space);
        }
        let lost = self.recording.ring.lost();
        if lost != self.lost {
            let position = self.consumer.position();
            self.writer.append_lost(ChunkKind::Lost, &lost, position)?;
            self.lost = lost;
        }
        Ok(())
    }

    /// What was asked for from outside, and what the settings say is due.
    fn do_file_work(&mut self) -> Result<(), DrainError> {
        let ticket = self.recording.ticket();
        if let Some((what, generation)) = self.recording.take_asked() {
            self.drain_all()?;
            match what {
                request::ROTATE => self.rotate(true)?,
                request::RESET => self.rotate(false)?,
                request::SNAPSHOT => {
                    self.tell_figures()?;
                    self.copy();
                }
                // The figures, too, are to be in the file.
                _ => self.tell_figures()?,
            }
            self.recording.ring.obey(generation);
        }
        self.recording.tickets_are_done(ticket);
        // What waits in the ring has come since the file began as much as what is in it.
        let (now_ns, head) = (clock::monotonic_ns(), self.recording.ring.head());
        if self.rotation.is_due(now_ns, self.writer.length(), head) {
            self.rotate(true)?;
        }
        Ok(())
    }

    /// Copies the file as it is. There may be no room for a copy; then there is none, and a note.
    fn copy(&self) {
        let aside = self.rotation.aside();
        if let Err(error) = self.writer.copy(&aside, &self.rotation.copy_path()) {
            let reason = error.to_string();
            self.recording.note(Note::NoSnapshot, reason.as_bytes());
        }
    }

    /// Goes on in another file. If that cannot be, everything stays as it is, and is tried again later.
    fn rotate(&mut self, keeps: bool) -> Result<(), DrainError> {
        self.is_rotating = true;
        // For a moment, until the oldest is gone.
        self.writer.set_most_bytes(None);
        let rotated = self.rotate_without_limit(keeps);
        self.is_rotating = false;
        self.make_files_fit();
        rotated
    }

    /// The oldest files go until all together have what they may.
    fn make_files_fit(&mut self) {
        let is_too_long = |drain: &Self| {
            let room = drain.rotation.room();
            room.is_some_and(|room| room < drain.writer.length())
        };
        while is_too_long(self) && self.rotation.drop_oldest() {}
        self.writer.set_most_bytes(self.rotation.room());
    }

    /// Before a chunk comes: if it could find no room, the oldest file goes; and if there is none, what is in the present
    /// one, but for what lives.
    fn make_room(&mut self) -> Result<(), DrainError> {
        const CHUNK_BYTES: u64 = CHUNK_WORDS * 8;
        let is_limited = self.agent.config().is_rotated() && !self.is_rotating;
        let has_room = |drain: &Self| {
            let room = drain.rotation.room().filter(|_| is_limited);
            room.is_none_or(|room| drain.writer.length() + CHUNK_BYTES <= room)
        };
        while !has_room(self) {
            if self.rotation.drop_oldest() {
                self.writer.set_most_bytes(self.rotation.room());
            } else if self.rotation.has_grown(self.consumer.position()) {
                let position = self.consumer.position();
                self.rotate(false)?;
                if self.consumer.position() == position && self.rotation.has_grown(position) {
                    return Ok(());
                }
            } else {
                return Ok(());
            }
        }
        Ok(())
    }

    fn rotate_without_limit(&mut self, keeps: bool) -> Result<(), DrainError> {
        self.agent.tell_totals(self.recording);
        self.drain_all()?;
        self.tell_figures()?;
        while let Err(error) = self.try_to_rotate(keeps) {
            drop(std::fs::remove_file(self.rotation.aside()));
            if is_for_want_of_room(&error) && self.rotation.drop_oldest() {
                continue;
            }
            self.rotation.put_off(clock::monotonic_ns());
            if !std::mem::replace(&mut self.rotation.is_told, true) {
                let reason = error.to_string();
                self.recording.note(Note::NotRotated, reason.as_bytes());
            }
            break;
        }
        Ok(())
    }

    fn try_to_rotate(&mut self, keeps: bool) -> std::io::Result<()> {
        // Most of it now, while the ring is empty; the end below.
        self.writer.sync()?;
        let follower = self.follow()?;
        let position = self.consumer.position();
        let (time_ns, wall_ns) = (clock::monotonic_ns(), clock::wall_ns());
        let number = self.rotation.number();
        let part = |number, edge| PartRecord {
            time_ns,
            wall_ns,
            number,
            edge,
        };
        let mut next = self.writer.create_next(&self.rotation.aside())?;
        for payload in &follower.definitions {
            next.append_definitions(payload, position)?;
        }
        let mut encoder = ChunkEncoder::new(0);
        let begin = part(number + 1, PartEdge::Begin);
        let last_stacks = self.interner.last_stacks();
        let append = |encoder: &mut ChunkEncoder| next.append_carried(&encoder.take(), position);
        let numbers = (follower.carry).write(&begin, last_stacks, &mut encoder, append)?;
        next.append_lost(ChunkKind::LostBefore, &self.lost, position)?;
        let figures = self.recording.ring.figures();
        next.append_figures(ChunkKind::FiguresBefore, &figures, position)?;
        let length = self.writer.length();
        let mut words = [0; PartRecord::WORDS];
        if part(number, PartEdge::End)
            .encode_into(&mut words)
            .is_some()
        {
            self.encoder.words(PartRecord::KIND, &words);
        }
        let raw = self.encoder.take();
        self.writer.append_events(&raw, position..position)?;
        let border = Border {
            time_ns,
            wall_ns,
            bytes: self.writer.length(),
        };
        let first_bytes = next.length();
        let changed = self
            .writer
            .sync()
            .and_then(|()| next.sync())
            .and_then(|()| self.rotation.change(&border, first_bytes, position, keeps));
        if let Err(error) = changed {
            // It goes on after all.
            self.writer.cut(length)?;
            return Err(error);
        }
        self.writer = next;
        self.encoder = encoder;
        self.interner.begin_file(&numbers);
        Ok(())
    }

    /// Reads the file so far, and empties the ring meanwhile where it would overflow.
    fn follow(&mut self) -> std::io::Result<Follower> {
        /// Under a load that never lets us catch up the file would never end.
        const ROUNDS: u32 = 4;
        let mut follower = Follower::default();
        let mut rounds = 0;
        while follower.step(&self.writer)? {
            let ring = &self.recording.ring;
            if rounds < ROUNDS && ring.used_words() > ring.capacity_words() / 2 {
                rounds += 1;
                self.drain_all().map_err(|DrainError::Write(error)| error)?;
            }
        }
        Ok(follower)
    }

    fn read_chunk(&mut self, until: u64) {
        while self.consumer.position() < until {
            let Some(record) = self.consumer.next() else {
                return;
            };
            let Some(kind) = RecordKind::from_number(record.kind) else {
                continue;
            };
            let words: &[u64] = record.words;
            let bytes: Vec<u8>;
            // Only these records borrow text.
            let text: &[u8] = if kind == RecordKind::Module {
                bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                &bytes
            } else {
                &[]
            };
            match kind {
                RecordKind::Sample
                | RecordKind::Tick
                | RecordKind::Fate
                | RecordKind::Free
                | RecordKind::Module
                | RecordKind::ModuleUnload
                | RecordKind::ThreadEnd
                | RecordKind::Code => {
                    let Some(decoded) = Decoded::decode(kind, words, text) else {
                        continue;
                    };
                    match decoded {
                        Decoded::Sample(sample) => {
                            self.drained.samples += 1;
                            let shared = sample.shared as usize;
                            let flags = match self.interner.knows(sample.thread, shared) {
                                true => sample.flags,
                                false => sample.flags.with(SampleFlags::TRUNCATED),
                            };
                            let stack = self.interner.intern(
                                sample.thread,
                                shared,
                                sample.frames,
                                &mut self.encoder,
                            );
                            self.encoder.sample(&FileSample {
                                id: SampleId(record.position),
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
                            let id = SampleId(record.position);
                            let typed = FateRecord::of_type(id, sample.type_id, sample.time_ns);
                            if let Some(typed) = typed {
                                self.encoder.fate(&typed);
                            }
                        }
                        Decoded::Fate(fate) => self.encoder.fate(&fate),
                        Decoded::Tick(tick) => {
                            let stack = self.interner.intern_alone(tick.frames, &mut self.encoder);
                            let record = FileTickRecord {
                                time_ns: tick.time_ns,
                                cpu_ns: tick.cpu_ns,
                                thread: tick.thread,
                                flags: tick.flags,
                                stack: stack.0,
                            };
                            self.encoder.words(RecordKind::FileTick, &record.encode());
                        }
                        Decoded::Free(free) => {
                            self.drained.frees += 1;
                            self.encoder.free(&free);
                        }
                        Decoded::Module(module) => {
                            let again = self.interner.map(&module);
                            write_module(&mut self.encoder, words, again);
                        }
                        Decoded::ThreadEnd(end) => {
                            self.interner.end_thread(end.total.thread);
                            self.encoder.words(kind, words);
                        }
                        Decoded::Code(code) => {
                            self.interner.change_code(&code);
                            self.encoder.words(kind, words);
                        }
                        Decoded::ModuleUnload(module) => {
                            self.interner.unmap(&module);
                            self.encoder.words(kind, words);
                        }
                        _ => {}
                    }
                }
                _ => self.encoder.words(kind, words),
            }
        }
    }

    /// The resident set, once a chunk.
    fn write_counter(&mut self) {
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

fn path_of(recording: &Recording) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(recording.path.as_bytes()))
}

fn is_for_want_of_room(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), FileTooLarge | QuotaExceeded | StorageFull)
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
