//! Ring words that were copied to memory, record by record, without a copy of any.

use crate::layout::{PADDING, RecordHeader, State};

/// What stands at a place of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stretch<'a> {
    /// A committed record.
    Record {
        /// As committed, not 0.
        kind: u8,
        /// Its payload.
        payload: &'a [u64],
    },
    /// So many words that nobody needs to read.
    Padding(u64),
    /// So many words of a record that was reserved and not committed, or of none.
    Unfinished(u64),
}

/// The words of the positions from `from` on, in order; the lengths of all add up to theirs.
pub fn stretches(from: u64, words: &[u64]) -> impl Iterator<Item = Stretch<'_>> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let rest = words.get(at..).filter(|rest| !rest.is_empty())?;
        let (stretch, length) = first(from + at as u64, rest);
        at += length;
        Some(stretch)
    })
}

fn header_at(position: u64, words: &[u64]) -> Option<RecordHeader> {
    let header = RecordHeader::decode(*words.first()?, position)?;
    (header.words <= words.len() as u64).then_some(header)
}

/// The first of `words`, which are not empty, and how many words it has.
fn first(position: u64, words: &[u64]) -> (Stretch<'_>, usize) {
    let Some(header) = header_at(position, words) else {
        // Word by word to the next header: its check depends on its position, so payload is not mistaken for one.
        let is_header = |at: &usize| {
            let rest = words.get(*at..).unwrap_or(&[]);
            header_at(position + *at as u64, rest).is_some()
        };
        let length = (1..words.len()).find(is_header).unwrap_or(words.len());
        return (Stretch::Unfinished(length as u64), length);
    };
    let length = header.words as usize;
    let stretch = match header.state {
        State::Reserved => Stretch::Unfinished(header.words),
        State::Committed if header.kind == PADDING => Stretch::Padding(header.words),
        State::Committed => Stretch::Record {
            kind: header.kind,
            payload: words.get(1..length).unwrap_or(&[]),
        },
    };
    (stretch, length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recover::recover_words;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        /// The same records at the same places as the reader of raw words finds, whatever was damaged.
        #[test]
        fn it_is_what_the_reader_finds(
            from in 0_u64..1 << 40,
            lengths in proptest::collection::vec(0_usize..6, 1..20),
            damaged in proptest::collection::vec((0_usize..100, any::<u64>()), 0..4),
        ) {
            let payloads: Vec<Vec<u64>> = lengths.iter().map(|&length| (0..length as u64).collect()).collect();
            let mut words = Vec::new();
            for (index, payload) in payloads.iter().enumerate() {
                let header = RecordHeader {
                    state: if index % 4 == 3 { State::Reserved } else { State::Committed },
                    kind: index as u8 % 3,
                    words: payload.len() as u64 + 1,
                };
                words.push(header.encode(from + words.len() as u64));
                words.extend(payload);
            }
            let end = from + words.len() as u64;
            for (at, value) in damaged {
                if let Some(word) = words.get_mut(at) {
                    *word = value;
                }
            }
            let raw: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let expected = recover_words(from, end, &raw);
            let mut position = from;
            let (mut found, mut unfinished) = (Vec::new(), 0);
            for stretch in stretches(from, &words) {
                position += match stretch {
                    Stretch::Record { kind, payload } => {
                        found.push((position, kind, payload.to_vec()));
                        payload.len() as u64 + 1
                    }
                    Stretch::Padding(words) => words,
                    Stretch::Unfinished(words) => {
                        unfinished += 1;
                        words
                    }
                };
            }
            prop_assert_eq!(position, end);
            prop_assert_eq!(unfinished, expected.unfinished);
            let expected: Vec<_> = expected.records.into_iter().map(|r| (r.position, r.kind, r.words)).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
