//! Attach and detach: the agent in a process that did not start with it.
//!
//! `allocsample attach` makes the process open this library by a descriptor, under a name that nobody else uses; then
//! the constructor only looks around. A thread that the command started calls [`allocsample_attach`] next, with the
//! settings. [`allocsample_detach`] ends it, as often as one likes.
//!
//! Both answer the command in words, and never write to the program's own output.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicU32, Ordering};

use allocsample_agent::Switch;
use allocsample_agent::config::Config;
use allocsample_agent::os::process;
use allocsample_agent::recording;
use allocsample_boundary::{AGENT, this_thread};
use allocsample_front::here;

use crate::{reserved, start};

/// Part of the path by which the command opens the library for an attach: nobody else spells a path like that.
const TO_WAIT: &[u8] = b"/././";

/// The answer of a call of the command.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// Done; the text is the path of the profile.
    Done = 0,
    /// Already attached; the text is the path of the profile.
    Already = 1,
    /// Refused; the text says why.
    Refused = 2,
    /// Nothing to detach from.
    Idle = 3,
    /// The library was loaded with the program, and cannot be detached.
    Preloaded = 4,
}

/// Mirror of `struct shim_pass`.
#[repr(C)]
#[derive(Default)]
struct Pass {
    slots: u64,
    pending: u64,
    unsure: u64,
}

const _: () = assert!(
    size_of::<Pass>() == 24
        && std::mem::offset_of!(Pass, pending) == 8
        && std::mem::offset_of!(Pass, unsure) == 16
);

unsafe extern "C" {
    fn shim_find_next();
    fn shim_prepare_late() -> bool;
    fn shim_is_late() -> bool;
    fn shim_redirect(pass: *mut Pass);
    fn shim_restore(pass: *mut Pass);
    fn bridges_attach(groups: u32);
    fn bridges_detach();
}

/// Whether the constructor has found no next allocator.
static HAS_NO_ALLOCATOR: AtomicU32 = AtomicU32::new(0);

/// Pid of the process in which a thread attaches or detaches; 0 for none.
static BUSY: AtomicU32 = AtomicU32::new(0);

/// Whether the library was opened by the command.
pub fn is_to_wait() -> bool {
    let path = start::own_path();
    path.windows(TO_WAIT.len()).any(|part| part == TO_WAIT)
}

/// Whether calls reach us because they were redirected.
pub fn is_late() -> bool {
    // SAFETY: reads an atomic of the shim.
    unsafe { shim_is_late() }
}

/// Looks for the allocator, in the constructor.
pub fn prepare() {
    // SAFETY: in a constructor, so the loader's lock is held by this thread.
    let is_prepared = unsafe { shim_prepare_late() };
    HAS_NO_ALLOCATOR.store(u32::from(!is_prepared), Ordering::Relaxed);
    if is_prepared {
        // SAFETY: nobody calls us yet; all that it needs was found.
        unsafe { shim_find_next() };
    }
}

/// Begins to sample in this process. `settings` are `NAME=value` strings, one after the other, and an empty one: those
/// of the environment. The answer's text is written to `text`, of which there are `capacity` bytes, and ends in 0.
///
/// For the command only, on a thread of its own that ends soon and holds no lock.
///
/// # Safety
/// `settings` and `text` are as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allocsample_attach(
    settings: *const c_char,
    text: *mut c_char,
    capacity: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let mut text = unsafe { Text::new(text, capacity) };
    let answer = alone(&mut text, |text| {
        let lookup = |name: &str| {
            // SAFETY: the caller's promise.
            unsafe { find_setting(settings, name) }
        };
        attach(lookup, text)
    });
    answer as c_int
}

/// Completes the profile, gives the allocator's calls back, and goes idle. Arguments and caller as above.
///
/// # Safety
/// `text` is as described there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allocsample_detach(
    _settings: *const c_char,
    text: *mut c_char,
    capacity: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let mut text = unsafe { Text::new(text, capacity) };
    alone(&mut text, detach) as c_int
}

fn alone(text: &mut Text, work: impl FnOnce(&mut Text) -> Answer) -> Answer {
    if !begin_alone(&BUSY, process::pid()) {
        text.push(b"another command is at it");
        return Answer::Refused;
    }
    let (slow_path, _) = this_thread().mute(0, &here());
    let answer = work(text);
    drop(slow_path);
    BUSY.store(0, Ordering::Release);
    answer
}

