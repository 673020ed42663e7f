//! What the last walk of a thread found, so that the next one can stop where nothing has changed.
//!
//! One step of a walk is a function of the frame's address, of three registers ([`Frame`]), of the unwind rules of the
//! code, and of the words that it reads. So is therefore the whole rest of a walk from a frame on. The memo holds each
//! frame of the last walk with the words that were read to leave it. When a new walk reaches a frame that is equal to
//! a remembered one, and every word that was read from there to the root still holds its value, then the rest is what
//! it was: not by resemblance, but because the same function gets the same arguments. The rules change only with the
//! code, which is neither unloaded nor overwritten while its frames are on the stack; a `dlclose` between the two
//! walks drops the memo all the same. Nothing is assumed about how the program came from one stack to the other:
//! longjmp, exceptions, coroutines and tail calls leave equal words only where the rest is equal.
//!
//! Words are read again only on the thread's own stack, which stays readable ([`super::reader`]): a walk that read
//! elsewhere (signal stacks, coroutines) is not remembered.

/// Frames that are remembered, those nearest to the root. A deeper walk is not remembered.
const MAX_FRAMES: usize = 1024;
/// Two words a frame are read with a frame pointer, one without.
const MAX_READS: usize = 2 * MAX_FRAMES;

/// A frame before it is unwound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    /// What the record shows: the address behind the call, or behind the interrupted instruction's first byte.
    pub shown: u64,
    /// Whether that is a return address.
    pub is_return: bool,
    pub sp: u64,
    pub fp: u64,
    /// aarch64 only: the link register.
    pub link: u64,
}

#[derive(Clone, Copy)]
struct Remembered {
    frame: Frame,
    /// Reads up to here, from the root's on, are those that the rest of the walk depends on.
    reads_end: u32,
    /// This frame, or one nearer to the root, is inside the dynamic loader or was interrupted by a signal.
    may_hold_loader_locks: bool,
}

#[derive(Clone, Copy)]
struct Read {
    address: u64,
    value: u64,
}

/// Whose stack it was, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoKey {
    /// Number of the thread; 0 for nobody.
    pub thread: u32,
    /// The start of the agent that gave the number.
    pub epoch: u32,
    /// How often code may have been unmapped before.
    pub dlclose_count: u32,
}

/// See the module. All zero bytes are an empty memo.
pub struct Memo {
    key: MemoKey,
    /// Root first, so that the part which stays is in place.
    frames: [Remembered; MAX_FRAMES],
    count: usize,
    reads: [Read; MAX_READS],
    /// The walk under way, leaf first; `reads_end` counts from its own start.
    fresh: [Remembered; MAX_FRAMES],
    fresh_count: usize,
    fresh_reads: [Read; MAX_READS],
    fresh_reads_count: usize,
    /// The next remembered frame, counted from the root, that the walk under way may meet, plus one.
    cursor: usize,
    /// Reads that were found unchanged in this walk, from the root's on.
    verified: usize,
}

/// The remembered rest of a walk.
pub(super) struct Rest<'a>(&'a [Remembered]);

impl Rest<'_> {
    /// Addresses to show, leaf first, beginning with the frame that was asked for.
    pub fn shown(&self) -> impl ExactSizeIterator<Item = u64> {
        self.0.iter().rev().map(|remembered| remembered.frame.shown)
    }

    /// See [`super::Captured`].
    pub fn may_hold_loader_locks(&self) -> bool {
        self.0.last().is_some_and(|last| last.may_hold_loader_locks)
    }
}

impl Memo {
    /// A walk begins; what is remembered of another thread, or from before a `dlclose`, is dropped.
    pub(super) fn begin(&mut self, key: MemoKey) {
        if self.key != key {
            self.key = key;
            self.count = 0;
        }
        self.fresh_count = 0;
        self.fresh_reads_count = 0;
        self.cursor = self.count;
        self.verified = 0;
    }

