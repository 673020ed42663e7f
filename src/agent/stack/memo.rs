//! Remembers the last walk of a thread, so that the next one can stop where nothing has changed.
//!
//! One step of a walk is a function of the frame's address, of three registers ([`Frame`]), of the unwind rules of the
//! code, and of the words that it reads. So is therefore the whole rest of a walk from a frame on. The memo holds each
//! frame of the last walk with the words that were read to leave it. When a new walk reaches a frame that is equal to
//! a remembered one, and every word that was read from there to the root still holds its value, then the rest is what
//! it was: not by resemblance, but because the same function gets the same arguments. An argument that it is known not to
//! look at, a frame pointer that is another of the program's numbers ([`FramePointer`]), may differ. The rules change only with the
//! code, which is neither unloaded nor overwritten while its frames are on the stack; a `dlclose` between the two
//! walks drops the memo all the same. Nothing is assumed about how the program came from one stack to the other:
//! longjmp, exceptions, coroutines and tail calls leave equal words only where the rest is equal.
//!
//! Words are read again only on the thread's own stack, which stays readable ([`super::reader`]). A step that read other
//! memory is not remembered, and neither are those before it: a signal stack, a coroutine's, and the code of frames that no
//! module covers, which a compiler may have written over since. The frames nearer to the root are.

use super::rules::{FROM_FP, RESTORES_FP};

/// Frames that are remembered, those nearest to the root. A deeper walk is not remembered.
const MAX_FRAMES: usize = 1024;
/// Two words a frame are read with a frame pointer, one without.
const MAX_READS: usize = 2 * MAX_FRAMES;

/// How a step to the caller uses the frame pointer (the bits of a rule, so that no conversion is needed).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FramePointer(u8);

impl FramePointer {
    /// The caller has the same, and the step does not depend on it.
    pub const PASSED: Self = Self(0);
    /// The step depends on it, or may.
    pub const USED: Self = Self(FROM_FP as u8);
    /// The caller's own was on the stack, and the step does not depend on this one: nor does the rest of the walk.
    pub const UNUSED: Self = Self(RESTORES_FP as u8);

    /// In a step by a rule.
    #[inline]
    pub fn by_rule(bits: u64) -> Self {
        Self((bits & (FROM_FP | RESTORES_FP)) as u8)
    }
}

/// A frame before it is unwound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    /// The address in the record: after the call, or after the interrupted instruction's first byte.
    pub shown: u64,
    pub sp: u64,
    pub fp: u64,
    /// aarch64 only: the link register.
    #[cfg(target_arch = "aarch64")]
    pub link: u64,
    /// Whether `shown` is a return address.
    pub is_return: bool,
}

/// A frame, flat: it is half a cache line so.
#[derive(Clone, Copy)]
struct Remembered {
    shown: u64,
    sp: u64,
    fp: u64,
    #[cfg(target_arch = "aarch64")]
    link: u64,
    /// How many reads the rest of the walk from here on depends on: the last ones. While the walk is under way: how many
    /// came before.
    reads: u32,
    is_return: bool,
    /// This frame, or one nearer to the root, is inside the dynamic loader or was interrupted by a signal. While the walk
    /// is under way: this frame.
    may_hold_loader_locks: bool,
    /// How the rest of the walk from here on uses the frame pointer: never [`FramePointer::PASSED`]. While the walk is under
    /// way: how the step to the caller uses it.
    frame_pointer: FramePointer,
}

impl Remembered {
    /// Whether the walk goes on from this frame as it did.
    #[inline]
    fn goes_on_as(&self, frame: &Frame) -> bool {
        #[cfg(target_arch = "aarch64")]
        if self.link != frame.link {
            return false;
        }
        self.shown == frame.shown
            && self.sp == frame.sp
            && self.is_return == frame.is_return
            && (self.fp == frame.fp || self.frame_pointer == FramePointer::UNUSED)
    }
}

