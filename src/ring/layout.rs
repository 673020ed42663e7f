//! Where everything lies in the ring's file.
//!
//! ```text
//! 0       identity: magic | version | profile id | capacity | data offset | closed
//! 64      head
//! 128     tail, consumed
//! 192     lost counters: 7 x (events, bytes)
//! 320     request: generation | value | generation that was obeyed | what | 4 x more
//! 384     figures: 16 x u64
//! 512     collections that were asked for, by heap: 256 x (generation of the request << 8 | state)
//! 2560    end of each writer's last reservation, as published by the next writer: 192 x u64
//! 4096    data: capacity x 8 bytes
//! ```

use crate::sync::AtomicU64;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"ALLOCRNG");
/// The format of the ring. In version 1 the head was a position without a writer.
pub(crate) const VERSION: u64 = 2;

/// Number of pairs of lost counters.
pub const LOST_REASONS: usize = 7;

/// Number of figures.
pub const FIGURES: usize = 16;

/// Number of heaps that have a word for collections on request.
pub const HEAPS: usize = 256;

/// Writers whose reservations can be resolved after a jump; number 0 stands for all others.
pub(crate) const WRITERS: usize = 192;

const WRITER_SHIFT: u32 = 48;

/// The head: the first unreserved position in words (48 bits, enough for 2 PiB) and the last writer (16 bits).
pub(crate) const fn head_word(position: u64, writer: usize) -> u64 {
    head_position(position) | (writer as u64) << WRITER_SHIFT
}

pub(crate) const fn head_position(head: u64) -> u64 {
    head & ((1 << WRITER_SHIFT) - 1)
}

/// May be beyond [`WRITERS`] if the program has scribbled on it.
pub(crate) const fn head_writer(head: u64) -> usize {
    (head >> WRITER_SHIFT) as usize
}

pub(crate) const DATA_OFFSET: usize = 4096;
const _: () = assert!(DATA_OFFSET.is_multiple_of(4096));

/// Length in bytes of the file, and of the mapping, of a ring with this capacity.
pub const fn file_bytes(capacity_words: u64) -> usize {
    DATA_OFFSET + capacity_words as usize * size_of::<u64>()
}

/// The first page. All fields are atomics only because the page is shared; the identity is written once.
#[repr(C, align(64))]
pub(crate) struct Header {
    pub magic: AtomicU64,
    pub version: AtomicU64,
    pub profile_id: [AtomicU64; 2],
    pub capacity_words: AtomicU64,
    pub data_offset: AtomicU64,
    pub closed: AtomicU64,
    pub head: Line<Head>,
    pub tail: Line<Tail>,
    pub lost: Line<[LostCounter; LOST_REASONS]>,
    pub request: Line<Request>,
    pub figures: Line<[AtomicU64; FIGURES]>,
    pub collecting: Line<[AtomicU64; HEAPS]>,
    /// End of each writer's last reservation, see [`crate::Ring::reserve_by`].
    pub reserved_up_to: Line<[AtomicU64; WRITERS]>,
}

/// A value in a cache line of its own: producers write `head` and the consumer `tail` without slowing each other.
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub T);

#[repr(C)]
pub(crate) struct Head {
    /// Position and last writer, see [`head_word`].
    pub word: AtomicU64,
}

#[repr(C)]
pub(crate) struct Tail {
    /// First position that may not be overwritten.
    pub released: AtomicU64,
    /// First position that the consumer still needs; ahead of `released` only while it zeroes what lies between.
    pub consumed: AtomicU64,
}

#[repr(C)]
pub(crate) struct LostCounter {
    pub events: AtomicU64,
    pub bytes: AtomicU64,
}

/// A request from outside the process: written into the file by `allocsample ctl`, read by the agent's slow path.
#[repr(C)]
pub(crate) struct Request {
    /// Number of the request, written after the other fields; 0: there was none. Each request increments it.
    pub generation: AtomicU64,
    /// For [`request::SET_INTERVAL`] the new mean number of bytes between two samples, 0 to stop. Otherwise see [`request`].
    pub interval: AtomicU64,
    /// Generation of the last request that the agent has carried out.
    pub obeyed: AtomicU64,
    /// The kind of request: one of the numbers in [`request`].
    pub what: AtomicU64,
    /// Further arguments of the request.
    pub more: [AtomicU64; 4],
}

/// Progress of a collection that was requested from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Collecting {
    /// The virtual machine has no callback for requests.
    Impossible = 1,
    /// The virtual machine will collect at its next safe point.
    Asked = 2,
    /// The collection is complete.
    Done = 3,
    /// The virtual machine declined.
    Declined = 4,
}

