//! Ring records in few bytes: what a process without a drain thread leaves at its end.
//!
//! Two rows of bytes. What most records are made of, times, totals and ids, hardly compresses, and what they share with the
//! record before is not told at all: these are the *records*. The words behind a record's eighth are *frames*, nearly all of
//! them, and the same stacks are the same bytes again: a compressor finds them, and has little else to look at.
//!
//! ```text
//! payload = bytes of the records (4, little-endian), records, frames as one LZ4 block
//! record  = kind (1..=126), number of words, a byte with a bit for each of its first eight words that is not the same word of
//!           the record before it (of its kind, see [`ROWS`]), and the differences of those
//!         | kind + 128, if number and bits are those of the record before it, and the differences
//! frame   = the difference to the word before it
//! gap     = 0 for words that nobody needs, 127 for a record that was not finished; number of words, the header's included
//! ```
//! Numbers are varints, differences wrap and are zigzag-coded.

#[cfg(feature = "alloc")]
use alloc::vec::Vec;

use crate::varint::zigzag;
use crate::{MAX_VARINT_BYTES, put_unsigned};
#[cfg(feature = "alloc")]
use crate::{events::MOST_RECORD_WORDS, take_signed, take_unsigned};

/// Words of a record that are told by those of another: a bit each in a byte.
const REMEMBERED: usize = 8;
/// Kinds whose numbers are the same modulo this are told by each other's words. Samples, frees, their stacks, fates and ticks,
/// which are most of a ring, are not.
const ROWS: usize = 16;

const PADDING: u8 = 0;
const UNFINISHED: u8 = 127;
const SAME_SHAPE: u8 = 128;

/// More than the longest head and eight differences.
const MOST_RECORD_BYTES: usize = 128;
const _: () = assert!(2 + (1 + REMEMBERED) * MAX_VARINT_BYTES <= MOST_RECORD_BYTES);

/// The values that the next record of a kind is encoded relative to.
#[derive(Clone, Copy, Debug)]
struct Row {
    words: [u64; REMEMBERED],
    count: u64,
    mask: u8,
}

#[derive(Debug)]
struct Rows([Row; ROWS]);

impl Rows {
    const fn new() -> Self {
        let row = Row {
            words: [0; REMEMBERED],
            count: u64::MAX,
            mask: 0,
        };
        Self([row; ROWS])
    }

    fn of(&mut self, kind: u8) -> &mut Row {
        &mut self.0[usize::from(kind) % ROWS]
    }
}

/// Packs records into two buffers. Allocates nothing.
#[derive(Debug)]
pub struct Packer<'a> {
    records: &'a mut [u8],
    records_used: usize,
    frames: &'a mut [u8],
    frames_used: usize,
    rows: Rows,
}

impl<'a> Packer<'a> {
    /// So long must each buffer be for records and gaps of so many ring words, headers included.
    pub const fn most_bytes(words: usize) -> usize {
        words
            .saturating_mul(MAX_VARINT_BYTES)
            .saturating_add(MOST_RECORD_BYTES)
    }

    /// Nothing yet.
    pub const fn new(records: &'a mut [u8], frames: &'a mut [u8]) -> Self {
        Self {
            records,
            records_used: 0,
            frames,
            frames_used: 0,
            rows: Rows::new(),
        }
    }

    /// The next record; `None` if it does not fit, or its kind has no number of its own. The buffers are of no use then.
    pub fn record(&mut self, kind: u8, words: &[u64]) -> Option<()> {
        if !(PADDING + 1..UNFINISHED).contains(&kind) {
            return None;
        }
        let place = self.records.get_mut(self.records_used..)?;
        let place = place.first_chunk_mut::<MOST_RECORD_BYTES>()?;
        let row = self.rows.of(kind);
        let count = words.len() as u64;
        let (mut mask, mut used) = (0, 1);
        for (bit, (before, &word)) in row.words.iter_mut().zip(words).enumerate() {
            if *before != word {
                mask |= 1 << bit;
                used += put_difference(&mut place[used..], *before, word)?;
                *before = word;
            }
        }
        if (row.count, row.mask) == (count, mask) {
            place[0] = kind | SAME_SHAPE;
        } else {
            (row.count, row.mask) = (count, mask);
            let mut shape = [0; MAX_VARINT_BYTES + 1];
            let count_bytes = put_unsigned(&mut shape, count)?;
            shape[count_bytes] = mask;
            place.copy_within(1..used, 1 + count_bytes + 1);
            place[0] = kind;
            place[1..][..=count_bytes].copy_from_slice(&shape[..=count_bytes]);
            used += count_bytes + 1;
        }
        self.records_used += used;
        let Some(([.., before], frames)) = words.split_first_chunk::<REMEMBERED>() else {
            return Some(());
        };
        let mut before = *before;
        for &frame in frames {
            let place = self.frames.get_mut(self.frames_used..)?;
            self.frames_used += put_difference(place, before, frame)?;
            before = frame;
        }
        Some(())
    }

