//! Memory that holds nothing but a heap's objects and what the heap keeps, however few of them are alive.

use std::collections::BTreeMap;
use std::ops::Range;

use allocsample_profile::{HeapId, MappedRanges, MemoryMap, MemoryMapping, Profile};

use super::{Live, end_of, is_embedded, is_sum};

/// The memory that virtual machines said to be a heap's alone. However little is alive there, nothing else can be.
pub(super) struct OwnRanges<'a> {
    profile: &'a Profile,
    /// Of every mapping, the anonymous bytes in such ranges. The kernel says how much of a mapping is resident, not where.
    pub(super) bytes: Vec<f64>,
    /// Of live objects in them, which are known by keys instead of addresses.
    live: f64,
}

impl<'a> OwnRanges<'a> {
    pub(super) fn of(profile: &'a Profile, map: &MemoryMap) -> Self {
        let part = |mapping: &MemoryMapping| {
            if is_sum(mapping) || profile.vm.ranges.is_empty() {
                return 0.0;
            }
            let (start, end) = (mapping.start, end_of(mapping));
            let within = |it: &Range<u64>| it.end.min(end).saturating_sub(it.start.max(start));
            // Two heaps may have said the same.
            let bytes = profile.vm.ranges.values().map(within);
            let bytes = bytes.fold(0, u64::saturating_add).min(mapping.bytes);
            mapping.anonymous_bytes as f64 * bytes as f64 / mapping.bytes.max(1) as f64
        };
        Self {
            profile,
            bytes: map.mappings.iter().map(part).collect(),
            live: 0.0,
        }
    }

    /// Counts an object of a heap with ranges that has no address in them. False: it is none.
    pub(super) fn take(&mut self, live: &Live) -> bool {
        let sample = &live.sample;
        let ranges = &self.profile.vm.ranges;
        let mut own = ranges.range((sample.heap, 0)..=(sample.heap, u32::MAX));
        let is_of_heap = own.clone().next().is_some();
        let is_key = is_of_heap && !own.any(|(_, it)| it.contains(&sample.address));
        if is_key {
            self.live += live.sum();
        }
        is_key
    }

    /// The part of the memory in ranges that such objects take.
    pub(super) fn live_share(&self) -> f64 {
        (self.live / self.bytes.iter().sum::<f64>().max(1.0)).min(1.0)
    }
}

/// What allocators beside malloc have mapped themselves: calls of the files that contain them, in whose memory they had a block at some
/// time. However little is alive there, nothing else can be.
pub(super) struct OwnMappings<'a> {
    profile: &'a Profile,
    calls: MappedRanges<usize>,
    /// Addresses of sampled blocks, by the heap.
    blocks: BTreeMap<HeapId, Vec<u64>>,
}

impl<'a> OwnMappings<'a> {
    pub(super) fn of(profile: &'a Profile, map: &MemoryMap) -> Self {
        let mut blocks: BTreeMap<HeapId, Vec<u64>> = profile
            .vm
            .heaps
            .keys()
            .filter(|heap| is_embedded(profile, **heap))
            .map(|heap| (*heap, Vec::new()))
            .collect();
        let calls = match blocks.is_empty() {
            true => MappedRanges::new(),
            false => profile.mapped_at(map.totals.time_ns),
        };
        if !blocks.is_empty() {
            for sample in &profile.samples {
                if let Some(addresses) = blocks.get_mut(&sample.heap) {
                    addresses.push(sample.address);
                }
            }
        }
        for addresses in blocks.values_mut() {
            addresses.sort_unstable();
        }
        Self {
            profile,
            calls,
            blocks,
        }
    }

    /// The part of a mapping that an allocator has mapped, from 0 to 1.
    pub(super) fn part(&self, heap: HeapId, mapping: &MemoryMapping) -> f64 {
        let Some(addresses) = self.blocks.get(&heap).filter(|_| !is_sum(mapping)) else {
            return 0.0;
        };
        let has_block = |from: u64, to: u64| {
            let first = addresses.partition_point(|it| *it < from);
            addresses.get(first).is_some_and(|it| *it < to)
        };
        let ranges = self.calls.within(mapping.start, end_of(mapping));
        let own = ranges.filter(|(from, to, row)| has_block(*from, *to) && self.is_of(heap, *row));
        let bytes: u64 = own.map(|(from, to, _)| to - from).sum();
        bytes as f64 / mapping.bytes.max(1) as f64
    }

