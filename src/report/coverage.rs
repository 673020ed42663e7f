//! How much of the process's memory the profile accounts for.
//!
//! The kernel says how much anonymous memory is resident; the samples say how much of it was live then. Memory that a
//! sampled allocator keeps for itself counts as accounted for: the heap of `brk` and the arenas of glibc's malloc, and
//! mappings in which objects of a virtual machine were sampled. Everything else is listed by its owner where the kernel
//! names one. A mapping without a name has no known owner, and nothing here guesses one.

mod suspects;

use std::collections::BTreeMap;

use allocsample_profile::{
    HeapId, HeapKind, MemoryMap, MemoryMapping, MemoryTotals, Note, Profile, readable,
};
use serde_json::{Value, json};

use crate::ledger::{Account, LedgerRow};
use crate::shares::{self, Share, live_at};
use crate::{runtimes, units};

pub(crate) use suspects::Suspects;
use suspects::WORTH_A_WARNING;

/// What is known of the memory outside the profile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coverage {
    /// Anonymous memory at the moment that is judged, near its peak.
    pub anonymous_bytes: f64,
    /// The part of it that the agent itself has, as far as it is known. It is not the program's.
    pub agent_bytes: f64,
    /// The part of it that the sampled heaps account for.
    pub seen_bytes: f64,
    /// Anonymous memory at its peak.
    pub peak_bytes: f64,
    /// Anonymous memory at the last reading.
    pub last_bytes: f64,
    /// Whether the mappings were read at that moment.
    pub is_listed: bool,
    /// Owners of the rest, largest first; empty if the mappings were not read.
    pub owners: Vec<(String, f64)>,
    /// Where so much is unseen that a warning is due: the row of the ledger with most of it.
    pub largest_row: Option<LedgerRow>,
    /// Modules with an allocator of their own, and its name.
    pub allocators: Vec<(String, String)>,
    /// Those of them that may have enough of the rest for a warning.
    pub suspects: Vec<(String, String)>,
    /// Whose the memory without a known owner is, as far as there is only one who could have it; not certain.
    pub likely: Option<String>,
    /// Whether it may be objects of Ruby, which are sampled on request.
    pub has_silent_objects: bool,
    /// Whether what was allocated before an attach is a part of the rest.
    pub is_attached: bool,
    /// The runtime that took the samples itself, in words.
    pub sampled_by: Option<String>,
    /// Whether page faults were sampled, whatever their allocator.
    pub has_pages: bool,
    /// Why allocators of `allocators` are not sampled, in words, where they were to be; `None` where they were not.
    pub not_joined: Option<String>,
    /// Allocators whose samples do not fit the process's mappings, in words; they account for nothing.
    pub unreconciled: Vec<String>,
}

/// Below this share the profile must not be taken for the whole.
const ENOUGH: f64 = 0.7;
/// Less unseen memory is no cause for a warning: the loader and libc take some themselves.
const NEGLIGIBLE_BYTES: f64 = (8 << 20) as f64;

impl Coverage {
    /// The owner of mappings that have none.
    pub const UNKNOWN: &str = "mappings without a name";
    /// Appended where mappings were not listed: free memory cannot be told from that of others then.
    const UNLISTED: &str = "; no list of mappings was read near the peak, so this includes free memory of the sampled heaps and data of libraries";
    /// Where glibc's malloc does not have it.
    const BRK_HEAP: &str = "the brk heap";

