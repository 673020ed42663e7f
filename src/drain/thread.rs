//! The loop of the drain thread.

mod chunk;
mod files;

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use allocsample_agent::Agent;
use allocsample_agent::os::{self, clock, futex, process};
use allocsample_agent::recording::{DrainRequest, DrainState, Recording};
use allocsample_record::{
    ChunkEncoder, ChunkKind, ExitHow, ExitRecord, Figure, LostReason, MemoryMap, RecordKind,
    ValueRecord,
};
use allocsample_ring::Consumer;

use crate::handover::Handover;
use crate::intern::StackInterner;
use crate::keeper::{self, Drained, Keeper};
use crate::residency::Residency;
use crate::rotation::Rotation;
use crate::writer::ChunkWriter;

/// A chunk ends after this many ring words, so that a reader's memory for one is bounded.
const CHUNK_WORDS: u64 = 1 << 17;

/// Why the drain thread gave up. The ring stays, and keeps as many records as fit.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// The profile cannot be opened or written.
    #[error("the profile cannot be written: {0}")]
    Write(#[from] std::io::Error),
}

/// Runs the drain thread until it is asked to end.
pub fn run(agent: &'static Agent, recording: &'static Recording) -> Result<(), DrainError> {
    isolate();
    let mut drain = Drain::open(agent, recording)?;
    drain.run().inspect_err(|error| {
        let DrainError::Write(error) = error;
        let is_too_large = error.kind() == std::io::ErrorKind::FileTooLarge;
        if is_too_large && agent.config().max_size_bytes.is_some() && recording.is_current() {
            keeper::stop_for_size(agent, recording);
        }
        // From here on samples stay in the ring; those that do not fit are counted there.
        recording
            .ring
            .count_lost(LostReason::WriteFailed as usize, 1, 0);
    })
}

