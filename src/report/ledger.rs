//! Where the resident memory of a process is: rows that add up to what the kernel counts.
//!
//! Each row has one account. What the sampled heaps have is an estimate from the samples; what they keep besides (free blocks,
//! overhead) is the rest of their mappings. All other memory is told apart by the recorded call that mapped it, or by the
//! kernel's name of the mapping. What neither tells is unexplained, and has a row of its own.
//!
//! The kernel joins neighbouring mappings into one. If several calls have made parts of one, its memory is divided among them
//! in proportion to their lengths.

mod advice;
mod csv;
mod earlier;
mod entries;
mod held;
mod json;
mod own;
mod parts;
mod text;

use std::collections::BTreeMap;

use allocsample_profile::{
    Figure, Frame, GroupFigure, HeapId, HeapKind, MemoryMap, MemoryMapping, MemoryTotals, Note,
    Profile, StackId,
};
use allocsample_sampling::Estimate;

use crate::arenas::Arenas;
use crate::coverage::{allocators, likely_owner};
use crate::shares::{self, Share, is_embedded, live_at};

use earlier::Earlier;
pub(crate) use entries::is_of_agent;
use entries::{Entries, Entry};

pub use csv::write_csv;
pub use held::{Held, Holder, Reason, Walked};
pub(crate) use held::{Outside, lost_by_malloc};
pub use json::to_json;
pub use own::{Agreement, OwnCount};
pub use text::{Options, write};

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Account {
    /// Live blocks of malloc.
    Malloc,
    /// Free blocks of malloc, and the overhead of live ones.
    MallocHeld,
    /// Live objects of virtual machines.
    Objects,
    /// What their heaps have besides.
    ObjectsHeld,
    /// Stacks of threads.
    Stacks,
    /// Mapped by a call that was recorded.
    Mapped,
    /// Pages of files that were changed, and static data.
    Data,
    /// The page cache of mapped files.
    Files,
    /// Shared memory.
    Shared,
    /// Of the agent.
    Agent,
    /// Mapped before the recording began.
    Earlier,
    /// Nobody is known to have mapped it.
    Unexplained,
}

impl Account {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 12] = [
        Self::Malloc,
        Self::MallocHeld,
        Self::Objects,
        Self::ObjectsHeld,
        Self::Stacks,
        Self::Mapped,
        Self::Data,
        Self::Files,
        Self::Shared,
        Self::Agent,
        Self::Earlier,
        Self::Unexplained,
    ];

    /// The name for scripts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malloc => "malloc",
            Self::MallocHeld => "malloc_held",
            Self::Objects => "objects",
            Self::ObjectsHeld => "objects_held",
            Self::Stacks => "stacks",
            Self::Mapped => "mapped",
            Self::Data => "data",
            Self::Files => "files",
            Self::Shared => "shared",
            Self::Agent => "agent",
            Self::Earlier => "earlier",
            Self::Unexplained => "unexplained",
        }
    }
}

/// Calls by the same functions.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Site {
    /// The stack of one of the calls.
    pub stack: StackId,
    /// What is resident of that which they mapped.
    pub resident_bytes: f64,
    /// What they mapped and nobody has unmapped.
    pub mapped_bytes: f64,
    /// How many calls.
    pub calls: usize,
}

/// One row.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LedgerRow {
    /// Whose memory it is.
    pub account: Account,
    /// The same in words.
    pub name: String,
    /// What is resident, in bytes.
    pub resident_bytes: f64,
    /// The part of it that belongs to no file.
    pub anonymous_bytes: f64,
    /// The standard error, where it is an estimate from samples, or the rest beside one.
    pub stderr_bytes: Option<f64>,
    /// Of what malloc has besides blocks, if its heap was walked: why it is kept, largest first. They add up to the row.
    pub reasons: Vec<(Reason, f64)>,
    /// Of mapped memory and of stacks: where from, largest first.
    pub sites: Vec<Site>,
}

