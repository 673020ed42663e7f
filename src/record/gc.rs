//! Records of a garbage collector: fates of samples, collections, markers on the timeline.

use crate::words::{WordReader, WordWriter, high, low, pack, text_words};
use crate::{HeapId, SampleId};

/// The fate of a sampled object. The numbers are those of `allocsample.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Fate {
    /// A collection found it dead.
    Dead = 0,
    /// A collection found it alive.
    Alive = 1,
    /// Alive, and moved out of the young generation.
    Promoted = 2,
    /// Unknown for good: the virtual machine gave the sample up.
    Unknown = 3,
    /// Still open: the record only gives the type.
    Open = 4,
}

impl Fate {
    /// The fate with this number.
    #[inline]
    pub fn from_number(number: u32) -> Option<Self> {
        [
            Self::Dead,
            Self::Alive,
            Self::Promoted,
            Self::Unknown,
            Self::Open,
        ]
        .into_iter()
        .find(|&fate| fate as u32 == number)
    }
}

/// The fate of a sample, as a collection found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FateRecord {
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// The sample.
    pub sample: SampleId,
    /// The fate.
    pub fate: Fate,
    /// Its type, 0 if it is not known.
    pub type_id: u32,
    /// The number of the collection, as in [`GcRecord::id`]; 0 if none.
    pub gc: u64,
    /// Hash of its content, 0 if not given: equal hashes are redundant objects.
    pub content_hash: u64,
}

impl FateRecord {
    /// Length of the payload in words.
    pub const WORDS: usize = 5;

    /// Makes a record that only gives the type of a sample; `None` for type 0, which is no type.
    pub fn of_type(sample: SampleId, type_id: u32, time_ns: u64) -> Option<Self> {
        (type_id != 0).then_some(Self {
            time_ns,
            sample,
            fate: Fate::Open,
            type_id,
            gc: 0,
            content_hash: 0,
        })
    }

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(self.time_ns)?
            .word(self.sample.0)?
            .word(pack(self.fate as u32, self.type_id))?
            .word(self.gc)?
            .word(self.content_hash)?;
        Some(writer.used())
    }

    /// Decodes a payload.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let mut reader = WordReader::new(words, &[]);
        let (time_ns, sample, fate) = (reader.word()?, reader.word()?, reader.word()?);
        Some(Self {
            time_ns,
            sample: SampleId(sample),
            fate: Fate::from_number(low(fate))?,
            type_id: high(fate),
            gc: reader.word()?,
            content_hash: reader.word()?,
        })
    }
}

/// Which part of a heap a collection looks at. The numbers are those of `allocsample.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum GcKind {
    /// The young generation.
    Minor = 1,
    /// Everything.
    Major = 2,
    /// A slice of a collection of everything.
    MajorStep = 3,
}

impl GcKind {
    /// Decodes the number of a kind.
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::Minor, Self::Major, Self::MajorStep]
            .into_iter()
            .find(|&kind| kind as u32 == number)
    }

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Minor => "minor",
            Self::Major => "major",
            Self::MajorStep => "major step",
        }
    }
}

/// A garbage collection, with the statistics of the virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcRecord<'a> {
    /// The heap.
    pub heap: HeapId,
    /// The kind of the collection.
    pub kind: GcKind,
    /// Its number, chosen by the virtual machine.
    pub id: u64,
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub begin_ns: u64,
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub end_ns: u64,
    /// Pairs of a statistic's number and its value.
    pub statistics: &'a [u64],
}

/// More statistics than this of one collection are cut.
pub const MAX_GC_STATISTICS: usize = 32;

impl<'a> GcRecord<'a> {
    /// In place of a statistic's number: the collection has looked at what was allocated before the value, a time of
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub const LOOKED_UNTIL: u32 = u32::MAX;