#[derive(Clone, Copy)]
struct Read {
    address: u64,
    value: u64,
}

/// The thread that a walk belongs to, and the state of loaded code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoKey {
    /// Number of the thread; 0 for nobody.
    pub thread: u32,
    /// The start of the agent that gave the number.
    pub epoch: u32,
    /// Number of dlclose calls so far.
    pub dlclose_count: u32,
}

/// See the module. All zero bytes are an empty memo.
pub struct Memo {
    key: MemoKey,
    /// Walks so far.
    walks: u64,
    /// Number of the walk that is remembered.
    remembered_walk: u64,
    /// Leaf first, up to the end of the array, so that the part which stays is in place.
    frames: [Remembered; MAX_FRAMES],
    count: usize,
    /// Whether the walker's buffer holds exactly these frames, from its front on.
    are_shown: bool,
    /// The words that these frames depend on, leaf first, up to the end of the array.
    reads: [Read; MAX_READS],
    /// Readable memory of the thread's stack, in which all of them are.
    own: (u64, u64),
    /// The walk under way, leaf first.
    fresh: [Remembered; MAX_FRAMES],
    fresh_count: usize,
    fresh_reads: [Read; MAX_READS],
    fresh_reads_count: usize,
    /// So many frames of the walk under way were left before the last step that read other memory than the thread's own stack, or
    /// by it.
    not_remembered: usize,
    /// How many remembered frames, counted from the root, the walk under way may still meet.
    cursor: usize,
    /// Reads that were found unchanged in this walk, from the root's on.
    verified: usize,
}

/// The remembered rest of a walk.
pub(super) struct Rest<'a> {
    frames: &'a [Remembered],
    /// Where in the walker's buffer they are already, from the last walk.
    shown_at: Option<usize>,
}

impl Rest<'_> {
    /// Puts the addresses to show, leaf first, beginning with the frame that was asked for, behind the first `depth` of the
    /// walker's buffer; how many of them found room.
    pub fn show(&self, buffer: &mut [u64], depth: usize) -> usize {
        let places = buffer.get_mut(depth..).unwrap_or(&mut []);
        if self.shown_at != Some(depth) {
            for (place, remembered) in places.iter_mut().zip(self.frames) {
                *place = remembered.shown;
            }
        }
        self.frames.len().min(places.len())
    }

    /// How many frames there are.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// See [`super::Captured`].
    pub fn may_hold_loader_locks(&self) -> bool {
        self.frames
            .first()
            .is_some_and(|first| first.may_hold_loader_locks)
    }
}

impl Memo {
    /// A walk begins; what is remembered of another thread, or from before a `dlclose`, is dropped. `own` is readable memory
    /// of the thread's stack, which grows from walk to walk.
    pub(super) fn begin(&mut self, key: MemoKey, own: &core::ops::Range<u64>) {
        let has_grown = own.start <= self.own.0 && self.own.1 <= own.end;
        if self.key != key || !has_grown {
            self.key = key;
            self.count = 0;
        }
        self.own = (own.start, own.end);
        self.walks = self.walks.wrapping_add(1);
        self.fresh_count = 0;
        self.fresh_reads_count = 0;
        self.not_remembered = 0;
        self.cursor = self.count;
        self.verified = 0;
    }

    /// The number of the last walk.
    pub(super) fn walk(&self) -> u64 {
        self.walks
    }

    /// The number of the walk that is remembered.
    pub(super) fn remembered_walk(&self) -> u64 {
        self.remembered_walk
    }

