//! What the file of a module says about itself: which runtime or allocator is linked into it.

use alloc::string::String;
use alloc::vec::Vec;

use crate::varint::{push_unsigned, take_unsigned};

/// One module whose file is known to hold a runtime or an allocator.
///
/// A [`crate::ChunkKind::Inspected`] chunk is the number of them as a varint, then the four texts of each, every one
/// behind its length as a varint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspected {
    /// The path that the process had it under.
    pub path: String,
    /// The runtime's name; empty: none.
    pub runtime: String,
    /// The runtime's version; empty: not found.
    pub version: String,
    /// The name of an allocator that is linked into it and is not the process's `malloc`; empty: none.
    pub allocator: String,
}

impl Inspected {
    /// The payload of a chunk, before it is compressed.
    pub fn encode_all(all: &[Self]) -> Vec<u8> {
        let mut out = Vec::new();
        push_unsigned(&mut out, all.len() as u64);
        for it in all {
            for text in [&it.path, &it.runtime, &it.version, &it.allocator] {
                push_unsigned(&mut out, text.len() as u64);
                out.extend_from_slice(text.as_bytes());
            }
        }
        out
    }

    /// Reads a payload back. `None`: malformed.
    pub fn decode_all(mut input: &[u8]) -> Option<Vec<Self>> {
        let input = &mut input;
        let mut all = Vec::new();
        // A number may claim anything: memory is taken for what is there.
        for _ in 0..take_unsigned(input)? {
            let mut text = || {
                let length = usize::try_from(take_unsigned(input)?).ok()?;
                let (text, rest) = input.split_at_checked(length)?;
                *input = rest;
                Some(crate::readable(text).into_owned())
            };
            all.push(Self {
                path: text()?,
                runtime: text()?,
                version: text()?,
                allocator: text()?,
            });
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_found_round_trips(
            texts in proptest::collection::vec(proptest::array::uniform4("[ -~]{0,9}"), 0..5),
        ) {
            let all: Vec<_> = texts.into_iter().map(|[path, runtime, version, allocator]| {
                Inspected { path, runtime, version, allocator }
            }).collect();
            prop_assert_eq!(Inspected::decode_all(&Inspected::encode_all(&all)), Some(all));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Inspected::decode_all(&bytes);
        }
    }
}
