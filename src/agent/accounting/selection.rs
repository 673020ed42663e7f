//! Selects the threads and block sizes that are sampled.
//!
//! A thread that is left out counts its bytes exactly, as muted ones. A sample whose size is left out is counted with its
//! weight. Neither is decided by a look at the distance to the next sample point, so what is in is estimated as before.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use allocsample_record::{Note, THREAD_NAME_BYTES};

use crate::accounting::slow_path::SlowPath;
use crate::accounting::thread::ShimThread;
use crate::os::{self, process};
use crate::path::decimal;
use crate::recording::Recording;

/// Maximum number of threads that can be selected by tid.
const THREADS: usize = 64;

/// See the module. Every field is an atomic of its own: who reads while another thread changes two of them takes one from
/// before and one from after for a moment, which is as good as either.
pub struct Selection {
    /// Not 0 if anything below differs from its first value.
    is_any: AtomicU32,
    least_bytes: AtomicU64,
    most_bytes: AtomicU64,
    /// The beginning of a thread's name, or all of it with its NUL; 0: all threads.
    name: [AtomicU64; 2],
    /// The kernel's number of a thread, times 2, and 1 if it is in whatever its name is; 0: no thread.
    threads: [AtomicU64; THREADS],
}

/// A short text. Not as long as a path: it lies on the program's stack.
struct Detail {
    bytes: [u8; 112],
    length: usize,
}

impl Detail {
    fn new() -> Self {
        Self {
            bytes: [0; 112],
            length: 0,
        }
    }

    /// Appends `part`, cut to the room that is left.
    fn push(&mut self, part: &[u8]) -> &mut Self {
        let room = self.bytes.iter_mut().skip(self.length);
        for (place, byte) in room.zip(part) {
            *place = *byte;
            self.length += 1;
        }
        self
    }

    fn push_decimal(&mut self, number: u64) -> &mut Self {
        let mut digits = [0; 20];
        self.push(decimal(number, &mut digits))
    }

    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&[])
    }
}

/// A filter set from outside, or by the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The smallest block size, in bytes.
    pub least_bytes: u64,
    /// The largest block size, in bytes.
    pub most_bytes: u64,
    /// As it lies in memory: the bytes with which names begin. One that ends in NUL is a whole name.
    pub name: [u64; 2],
}

impl Filter {
    /// Everything.
    pub const ALL: Filter = Filter {
        least_bytes: 0,
        most_bytes: u64::MAX,
        name: [0; 2],
    };

    /// Threads of this name, or whose names begin so if it ends in `*`. `None`: no thread can have it.
    pub fn name_words(pattern: &[u8]) -> Option<[u64; 2]> {
        let (name, end) = match pattern.strip_suffix(b"*") {
            Some(beginning) => (beginning, None),
            None => (pattern, Some(END_OF_NAME)),
        };
        let is_plain = name.iter().all(|&byte| byte > END_OF_NAME && byte != b'*');
        // The kernel's limit leaves a byte for the end.
        if !is_plain || name.len() >= THREAD_NAME_BYTES || (name.is_empty() && end.is_some()) {
            return None;
        }
        let mut halves = [[0; 8]; 2];
        let places = halves.as_flattened_mut().iter_mut();
        for (place, byte) in places.zip(name.iter().copied().chain(end)) {
            *place = byte;
        }
        Some(halves.map(u64::from_ne_bytes))
    }
}

impl Selection {
    /// Everything.
    pub const fn new() -> Self {
        Self {
            is_any: AtomicU32::new(0),
            least_bytes: AtomicU64::new(0),
            most_bytes: AtomicU64::new(u64::MAX),
            name: [const { AtomicU64::new(0) }; 2],
            threads: [const { AtomicU64::new(0) }; THREADS],
        }
    }

