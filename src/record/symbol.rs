//! Symbols that were resolved once and travel with the profile.
//!
//! ```text
//! table = strings, then locations
//! strings   count, then each: length, bytes
//! locations count, then each: module, zigzag(offset - last offset), frames, then each frame: function, file, line
//! ```
//! `function` and `file` are string numbers plus one, 0 for unknown. Frames are innermost (inlined) first.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use crate::{
    Location, MAX_VARINT_BYTES, ModuleId, put_signed, put_unsigned, take_signed, take_unsigned,
};

/// One source-level frame of a location; an inlined call makes several.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct SymbolFrame {
    /// Demangled name.
    pub function: Option<String>,
    /// Source file as the compiler recorded it.
    pub file: Option<String>,
    /// Line, from 1; 0 for unknown.
    pub line: u32,
}

/// What each location is called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolTable {
    /// Frames of each location, innermost first.
    pub frames: BTreeMap<Location, Vec<SymbolFrame>>,
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
            .flat_map(|frame| [&frame.function, &frame.file])
            .flatten()
        {
            numbers.entry(text.as_str()).or_insert_with(|| {
                strings.push(text.as_str());
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
                for text in [&frame.function, &frame.file] {
                    unsigned(
                        &mut out,
                        text.as_ref()
                            .and_then(|text| numbers.get(text.as_str()))
                            .copied()
                            .unwrap_or(0),
                    );
                }
                unsigned(&mut out, u64::from(frame.line));
            }
        }
        out
    }

    /// Reads a table back; `None` if malformed.
    pub fn decode(mut input: &[u8]) -> Option<Self> {
        let input = &mut input;
        let strings = (0..count(input)?)
            .map(|_| text(input))
            .collect::<Option<Vec<String>>>()?;
        let string = |number: u64| match number.checked_sub(1) {
            None => Some(None),
            Some(index) => strings.get(usize::try_from(index).ok()?).cloned().map(Some),
        };
        let mut frames = BTreeMap::new();
        let mut offset = 0u64;
        for _ in 0..count(input)? {
            let module = ModuleId(u32::try_from(take_unsigned(input)?).ok()?);
            offset = offset.wrapping_add(take_signed(input)?.cast_unsigned());
            let of_location = (0..count(input)?)
                .map(|_| {
                    Some(SymbolFrame {
                        function: string(take_unsigned(input)?)?,
                        file: string(take_unsigned(input)?)?,
                        line: u32::try_from(take_unsigned(input)?).ok()?,
                    })
                })
                .collect::<Option<Vec<_>>>()?;
            frames.insert(Location { module, offset }, of_location);
        }
        Some(Self { frames })
    }
}

/// A count of things that take a byte each at least, so never more than the bytes that are left.
fn count(input: &mut &[u8]) -> Option<usize> {
    usize::try_from(take_unsigned(input)?)
        .ok()
        .filter(|&count| count <= input.len())
}

fn text(input: &mut &[u8]) -> Option<String> {
    let length = count(input)?;
    let (text, rest) = input.split_at_checked(length)?;
    *input = rest;
    String::from_utf8(text.into()).ok()
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
                function: Some(function),
                file,
                line,
            })
    }

    proptest! {
        #[test]
        fn round_trips(entries in proptest::collection::btree_map((any::<u32>(), any::<u64>()), proptest::collection::vec(frame(), 0..4), 0..20)) {
            let frames = entries.into_iter().map(|((module, offset), frames)| (Location { module: ModuleId(module), offset }, frames)).collect();
            let table = SymbolTable { frames };
            prop_assert_eq!(SymbolTable::decode(&table.encode()), Some(table));
        }

        #[test]
        fn any_bytes_end_without_panic(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = SymbolTable::decode(&raw);
        }
    }
}