/// Claims the right to attach or detach. A claim by the parent process is void in a forked child.
fn begin_alone(busy: &AtomicU32, pid: u32) -> bool {
    let other = busy.load(Ordering::Relaxed);
    // Acquire and release: the calls come one after the other.
    other != pid
        && busy
            .compare_exchange(other, pid, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
}

fn attach(lookup: impl Fn(&str) -> Option<&'static [u8]>, text: &mut Text) -> Answer {
    if HAS_NO_ALLOCATOR.load(Ordering::Relaxed) != 0 {
        text.push(b"the process has no allocator with a name that could be redirected");
        return Answer::Refused;
    }
    if let Some(recording) = recording::current() {
        text.push(recording.path.as_bytes());
        return Answer::Already;
    }
    match AGENT.state() {
        Switch::Off => {}
        Switch::On => return Answer::Already,
        Switch::Failed => {
            text.push(b"the agent has failed before: detach it first");
            return Answer::Refused;
        }
        Switch::Finished => {
            text.push(b"the process is ending");
            return Answer::Refused;
        }
    }
    let mut buffer = [0; 4096];
    let config = match Config::read(lookup, process::working_directory(&mut buffer)) {
        Ok(config) if config.interval.is_none() => {
            text.push(b"an interval of off records nothing");
            return Answer::Refused;
        }
        Ok(config) => config,
        Err(error) => {
            text.push(error.name.as_bytes())
                .push(b"=")
                .push(error.value)
                .push(b": ")
                .push(error.expected.as_bytes());
            return Answer::Refused;
        }
    };
    let directory = config.output.directory();
    if let Err(reason) = allocsample_front::check_directory(&config) {
        text.push(directory.as_bytes())
            .push(b": ")
            .push(reason.as_bytes());
        return Answer::Refused;
    }
    let groups = start::groups_of(&config);
    if !start::switch_on(config, None) {
        text.push(b"no memory for the agent");
        return Answer::Refused;
    }
    let recording = match AGENT.begin_now() {
        Ok(recording) => recording,
        Err(reason) => {
            text.push(directory.as_bytes())
                .push(b": ")
                .push(reason.as_bytes());
            return Answer::Refused;
        }
    };
    if is_late() {
        reserved::forget();
        let mut pass = Pass::default();
        // SAFETY: the place is writable; this thread holds no lock.
        unsafe { shim_redirect(&raw mut pass) };
        reserved::note();
        let left_alone = pass.unsure + pass.pending;
        let is_own = start::is_allocator_in_program();
        AGENT.note_attached(recording, pass.slots, left_alone, is_own);
        if pass.slots == 0 {
            detach(text);
            *text = text.emptied();
            text.push(b"nothing in the process calls the allocator by its name");
            return Answer::Refused;
        }
    }
    if is_late() {
        // SAFETY: the agent is on; only this thread attaches.
        unsafe { bridges_attach(groups) };
        // Frees of older blocks are not seen, so only readings of the resident memory show growth. Under `run` the command takes
        // them; here the drain thread must.
        AGENT.start_drain_now(recording);
    }
    text.push(recording.path.as_bytes());
    Answer::Done
}

fn detach(text: &mut Text) -> Answer {
    if !is_late() {
        return Answer::Preloaded;
    }
    let mut pass = Pass::default();
    // SAFETY: only this thread attaches or detaches.
    unsafe { shim_restore(&raw mut pass) };
    // As late as can be: a heap that takes no more samples still records frees until the agent is off, and a program that replaces
    // its blocks quickly would have none left in the profile.
    // SAFETY: as above.
    unsafe { bridges_detach() };
    match AGENT.detach(this_thread()) {
        Some(path) => {
            text.push(path.as_bytes());
            Answer::Done
        }
        None => Answer::Idle,
    }
}

/// The value of a setting among `NAME=value` strings.
///
/// # Safety
/// `settings` is NULL, or points to C strings that are readable until the call has returned, of which the last is empty.
unsafe fn find_setting(settings: *const c_char, name: &str) -> Option<&'static [u8]> {
    let mut at = settings;
    while !at.is_null() {
        // SAFETY: the caller's promise. It is 'static in type only: settings are copied.
        let entry: &'static [u8] = unsafe { CStr::from_ptr(at) }.to_bytes();
        if entry.is_empty() {
            return None;
        }
        if let Some(value) = entry
            .strip_prefix(name.as_bytes())
            .and_then(|rest| rest.strip_prefix(b"="))
        {
            return Some(value);
        }
        // SAFETY: the string's end, and the next one behind it.
        at = unsafe { at.add(entry.len() + 1) };
    }
    None
}

/// A C string in the command's buffer.
struct Text {
    start: *mut u8,
    capacity: usize,
    length: usize,
}

impl Text {
    /// # Safety
    /// `capacity` bytes at `start` are writable, and nobody else's, until it is dropped.
    unsafe fn new(start: *mut c_char, capacity: usize) -> Self {
        let mut text = Self {
            start: start.cast(),
            capacity,
            length: 0,
        };
        text.push(b"");
        text
    }

    fn emptied(&self) -> Self {
        Self { length: 0, ..*self }
    }

    /// Appends `part`, cut to the room that is left.
    fn push(&mut self, part: &[u8]) -> &mut Self {
        let room = self.capacity.saturating_sub(self.length + 1);
        let part = part.get(..part.len().min(room)).unwrap_or(part);
        if self.capacity > 0 {
            // SAFETY: the part and the 0 behind it end within the capacity.
            unsafe {
                self.start
                    .add(self.length)
                    .copy_from_nonoverlapping(part.as_ptr(), part.len());
                self.start.add(self.length + part.len()).write(0);
            }
            self.length += part.len();
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_found_by_their_whole_name() {
        let settings: &'static [u8] = b"A=1\0AB=two\0EMPTY=\0\0";
        let find = |name| {
            // SAFETY: three strings and an empty one.
            unsafe { find_setting(settings.as_ptr().cast(), name) }
        };
        assert_eq!(find("A"), Some(&b"1"[..]));
        assert_eq!(find("AB"), Some(&b"two"[..]));
        assert_eq!(find("EMPTY"), Some(&b""[..]));
        assert_eq!(find("B"), None);
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { find_setting(std::ptr::null(), "A") }, None);
    }

    #[test]
    fn a_child_that_was_forked_in_the_middle_can_be_attached_to() {
        let busy = AtomicU32::new(0);
        assert!(begin_alone(&busy, 7));
        assert!(!begin_alone(&busy, 7));
        assert!(begin_alone(&busy, 8));
        assert!(!begin_alone(&busy, 8));
    }

    #[test]
    fn a_text_ends_where_its_room_does() {
        let mut buffer = [0xff_u8; 8];
        // SAFETY: seven bytes of the buffer.
        let mut text = unsafe { Text::new(buffer.as_mut_ptr().cast(), 7) };
        text.push(b"four").push(b"five");
        assert_eq!(&buffer, b"fourfi\0\xff");
    }
}
