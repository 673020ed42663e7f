//! How much of the process's memory the profile accounts for.
//!
//! The kernel says how much anonymous memory is resident; the samples say how much of it was live then. Memory that a
//! sampled allocator keeps for itself counts as accounted for: the heap of `brk` and the arenas of glibc's malloc, and
//! mappings in which objects of a virtual machine were sampled. Everything else is listed by its owner where the kernel
//! names one. A mapping without a name has no known owner, and nothing here guesses one.

use std::collections::BTreeMap;

use allocsample_profile::{
    HeapId, MemoryMap, MemoryMapping, MemoryTotals, Note, Profile, Sample, SampleFlags, Weights,
    readable,
};
use serde_json::{Value, json};

use crate::{runtimes, units};

/// What is known of the memory outside the profile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coverage {
    /// Anonymous memory at the moment that is judged, near its peak.
    pub anonymous_bytes: f64,
    /// The part of it that the sampled heaps account for.
    pub seen_bytes: f64,
    /// Anonymous memory at its peak.
    pub peak_bytes: f64,
    /// Anonymous memory at the last reading.
    pub last_bytes: f64,
    /// Owners of the rest, largest first; empty if the mappings were not read.
    pub owners: Vec<(String, f64)>,
    /// Modules with an allocator of their own, and its name.
    pub allocators: Vec<(String, String)>,
    /// Whose the memory without a known owner is, as far as there is only one who could have it; not certain.
    pub likely: Option<String>,
    /// Whether what was allocated before an attach is a part of the rest.
    pub is_attached: bool,
}

/// Below this share the profile must not be taken for the whole.
const ENOUGH: f64 = 0.7;
/// Less unseen memory is no cause for a warning: the loader and libc take some themselves.
const NEGLIGIBLE_BYTES: f64 = (8 << 20) as f64;

impl Coverage {
    /// The owner of mappings that have none.
    pub const UNKNOWN: &str = "mappings without a name";
    /// Where glibc's malloc does not have it.
    const BRK_HEAP: &str = "the brk heap";

    /// Of a profile; `None` if nobody could read the process's memory, or if samples were left out, which would be unseen.
    pub fn of(profile: &Profile) -> Option<Self> {
        if profile.narrowed.is_some() {
            return None;
        }
        let totals = || profile.memory.iter().map(|map| map.totals);
        let peak = totals().max_by_key(|it| it.anonymous_bytes)?;
        let largest_map = (profile.memory.iter())
            .filter(|map| !map.mappings.is_empty())
            .max_by_key(|map| map.totals.anonymous_bytes);
        // One that was read long before the peak says nothing of it.
        let is_near = |map: &&MemoryMap| {
            map.totals.anonymous_bytes >= peak.anonymous_bytes - peak.anonymous_bytes / 5
        };
        let map = largest_map.filter(is_near);
        let moment = map.map_or(peak, |map| map.totals);
        let (seen_bytes, owners) = match map {
            Some(map) => account(profile, map),
            None => (most_live(profile, &moment), Vec::new()),
        };
        let anonymous_bytes = moment.anonymous_bytes as f64;
        let allocators = allocators(profile);
        let is_attached = (profile.notes.iter()).any(|(note, _)| *note == Note::Attached);
        // The largest resident memory is known for all times, and anonymous memory for those of the readings. What else was
        // resident at most is taken off: it goes too, as shared memory does at the end of a server.
        let other_bytes = totals().map(|it| it.resident_bytes.saturating_sub(it.anonymous_bytes));
        let peak_resident_bytes = totals().map(|it| it.peak_resident_bytes);
        let most = |bytes: Option<u64>| bytes.unwrap_or(0);
        let peak_bytes = most(peak_resident_bytes.max()).saturating_sub(most(other_bytes.max()));
        Some(Self {
            anonymous_bytes,
            // A sum of nothing is -0.
            seen_bytes: seen_bytes.min(anonymous_bytes) + 0.0,
            peak_bytes: peak_bytes.max(peak.anonymous_bytes) as f64,
            last_bytes: profile.memory.last()?.totals.anonymous_bytes as f64,
            owners,
            likely: likely(&allocators, &runtimes::unseen(profile)).filter(|_| !is_attached),
            allocators,
            is_attached,
        })
    }

    /// The share that the heaps account for, from 0 to 1.
    pub fn share(&self) -> f64 {
        if self.anonymous_bytes > 0.0 {
            self.seen_bytes / self.anonymous_bytes
        } else {
            1.0
        }
    }

    /// Whether so much is unseen that the profile must not be taken for the whole.
    pub fn is_low(&self) -> bool {
        self.share() < ENOUGH && self.anonymous_bytes - self.seen_bytes > NEGLIGIBLE_BYTES
    }

