//! What a killed command leaves in a process, and how the next command removes it.
//!
//! ```text
//! descriptor   of the file that was to be mapped for a helper         closed
//! region       mapped, and no helper was started                      unmapped
//! region       the borrowed thread is in `pthread_create`             it goes on by itself: waited for
//! region       a helper is at work                                    waited for; then it ends by itself
//! region       a helper has answered, or wants the library            told to end
//! region       whose helper has ended                                 unmapped
//! ```
//!
//! Everything is recognised by the file's name, which `/proc/PID/maps` and `/proc/PID/fd` show. The lock that every
//! command takes on the process's memory (`image.rs`) tells that no command is at work on it.

use std::fs;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::AttachError;
use crate::call::Work;
use crate::helper::{ANSWERED, END, LEFT, MAGIC, WANTS_LIBRARY, Word, place};
use crate::image::Memory;
use crate::machine;
use crate::remote::{Borrowed, put_back};
use crate::target::{Mapping, Target};
use crate::tracee::Tracee;

/// The name of the file that is mapped for a helper.
pub(crate) const REGION_NAME: &[u8] = b"allocsample-attach";
const MAPPED: &str = "/memfd:allocsample-attach";
/// A copy of the library, whose descriptor its helper closes; a forked child may have inherited it.
const COPY: &str = "/memfd:liballocsample.so";

/// How long we wait for a thread that an earlier command has started, in seconds.
const PATIENCE_S: u64 = 30;
/// How long a thread may take to stop. On a busy machine it must first be scheduled.
const STOP: Duration = Duration::from_secs(2);
/// Time between two stops of the thread that is examined.
const BETWEEN_STOPS: Duration = Duration::from_millis(20);

/// The mapped regions.
pub(crate) fn regions(mappings: &[Mapping]) -> Vec<Range<u64>> {
    let mut regions: Vec<Range<u64>> = Vec::new();
    for mapping in mappings
        .iter()
        .filter(|mapping| is_file(&mapping.path, MAPPED))
    {
        match regions.last_mut() {
            // Its code and its data are two mappings.
            Some(last) if last.end == mapping.start && mapping.offset != 0 => {
                last.end = mapping.end;
            }
            _ => regions.push(mapping.start..mapping.end),
        }
    }
    regions
}

/// Descriptors of a thread that nobody will close.
fn descriptors(target: &Target, thread: i32) -> Vec<u64> {
    let directory = format!("/proc/{}/task/{thread}/fd", target.pid());
    let entries = fs::read_dir(directory).into_iter().flatten();
    let ours = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let file = fs::read_link(entry.path()).ok()?;
        let file = file.to_str()?;
        let is_ours = is_file(file, MAPPED) || is_file(file, COPY);
        is_ours.then(|| entry.file_name().to_str()?.parse().ok())?
    });
    ours.collect()
}

fn is_file(path: &str, name: &str) -> bool {
    path.strip_suffix(" (deleted)").unwrap_or(path) == name
}

/// What the words of a region say.
enum Use {
    /// Nobody uses it, and nobody will.
    None,
    /// Of another version of the command.
    Unknown,
    /// A thread uses it that this command can only wait for.
    Busy,
}

