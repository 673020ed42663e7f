//! Reads the stack that a thread runs on.

use core::ops::Range;

use super::foreign::ForeignPages;
use crate::accounting::thread::ShimThread;
use crate::os::safe_read::is_readable;

const PAGE: u64 = 4096;
/// Beyond this distance from the top a stack pointer is taken to be on another stack.
const LARGEST_STACK: u64 = 64 << 20;

/// Reads the stack that a thread runs on.
///
/// The thread's own stack, from the lowest place where a sample was ever taken up to its base, was found readable page
/// by page once, and stays so while the thread lives: the thread owns it, and those reads are plain loads. Any other memory
/// (signal stacks, stacks of coroutines, code of no module) may be unmapped at any time: it is copied ([`ForeignPages`]).
pub(super) struct StackReader<'a> {
    own: Range<u64>,
    pages: &'a mut ForeignPages,
}

/// The calling thread's own stack, as far as it is known to be readable, if `sp` is where it stands.
fn own_stack(thread: &ShimThread, sp: u64) -> Range<u64> {
    let mut own = thread.stack();
    let top = if own.is_empty() {
        crate::os::stack_top()
    } else {
        own.end
    };
    let low = sp & !(PAGE - 1);
    let known = if own.is_empty() { top } else { own.start };
    if low < known && sp < top && top - sp <= LARGEST_STACK && are_readable(low, known) {
        own = low..top;
        thread.set_stack(own.clone());
    }
    own
}

/// Makes the calling thread's own stack known, as deep as it will probably be, while that can be found out.
pub(super) fn learn_own_stack(thread: &ShimThread) {
    const DEPTHS: [u64; 3] = [64 << 10, 16 << 10, 0];
    let here = 0_u64;
    let here = core::ptr::from_ref(&here).addr() as u64;
    for depth in DEPTHS {
        // A thread's stack may have less room than that.
        if own_stack(thread, here - depth).contains(&here) {
            return;
        }
    }
}

impl<'a> StackReader<'a> {
    /// For a walk of the calling thread that starts at `sp`.
    pub(super) fn of_thread(thread: &ShimThread, sp: u64, pages: &'a mut ForeignPages) -> Self {
        pages.forget();
        Self {
            own: own_stack(thread, sp),
            pages,
        }
    }

    /// The copies of pages that the walk has made.
    pub(super) fn into_pages(self) -> &'a mut ForeignPages {
        self.pages
    }

    /// The part of the thread's own stack that is known to be readable.
    pub(super) fn own(&self) -> &Range<u64> {
        &self.own
    }

    /// Whether the word at `address` is in that part.
    pub(super) fn is_own(&self, address: u64) -> bool {
        address >= self.own.start
            && address
                .checked_add(8)
                .is_some_and(|end| end <= self.own.end)
    }

    /// The word at `address`, if it can be read.
    pub(super) fn read(&mut self, address: u64) -> Option<u64> {
        if self.is_own(address) {
            return OwnWords::of(&self.own)?.read(address);
        }
        self.pages.read(address).map(u64::from_ne_bytes)
    }

    /// Bytes of code that no module covers, if they can be read.
    pub(super) fn code<const N: usize>(&mut self, address: u64) -> Option<[u8; N]> {
        self.pages.read(address)
    }
}

/// Where words of the thread's own stack may be read, on the thread itself.
#[derive(Clone, Copy)]
pub(super) struct OwnWords {
    start: u64,
    /// The last word, from the start on.
    last: u64,
}

impl OwnWords {
    /// In what [`StackReader::own`] returns; `None`: there is no word in it.
    pub(super) fn of(own: &core::ops::Range<u64>) -> Option<Self> {
        Some(Self {
            start: own.start,
            last: own.end.checked_sub(own.start)?.checked_sub(8)?,
        })
    }

    /// The word at `address`, if it is there.
    #[inline]
    pub(super) fn read(self, address: u64) -> Option<u64> {
        // What is below the start is far above it, too.
        if address.wrapping_sub(self.start) > self.last {
            return None;
        }
        let pointer: *const u64 = core::ptr::with_exposed_provenance(address as usize);
        // SAFETY: in the part of the thread's own stack that was found readable and stays so.
        Some(unsafe { pointer.read_unaligned() })
    }
}