    /// The line of a summary.
    pub fn line(&self) -> String {
        let mut line = format!(
            "coverage   {:.0} %: the sampled heaps account for {} of {} of anonymous memory",
            100.0 * self.share(),
            units::bytes(self.seen_bytes),
            units::bytes(self.anonymous_bytes),
        );
        const SHOWN: usize = 2;
        let worth_a_word = self.anonymous_bytes / 20.0;
        let owners = self.owners.iter().filter(|(_, it)| *it >= worth_a_word);
        for (owner, bytes) in owners.take(SHOWN) {
            line += &format!("; {} in {owner}", units::bytes(*bytes));
            let has_no_owner = owner == Self::UNKNOWN || owner == Self::BRK_HEAP;
            if let Some(likely) = self.likely.as_ref().filter(|_| has_no_owner) {
                line += &format!(", most likely of {likely}");
            }
        }
        line
    }

    /// A warning, if there is cause for one.
    pub fn warning(&self) -> Option<String> {
        const ANY: &str = "comes from another allocator, a runtime's own heap, or mmap";
        self.is_low().then(|| {
            let named = |(module, name): &(String, String)| format!("{module} has {name}");
            let allocators: Vec<_> = self.allocators.iter().map(named).collect();
            let whence = match &self.likely {
                _ if self.is_attached => format!("it was allocated before the attach, or {ANY}"),
                Some(likely) => format!("it most likely belongs to {likely}"),
                None if allocators.is_empty() => format!("it {ANY}"),
                None => format!("it {ANY} ({})", allocators.join(", ")),
            };
            format!(
                "warning: {} of the process's memory is not in this profile: {whence}",
                units::bytes(self.anonymous_bytes - self.seen_bytes)
            )
        })
    }

    /// For scripts.
    pub fn to_json(&self) -> Value {
        let owner = |(name, bytes): &(String, f64)| json!({"name": name, "bytes": bytes});
        json!({
            "anonymous_bytes": self.anonymous_bytes,
            "seen_bytes": self.seen_bytes,
            "share": self.share(),
            "low": self.is_low(),
            "peak_anonymous_bytes": self.peak_bytes,
            "last_anonymous_bytes": self.last_bytes,
            "unseen": self.owners.iter().map(owner).collect::<Vec<_>>(),
            "allocators": self.allocators.iter().map(|(module, name)| json!({"module": module, "allocator": name})).collect::<Vec<_>>(),
            "likely_owner": self.likely,
        })
    }
}

/// Modules with an allocator of their own: not that which `malloc` leads to, whose memory is sampled.
fn allocators(profile: &Profile) -> Vec<(String, String)> {
    let is_sampled = |path: &str| {
        let mut notes = profile.notes.iter();
        notes.any(|(note, module)| *note == Note::NextAllocator && module == path)
    };
    let with = profile
        .inspected
        .iter()
        .filter(|it| !it.allocator.is_empty());
    with.filter(|it| !is_sampled(&it.path))
        .map(|it| {
            let file = it.path.rsplit('/').next().unwrap_or(&it.path);
            (file.to_owned(), it.allocator.clone())
        })
        .collect()
}

/// Who has what nobody owns, where only one could.
fn likely(allocators: &[(String, String)], runtimes: &[String]) -> Option<String> {
    match (allocators, runtimes) {
        ([(module, name)], []) => Some(format!("{module} (its own {name})")),
        ([], [runtime]) => Some(format!("{runtime} (its own heap)")),
        _ => None,
    }
}

/// What a block takes in glibc's malloc: 8 bytes more, in steps of 16, from 32 on.
fn footprint(size: u64) -> f64 {
    (size.saturating_add(23) & !15).max(32) as f64
}

/// Sampled blocks that were alive at a moment, and the bytes that each stands for, with their overhead.
fn live_at(profile: &Profile, time_ns: u64) -> impl Iterator<Item = (Sample, f64)> {
    let mut weights = Weights::of(profile);
    let is_live = move |sample: &Sample| {
        sample.time_ns <= time_ns
            && sample.freed_ns.is_none_or(|freed| freed.get() > time_ns)
            && !sample.flags.contains(SampleFlags::UNTRACKED)
    };
    let live = profile.samples.iter().filter(is_live);
    live.map(move |sample| {
        let (bytes, objects) = weights.get(&sample);
        let mut bytes = bytes.value();
        if sample.heap == HeapId::MALLOC {
            bytes += objects.value() * (footprint(sample.size) - sample.size as f64);
        }
        (sample, bytes)
    })
}

/// Without mappings: what was live then, or at the end of the samples before it.
fn most_live(profile: &Profile, moment: &MemoryTotals) -> f64 {
    let live = live_at(profile, moment.time_ns);
    live.map(|(_, bytes)| bytes).sum()
}

/// Heaps whose samples lie in other mappings than their objects: a sampled object of CPython's is made as large ones are, by
/// malloc, while the others lie in arenas of its own.
fn samples_lie_elsewhere(profile: &Profile, heap: HeapId) -> bool {
    (profile.vm.heaps.get(&heap)).is_some_and(|heap| heap.name == "python")
}

/// Several small mappings of a name together: it lies nowhere.
fn is_sum(mapping: &MemoryMapping) -> bool {
    mapping.start == 0
}

