//! Creates the files of a recording and writes its first records.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use allocsample_record::{FileHeader, FormatVersion, HeapId, IntervalRecord, Note, ProcessRecord};
use allocsample_ring::Ring;

use super::holding::RETIRED;
use super::{CURRENT, CannotRecord, DrainRequest, DrainState, Recording, current};
use crate::config::{Config, OnFull, UnknownSetting};
use crate::os::clock::Patience;
use crate::os::file::{self, File};
use crate::os::futex;
use crate::os::signals::Held;
use crate::os::{Errno, clock, leaked, memory, process};
use crate::path::{Path, file_name};
use crate::publishing::definitions::Definitions;

/// Ring sizes that are tried in turn, in words: 4 MiB, 1 MiB, 256 KiB.
const CAPACITIES_WORDS: [u64; 3] = [1 << 19, 1 << 17, 1 << 15];

/// The facts that a recording begins with.
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
    /// A variable that was meant as a setting, perhaps.
    pub unknown_setting: Option<&'a UnknownSetting>,
    /// The process this one was forked from.
    pub forked_from: Option<u32>,
    /// All definitions of virtual machines so far.
    pub definitions: &'a Definitions,
    /// Buffer for paths and arguments.
    pub buffer: &'a mut [u8; 8192],
}

/// Whether some thread is creating the files.
static BEGINNING: AtomicU32 = AtomicU32::new(NOBODY);

const NOBODY: u32 = 0;
const SOMEBODY: u32 = 1;
/// A thread that takes so long that others do not wait for it.
const TOO_LONG: u32 = 2;

/// Forgets a thread that was creating files: it does not exist in a forked child.
pub(super) fn forget() {
    BEGINNING.store(NOBODY, Ordering::Relaxed);
}

/// Creates the files and makes the recording current. `Ok(None)`: another thread is at it, and takes long; or it is not wanted
/// any more.
///
/// Any thread, also in a signal handler: the thread is muted, so the one it waits for is not itself. `is_wanted` is asked when
/// no signal handler can come in between.
pub fn begin(
    beginning: Beginning<'_>,
    is_wanted: impl Fn() -> bool,
) -> Result<Option<&'static Recording>, CannotRecord> {
    // A disk that takes longer stalls one thread of the program, not all, unless all are to wait.
    let patience_ms = match beginning.config.on_full {
        OnFull::Drop => 100,
        OnFull::Wait => 10_000,
    };
    let patience = Patience::of_ms(patience_ms);
    loop {
        // A handler that jumped out of it would leave it begun for ever.
        let held = Held::all();
        let from = |state, to| {
            // Acquire and release: who comes later sees the recording that was made.
            BEGINNING.compare_exchange(state, to, Ordering::AcqRel, Ordering::Acquire)
        };
        let Err(state) = from(NOBODY, SOMEBODY) else {
            let begun = match current() {
                Some(recording) => Ok(Some(recording)),
                None if is_wanted() => create(beginning).map(Some),
                None => Ok(None),
            };
            BEGINNING.store(NOBODY, Ordering::Release);
            futex::wake_all(&BEGINNING);
            return begun;
        };
        drop(held);
        if current().is_some() || state == TOO_LONG {
            return Ok(current());
        }
        let Some(left_ms) = patience.left_ms() else {
            let _or_it_is_done = from(SOMEBODY, TOO_LONG);
            return Ok(current());
        };
        futex::wait(&BEGINNING, SOMEBODY, Some(left_ms));
    }
}

const NO_DESCRIPTOR: &str = "no spare file descriptor for the profile and its ring";
const NO_ROOM: &str = "no room for the ring file (is the disk full, or a file size limit set?)";

