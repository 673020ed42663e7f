//! How much memory the process has by the kernel's account, and in which mappings.

use crate::varint::{put_unsigned, take_unsigned};

/// The sums of one reading. All sizes are in bytes, the time is CLOCK_MONOTONIC.
///
/// A [`crate::ChunkKind::Memory`] chunk begins with these as varints in this order. A reading of the sums alone ends
/// there; one of the mappings continues with what [`MemoryMap`] says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryTotals {
    /// When it was read.
    pub time_ns: u64,
    /// Resident memory of all kinds.
    pub resident_bytes: u64,
    /// The part of it that belongs to no file.
    pub anonymous_bytes: u64,
    /// The largest resident memory since the program began; 0 if it was not read.
    pub peak_resident_bytes: u64,
}

impl MemoryTotals {
    /// The longest encoding.
    pub const MAX_BYTES: usize = 4 * crate::MAX_VARINT_BYTES;

    /// Writes the sums to the front of `out`; returns the bytes written.
    pub fn encode_into(&self, out: &mut [u8]) -> Option<usize> {
        let mut length = 0;
        for value in [
            self.time_ns,
            self.resident_bytes,
            self.anonymous_bytes,
            self.peak_resident_bytes,
        ] {
            length += put_unsigned(out.get_mut(length..)?, value)?;
        }
        Some(length)
    }

    /// Reads the sums from the front of `input` and moves it behind them.
    pub fn decode(input: &mut &[u8]) -> Option<Self> {
        Some(Self {
            time_ns: take_unsigned(input)?,
            resident_bytes: take_unsigned(input)?,
            anonymous_bytes: take_unsigned(input)?,
            peak_resident_bytes: take_unsigned(input)?,
        })
    }
}

#[cfg(feature = "alloc")]
pub use map::{MemoryMap, MemoryMapping};

#[cfg(feature = "alloc")]
mod map {
    use alloc::vec::Vec;

    use super::MemoryTotals;
    use crate::varint::{push_unsigned, take_unsigned};

    /// A mapping that holds anonymous memory, or code.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MemoryMapping {
        /// Its first address; 0 for several small ones of a name together.
        pub start: u64,
        /// Its length.
        pub bytes: u64,
        /// The anonymous memory that is resident in it.
        pub anonymous_bytes: u64,
        /// Index into [`MemoryMap::names`] of the name that the kernel gives it; that of the empty name for most.
        pub name: u32,
        /// Facts about it.
        pub flags: u8,
    }

    impl MemoryMapping {
        /// It has no name, and begins where a mapping of the file `name` ends: static data without initial values.
        pub const BEHIND_FILE: u8 = 1;
        /// It begins where a small inaccessible mapping ends: a stack, most likely.
        pub const BEHIND_GUARD: u8 = 2;
        /// It can be executed.
        pub const EXECUTABLE: u8 = 4;

        /// Whether it has all of these flags.
        pub fn is(&self, flags: u8) -> bool {
            self.flags & flags == flags
        }
    }

    /// One reading of all mappings.
    ///
    /// ```text
    /// totals | number of names | each: length, bytes | number of mappings | each: start, length, anonymous, name, flags
    /// ```
    /// All numbers are varints.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct MemoryMap {
        /// The sums.
        pub totals: MemoryTotals,
        /// Names of mappings, each once: paths of files, or the kernel's names in brackets.
        pub names: Vec<Vec<u8>>,
        /// The mappings; empty if only the sums were read.
        pub mappings: Vec<MemoryMapping>,
    }

    impl MemoryMap {
        /// The name of a mapping.
        pub fn name(&self, mapping: &MemoryMapping) -> &[u8] {
            self.names
                .get(mapping.name as usize)
                .map_or(&[], |name| name)
        }

        /// The payload of a chunk.
        pub fn encode(&self) -> Vec<u8> {
            let mut out = alloc::vec![0; MemoryTotals::MAX_BYTES];
            let length = self.totals.encode_into(&mut out).unwrap_or(0);
            out.truncate(length);
            if self.mappings.is_empty() {
                return out;
            }
            push_unsigned(&mut out, self.names.len() as u64);
            for name in &self.names {
                push_unsigned(&mut out, name.len() as u64);
                out.extend_from_slice(name);
            }
            push_unsigned(&mut out, self.mappings.len() as u64);
            for it in &self.mappings {
                for value in [
                    it.start,
                    it.bytes,
                    it.anonymous_bytes,
                    u64::from(it.name),
                    u64::from(it.flags),
                ] {
                    push_unsigned(&mut out, value);
                }
            }
            out
        }

        /// Reads a payload back. `None`: malformed.
        pub fn decode(mut input: &[u8]) -> Option<Self> {
            let input = &mut input;
            let totals = MemoryTotals::decode(input)?;
            let (mut names, mut mappings) = (Vec::new(), Vec::new());
            if !input.is_empty() {
                // A number may claim anything: memory is taken for what is there.
                for _ in 0..take_unsigned(input)? {
                    let length = usize::try_from(take_unsigned(input)?).ok()?;
                    let (name, rest) = input.split_at_checked(length)?;
                    names.push(name.to_vec());
                    *input = rest;
                }
                for _ in 0..take_unsigned(input)? {
                    mappings.push(MemoryMapping {
                        start: take_unsigned(input)?,
                        bytes: take_unsigned(input)?,
                        anonymous_bytes: take_unsigned(input)?,
                        name: u32::try_from(take_unsigned(input)?).ok()?,
                        flags: u8::try_from(take_unsigned(input)?).ok()?,
                    });
                }
            }
            Some(Self {
                totals,
                names,
                mappings,
            })
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use proptest::prelude::*;

        proptest! {
            #[test]
            fn readings_round_trip(
                totals in any::<[u64; 4]>(),
                names in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..5),
                mappings in proptest::collection::vec(any::<(u64, u64, u64, u32, u8)>(), 0..9),
            ) {
                let [time_ns, resident_bytes, anonymous_bytes, peak_resident_bytes] = totals;
                let mappings: Vec<_> = mappings.into_iter().map(|(start, bytes, anonymous_bytes, name, flags)| {
                    MemoryMapping { start, bytes, anonymous_bytes, name, flags }
                }).collect();
                let names = if mappings.is_empty() { Vec::new() } else { names };
                let totals = MemoryTotals { time_ns, resident_bytes, anonymous_bytes, peak_resident_bytes };
                let map = MemoryMap { totals, names, mappings };
                prop_assert_eq!(MemoryMap::decode(&map.encode()), Some(map));
            }

            #[test]
            fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
                let _ = MemoryMap::decode(&bytes);
            }
        }
    }
}