    /// Selects everything: in a forked child, and for another profile.
    pub fn clear(&self) {
        for thread in &self.threads {
            thread.store(0, Ordering::Relaxed);
        }
        self.set_filter(&Filter::ALL);
        self.is_any.store(0, Ordering::Relaxed);
    }

    fn set_filter(&self, filter: &Filter) {
        self.least_bytes
            .store(filter.least_bytes, Ordering::Relaxed);
        self.most_bytes.store(filter.most_bytes, Ordering::Relaxed);
        for (place, word) in self.name.iter().zip(filter.name) {
            place.store(word, Ordering::Relaxed);
        }
        // Release: who sees it sees the others. It stays: threads that were out must hear that they are in.
        self.is_any.store(1, Ordering::Release);
    }

    /// Selects or excludes a thread. False: too many threads are selected.
    fn set_thread(&self, tid: u32, is_in: bool) -> bool {
        let word = u64::from(tid) << 1 | u64::from(is_in);
        let is_its_own = |place: &&AtomicU64| place.load(Ordering::Relaxed) >> 1 == u64::from(tid);
        let known = self.threads.iter().find(is_its_own);
        if let Some(place) = known {
            place.store(word, Ordering::Relaxed);
        } else if !self.threads.iter().any(|place| {
            place
                .compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        }) {
            return false;
        }
        self.is_any.store(1, Ordering::Release);
        true
    }

    /// The thread has ended, and another one may get its number.
    fn forget_thread(&self, tid: u32) {
        for place in &self.threads {
            if place.load(Ordering::Relaxed) >> 1 == u64::from(tid) {
                place.store(0, Ordering::Relaxed);
            }
        }
    }

    fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire) != 0
    }

    /// Whether blocks of this size are sampled.
    pub fn has_size(&self, bytes: u64) -> bool {
        let least = self.least_bytes.load(Ordering::Relaxed);
        (least..=self.most_bytes.load(Ordering::Relaxed)).contains(&bytes)
    }

    fn has_thread(&self, tid: u32, name: &[u8; THREAD_NAME_BYTES]) -> bool {
        let selected = self.threads.iter().find_map(|place| {
            let word = place.load(Ordering::Relaxed);
            (word >> 1 == u64::from(tid)).then_some(word & 1 != 0)
        });
        selected.unwrap_or_else(|| self.has_name(name))
    }

    fn has_name(&self, name: &[u8; THREAD_NAME_BYTES]) -> bool {
        let [low, high] = &self.name;
        let low = low.load(Ordering::Relaxed).to_ne_bytes();
        let high = high.load(Ordering::Relaxed).to_ne_bytes();
        begins_with(name, low.iter().chain(&high).copied())
    }
}

/// Whether a name, padded with NUL, begins with these bytes, of which one of value 1 says that the name ends there.
fn begins_with(name: &[u8; THREAD_NAME_BYTES], wanted: impl Iterator<Item = u8>) -> bool {
    let mut wanted = wanted.zip(name);
    let first = wanted.find(|&(wanted, &found)| match wanted {
        0 | END_OF_NAME => true,
        wanted => wanted != found,
    });
    match first {
        None | Some((0, _)) => true,
        Some((END_OF_NAME, &found)) => found == 0,
        Some(_) => false,
    }
}

/// In [`Filter::name`], behind a name that is meant as a whole.
pub const END_OF_NAME: u8 = 1;

impl Selection {
    /// Applies the selection to the calling thread, between two of its allocations.
    pub(crate) fn select(&self, thread: &ShimThread, slow_path: &SlowPath<'_>) {
        // Behind a filter of system calls nobody can be asked who he is.
        if self.is_any() && !os::is_filtered() {
            self.select_by_name(thread, slow_path);
        }
    }

    /// A function of its own, to keep the frame of its caller small: that is on the program's stack.
    #[inline(never)]
    fn select_by_name(&self, thread: &ShimThread, slow_path: &SlowPath<'_>) {
        let is_in = self.has_thread(process::tid(), &process::thread_name());
        if is_in != thread.is_selected() {
            slow_path.select(is_in);
        }
    }

