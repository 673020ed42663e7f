//! The rows of a table in the order of one column.
//!
//! It finds rows by the value of a column, and hands them out in groups, without a sort by SQLite. A column that grows
//! from row to row, as ids and times do, needs no memory; another one 4 bytes a row, and 12 while it is made.

use std::hash::{BuildHasher, Hash};
use std::ops::Range;

use rustc_hash::FxBuildHasher;

use crate::column::{Kind, Value};
use crate::reader::Reader;
use crate::table::Table;

/// Bytes of memory for each row of a table, at most, while its order is made.
const BYTES_PER_ROW: usize = 12;

/// Rows by the key of a column, those without a value first; among equals in the table's order.
pub(crate) struct Order {
    /// Nothing if it is the table's own order.
    rows: Option<Vec<u32>>,
    /// How many have no value.
    missing: usize,
    count: usize,
}

impl Order {
    /// Whether there is memory enough for one of so many rows.
    pub fn is_possible(rows: usize, most_bytes: usize) -> bool {
        u32::try_from(rows).is_ok() && rows.saturating_mul(BYTES_PER_ROW) <= most_bytes
    }

    /// By this column of a table.
    pub fn of(reader: &mut Reader<'_>, table: &Table, column: usize) -> Self {
        let count = reader.rows(table);
        let mut key = |row| key(reader, table, row, column);
        let (mut is_sorted, mut missing, mut last) = (true, 0, None);
        let (mut least, mut largest) = (i64::MAX, i64::MIN);
        for row in 0..count {
            let here = key(row);
            is_sorted &= last <= here;
            last = here;
            match here {
                Some(here) => (least, largest) = (least.min(here), largest.max(here)),
                None => missing += 1,
            }
        }
        let span = largest.abs_diff(least);
        let rows = match is_sorted {
            true => None,
            // As many counters as rows, or a few more.
            false if span <= count as u64 + 1024 => {
                let place = |row| key(row).map_or(0, |key| key.abs_diff(least) as usize + 1);
                Some(counted(count, span as usize + 2, place))
            }
            false => {
                let keys: Vec<i64> = (0..count).map(|row| key(row).unwrap_or(0)).collect();
                // `is_possible`: row numbers have 32 bits.
                let (mut rows, mut sorted) = (Vec::with_capacity(count), Vec::new());
                for row in 0..count as u32 {
                    match missing > 0 && key(row as usize).is_none() {
                        true => rows.push(row),
                        false => sorted.push(row),
                    }
                }
                sorted.sort_unstable_by_key(|&row| (keys[row as usize], row));
                rows.append(&mut sorted);
                Some(rows)
            }
        };
        Self {
            rows,
            missing,
            count,
        }
    }

    /// The row at a place of the order.
    #[inline]
    pub fn row(&self, place: usize) -> usize {
        match &self.rows {
            None => place,
            Some(rows) => rows[place] as usize,
        }
    }

    /// All places.
    pub fn all(&self) -> Range<usize> {
        0..self.count
    }

    /// The places of rows whose keys are at least the first bound, if there is one, and at most the second.
    pub fn between(
        &self,
        low: Option<i64>,
        high: Option<i64>,
        mut key: impl FnMut(usize) -> Option<i64>,
    ) -> Range<usize> {
        let mut key = |place: usize| key(self.row(place));
        // Ids mostly count from the first row on.
        if let (Some(low), true) = (low, low == high)
            && let Some(first) = (self.missing < self.count)
                .then(|| key(self.missing))
                .flatten()
            && let Ok(ahead) = usize::try_from(low.saturating_sub(first))
            && let guess = self.missing.saturating_add(ahead)
            && guess < self.count
            && key(guess) == Some(low)
            && (guess == self.missing || key(guess - 1) != Some(low))
            && (guess + 1 == self.count || key(guess + 1) != Some(low))
        {
            return guess..guess + 1;
        }
        let mut first_from = |is_before: &dyn Fn(i64) -> bool| {
            let (mut begin, mut end) = (self.missing, self.count);
            while begin < end {
                let middle = begin + (end - begin) / 2;
                match key(middle).is_some_and(is_before) {
                    true => begin = middle + 1,
                    false => end = middle,
                }
            }
            begin
        };
        let begin = low.map_or(self.missing, |low| first_from(&|key| key < low));
        let end = high.map_or(self.count, |high| first_from(&|key| key <= high));
        begin..end.max(begin)
    }
}

/// The rows `0..count` by their places, of which there are `places`.
fn counted(count: usize, places: usize, mut place: impl FnMut(usize) -> usize) -> Vec<u32> {
    let mut next = vec![0_u32; places + 1];
    for row in 0..count {
        next[place(row) + 1] += 1;
    }
    for place in 1..next.len() {
        next[place] += next[place - 1];
    }
    let mut rows = vec![0; count];
    for row in 0..count {
        let next = &mut next[place(row)];
        // Row numbers have 32 bits.
        rows[*next as usize] = row as u32;
        *next += 1;
    }
    rows
}

/// Whether the keys of a column have the order of its values.
pub(crate) fn is_ordered(kind: Kind) -> bool {
    matches!(kind, Kind::Integer | Kind::Boolean | Kind::Timestamp)
}

/// What stands for the value of a column: equal values have equal keys.
pub(crate) fn key(
    reader: &mut Reader<'_>,
    table: &Table,
    row: usize,
    column: usize,
) -> Option<i64> {
    key_of(reader.value(table, row, column))
}

/// The key of a value.
pub(crate) fn key_of(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Null => None,
        Value::Integer(number) => Some(number),
        Value::Real(number) => Some(number.to_bits().cast_signed()),
        Value::Text(text) => Some(hash(text.as_bytes())),
    }
}

/// Of a text.
pub(crate) fn hash(bytes: &[u8]) -> i64 {
    let mut hasher = FxBuildHasher.build_hasher();
    bytes.hash(&mut hasher);
    std::hash::Hasher::finish(&hasher).cast_signed()
}
