//! The buckets of a process, and how their counts change.

use crate::memory::{Memory, words_of};

/// A bucket's words before its frames.
const FIXED_WORDS: usize = 6;
/// Words of the counts in the larger shape.
const COUNT_WORDS: usize = 16;
/// `memBucket`.
const OF_ALLOCATIONS: u64 = 1;
/// Go's own limit is 1,024 since 1.23, 32 before.
const MOST_FRAMES: u64 = 1 << 10;
/// Programs have thousands.
const MOST_BUCKETS: usize = 1 << 20;
/// The largest object that is believed.
const MOST_BYTES: u64 = 1 << 47;
/// So many buckets may be half changed in one reading, or a tenth of all.
const MOST_UNSETTLED: usize = 8;
/// More than any site can have allocated.
const MOST_BYTES_EVER: u64 = 1 << 60;

/// Samples of one stack and size since the start of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Sampled objects that were allocated.
    pub allocations: u64,
    /// Sampled objects that a collection found dead.
    pub frees: u64,
    /// Sampled objects that were allocated since. Which of them are live, no collection has found yet.
    pub pending: u64,
}

/// All samples of one stack and size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Return addresses, leaf first. A function that was inlined has one of its own.
    pub stack: Vec<u64>,
    /// Bytes of each object, with what its size class adds.
    pub size: u64,
    /// As of the last collection that ended.
    pub counts: Counts,
    /// Where its counts are.
    counts_at: u64,
}

/// Why the buckets could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The process has ended, or runs another program.
    #[error("its memory is gone")]
    Gone,
    /// Not the layout that we know.
    #[error("its heap profile has another layout than that of Go 1.18 to 1.27")]
    Layout,
    /// Too much for us.
    #[error("its heap profile has more than {MOST_BUCKETS} stacks")]
    TooMany,
}

/// What is counted for the collections that have ended, and for each of the three that have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Allocations, frees, bytes of both: up to Go 1.26.
    WithBytes,
    /// Allocations and frees: Go 1.27.
    Counts,
}

/// All buckets of a process. New ones come at the end.
#[derive(Debug, Default)]
pub struct Buckets {
    shape: Option<Shape>,
    all: Vec<Bucket>,
    /// Numbers of the buckets, by address.
    by_address: Vec<u32>,
    /// Address of the newest.
    newest: u64,
}

impl Buckets {
    /// The buckets, those that have been there longest first. A bucket keeps its number.
    pub fn all(&self) -> &[Bucket] {
        &self.all
    }

    /// Reads the list that the variable at `head` points to: what is new in it, and the counts of all.
    pub(crate) fn read(&mut self, memory: &impl Memory, head: u64) -> Result<(), Unreadable> {
        self.find_new(memory, head)?;
        let mut window = Window::default();
        let mut counts = Vec::with_capacity(self.all.len());
        for &index in &self.by_address {
            let bucket = &self.all[index as usize];
            let words = window.words(memory, bucket.counts_at, COUNT_WORDS);
            counts.push((index, words.ok_or(Unreadable::Gone)?));
        }
        if self.shape.is_none() {
            let sizes = counts.iter().map(|(index, words)| {
                let words: &[u64] = words;
                (words, self.all[*index as usize].size)
            });
            self.shape = Shape::of(sizes)?;
        }
        let Some(shape) = self.shape else {
            return Ok(());
        };
        // Before the first collection has ended there is nothing else to see.
        let is_first = counts.iter().all(|(_, words)| words[..2] == [0; 2]);
        let mut unsettled = 0;
        let all = counts.len();
        for (index, words) in counts {
            let bucket = &mut self.all[index as usize];
            match shape.settled(&words, is_first, bucket.size) {
                Some(counts) => bucket.counts = later(bucket.counts, counts),
                // The runtime is changing it: it keeps its former counts until the next reading.
                None => unsettled += 1,
            }
        }
        // The runtime changes one bucket at a time.
        let is_layout = unsettled <= MOST_UNSETTLED.max(all / 10);
        is_layout.then_some(()).ok_or(Unreadable::Layout)
    }

    fn find_new(&mut self, memory: &impl Memory, head: u64) -> Result<(), Unreadable> {
        let head = memory.word(head).ok_or(Unreadable::Gone)?;
        let mut found = Vec::new();
        let mut at = head;
        // The list ends at the oldest; new ones are put before all others.
        while at != 0 && at != self.newest {
            let (bucket, next) = bucket_at(memory, at)?;
            found.push(bucket);
            at = next;
            if found.len() + self.all.len() > MOST_BUCKETS {
                return Err(Unreadable::TooMany);
            }
        }
        if at != self.newest {
            return Err(Unreadable::Layout);
        }
        if found.is_empty() {
            return Ok(());
        }
        found.reverse();
        self.all.extend(found);
        self.newest = head;
        self.by_address = (0..self.all.len() as u32).collect();
        self.by_address
            .sort_by_key(|&index| self.all[index as usize].counts_at);
        Ok(())
    }
}

