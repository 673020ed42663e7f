//! Rows of several profiles that are of one thing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use allocsample_report::{By, Row};
use allocsample_sampling::Estimate;

use crate::Joined;
use crate::paths::Paths;
use crate::runs::Values;
use crate::side::Counts;

/// By symbol, never by address: what tells a row apart in all builds.
type Key = (String, String, Vec<String>, u32);

/// The rows as they come.
pub(crate) struct Joining {
    by: By,
    runs: (usize, usize),
    /// Files of the first profile, with which those of the others are matched.
    paths: Option<Paths>,
    rows: BTreeMap<Key, Joined>,
}

impl Joining {
    /// For so many runs before and after.
    pub(crate) fn new(by: By, runs: (usize, usize)) -> Self {
        Self {
            by,
            runs,
            paths: None,
            rows: BTreeMap::new(),
        }
    }

    /// Takes in the rows of a run, with the samples of each.
    pub(crate) fn add(
        &mut self,
        rows: Vec<Row>,
        counts: Vec<Counts>,
        figure: impl Fn(&Row) -> Estimate,
        run: usize,
        is_after: bool,
    ) {
        let files: BTreeSet<String> = rows.iter().filter_map(|row| row.file.clone()).collect();
        let matched = match &self.paths {
            Some(paths) => paths.matched(&files),
            None => {
                self.paths = Some(Paths::of(files.into_iter()));
                HashMap::new()
            }
        };
        for (row, counts) in rows.into_iter().zip(counts) {
            let estimate = figure(&row);
            let runs = if is_after { self.runs.1 } else { self.runs.0 };
            let of_mean = estimate_of_mean(estimate, runs);
            let entry = self.rows.entry(key(self.by, &row, &matched));
            let entry = entry.or_insert_with(|| Joined {
                values: Values::new(self.runs.0, self.runs.1),
                ..Joined::default()
            });
            if is_after {
                entry.after += of_mean;
            } else {
                entry.before += of_mean;
            }
            entry.values.add(run, is_after, estimate.value());
            entry.counts.merge(&counts);
            // The names of the later build.
            entry.row = row;
        }
    }

    /// All of them.
    pub(crate) fn into_rows(self) -> Vec<Joined> {
        match self.by {
            By::Line => moved_lines(self.rows),
            _ => self.rows.into_values().collect(),
        }
    }
}

/// A line that an edit above it has moved has another number in each build. So where a function has lines in one build
/// alone, and equally many in the other alone, these are the same lines in their order.
fn moved_lines(rows: BTreeMap<Key, Joined>) -> Vec<Joined> {
    type Lines = BTreeMap<u32, Joined>;
    let mut all = Vec::with_capacity(rows.len());
    let mut alone: BTreeMap<(String, String), [Lines; 2]> = BTreeMap::new();
    for ((function, file, _, line), joined) in rows {
        let is_there = |estimate: &Estimate| estimate.samples() > 0;
        match (is_there(&joined.before), is_there(&joined.after)) {
            (true, true) | (false, false) => all.push(joined),
            (_, is_after) => {
                let sides = alone.entry((function, file)).or_default();
                sides[usize::from(is_after)].insert(line, joined);
            }
        }
    }
    for [before, after] in alone.into_values() {
        if before.len() != after.len() {
            all.extend(before.into_values().chain(after.into_values()));
            continue;
        }
        for (before, mut after) in before.into_values().zip(after.into_values()) {
            after.before += before.before;
            after.counts.merge(&before.counts);
            after.values.merge(&before.values);
            all.push(after);
        }
    }
    all
}

fn estimate_of_mean(estimate: Estimate, runs: usize) -> Estimate {
    crate::divided(estimate, runs as f64)
}

fn key(by: By, row: &Row, matched: &HashMap<String, String>) -> Key {
    match by {
        // The kernel's number is another in each run.
        By::Thread => {
            let name = row
                .name
                .rsplit_once(" (")
                .map_or(&*row.name, |(name, _)| name);
            (name.to_owned(), String::new(), Vec::new(), 0)
        }
        By::Line => {
            let file = row.file.clone().unwrap_or_default();
            let file = matched.get(&file).cloned().unwrap_or(file);
            (row.name.clone(), file, Vec::new(), row.line)
        }
        By::Site => {
            let name = row.label().into_owned();
            (name, String::new(), row.stack.clone(), 0)
        }
        By::Type => (row.name.clone(), row.module.clone(), Vec::new(), 0),
        By::Heap | By::Size | By::Lifetime => (row.name.clone(), String::new(), Vec::new(), 0),
        By::Function | By::Module => {
            let name = row.label().into_owned();
            (name, row.module.clone(), Vec::new(), 0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_in_the_order_of_their_names_whatever_order_they_came_in() {
        let mut joining = Joining::new(By::Function, (1, 1));
        let named = |number: u32| Row {
            name: format!("f{:02}", number * 37 % 60),
            ..Row::default()
        };
        let rows: Vec<Row> = (0..60).map(named).collect();
        let counts = vec![Counts::default(); rows.len()];
        joining.add(rows, counts, |_| Estimate::ZERO, 0, false);
        let joined = joining.into_rows();
        let names: Vec<&str> = joined.iter().map(|it| it.row.name.as_str()).collect();
        assert!(names.is_sorted() && names.len() == 60, "{names:?}");
    }
}