impl Work<'_> {
    /// Finishes or undoes what earlier commands have begun.
    pub(crate) fn finish_earlier(&self) -> Result<(), AttachError> {
        let mappings = self.target.mappings()?;
        let mut unused = Vec::new();
        for region in regions(&mappings) {
            if self.wait_until_unused(&region)? {
                unused.push(region);
            }
        }
        let files = descriptors(self.target, self.target.pid());
        if unused.is_empty() && files.is_empty() {
            return Ok(());
        }
        self.on_some_thread(|borrowed| {
            self.remove(borrowed, &unused, &files);
            Ok(Some(()))
        })
    }

    fn remove(&self, borrowed: &mut Borrowed<'_>, unused: &[Range<u64>], files: &[u64]) {
        // A helper may have unmapped its own region just before it ended, and the program may have mapped something
        // else there since. Only helpers and commands unmap a region that is still there.
        let mapped = self.target.mappings().unwrap_or_default();
        let mapped = regions(&mapped);
        for region in unused.iter().filter(|region| mapped.contains(region)) {
            let bytes = region.end - region.start;
            // Whatever fails is tried again by the next command.
            let _ = borrowed.system_call(libc::SYS_munmap, [region.start, bytes, 0, 0, 0, 0]);
        }
        let thread = borrowed.thread();
        for &file in files {
            let path = format!("/proc/{}/task/{thread}/fd/{file}", self.target.pid());
            // The program may have closed it meanwhile, or this thread has a descriptor table of its own.
            let link = fs::read_link(path).unwrap_or_default();
            let is_ours = link
                .to_str()
                .is_some_and(|link| is_file(link, MAPPED) || is_file(link, COPY));
            if is_ours {
                let _ = borrowed.system_call(libc::SYS_close, [file, 0, 0, 0, 0, 0]);
            }
        }
    }

    /// Waits until no thread uses the region; false if the region is gone or its content makes no sense.
    fn wait_until_unused(&self, region: &Range<u64>) -> Result<bool, AttachError> {
        let since = Instant::now();
        let mut caller = Caller::default();
        loop {
            match self.look(region, &mut caller) {
                Ok(Use::None) => return Ok(true),
                Ok(Use::Unknown) => return Ok(false),
                Ok(Use::Busy) => {}
                // The helper has unmapped the region and is ending.
                Err(_) if self.memory.word(region.start).is_err() => return Ok(false),
                Err(error) => return Err(self.target.explain(error, "its memory cannot be read")),
            }
            if since.elapsed() > Duration::from_secs(PATIENCE_S) {
                return Err(AttachError::Unfinished(self.target.pid(), PATIENCE_S));
            }
            self.keep_going();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn look(&self, region: &Range<u64>, caller: &mut Caller) -> io::Result<Use> {
        let read = |word| self.memory.word(place(region.start, word));
        if read(Word::Magic)? != MAGIC {
            return Ok(Use::Unknown);
        }
        if !caller.has_left(self, region, read(Word::Caller)?) {
            return Ok(Use::Busy);
        }
        let was_started = read(Word::HasReturned)? != 0 && read(Word::Result)? == 0;
        if !was_started {
            return Ok(Use::None);
        }
        let helper = read(Word::Helper)?;
        let state = read(Word::State)?;
        // One that has not begun yet has no number.
        if helper != 0 && self.target.number_outside(helper).is_none() {
            // The memory map may be that of a child, which has no such thread.
            return Ok(Use::None);
        }
        if matches!(state, ANSWERED | WANTS_LIBRARY) {
            self.memory
                .write(place(region.start, Word::State), &END.to_le_bytes())?;
        }
        match state {
            LEFT if !self.is_inside(helper, region)? => Ok(Use::None),
            _ => Ok(Use::Busy),
        }
    }

    /// Whether the thread of this number, inside, runs code or has its stack in the region.
    fn is_inside(&self, number: u64, region: &Range<u64>) -> io::Result<bool> {
        let Some(thread) = self.target.number_outside(number) else {
            return Ok(false);
        };
        let mut tracee = match Tracee::seize(thread) {
            Ok(tracee) => tracee,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(false),
            // The thread is ending, or another command traces it.
            Err(_) => return Ok(true),
        };
        let mut is_inside = true;
        if tracee.settle(STOP)? {
            let registers = tracee.registers()?;
            is_inside = region.contains(&machine::code(&registers))
                || region.contains(&machine::stack(&registers));
            put_back(&tracee, registers, self.target)?;
        } else if tracee.is_gone() {
            is_inside = false;
        }
        self.release(tracee);
        Ok(is_inside)
    }
}

/// The thread that was borrowed for a region.
#[derive(Default)]
struct Caller {
    has_left: bool,
    looked: Option<Instant>,
}

impl Caller {
    /// Whether the thread no longer uses the region. Once that is known, the thread is not stopped again: with
    /// repeated stops, a waiting thread would never be seen waiting.
    fn has_left(&mut self, work: &Work<'_>, region: &Range<u64>, number: u64) -> bool {
        let is_early = self
            .looked
            .is_some_and(|looked| looked.elapsed() < BETWEEN_STOPS);
        if !self.has_left && !is_early {
            self.has_left = work
                .is_inside(number, region)
                .is_ok_and(|is_inside| !is_inside);
            self.looked = Some(Instant::now());
        }
        self.has_left
    }
}

/// Whether anything must be finished or undone.
pub(crate) fn is_any(target: &Target) -> Result<bool, AttachError> {
    let regions = regions(&target.mappings()?);
    Ok(!regions.is_empty() || !descriptors(target, target.pid()).is_empty())
}

/// See [`crate::leftover`].
pub(crate) fn describe(pid: i32) -> Option<String> {
    let target = &Target::find(pid).ok()?;
    let regions = regions(&target.mappings().ok()?);
    let files = descriptors(target, pid).len();
    let memory = Memory::of(pid).ok()?;
    // This belongs to a command that is at work now.
    if regions.is_empty() && files == 0 || memory.lock().is_err() {
        return None;
    }
    let is_alive = |region: &&Range<u64>| {
        let helper = memory.word(place(region.start, Word::Helper)).unwrap_or(0);
        helper != 0 && target.number_outside(helper).is_some()
    };
    let threads = regions.iter().filter(is_alive).count();
    let bytes: u64 = regions.iter().map(|region| region.end - region.start).sum();
    Some(in_words(threads, bytes >> 10, files))
}

fn in_words(threads: usize, kib: u64, files: usize) -> String {
    let count = |number, what: &str| match number {
        0 => None,
        1 => Some(format!("1 {what}")),
        number => Some(format!("{number} {what}s")),
    };
    let memory = (kib > 0).then(|| format!("{kib} KiB"));
    let parts = [count(threads, "thread"), memory, count(files, "descriptor")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!("{} of an interrupted attach or detach", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_found_by_its_name_though_it_is_two_mappings() {
        let maps = "\
1000-2000 r-xp 00000000 00:01 7   /memfd:allocsample-attach (deleted)
2000-1a000 rw-p 00001000 00:01 7   /memfd:allocsample-attach (deleted)
1a000-1b000 rw-p 00000000 00:01 9   /memfd:allocsample-attach (deleted)
1b000-1c000 rw-p 00001000 00:01 8   /memfd:allocsample-attached (deleted)
1d000-1e000 rw-p 00000000 00:01 8   /memfd:liballocsample.so (deleted)
";
        let mappings: Vec<Mapping> = maps.lines().filter_map(Mapping::parse).collect();
        assert_eq!(regions(&mappings), [0x1000..0x1a000, 0x1a000..0x1b000]);
        assert_eq!(
            in_words(1, 100, 2),
            "1 thread, 100 KiB, 2 descriptors of an interrupted attach or detach"
        );
        assert!(is_file("/memfd:liballocsample.so (deleted)", COPY));
        assert!(!is_file("/lib/liballocsample.so", COPY));
    }
}
