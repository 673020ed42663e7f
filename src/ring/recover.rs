//! Recovers the records that a process left in its ring. No byte of the file is trusted.
//!
//! Records are found by their headers. Where a header is missing or damaged, the search goes on word by word: a
//! header's check depends on its position, so payload is not mistaken for one.

use alloc::vec::Vec;
use core::fmt;

use crate::layout::{
    DATA_OFFSET, FIGURES, LOST_REASONS, MAGIC, PADDING, RecordHeader, State, VERSION,
    head_position, offset,
};

/// The contents of a ring's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Id of the profile that the ring belongs to.
    pub profile_id: u128,
    /// (events, bytes) for each reason.
    pub lost: [(u64, u64); LOST_REASONS],
    /// The agent's figures about itself, by the number of a `record::Figure`.
    pub figures: [u64; FIGURES],
    /// Whether the process ended in order.
    pub closed: bool,
    /// First position that was not reserved, according to the file.
    pub head: u64,
    /// First position that was not released, according to the file.
    pub tail: u64,
    /// `records` contains everything that was committed from this position on. `None`: the positions in the file are
    /// inconsistent.
    pub whole_from: Option<u64>,
    /// Committed records that were not released, in order.
    pub records: Vec<RecoveredRecord>,
    /// Number of records that were reserved and not committed, or are damaged.
    pub unfinished: u64,
    /// Number of used words beyond the end of the file.
    pub missing_words: u64,
}

/// A committed record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredRecord {
    /// Position of its reservation, in words.
    pub position: u64,
    /// The kind that the producer committed; never 0.
    pub kind: u8,
    /// The payload.
    pub words: Vec<u64>,
}

/// Records of a stretch of ring words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredWords {
    /// Committed records, in order.
    pub records: Vec<RecoveredRecord>,
    /// Number of records that were reserved and not committed, or are damaged.
    pub unfinished: u64,
    /// Words of the stretch that are missing from the file.
    pub missing_words: u64,
}

/// Why a file is no ring that we can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoverError {
    /// Shorter than the header of a ring: its length in bytes.
    TooShort(usize),
    /// It does not begin with the ring's magic number (all zero: the process died while it made the file).
    NotARing,
    /// Made by another version of the agent: its number.
    Version(u64),
    /// Capacity (in words) and data offset (in bytes) that no ring of this version has.
    Geometry(u64, u64),
}

impl fmt::Display for RecoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort(bytes) => write!(f, "{bytes} bytes are too few for a ring"),
            Self::NotARing => f.write_str("not an allocsample ring"),
            Self::Version(version) => write!(
                f,
                "ring of version {version}, this tool reads versions 1 to {VERSION}"
            ),
            Self::Geometry(capacity, data) => write!(
                f,
                "damaged ring header: capacity {capacity} words, data at {data}"
            ),
        }
    }
}

impl core::error::Error for RecoverError {}

/// Reads a ring's file. A file cut short yields the records of the part that is there. Damaged counters are no error:
/// the records are then looked for wherever they can be.
pub fn recover(file: &[u8]) -> Result<Recovered, RecoverError> {
    let word = |at: usize| word_at(file, at).ok_or(RecoverError::TooShort(file.len()));
    if word(0)? != MAGIC {
        return Err(RecoverError::NotARing);
    }
    let version = word(offset::VERSION)?;
    // A head of version 1 is a position alone.
    if !(1..=VERSION).contains(&version) {
        return Err(RecoverError::Version(version));
    }
    let (capacity, data_offset) = (word(offset::CAPACITY_WORDS)?, word(offset::DATA_OFFSET)?);
    if !capacity.is_power_of_two() || data_offset != DATA_OFFSET as u64 {
        return Err(RecoverError::Geometry(capacity, data_offset));
    }
    let mut lost = [(0, 0); LOST_REASONS];
    for (reason, counter) in lost.iter_mut().enumerate() {
        let at = offset::LOST + reason * 16;
        *counter = (word(at)?, word(at + 8)?);
    }
    let mut figures = [0; FIGURES];
    for (number, figure) in figures.iter_mut().enumerate() {
        *figure = word(offset::FIGURES + number * 8)?;
    }
    let (head, tail) = (head_position(word(offset::HEAD)?), word(offset::RELEASED)?);
    let data = Data {
        bytes: file.get(DATA_OFFSET..).unwrap_or(&[]),
        capacity,
    };
    let whole_from = data.whole_from(tail, word(offset::CONSUMED)?, head);
    let found = match whole_from {
        Some(from) => data.scan(from, head),
        None => data.search(tail, head),
    };
    Ok(Recovered {
        profile_id: u128::from(word(offset::PROFILE_ID)?)
            | u128::from(word(offset::PROFILE_ID + 8)?) << 64,
        lost,
        figures,
        closed: word(offset::CLOSED)? != 0,
        head,
        tail,
        whole_from,
        records: found.records,
        unfinished: found.unfinished,
        // Positions that cannot be true say nothing of how much there was.
        missing_words: whole_from.map_or(0, |_| found.missing_words),
    })
}