/// Whether a list of buckets begins at `head`, with stacks of this program.
pub(crate) fn is_list(memory: &impl Memory, head: u64, is_code: impl Fn(u64) -> bool) -> bool {
    const LOOKED_AT: usize = 100;
    let mut at = head;
    for _ in 0..LOOKED_AT {
        match bucket_at(memory, at) {
            // A callback from C may have a frame outside.
            Ok((bucket, next)) if bucket.stack.iter().any(|&it| is_code(it)) => at = next,
            _ => return false,
        }
        if at == 0 {
            return true;
        }
    }
    true
}

/// The bucket at an address, and where the next one is.
fn bucket_at(memory: &impl Memory, at: u64) -> Result<(Bucket, u64), Unreadable> {
    let fixed = memory.words(at, FIXED_WORDS).ok_or(Unreadable::Gone)?;
    let &[_, next, kind, _, size, frames] = &*fixed else {
        return Err(Unreadable::Layout);
    };
    let is_bucket = kind == OF_ALLOCATIONS
        && (1..=MOST_FRAMES).contains(&frames)
        && (1..MOST_BYTES).contains(&size)
        && next.is_multiple_of(8)
        && at.is_multiple_of(8);
    if !is_bucket {
        return Err(Unreadable::Layout);
    }
    let frames = frames as usize;
    let stack_at = at + 8 * FIXED_WORDS as u64;
    let stack = memory.words(stack_at, frames).ok_or(Unreadable::Gone)?;
    let bucket = Bucket {
        stack,
        size,
        counts: Counts::default(),
        counts_at: stack_at + 8 * frames as u64,
    };
    Ok((bucket, next))
}

impl Shape {
    /// The shape in which the counts of some buckets agree with each other; `None` as long as all are zero.
    fn of<'a>(buckets: impl Iterator<Item = (&'a [u64], u64)>) -> Result<Option<Self>, Unreadable> {
        let (mut counted, mut with_bytes, mut counts) = (0_u64, 0_u64, 0_u64);
        for (words, size) in buckets {
            // In the smaller shape, the second half is something else, which does not fit the larger one.
            if words.iter().all(|&word| word == 0) {
                continue;
            }
            counted += 1;
            with_bytes += u64::from(Self::WithBytes.sum(words, size).is_some());
            counts += u64::from(Self::Counts.sum(words, size).is_some());
        }
        // The runtime may be changing a few of them. Counts with their bytes fit both shapes.
        let nearly_all = |fitting: u64| fitting * 10 >= counted * 9;
        match counted {
            0 => Ok(None),
            _ if nearly_all(with_bytes) => Ok(Some(Self::WithBytes)),
            _ if nearly_all(counts) => Ok(Some(Self::Counts)),
            _ => Err(Unreadable::Layout),
        }
    }

    /// The counts for all collections, also those that have not ended.
    fn sum(self, words: &[u64], size: u64) -> Option<Counts> {
        self.settled(words, true, size)
    }

    /// The counts in these words, if they agree with each other.
    fn settled(self, words: &[u64], is_first: bool, size: u64) -> Option<Counts> {
        let width = match self {
            Self::WithBytes => 4,
            Self::Counts => 2,
        };
        let ended = if is_first { 4 } else { 1 };
        let groups: Vec<&[u64]> = words.chunks_exact(width).take(4).collect();
        let [allocations, frees, allocated, freed] = sums(groups.get(..ended)?)?;
        let [pending, _, pending_bytes, _] = sums(groups.get(ended..)?)?;
        let is_product = |count: u64, bytes| match self {
            Self::WithBytes => count.checked_mul(size) == Some(bytes),
            Self::Counts => true,
        };
        let agrees = frees <= allocations
            && allocations.checked_add(pending)?.checked_mul(size)? < MOST_BYTES_EVER
            && is_product(allocations, allocated)
            && is_product(frees, freed)
            && is_product(pending, pending_bytes);
        agrees.then_some(Counts {
            allocations,
            frees,
            pending,
        })
    }
}

/// The sums of the columns.
fn sums(groups: &[&[u64]]) -> Option<[u64; 4]> {
    let mut sums = [0_u64; 4];
    for group in groups {
        for (sum, word) in sums.iter_mut().zip(*group) {
            *sum = sum.checked_add(*word)?;
        }
    }
    Some(sums)
}

/// Counts only grow, but for those from before the first collection, of which some become visible again later.
fn later(before: Counts, now: Counts) -> Counts {
    let allocations = before.allocations.max(now.allocations);
    Counts {
        allocations,
        frees: before.frees.max(now.frees),
        pending: (now.allocations + now.pending).saturating_sub(allocations),
    }
}

/// Memory that was read in one piece, as buckets lie close to each other.
#[derive(Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    const BYTES: usize = 1 << 16;

    fn words(&mut self, memory: &impl Memory, at: u64, count: usize) -> Option<Vec<u64>> {
        let length = 8 * count;
        let is_inside = |window: &Self| {
            let skipped = at.checked_sub(window.start)?;
            let skipped = usize::try_from(skipped).ok()?;
            let end = skipped.checked_add(length)?;
            (end <= window.bytes.len()).then_some(skipped..end)
        };
        if is_inside(self).is_none() {
            self.start = at;
            self.bytes.resize(Self::BYTES, 0);
            let read = memory.read_some(at, &mut self.bytes);
            self.bytes.truncate(read);
        }
        is_inside(self).map(|range| words_of(&self.bytes[range]))
    }
}