/// An empty table of descriptors for this thread alone: the program cannot close or replace our descriptors, and we
/// keep none of its files open. Kernels before 5.9 do not support this; there the table stays shared.
///
/// A root and a working directory for this thread alone, too. A program that shares them with another thread cannot
/// enter another mount namespace, and a `chroot` could hide the profile from us. The working directory is the root,
/// so that no file system is kept busy.
fn isolate() {
    const CLOSE_RANGE_UNSHARE: libc::c_uint = 2;
    // SAFETY: this thread uses no descriptor yet. The change of directory affects this thread alone, or is not made.
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

/// The state that a paused drain thread leaves to its successor.
struct Memory {
    recording: &'static Recording,
    interner: StackInterner,
    encoder: ChunkEncoder,
    drained: Drained,
    rotation: Rotation,
    residency: Residency,
}

static MEMORY: Handover<Memory> = Handover::new();

struct Drain {
    agent: &'static Agent,
    recording: &'static Recording,
    writer: ChunkWriter,
    consumer: Consumer,
    interner: StackInterner,
    encoder: ChunkEncoder,
    drained: Drained,
    rotation: Rotation,
    residency: Residency,
    is_rotating: bool,
    /// Whether the profile says that the disk was full.
    is_full_told: bool,
    keeper: Option<Keeper>,
    is_ring_populated: bool,
    lost: [(u64, u64); allocsample_record::LOST_REASONS],
    /// Number of modules that allocators and runtimes were looked for in, and the one that is to be looked at again.
    examined: u32,
    postponed: Option<u64>,
    /// How long to wait before that, in milliseconds.
    look_again_ms: u32,
}

impl Drain {
    /// Opens the profile and continues where a paused drain thread has stopped, if there was one.
    fn open(agent: &'static Agent, recording: &'static Recording) -> Result<Self, DrainError> {
        // A memory of another recording is no use; there is one if the process was forked or an exec failed.
        let memory = MEMORY
            .take()
            .filter(|memory| std::ptr::eq(memory.recording, recording));
        let Memory {
            interner,
            encoder,
            drained,
            rotation,
            residency,
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
            residency: Residency::new(),
        });
        let config = agent.config();
        let writer = ChunkWriter::open(recording.path.as_c_str(), rotation.room())?;
        // From here on this thread can write, whatever the program does to its root directory, rights and descriptors.
        recording.set_drain_state(DrainState::Running);
        Ok(Self {
            agent,
            recording,
            writer,
            // SAFETY: the right to start the thread is taken once, so this is the only consumer; after a pause its
            // predecessor has ended.
            consumer: unsafe { recording.ring.consumer() },
            interner,
            encoder,
            drained,
            rotation,
            residency,
            is_rotating: false,
            is_full_told: false,
            keeper: keeper::is_needed(config).then(|| Keeper::new(agent, recording)),
            is_ring_populated: false,
            // Losses from before this thread began are not in the file yet.
            lost: [(0, 0); allocsample_record::LOST_REASONS],
            examined: 0,
            postponed: None,
            look_again_ms: 0,
        })
    }

    fn run(&mut self) -> Result<(), DrainError> {
        loop {
            // Acquire: pairs with the waker's release. Read before the request, so that no wake is missed.
            let wake = self.recording.wake.load(Ordering::Acquire);
            let request = self.recording.drain_request();
            let position = self.consumer.position();
            if self.recording.is_current() {
                self.agent.note_late_bridges();
            }
            if self.recording.has_work() || request != DrainRequest::Work {
                self.drain_all()?;
            }
            self.do_file_work()?;
            self.write_memory()?;
            if request == DrainRequest::Work {
                self.join_loaded();
            }
            if let Some(keeper) = &mut self.keeper
                // Otherwise the budget is that of a recording that has begun since.
                && self.recording.is_current()
            {
                keeper.keep(&self.drained, self.writer.length());
            }
            match request {
                DrainRequest::Work if self.is_last_thread() => return self.end_with_process(),
                DrainRequest::Work if self.recording.has_work() => {
                    if self.consumer.position() == position {
                        // A record is open: its thread was preempted, or a jump has left it open for good.
                        const LOOK_AGAIN_MS: u32 = 5;
                        futex::wait(&self.recording.wake, wake, Some(LOOK_AGAIN_MS));
                    }
                }
                DrainRequest::Work => self.sleep(wake),
                DrainRequest::Pause => {
                    self.update_figures()?;
                    self.keep_for_next_thread();
                    return Ok(());
                }
                DrainRequest::Finish => {
                    self.drain_rest()?;
                    return self.finish();
                }
            }
        }
    }

    /// Keeps the numbers of the stacks in the file for the thread that continues after a pause.
    fn keep_for_next_thread(&mut self) {
        let memory = Memory {
            recording: self.recording,
            interner: std::mem::take(&mut self.interner),
            encoder: std::mem::take(&mut self.encoder),
            drained: self.drained,
            rotation: self.rotation.clone(),
            residency: self.residency.clone(),
        };
        MEMORY.leave(memory);
    }

    fn sleep(&self, wake: u32) {
        /// Polling interval for the end of the last thread, after main has called pthread_exit.
        const LOOK_FOR_LAST_THREAD_MS: u32 = 50;
        /// Polling interval under a filter of system calls, where nobody can wake this thread.
        const LOOK_FOR_WORK_MS: u32 = 20;
        let timeout_ms = if os::is_filtered() {
            Some(LOOK_FOR_WORK_MS)
        } else if self.recording.has_main_exited() {
            Some(LOOK_FOR_LAST_THREAD_MS)
        } else {
            let patience = [
                self.keeper.as_ref().and_then(Keeper::patience_ms),
                self.rotation.patience_ms(clock::monotonic_ns()),
                Some(self.residency.patience_ms()),
                self.postponed.map(|_| self.look_again_ms),
            ];
            patience.into_iter().flatten().min()
        };
        self.recording.sleep_until_work(wake, timeout_ms);
    }

    fn is_last_thread(&self) -> bool {
        self.recording.has_main_exited() && process::is_only_zombie_leader_left()
    }

    /// Ends as the last thread of the process. libc then exits with status 0, as it would without the agent.
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

    fn update_figures(&mut self) -> Result<(), DrainError> {
        self.recording.update_figures();
        let figures = self.recording.ring.figures();
        let position = self.consumer.position();
        self.write(|writer| writer.append_figures(ChunkKind::Figures, &figures, position))
    }

    /// Looks for allocators and runtimes in modules that stacks have run through since the last time.
    fn join_loaded(&mut self) {
        let agent = self.agent;
        if os::is_filtered() || !self.recording.is_current() {
            return;
        }
        loop {
            // The postponed module comes last: a library whose runtime never starts must not hold up the others.
            let next = (self.recording.take_awaited_module())
                .or_else(|| agent.modules().met_after(&mut self.examined))
                .or_else(|| self.postponed.take());
            let Some(start) = next else { return };
            if !agent.on_module(start) {
                // A runtime that starts is ready soon.
                self.look_again_ms = (2 * self.look_again_ms).clamp(5, 1000);
                match self.postponed {
                    Some(_) => self.recording.await_module(start),
                    None => self.postponed = Some(start),
                }
                return;
            }
            self.look_again_ms = 0;
        }
    }

    /// Writes the memory use of the process, if a reading is due. Behind a filter the kernel may refuse it.
    fn write_memory(&mut self) -> Result<(), DrainError> {
        if os::is_filtered() {
            return Ok(());
        }
        match self.residency.look() {
            Some(map) => {
                // What is live at the time of the reading is what was resident then.
                let time_ns = map.totals.time_ns;
                self.agent.look_at_pages(self.recording, time_ns);
                self.append_memory(&map)
            }
            None => Ok(()),
        }
    }

    /// Writes what allocators of the process count themselves.
    fn write_own_counts(&mut self) -> Result<(), DrainError> {
        if !self.agent.config().joins_embedded || !self.recording.is_current() {
            return Ok(());
        }
        let encoder = &mut self.encoder;
        self.agent.own_counts(&mut |record| {
            let mut words = [0; ValueRecord::WORDS];
            if record.encode_into(&mut words).is_some() {
                encoder.words(RecordKind::Value, &words);
            }
        });
        let (raw, position) = (self.encoder.take(), self.consumer.position());
        if !raw.is_empty() {
            self.write(|writer| writer.append_events(&raw, position..position))?;
        }
        self.encoder.give_back(raw);
        Ok(())
    }

    fn append_memory(&mut self, map: &MemoryMap) -> Result<(), DrainError> {
        let (payload, position) = (map.encode(), self.consumer.position());
        self.write(|writer| writer.append_memory(&payload, position))?;
        self.write_own_counts()
    }

    fn finish(&mut self) -> Result<(), DrainError> {
        if !os::is_filtered()
            && let Some(map) = self.residency.last_look()
        {
            self.append_memory(&map)?;
        }
        self.update_figures()?;
        // Losses that other threads count from now on are not written: the process is ending.
        self.recording.ring.close();
        self.recording.remove_ring();
        Ok(())
    }

    /// Drains everything, and waits briefly for unfinished records: on a busy machine a thread may have been preempted within
    /// its record, and later records lie behind it.
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

    /// Populates the ring's pages once a quarter of it is used, so that the program's threads do not have to.
    fn populate_ring(&mut self, head: u64) {
        if !self.is_ring_populated && head >= self.recording.ring.capacity_words() / 4 {
            self.is_ring_populated = true;
            if !os::is_filtered() {
                self.recording.populate_ring();
            }
        }
    }

    /// Drains everything that is committed now, in one chunk or more.
    fn drain_all(&mut self) -> Result<(), DrainError> {
        let end = self.recording.ring.head();
        self.populate_ring(end);
        while self.consumer.position() < end {
            self.make_room()?;
            let from = self.consumer.position();
            self.read_chunk(from + CHUNK_WORDS);
            let to = self.consumer.position();
            if to == from {
                // A record is reserved but not committed yet: its writer is still at work, or died.
                break;
            }
            self.write_counter();
            self.residency.write_own(&mut self.encoder);
            let raw = self.encoder.take();
            self.write(|writer| writer.append_events(&raw, from..to))?;
            self.encoder.give_back(raw);
            // Only now may the ring give up the records: the file has them.
            self.consumer.release();
            self.drained.words += to - from;
            self.recording.update_figures();
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
            self.write(|writer| writer.append_lost(ChunkKind::Lost, &lost, position))?;
            self.lost = lost;
        }
        Ok(())
    }
}

fn path_of(recording: &Recording) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(recording.path.as_bytes()))
}

#[cfg(test)]
mod tests;
