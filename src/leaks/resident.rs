//! What the resident memory grew by, row by row: a leak of blocks, of mappings, free blocks that stay, or only files.

use std::collections::BTreeMap;

use allocsample_profile::{MemoryMap, Profile};
use allocsample_report::{Account, Ledger, units};
use serde_json::{Value, json};

use crate::growth::WARM_UP;
use crate::progress::horizon_ns;

/// Growth between two readings of the mappings.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ResidentGrowth {
    /// When they were, in seconds after the beginning of the process.
    pub from_s: f64,
    /// The later one.
    pub to_s: f64,
    /// Of all resident memory, in bytes.
    pub bytes: f64,
    /// Of the rows of the ledger, largest first.
    pub rows: Vec<(Account, String, f64)>,
}

/// Of the later reading, the change that is worth a line.
const MATERIAL: f64 = 1.0 / 32.0;
/// Of the growth, what makes up most of it.
const MOST: f64 = 0.5;

impl ResidentGrowth {
    /// From the first reading after the warm-up, or the last one before it, to the last one. A program that has ended may have freed
    /// its blocks before, and their pages would pass for free memory that stays, so the last reading before the horizon counts then.
    /// `None`: there are not two.
    pub fn of(profile: &Profile) -> Option<Self> {
        let span = profile.span_ns();
        let warm_ns = span.start + (WARM_UP * (span.end.saturating_sub(span.start)) as f64) as u64;
        let horizon_ns = match profile.exit {
            Some(_) => horizon_ns(profile),
            None => u64::MAX,
        };
        let listed: Vec<&MemoryMap> = (profile.memory.iter())
            .filter(|map| !map.mappings.is_empty())
            .collect();
        let until_horizon =
            |map: &&&MemoryMap| (warm_ns..=horizon_ns).contains(&map.totals.time_ns);
        let last = *(listed.iter().rfind(until_horizon)).or(listed.last())?;
        let is_warm = |map: &&&MemoryMap| map.totals.time_ns >= warm_ns;
        let before = listed.iter().rev().find(|map| !is_warm(map));
        // Nothing was read while nothing changed: what was read before the end of the warm-up held until then.
        let first = *before.or_else(|| listed.iter().find(is_warm))?;
        (first.totals.time_ns < last.totals.time_ns).then(|| Self::between(profile, first, last))
    }

    fn between(profile: &Profile, first: &MemoryMap, last: &MemoryMap) -> Self {
        let mut rows: BTreeMap<(Account, String), f64> = BTreeMap::new();
        for (map, sign) in [(first, -1.0), (last, 1.0)] {
            for row in Ledger::of(profile, map).rows {
                *rows.entry((row.account, row.name)).or_default() += sign * row.resident_bytes;
            }
        }
        let mut rows: Vec<(Account, String, f64)> = (rows.into_iter())
            .map(|((account, name), bytes)| (account, name, bytes))
            .collect();
        rows.sort_by(|a, b| b.2.total_cmp(&a.2));
        let seconds = |map: &MemoryMap| {
            map.totals.time_ns.saturating_sub(profile.process.start_ns) as f64 / 1e9
        };
        Self {
            from_s: seconds(first),
            to_s: seconds(last),
            bytes: last.totals.resident_bytes as f64 - first.totals.resident_bytes as f64,
            rows,
        }
    }

    fn of_account(&self, account: Account) -> f64 {
        let rows = self.rows.iter().filter(|row| row.0 == account);
        rows.map(|row| row.2).sum()
    }

    /// The account that most of the growth is in; `None` if it does not grow, or if none has half of it.
    pub fn mostly(&self) -> Option<Account> {
        let most = MOST * self.bytes;
        let mut accounts = Account::ALL.into_iter();
        accounts.find(|&account| self.bytes > 0.0 && self.of_account(account) >= most)
    }

