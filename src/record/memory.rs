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
pub use map::{GroupFigure, MemoryMap, MemoryMapping};

#[cfg(feature = "alloc")]
mod map {
    use alloc::vec::Vec;

    use super::MemoryTotals;
    use crate::varint::{push_unsigned, take_unsigned};

    /// A mapping that holds memory, or code.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MemoryMapping {
        /// Its first address; 0 for several small ones of a name together.
        pub start: u64,
        /// Its length.
        pub bytes: u64,
        /// The anonymous memory that is resident in it.
        pub anonymous_bytes: u64,
        /// All memory that is resident in it. In readings of versions that did not tell it, the anonymous memory.
        pub resident_bytes: u64,
        /// What the kernel has moved from it to the disk.
        pub swapped_bytes: u64,
        /// The part of the anonymous memory that is in huge pages.
        pub huge_bytes: u64,
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

    /// A figure of the control group that the process is in, by the files that the kernel has for it. The number is a part of
    /// the file format. The figures are of all processes in the group.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    #[repr(u8)]
    pub enum GroupFigure {
        /// `memory.current`: all memory that is charged to the group, in bytes.
        Current = 1,
        /// `memory.max`: the limit, in bytes.
        Max = 2,
        /// `anon` of `memory.stat`: anonymous memory, in bytes.
        Anonymous = 3,
        /// `file` of `memory.stat`: the page cache, with shared memory, in bytes.
        File = 4,
        /// `shmem` of `memory.stat`: shared memory and tmpfs, in bytes.
        Shared = 5,
        /// `kernel` of `memory.stat`: what the kernel keeps for the group, in bytes.
        Kernel = 6,
        /// `memory.swap.current`, in bytes.
        Swap = 7,
        /// `oom_kill` of `memory.events`: number of processes that were killed.
        OomKills = 8,
        /// `max` of `memory.events`: how often the group was about to exceed its limit.
        MaxEvents = 9,
    }

    impl GroupFigure {
        /// All of them, in the order of their numbers.
        pub const ALL: [Self; 9] = [
            Self::Current,
            Self::Max,
            Self::Anonymous,
            Self::File,
            Self::Shared,
            Self::Kernel,
            Self::Swap,
            Self::OomKills,
            Self::MaxEvents,
        ];

        /// The figure with this number, or `None` for one that a newer version may have added.
        pub fn from_number(number: u64) -> Option<Self> {
            Self::ALL.into_iter().find(|it| *it as u64 == number)
        }

        /// The name in tables and in JSON.
        pub fn name(self) -> &'static str {
            match self {
                Self::Current => "current_bytes",
                Self::Max => "max_bytes",
                Self::Anonymous => "anonymous_bytes",
                Self::File => "file_bytes",
                Self::Shared => "shared_bytes",
                Self::Kernel => "kernel_bytes",
                Self::Swap => "swap_bytes",
                Self::OomKills => "oom_kills",
                Self::MaxEvents => "max_events",
            }
        }
    }

    /// One reading of all mappings.
    ///
    /// ```text
    /// totals | number of names | each: length, bytes | number of mappings | each: start, length, anonymous, name, flags
    /// | for each mapping: resident, swapped, huge | number of group figures | each: number, value
    /// ```
    /// All numbers are varints. The second line is missing in files of versions before 0.3.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct MemoryMap {
        /// The sums.
        pub totals: MemoryTotals,
        /// Names of mappings, each once: paths of files, or the kernel's names in brackets.
        pub names: Vec<Vec<u8>>,
        /// The mappings; empty if only the sums were read.
        pub mappings: Vec<MemoryMapping>,
        /// Figures of the control group, as far as the kernel tells them.
        pub group: Vec<(GroupFigure, u64)>,
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
            for it in &self.mappings {
                for value in [it.resident_bytes, it.swapped_bytes, it.huge_bytes] {
                    push_unsigned(&mut out, value);
                }
            }
            push_unsigned(&mut out, self.group.len() as u64);
            for &(figure, value) in &self.group {
                push_unsigned(&mut out, figure as u64);
                push_unsigned(&mut out, value);
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
                    let (start, bytes) = (take_unsigned(input)?, take_unsigned(input)?);
                    let anonymous_bytes = take_unsigned(input)?;
                    mappings.push(MemoryMapping {
                        start,
                        bytes,
                        anonymous_bytes,
                        resident_bytes: anonymous_bytes,
                        name: u32::try_from(take_unsigned(input)?).ok()?,
                        flags: u8::try_from(take_unsigned(input)?).ok()?,
                        ..MemoryMapping::default()
                    });
                }
            }
            let mut group = Vec::new();
            if !input.is_empty() {
                for it in &mut mappings {
                    it.resident_bytes = take_unsigned(input)?;
                    it.swapped_bytes = take_unsigned(input)?;
                    it.huge_bytes = take_unsigned(input)?;
                }
                for _ in 0..take_unsigned(input)? {
                    let (number, value) = (take_unsigned(input)?, take_unsigned(input)?);
                    group.extend(GroupFigure::from_number(number).map(|it| (it, value)));
                }
            }
            Some(Self {
                totals,
                names,
                mappings,
                group,
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
                mappings in proptest::collection::vec(any::<([u64; 6], u32, u8)>(), 0..9),
                group in proptest::collection::vec((0..GroupFigure::ALL.len(), any::<u64>()), 0..9),
            ) {
                let [time_ns, resident_bytes, anonymous_bytes, peak_resident_bytes] = totals;
                let mappings: Vec<_> = mappings.into_iter().map(|(numbers, name, flags)| {
                    let [start, bytes, anonymous_bytes, resident_bytes, swapped_bytes, huge_bytes] = numbers;
                    MemoryMapping {
                        start, bytes, anonymous_bytes, resident_bytes, swapped_bytes, huge_bytes, name, flags,
                    }
                }).collect();
                let (mut names, mut group) =
                    (names, group.into_iter().map(|(at, value)| (GroupFigure::ALL[at], value)).collect());
                if mappings.is_empty() {
                    // The sums alone.
                    (names, group) = (Vec::new(), Vec::new());
                }
                let totals = MemoryTotals { time_ns, resident_bytes, anonymous_bytes, peak_resident_bytes };
                let map = MemoryMap { totals, names, mappings, group };
                prop_assert_eq!(MemoryMap::decode(&map.encode()), Some(map));
            }

            /// What versions before 0.3 wrote ends behind the mappings.
            #[test]
            fn a_reading_without_what_came_later_is_read(numbers: [u64; 3], name: u32, flags: u8) {
                let [start, bytes, anonymous_bytes] = numbers;
                let it = MemoryMapping {
                    start, bytes, anonymous_bytes, resident_bytes: anonymous_bytes, name, flags, ..MemoryMapping::default()
                };
                let whole = MemoryMap { mappings: Vec::from([it]), ..MemoryMap::default() };
                let mut old = whole.encode();
                let mut later = Vec::new();
                for value in [anonymous_bytes, 0, 0, 0] {
                    push_unsigned(&mut later, value);
                }
                prop_assert!(old.ends_with(&later));
                old.truncate(old.len() - later.len());
                prop_assert_eq!(MemoryMap::decode(&old), Some(whole));
            }

            #[test]
            fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
                let _ = MemoryMap::decode(&bytes);
            }
        }
    }
}