/// The ledger of one moment.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Ledger {
    /// What the kernel counts.
    pub totals: MemoryTotals,
    /// What it has moved to the disk.
    pub swapped_bytes: u64,
    /// Anonymous memory in huge pages.
    pub huge_bytes: u64,
    /// In the order of accounts, and of size within one. Their sum is the resident memory.
    pub rows: Vec<LedgerRow>,
    /// Figures of the control group that the process is in.
    pub group: Vec<(GroupFigure, u64)>,
    /// What malloc keeps, if its heap was walked.
    pub held: Option<Held>,
    /// What allocators count themselves, if they were asked.
    pub own_counts: Vec<OwnCount>,
}

impl Ledger {
    /// Of one reading.
    pub fn of(profile: &Profile, map: &MemoryMap) -> Self {
        Self::build(profile, map, None, shares::of(profile, map), true)
    }

    /// The same without the calls of each row, which take most of the time and memory.
    pub fn without_sites(profile: &Profile, map: &MemoryMap) -> Self {
        Self::of_shares(profile, map, shares::of(profile, map))
    }

    /// The same with the [shares](shares::of) of the reading's mappings, which take much of the time.
    pub(crate) fn of_shares(profile: &Profile, map: &MemoryMap, shares: Vec<Share>) -> Self {
        Self::build(profile, map, None, shares, false)
    }

    /// Of one reading, with the process as it was read from outside about the same time.
    pub fn of_walked(profile: &Profile, map: &MemoryMap, walked: Walked) -> Self {
        let outside = Outside::of(profile, walked);
        let shares = shares::of_read(profile, map, &outside);
        Self::build(profile, map, Some(outside), shares, true)
    }

    fn build(
        profile: &Profile,
        map: &MemoryMap,
        outside: Option<Outside>,
        shares: Vec<Share>,
        has_sites: bool,
    ) -> Self {
        let mut entries = Entries {
            profile,
            allocators: allocators(profile),
            arenas: Arenas::of(profile),
            has_sites,
            calls: profile.mapped_at(map.totals.time_ns),
            earlier: Earlier::of(profile),
            likely: likely_owner(profile),
            known: match &outside {
                Some(outside) => &outside.contents.known,
                None => &[],
            },
            guards_mean_stacks: (profile.notes.iter()).any(|(note, _)| *note == Note::Attached)
                && crate::runtimes::unsampled_malloc(profile).is_none(),
            rows: BTreeMap::new(),
        };
        let has_pools = outside.as_ref().is_some_and(Outside::has_pools);
        let (machines, not_live) = (machines(profile, has_pools), not_live(profile));
        let name_of = |heap: Option<HeapId>| {
            let heap = heap.and_then(|heap| profile.vm.heaps.get(&heap));
            heap.map_or("an allocator", |heap| &*heap.name)
        };
        for (mapping, share) in map.mappings.iter().zip(shares) {
            let objects = |what: &str| format!("{machines}: {what}");
            let sampled = [
                (Account::Malloc, LIVE.to_owned(), share.malloc),
                (Account::MallocHeld, FREE.to_owned(), share.malloc_held),
                (Account::Objects, objects("live objects"), share.objects),
                (Account::ObjectsHeld, objects(not_live), share.objects_held),
                (
                    Account::Objects,
                    live_blocks(name_of(share.allocator)),
                    share.embedded,
                ),
                (
                    Account::ObjectsHeld,
                    free_blocks(name_of(share.allocator)),
                    share.embedded_held,
                ),
            ];
            for (account, name, bytes) in sampled {
                entries.add(account, name, bytes, bytes);
            }
            entries.add_rest(map, mapping, &share);
        }
        let listed: u64 = map.mappings.iter().map(|it| it.resident_bytes).sum();
        // Readings of earlier versions have no file's memory, nor what is in small parts.
        let unlisted = map.totals.resident_bytes.saturating_sub(listed) as f64;
        entries.add(Account::Files, FILES.to_owned(), unlisted, 0.0);
        let mut rows: Vec<LedgerRow> = entries.rows.into_values().map(Entry::finish).collect();
        // Of malloc, of each allocator beside it, and of all machines together.
        let mut sums: BTreeMap<Option<HeapId>, Estimate> = BTreeMap::new();
        if let Some(held) = outside.as_ref().and_then(|it| it.held.as_ref()) {
            sums.insert(Some(HeapId::MALLOC), held.rounding);
        }
        // What was walked is no estimate, but for what sizes were rounded up by.
        let is_walked = |address| outside.as_ref().is_some_and(|it| it.has_counted(address));
        let in_pools = match has_pools {
            true => shares::of_python(profile),
            false => Vec::new(),
        };
        for live in live_at(profile, map.totals.time_ns) {
            let heap = live.sample.heap;
            let is_counted = match heap {
                HeapId::MALLOC => is_walked(live.sample.address),
                heap => in_pools.contains(&heap),
            };
            if is_counted {
                continue;
            }
            let is_own = heap == HeapId::MALLOC || is_embedded(profile, heap);
            *sums.entry(is_own.then_some(heap)).or_default() += live.bytes;
        }
        for (heap, sum) in sums {
            // The rest of their mappings is off by as much, in the other direction.
            let of_heap = match heap {
                Some(HeapId::MALLOC) => [
                    (Account::Malloc, LIVE.to_owned()),
                    (Account::MallocHeld, FREE.to_owned()),
                ],
                Some(heap) => [
                    (Account::Objects, live_blocks(name_of(Some(heap)))),
                    (Account::ObjectsHeld, free_blocks(name_of(Some(heap)))),
                ],
                None => [
                    (Account::Objects, format!("{machines}: live objects")),
                    (Account::ObjectsHeld, format!("{machines}: {not_live}")),
                ],
            };
            for row in &mut rows {
                let mut of_heap = of_heap.iter();
                if of_heap.any(|(account, name)| row.account == *account && row.name == *name) {
                    row.stderr_bytes = sum.stderr();
                }
            }
        }
        let held = outside.and_then(|it| it.held);
        let row = rows
            .iter_mut()
            .find(|row| row.account == Account::MallocHeld);
        if let Some((row, held)) = row.zip(held.as_ref()) {
            row.reasons = reasons(held, row.resident_bytes);
        }
        parts::divide(profile, map.totals.time_ns, &machines, &mut rows);
        rows.sort_by(|a, b| {
            (a.account.cmp(&b.account)).then(b.resident_bytes.total_cmp(&a.resident_bytes))
        });
        let sum = |of: fn(&MemoryMapping) -> u64| map.mappings.iter().map(of).sum();
        Self {
            totals: map.totals,
            swapped_bytes: sum(|it| it.swapped_bytes),
            huge_bytes: sum(|it| it.huge_bytes),
            rows,
            group: map.group.clone(),
            held,
            own_counts: match has_sites {
                true => own::counts(profile, map.totals.time_ns),
                false => Vec::new(),
            },
        }
    }

