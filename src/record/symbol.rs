//! Symbols that were resolved once and travel with the profile.
//!
//! ```text
//! table = strings, then locations, then code, which older tables do not have
//! strings   count, then each: length, bytes
//! locations count, then each: module, zigzag(offset - last offset), frames, then each frame: function, file, line
//! code      count, then each: start, end - start, since, until, function, file, line
//! ```
//! `function` and `file` are string numbers plus one, 0 for unknown. Frames are innermost (inlined) first.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::{
    Location, MAX_VARINT_BYTES, ModuleId, put_signed, put_unsigned, readable, take_signed,
    take_unsigned,
};

/// One source-level frame of a location; an inlined call makes several. Frames share their names: a table names a few
/// functions in many frames, and a hostile one a single long name in millions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct SymbolFrame {
    /// Demangled name.
    pub function: Option<Arc<str>>,
    /// Source file as the compiler recorded it.
    pub file: Option<Arc<str>>,
    /// Line, from 1; 0 for unknown.
    pub line: u32,
}

/// Code at an address for a time: memory that compilers fill is used again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeGeneration {
    /// Its first byte.
    pub start: u64,
    /// The byte after its last one.
    pub end: u64,
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub since_ns: u64,
    /// CLOCK_MONOTONIC; `u64::MAX` for code that stayed.
    pub until_ns: u64,
    /// Its name.
    pub frame: SymbolFrame,
}

impl CodeGeneration {
    /// Whether the code at `address` was this one at `time_ns`.
    pub fn holds(&self, address: u64, time_ns: u64) -> bool {
        (self.start..self.end).contains(&address)
            && (self.since_ns..self.until_ns).contains(&time_ns)
    }
}

/// Frames of one location. Compilers inline some dozens of calls into each other.
const MOST_INLINED: usize = 1 << 10;
/// Memory of a location besides its frames: an entry of a half-full tree node.
const LOCATION_BYTES: usize = 2 * (size_of::<Location>() + size_of::<Vec<SymbolFrame>>());

/// The symbols of all locations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolTable {
    /// Frames of each location, innermost first.
    pub frames: BTreeMap<Location, Vec<SymbolFrame>>,
    /// Code outside of modules, with the time that it existed.
    pub code: Vec<CodeGeneration>,
}

impl SymbolTable {
    /// The raw bytes of a [`crate::ChunkKind::Symbols`] chunk.
    pub fn encode(&self) -> Vec<u8> {
        let mut strings = Vec::new();
        let mut numbers = BTreeMap::new();
        for text in self
            .frames
            .values()
            .flatten()
            .chain(self.code.iter().map(|code| &code.frame))
            .flat_map(|frame| [&frame.function, &frame.file])
            .flatten()
        {
            numbers.entry(&**text).or_insert_with(|| {
                strings.push(&**text);
                strings.len() as u64
            });
        }
        let mut out = Vec::new();
        unsigned(&mut out, strings.len() as u64);
        for text in strings {
            unsigned(&mut out, text.len() as u64);
            out.extend_from_slice(text.as_bytes());
        }
        unsigned(&mut out, self.frames.len() as u64);
        let mut last_offset = 0;
        for (location, frames) in &self.frames {
            unsigned(&mut out, u64::from(location.module.0));
            signed(&mut out, location.offset.wrapping_sub(last_offset));
            last_offset = location.offset;
            unsigned(&mut out, frames.len() as u64);
            for frame in frames {
                put_frame(&mut out, frame, &numbers);
            }
        }
        unsigned(&mut out, self.code.len() as u64);
        for code in &self.code {
            unsigned(&mut out, code.start);
            unsigned(&mut out, code.end.wrapping_sub(code.start));
            unsigned(&mut out, code.since_ns);
            unsigned(&mut out, code.until_ns);
            put_frame(&mut out, &code.frame, &numbers);
        }
        out
    }

    /// Reads a table back; `None` if malformed.
    pub fn decode(input: &[u8]) -> Option<Self> {
        Self::decode_within(input, usize::MAX).map(|(table, _)| table)
    }

