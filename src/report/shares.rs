//! How much of each mapping the sampled heaps account for.
//!
//! The kernel says how much anonymous memory is resident in each mapping; the samples say what was alive in it. Memory that a
//! sampled allocator keeps for itself counts as its own: the heap of `brk` and the arenas of glibc's malloc, and mappings in
//! which objects of a virtual machine were sampled.

mod agents;
mod go;
mod malloc_arenas;
mod outside;
mod own;

use std::ops::Range;

use allocsample_profile::{
    HeapId, HeapKind, MemoryMap, MemoryMapping, Note, Profile, Sample, Weights, readable,
};
use allocsample_sampling::Estimate;

use crate::arenas::Arenas;
use crate::ledger::Ledger;
use own::{OwnMappings, OwnRanges};

pub(crate) use agents::of_agent;
pub(crate) use outside::of_read;

/// What the sampled heaps have of the resident anonymous memory in a mapping, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Share {
    /// Live blocks of malloc, as requested.
    pub malloc: f64,
    /// What malloc has besides: free blocks, and the overhead of live ones.
    pub malloc_held: f64,
    /// Live objects of virtual machines.
    pub objects: f64,
    /// What their heaps have besides.
    pub objects_held: f64,
    /// Live blocks of an allocator beside malloc.
    pub embedded: f64,
    /// What it has besides.
    pub embedded_held: f64,
    /// Which allocator.
    pub allocator: Option<HeapId>,
}

impl Share {
    /// All of it.
    pub fn sum(&self) -> f64 {
        self.malloc
            + self.malloc_held
            + self.objects
            + self.objects_held
            + self.embedded
            + self.embedded_held
    }
}

/// A sampled block that was alive at a moment.
pub(crate) struct Live {
    pub sample: Sample,
    /// The bytes that it stands for.
    pub bytes: Estimate,
    /// The blocks that it stands for.
    pub objects: Estimate,
    /// What these take in glibc's malloc besides.
    pub overhead: f64,
}

impl Live {
    fn sum(&self) -> f64 {
        self.bytes.value() + self.overhead
    }
}

/// What a block takes in glibc's malloc: 8 bytes more, in steps of 16, from 32 on.
fn footprint(size: u64) -> f64 {
    (size.saturating_add(23) & !15).max(32) as f64
}

/// Sampled blocks that were alive at a moment.
pub(crate) fn live_at(profile: &Profile, time_ns: u64) -> impl Iterator<Item = Live> {
    let mut weights = Weights::of(profile);
    let samples = &profile.samples;
    let backing = profile.backing.as_mallocs();
    let backing = backing.filter(move |block| block.is_live_at(time_ns));
    let live = samples.live_at(time_ns).map(|row| samples.at(row));
    let live = live.chain(backing);
    live.map(move |sample| {
        let (bytes, objects) = weights.get(&sample);
        let overhead = match sample.heap {
            HeapId::MALLOC => objects.value() * (footprint(sample.size) - sample.size as f64),
            _ => 0.0,
        };
        Live {
            sample,
            bytes,
            objects,
            overhead,
        }
    })
}

/// Whether CPython's objects have no arenas but an allocator of their own, where a sample is an object like the others: it is
/// so without the interpreter's lock.
fn has_objects_in_place(profile: &Profile) -> bool {
    const IN_PLACE: &str = "free-threaded CPython";
    (profile.inspected.iter()).any(|module| module.runtime == IN_PLACE)
}

/// Whether a mapping with a sampled block holds nothing but such blocks and what their allocators keep, however few are live: Erlang's
/// emulator maps memory for its allocators alone, and malloc is left out of it.
fn has_mappings_of_its_own(profile: &Profile) -> bool {
    (profile.vm.heaps.values()).any(|heap| heap.name == "erlang")
}

/// Heaps of CPython's. Elsewhere a sampled object of theirs is made as large ones are, by malloc, while the others lie in
/// arenas.
pub(crate) fn of_python(profile: &Profile) -> Vec<HeapId> {
    let heaps = profile.vm.heaps.iter();
    let of_python = heaps.filter(|(_, heap)| heap.name == "python");
    of_python.map(|(&id, _)| id).collect()
}

/// Whether a heap is that of an allocator beside malloc.
pub(crate) fn is_embedded(profile: &Profile, heap: HeapId) -> bool {
    let heap = profile.vm.heaps.get(&heap);
    heap.is_some_and(|heap| heap.kind == Some(HeapKind::Allocator))
}

