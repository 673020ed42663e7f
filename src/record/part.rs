//! Where one file of a recording ends and the next one begins.

use crate::words::{WordReader, WordWriter, high, low, pack};

/// Which end of a file a [`PartRecord`] stands at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PartEdge {
    /// First in a file that goes on where another ended.
    Begin = 0,
    /// Last in a file that another goes on from.
    End = 1,
}

/// The border between two files of one recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRecord {
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// CLOCK_REALTIME at the same moment.
    pub wall_ns: u64,
    /// Number of the file that the record is in, from 1.
    pub number: u32,
    /// Which end of the file.
    pub edge: PartEdge,
}

impl PartRecord {
    /// Length of the payload in words.
    pub const WORDS: usize = 3;

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(self.time_ns)?
            .word(self.wall_ns)?
            .word(pack(self.number, self.edge as u32))?;
        Some(writer.used())
    }

    /// Decodes a payload.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let mut reader = WordReader::new(words, &[]);
        let (time_ns, wall_ns) = (reader.word()?, reader.word()?);
        let number = reader.word()?;
        Some(Self {
            time_ns,
            wall_ns,
            number: low(number),
            edge: match high(number) {
                0 => PartEdge::Begin,
                1 => PartEdge::End,
                _ => return None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        for edge in [PartEdge::Begin, PartEdge::End] {
            let record = PartRecord {
                time_ns: 7,
                wall_ns: u64::MAX,
                number: 9,
                edge,
            };
            let mut words = [0; PartRecord::WORDS];
            assert_eq!(record.encode_into(&mut words), Some(PartRecord::WORDS));
            assert_eq!(PartRecord::decode(&words), Some(record));
        }
        assert_eq!(PartRecord::decode(&[1, 2, 5 << 32]), None);
        assert_eq!(PartRecord::decode(&[1, 2]), None);
    }
}
