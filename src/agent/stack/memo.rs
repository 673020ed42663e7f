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
    pub sp: u64,
    pub fp: u64,
    /// aarch64 only: the link register.
    #[cfg(target_arch = "aarch64")]
    pub link: u64,
    /// Whether `shown` is a return address.
    pub is_return: bool,
}

#[derive(Clone, Copy)]
struct Remembered {
    frame: Frame,
    /// This frame, or one nearer to the root, is inside the dynamic loader or was interrupted by a signal. While the walk
    /// is under way: this frame.
    may_hold_loader_locks: bool,
    /// How many reads the rest of the walk from here on depends on: the last ones. While the walk is under way: how many
    /// came before.
    reads: u32,
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
    /// Walks so far.
    walks: u64,
    /// The walk whose frames these are.
    remembered_walk: u64,
    /// Leaf first, up to the end of the array, so that the part which stays is in place.
    frames: [Remembered; MAX_FRAMES],
    count: usize,
    /// Those of the frames, likewise.
    reads: [Read; MAX_READS],
    /// Readable memory of the thread's stack, in which all of them are.
    own: (u64, u64),
    /// The walk under way, leaf first.
    fresh: [Remembered; MAX_FRAMES],
    fresh_count: usize,
    fresh_reads: [Read; MAX_READS],
    fresh_reads_count: usize,
    /// A frame of the walk under way is inside the dynamic loader, or was interrupted.
    fresh_may_hold: bool,
    /// The walk under way read other memory than the thread's own stack.
    has_read_elsewhere: bool,
    /// How many remembered frames, counted from the root, the walk under way may still meet.
    cursor: usize,
    /// Reads that were found unchanged in this walk, from the root's on.
    verified: usize,
}

/// The remembered rest of a walk.
pub(super) struct Rest<'a>(&'a [Remembered]);

impl Rest<'_> {
    /// Addresses to show, leaf first, beginning with the frame that was asked for.
    pub fn shown(&self) -> impl ExactSizeIterator<Item = u64> {
        self.0.iter().map(|remembered| remembered.frame.shown)
    }

    /// See [`super::Captured`].
    pub fn may_hold_loader_locks(&self) -> bool {
        self.0
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
        self.fresh_may_hold = false;
        self.has_read_elsewhere = false;
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
            if candidate.frame.sp > frame.sp {
                return None;
            }
            if candidate.frame == *frame {
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
        if !reads.iter().all(|read| read.is_unchanged()) {
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
        Some(Rest(self.frames.get(from..)?))
    }

    /// The walk goes through this frame.
    #[inline]
    pub(super) fn push(&mut self, frame: Frame, may_hold_loader_locks: bool) {
        if let Some(place) = self.fresh.get_mut(self.fresh_count) {
            *place = Remembered {
                frame,
                may_hold_loader_locks,
                reads: self.fresh_reads_count as u32,
            };
        }
        self.fresh_may_hold |= may_hold_loader_locks;
        self.fresh_count += 1;
    }

    /// A signal handler interrupted the frame that the walk comes to next.
    pub(super) fn interrupted(&mut self) {
        let last = self.fresh_count.wrapping_sub(1);
        if let Some(last) = self.fresh.get_mut(last) {
            last.may_hold_loader_locks = true;
        }
        self.fresh_may_hold = true;
    }

    /// The walk has read a word of the thread's own stack to leave the frame pushed last.
    #[inline]
    pub(super) fn push_read(&mut self, address: u64, value: u64) {
        if let Some(place) = self.fresh_reads.get_mut(self.fresh_reads_count) {
            *place = Read { address, value };
        }
        self.fresh_reads_count += 1;
    }

    /// The walk has read other memory.
    pub(super) fn read_elsewhere(&mut self) {
        self.has_read_elsewhere = true;
    }

    /// The walk has come to the root, or to a frame with a known rest: remembers it.
    pub(super) fn finish(&mut self, is_rest_known: bool) {
        let kept = if is_rest_known { self.cursor } else { 0 };
        self.count = 0;
        let (Some(fresh), Some(fresh_reads)) = (
            self.fresh.get(..self.fresh_count),
            self.fresh_reads.get(..self.fresh_reads_count),
        ) else {
            return;
        };
        if self.has_read_elsewhere {
            return;
        }
        let from = MAX_FRAMES - kept;
        let (kept_reads, kept_holds) = self.frames.get(from).map_or((0, false), |first| {
            (first.reads as usize, first.may_hold_loader_locks)
        });
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
        for (place, frame) in places.iter_mut().zip(fresh) {
            *place = Remembered {
                reads: reads as u32 - frame.reads,
                may_hold_loader_locks: kept_holds,
                ..*frame
            };
        }
        if self.fresh_may_hold {
            let mut holds = kept_holds;
            for (place, frame) in places.iter_mut().zip(fresh).rev() {
                holds |= frame.may_hold_loader_locks;
                place.may_hold_loader_locks = holds;
            }
        }
        self.count = kept + fresh.len();
        self.remembered_walk = self.walks;
    }

    /// Nothing of this walk can be used again.
    pub fn forget(&mut self) {
        self.count = 0;
    }
}

impl Read {
    /// Of what is remembered.
    #[inline]
    fn is_unchanged(&self) -> bool {
        let pointer: *const u64 = core::ptr::with_exposed_provenance(self.address as usize);
        // SAFETY: 1. only reads of the thread's own stack are remembered (`push_read`, `finish`), in the part that was
        // found readable and stays so while the thread lives; 2. `begin` dropped them if they are another thread's, or if
        // that part is not in today's.
        unsafe { pointer.read_unaligned() == self.value }
    }
}