/// Reads ring words that were copied to a file as they were: `raw` holds the positions from `from` to `to`, or the
/// beginning of them.
pub fn recover_words(from: u64, to: u64, raw: &[u8]) -> RecoveredWords {
    let words = (raw.len() / 8) as u64;
    let to = to.min(from.saturating_add(words));
    scan(from, to, |position| {
        // Below `raw.len() / 8`, so it fits.
        word_at(raw, (position - from) as usize * 8).ok_or(to)
    })
}

/// The data of a ring's file, perhaps cut short.
struct Data<'a> {
    bytes: &'a [u8],
    capacity: u64,
}

impl Data<'_> {
    /// Returns where the untouched records begin. Those before `consumed` were read, and some of them are zeroed already.
    fn whole_from(&self, tail: u64, consumed: u64, head: u64) -> Option<u64> {
        let is_plausible = tail <= head && head - tail <= self.capacity;
        let is_releasing = (tail..=head).contains(&consumed);
        is_plausible.then_some(if is_releasing { consumed } else { tail })
    }

    /// Finds records although the positions are inconsistent, so that one of them is damaged. Tries both; a wrong position
    /// fits no header.
    fn search(&self, tail: u64, head: u64) -> RecoveredWords {
        let from_tail = self.scan(tail, tail.saturating_add(self.capacity));
        if !from_tail.records.is_empty() {
            return from_tail;
        }
        self.scan(head.saturating_sub(self.capacity), head)
    }

    fn scan(&self, from: u64, to: u64) -> RecoveredWords {
        scan(from, to, |position| {
            let index = position & (self.capacity - 1);
            usize::try_from(index)
                .ok()
                .and_then(|index| word_at(self.bytes, index.checked_mul(8)?))
                .ok_or(position.saturating_add(self.capacity - index))
        })
    }
}

/// Walks `[from, to)` from header to header. `word` returns the word at a position, or, beyond the end of the file, the next
/// position that may have one, so that a damaged capacity does not cost a walk through missing words.
fn scan(from: u64, to: u64, word: impl Fn(u64) -> Result<u64, u64>) -> RecoveredWords {
    let mut found = RecoveredWords::default();
    let mut position = from;
    let mut is_in_gap = false;
    while position < to {
        let here = word(position);
        let header = here
            .ok()
            .and_then(|word| RecordHeader::decode(word, position))
            .filter(|header| header.words <= to - position);
        let Some(header) = header else {
            found.unfinished += u64::from(!is_in_gap);
            is_in_gap = true;
            position = match here {
                Ok(_) => position + 1,
                Err(next) => {
                    found.missing_words += next.min(to) - position;
                    next
                }
            };
            continue;
        };
        is_in_gap = false;
        let end = position + header.words;
        if header.state == State::Reserved {
            found.unfinished += 1;
        } else if header.kind != PADDING {
            match (position + 1..end).map(&word).collect() {
                Ok(words) => found.records.push(RecoveredRecord {
                    position,
                    kind: header.kind,
                    words,
                }),
                // Cut off by the end of the file.
                Err(_) => {
                    found.unfinished += 1;
                    let is_missing = |&at: &u64| word(at).is_err();
                    found.missing_words += (position + 1..end).filter(is_missing).count() as u64;
                }
            }
        }
        position = end;
    }
    found
}

fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*word))
}
