//! Who may have the memory that the profile does not account for: a warning about one who cannot have much would mislead.

use std::collections::BTreeMap;

use allocsample_profile::{MemoryMap, Profile};

use crate::ledger::{Account, Ledger, LedgerRow};
use crate::shares::{self, Share};

/// The memory of a process beside the sampled heaps, by who mapped it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Suspects {
    anonymous_bytes: f64,
    /// Nobody is known to have mapped it, so it may be anybody's.
    anybodys_bytes: f64,
    /// By the file that mapped it.
    mapped_bytes: BTreeMap<String, f64>,
    /// The row with most memory.
    pub(crate) largest_row: Option<LedgerRow>,
}

/// Less than this part of the process's anonymous memory is not worth a warning.
pub(crate) const WORTH_A_WARNING: f64 = 0.05;

impl Suspects {
    /// Of the reading that coverage is judged by; `None` if the mappings were not read.
    pub(crate) fn of_profile(profile: &Profile) -> Option<Self> {
        let (map, _) = super::judged(profile)?;
        let map = map?;
        Some(Self::of(profile, map, shares::of(profile, map)))
    }

    /// Of this reading, with the shares of its mappings.
    pub(super) fn of(profile: &Profile, map: &MemoryMap, shares: Vec<Share>) -> Self {
        use Account::{Agent, Malloc, MallocHeld, Objects, ObjectsHeld};
        let mut suspects = Self {
            anonymous_bytes: map.totals.anonymous_bytes as f64,
            ..Self::default()
        };
        let rows = Ledger::of_shares(profile, map, shares).rows.into_iter();
        let unseen: Vec<LedgerRow> = rows
            .filter(|row| {
                !matches!(
                    row.account,
                    Malloc | MallocHeld | Objects | ObjectsHeld | Agent
                )
            })
            .collect();
        for row in &unseen {
            let file = match row.account {
                Account::Mapped => mapper(&row.name),
                Account::Unexplained | Account::Earlier => None,
                _ => continue,
            };
            *match file {
                Some(file) => suspects.mapped_bytes.entry(file.to_owned()).or_default(),
                None => &mut suspects.anybodys_bytes,
            } += row.anonymous_bytes;
        }
        suspects.largest_row =
            (unseen.into_iter()).max_by(|a, b| a.anonymous_bytes.total_cmp(&b.anonymous_bytes));
        suspects
    }

    /// Whether this file may have enough of it to be worth a warning.
    pub(crate) fn may_include(&self, file: &str) -> bool {
        let mapped = self.mapped_bytes.get(file).copied().unwrap_or(0.0);
        self.is_much(self.anybodys_bytes + mapped)
    }

    /// Whether there is enough of it for a warning about a runtime, which may map memory by any of its libraries.
    pub(crate) fn may_include_a_runtime(&self) -> bool {
        let mapped: f64 = self.mapped_bytes.values().sum();
        self.is_much(self.anybodys_bytes + mapped)
    }

    fn is_much(&self, bytes: f64) -> bool {
        bytes >= WORTH_A_WARNING * self.anonymous_bytes
    }
}

/// The file in the name of a row; `None` if no file is known.
fn mapper(row: &str) -> Option<&str> {
    let by = row.strip_prefix("mapped by ")?;
    let file = by.split(" (").next().unwrap_or(by);
    let is_known = !file.ends_with(", without a stack") && file != "code of no module";
    is_known.then_some(file)
}