    /// Of a profile; `None` if nobody could read the process's memory, or if samples were left out, which would be unseen.
    pub fn of(profile: &Profile) -> Option<Self> {
        if profile.narrowed.is_some() {
            return None;
        }
        let totals = || profile.memory.iter().map(|map| map.totals);
        let (map, peak) = judged(profile)?;
        let moment = map.map_or(peak, |map| map.totals);
        // A runtime's own samples have no addresses.
        let map_with_addresses = map.filter(|_| profile.sampled_by().is_none());
        let shares = map.map(|map| shares::of(profile, map));
        let agents = match map.zip(shares.as_ref()) {
            Some((map, shares)) => shares::of_agent(profile, map, shares),
            None => Vec::new(),
        };
        let agent_bytes: f64 = agents.iter().sum();
        let (seen_bytes, owners) = match map_with_addresses.zip(shares.as_ref()) {
            Some((map, shares)) => account(map, shares, &agents),
            None => (most_live(profile, &moment), Vec::new()),
        };
        let unreconciled = map.map_or_else(Vec::new, |map| unreconciled(profile, map));
        let anonymous_bytes = moment.anonymous_bytes as f64;
        let allocators = unsampled(profile);
        let is_attached = (profile.notes.iter()).any(|(note, _)| *note == Note::Attached);
        // The largest resident memory is known for all times, and anonymous memory for those of the readings. What else was
        // resident at most is taken off: it goes too, as shared memory does at the end of a server.
        let other_bytes = totals().map(|it| it.resident_bytes.saturating_sub(it.anonymous_bytes));
        let peak_resident_bytes = totals().map(|it| it.peak_resident_bytes);
        let most = |bytes: Option<u64>| bytes.unwrap_or(0);
        let peak_bytes = most(peak_resident_bytes.max()).saturating_sub(most(other_bytes.max()));
        let mut coverage = Self {
            anonymous_bytes,
            // A sum of nothing is -0.
            agent_bytes: agent_bytes + 0.0,
            seen_bytes: seen_bytes.min(anonymous_bytes - agent_bytes).max(0.0) + 0.0,
            peak_bytes: peak_bytes.max(peak.anonymous_bytes) as f64,
            is_listed: map.is_some(),
            last_bytes: profile.memory.last()?.totals.anonymous_bytes as f64,
            owners,
            largest_row: None,
            likely: None,
            has_silent_objects: false,
            not_joined: None,
            suspects: allocators.clone(),
            allocators,
            is_attached,
            sampled_by: profile.sampled_by().map(str::to_owned),
            has_pages: profile.pages.heap.is_some(),
            unreconciled,
        };
        let mut runtimes = runtimes::unseen(profile);
        // Finding out takes time, and most processes have nobody to suspect.
        let is_anybody = !(coverage.allocators.is_empty() && runtimes.is_empty());
        let map = map.zip(shares).filter(|_| coverage.is_low() || is_anybody);
        let mut found = map.map(|(map, shares)| Suspects::of(profile, map, shares));
        if let Some(found) = &mut found {
            (coverage.suspects).retain(|(file, _)| found.may_include(file));
            runtimes.retain(|_| found.may_include_a_runtime());
            coverage.largest_row = found.largest_row.take().filter(|_| coverage.is_low());
        }
        let is_among_them = |name: &str| runtimes.iter().any(|it| it == name);
        coverage.has_silent_objects =
            runtimes::with_objects_on_request(profile).is_some_and(is_among_them);
        coverage.likely = likely(&coverage.suspects, &runtimes).filter(|_| !is_attached);
        coverage.not_joined = not_joined(profile, &coverage.suspects, found.as_ref());
        Some(coverage)
    }

    /// Anonymous memory of the program: that of the process without the agent's.
    fn program_bytes(&self) -> f64 {
        self.anonymous_bytes - self.agent_bytes
    }

    /// Anonymous memory of the program that the heaps do not account for.
    fn unseen_bytes(&self) -> f64 {
        self.program_bytes() - self.seen_bytes
    }

    /// The share of the program's memory that the heaps account for, from 0 to 1.
    pub fn share(&self) -> f64 {
        if self.program_bytes() > 0.0 {
            self.seen_bytes / self.program_bytes()
        } else {
            1.0
        }
    }

    /// Whether so much is unseen that the profile must not be taken for the whole.
    pub fn is_low(&self) -> bool {
        self.share() < ENOUGH && self.unseen_bytes() > NEGLIGIBLE_BYTES
    }

    /// The line of a summary.
    pub fn line(&self) -> String {
        let mut line = format!(
            "coverage   {:.0} %: the sampled heaps account for {} of {} of anonymous memory",
            100.0 * self.share(),
            units::bytes(self.seen_bytes),
            units::bytes(self.program_bytes()),
        );
        const SHOWN: usize = 2;
        let worth_a_word = self.anonymous_bytes * WORTH_A_WARNING;
        let owners = self.owners.iter().filter(|(_, it)| *it >= worth_a_word);
        for (owner, bytes) in owners.take(SHOWN) {
            line += &format!("; {} in {owner}", units::bytes(*bytes));
            let has_no_owner = owner == Self::UNKNOWN || owner == Self::BRK_HEAP;
            if let Some(likely) = self.likely.as_ref().filter(|_| has_no_owner) {
                line += &format!(", most likely of {likely}");
            }
        }
        if self.agent_bytes >= worth_a_word {
            let own = units::bytes(self.agent_bytes);
            line += &format!("; allocsample itself has {own} besides");
        }
        line
    }