    /// Length of the payload in words.
    pub fn words(&self) -> usize {
        4 + self.statistics.len()
    }

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(pack(u32::from(self.heap.0), self.kind as u32))?
            .word(self.id)?
            .word(self.begin_ns)?
            .word(self.end_ns)?
            .words(self.statistics)?;
        Some(writer.used())
    }

    /// Decodes a payload.
    pub fn decode(words: &'a [u64]) -> Option<Self> {
        let mut reader = WordReader::new(words, &[]);
        let owner = reader.word()?;
        let (id, begin_ns, end_ns) = (reader.word()?, reader.word()?, reader.word()?);
        let statistics = reader.words(words.len().checked_sub(4)?)?;
        Some(Self {
            heap: HeapId(low(owner) as u16),
            kind: GcKind::from_number(high(owner))?,
            id,
            begin_ns,
            end_ns,
            statistics: statistics.len().is_multiple_of(2).then_some(statistics)?,
        })
    }
}

/// A span on the time line with a name: a phase of the virtual machine, or whatever it marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkerRecord<'a> {
    /// The heap.
    pub heap: HeapId,
    /// Whether it is a phase: the state from its begin on, until the next one.
    pub is_phase: bool,
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub begin_ns: u64,
    /// CLOCK_MONOTONIC; equal to the begin for a moment.
    pub end_ns: u64,
    /// Its name.
    pub name: &'a [u8],
}

impl<'a> MarkerRecord<'a> {
    /// Length of the payload in words.
    pub fn words(&self) -> usize {
        3 + text_words(self.name.len())
    }

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(pack(
                u32::from(self.heap.0) | u32::from(self.is_phase) << 16,
                u32::try_from(self.name.len()).ok()?,
            ))?
            .word(self.begin_ns)?
            .word(self.end_ns)?
            .text(self.name)?;
        Some(writer.used())
    }

    /// Decodes a payload; `text` is the same words as bytes.
    pub fn decode(words: &'a [u64], text: &'a [u8]) -> Option<Self> {
        let mut reader = WordReader::new(words, text);
        let owner = reader.word()?;
        Some(Self {
            heap: HeapId(low(owner) as u16),
            is_phase: low(owner) >> 16 != 0,
            begin_ns: reader.word()?,
            end_ns: reader.word()?,
            name: reader.text(high(owner) as usize)?,
        })
    }
}

/// A reading of a quantity that the virtual machine defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueRecord {
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// The heap.
    pub heap: HeapId,
    /// The statistic; [`ValueRecord::EXACT_BYTES`] for the exact bytes of the heap.
    pub statistic: u32,
    /// Its value, in its unit.
    pub value: u64,
}

impl ValueRecord {
    /// Length of the payload in words.
    pub const WORDS: usize = 3;
    /// Bytes that were allocated in the heap while it was sampled: what its samples estimate.
    pub const EXACT_BYTES: u32 = u32::MAX;

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(self.time_ns)?
            .word(pack(u32::from(self.heap.0), self.statistic))?
            .word(self.value)?;
        Some(writer.used())
    }

    /// Decodes a payload.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let mut reader = WordReader::new(words, &[]);
        let (time_ns, owner) = (reader.word()?, reader.word()?);
        Some(Self {
            time_ns,
            heap: HeapId(low(owner) as u16),
            statistic: high(owner),
            value: reader.word()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fates_and_collections_round_trip() {
        let fate = FateRecord {
            time_ns: 1,
            sample: SampleId(2),
            fate: Fate::Promoted,
            type_id: 3,
            gc: 4,
            content_hash: 5,
        };
        let mut words = [0; 16];
        assert_eq!(fate.encode_into(&mut words), Some(FateRecord::WORDS));
        assert_eq!(FateRecord::decode(&words), Some(fate));
        let gc = GcRecord {
            heap: HeapId(9),
            kind: GcKind::Major,
            id: 8,
            begin_ns: 7,
            end_ns: 70,
            statistics: &[1, 100, 2, 200],
        };
        assert_eq!(gc.encode_into(&mut words), Some(gc.words()));
        assert_eq!(GcRecord::decode(&words[..gc.words()]), Some(gc));
        assert_eq!(GcRecord::decode(&words[..gc.words() - 1]), None);
        assert_eq!(GcRecord::decode(&words[..3]), None);
    }
}
