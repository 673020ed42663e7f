//! A column of whole numbers, as narrow as the largest of them.
//!
//! Most columns of a profile hold small numbers: a program has few threads and heaps, and most blocks are small. A column
//! starts without memory, as a count of zeros, and is widened when a number does not fit.

use std::ops::Range;

use rayon::prelude::*;

use crate::limits::make_room;

/// Whole numbers, found by row.
#[derive(Clone, Debug)]
pub(crate) enum Numbers {
    /// This many zeros.
    Zeros(usize),
    Bytes(Vec<u8>),
    Halves(Vec<u16>),
    Words(Vec<u32>),
    Doubles(Vec<u64>),
}

impl Default for Numbers {
    fn default() -> Self {
        Self::Zeros(0)
    }
}

impl Numbers {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Zeros(count) => *count,
            Self::Bytes(rows) => rows.len(),
            Self::Halves(rows) => rows.len(),
            Self::Words(rows) => rows.len(),
            Self::Doubles(rows) => rows.len(),
        }
    }

    /// The number in a row; 0 past the last row.
    #[inline]
    pub(crate) fn get(&self, row: usize) -> u64 {
        match self {
            Self::Zeros(_) => 0,
            Self::Bytes(rows) => rows.get(row).map_or(0, |&number| number.into()),
            Self::Halves(rows) => rows.get(row).map_or(0, |&number| number.into()),
            Self::Words(rows) => rows.get(row).map_or(0, |&number| number.into()),
            Self::Doubles(rows) => rows.get(row).map_or(0, |&number| number),
        }
    }

    /// One of some rows that has this number. They are few: all are looked at, as the processor cannot guess where a search
    /// ends.
    #[inline]
    pub(crate) fn find(&self, rows: Range<usize>, number: u64) -> Option<usize> {
        fn find<T: Copy + Into<u64>>(rows: Option<&[T]>, number: u64) -> Option<usize> {
            let rows = (1..).zip(rows?);
            let found = rows.map(|(row, &it)| if it.into() == number { row } else { 0 });
            found.fold(0, usize::max).checked_sub(1)
        }
        let start = rows.start;
        let found = match self {
            Self::Zeros(count) => (number == 0 && rows.start < rows.end.min(*count)).then_some(0),
            Self::Bytes(all) => find(all.get(rows), number),
            Self::Halves(all) => find(all.get(rows), number),
            Self::Words(all) => find(all.get(rows), number),
            Self::Doubles(all) => find(all.get(rows), number),
        };
        Some(start + found?)
    }

    /// A bit for each of at most 64 rows, set if the number satisfies `is_such`. The lowest bit is that of the first row.
    #[inline]
    pub(crate) fn mask(&self, rows: Range<usize>, is_such: impl Fn(u64) -> bool) -> u64 {
        fn mask<T: Copy + Into<u64>>(rows: Option<&[T]>, is_such: impl Fn(u64) -> bool) -> u64 {
            let rows = rows.unwrap_or_default().iter().enumerate();
            rows.fold(0, |all, (bit, &it)| {
                all | u64::from(is_such(it.into())) << bit
            })
        }
        match self {
            Self::Zeros(count) => {
                let count = rows.end.min(*count).saturating_sub(rows.start);
                let all = u64::MAX.checked_shr(64 - count as u32).unwrap_or(0);
                if is_such(0) { all } else { 0 }
            }
            Self::Bytes(all) => mask(all.get(rows), is_such),
            Self::Halves(all) => mask(all.get(rows), is_such),
            Self::Words(all) => mask(all.get(rows), is_such),
            Self::Doubles(all) => mask(all.get(rows), is_such),
        }
    }

    /// Adds a row.
    #[inline]
    pub(crate) fn push(&mut self, number: u64) {
        self.fit(number);
        // After `fit`, no cast loses a bit.
        match self {
            Self::Zeros(count) => *count += 1,
            Self::Bytes(rows) => push(rows, number as u8),
            Self::Halves(rows) => push(rows, number as u16),
            Self::Words(rows) => push(rows, number as u32),
            Self::Doubles(rows) => push(rows, number),
        }
    }

    /// Adds rows.
    pub(crate) fn extend(&mut self, numbers: &[u64]) {
        // As wide as the largest of them.
        self.fit(numbers.iter().fold(0, |all, number| all | number));
        // After `fit`, no cast loses a bit.
        match self {
            Self::Zeros(count) => *count += numbers.len(),
            Self::Bytes(rows) => extend(rows, numbers, |number| number as u8),
            Self::Halves(rows) => extend(rows, numbers, |number| number as u16),
            Self::Words(rows) => extend(rows, numbers, |number| number as u32),
            Self::Doubles(rows) => extend(rows, numbers, |number| number),
        }
    }

    /// Adds so many zeros.
    pub(crate) fn extend_with_zeros(&mut self, count: usize) {
        match self {
            Self::Zeros(known) => *known += count,
            Self::Bytes(rows) => extend_with(rows, count, 0),
            Self::Halves(rows) => extend_with(rows, count, 0),
            Self::Words(rows) => extend_with(rows, count, 0),
            Self::Doubles(rows) => extend_with(rows, count, 0),
        }
    }

    /// Overwrites a row; does nothing past the last one.
    #[inline]
    pub(crate) fn set(&mut self, row: usize, number: u64) {
        if row >= self.len() {
            return;
        }
        self.fit(number);
        // After `fit`, no cast loses a bit.
        match self {
            Self::Zeros(_) => {}
            Self::Bytes(rows) => rows[row] = number as u8,
            Self::Halves(rows) => rows[row] = number as u16,
            Self::Words(rows) => rows[row] = number as u32,
            Self::Doubles(rows) => rows[row] = number,
        }
    }

    /// Replaces the number of every row. No number that changes may become one above `largest`.
    pub(crate) fn map(&mut self, largest: u64, new: impl Fn(usize, u64) -> u64 + Sync) {
        self.fit(largest);
        // After `fit`, no cast loses a bit.
        match self {
            Self::Zeros(_) => {}
            Self::Bytes(rows) => map(rows, |row, it| new(row, it.into()) as u8),
            Self::Halves(rows) => map(rows, |row, it| new(row, it.into()) as u16),
            Self::Words(rows) => map(rows, |row, it| new(row, it.into()) as u32),
            Self::Doubles(rows) => map(rows, new),
        }
    }

    /// Bytes of memory that it takes.
    pub(crate) fn held_bytes(&self) -> u64 {
        let bytes = match self {
            Self::Zeros(_) => 0,
            Self::Bytes(rows) => rows.capacity(),
            Self::Halves(rows) => rows.capacity() * 2,
            Self::Words(rows) => rows.capacity() * 4,
            Self::Doubles(rows) => rows.capacity() * 8,
        };
        bytes as u64
    }

    /// Makes the column wide enough for a number.
    #[inline]
    fn fit(&mut self, number: u64) {
        let largest = match self {
            Self::Zeros(_) => 0,
            Self::Bytes(_) => u8::MAX.into(),
            Self::Halves(_) => u16::MAX.into(),
            Self::Words(_) => u32::MAX.into(),
            Self::Doubles(_) => u64::MAX,
        };
        if number > largest {
            self.widen(number);
        }
    }

    #[cold]
    fn widen(&mut self, number: u64) {
        let rows = (0..self.len()).map(|row| self.get(row));
        // What is there is smaller than the number, so that no cast loses a bit.
        *self = if number <= u8::MAX.into() {
            Self::Bytes(rows.map(|it| it as u8).collect())
        } else if number <= u16::MAX.into() {
            Self::Halves(rows.map(|it| it as u16).collect())
        } else if number <= u32::MAX.into() {
            Self::Words(rows.map(|it| it as u32).collect())
        } else {
            Self::Doubles(rows.collect())
        };
    }
}