fn end_of(mapping: &MemoryMapping) -> u64 {
    mapping.start.saturating_add(mapping.bytes)
}

/// A heap keeps what it has freed; a mapping that its live objects fill to a smaller share may hold anything else.
const LEAST_SHARE: f64 = 0.3;

/// What the heaps account for in these mappings, and who has the rest.
fn account(profile: &Profile, map: &MemoryMap) -> (f64, Vec<(String, f64)>) {
    // A malloc of the program's own may have the brk heap, too.
    let is_glibc = (profile.notes.iter())
        .any(|(note, module)| *note == Note::NextAllocator && module.contains("libc.so"))
        && !(profile.notes.iter()).any(|(note, _)| *note == Note::MallocIsElsewhere);
    let mappings = &map.mappings;
    let index_of = |address: u64| {
        let after = mappings.partition_point(|it| it.start <= address);
        let index = after.checked_sub(1)?;
        let mapping = &mappings[index];
        (!is_sum(mapping) && address - mapping.start < mapping.bytes).then_some(index)
    };
    let mut live = vec![0.0; mappings.len()];
    // Of blocks in mappings too small to be listed.
    let mut elsewhere = 0.0;
    // Of objects of virtual machines whose place is not known: many bridges know objects by keys or by hidden pointers.
    let mut placeless = 0.0;
    for (sample, bytes) in live_at(profile, map.totals.time_ns) {
        if samples_lie_elsewhere(profile, sample.heap) {
            placeless += bytes;
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
            let share = bytes * within as f64 / sample.size.max(1) as f64;
            live[index] += share.min(rest);
            rest -= share.min(rest);
        }
        match sample.heap {
            HeapId::MALLOC => elsewhere += rest,
            _ => placeless += rest,
        }
    }
    let mut has_malloc = vec![false; mappings.len()];
    let mut has_objects = vec![false; mappings.len()];
    for sample in &profile.samples {
        if let Some(index) = index_of(sample.address) {
            let has = if sample.heap == HeapId::MALLOC {
                &mut has_malloc
            } else {
                &mut has_objects
            };
            has[index] = true;
        }
    }
    // A mapping that nothing else is known of, where a heap may have its arenas. The kernel puts many right behind a file's.
    let is_open = |index: usize| {
        let mapping = &mappings[index];
        let is_nameless = map.name(mapping).is_empty() || mapping.is(MemoryMapping::BEHIND_FILE);
        is_nameless
            && !has_malloc[index]
            && !has_objects[index]
            && !mapping.is(MemoryMapping::BEHIND_GUARD)
    };
    let open_bytes: f64 = (0..mappings.len())
        .filter(|index| is_open(*index))
        .map(|index| mappings[index].anonymous_bytes as f64)
        .sum();
    let open_share = match placeless >= LEAST_SHARE * open_bytes {
        true if open_bytes > 0.0 => 1.0,
        _ => placeless / open_bytes.max(1.0),
    };
    let mut seen = 0.0;
    let mut owners: BTreeMap<String, f64> = BTreeMap::new();
    for (index, mapping) in mappings.iter().enumerate() {
        let anonymous = mapping.anonymous_bytes as f64;
        let name = readable(map.name(mapping));
        const ARENA_BYTES: u64 = 64 << 20;
        let is_arena = name.is_empty() && mapping.start.is_multiple_of(ARENA_BYTES);
        let is_kept_by_malloc = is_glibc && (name == "[heap]" || is_arena && has_malloc[index]);
        let is_filled = live[index] >= LEAST_SHARE * anonymous;
        let is_kept = is_kept_by_malloc
            || is_filled && (has_objects[index] || has_malloc[index] && !is_glibc);
        let mut own = if is_kept {
            anonymous
        } else {
            live[index].min(anonymous)
        };
        if placeless > 0.0 && is_open(index) {
            own += open_share * (anonymous - own);
        }
        if is_sum(mapping) && name.is_empty() {
            let more = elsewhere.min(anonymous - own);
            own += more;
            elsewhere -= more;
        }
        seen += own;
        if anonymous > own {
            *owners.entry(owner(mapping, &name)).or_default() += anonymous - own;
        }
    }
    let mut owners: Vec<_> = owners.into_iter().collect();
    owners.sort_by(|a, b| b.1.total_cmp(&a.1));
    (seen, owners)
}

fn owner(mapping: &MemoryMapping, name: &str) -> String {
    if mapping.is(MemoryMapping::BEHIND_GUARD) {
        return "mappings behind a guard page (thread stacks, or an allocator's)".to_owned();
    }
    match name {
        "" => Coverage::UNKNOWN.to_owned(),
        "[heap]" => Coverage::BRK_HEAP.to_owned(),
        "[stack]" => "the main thread's stack".to_owned(),
        _ if name.starts_with('/') => {
            let file = name.rsplit('/').next().unwrap_or(name);
            match mapping.is(MemoryMapping::BEHIND_FILE) {
                true => format!("static data of {file}, or a mapping beside it"),
                false => format!("data of {file}"),
            }
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests;