fn create(beginning: Beginning<'_>) -> Result<&'static Recording, CannotRecord> {
    let config = beginning.config;
    let (path_buffer, argument_buffer) = beginning.buffer.split_at_mut(4096);
    let executable = process::executable(path_buffer);
    let command_line = process::command_line(argument_buffer);
    let wall_ns = clock::wall_ns();
    // Before anything is written: a byte beyond the limit is answered by a signal that kills.
    let limit_bytes = file::size_limit();
    let [.., smallest_words] = CAPACITIES_WORDS;
    if (allocsample_ring::file_bytes(smallest_words) as u64) > limit_bytes {
        return Err(CannotRecord { reason: NO_ROOM });
    }
    let Files {
        profile,
        path,
        ring,
    } = create_files(config, file_name(beginning.program), wall_ns)?;
    let profile_id = process::random_u128();
    let header = FileHeader {
        version: FormatVersion::WHOLE,
        profile_id,
    }
    .encode();
    let discard = |reason| {
        file::unlink(path.as_c_str());
        file::unlink(ring_beside(&path).as_c_str());
        Err(CannotRecord { reason })
    };
    if profile.write_all(&header).is_err() {
        return discard("the profile cannot be written (is the disk full?)");
    }
    let Some(definitions_to) = beginning.definitions.write(&profile, 0) else {
        return discard("the profile cannot be written (is the disk full?)");
    };
    drop(profile);
    let retired = RETIRED.take(clock::monotonic_ns());
    // SAFETY: a recording that nobody changes any more but in its atomics.
    let place = retired.map(|retired| unsafe { retired.as_ref() }.ring_place);
    let Some((mapped_ring, ring_place)) = create_ring(&ring, profile_id, place, limit_bytes) else {
        if let Some(retired) = retired {
            // SAFETY: as above.
            RETIRED.retire(unsafe { retired.as_ref() }, clock::monotonic_ns());
        }
        return discard(NO_ROOM);
    };
    let recording = Recording::new(mapped_ring, path.clone(), ring_place, definitions_to);
    let Some(recording) = leaked::leak_again(retired, recording) else {
        return discard("out of memory");
    };
    recording.is_mapped();
    recording.write_beginning(
        &ProcessRecord {
            pid: process::pid(),
            parent_pid: process::parent_pid(),
            start_mono_ns: clock::monotonic_ns(),
            // At the same moment: one clock is converted into the other by these.
            start_wall_ns: clock::wall_ns(),
            executable,
            command_line,
        },
        &beginning.config.interval,
        beginning.config,
        beginning.seed,
    );
    recording.update_figures();
    recording.note(Note::NextAllocator, beginning.next_allocator);
    if let Some(module) = beginning.malloc_elsewhere {
        recording.note(Note::MallocIsElsewhere, module);
    }
    if let Some(unknown_setting) = beginning.unknown_setting {
        recording.note(Note::UnknownSetting, unknown_setting.name());
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

/// The two files of a recording, both new.
struct Files {
    profile: File,
    path: Path,
    ring: File,
}

/// How the name of a ring ends, after that of its profile.
const RING: &[u8] = b".ring";

/// Path of the ring of a profile.
fn ring_beside(profile: &Path) -> Path {
    let mut path = profile.clone();
    path.push(RING);
    path
}

/// Creates both under the first name that neither of them has yet: in a directory that others write to, either can be
/// theirs.
fn create_files(config: &Config, program: &[u8], wall_ns: u64) -> Result<Files, CannotRecord> {
    const ATTEMPTS: u32 = 1000;
    for attempt in 0..ATTEMPTS {
        let path = config.output_path(process::pid(), program, wall_ns, attempt);
        if path.is_too_long() || path.as_bytes().len() + RING.len() >= crate::path::PATH_BYTES {
            return Err(CannotRecord {
                reason: "the output path is too long",
            });
        }
        let profile = match File::create_new(path.as_c_str()) {
            Ok(file) => file,
            Err(Errno(libc::EEXIST)) => continue,
            Err(Errno(libc::EMFILE | libc::ENFILE)) => {
                return Err(CannotRecord {
                    reason: NO_DESCRIPTOR,
                });
            }
            Err(_) => {
                return Err(CannotRecord {
                    reason: "the profile cannot be created",
                });
            }
        };
        let error = match File::create_new(ring_beside(&path).as_c_str()) {
            Ok(ring) => {
                return Ok(Files {
                    profile,
                    path,
                    ring,
                });
            }
            Err(error) => error,
        };
        file::unlink(path.as_c_str());
        match error {
            Errno(libc::EEXIST) => {}
            Errno(libc::ENOSPC | libc::EDQUOT) => return Err(CannotRecord { reason: NO_ROOM }),
            Errno(libc::EMFILE | libc::ENFILE) => {
                return Err(CannotRecord {
                    reason: NO_DESCRIPTOR,
                });
            }
            _ => {
                return Err(CannotRecord {
                    reason: "the ring file cannot be created beside the profile",
                });
            }
        }
    }
    Err(CannotRecord {
        reason: "a thousand names for the profile or its ring are taken already",
    })
}

/// Maps the largest ring for which there is room and whose file is no longer than the limit, in place of an ended one of the
/// same size if there is one.
fn create_ring(
    file: &File,
    profile_id: u128,
    place: Option<(NonNull<u8>, usize)>,
    limit_bytes: u64,
) -> Option<(Ring, (NonNull<u8>, usize))> {
    for capacity_words in CAPACITIES_WORDS {
        let bytes = allocsample_ring::file_bytes(capacity_words);
        // A file beyond the limit would not only fail: the kernel would send SIGXFSZ to the program.
        if bytes as u64 > limit_bytes || file.allocate(bytes).is_err() {
            continue;
        }
        let base = match place {
            // SAFETY: our own mapping, of a recording that nobody uses: see `Retired`.
            Some((base, there)) if there == bytes => unsafe {
                memory::map_shared_at(file.number(), base, bytes)
            },
            _ => memory::map_shared(file.number(), bytes),
        }?;
        // SAFETY: freshly allocated, so zeroed; mapped for ever, page-aligned, a power of two; the file is new and
        // only this process maps it (a forked child does not inherit the mapping).
        let ring = unsafe { Ring::create(base, capacity_words, profile_id) };
        return Some((ring, (base, bytes)));
    }
    None
}

impl Recording {
    /// A recording whose ring nobody uses yet, without a drain thread.
    pub(super) fn new(
        ring: Ring,
        path: Path,
        ring_place: (NonNull<u8>, usize),
        definitions_to: u64,
    ) -> Self {
        Self {
            ring,
            path,
            wake: AtomicU32::new(0),
            is_drain_asleep: AtomicBool::new(false),
            enough_words: AtomicU64::new(u64::MAX),
            space: AtomicU32::new(0),
            ring_place,
            given_up_at: AtomicU32::new(u32::MAX),
            is_bequeathed: AtomicBool::new(false),
            holders: AtomicU32::new(1),
            drain_tid: AtomicU32::new(0),
            drain_thread: AtomicU64::new(0),
            definitions_to,
            state: AtomicU32::new(DrainState::None as u32),
            request: AtomicU32::new(DrainRequest::Work as u32),
            main_exited: AtomicU32::new(0),
            asked: AtomicU64::new(0),
            awaited_module: AtomicU64::new(0),
            tickets: AtomicU32::new(0),
            tickets_done: AtomicU32::new(0),
            noted_bridges: AtomicUsize::new(0),
        }
    }

    /// Removes the ring's file, once nothing in it is needed any more.
    pub fn remove_ring(&self) {
        file::unlink(ring_beside(&self.path).as_c_str());
    }

    fn write_beginning(
        &self,
        process: &ProcessRecord<'_>,
        interval: &Option<allocsample_sampling::Interval>,
        config: &Config,
        seed: u64,
    ) {
        let time_ns = process.start_mono_ns;
        self.push(process);
        let record = IntervalRecord {
            time_ns,
            index: 0,
            sampling: config.sampling,
            interval_bytes: interval.map_or(0, allocsample_sampling::Interval::bytes),
            seed,
            heap: HeapId::MALLOC,
        };
        self.push(&record);
    }
}

#[cfg(test)]
mod tests;
