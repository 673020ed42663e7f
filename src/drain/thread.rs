//! The thread's loop.

use std::sync::atomic::Ordering;

use allocsample_agent::Agent;
use allocsample_agent::os::{self, clock, file, futex, process};
use allocsample_agent::recording::{DrainRequest, DrainState, Recording};
use allocsample_record::{
    ChunkEncoder, CounterId, CounterRecord, Decoded, ExitHow, ExitRecord, Figure, FileSample,
    LostReason, ModuleAgainRecord, RecordKind, SampleFlags, SampleId,
};
use allocsample_ring::Consumer;

use crate::intern::StackInterner;
use crate::keeper::{self, Drained, Keeper};
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
        ..
    } = memory.unwrap_or_else(|| Memory {
        recording,
        interner: StackInterner::new(),
        encoder: ChunkEncoder::new(0),
        drained: Drained::default(),
    });
    let config = agent.config();
    let writer = ChunkWriter::open(recording.path.as_c_str(), config.max_size_bytes)?;
    // Whatever the program does to its root, its rights and its descriptors from here on, this thread can write.
    recording.set_drain_state(DrainState::Running);
    let mut drain = Drain {
        recording,
        writer,
        // SAFETY: the right to start the thread is taken once, so this is the only consumer; after a pause the one
        // before it is gone.
        consumer: unsafe { recording.ring.consumer() },
        interner,
        encoder,
        drained,
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
}

/// Locked by drain threads only, one after the other.
static MEMORY: std::sync::Mutex<Option<Memory>> = std::sync::Mutex::new(None);

struct Drain {
    recording: &'static Recording,
    writer: ChunkWriter,
    consumer: Consumer,
    interner: StackInterner,
    encoder: ChunkEncoder,
    drained: Drained,
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
            self.keeper.as_ref().and_then(Keeper::patience_ms)
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
        self.writer
            .append_figures(&figures, self.consumer.position())?;
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
            let from = self.consumer.position();
            self.read_chunk(from + CHUNK_WORDS);
            let to = self.consumer.position();
            if to == from {
                // A record is reserved and not committed yet; its writer is at it, or died with it.
                break;
            }
            self.write_counter();
            let raw = self.encoder.take();
            self.writer.append_events(&raw, from..to)?;
            // Only now: until here the ring had it too.
            self.consumer.release();
            self.drained.words += to - from;
            self.recording.tell_figures();
            let ring = &self.recording.ring;
            if !os::is_filtered() {
                ring.set_figure(Figure::DrainNs as usize, clock::thread_ns());
            }
            ring.set_figure(Figure::WrittenBytes as usize, self.writer.length());
            self.recording.space.fetch_add(1, Ordering::Release);
            futex::wake_all(&self.recording.space);
        }
        let lost = self.recording.ring.lost();
        if lost != self.lost {
            self.writer.append_lost(&lost, self.consumer.position())?;
            self.lost = lost;
        }
        Ok(())
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