    /// A warning, if there is cause for one.
    pub fn warning(&self) -> Option<String> {
        const ANY: &str = "comes from another allocator, a runtime's own heap, or mmap";
        self.is_low().then(|| {
            let named = |(module, name): &(String, String)| format!("{module} has {name}");
            let allocators: Vec<_> = self.suspects.iter().map(named).collect();
            let whence = match (&self.likely, &self.sampled_by) {
                (_, Some(runtime)) => format!(
                    "it is garbage and free memory in the heap of {runtime}, or it was allocated before {runtime} took samples"
                ),
                _ if self.is_attached => format!("it was allocated before the attach, or {ANY}"),
                (Some(likely), None) => format!("it most likely belongs to {likely}"),
                _ if allocators.is_empty() => format!("it {ANY}"),
                _ => format!("it {ANY} ({})", allocators.join(", ")),
            };
            let unlisted = match self.sampled_by.is_none() && !self.is_listed {
                true => Self::UNLISTED,
                false => "",
            };
            let may_be_joined = |(_, names): &(String, String)| {
                (names.split(AND)).any(|name| ["jemalloc", "mimalloc", "tcmalloc"].contains(&name))
            };
            let reason = self.not_joined.as_ref();
            let reason = reason.map_or_else(String::new, |why| format!("; {why}"));
            let advice = if self.not_joined.is_none() && self.suspects.iter().any(may_be_joined) {
                "; try `--embedded`"
            } else if self.has_silent_objects {
                "; `--objects` samples Ruby's objects as well"
            } else if self.has_pages {
                "; `report FILE --heap pages` shows who touched it"
            } else if self.sampled_by.is_none() && !self.is_attached {
                "; `run --pages` shows who touches it"
            } else {
                ""
            };
            let row = self.largest_row.as_ref().map_or_else(String::new, |row| {
                let named = match row.account {
                    Account::Unexplained => String::new(),
                    _ => format!(
                        "{} of it: {}; ",
                        units::bytes(row.anonymous_bytes),
                        row.name
                    ),
                };
                format!("; {named}`allocsample memory FILE` shows all rows")
            });
            format!(
                "warning: {} of the process's memory is not in this profile: {whence}{unlisted}{reason}{advice}{row}",
                units::bytes(self.unseen_bytes())
            )
        })
    }