/// An allocator beside malloc whose samples cannot be right.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unreconciled {
    pub heap: HeapId,
    /// What its samples stand for.
    pub live_bytes: f64,
    /// What is mapped where they lie.
    pub mapped_bytes: f64,
}

/// The allocators that have more live bytes than is mapped where they lie, by more than chance: some ends were missed, or blocks
/// were seen twice. Their samples are not used for the process's memory, which then belongs to the calls that mapped it.
pub(crate) fn unreconciled(profile: &Profile, map: &MemoryMap) -> Vec<Unreconciled> {
    /// Standard errors.
    const CHANCE: f64 = 4.0;
    let embedded = profile.vm.heaps.iter();
    let embedded = embedded.filter(|(_, heap)| heap.kind == Some(HeapKind::Allocator));
    let refute = |heap: HeapId| {
        let mut live = Estimate::ZERO;
        let mut is_used = vec![false; map.mappings.len()];
        for it in live_at(profile, map.totals.time_ns).filter(|it| it.sample.heap == heap) {
            live += it.bytes;
            let (start, end) = (it.sample.address, it.sample.address + it.sample.size.max(1));
            let first = map.mappings.partition_point(|it| end_of(it) <= start);
            for (index, mapping) in map.mappings.iter().enumerate().skip(first) {
                if mapping.start >= end {
                    break;
                }
                is_used[index] = true;
            }
        }
        // Small mappings are not listed one by one.
        let mapped = (map.mappings.iter().zip(is_used))
            .filter(|(mapping, is_used)| *is_used || is_sum(mapping));
        let mapped_bytes: f64 = mapped.map(|(mapping, _)| mapping.bytes as f64).sum();
        let least = live.value() - CHANCE * live.stderr().unwrap_or(f64::INFINITY);
        (least > mapped_bytes).then_some(Unreconciled {
            heap,
            live_bytes: live.value(),
            mapped_bytes,
        })
    };
    embedded.filter_map(|(heap, _)| refute(*heap)).collect()
}

/// Several small mappings of a name together: it lies nowhere.
fn is_sum(mapping: &MemoryMapping) -> bool {
    mapping.start == 0
}

fn end_of(mapping: &MemoryMapping) -> u64 {
    mapping.start.saturating_add(mapping.bytes)
}

/// A heap keeps memory that it has freed. But a mapping with a smaller share of live objects may belong to something else, unless the
/// call that mapped it is known.
const LEAST_SHARE: f64 = 0.3;

/// What is alive in a mapping, by what the samples stand for.
#[derive(Clone, Copy, Default)]
struct Alive {
    malloc: f64,
    /// The part of that which is overhead.
    overhead: f64,
    objects: f64,
    embedded: f64,
}

/// The share of every mapping of a reading, in their order.
///
/// After a collection the live objects may fill a small part of their heap. It is where it was when they filled more of it: at the
/// reading with most memory.
pub(crate) fn of(profile: &Profile, map: &MemoryMap) -> Vec<Share> {
    let (shares, objects) = of_reading(profile, map, &[]);
    let is_unplaced = matches!(objects, Objects::FillLittle);
    let Some(peak) = Ledger::peak_reading(profile).filter(|_| is_unplaced) else {
        return shares;
    };
    match of_reading(profile, peak, &[]) {
        (_, Objects::Fill(heap)) => of_reading(profile, map, &heap).0,
        _ => shares,
    }
}

/// Where objects of virtual machines are whose addresses are not known.
enum Objects {
    /// There are none.
    None,
    /// They take a small part of the memory where they may be.
    FillLittle,
    /// Their heap.
    Fill(Vec<Range<u64>>),
}