fn extend<T>(rows: &mut Vec<T>, numbers: &[u64], narrowed: impl Fn(u64) -> T) {
    make_room(rows, numbers.len());
    rows.extend(numbers.iter().map(|&number| narrowed(number)));
}

fn extend_with<T: Copy>(rows: &mut Vec<T>, count: usize, number: T) {
    make_room(rows, count);
    rows.resize(rows.len() + count, number);
}

fn map<T: Copy + Send>(rows: &mut [T], new: impl Fn(usize, T) -> T + Sync) {
    /// Fewer are done before a thread has begun.
    const LEAST: usize = 1 << 16;
    let rows = rows.par_iter_mut().with_min_len(LEAST).enumerate();
    rows.for_each(|(row, it)| *it = new(row, *it));
}

#[inline]
fn push<T>(rows: &mut Vec<T>, number: T) {
    make_room(rows, 1);
    rows.push(number);
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_sampling::Random;

    /// Numbers around each width's end come at random among small ones, and are overwritten at random.
    #[test]
    fn a_column_holds_what_a_vector_holds() {
        let mut random = Random::from_seed(1);
        for bits in [0, 1, 8, 9, 16, 17, 32, 33, 64] {
            let (mut numbers, mut expected) = (Numbers::default(), Vec::new());
            for row in 0..3000_u64 {
                // Large ones are rare and come late, so that rows are there to be widened.
                let is_large = row > 1000 && random.below(100) == 0;
                let width = if is_large { bits } else { bits / 3 };
                let mut number = || random.next_u64().checked_shr(64 - width).unwrap_or(0);
                let (pushed, put) = (number(), number());
                numbers.push(pushed);
                expected.push(pushed);
                let more: Vec<u64> = (0..row % 4).map(|_| number()).collect();
                numbers.extend(&more);
                numbers.extend_with_zeros(more.len());
                expected.extend(&more);
                expected.resize(expected.len() + more.len(), 0);
                let place = random.below(row + 1) as usize;
                numbers.set(place, put);
                expected[place] = put;
            }
            let held: Vec<u64> = (0..numbers.len()).map(|row| numbers.get(row)).collect();
            assert_eq!(held, expected, "{bits} bits");
        }
    }

    #[test]
    fn the_largest_number_of_a_width_does_not_widen_the_column() {
        let mut numbers = Numbers::default();
        for (largest, bytes) in [
            (0, 0),
            (u8::MAX.into(), 1),
            (u16::MAX.into(), 2),
            (u32::MAX.into(), 4),
            (u64::MAX, 8),
        ] {
            // One more than the largest of the width before.
            let least = numbers.get(0).wrapping_add((bytes > 0).into());
            numbers = Numbers::default();
            (0..4096).for_each(|_| numbers.push(least));
            numbers.set(0, largest);
            let each = numbers.held_bytes() / numbers.len() as u64;
            assert_eq!((each, numbers.get(0)), (bytes, largest));
        }
    }

    #[test]
    fn rows_past_the_end_are_0_and_cannot_be_set() {
        let mut numbers = Numbers::default();
        numbers.set(0, 1 << 40);
        assert_eq!((numbers.len(), numbers.get(0)), (0, 0));
        numbers.push(7);
        numbers.set(1, 1 << 40);
        assert_eq!((numbers.len(), numbers.get(1)), (1, 0));
        assert!(matches!(numbers, Numbers::Bytes(_)), "{numbers:?}");
    }
}
