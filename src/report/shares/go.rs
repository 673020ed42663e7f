//! Which mappings are a Go heap's, however little is alive in them.
//!
//! The heap's addresses are not in its profile, so the mappings are recognised by their shape. Go's runtime reserves arenas of 64
//! MiB and makes them usable in steps of 4 MiB (`heapArenaBytes` and `pallocChunkBytes` in its sources). The kernel splits such a
//! range where a huge page has other advice, at multiples of 2 MiB, which leaves adjacent mappings. From Go 1.25 on the runtime
//! names its mappings where the kernel allows that.
//!
//! A static program has no other allocator, as Go programs are. There all mappings without a name are the runtime's, which has
//! its own data in them.

use allocsample_profile::{MemoryMap, MemoryMapping, Profile};

use super::{end_of, is_sum};

const STEP_BYTES: u64 = 4 << 20;
const HUGE_PAGE_BYTES: u64 = 2 << 20;
const OWN_NAME: &[u8] = b"[anon: Go: ";

/// The heap's mappings, as flags in the order of the reading's.
pub(super) struct Arenas(Vec<bool>);

impl Arenas {
    pub(super) fn of(profile: &Profile, map: &MemoryMap) -> Self {
        if !profile.vm.heaps.values().any(|heap| heap.name == "go") {
            return Self(vec![false; map.mappings.len()]);
        }
        let is_candidate = |it: &MemoryMapping| {
            map.name(it).is_empty()
                && it.flags == 0
                && !is_sum(it)
                && it.start.is_multiple_of(HUGE_PAGE_BYTES)
                && it.bytes.is_multiple_of(HUGE_PAGE_BYTES)
        };
        let is_static = !map.names.iter().any(|name| is_library(name));
        let mappings = &map.mappings;
        let mut is_arena: Vec<bool> = (mappings.iter())
            .map(|it| {
                let name = map.name(it);
                name.starts_with(OWN_NAME) || is_static && name.is_empty() && it.flags == 0
            })
            .collect();
        let mut first = 0;
        while first < mappings.len() {
            let mut next = first + 1;
            if is_candidate(&mappings[first]) {
                while next < mappings.len()
                    && is_candidate(&mappings[next])
                    && end_of(&mappings[next - 1]) == mappings[next].start
                {
                    next += 1;
                }
                let (start, end) = (mappings[first].start, end_of(&mappings[next - 1]));
                // A part that is hardly resident is not listed by itself, so one end of the range may be missing.
                let is_whole = |it: u64| it.is_multiple_of(STEP_BYTES);
                if is_whole(start) || is_whole(end) {
                    is_arena[first..next].fill(true);
                }
            }
            first = next;
        }
        Self(is_arena)
    }

    pub(super) fn has(&self, index: usize) -> bool {
        self.0[index]
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.0.contains(&true)
    }
}

/// The loader is one, too.
fn is_library(name: &[u8]) -> bool {
    name.windows(3).any(|it| it == b".so")
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{Heap, HeapId};

    const MIB: u64 = 1 << 20;

    fn with_heap(name: &str) -> Profile {
        let mut profile = Profile::default();
        let name = name.to_owned();
        let heap = Heap {
            name,
            ..Heap::default()
        };
        profile.vm.heaps.insert(HeapId(1), heap);
        profile
    }

    /// Of a dynamic program. Start and length in 64 KiB, and a name: 0 for none.
    fn arenas(mappings: &[(u64, u64, u32)], heap: &str) -> Vec<bool> {
        let profile = with_heap(heap);
        let mappings = mappings.iter().map(|&(start, bytes, name)| MemoryMapping {
            start: start << 16,
            bytes: bytes << 16,
            anonymous_bytes: bytes << 16,
            resident_bytes: bytes << 16,
            name,
            ..MemoryMapping::default()
        });
        let map = MemoryMap {
            names: vec![
                Vec::new(),
                b"/lib/libx.so".to_vec(),
                b"[anon: Go: heap]".to_vec(),
            ],
            mappings: mappings.collect(),
            ..MemoryMap::default()
        };
        let arenas = Arenas::of(&profile, &map);
        (0..map.mappings.len())
            .map(|index| arenas.has(index))
            .collect()
    }

    #[test]
    fn ranges_of_whole_steps_are_arenas_also_if_the_kernel_has_split_them() {
        let step = STEP_BYTES >> 16;
        assert_eq!((2 * HUGE_PAGE_BYTES) >> 16, step);
        let base = (0xc0_0000_0000_u64) >> 16;
        let (whole, half) = (3 * step, step / 2);
        assert_eq!(arenas(&[(base, whole, 0)], "go"), [true]);
        let split = [
            (base, whole - half, 0),
            (base + whole - half, half, 0),
            (base + 2 * whole, half + 1, 0),
        ];
        assert_eq!(arenas(&split, "go"), [true, true, false]);
        // The rest of it is hardly resident.
        assert_eq!(arenas(&split[..1], "go"), [true]);
        assert_eq!(arenas(&split[1..2], "go"), [true]);
        assert_eq!(arenas(&[(base + half, step, 0)], "go"), [false]);
        assert_eq!(arenas(&[(base, whole, 0)], "python"), [false]);
    }

    #[test]
    fn mappings_of_files_are_no_arenas_and_those_that_go_names_are() {
        let base = (64 * MIB) >> 16;
        let mappings = [(base, 64, 1), (2 * base, 3, 2), (3 * base, 3, 0)];
        assert_eq!(arenas(&mappings, "go"), [false, true, false]);
    }

    #[test]
    fn a_static_program_has_no_memory_of_others() {
        let map = |names: Vec<Vec<u8>>| MemoryMap {
            names,
            mappings: vec![MemoryMapping {
                start: 3 << 12,
                bytes: 1 << 12,
                ..MemoryMapping::default()
            }],
            ..MemoryMap::default()
        };
        let profile = with_heap("go");
        let alone = map(vec![Vec::new(), b"/srv/program".to_vec()]);
        let dynamic = map(vec![Vec::new(), b"/lib64/ld-linux-x86-64.so.2".to_vec()]);
        assert!(Arenas::of(&profile, &alone).has(0));
        assert!(Arenas::of(&profile, &dynamic).is_empty());
    }
}