    /// Whether the calling thread is selected now. Its own state may be older than the latest change if it never calls malloc.
    pub(crate) fn selects(&self, thread: &ShimThread) -> bool {
        if !self.is_any() {
            return true;
        }
        if os::is_filtered() {
            return thread.is_selected();
        }
        self.has_thread(process::tid(), &process::thread_name())
    }

    /// Forgets the calling thread, which is about to end.
    pub(crate) fn forget_calling_thread(&self) {
        if self.is_any() && !os::is_filtered() {
            self.forget_thread(process::tid());
        }
    }

    /// Selects a thread by its tid, or excludes it, from its next slow path on. False: too many threads are selected.
    pub(crate) fn select_thread(&self, recording: &Recording, tid: u32, is_in: bool) -> bool {
        if !self.set_thread(tid, is_in) {
            return false;
        }
        let mut detail = Detail::new();
        let state: &[u8] = if is_in { b" on" } else { b" off" };
        detail
            .push(b"thread ")
            .push_decimal(u64::from(tid))
            .push(state);
        recording.note(Note::Selection, detail.as_bytes());
        true
    }

    /// Replaces the filter. Each thread applies it at its next slow path.
    pub(crate) fn filter(&self, recording: &Recording, filter: &Filter) {
        self.set_filter(filter);
        let mut detail = Detail::new();
        if filter.name != [0; 2] {
            let [low, high] = filter.name;
            let bytes = [low.to_ne_bytes(), high.to_ne_bytes()];
            let bytes = bytes.as_flattened();
            let length = bytes.iter().position(|&byte| byte <= END_OF_NAME);
            let is_whole = length.is_some_and(|at| bytes.get(at) == Some(&END_OF_NAME));
            let name = bytes.get(..length.unwrap_or(bytes.len()));
            detail
                .push(b"threads named ")
                .push(name.unwrap_or(bytes))
                .push(if is_whole { b"" } else { b"*" })
                .push(b", ");
        }
        match (filter.least_bytes, filter.most_bytes) {
            (0, u64::MAX) => detail.push(b"all sizes"),
            (least, u64::MAX) => detail
                .push(b"sizes from ")
                .push_decimal(least)
                .push(b" bytes on"),
            (least, most) => detail
                .push(b"sizes from ")
                .push_decimal(least)
                .push(b" to ")
                .push_decimal(most)
                .push(b" bytes"),
        };
        recording.note(Note::Selection, detail.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &[u8]) -> [u8; THREAD_NAME_BYTES] {
        core::array::from_fn(|at| name.get(at).copied().unwrap_or(0))
    }

    fn filter(name: &[u8]) -> Filter {
        let name = named(name);
        let (halves, _) = name.as_chunks::<8>();
        Filter {
            least_bytes: 100,
            most_bytes: 200,
            name: core::array::from_fn(|at| {
                halves.get(at).map_or(0, |half| u64::from_ne_bytes(*half))
            }),
        }
    }

    #[test]
    fn a_text_that_is_too_long_is_cut() {
        let mut detail = Detail::new();
        detail.push(b"thread ").push_decimal(4711).push(b" off");
        assert_eq!(detail.as_bytes(), b"thread 4711 off");
        detail.push(&[b'x'; 200]);
        assert_eq!(detail.as_bytes().len(), 112);
    }

    #[test]
    fn a_profile_tells_what_is_selected() {
        use crate::trial::{Trial, agent};
        let trial = Trial::begin(agent!(), &[("INTERVAL", "1")]);
        let thread = trial.thread();
        trial.alloc(thread, 0x1000, 8);
        let (selection, recording) = (Selection::new(), trial.recording());
        let said = || {
            let (note, detail) = trial.notes().pop().unwrap();
            assert_eq!(note, Note::Selection);
            std::string::String::from_utf8(detail).unwrap()
        };
        selection.filter(recording, &filter(b"worker"));
        assert_eq!(said(), "threads named worker*, sizes from 100 to 200 bytes");
        selection.filter(recording, &filter(b"worker\x01"));
        assert_eq!(said(), "threads named worker, sizes from 100 to 200 bytes");
        // Of all the bytes that there is room for.
        selection.filter(recording, &filter(b"a-worker-of-many"));
        assert!(said().starts_with("threads named a-worker-of-many*, "));
        let all = Filter {
            least_bytes: 0,
            most_bytes: u64::MAX,
            name: [0; 2],
        };
        selection.filter(recording, &all);
        assert_eq!(said(), "all sizes");
        let large = Filter {
            least_bytes: 4096,
            ..all
        };
        selection.filter(recording, &large);
        assert_eq!(said(), "sizes from 4096 bytes on");
        assert!(selection.select_thread(recording, 4711, true));
        assert_eq!(said(), "thread 4711 on");
        assert!(selection.select_thread(recording, 4711, false));
        assert_eq!(said(), "thread 4711 off");
    }

    #[test]
    fn everything_is_in_at_first() {
        let selection = Selection::new();
        assert!(!selection.is_any());
        assert!(selection.has_size(0) && selection.has_size(u64::MAX));
        assert!(selection.has_thread(7, &named(b"")));
    }

    #[test]
    fn names_are_compared_by_their_beginnings_or_as_a_whole() {
        let selection = Selection::new();
        selection.set_filter(&filter(b"worker"));
        assert!(selection.has_thread(7, &named(b"worker")));
        assert!(selection.has_thread(7, &named(b"worker-12345678")));
        assert!(!selection.has_thread(7, &named(b"work")));
        assert!(!selection.has_thread(7, &named(b"aworker")));
        selection.set_filter(&filter(b"worker\x01"));
        assert!(selection.has_thread(7, &named(b"worker")));
        assert!(!selection.has_thread(7, &named(b"worker-1")));
        selection.set_filter(&filter(b"fifteen-letters\x01"));
        assert!(selection.has_thread(7, &named(b"fifteen-letters")));
        assert!(!selection.has_thread(7, &named(b"fifteen-letter")));
        let in_range = [99, 100, 200, 201].map(|size| selection.has_size(size));
        assert_eq!(in_range, [false, true, true, false]);
        selection.clear();
        assert!(selection.has_thread(7, &named(b"main")) && selection.has_size(1));
        assert!(!selection.is_any());
    }

    #[test]
    fn what_is_said_of_a_thread_goes_before_its_name() {
        let selection = Selection::new();
        selection.set_filter(&filter(b"worker"));
        assert!(selection.set_thread(7, true) && selection.set_thread(8, false));
        assert!(selection.has_thread(7, &named(b"main")));
        assert!(!selection.has_thread(8, &named(b"worker")));
        assert!(selection.set_thread(8, true));
        assert!(selection.has_thread(8, &named(b"main")));
        selection.forget_thread(8);
        assert!(!selection.has_thread(8, &named(b"main")));
        for tid in 100..100 + THREADS as u32 - 1 {
            assert!(selection.set_thread(tid, false));
        }
        assert!(!selection.set_thread(9, false));
        assert!(selection.set_thread(7, false));
    }

    #[test]
    fn a_name_that_no_thread_can_have_is_refused() {
        let is_possible = |pattern: &[u8]| Filter::name_words(pattern).is_some();
        for possible in [
            &b"*"[..],
            b"a",
            b"worker*",
            b"123456789012345",
            b"123456789012345*",
        ] {
            assert!(is_possible(possible), "{possible:?}");
        }
        for impossible in [&b""[..], b"a*b", b"a\x01", b"a\0*", b"1234567890123456"] {
            assert!(!is_possible(impossible), "{impossible:?}");
        }
    }
}
