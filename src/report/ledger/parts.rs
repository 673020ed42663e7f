//! The live memory of Erlang's emulator by the allocators that it consists of.

use std::collections::BTreeMap;

use allocsample_profile::{HeapId, Profile};
use allocsample_sampling::Estimate;

use super::{Account, LedgerRow};
use crate::shares::live_at;

const HEAP: &str = "erlang";

/// What an allocator is for. The types of its blocks begin with its name.
const ALLOCATORS: [(&str, &str); 9] = [
    ("eheap_alloc", "process heaps"),
    ("binary_alloc", "binaries"),
    ("ets_alloc", "ETS tables"),
    ("literal_alloc", "literals"),
    ("ll_alloc", "atoms, modules and other long-lived data"),
    ("fix_alloc", "processes, monitors and other fixed-size data"),
    ("driver_alloc", "drivers and NIFs"),
    ("std_alloc", "standard data"),
    ("sl_alloc", "short-lived data"),
];

fn name_of(type_name: &str) -> String {
    let allocator = type_name.split(':').next().unwrap_or(type_name);
    let known = ALLOCATORS.iter().find(|(name, _)| *name == allocator);
    match known {
        Some((_, purpose)) => format!("{HEAP}: {purpose} ({allocator})"),
        None => format!("{HEAP}: {allocator}"),
    }
}

/// Divides the row of the emulator's live memory, if it is that of no other machine as well, in proportion to what the samples
/// of its allocators stand for.
pub(super) fn divide(profile: &Profile, time_ns: u64, machines: &str, rows: &mut Vec<LedgerRow>) {
    let is_it = |row: &LedgerRow| {
        row.account == Account::Objects && row.name == format!("{HEAP}: live objects")
    };
    let Some(at) = rows.iter().position(is_it).filter(|_| machines == HEAP) else {
        return;
    };
    let is_erlang = |heap: HeapId| {
        let heap = profile.vm.heaps.get(&heap);
        heap.is_some_and(|heap| heap.name == HEAP)
    };
    let mut sums: BTreeMap<String, Estimate> = BTreeMap::new();
    for live in live_at(profile, time_ns).filter(|live| is_erlang(live.sample.heap)) {
        let key = (live.sample.heap, live.sample.type_id);
        let known = profile.vm.types.get(&key);
        let name = name_of(known.map_or("of unknown type", |known| &known.name));
        *sums.entry(name).or_default() += live.bytes;
    }
    let all: f64 = sums.values().map(Estimate::value).sum();
    if all <= 0.0 {
        return;
    }
    let whole = rows.remove(at);
    rows.extend(sums.into_iter().map(|(name, sum)| {
        let share = sum.value() / all;
        LedgerRow {
            name,
            resident_bytes: whole.resident_bytes * share,
            anonymous_bytes: whole.anonymous_bytes * share,
            stderr_bytes: sum.stderr(),
            ..whole.clone()
        }
    }));
}