    /// For scripts.
    pub fn to_json(&self) -> Value {
        let owner = |(name, bytes): &(String, f64)| json!({"name": name, "bytes": bytes});
        json!({
            "anonymous_bytes": self.anonymous_bytes,
            "agent_bytes": self.agent_bytes,
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

/// The reading by which a profile is judged, and the totals at the peak of anonymous memory. A reading without mappings, or one long
/// before the peak, is none.
fn judged(profile: &Profile) -> Option<(Option<&MemoryMap>, MemoryTotals)> {
    let totals = profile.memory.iter().map(|map| map.totals);
    let peak = totals.max_by_key(|it| it.anonymous_bytes)?;
    let largest_map = (profile.memory.iter())
        .filter(|map| !map.mappings.is_empty())
        .max_by_key(|map| map.totals.anonymous_bytes);
    let is_near = |map: &&MemoryMap| {
        map.totals.anonymous_bytes >= peak.anonymous_bytes - peak.anonymous_bytes / 5
    };
    Some((largest_map.filter(is_near), peak))
}

/// Modules with an allocator of their own: not that which `malloc` leads to, whose memory is sampled.
pub fn allocators(profile: &Profile) -> Vec<(String, String)> {
    let file_of = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let with = profile
        .inspected
        .iter()
        .filter(|it| !it.allocator.is_empty());
    let named = with.filter(|it| !profile.is_next_allocator(&it.path));
    let mut found: Vec<_> = named
        .map(|it| (file_of(&it.path), it.allocator.clone()))
        .collect();
    // One that nobody knows, in front of ours.
    let elsewhere = runtimes::unsampled_malloc(profile).map(file_of);
    if let Some(file) = elsewhere
        .filter(|file| !runtimes::is_libc(file) && !found.iter().any(|(module, _)| module == file))
    {
        found.push((file, "malloc".to_owned()));
    }
    found
}

/// Between the names of allocators of one module.
const AND: &str = " and ";

/// Those of them that have no heap in the profile.
fn unsampled(profile: &Profile) -> Vec<(String, String)> {
    let mut allocators = allocators(profile);
    for (file, names) in &mut allocators {
        let is_unsampled = |name: &&str| {
            let heap = format!("{name} in {file}");
            !profile.vm.heaps.values().any(|it| it.name == heap)
        };
        let left = names.split(AND).filter(is_unsampled);
        *names = left.collect::<Vec<_>>().join(AND);
    }
    allocators.retain(|(_, names)| !names.is_empty());
    allocators
}

/// Why these are not sampled, although `--embedded` was on.
fn not_joined(
    profile: &Profile,
    allocators: &[(String, String)],
    found: Option<&Suspects>,
) -> Option<String> {
    let mut notes = profile.notes.iter();
    if !notes.any(|(note, _)| *note == Note::Embedded) {
        return None;
    }
    let inspected = allocators.iter().flat_map(|(file, names)| {
        names
            .split(AND)
            .map(move |name| format!("{name} in {file}"))
    });
    let mut heaps: Vec<String> = inspected.collect();
    // No recorded stack has run through some of these files, so nobody has inspected them.
    let is_sampled = |heap: &str| profile.vm.heaps.values().any(|it| it.name == heap);
    let may_include = |file: &str| found.is_none_or(|found| found.may_include(file));
    for (heap, _) in declined(profile) {
        let is_suspect = heap
            .split_once(" in ")
            .is_some_and(|(_, file)| may_include(file));
        if is_suspect && !is_sampled(heap) && !heaps.iter().any(|it| it == heap) {
            heaps.push(heap.to_owned());
        }
    }
    let reason = |heap: &String| match declined(profile).find(|(of, _)| of == heap) {
        Some((_, why)) => format!("`--embedded` left {heap} alone: {why}"),
        None => format!(
            "`--embedded` cannot sample {heap}: no symbols and no debug file, a version that it does not know, or functions that cannot be redirected"
        ),
    };
    let reasons: Vec<_> = heaps.iter().map(reason).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// The heaps that bridges did not join, and why.
fn declined(profile: &Profile) -> impl Iterator<Item = (&str, &str)> {
    let notes = profile.notes.iter();
    let details = notes.filter(|(note, _)| *note == Note::NotJoined);
    details.filter_map(|(_, detail)| detail.split_once(": "))
}

/// Whether the profile has a heap of an allocator that is part of this file.
pub(crate) fn has_heap_in(profile: &Profile, path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    let is_in = |name: &str| name.split_once(" in ").is_some_and(|(_, of)| of == file);
    let mut heaps = profile.vm.heaps.values();
    heaps.any(|heap| heap.kind == Some(HeapKind::Allocator) && is_in(&heap.name))
}

/// Who has what no sampled heap has, where only one could: a module with an allocator, or a runtime. Nothing proves it.
pub(crate) fn likely_owner(profile: &Profile) -> Option<String> {
    likely(&unsampled(profile), &runtimes::unseen(profile))
}

fn unreconciled(profile: &Profile, map: &MemoryMap) -> Vec<String> {
    let said = |it: shares::Unreconciled| {
        let name = profile.vm.heaps.get(&it.heap).map_or("", |heap| &heap.name);
        format!(
            "warning: {name} does not reconcile: its samples stand for {} where {} are mapped; the process's memory is divided by mappings instead",
            units::bytes(it.live_bytes),
            units::bytes(it.mapped_bytes)
        )
    };
    shares::unreconciled(profile, map)
        .into_iter()
        .map(said)
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

/// Without mappings: what was live then, or at the end of the samples before it. Objects that lie in blocks of malloc's are there
/// already.
fn most_live(profile: &Profile, moment: &MemoryTotals) -> f64 {
    let is_in_malloc = |heap| (profile.backing.samples.iter()).any(|block| block.heap == heap);
    let mut bytes_of: BTreeMap<HeapId, f64> = BTreeMap::new();
    for live in live_at(profile, moment.time_ns) {
        *bytes_of.entry(live.sample.heap).or_default() += live.bytes.value() + live.overhead;
    }
    let apart = bytes_of.iter().filter(|(heap, _)| !is_in_malloc(**heap));
    apart.map(|(_, bytes)| bytes).sum()
}

/// What the heaps account for in these mappings, and who has the rest.
fn account(map: &MemoryMap, shares: &[Share], agents: &[f64]) -> (f64, Vec<(String, f64)>) {
    let mut seen = 0.0;
    let mut owners: BTreeMap<String, f64> = BTreeMap::new();
    for ((mapping, share), agent) in map.mappings.iter().zip(shares).zip(agents) {
        let rest = mapping.anonymous_bytes as f64 - share.sum() - agent;
        seen += share.sum();
        if rest >= 1.0 {
            let name = readable(map.name(mapping));
            *owners.entry(owner(mapping, &name)).or_default() += rest;
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