    /// Whether the rest of the walk, from `frame` on, is known. `own` is readable memory of the thread's stack.
    pub(super) fn rest_from(
        &mut self,
        frame: &Frame,
        own: &core::ops::Range<u64>,
    ) -> Option<Rest<'_>> {
        loop {
            let candidate = self.frames.get(self.cursor.checked_sub(1)?)?;
            if candidate.frame.sp > frame.sp {
                return None;
            }
            if candidate.frame == *frame {
                break;
            }
            self.cursor -= 1;
        }
        let end = self.frames.get(self.cursor - 1)?.reads_end as usize;
        if let Some(changed) = self.first_change(end, own) {
            // What depends on the changed word is no candidate any more.
            self.cursor = self
                .frames
                .get(..self.cursor)?
                .partition_point(|remembered| remembered.reads_end as usize <= changed);
            return None;
        }
        Some(Rest(self.frames.get(..self.cursor)?))
    }

    fn first_change(&mut self, end: usize, own: &core::ops::Range<u64>) -> Option<usize> {
        let reads = self.reads.get(self.verified..end).unwrap_or(&[]);
        let last = own.end.wrapping_sub(8);
        let changed = reads.iter().position(|read| {
            if read.address < own.start || read.address > last {
                return true;
            }
            let pointer: *const u64 = core::ptr::with_exposed_provenance(read.address as usize);
            // SAFETY: on the thread's own stack, in the part that was found readable and stays so.
            unsafe { pointer.read_unaligned() != read.value }
        });
        match changed {
            Some(at) => {
                self.verified += at;
                Some(self.verified)
            }
            None => {
                self.verified = self.verified.max(end);
                None
            }
        }
    }

    /// The walk goes through this frame.
    pub(super) fn push(&mut self, frame: Frame, may_hold_loader_locks: bool) {
        if let Some(place) = self.fresh.get_mut(self.fresh_count) {
            *place = Remembered {
                frame,
                reads_end: self.fresh_reads_count as u32,
                may_hold_loader_locks,
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

    /// The walk has read a word to leave the frame pushed last.
    pub(super) fn push_read(&mut self, address: u64, value: u64) {
        if let Some(place) = self.fresh_reads.get_mut(self.fresh_reads_count) {
            *place = Read { address, value };
        }
        self.fresh_reads_count += 1;
    }

    /// The walk has come to the root, or to a frame with a known rest: remembers it. `own` as above.
    pub(super) fn finish(&mut self, is_rest_known: bool, own: &core::ops::Range<u64>) {
        let kept = if is_rest_known { self.cursor } else { 0 };
        self.count = 0;
        let last = own.end.wrapping_sub(8);
        let (Some(fresh), Some(fresh_reads)) = (
            self.fresh.get(..self.fresh_count),
            self.fresh_reads.get(..self.fresh_reads_count),
        ) else {
            return;
        };
        if fresh_reads
            .iter()
            .any(|read| read.address < own.start || read.address > last)
        {
            return;
        }
        let (mut reads_end, mut holds) = kept
            .checked_sub(1)
            .and_then(|index| self.frames.get(index))
            .map_or((0, false), |rest| {
                (rest.reads_end as usize, rest.may_hold_loader_locks)
            });
        let (Some(places), Some(read_places)) = (
            self.frames.get_mut(kept..kept + fresh.len()),
            self.reads.get_mut(reads_end..reads_end + fresh_reads.len()),
        ) else {
            return;
        };
        // From the root on: frames in reverse, and the reads of each frame as a group.
        let mut group_end = fresh_reads.len();
        let mut read_places = read_places.iter_mut();
        for (place, frame) in places.iter_mut().zip(fresh.iter().rev()) {
            let group = fresh_reads
                .get(frame.reads_end as usize..group_end)
                .unwrap_or(&[]);
            group_end = frame.reads_end as usize;
            reads_end += group.len();
            // The group first: a zip asks its first half for one more than it uses.
            for (from, to) in group.iter().zip(read_places.by_ref()) {
                *to = *from;
            }
            holds |= frame.may_hold_loader_locks;
            *place = Remembered {
                frame: frame.frame,
                reads_end: reads_end as u32,
                may_hold_loader_locks: holds,
            };
        }
        self.count = kept + fresh.len();
    }

    /// Nothing of this walk can be used again.
    pub fn forget(&mut self) {
        self.count = 0;
    }
}
