//! Memory of the agent itself.

use allocsample_profile::{MemoryMap, MemoryMapping, Profile};

use super::{Share, end_of, is_sum};
use crate::ledger::is_of_agent;

/// Anonymous bytes of the agent in each mapping of a reading, of what the sampled heaps leave of it. The kernel joins
/// neighbouring mappings and does not say where in them memory is resident: the agent has its part of the length.
pub(crate) fn of_agent(profile: &Profile, map: &MemoryMap, shares: &[Share]) -> Vec<f64> {
    let has_calls = (profile.mappings.iter()).any(|call| call.mapped.change.is_own());
    let calls = has_calls.then(|| profile.mapped_at(map.totals.time_ns));
    let is_own = |row: usize| profile.mappings[row].mapped.change.is_own();
    let mapped_part = |mapping: &MemoryMapping| {
        let Some(calls) = calls.as_ref().filter(|_| !is_sum(mapping)) else {
            return 0.0;
        };
        let (start, end) = (mapping.start, end_of(mapping));
        // Nothing but stacks is in a mapping with threads.
        let (mut threads, mut own_threads) = (0.0, 0.0);
        for (_, row) in calls.threads_within(start, end) {
            threads += 1.0;
            own_threads += f64::from(u8::from(is_own(row)));
        }
        if threads > 0.0 {
            return own_threads / threads;
        }
        let own = calls.within(start, end).filter(|&(.., row)| is_own(row));
        let bytes: u64 = own.map(|(start, end, _)| end - start).sum();
        bytes as f64 / mapping.bytes.max(1) as f64
    };
    let bytes = |(mapping, share): (&MemoryMapping, &Share)| {
        let part = match is_of_agent(&String::from_utf8_lossy(map.name(mapping))) {
            true => 1.0,
            false => mapped_part(mapping),
        };
        (mapping.anonymous_bytes as f64 - share.sum()).max(0.0) * part
    };
    map.mappings.iter().zip(shares).map(bytes).collect()
}