    /// The reading with most resident memory of those that have a list of mappings.
    pub fn peak_reading(profile: &Profile) -> Option<&MemoryMap> {
        listed(profile).max_by_key(|map| map.totals.resident_bytes)
    }

    /// The last one that has a list of mappings.
    pub fn last_reading(profile: &Profile) -> Option<&MemoryMap> {
        listed(profile).next_back()
    }

    /// The ledgers of the largest reading and of the last one, with malloc's heap at the time of the last one if it was walked.
    /// `None`: no reading has a list of mappings.
    pub fn peak_and_last(profile: &Profile, walked: Option<Walked>) -> Option<(Self, Self)> {
        let (peak, last) = (Self::peak_reading(profile)?, Self::last_reading(profile)?);
        let last_ledger = match walked {
            Some(walked) => Self::of_walked(profile, last, walked),
            None => Self::of(profile, last),
        };
        let peak_ledger = match std::ptr::eq(peak, last) {
            true => last_ledger.clone(),
            false => Self::of(profile, peak),
        };
        Some((peak_ledger, last_ledger))
    }

    /// How much more was resident at some time than at any reading with a list of mappings: the rows of the peak lack it.
    pub fn missed_bytes(profile: &Profile) -> u64 {
        let peak = |map: &MemoryMap| {
            let totals = &map.totals;
            totals.resident_bytes.max(totals.peak_resident_bytes)
        };
        let peak_bytes = profile.memory.iter().map(peak).max();
        let listed_bytes = Self::peak_reading(profile).map_or(0, |map| map.totals.resident_bytes);
        peak_bytes.unwrap_or(0).saturating_sub(listed_bytes)
    }