/// The shares of a reading, if objects whose addresses are not known have these ranges to themselves.
fn of_reading(profile: &Profile, map: &MemoryMap, heap: &[Range<u64>]) -> (Vec<Share>, Objects) {
    // A malloc of the program's own may have the brk heap, too.
    let is_glibc = (profile.notes.iter())
        .any(|(note, module)| *note == Note::NextAllocator && module.contains("libc.so"))
        && !(profile.notes.iter()).any(|(note, _)| *note == Note::MallocIsElsewhere);
    let mappings = &map.mappings;
    let unreconciled = unreconciled(profile, map);
    let is_refuted = |heap: HeapId| unreconciled.iter().any(|it| it.heap == heap);
    let index_of = |address: u64| {
        let after = mappings.partition_point(|it| it.start <= address);
        let index = after.checked_sub(1)?;
        let mapping = &mappings[index];
        (!is_sum(mapping) && address - mapping.start < mapping.bytes).then_some(index)
    };
    let mut alive = vec![Alive::default(); mappings.len()];
    // Of blocks in mappings too small to be listed.
    let mut elsewhere = 0.0;
    // Of objects of virtual machines whose place is not known: many bridges know objects by keys or by hidden pointers.
    let mut placeless = 0.0;
    let mut in_ranges = OwnRanges::of(profile, map);
    let (of_python, is_in_place) = (of_python(profile), has_objects_in_place(profile));
    let is_apart = has_mappings_of_its_own(profile);
    for live in live_at(profile, map.totals.time_ns) {
        let (sample, bytes) = (&live.sample, live.sum());
        if !is_in_place && of_python.contains(&sample.heap) {
            placeless += bytes;
            continue;
        }
        if is_refuted(sample.heap) || in_ranges.take(&live) {
            continue;
        }
        // A large block may lie in several mappings: advice to the kernel about a part of it splits them.
        let mut rest = bytes;
        let end = sample.address.saturating_add(sample.size.max(1));
        let first = mappings.partition_point(|it| end_of(it) <= sample.address);
        for (index, mapping) in mappings.iter().enumerate().skip(first) {
            if mapping.start >= end {
                break;
            }
            if is_sum(mapping) {
                continue;
            }
            let start = mapping.start.max(sample.address);
            let within = end.min(end_of(mapping)).saturating_sub(start);
            let share = (bytes * within as f64 / sample.size.max(1) as f64).min(rest);
            rest -= share;
            let alive = &mut alive[index];
            if sample.heap == HeapId::MALLOC {
                alive.malloc += share;
                alive.overhead += share * live.overhead / bytes.max(f64::MIN_POSITIVE);
            } else if is_embedded(profile, sample.heap) {
                alive.embedded += share;
            } else {
                alive.objects += share;
            }
        }
        match sample.heap {
            HeapId::MALLOC => elsewhere += rest,
            heap if is_embedded(profile, heap) => {}
            _ => placeless += rest,
        }
    }
    let mut has_malloc = vec![false; mappings.len()];
    let mut has_objects = vec![false; mappings.len()];
    let mut allocator_of = vec![None; mappings.len()];
    let mut last = (0..0, HeapId::MALLOC);
    for sample in &profile.samples {
        let is_malloc = sample.heap == HeapId::MALLOC;
        if is_refuted(sample.heap) {
            continue;
        }
        // Most lie where the one before lay.
        if last.0.contains(&sample.address) && last.1 == sample.heap {
            continue;
        }
        if let Some(index) = index_of(sample.address) {
            let next = mappings.get(index + 1).map_or(u64::MAX, |it| it.start);
            let mapping = &mappings[index];
            last = (mapping.start..end_of(mapping).min(next), sample.heap);
            if is_malloc {
                has_malloc[index] = true;
            } else if is_embedded(profile, sample.heap) {
                allocator_of[index] = Some(sample.heap);
            } else {
                has_objects[index] = true;
            }
        }
    }
    let of_go = go::Arenas::of(profile, map);
    // A mapping that nothing is known of but blocks of malloc, where a heap may have its arenas. The kernel puts many right behind a
    // file's.
    let may_be_joined = |index: usize| {
        let mapping = &mappings[index];
        let is_nameless = map.name(mapping).is_empty() || mapping.is(MemoryMapping::BEHIND_FILE);
        (is_nameless || of_go.has(index))
            && !has_objects[index]
            && allocator_of[index].is_none()
            && !mapping.is(MemoryMapping::BEHIND_GUARD)
    };
    let mut open = vec![0.0; mappings.len()];
    // The part of that which is certainly the runtime's.
    let mut own = vec![0.0; mappings.len()];
    if placeless > 0.0 || !of_python.is_empty() || !of_go.is_empty() {
        let (arenas, calls) = (Arenas::of(profile), profile.mapped_at(map.totals.time_ns));
        for (index, mapping) in mappings.iter().enumerate() {
            // The kernel joins arenas with large blocks of malloc's beside them.
            let may_have = match (may_be_joined(index), has_malloc[index]) {
                (true, false) => arenas.possible(&calls, mapping),
                (true, true) if is_glibc => arenas.beside_malloc(&calls, mapping),
                _ => arenas.certain(&calls, mapping),
            };
            let anonymous = mapping.anonymous_bytes as f64;
            open[index] = (anonymous * may_have).min(anonymous - in_ranges.bytes[index]);
            own[index] = (anonymous * arenas.own(&calls, mapping)).min(open[index]);
        }
    }
    let own_mappings = OwnMappings::of(profile, map);
    let unsampled_arenas = match is_glibc {
        true => malloc_arenas::of(profile, map),
        false => vec![false; mappings.len()],
    };
    for (index, mapping) in mappings.iter().enumerate() {
        let is_of_heap = |it: &Range<u64>| it.start < end_of(mapping) && mapping.start < it.end;
        if heap.iter().any(is_of_heap) || of_go.has(index) {
            own[index] = open[index];
        }
    }
    let [open_bytes, own_bytes]: [f64; 2] = [&open, &own].map(|it| it.iter().sum());
    // How much of the open memory objects take, apart from what is certainly the runtime's.
    let is_filled = placeless >= LEAST_SHARE * open_bytes;
    let open_share = match is_filled {
        true => 1.0,
        false => (placeless - own_bytes).max(0.0) / (open_bytes - own_bytes).max(1.0),
    };
    let objects = match is_filled {
        _ if placeless <= 0.0 => Objects::None,
        false => Objects::FillLittle,
        true => {
            let open =
                (mappings.iter().zip(&open)).filter(|(it, open)| **open > 0.0 && !is_sum(it));
            Objects::Fill(open.map(|(it, _)| it.start..end_of(it)).collect())
        }
    };
    let of_objects: Vec<f64> = (open.iter().zip(&own))
        .map(|(open, own)| own + open_share * (open - own))
        .collect();
    let live_share = placeless / of_objects.iter().sum::<f64>().max(1.0);
    let mut shares = Vec::with_capacity(mappings.len());
    for (index, mapping) in mappings.iter().enumerate() {
        let anonymous = mapping.anonymous_bytes as f64;
        let name = readable(map.name(mapping));
        let is_arena = malloc_arenas::is_placed_as_one(map, mapping)
            && (has_malloc[index] || unsampled_arenas[index] && !of_go.has(index));
        let is_kept_by_malloc = is_glibc && (name == "[heap]" || is_arena);
        let alive = alive[index];
        let sum = alive.malloc + alive.objects + alive.embedded;
        let is_filled = sum >= LEAST_SHARE * anonymous;
        let is_kept = is_kept_by_malloc
            || (is_in_place || is_apart) && has_objects[index]
            || is_filled
                && (has_objects[index]
                    || allocator_of[index].is_some()
                    || has_malloc[index] && !is_glibc);
        let malloc = alive.malloc.min(anonymous);
        let overhead = malloc * alive.overhead / alive.malloc.max(f64::MIN_POSITIVE);
        let mut share = Share {
            malloc: malloc - overhead,
            malloc_held: overhead,
            objects: alive.objects.min(anonymous - malloc),
            allocator: allocator_of[index],
            ..Share::default()
        };
        share.embedded = alive.embedded.min(anonymous - malloc - share.objects);
        let free = |share: &Share| (anonymous - share.sum()).max(0.0);
        if is_kept {
            if !is_kept_by_malloc && has_objects[index] {
                share.objects_held += free(&share);
            } else if !is_kept_by_malloc && share.allocator.is_some() {
                share.embedded_held += free(&share);
            } else {
                share.malloc_held += free(&share);
            }
        } else if let Some(heap) = share.allocator {
            let part = anonymous * own_mappings.part(heap, mapping);
            share.embedded_held += (part - share.embedded).clamp(0.0, free(&share));
        }
        let in_range = in_ranges.bytes[index];
        if in_range > 0.0 {
            let live = (in_range * in_ranges.live_share()).min(free(&share));
            share.objects += live;
            let of_heap = share.objects + share.objects_held;
            share.objects_held += (in_range - of_heap).clamp(0.0, free(&share));
        }
        if of_objects[index] > 0.0 {
            let more = of_objects[index].min(free(&share));
            let live = more.min(live_share * of_objects[index]);
            share.objects += live;
            share.objects_held += more - live;
        }
        if is_sum(mapping) && name.is_empty() {
            let more = elsewhere.min(free(&share));
            share.malloc += more;
            elsewhere -= more;
        }
        shares.push(share);
    }
    (shares, objects)
}
