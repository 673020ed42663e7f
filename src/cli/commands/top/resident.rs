//! The resident memory in the head of the screen: how much of it is known, and which rows of the ledger grow.

use std::collections::VecDeque;

use allocsample_report::units::{bytes, percent};
use allocsample_report::{Account, Ledger};

/// Growth is counted since a reading of about so long ago: between two readings it may be within the errors.
const WINDOW_S: f64 = 60.0;
/// Less is no growth.
const LEAST_BYTES: f64 = (64 << 10) as f64;
/// Rows that are named.
const SHOWN: usize = 3;

/// A row of the ledger.
#[derive(Clone, Debug, Default)]
pub struct Part {
    pub name: String,
    pub bytes: f64,
    pub stderr: f64,
}

/// The ledger of a moment.
#[derive(Clone, Debug, Default)]
pub struct Resident {
    /// Since the start of the profile.
    pub after_s: f64,
    pub bytes: f64,
    pub anonymous_bytes: f64,
    /// The part of the anonymous memory that sampled heaps account for.
    pub sampled_bytes: f64,
    pub unexplained_bytes: f64,
    pub parts: Vec<Part>,
}

impl Resident {
    /// From a ledger, read so long after the start.
    pub fn of(ledger: &Ledger, after_s: f64) -> Self {
        let sampled = [
            Account::Malloc,
            Account::MallocHeld,
            Account::Objects,
            Account::ObjectsHeld,
        ];
        let parts = ledger.rows.iter().map(|row| Part {
            name: row.name.clone(),
            bytes: row.resident_bytes,
            stderr: row.stderr_bytes.unwrap_or(0.0),
        });
        Self {
            after_s,
            bytes: ledger.totals.resident_bytes as f64,
            anonymous_bytes: ledger.totals.anonymous_bytes as f64,
            sampled_bytes: sampled.map(|it| ledger.of_account(it)).iter().sum(),
            unexplained_bytes: ledger.of_account(Account::Unexplained),
            parts: parts.collect(),
        }
    }
}

/// Readings of the last minute.
#[derive(Debug, Default)]
pub struct History(VecDeque<Resident>);

impl History {
    /// Takes a new reading.
    pub fn add(&mut self, reading: Resident) {
        let is_late = |it: &Resident| reading.after_s - it.after_s >= WINDOW_S;
        // One that is a window old stays: the next ones are not yet.
        while self.0.get(1).is_some_and(is_late) {
            self.0.pop_front();
        }
        self.0.push_back(reading);
    }

    /// Two lines; none before the first reading.
    pub fn lines(&self) -> Option<[String; 2]> {
        let now = self.0.back()?;
        let of_anonymous = |bytes: f64| percent(bytes, now.anonymous_bytes).trim().to_owned();
        let known = format!(
            "RSS {}   anonymous {}: coverage {}, unexplained {}",
            bytes(now.bytes),
            bytes(now.anonymous_bytes),
            of_anonymous(now.sampled_bytes),
            of_anonymous(now.unexplained_bytes),
        );
        Some([known, self.growth(now)])
    }

    fn growth(&self, now: &Resident) -> String {
        let Some(before) = self.0.front().filter(|it| it.after_s < now.after_s) else {
            return "growth of RSS: from the next reading on".to_owned();
        };
        let was = |name: &str| {
            let mut parts = before.parts.iter();
            let part = parts.find(|part| part.name == name);
            part.map_or(0.0, |part| part.bytes)
        };
        let mut grown: Vec<(f64, &str)> = (now.parts.iter())
            .map(|part| (part.bytes - was(&part.name), part))
            .filter(|(growth, part)| *growth >= part.stderr.max(LEAST_BYTES))
            .map(|(growth, part)| (growth, part.name.as_str()))
            .collect();
        grown.sort_by(|a, b| b.0.total_cmp(&a.0));
        let window = format!("in {:.0} s", now.after_s - before.after_s);
        let change = now.bytes - before.bytes;
        let sign = if change > 0.0 { "+" } else { "" };
        let mut line = format!("{window}: RSS {sign}{}", bytes(change));
        for (growth, name) in grown.into_iter().take(SHOWN) {
            line += &format!("  ▲ {} {name}", bytes(growth));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = (1 << 20) as f64;

    fn at(after_s: f64, parts: &[(&str, f64, f64)]) -> Resident {
        let parts = parts.iter().map(|&(name, mib, stderr_mib)| Part {
            name: name.to_owned(),
            bytes: mib * MIB,
            stderr: stderr_mib * MIB,
        });
        let parts: Vec<Part> = parts.collect();
        Resident {
            after_s,
            bytes: parts.iter().map(|it| it.bytes).sum(),
            parts,
            ..Resident::default()
        }
    }

    #[test]
    fn rows_that_grow_by_more_than_their_error_are_named_largest_first() {
        let mut history = History::default();
        assert_eq!(history.lines(), None);
        history.add(at(
            1.0,
            &[("heap", 10.0, 1.0), ("free", 2.0, 1.0), ("files", 9.0, 0.0)],
        ));
        let [_, line] = history.lines().expect("a reading");
        assert!(!line.contains('▲'), "{line}");
        history.add(at(
            5.0,
            &[
                ("heap", 10.5, 1.0),
                ("free", 4.0, 1.0),
                ("files", 8.0, 0.0),
                ("stacks", 3.0, 0.0),
            ],
        ));
        let [_, line] = history.lines().expect("readings");
        assert_eq!(
            line,
            "in 4 s: RSS +4.5 MiB  ▲ 3.0 MiB stacks  ▲ 2.0 MiB free"
        );
    }

    #[test]
    fn slow_growth_shows_within_a_minute_and_old_readings_go() {
        let mut history = History::default();
        for second in 0..600 {
            // 6 KiB a second: nothing in one, and more than the error in a minute.
            let grown = f64::from(second) * 6.0 / 1024.0;
            history.add(at(f64::from(second), &[("heap", 10.0 + grown, 0.2)]));
        }
        let [_, line] = history.lines().expect("readings");
        assert!(
            line.starts_with("in 60 s: RSS +360 KiB  ▲ 360 KiB heap"),
            "{line}"
        );
        assert!(history.0.len() <= 62, "{}", history.0.len());
    }

    #[test]
    fn the_first_line_divides_the_anonymous_memory() {
        let mut history = History::default();
        history.add(Resident {
            bytes: 200.0 * MIB,
            anonymous_bytes: 100.0 * MIB,
            sampled_bytes: 80.0 * MIB,
            unexplained_bytes: 5.0 * MIB,
            ..Resident::default()
        });
        let [line, _] = history.lines().expect("a reading");
        let expected = "RSS 200 MiB   anonymous 100 MiB: coverage 80.0%, unexplained 5.0%";
        assert_eq!(line, expected);
        assert!(line.len() <= 80);
    }
}