    /// What that means for somebody who looks for a leak.
    fn meaning(&self) -> Option<&'static str> {
        Some(match self.mostly()? {
            Account::MallocHeld => {
                "mostly free blocks that malloc keeps, such as holes between live ones: not a leak of blocks; `allocsample memory PID` shows which sites hold them while the process runs"
            }
            Account::ObjectsHeld => {
                "mostly memory that a language's heap keeps without objects in it"
            }
            Account::Files => {
                "mostly page cache of files, which the kernel takes back when it needs memory: not a leak"
            }
            _ => return None,
        })
    }

    /// A line, if there is growth worth one.
    pub fn line(&self, resident_bytes: f64) -> Option<String> {
        const SHOWN: usize = 3;
        if self.bytes < MATERIAL * resident_bytes {
            return None;
        }
        let rows = self.rows.iter().take(SHOWN);
        let rows = rows.filter(|(_, _, bytes)| *bytes >= 0.05 * self.bytes);
        let parts: Vec<String> = rows
            .map(|(_, name, bytes)| format!("{} {name}", units::bytes(*bytes)))
            .collect();
        let mut line = format!(
            "resident memory grew by {} from {} to {}: {}",
            units::bytes(self.bytes),
            units::duration(self.from_s),
            units::duration(self.to_s),
            parts.join("; "),
        );
        if let Some(meaning) = self.meaning() {
            line += &format!(" ({meaning})");
        }
        Some(line)
    }

    /// For scripts.
    pub fn to_json(&self) -> Value {
        let row = |(account, name, bytes): &(Account, String, f64)| json!({"account": account.name(), "name": name, "bytes": bytes});
        json!({
            "from_s": self.from_s,
            "to_s": self.to_s,
            "bytes": self.bytes,
            "mostly": self.mostly().map(Account::name),
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{Exit, ExitHow, MemoryMapping, MemoryTotals};

    const MIB: u64 = 1 << 20;

    fn reading(second: u64, file_mib: u64, nameless_mib: u64) -> MemoryMap {
        let mapping = |start, name, mib, anonymous_mib| MemoryMapping {
            start,
            bytes: 1000 * MIB,
            resident_bytes: mib * MIB,
            anonymous_bytes: anonymous_mib * MIB,
            name,
            ..MemoryMapping::default()
        };
        MemoryMap {
            totals: MemoryTotals {
                time_ns: second * 1_000_000_000,
                resident_bytes: (file_mib + nameless_mib) * MIB,
                anonymous_bytes: nameless_mib * MIB,
                peak_resident_bytes: 0,
            },
            names: vec![b"/data".to_vec(), Vec::new()],
            mappings: vec![
                mapping(1 << 40, 0, file_mib, 0),
                mapping(1 << 41, 1, nameless_mib, nameless_mib),
            ],
            group: Vec::new(),
        }
    }

    fn growth(readings: Vec<MemoryMap>) -> Option<ResidentGrowth> {
        let mut profile = Profile::default();
        profile.process.end_ns = 10_000_000_000;
        profile.memory = readings;
        ResidentGrowth::of(&profile)
    }

    #[test]
    fn files_that_grow_are_no_leak() {
        let found = growth(vec![reading(1, 10, 10), reading(9, 110, 12)]).expect("growth");
        assert_eq!(found.mostly(), Some(Account::Files));
        assert_eq!(found.bytes, (102 * MIB) as f64);
        let line = found.line(122.0 * MIB as f64).expect("a line");
        assert!(
            line.starts_with(
                "resident memory grew by 102 MiB from 1.0 s to 9.0 s: 100 MiB files: page cache"
            ),
            "{line}"
        );
        assert!(line.ends_with("not a leak)"), "{line}");
    }

    #[test]
    fn what_nobody_claims_has_no_advice() {
        let found = growth(vec![reading(1, 10, 10), reading(9, 10, 200)]).expect("growth");
        assert_eq!(found.mostly(), Some(Account::Unexplained));
        let line = found.line(210.0 * MIB as f64).expect("a line");
        assert!(line.ends_with("190 MiB unexplained"), "{line}");
    }

    /// A program that frees all before it ends has large free memory then, which it did not keep while it ran.
    #[test]
    fn the_reading_of_a_program_that_has_freed_its_blocks_to_end_does_not_count() {
        let of = |exit: Option<Exit>, seconds: &[u64]| {
            let mut profile = Profile::default();
            profile.process.end_ns = 10_000_000_000;
            profile.exit = exit;
            let readings = seconds
                .iter()
                .map(|&second| reading(second, 10, 10 * second));
            profile.memory = readings.collect();
            ResidentGrowth::of(&profile).map(|it| (it.from_s, it.to_s))
        };
        let exit = Some(Exit {
            time_ns: 10_000_000_000,
            how: ExitHow::Exit,
            status: Some(0),
        });
        assert_eq!(of(exit, &[1, 5, 10]), Some((1.0, 5.0)));
        assert_eq!(of(None, &[1, 5, 10]), Some((1.0, 10.0)));
        // Without another, that one counts.
        assert_eq!(of(exit, &[1, 10]), Some((1.0, 10.0)));
    }

    #[test]
    fn little_or_no_growth_has_no_line_and_one_reading_no_growth() {
        let found = growth(vec![reading(1, 100, 10), reading(9, 101, 10)]).expect("growth");
        assert_eq!(found.line(111.0 * MIB as f64), None);
        let shrunk = growth(vec![reading(1, 100, 10), reading(9, 1, 10)]).expect("growth");
        assert_eq!(
            (shrunk.mostly(), shrunk.line(11.0 * MIB as f64)),
            (None, None)
        );
        assert_eq!(growth(vec![reading(1, 100, 10)]), None);
    }
}
