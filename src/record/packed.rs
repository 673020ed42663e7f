//! Ring records in few bytes: what a process without a drain thread leaves at its end.
//!
//! ```text
//! record  = kind (1..=254), number of words, then its words: each of the first eight as its difference to the same word
//!           of the last record of this kind, each further one as its difference to the word before it
//! gap     = 0 for words that nobody needs, 255 for a record that was not finished; number of words, the header's included
//! ```
//! Numbers are varints, differences wrap and are zigzag-coded. Times, sample ids and totals rise by little, sizes and
//! threads repeat, and frames of one module are near to each other: two bytes a word are the rule. The same stacks are
//! the same bytes again, which a compressor finds.

#[cfg(feature = "alloc")]
use alloc::vec::Vec;

use crate::{MAX_VARINT_BYTES, put_signed, put_unsigned};
#[cfg(feature = "alloc")]
use crate::{take_signed, take_unsigned};

/// Words whose last value is remembered for each kind of record.
const REMEMBERED: usize = 8;
/// Kinds whose words are remembered: samples and frees, which are most of a ring. Others are coded as if each record were
/// the first.
const KINDS: usize = 4;

const PADDING: u8 = 0;
const UNFINISHED: u8 = 255;

/// The words that the next record of each kind is told by.
#[derive(Debug)]
struct Last([[u64; REMEMBERED]; KINDS]);

impl Last {
    const fn new() -> Self {
        Self([[0; REMEMBERED]; KINDS])
    }

    /// Hands each word's index and expected value to `word`, which returns the value.
    fn go_through(
        &mut self,
        kind: u8,
        count: usize,
        mut word: impl FnMut(usize, u64) -> Option<u64>,
    ) -> Option<()> {
        let mut unknown = [0; REMEMBERED];
        let row = self.0.get_mut(usize::from(kind)).unwrap_or(&mut unknown);
        let mut before = 0;
        for index in 0..count {
            let expected = row.get(index).copied().unwrap_or(before);
            before = word(index, expected)?;
            if let Some(place) = row.get_mut(index) {
                *place = before;
            }
        }
        Some(())
    }
}

/// Packs records into a buffer. Allocates nothing.
#[derive(Debug)]
pub struct Packer<'a> {
    out: &'a mut [u8],
    used: usize,
    last: Last,
}

impl<'a> Packer<'a> {
    /// Bytes that records and gaps of so many ring words, headers included, never exceed.
    pub const fn most_bytes(words: usize) -> usize {
        words.saturating_mul(MAX_VARINT_BYTES)
    }

    /// Nothing yet.
    pub const fn new(out: &'a mut [u8]) -> Self {
        Self {
            out,
            used: 0,
            last: Last::new(),
        }
    }

    /// The next record; `None` if it does not fit, or its kind has no number of its own. The buffer is of no use then.
    pub fn record(&mut self, kind: u8, words: &[u64]) -> Option<()> {
        if kind == PADDING || kind == UNFINISHED {
            return None;
        }
        self.head(kind, words.len() as u64)?;
        let Self { out, used, last } = self;
        last.go_through(kind, words.len(), |index, expected| {
            let word = *words.get(index)?;
            let difference = word.wrapping_sub(expected).cast_signed();
            *used += put_signed(out.get_mut(*used..)?, difference)?;
            Some(word)
        })
    }

    /// Words that hold no record: of one that was not finished, or of none.
    pub fn gap(&mut self, words: u64, is_unfinished: bool) -> Option<()> {
        self.head(if is_unfinished { UNFINISHED } else { PADDING }, words)
    }

    /// Bytes so far.
    pub fn used(&self) -> usize {
        self.used
    }

    fn head(&mut self, kind: u8, count: u64) -> Option<()> {
        *self.out.get_mut(self.used)? = kind;
        self.used += 1;
        self.used += put_unsigned(self.out.get_mut(self.used..)?, count)?;
        Some(())
    }
}

#[cfg(feature = "alloc")]
/// What a [`Packer`] packed.
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
    input: &'a [u8],
    last: Last,
    is_malformed: bool,
}

#[cfg(feature = "alloc")]
impl<'a> Unpacker<'a> {
    /// Over what a [`Packer`] wrote.
    pub const fn new(packed: &'a [u8]) -> Self {
        Self {
            input: packed,
            last: Last::new(),
            is_malformed: false,
        }
    }

    /// Whether the iterator stopped at something that is no record.
    pub fn is_malformed(&self) -> bool {
        self.is_malformed
    }

    fn item(&mut self) -> Option<Packed> {
        let (&kind, rest) = self.input.split_first()?;
        self.input = rest;
        let count = take_unsigned(&mut self.input)?;
        if kind == PADDING || kind == UNFINISHED {
            return Some(Packed::Gap {
                words: count,
                is_unfinished: kind == UNFINISHED,
            });
        }
        // Each word takes a byte at least: a count beyond the input is a lie, and must not size an allocation.
        let count = usize::try_from(count).ok()?;
        if count > self.input.len() {
            return None;
        }
        let mut words = Vec::with_capacity(count);
        let Self { input, last, .. } = self;
        last.go_through(kind, count, |_, expected| {
            let word = expected.wrapping_add(take_signed(input)?.cast_unsigned());
            words.push(word);
            Some(word)
        })?;
        Some(Packed::Record { kind, words })
    }
}

#[cfg(feature = "alloc")]
impl Iterator for Unpacker<'_> {
    type Item = Packed;

    fn next(&mut self) -> Option<Packed> {
        if self.input.is_empty() || self.is_malformed {
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
            (1_u8..255, words).prop_map(|(kind, words)| Packed::Record { kind, words }),
            (1_u64..1 << 24, any::<bool>()).prop_map(|(words, is_unfinished)| Packed::Gap {
                words,
                is_unfinished
            }),
        ]
    }

    proptest! {
        #[test]
        fn records_round_trip_within_the_bound(items in proptest::collection::vec(item(), 0..40)) {
            let mut out = vec![0; 1 << 16];
            let mut packer = Packer::new(&mut out);
            let mut ring_words = 0;
            for item in &items {
                match item {
                    Packed::Record { kind, words } => {
                        ring_words += words.len() + 1;
                        packer.record(*kind, words).unwrap();
                    }
                    Packed::Gap { words, is_unfinished } => {
                        ring_words += 1;
                        packer.gap(*words, *is_unfinished).unwrap();
                    }
                }
            }
            let used = packer.used();
            prop_assert!(used <= Packer::most_bytes(ring_words));
            let mut unpacker = Unpacker::new(&out[..used]);
            prop_assert_eq!(unpacker.by_ref().collect::<Vec<_>>(), items);
            prop_assert!(!unpacker.is_malformed());
        }

        #[test]
        fn any_bytes_end_without_panic(raw in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Unpacker::new(&raw).count();
        }
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let mut out = [0; 4];
        assert_eq!(Packer::new(&mut out).record(2, &[1, 2, 3]), None);
        assert_eq!(Packer::new(&mut out).record(2, &[1, 2]), Some(()));
        assert_eq!(Packer::new(&mut out).record(0, &[]), None);
        assert_eq!(Packer::new(&mut out).record(255, &[]), None);
    }
}
