//! Which mappings are arenas of glibc's malloc, also without a sampled block.
//!
//! An arena lies at a multiple of 64 MiB (`HEAP_MAX_SIZE` in glibc's sources), and malloc maps it by a call that nobody can intercept.
//! All other calls are recorded, unless the process was attached to or forked, or made too many of them. So a nameless mapping at such a place that no recorded call has made is
//! an arena. A thread's arena may have some MiB of blocks that are too few to be sampled.

use allocsample_profile::{MemoryMap, MemoryMapping, Note, Profile};

use super::{end_of, is_sum};
use crate::ledger::not_recorded;

const ARENA_BYTES: u64 = 64 << 20;

/// Whether a mapping lies where malloc puts an arena.
pub(super) fn is_placed_as_one(map: &MemoryMap, mapping: &MemoryMapping) -> bool {
    map.name(mapping).is_empty() && !is_sum(mapping) && mapping.start.is_multiple_of(ARENA_BYTES)
}

/// Of every mapping, whether it is an arena because nobody else has mapped it.
pub(super) fn of(profile: &Profile, map: &MemoryMap) -> Vec<bool> {
    let began_late =
        (profile.notes.iter()).any(|(note, _)| matches!(note, Note::Attached | Note::ForkedFrom));
    let is_candidate =
        |it: &MemoryMapping| it.flags == 0 && it.bytes <= ARENA_BYTES && is_placed_as_one(map, it);
    let is_known = !began_late && !profile.mappings.is_empty() && not_recorded(profile) == 0;
    if !is_known || !map.mappings.iter().any(is_candidate) {
        return vec![false; map.mappings.len()];
    }
    let calls = profile.mapped_at(map.totals.time_ns);
    let is_unclaimed = |it: &MemoryMapping| calls.within(it.start, end_of(it)).next().is_none();
    (map.mappings.iter())
        .map(|it| is_candidate(it) && is_unclaimed(it))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{Mapped, MappingCall, MappingChange, SampleFlags, StackId, ThreadId};

    const MIB: u64 = 1 << 20;
    const PLACE: u64 = 1 << 40;

    fn recorded(start: u64) -> Profile {
        let mapped = Mapped {
            time_ns: 1,
            start,
            bytes: MIB,
            thread: ThreadId(1),
            change: MappingChange::Map,
            protection: 3,
            flags: 0x22,
            stack_flags: SampleFlags::default(),
        };
        let mut profile = Profile::default();
        let call = MappingCall::new(mapped, StackId::EMPTY);
        profile.mappings.push(call);
        profile
    }

    fn is_arena(profile: &Profile, start: u64, bytes: u64, name: &[u8], flags: u8) -> bool {
        let mapping = MemoryMapping {
            start,
            bytes,
            anonymous_bytes: bytes,
            resident_bytes: bytes,
            flags,
            ..MemoryMapping::default()
        };
        let mut map = MemoryMap {
            names: vec![name.to_vec()],
            mappings: vec![mapping],
            ..MemoryMap::default()
        };
        map.totals.time_ns = 5;
        of(profile, &map)[0]
    }

    #[test]
    fn only_what_no_recorded_call_has_mapped_at_such_a_place_is_an_arena() {
        let others = recorded(MIB);
        assert!(is_arena(&others, PLACE, 3 * MIB, b"", 0));
        assert!(!is_arena(&others, PLACE + MIB, 3 * MIB, b"", 0));
        assert!(!is_arena(&others, PLACE, 65 * MIB, b"", 0));
        assert!(!is_arena(&others, PLACE, 3 * MIB, b"/lib/libx.so", 0));
        let guarded = MemoryMapping::BEHIND_GUARD;
        assert!(!is_arena(&others, PLACE, 3 * MIB, b"", guarded));
        let own = recorded(PLACE + MIB);
        assert!(!is_arena(&own, PLACE, 3 * MIB, b"", 0));
    }

    #[test]
    fn where_calls_may_be_missing_nothing_is_known_to_be_an_arena() {
        assert!(!is_arena(&Profile::default(), PLACE, MIB, b"", 0));
        for note in [Note::Attached, Note::ForkedFrom] {
            let mut late = recorded(MIB);
            late.notes.push((note, String::new()));
            assert!(!is_arena(&late, PLACE, MIB, b"", 0));
        }
    }
}