impl Collecting {
    /// Decodes a word of [`request::COLLECTING`]. `None`: it belongs to another request.
    pub fn from_word(word: u64, generation: u64) -> Option<Self> {
        if word >> 8 != generation {
            return None;
        }
        [Self::Impossible, Self::Asked, Self::Done, Self::Declined]
            .into_iter()
            .find(|&state| state as u64 == word & 0xff)
    }

    pub(crate) fn word(self, generation: u64) -> u64 {
        generation << 8 | self as u64
    }
}

/// Offsets of the request in a ring's file, and the kinds of requests: see [`crate::Ring::request`].
pub mod request {
    /// The generation, a little-endian u64. Written last.
    pub const GENERATION: u64 = 320;
    /// The argument: an interval in bytes, or what the kind of request says.
    pub const INTERVAL: u64 = 328;
    /// Generation of the last request that was carried out.
    pub const OBEYED: u64 = 336;
    /// The kind of request: one of the numbers below.
    pub const WHAT: u64 = 344;
    /// Four more arguments.
    pub const MORE: u64 = 352;
    /// Set the interval; 0 stops sampling.
    pub const SET_INTERVAL: u64 = 0;
    /// Write everything in the ring to the file.
    pub const FLUSH: u64 = 1;
    /// [`FLUSH`], then copy the file. Only a signal asks for this; `allocsample ctl` makes its own copy.
    pub const SNAPSHOT: u64 = 2;
    /// Continue the profile in another file.
    pub const ROTATE: u64 = 3;
    /// [`ROTATE`], and delete the file so far.
    pub const RESET: u64 = 4;
    /// Sample one thread, or stop sampling it. Argument: its kernel tid times 2, plus 1 to sample it.
    pub const SELECT_THREAD: u64 = 5;
    /// Sample only some sizes, and threads with some names. Argument: the smallest size. Further arguments: the largest size,
    /// and a prefix of thread names in 16 bytes. A byte of value 1 ends a name that must match as a whole. All NUL: every
    /// thread.
    pub const FILTER: u64 = 6;
    /// Resume sampling at the last interval.
    pub const START: u64 = 7;
    /// Collect all heaps of virtual machines: see [`COLLECTING`].
    pub const COLLECT: u64 = 8;
    /// Progress of [`COLLECT`], a u64 for each heap: see [`crate::Collecting`].
    pub const COLLECTING: u64 = 512;
}

/// Offsets that `recover` reads; the compiler checks them against [`Header`].
#[cfg_attr(not(feature = "alloc"), allow(dead_code))]
pub(crate) mod offset {
    pub const VERSION: usize = 8;
    pub const PROFILE_ID: usize = 16;
    pub const CAPACITY_WORDS: usize = 32;
    pub const DATA_OFFSET: usize = 40;
    pub const CLOSED: usize = 48;
    pub const HEAD: usize = 64;
    pub const RELEASED: usize = 128;
    pub const CONSUMED: usize = 136;
    pub const LOST: usize = 192;
    pub const FIGURES: usize = 384;
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Header, version) == offset::VERSION);
    assert!(offset_of!(Header, profile_id) == offset::PROFILE_ID);
    assert!(offset_of!(Header, capacity_words) == offset::CAPACITY_WORDS);
    assert!(offset_of!(Header, data_offset) == offset::DATA_OFFSET);
    assert!(offset_of!(Header, closed) == offset::CLOSED);
    assert!(offset_of!(Header, head) == offset::HEAD);
    assert!(offset_of!(Header, tail) == offset::RELEASED);
    assert!(offset_of!(Tail, consumed) == offset::CONSUMED - offset::RELEASED);
    assert!(offset_of!(Header, lost) == offset::LOST);
    assert!(offset_of!(Header, figures) == offset::FIGURES);
    assert!(offset_of!(Header, collecting) == request::COLLECTING as usize);
    assert!(offset_of!(Header, reserved_up_to) == 2560);
    assert!(offset_of!(Header, request) == request::GENERATION as usize);
    assert!(offset_of!(Request, interval) == (request::INTERVAL - request::GENERATION) as usize);
    assert!(offset_of!(Request, obeyed) == (request::OBEYED - request::GENERATION) as usize);
    assert!(offset_of!(Request, what) == (request::WHAT - request::GENERATION) as usize);
    assert!(offset_of!(Request, more) == (request::MORE - request::GENERATION) as usize);
    assert!(size_of::<LostCounter>() == 16);
    assert!(size_of::<Header>() <= DATA_OFFSET);
};