    /// Whether the rest of the walk, from `frame` on, is known.
    #[inline]
    pub(super) fn rest_from(&mut self, frame: &Frame) -> Option<Rest<'_>> {
        loop {
            let candidate = self.frames.get(MAX_FRAMES.checked_sub(self.cursor)?)?;
            if candidate.sp > frame.sp {
                return None;
            }
            if candidate.goes_on_as(frame) {
                break;
            }
            self.cursor -= 1;
        }
        self.verify()
    }

    /// The rest from the frame at the cursor on, if nothing that it depends on has changed.
    fn verify(&mut self) -> Option<Rest<'_>> {
        let from = MAX_FRAMES.checked_sub(self.cursor)?;
        let depends = self.frames.get(from)?.reads as usize;
        let reads = self
            .reads
            .get(MAX_READS.checked_sub(depends)?..MAX_READS.checked_sub(self.verified)?)
            .unwrap_or(&[]);
        if !are_unchanged(reads) {
            // From the root on, those that are unchanged; what depends on the next is no candidate any more.
            let unchanged = reads.iter().rev().take_while(|read| read.is_unchanged());
            self.verified += unchanged.count();
            let verified = self.verified;
            let candidates = self.frames.get(from..)?;
            let gone =
                candidates.partition_point(|remembered| remembered.reads as usize > verified);
            self.cursor -= gone;
            return None;
        }
        self.verified = self.verified.max(depends);
        Some(Rest {
            frames: self.frames.get(from..)?,
            shown_at: self.are_shown.then_some(self.count - self.cursor),
        })
    }

    /// The walk goes through this frame.
    #[inline]
    pub(super) fn push(
        &mut self,
        frame: Frame,
        frame_pointer: FramePointer,
        may_hold_loader_locks: bool,
    ) {
        if let Some(place) = self.fresh.get_mut(self.fresh_count) {
            *place = Remembered {
                shown: frame.shown,
                sp: frame.sp,
                fp: frame.fp,
                #[cfg(target_arch = "aarch64")]
                link: frame.link,
                reads: self.fresh_reads_count as u32,
                is_return: frame.is_return,
                may_hold_loader_locks,
                frame_pointer,
            };
        }
        self.fresh_count += 1;
    }

    /// A signal handler interrupted the frame that the walk comes to next.
    pub(super) fn interrupted(&mut self) {
        let last = self.fresh_count.wrapping_sub(1);
        if let Some(last) = self.fresh.get_mut(last) {
            last.may_hold_loader_locks = true;
        }
    }

    /// The walk has read a word of the thread's own stack to leave the frame pushed last.
    #[inline]
    pub(super) fn push_read(&mut self, address: u64, value: u64) {
        if let Some(place) = self.fresh_reads.get_mut(self.fresh_reads_count) {
            *place = Read { address, value };
        }
        self.fresh_reads_count += 1;
    }

    /// The walk has read other memory to leave the frame pushed last.
    pub(super) fn read_elsewhere(&mut self) {
        self.not_remembered = self.fresh_count;
    }

    /// The walk has come to the root, or to a frame with a known rest: remembers it. `are_shown`: all its frames are in the
    /// walker's buffer.
    pub(super) fn finish(&mut self, is_rest_known: bool, are_shown: bool) {
        let kept = if is_rest_known { self.cursor } else { 0 };
        self.are_shown = are_shown && self.not_remembered == 0;
        if is_rest_known && self.fresh_count == 0 {
            self.count = kept;
            self.remembered_walk = self.walks;
            return;
        }
        self.count = 0;
        let Some(fresh) = self.fresh.get(self.not_remembered..self.fresh_count) else {
            return;
        };
        let first_read = fresh
            .first()
            .map_or(self.fresh_reads_count, |first| first.reads as usize);
        let Some(fresh_reads) = self.fresh_reads.get(first_read..self.fresh_reads_count) else {
            return;
        };
        let from = MAX_FRAMES - kept;
        let first_kept = self.frames.get(from);
        let kept_reads = first_kept.map_or(0, |first| first.reads as usize);
        let mut holds = first_kept.is_some_and(|first| first.may_hold_loader_locks);
        let mut callers_use = first_kept.map_or(FramePointer::USED, |first| first.frame_pointer);
        let reads = kept_reads + fresh_reads.len();
        let places = from.checked_sub(fresh.len()).map(|start| start..from);
        let read_places = MAX_READS
            .checked_sub(reads)
            .map(|start| start..MAX_READS - kept_reads);
        let (Some(places), Some(read_places)) = (
            places.and_then(|places| self.frames.get_mut(places)),
            read_places.and_then(|places| self.reads.get_mut(places)),
        ) else {
            return;
        };
        read_places.copy_from_slice(fresh_reads);
        for (place, frame) in places.iter_mut().zip(fresh).rev() {
            holds |= frame.may_hold_loader_locks;
            if frame.frame_pointer != FramePointer::PASSED {
                callers_use = frame.frame_pointer;
            }
            *place = Remembered {
                reads: (reads + first_read) as u32 - frame.reads,
                may_hold_loader_locks: holds,
                frame_pointer: callers_use,
                ..*frame
            };
        }
        self.count = kept + fresh.len();
        self.remembered_walk = self.walks;
    }

    /// Call when the walker's buffer no longer holds the last walk's frames.
    pub fn invalidate_shown(&mut self) {
        self.are_shown = false;
    }

    /// Drops everything that is remembered.
    pub fn forget(&mut self) {
        self.count = 0;
    }
}