    /// The same, with the memory that the table takes; also `None` if that is more than `most_bytes`. Its names are
    /// [`readable`].
    pub fn decode_within(mut input: &[u8], most_bytes: usize) -> Option<(Self, usize)> {
        let input = &mut input;
        let left = &mut { most_bytes };
        let mut strings = Vec::new();
        for _ in 0..count(input)? {
            // A string in memory has two counters and is referred to, and none takes less than its bytes.
            strings.push(text(input, left)?);
            take(left, 2 * size_of::<Arc<str>>())?;
        }
        let mut frames = BTreeMap::new();
        let mut offset = 0u64;
        for _ in 0..count(input)? {
            take(left, LOCATION_BYTES)?;
            let module = ModuleId(u32::try_from(take_unsigned(input)?).ok()?);
            offset = offset.wrapping_add(take_signed(input)?.cast_unsigned());
            let of_location = count(input)?;
            if of_location > MOST_INLINED {
                return None;
            }
            take(left, of_location * size_of::<SymbolFrame>())?;
            // With room for these alone: collected, one frame would take the room of four.
            let mut exact = Vec::with_capacity(of_location);
            for _ in 0..of_location {
                exact.push(take_frame(input, &strings)?);
            }
            frames.insert(Location { module, offset }, exact);
        }
        let codes = if input.is_empty() { 0 } else { count(input)? };
        take(left, codes.checked_mul(size_of::<CodeGeneration>())?)?;
        let mut code = Vec::with_capacity(codes);
        for _ in 0..codes {
            let start = take_unsigned(input)?;
            code.push(CodeGeneration {
                start,
                end: start.wrapping_add(take_unsigned(input)?),
                since_ns: take_unsigned(input)?,
                until_ns: take_unsigned(input)?,
                frame: take_frame(input, &strings)?,
            });
        }
        Some((Self { frames, code }, most_bytes - *left))
    }
}

fn put_frame(out: &mut Vec<u8>, frame: &SymbolFrame, numbers: &BTreeMap<&str, u64>) {
    for text in [&frame.function, &frame.file] {
        let number = text.as_ref().and_then(|text| numbers.get(&**text));
        unsigned(out, number.copied().unwrap_or(0));
    }
    unsigned(out, u64::from(frame.line));
}

fn take_frame(input: &mut &[u8], strings: &[Arc<str>]) -> Option<SymbolFrame> {
    let string = |number: u64| match number.checked_sub(1) {
        None => Some(None),
        Some(index) => strings.get(usize::try_from(index).ok()?).cloned().map(Some),
    };
    Some(SymbolFrame {
        function: string(take_unsigned(input)?)?,
        file: string(take_unsigned(input)?)?,
        line: u32::try_from(take_unsigned(input)?).ok()?,
    })
}

/// Takes bytes from what is left of the memory that a table may use.
fn take(left: &mut usize, bytes: usize) -> Option<()> {
    *left = left.checked_sub(bytes)?;
    Some(())
}

/// A count of things that take a byte each at least, so never more than the bytes that are left.
fn count(input: &mut &[u8]) -> Option<usize> {
    usize::try_from(take_unsigned(input)?)
        .ok()
        .filter(|&count| count <= input.len())
}

fn text(input: &mut &[u8], left: &mut usize) -> Option<Arc<str>> {
    let length = count(input)?;
    let (text, rest) = input.split_at_checked(length)?;
    *input = rest;
    let text = readable(core::str::from_utf8(text).ok()?.as_bytes());
    take(left, text.len())?;
    Some(Arc::from(text))
}

fn unsigned(out: &mut Vec<u8>, value: u64) {
    let mut buffer = [0; MAX_VARINT_BYTES];
    if let Some(length) = put_unsigned(&mut buffer, value) {
        out.extend_from_slice(&buffer[..length]);
    }
}

fn signed(out: &mut Vec<u8>, difference: u64) {
    let mut buffer = [0; MAX_VARINT_BYTES];
    if let Some(length) = put_signed(&mut buffer, difference.cast_signed()) {
        out.extend_from_slice(&buffer[..length]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame() -> impl Strategy<Value = SymbolFrame> {
        (
            "[a-z:]{0,12}",
            proptest::option::of("[a-z./]{1,12}"),
            any::<u32>(),
        )
            .prop_map(|(function, file, line)| SymbolFrame {
                function: Some(function.into()),
                file: file.map(Arc::from),
                line,
            })
    }

    proptest! {
        #[test]
        fn round_trips(codes in proptest::collection::vec((any::<[u64; 4]>(), frame()), 0..4), entries in proptest::collection::btree_map((any::<u32>(), any::<u64>()), proptest::collection::vec(frame(), 0..4), 0..20)) {
            let frames = entries.into_iter().map(|((module, offset), frames)| (Location { module: ModuleId(module), offset }, frames)).collect();
            let code = codes.into_iter().map(|([start, end, since_ns, until_ns], frame)| CodeGeneration { start, end, since_ns, until_ns, frame }).collect();
            let table = SymbolTable { frames, code };
            prop_assert_eq!(SymbolTable::decode(&table.encode()), Some(table));
        }

        #[test]
        fn any_bytes_end_without_panic(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = SymbolTable::decode(&raw);
        }
    }
}