/// The first word of a record.
///
/// ```text
/// bits 0..8 state | 8..16 kind | 16..40 words, header included | 40..64 check
/// ```
///
/// `check` is a hash of the position and of the other 40 bits: a payload word, a word of an earlier lap or one that the
/// program scribbled on is taken for a header with probability 2^-24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub state: State,
    pub kind: u8,
    /// Length in words with the header: at least 1.
    pub words: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// The writer has not committed it, and may have died.
    Reserved = 0x52,
    Committed = 0x43,
}

/// Kind of a record that nobody needs to read.
pub(crate) const PADDING: u8 = 0;

/// Longest record in words, header included, that a header can describe.
pub(crate) const MAX_RECORD_WORDS: u64 = (1 << 24) - 1;

impl RecordHeader {
    /// The word to store at `position`; never zero.
    pub fn encode(self, position: u64) -> u64 {
        let body = u64::from(self.state as u8)
            | u64::from(self.kind) << 8
            | (self.words & MAX_RECORD_WORDS) << 16;
        body | check(position, body)
    }

    /// Reads the word found at `position`; `None` if it is not a header written there.
    pub fn decode(word: u64, position: u64) -> Option<Self> {
        let body = word & ((1 << 40) - 1);
        if word != body | check(position, body) {
            return None;
        }
        let [state, kind, ..] = word.to_le_bytes();
        let state = match state {
            0x52 => State::Reserved,
            0x43 => State::Committed,
            _ => return None,
        };
        let words = body >> 16;
        (words > 0).then_some(Self { state, kind, words })
    }
}

/// Fibonacci hashing: the 24 upper bits of a product with the golden ratio depend on all bits below them.
fn check(position: u64, body: u64) -> u64 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let mixed = position.wrapping_add(1).wrapping_mul(GOLDEN) ^ body;
    mixed.wrapping_mul(GOLDEN) >> 40 << 40
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_header_is_read_back_and_no_bit_of_it_can_flip(
            position in 0..1_u64 << 60, kind: u8, words in 1..=MAX_RECORD_WORDS, committed: bool,
        ) {
            let state = if committed { State::Committed } else { State::Reserved };
            let header = RecordHeader { state, kind, words };
            let word = header.encode(position);
            prop_assert_eq!(RecordHeader::decode(word, position), Some(header));
            prop_assert!(word != 0);
            for bit in 0..64 {
                // A single wrong bit always shows: a bit of the check directly, one of the body through the product.
                prop_assert_ne!(RecordHeader::decode(word ^ 1 << bit, position), Some(header));
            }
        }
    }

    #[test]
    fn a_record_without_even_its_header_is_none() {
        let header = RecordHeader {
            state: State::Committed,
            kind: 2,
            words: 0,
        };
        assert_eq!(RecordHeader::decode(header.encode(64), 64), None);
    }

    #[test]
    fn the_progress_of_a_collection_is_read_back_for_its_request_only() {
        use Collecting::{Asked, Declined, Done, Impossible};
        for state in [Impossible, Asked, Done, Declined] {
            for generation in [1, 2, 255, 256, 0xab_cdef] {
                let word = state.word(generation);
                assert_eq!(Collecting::from_word(word, generation), Some(state));
                assert_eq!(Collecting::from_word(word, generation + 1), None);
            }
        }
        assert_eq!(Collecting::from_word(7 << 8 | 5, 7), None);
        assert_eq!(Collecting::from_word(0, 0), None);
    }

    #[test]
    fn a_header_counts_only_where_it_was_written() {
        let header = RecordHeader {
            state: State::Committed,
            kind: 2,
            words: 30,
        };
        let mut taken = 0;
        for position in 0..1_u64 << 20 {
            // An earlier lap of rings of 2^6 to 2^20 words, and the next words of the same one.
            let word = header.encode(position);
            taken += (6..=20)
                .map(|bits| position + (1 << bits))
                .chain(position + 1..position + 4)
                .filter(|&other| RecordHeader::decode(word, other).is_some())
                .count();
        }
        // Expected 18.9 million / 2^24 = 1.1.
        assert!(taken <= 8, "{taken}");
    }

    #[test]
    fn foreign_words_are_seldom_headers() {
        let mut word = 1_u64;
        let mut taken = 0;
        for position in 0..1_000_000 {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let forged = word & !0xff | 0x43;
            taken += u32::from(RecordHeader::decode(forged, position).is_some());
        }
        // Expected 0.06.
        assert!(taken <= 2, "{taken}");
    }

    #[test]
    fn zero_is_no_header() {
        for position in 0..100_000 {
            assert_eq!(RecordHeader::decode(0, position), None);
        }
    }
}