/// Whether all of what is remembered here is as it was.
#[inline]
fn are_unchanged(reads: &[Read]) -> bool {
    // By fours: each takes as many instructions as the end of the loop.
    let (fours, rest) = reads.as_chunks::<4>();
    let is_four_unchanged = |[a, b, c, d]: &[Read; 4]| {
        a.is_unchanged() && b.is_unchanged() && c.is_unchanged() && d.is_unchanged()
    };
    fours.iter().all(is_four_unchanged) && rest.iter().all(Read::is_unchanged)
}

impl Read {
    /// Whether the word still has the value that the remembered walk read.
    #[inline]
    fn is_unchanged(&self) -> bool {
        let pointer: *const u64 = core::ptr::with_exposed_provenance(self.address as usize);
        // SAFETY: 1. only reads of the thread's own stack are remembered (`push_read`, `finish`), in the part that was
        // found readable and stays so while the thread lives; 2. `begin` dropped them if they are another thread's, or if
        // that part is not in today's.
        unsafe { pointer.read_unaligned() == self.value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use std::boxed::Box;

    const KEY: MemoKey = MemoKey {
        thread: 1,
        epoch: 1,
        dlclose_count: 0,
    };

    fn empty() -> Box<Memo> {
        // SAFETY: all zero bytes are an empty memo.
        unsafe { Box::new_zeroed().assume_init() }
    }

    fn frame(shown: u64, fp: u64) -> Frame {
        Frame {
            shown,
            sp: 16 * shown,
            fp,
            #[cfg(target_arch = "aarch64")]
            link: 0,
            is_return: true,
        }
    }

    /// Frames 1 to 3, each left by reading one word, which do this with the frame pointer.
    fn walk(memo: &mut Memo, words: &[Cell<u64>; 3], uses: [FramePointer; 3], fp: u64) {
        memo.begin(KEY, &(0..u64::MAX));
        for ((number, frame_pointer), word) in (1..).zip(uses).zip(words) {
            memo.push(frame(number, fp), frame_pointer, false);
            memo.push_read(word.as_ptr().expose_provenance() as u64, word.get());
        }
        memo.finish(false, true);
    }

    /// How many frames are known from this one on.
    fn known(memo: &mut Memo, frame: Frame) -> Option<usize> {
        memo.begin(KEY, &(0..u64::MAX));
        memo.rest_from(&frame).map(|rest| rest.len())
    }

    #[test]
    fn only_a_frame_pointer_that_nobody_looks_at_may_differ() {
        let [passed, unused, used] = [
            FramePointer::PASSED,
            FramePointer::UNUSED,
            FramePointer::USED,
        ];
        let words = [7, 8, 9].map(Cell::new);
        let mut memo = empty();
        for (uses, may_differ) in [
            ([used, unused, unused], false),
            ([unused, used, used], true),
            ([passed, unused, used], true),
            ([passed, passed, used], false),
            ([passed, used, unused], false),
            ([passed, passed, unused], true),
            // The last one hands it to nobody, as far as is known.
            ([passed, passed, passed], false),
        ] {
            walk(&mut memo, &words, uses, 100);
            assert_eq!(known(&mut memo, frame(1, 100)), Some(3), "{uses:?}");
            let other = known(&mut memo, frame(1, 101));
            assert_eq!(other, may_differ.then_some(3), "{uses:?}");
        }
    }

    #[test]
    fn what_is_known_ends_where_a_word_has_changed() {
        let words = [7, 8, 9].map(Cell::new);
        let mut memo = empty();
        walk(&mut memo, &words, [FramePointer::UNUSED; 3], 100);
        words[1].set(80);
        assert_eq!(known(&mut memo, frame(1, 100)), None);
        memo.begin(KEY, &(0..u64::MAX));
        assert!(memo.rest_from(&frame(2, 100)).is_none());
        assert_eq!(memo.rest_from(&frame(3, 100)).unwrap().len(), 1);
    }

    #[test]
    fn frames_that_are_in_their_place_are_left_there() {
        let words = [7, 8, 9].map(Cell::new);
        let mut memo = empty();
        walk(&mut memo, &words, [FramePointer::UNUSED; 3], 100);
        let mut buffer = [0, 0, 0, 0];
        let mut show = |memo: &mut Memo, depth| {
            memo.begin(KEY, &(0..u64::MAX));
            let rest = memo.rest_from(&frame(2, 100)).unwrap();
            let shown = rest.show(&mut buffer, depth);
            (shown, core::mem::take(&mut buffer))
        };
        // The walker has shown them from the front of its buffer on; at any other depth they must be moved.
        assert_eq!(show(&mut memo, 1), (2, [0, 0, 0, 0]));
        assert_eq!(show(&mut memo, 2), (2, [0, 0, 2, 3]));
        assert_eq!(show(&mut memo, 3), (1, [0, 0, 0, 2]));
        memo.invalidate_shown();
        assert_eq!(show(&mut memo, 1), (2, [0, 2, 3, 0]));
    }

    #[test]
    fn a_walk_is_not_reused_when_less_of_the_stack_is_known_to_be_readable() {
        let words = [7, 8, 9].map(Cell::new);
        let mut memo = empty();
        let known_within = |memo: &mut Memo, own| {
            memo.begin(KEY, &own);
            memo.rest_from(&frame(1, 100)).map(|rest| rest.len())
        };
        for (before, now, is_reused) in [
            (100..900, 100..900, true),
            (100..900, 50..950, true),
            (100..900, 101..900, false),
            (100..900, 100..899, false),
            (100..900, 901..1000, false),
        ] {
            walk(&mut memo, &words, [FramePointer::UNUSED; 3], 100);
            memo.own = (before.start, before.end);
            let expected = is_reused.then_some(3);
            assert_eq!(known_within(&mut memo, now.clone()), expected, "{now:?}");
            // Dropped for good, not only for this walk.
            assert_eq!(known_within(&mut memo, now.clone()), expected, "{now:?}");
        }
    }

    #[test]
    fn a_rule_tells_what_it_does_with_the_frame_pointer() {
        let others = !(FROM_FP | RESTORES_FP);
        for (bits, expected) in [
            (others, FramePointer::PASSED),
            (FROM_FP | others, FramePointer::USED),
            (RESTORES_FP, FramePointer::UNUSED),
        ] {
            assert_eq!(FramePointer::by_rule(bits), expected, "{bits:#x}");
        }
        // It is read before it is written.
        let both = FramePointer::by_rule(FROM_FP | RESTORES_FP);
        assert!(both != FramePointer::UNUSED && both != FramePointer::PASSED);
    }

    #[test]
    fn a_frame_of_the_loader_is_remembered_for_all_that_it_was_called_by() {
        let words = [7, 8, 9].map(Cell::new);
        let mut memo = empty();
        for loader in 1..=3_u64 {
            for is_interrupted in [false, true] {
                memo.begin(KEY, &(0..u64::MAX));
                for (number, word) in (1..).zip(&words) {
                    let is_loader = number == loader;
                    memo.push(
                        frame(number, 100),
                        FramePointer::UNUSED,
                        is_loader && !is_interrupted,
                    );
                    if is_loader && is_interrupted {
                        memo.interrupted();
                    }
                    memo.push_read(word.as_ptr().expose_provenance() as u64, word.get());
                }
                memo.finish(false, true);
                for number in 1..=3 {
                    memo.begin(KEY, &(0..u64::MAX));
                    let rest = memo.rest_from(&frame(number, 100)).unwrap();
                    // This frame, or one nearer to the root.
                    assert_eq!(
                        rest.may_hold_loader_locks(),
                        number <= loader,
                        "{number} {loader}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_frame_that_was_interrupted_there_is_not_one_that_a_call_returns_to() {
        let words = [7, 8, 9].map(Cell::new);
        let mut memo = empty();
        walk(&mut memo, &words, [FramePointer::UNUSED; 3], 100);
        for number in 1..=3 {
            let interrupted = Frame {
                is_return: false,
                ..frame(number, 100)
            };
            assert_eq!(known(&mut memo, interrupted), None, "{number}");
        }
        assert_eq!(known(&mut memo, frame(1, 100)), Some(3));
    }

    #[test]
    fn only_frames_behind_the_last_read_of_other_memory_are_remembered() {
        let words = [7, 8, 9, 10].map(Cell::new);
        let mut memo = empty();
        for elsewhere in 0..=4_u64 {
            memo.begin(KEY, &(0..u64::MAX));
            for (number, word) in (1..).zip(&words) {
                memo.push(frame(number, 100), FramePointer::UNUSED, false);
                memo.push_read(word.as_ptr().expose_provenance() as u64, word.get());
                if number == elsewhere {
                    memo.read_elsewhere();
                }
            }
            memo.finish(false, true);
            for number in 1..=4 {
                let rest = (number > elsewhere).then_some(5 - number as usize);
                assert_eq!(known(&mut memo, frame(number, 100)), rest, "{elsewhere}");
            }
            // What is remembered depends on its own words alone.
            if let Some(word) = words.get(elsewhere as usize) {
                word.set(1);
                assert_eq!(known(&mut memo, frame(elsewhere + 1, 100)), None);
                let later = elsewhere as usize + 2;
                let rest = (later <= 4).then_some(5usize.wrapping_sub(later));
                assert_eq!(known(&mut memo, frame(later as u64, 100)), rest);
                word.set(7 + elsewhere);
            }
        }
    }

    #[test]
    fn frames_are_shown_again_where_those_before_them_were_not_remembered() {
        let words = [7, 8, 9].map(Cell::new);
        let mut memo = empty();
        memo.begin(KEY, &(0..u64::MAX));
        for (number, word) in (1..).zip(&words) {
            memo.push(frame(number, 100), FramePointer::UNUSED, false);
            memo.push_read(word.as_ptr().expose_provenance() as u64, word.get());
            if number == 1 {
                memo.read_elsewhere();
            }
        }
        memo.finish(false, true);
        memo.begin(KEY, &(0..u64::MAX));
        let mut buffer = [0; 3];
        let rest = memo.rest_from(&frame(2, 100)).unwrap();
        assert_eq!((rest.show(&mut buffer, 0), buffer), (2, [2, 3, 0]));
    }
}