    /// Words that hold no record: of one that was not finished, or of none.
    pub fn gap(&mut self, words: u64, is_unfinished: bool) -> Option<()> {
        let place = self.records.get_mut(self.records_used..)?;
        let (kind, place) = place.split_first_mut()?;
        *kind = if is_unfinished { UNFINISHED } else { PADDING };
        self.records_used += 1 + put_unsigned(place, words)?;
        Some(())
    }

    /// Bytes so far: of records and of frames.
    pub fn used(&self) -> (usize, usize) {
        (self.records_used, self.frames_used)
    }
}

/// Writes how `word` differs from the one it is told by; the bytes written.
#[inline]
fn put_difference(out: &mut [u8], before: u64, word: u64) -> Option<usize> {
    let difference = zigzag(word.wrapping_sub(before).cast_signed());
    // Most are of one byte to three.
    let Some(place) = out.first_chunk_mut::<4>() else {
        return put_unsigned(out, difference);
    };
    // A byte that another follows has its upper bit.
    let (length, bytes) = match difference {
        0..0x80 => (1, difference),
        0x80..0x4000 => (2, difference & 0x7f | 0x80 | (difference & 0x3f80) << 1),
        0x4000..0x20_0000 => (
            3,
            difference & 0x7f | 0x8080 | (difference & 0x3f80) << 1 | (difference & 0x1f_c000) << 2,
        ),
        _ => return put_unsigned(out, difference),
    };
    // The rest of the four is written over by what comes next.
    *place = (bytes as u32).to_le_bytes();
    Some(length)
}

#[cfg(feature = "alloc")]
/// Reads the output of a [`Packer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packed {
    /// A record.
    Record {
        /// Number of the [`crate::RecordKind`].
        kind: u8,
        /// Its payload.
        words: Vec<u64>,
    },
    /// So many ring words without one.
    Gap {
        /// Header included.
        words: u64,
        /// A record was begun here.
        is_unfinished: bool,
    },
}

#[cfg(feature = "alloc")]
/// Reads packed records. Ends early at the first that is malformed; [`Self::is_malformed`] tells.
#[derive(Debug)]
pub struct Unpacker<'a> {
    records: &'a [u8],
    frames: &'a [u8],
    rows: Rows,
    is_malformed: bool,
}

#[cfg(feature = "alloc")]
impl<'a> Unpacker<'a> {
    /// Over what a [`Packer`] wrote.
    pub const fn new(records: &'a [u8], frames: &'a [u8]) -> Self {
        Self {
            records,
            frames,
            rows: Rows::new(),
            is_malformed: false,
        }
    }

    /// Whether the iterator stopped at something that is no record.
    pub fn is_malformed(&self) -> bool {
        self.is_malformed
    }

    fn item(&mut self) -> Option<Packed> {
        let Self {
            records: input,
            frames,
            rows,
            ..
        } = self;
        let kind = take_byte(input)?;
        if kind == PADDING || kind == UNFINISHED {
            return Some(Packed::Gap {
                words: take_unsigned(input)?,
                is_unfinished: kind == UNFINISHED,
            });
        }
        let row = rows.of(kind);
        if kind & SAME_SHAPE == 0 {
            row.count = take_unsigned(input)?;
            row.mask = take_byte(input)?;
        }
        let count = usize::try_from(row.count).ok()?;
        // Each frame takes a byte at least: a count beyond the input is a lie, and must not size an allocation.
        if count
            > frames
                .len()
                .min(MOST_RECORD_WORDS)
                .saturating_add(REMEMBERED)
        {
            return None;
        }
        let mut words = Vec::with_capacity(count);
        for (bit, place) in row.words.iter_mut().enumerate().take(count) {
            if row.mask >> bit & 1 != 0 {
                *place = place.wrapping_add(take_signed(input)?.cast_unsigned());
            }
            words.push(*place);
        }
        for _ in REMEMBERED..count {
            let before = words.last().copied()?;
            words.push(before.wrapping_add(take_signed(frames)?.cast_unsigned()));
        }
        let kind = kind & !SAME_SHAPE;
        Some(Packed::Record { kind, words })
    }
}

