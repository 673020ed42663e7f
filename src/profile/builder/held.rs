//! How much memory a profile in the making takes, and what of a file is refused because it would take more.

use allocsample_record::{Inspected, MemoryMap, RecordKind, SymbolTable};

use super::ProfileBuilder;
use crate::limits::Limits;
use crate::model::Damage;

/// Records from which the profile keeps a text, or another row of numbers.
const HAS_TEXT: [RecordKind; 7] = [
    RecordKind::Process,
    RecordKind::Module,
    RecordKind::ThreadStart,
    RecordKind::Note,
    RecordKind::Definition,
    RecordKind::Gc,
    RecordKind::Marker,
];

/// Bytes that a profile holds and cannot count by itself: those of its texts.
#[derive(Default)]
pub(super) struct Held {
    /// Names and other text of records, and readings of memory.
    text_bytes: u64,
    /// The table of symbols.
    symbols_bytes: u64,
}

impl Held {
    /// Counts the text of a record.
    pub(super) fn add_record(&mut self, kind: RecordKind, record_bytes: usize) {
        if !HAS_TEXT.contains(&kind) {
            return;
        }
        // A byte that is no UTF-8 becomes three, and an argument can be as short as its NUL.
        let times = match kind {
            RecordKind::Process => size_of::<String>(),
            _ => 3,
        };
        self.text_bytes += (times * record_bytes) as u64;
    }

    fn add_memory(&mut self, map: &MemoryMap) {
        let name = |name: &Vec<u8>| size_of::<Vec<u8>>() + name.len();
        let names: usize = map.names.iter().map(name).sum();
        let held_bytes = names + size_of_val(&*map.mappings) + size_of_val(map);
        self.text_bytes += held_bytes as u64;
    }
}

impl ProfileBuilder {
    /// Bytes of memory that the profile takes so far.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.profile.held_bytes()
            + self.held.text_bytes
            + self.held.symbols_bytes
            + self.by_id.held_bytes()
            + self.reach.held_bytes()
            + self.before.held_bytes()
            + self.space.held_bytes()
            + 24 * self.last_stacks.as_ref().map_or(0, |last| last.capacity()) as u64
            + 4 * self.numbers.capacity() as u64
    }

    /// Whether the profile takes more memory than it may.
    pub(crate) fn is_too_large(&self, limits: &Limits) -> bool {
        self.held_bytes() > limits.memory
    }

    /// Refuses more records, of which this is the number, when the profile takes more than it may. Records are small: it does
    /// not matter which of them is one too many.
    pub(crate) fn check(&self, limits: &Limits, number: usize) -> Result<(), Damage> {
        const BETWEEN: usize = 256;
        if number.is_multiple_of(BETWEEN) && self.is_too_large(limits) {
            return Err(Damage::TooLarge);
        }
        Ok(())
    }

    /// Takes a table of names; `None` if it is malformed, or takes more memory than is left.
    pub(crate) fn add_symbols(&mut self, raw: &[u8], limits: &Limits) -> Option<()> {
        let left = (limits.memory).checked_sub(self.held_bytes() + raw.len() as u64)?;
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let (mut symbols, held_bytes) = SymbolTable::decode_within(raw, left)?;
        // Files of one recording number their modules alike: the earlier one has names of places of its own.
        let before = std::mem::take(&mut self.profile.symbols);
        for (location, frames) in before.frames {
            symbols.frames.entry(location).or_insert(frames);
        }
        self.profile.symbols = symbols;
        self.held.symbols_bytes += held_bytes as u64;
        Some(())
    }

    /// Takes a reading of the process's memory.
    pub(crate) fn add_memory(&mut self, raw: &[u8], limits: &Limits) -> Result<(), Damage> {
        /// Bytes in memory for each byte of the file at most: those of a name without letters.
        const TIMES: u64 = 24;
        let most_bytes = TIMES * raw.len() as u64;
        if self.held_bytes().saturating_add(most_bytes) > limits.memory {
            return Err(Damage::TooLarge);
        }
        let map = MemoryMap::decode(raw).ok_or(Damage::Malformed)?;
        self.held.add_memory(&map);
        self.profile.memory.push(map);
        Ok(())
    }

    /// Takes what was found in the modules' files.
    pub(crate) fn add_inspected(&mut self, raw: &[u8], limits: &Limits) -> Result<(), Damage> {
        /// Bytes in memory for each byte at most: four empty texts, or one that must be made readable.
        const TIMES: u64 = 32;
        let most_bytes = TIMES * raw.len() as u64;
        if self.held_bytes().saturating_add(most_bytes) > limits.memory {
            return Err(Damage::TooLarge);
        }
        self.held.text_bytes += most_bytes;
        self.profile.inspected = Inspected::decode_all(raw).ok_or(Damage::Malformed)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_counted_at_the_most_that_they_can_take() {
        let bytes = |kind| {
            let mut held = Held::default();
            held.add_record(kind, 100);
            held.text_bytes
        };
        assert_eq!(bytes(RecordKind::Sample), 0);
        assert_eq!(bytes(RecordKind::Module), 300);
        assert_eq!(bytes(RecordKind::Process), 100 * size_of::<String>() as u64);
    }
}