    /// Whether the call came from the file that contains the allocator, which is behind its name.
    fn is_of(&self, heap: HeapId, row: usize) -> bool {
        let call = &self.profile.mappings[row];
        let name = self.profile.vm.heaps.get(&heap).map(|heap| &*heap.name);
        let file = name.and_then(|name| Some(name.split_once(" in ")?.1));
        let mapper = self.profile.mapper_of(call);
        let mapper = mapper.and_then(|module| self.profile.module(module));
        !call.mapped.change.is_own() && mapper.is_some_and(|it| Some(it.name()) == file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{Heap, IntervalInfo, Sample, Sampling};

    const MIB: u64 = 1 << 20;
    const HEAP: HeapId = HeapId(1);

    /// A mapping of 100 MiB, with a live object of 10 MiB that is known by a key.
    fn with_ranges(ranges: &[Range<u64>]) -> (Profile, MemoryMap) {
        let mut profile = Profile::default();
        profile.vm.heaps.insert(HEAP, Heap::default());
        for (number, range) in (0..).zip(ranges) {
            profile.vm.ranges.insert((HEAP, number), range.clone());
        }
        profile.intervals.push(IntervalInfo {
            time_ns: 0,
            sampling: Sampling::Poisson,
            interval_bytes: 1,
            seed: 1,
        });
        profile.samples.push(Sample {
            address: 64,
            size: 10 * MIB,
            heap: HEAP,
            points: 1,
            ..Sample::default()
        });
        let mapping = MemoryMapping {
            start: 1000 * MIB,
            bytes: 100 * MIB,
            resident_bytes: 100 * MIB,
            anonymous_bytes: 100 * MIB,
            ..MemoryMapping::default()
        };
        let map = MemoryMap {
            names: vec![Vec::new()],
            mappings: vec![mapping],
            ..MemoryMap::default()
        };
        (profile, map)
    }

    fn mib_of(ranges: &[Range<u64>]) -> [f64; 2] {
        let (profile, map) = with_ranges(ranges);
        let share = super::super::of(&profile, &map)[0];
        [share.objects, share.objects_held].map(|it| (it / MIB as f64 * 10.0).round() / 10.0)
    }

    #[test]
    fn a_range_has_its_part_of_a_mapping_however_little_is_alive() {
        let of = |start: u64, end: u64| start * MIB..end * MIB;
        assert_eq!(mib_of(&[of(900, 1200)]), [10.0, 90.0]);
        assert_eq!(mib_of(&[of(1040, 5000)]), [10.0, 50.0]);
        assert_eq!(mib_of(&[of(1000, 1020), of(1050, 1070)]), [10.0, 30.0]);
        // More is alive than fits.
        assert_eq!(mib_of(&[of(900, 1004)]), [4.0, 0.0]);
        // Said twice.
        assert_eq!(mib_of(&[of(900, 1200), of(900, 1200)]), [10.0, 90.0]);
        // What is elsewhere takes nothing here.
        assert_eq!(mib_of(&[of(3000, 4000)]), [0.0, 0.0]);
        assert_eq!(mib_of(&[100..u64::MAX, 101..u64::MAX]), [10.0, 90.0]);
    }

    #[test]
    fn an_object_with_an_address_in_a_range_lies_there() {
        let (mut profile, map) = with_ranges(std::slice::from_ref(&(900 * MIB..1200 * MIB)));
        let sample = Sample {
            address: 1000 * MIB,
            ..profile.samples.at(0)
        };
        profile.samples.set(0, sample);
        let share = super::super::of(&profile, &map)[0];
        assert_eq!((share.objects / MIB as f64).round(), 10.0);
        assert_eq!((share.objects_held / MIB as f64).round(), 90.0);
    }
}