#[cfg(feature = "alloc")]
fn take_byte(input: &mut &[u8]) -> Option<u8> {
    let (&byte, rest) = input.split_first()?;
    *input = rest;
    Some(byte)
}

#[cfg(feature = "alloc")]
impl Iterator for Unpacker<'_> {
    type Item = Packed;

    fn next(&mut self) -> Option<Packed> {
        if self.records.is_empty() || self.is_malformed {
            return None;
        }
        let item = self.item();
        self.is_malformed = item.is_none();
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    fn item() -> impl Strategy<Value = Packed> {
        let words = proptest::collection::vec(any::<u64>(), 0..20);
        prop_oneof![
            (1_u8..127, words).prop_map(|(kind, words)| Packed::Record { kind, words }),
            (1_u64..1 << 24, any::<bool>()).prop_map(|(words, is_unfinished)| Packed::Gap {
                words,
                is_unfinished
            }),
        ]
    }

    proptest! {
        #[test]
        fn records_round_trip_within_the_bound(items in proptest::collection::vec(item(), 0..40)) {
            let ring_words = items.iter().map(|item| match item {
                Packed::Record { words, .. } => words.len() + 1,
                Packed::Gap { .. } => 1,
            });
            let most_bytes = Packer::most_bytes(ring_words.sum());
            let (mut records, mut frames) = (vec![0; most_bytes], vec![0; most_bytes]);
            let mut packer = Packer::new(&mut records, &mut frames);
            for item in &items {
                match item {
                    Packed::Record { kind, words } => {
                        packer.record(*kind, words).unwrap();
                    }
                    Packed::Gap { words, is_unfinished } => {
                        packer.gap(*words, *is_unfinished).unwrap();
                    }
                }
            }
            let (records_used, frames_used) = packer.used();
            let mut unpacker = Unpacker::new(&records[..records_used], &frames[..frames_used]);
            prop_assert_eq!(unpacker.by_ref().collect::<Vec<_>>(), items);
            prop_assert!(!unpacker.is_malformed());
        }

        #[test]
        fn any_bytes_end_without_panic(
            records in proptest::collection::vec(any::<u8>(), 0..300),
            frames in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let _ = Unpacker::new(&records, &frames).count();
        }
    }

    #[test]
    fn a_record_like_the_one_before_is_what_has_changed() {
        let (mut records, mut frames) = ([0; 1024], [0; 1024]);
        let mut packer = Packer::new(&mut records, &mut frames);
        packer.record(2, &[1000, 5, 5, 5, 5, 5, 5]).unwrap();
        let (first, _) = packer.used();
        packer.record(2, &[1500, 5, 5, 5, 5, 5, 5]).unwrap();
        let (second, _) = packer.used();
        packer.record(2, &[2000, 5, 5, 5, 5, 5, 5]).unwrap();
        let (third, none) = packer.used();
        // Its kind, that it has seven words, which of them are other ones, and two bytes; then kind and two bytes alone.
        assert_eq!((second - first, third - second, none), (5, 3, 0));
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let mut frames = [0; Packer::most_bytes(1)];
        let mut short = [0; MOST_RECORD_BYTES - 1];
        let mut packer = Packer::new(&mut short, &mut frames);
        assert_eq!(packer.record(2, &[1, 2]), None);
        let mut records = [0; Packer::most_bytes(1)];
        let mut short = [0; 2];
        let mut packer = Packer::new(&mut records, &mut short);
        assert_eq!(packer.record(2, &[0; 10]), Some(()));
        assert_eq!(packer.record(2, &[0; 9]), None);
        assert_eq!(packer.record(0, &[]), None);
        assert_eq!(packer.record(127, &[]), None);
    }
}