fn are_readable(low: u64, high: u64) -> bool {
    let mut page = low;
    while page < high {
        if !is_readable(page) {
            return false;
        }
        page += PAGE;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory::{make_unreadable, map, unmap};
    use core::sync::atomic::{AtomicU64, Ordering};

    const PAGES: u64 = 4;

    /// The thread's own stack and what a walk reads at its lowest page, when the upper half of these pages is known to be the
    /// stack, and the thread stands in the lowest one.
    fn found(hole: Option<u64>) -> (Range<u64>, Option<u64>) {
        let base = map((PAGES * PAGE) as usize).unwrap();
        let at = base.as_ptr().expose_provenance() as u64;
        if let Some(page) = hole {
            // SAFETY: mapped above, and nothing refers to it.
            unsafe { make_unreadable(base.add((page * PAGE) as usize), PAGE as usize) };
        }
        // SAFETY: zero is the right initial value.
        let thread: ShimThread = unsafe { core::mem::zeroed() };
        thread.set_stack(at + 2 * PAGE..at + PAGES * PAGE);
        let mut pages = std::boxed::Box::new(ForeignPages::new());
        let mut reader = StackReader::of_thread(&thread, at + 8, &mut pages);
        assert_eq!(*reader.own(), thread.stack());
        let word = reader.read(at + 8);
        let own = reader.own().start - at..reader.own().end - at;
        // SAFETY: as above.
        unsafe { unmap(base, (PAGES * PAGE) as usize) };
        (own, word)
    }

    #[test]
    fn the_own_stack_grows_only_over_pages_that_are_readable() {
        assert_eq!(found(None), (0..PAGES * PAGE, Some(0)));
        let before = 2 * PAGE..PAGES * PAGE;
        // A guard page, or another stack below a hole: what is there is copied, or is gone.
        assert_eq!(found(Some(1)), (before.clone(), Some(0)));
        assert_eq!(found(Some(0)), (before, None));
    }

    /// A thread of its own, whose stack has 2 MiB.
    #[test]
    fn the_own_stack_is_known_ahead_of_its_use_and_read_without_a_copy() {
        let on_a_thread = || {
            // SAFETY: zero is the right initial value.
            let thread: ShimThread = unsafe { core::mem::zeroed() };
            let here = AtomicU64::new(7);
            let at = here.as_ptr().expose_provenance() as u64;
            learn_own_stack(&thread);
            let known = thread.stack();
            assert_eq!(known.end, crate::os::stack_top());
            let below = at - known.start;
            assert!((60 << 10..80 << 10).contains(&below), "{below}");
            let mut pages = std::boxed::Box::new(ForeignPages::new());
            let mut reader = StackReader::of_thread(&thread, at, &mut pages);
            assert!(reader.is_own(at) && !reader.is_own(known.end - 7));
            assert_eq!(reader.read(at), Some(7));
            // A copy would be of before.
            let pages = reader.into_pages();
            assert_eq!(pages.read(at), Some(7_u64.to_ne_bytes()));
            let mut reader = StackReader { own: known, pages };
            here.store(8, Ordering::Relaxed);
            assert_eq!(reader.read(at), Some(8));
        };
        std::thread::spawn(on_a_thread).join().unwrap();
    }

    #[test]
    fn a_stack_with_little_room_is_known_as_deep_as_it_is() {
        let base = map((PAGES * PAGE) as usize).unwrap();
        let at = base.as_ptr().expose_provenance() as u64;
        // SAFETY: mapped above, and nothing refers to it.
        unsafe { make_unreadable(base, PAGE as usize) };
        // SAFETY: zero is the right initial value.
        let thread: ShimThread = unsafe { core::mem::zeroed() };
        thread.set_stack(at + 3 * PAGE..at + PAGES * PAGE);
        // A stack pointer at the end of what is known, or on another stack, changes nothing.
        for sp in [
            at + PAGES * PAGE,
            at + 3 * PAGE,
            at + PAGES * PAGE + LARGEST_STACK,
        ] {
            assert_eq!(own_stack(&thread, sp), at + 3 * PAGE..at + PAGES * PAGE);
        }
        assert_eq!(own_stack(&thread, at + PAGE), at + PAGE..at + PAGES * PAGE);
        assert_eq!(own_stack(&thread, at + 8), at + PAGE..at + PAGES * PAGE);
        // SAFETY: as above.
        unsafe { unmap(base, (PAGES * PAGE) as usize) };
    }

    #[test]
    fn own_words_end_with_the_last_whole_word() {
        let words = [1_u64, 2, 3];
        let start = words.as_ptr().expose_provenance() as u64;
        let own = OwnWords::of(&(start..start + 24)).unwrap();
        assert_eq!(
            [0, 8, 16].map(|at| own.read(start + at)),
            [1, 2, 3].map(Some)
        );
        // Not aligned, but whole.
        assert_eq!(own.read(start + 12), Some(3 << 32));
        // One byte too far, and one below: no wrapping makes either of them look near.
        assert_eq!(
            [17, 24, u64::MAX].map(|at| own.read(start.wrapping_add(at))),
            [None; 3]
        );
        assert_eq!(own.read(0), None);
        // 23 bytes have two words, of which the last one begins at 15.
        let shorter = OwnWords::of(&(start..start + 23)).unwrap();
        assert_eq!(
            [15, 16].map(|at| shorter.read(start + at).is_some()),
            [true, false]
        );
        assert!(OwnWords::of(&(start..start + 7)).is_none());
        assert!(OwnWords::of(&(start + 8..start)).is_none());
    }
}
