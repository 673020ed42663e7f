//! Memory from before the recording: of a process that was attached to, or of a forked child.
//!
//! The calls that mapped it are not recorded. The first list of mappings says which addresses were in use when the recording began.
//! Memory there that no recorded call has mapped since is as old.

use allocsample_profile::{MappedRanges, MemoryMapping, Note, Profile};

use super::{entries::end_of, listed};

/// The addresses that were in use when the recording began.
pub(super) struct Earlier {
    pub label: &'static str,
    /// By address; none overlap.
    ranges: Vec<(u64, u64)>,
}

impl Earlier {
    pub fn of(profile: &Profile) -> Self {
        let label = label(profile);
        let first = label.and_then(|_| listed(profile).next());
        let ranges = first.into_iter().flat_map(|map| &map.mappings);
        let mut ranges: Vec<(u64, u64)> = ranges
            .filter(|it| it.start != 0)
            .map(|it| (it.start, end_of(it)))
            .collect();
        ranges.sort_unstable();
        Self {
            label: label.unwrap_or_default(),
            ranges,
        }
    }

    /// How much of a mapping, from 0 to 1, is as old, of the part that no recorded call has made.
    pub fn part_of(&self, calls: &MappedRanges<usize>, mapping: &MemoryMapping) -> f64 {
        let unclaimed = |start: u64, end: u64| {
            let claimed: u64 = calls
                .within(start, end)
                .map(|(from, to, _)| to - from)
                .sum();
            (end - start).saturating_sub(claimed)
        };
        let (start, end) = (mapping.start, end_of(mapping));
        let after = self.ranges.partition_point(|&(_, to)| to <= start);
        let within = self.ranges[after..].iter();
        let within = within.take_while(|&&(from, _)| from < end);
        let old: u64 = within
            .map(|&(from, to)| unclaimed(from.max(start), to.min(end)))
            .sum();
        match unclaimed(start, end) {
            0 => 0.0,
            all => old as f64 / all as f64,
        }
    }
}

/// What such memory is called, if the recording began late. Only the mapping is older: what a program maps at its start may be used
/// later.
fn label(profile: &Profile) -> Option<&'static str> {
    profile.notes.iter().find_map(|(note, _)| match note {
        Note::Attached => Some("mapped before the attach"),
        Note::ForkedFrom => Some("mapped before the fork"),
        _ => None,
    })
}

/// What to do about so much of it.
pub(super) fn advice(profile: &Profile, bytes: f64) -> Option<String> {
    let label = label(profile)?;
    let where_else = match label.ends_with("fork") {
        true => "the profile of the parent has its call sites",
        false => {
            "`allocsample memory PID` recognises blocks of malloc and objects of CPython in it while the process runs"
        }
    };
    let bytes = crate::units::bytes(bytes);
    Some(format!("{bytes} were {label}: {where_else}"))
}