    /// The sum of an account.
    pub fn of_account(&self, account: Account) -> f64 {
        let rows = self.rows.iter().filter(|row| row.account == account);
        // A sum of nothing is -0.
        rows.map(|row| row.resident_bytes).sum::<f64>() + 0.0
    }

    /// What the row with this account and name has; 0 if there is none.
    pub fn of_row(&self, account: Account, name: &str) -> f64 {
        let mut rows = self.rows.iter();
        let row = rows.find(|row| row.account == account && row.name == name);
        row.map_or(0.0, |row| row.resident_bytes)
    }
}

fn listed(profile: &Profile) -> impl DoubleEndedIterator<Item = &MemoryMap> {
    let readings = profile.memory.iter();
    readings.filter(|map| !map.mappings.is_empty())
}

/// Why the bytes of malloc's row are kept. What sizes were rounded up by is in no block either; and the process went on between
/// the reading of its mappings and the walk, so the rest of the row is not understood.
fn reasons(held: &Held, row_bytes: f64) -> Vec<(Reason, f64)> {
    let mut reasons: Vec<(Reason, f64)> = (held.reasons().into_iter())
        .map(|(reason, bytes)| (reason, bytes as f64))
        .collect();
    let rounding = held.rounding.value().min(held.parts.in_use as f64);
    if rounding > 0.0 {
        match reasons.iter_mut().find(|it| it.0 == Reason::Headers) {
            Some(headers) => headers.1 += rounding,
            None => reasons.push((Reason::Headers, rounding)),
        }
    }
    let sum: f64 = reasons.iter().map(|it| it.1).sum();
    if sum > row_bytes {
        reasons.iter_mut().for_each(|it| it.1 *= row_bytes / sum);
    } else if row_bytes - sum >= 0.5 {
        match reasons.iter_mut().find(|it| it.0 == Reason::Lost) {
            Some(lost) => lost.1 += row_bytes - sum,
            None => reasons.push((Reason::Lost, row_bytes - sum)),
        }
    }
    reasons.sort_by(|a, b| b.1.total_cmp(&a.1));
    reasons
}

/// When a moment was, in seconds since the process began.
fn seconds_into(profile: &Profile, time_ns: u64) -> f64 {
    time_ns.saturating_sub(profile.process.start_ns) as f64 / 1e9
}

/// Calls that the agent saw and could not record.
pub(crate) fn not_recorded(profile: &Profile) -> u64 {
    profile.own_cost.of(Figure::MappingsNotRecorded)
}

/// The frames of a stack, innermost first.
pub fn frames_of(profile: &Profile, stack: StackId) -> Vec<Frame> {
    let locations = profile.stacks.locations(stack);
    locations
        .flat_map(|location| profile.frames(location))
        .collect()
}

const FILES: &str = "files: page cache";
const LIVE: &str = "malloc: live blocks";
const FREE: &str = "malloc: free blocks, overhead";

fn live_blocks(allocator: &str) -> String {
    format!("{allocator}: live blocks")
}

fn free_blocks(allocator: &str) -> String {
    format!("{allocator}: free blocks, overhead")
}

/// What the heaps of virtual machines have besides live objects, in words.
fn not_live(profile: &Profile) -> &'static str {
    let heaps = profile.vm.heaps.iter();
    let mut machines = heaps.filter(|(_, heap)| heap.kind != Some(HeapKind::Allocator));
    let has_range = |heap| profile.vm.ranges.keys().any(|(of, _)| *of == heap);
    match !profile.vm.ranges.is_empty() && machines.all(|(heap, _)| has_range(*heap)) {
        true => "garbage or free",
        false => "free, or not sampled",
    }
}

/// The heaps of virtual machines with samples, in words, and CPython's if its pools are known.
fn machines(profile: &Profile, has_pools: bool) -> String {
    let mut names: Vec<&str> = (profile.vm.heaps.values())
        .filter(|heap| heap.kind != Some(HeapKind::Allocator))
        .map(|heap| heap.name.as_str())
        .chain(has_pools.then_some("python"))
        .collect();
    names.sort_unstable();
    names.dedup();
    match names.is_empty() {
        true => "virtual machines".to_owned(),
        false => names.join(", "),
    }
}

#[cfg(test)]
pub(crate) mod tests;
