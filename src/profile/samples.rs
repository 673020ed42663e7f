//! All samples of a profile, as columns.
//!
//! A profile can have tens of millions of samples, and most readers look at a few facts of each. Every fact has a column
//! ([`Numbers`]), which takes as many bytes a row as its largest number needs, and none if all are zero, as heaps and types
//! are in a program without a virtual machine. A [`Sample`] is put together when it is asked for; the compiler drops the
//! reads of what the caller does not use.

use std::num::NonZeroU64;
use std::ops::Range;

use allocsample_record::{Fate, FileSample, HeapId, SampleFlags, SampleId, StackId, ThreadId};

use crate::model::{Freed, Sample};
use crate::numbers::Numbers;

/// The samples, in the order in which they were recorded.
///
/// ```
/// use allocsample_profile::{Sample, Samples, ThreadId};
///
/// let samples: Samples = (1..=3)
///     .map(|size| Sample {
///         size,
///         thread: ThreadId(7),
///         ..Sample::default()
///     })
///     .collect();
/// assert_eq!(samples.iter().map(|sample| sample.size).sum::<u64>(), 6);
/// assert_eq!(samples.at(2).thread, ThreadId(7));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Found by [`Column`]; all have as many rows.
    columns: [Numbers; COLUMNS],
}

/// The columns, in the order of [`to_numbers`].
#[derive(Clone, Copy)]
enum Column {
    Id,
    TimeNs,
    Address,
    Size,
    /// 0 for none.
    FreedNs,
    Thread,
    Points,
    Stack,
    FreedBy,
    TypeId,
    Heap,
    Flags,
    Interval,
    /// One more than the fate's number; 0 for none.
    FirstFate,
}

const COLUMNS: usize = Column::FirstFate as usize + 1;

/// A sample's row; twin of [`from_numbers`].
#[inline]
fn to_numbers(sample: &Sample) -> [u64; COLUMNS] {
    let &Sample {
        id,
        time_ns,
        address,
        size,
        freed_ns,
        thread,
        points,
        stack,
        freed_by,
        type_id,
        heap,
        flags,
        interval,
        first_fate,
    } = sample;
    [
        id.0,
        time_ns,
        address,
        size,
        freed_ns.map_or(0, NonZeroU64::get),
        thread.0.into(),
        points.into(),
        stack.0.into(),
        freed_by.0.into(),
        type_id.into(),
        heap.0.into(),
        flags.0.into(),
        interval.into(),
        fate_to_number(first_fate),
    ]
}

/// The sample of a row; twin of [`to_numbers`]. No cast loses a bit: a column holds what was put in.
#[inline(always)]
fn from_numbers(number: impl Fn(Column) -> u64) -> Sample {
    Sample {
        id: SampleId(number(Column::Id)),
        time_ns: number(Column::TimeNs),
        address: number(Column::Address),
        size: number(Column::Size),
        freed_ns: NonZeroU64::new(number(Column::FreedNs)),
        thread: ThreadId(number(Column::Thread) as u32),
        points: number(Column::Points) as u32,
        stack: StackId(number(Column::Stack) as u32),
        freed_by: ThreadId(number(Column::FreedBy) as u32),
        type_id: number(Column::TypeId) as u32,
        heap: HeapId(number(Column::Heap) as u16),
        flags: SampleFlags(number(Column::Flags) as u16),
        interval: number(Column::Interval) as u16,
        first_fate: fate_from_number(number(Column::FirstFate)),
    }
}

fn fate_to_number(fate: Option<Fate>) -> u64 {
    fate.map_or(0, |fate| fate as u64 + 1)
}

#[inline]
fn fate_from_number(number: u64) -> Option<Fate> {
    Fate::from_number((number as u32).checked_sub(1)?)
}

/// Samples as a file has them, in columns for [`Samples::extend`].
#[derive(Debug, Default)]
pub(crate) struct FileSamples {
    /// Those that a file does not have stay empty.
    columns: [Vec<u64>; COLUMNS],
    thread_bytes: Vec<u64>,
}

impl FileSamples {
    pub(crate) fn len(&self) -> usize {
        self.thread_bytes.len()
    }

    pub(crate) fn clear(&mut self) {
        self.columns.iter_mut().for_each(Vec::clear);
        self.thread_bytes.clear();
    }

    #[inline]
    pub(crate) fn push(&mut self, sample: &FileSample) {
        let numbers = [
            (Column::Id, sample.id.0),
            (Column::TimeNs, sample.time_ns),
            (Column::Address, sample.address),
            (Column::Size, sample.size),
            (Column::Thread, sample.thread.0.into()),
            (Column::Points, sample.points.into()),
            (Column::Stack, sample.stack.0.into()),
            (Column::Heap, sample.heap.0.into()),
            (Column::Flags, sample.flags.0.into()),
            (Column::Interval, sample.interval.into()),
        ];
        for (column, number) in numbers {
            self.columns[column as usize].push(number);
        }
        self.thread_bytes.push(sample.thread_bytes);
    }

    /// The sample of a row, and the bytes of its thread.
    pub(crate) fn at(&self, row: usize) -> (Sample, u64) {
        let number = |column: Column| self.columns[column as usize].get(row);
        let sample = from_numbers(|column| number(column).copied().unwrap_or(0));
        (sample, self.thread_bytes[row])
    }

    /// Replaces the stacks of some rows.
    pub(crate) fn map_stacks(&mut self, rows: Range<usize>, new: impl Fn(StackId) -> StackId) {
        for stack in &mut self.columns[Column::Stack as usize][rows] {
            // It was put in with 32 bits.
            *stack = new(StackId(*stack as u32)).0.into();
        }
    }

    /// The first of some rows with those behind it that are of the same thread and heap.
    pub(crate) fn alike(&self, rows: Range<usize>) -> Range<usize> {
        let same = |column: Column| {
            let numbers = &self.columns[column as usize][rows.clone()];
            let others = numbers.iter().position(|number| *number != numbers[0]);
            others.unwrap_or(numbers.len())
        };
        rows.start..rows.start + same(Column::Thread).min(same(Column::Heap))
    }

    pub(crate) fn ids(&self, rows: Range<usize>) -> impl Iterator<Item = SampleId> + '_ {
        self.columns[Column::Id as usize][rows]
            .iter()
            .map(|&id| SampleId(id))
    }

    pub(crate) fn sizes(&self, rows: Range<usize>) -> &[u64] {
        &self.columns[Column::Size as usize][rows]
    }

    /// Indices of intervals.
    pub(crate) fn intervals(&self, rows: Range<usize>) -> impl Iterator<Item = u16> + '_ {
        // They were put in with 16 bits.
        self.columns[Column::Interval as usize][rows]
            .iter()
            .map(|&index| index as u16)
    }

    pub(crate) fn thread_bytes(&self, rows: Range<usize>) -> &[u64] {
        &self.thread_bytes[rows]
    }

    /// The latest of some rows.
    pub(crate) fn last_ns(&self, rows: Range<usize>) -> u64 {
        let times = self.columns[Column::TimeNs as usize][rows].iter();
        times.copied().max().unwrap_or(0)
    }
}

impl Samples {
    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.column(Column::Id).len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sample of a row, if there is such a row.
    #[inline(always)]
    pub fn get(&self, row: usize) -> Option<Sample> {
        (row < self.len()).then(|| self.put_together(row))
    }

    /// The sample of a row.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline(always)]
    pub fn at(&self, row: usize) -> Sample {
        assert!(row < self.len(), "no sample {row} of {}", self.len());
        self.put_together(row)
    }

    /// The stack of the sample of a row; the empty one past the last row.
    #[inline]
    pub fn stack(&self, row: usize) -> StackId {
        // A stack was put in.
        StackId(self.column(Column::Stack).get(row) as u32)
    }

    /// Facts about the sample of a row; none past the last row.
    #[inline]
    pub(crate) fn flags(&self, row: usize) -> SampleFlags {
        // Flags were put in.
        SampleFlags(self.column(Column::Flags).get(row) as u16)
    }

    /// The last sample.
    pub fn last(&self) -> Option<Sample> {
        self.get(self.len().checked_sub(1)?)
    }

    /// All samples.
    #[inline]
    pub fn iter(&self) -> Iter<'_> {
        self.range(0..self.len())
    }

    /// The samples of some rows; rows past the last one are left out.
    #[inline]
    pub fn range(&self, rows: Range<usize>) -> Iter<'_> {
        let end = rows.end.min(self.len());
        Iter {
            samples: self,
            rows: rows.start.min(end)..end,
        }
    }

    /// The rows of samples that were alive at a moment, in order. Faster than to ask [`Sample::is_live_at`] of each.
    pub fn live_at(&self, time_ns: u64) -> impl Iterator<Item = usize> + '_ {
        const BLOCK: usize = u64::BITS as usize;
        let (begun, freed) = (self.column(Column::TimeNs), self.column(Column::FreedNs));
        let flags = self.column(Column::Flags);
        let count = self.len();
        (0..count).step_by(BLOCK).flat_map(move |first| {
            let rows = first..(first + BLOCK).min(count);
            let mut live = begun.mask(rows.clone(), |begun_ns| begun_ns <= time_ns);
            live &= freed.mask(rows.clone(), |freed_ns| freed_ns == 0 || freed_ns > time_ns);
            // Flags were put in.
            let is_tracked = |flags| !SampleFlags(flags as u16).contains(SampleFlags::UNTRACKED);
            live &= flags.mask(rows, is_tracked);
            std::iter::from_fn(move || {
                let bit = live.trailing_zeros() as usize;
                live &= live.wrapping_sub(1);
                (bit < BLOCK).then_some(first + bit)
            })
        })
    }

    /// Adds a sample.
    pub fn push(&mut self, sample: Sample) {
        let numbers = to_numbers(&sample);
        for (column, number) in self.columns.iter_mut().zip(numbers) {
            column.push(number);
        }
    }

    /// Adds samples of a file.
    pub(crate) fn extend(&mut self, samples: &FileSamples, rows: Range<usize>) {
        for (column, numbers) in self.columns.iter_mut().zip(&samples.columns) {
            match numbers.get(rows.clone()) {
                Some(numbers) => column.extend(numbers),
                None => column.extend_with_zeros(rows.len()),
            }
        }
    }

    /// The row of the sample with this identity, if it is among some, of which there are few.
    #[inline]
    pub(crate) fn find_id(&self, rows: Range<usize>, id: SampleId) -> Option<usize> {
        self.column(Column::Id).find(rows, id.0)
    }

    /// Overwrites the sample of a row; does nothing if there is no such row.
    pub fn set(&mut self, row: usize, sample: Sample) {
        let numbers = to_numbers(&sample);
        for (column, number) in self.columns.iter_mut().zip(numbers) {
            column.set(row, number);
        }
    }

    /// Keeps the samples of some rows.
    pub(crate) fn keep_rows(&mut self, is_kept: &[bool]) {
        // Column by column, so that there is one more of them at a time.
        for column in &mut self.columns {
            let rows = is_kept.iter().enumerate().filter(|(_, is_kept)| **is_kept);
            let mut kept = Numbers::default();
            rows.for_each(|(row, _)| kept.push(column.get(row)));
            *column = kept;
        }
    }

    /// Notes a sample's end, as [`Sample::set_freed`] does.
    pub(crate) fn set_freed(&mut self, row: usize, freed: Freed) {
        self.set_number(Column::FreedNs, row, freed.time_ns.max(1));
        self.set_number(Column::FreedBy, row, freed.thread.0.into());
    }

    /// Takes the end of a sample back.
    pub(crate) fn forget_freed(&mut self, row: usize) {
        self.set_number(Column::FreedNs, row, 0);
        self.set_number(Column::FreedBy, row, 0);
    }

    /// Notes a sample's stack.
    pub(crate) fn set_stack(&mut self, row: usize, stack: StackId) {
        self.set_number(Column::Stack, row, stack.0.into());
    }

    /// Replaces all stacks. No stack that changes may become one above `last`.
    pub(crate) fn map_stacks(
        &mut self,
        last: StackId,
        new: impl Fn(StackId, SampleFlags) -> StackId + Sync,
    ) {
        let flags = std::mem::take(&mut self.columns[Column::Flags as usize]);
        // Stacks and flags were put in.
        self.columns[Column::Stack as usize].map(last.0.into(), |row, stack| {
            let flags = SampleFlags(flags.get(row) as u16);
            new(StackId(stack as u32), flags).0.into()
        });
        self.columns[Column::Flags as usize] = flags;
    }

    /// Notes what a collector says of a sample.
    pub(crate) fn set_outcome(&mut self, row: usize, type_id: u32, first_fate: Option<Fate>) {
        self.set_number(Column::TypeId, row, type_id.into());
        self.set_number(Column::FirstFate, row, fate_to_number(first_fate));
    }

    /// Bytes of memory that they take.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.columns.iter().map(Numbers::held_bytes).sum()
    }

    #[inline(always)]
    fn put_together(&self, row: usize) -> Sample {
        from_numbers(|column| self.column(column).get(row))
    }

    #[inline(always)]
    fn column(&self, column: Column) -> &Numbers {
        &self.columns[column as usize]
    }

    fn set_number(&mut self, column: Column, row: usize, number: u64) {
        self.columns[column as usize].set(row, number);
    }
}

impl FromIterator<Sample> for Samples {
    fn from_iter<I: IntoIterator<Item = Sample>>(all: I) -> Self {
        let mut samples = Self::default();
        all.into_iter().for_each(|sample| samples.push(sample));
        samples
    }
}

impl From<Vec<Sample>> for Samples {
    fn from(all: Vec<Sample>) -> Self {
        all.into_iter().collect()
    }
}

impl<'a> IntoIterator for &'a Samples {
    type Item = Sample;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Samples, in the order of their rows.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    samples: &'a Samples,
    rows: Range<usize>,
}

impl Iterator for Iter<'_> {
    type Item = Sample;

    // As `at`: what is not inlined reads all columns.
    #[inline(always)]
    fn next(&mut self) -> Option<Sample> {
        let row = self.rows.next()?;
        Some(self.samples.put_together(row))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rows.size_hint()
    }
}

impl ExactSizeIterator for Iter<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_sampling::Random;

    /// Samples with a different number in each field; some end.
    fn random_samples(count: usize) -> Vec<Sample> {
        let mut random = Random::from_seed(1);
        let fates = [
            None,
            Some(Fate::Dead),
            Some(Fate::Alive),
            Some(Fate::Promoted),
            Some(Fate::Unknown),
            Some(Fate::Open),
        ];
        (0..count as u64)
            .map(|number| Sample {
                id: SampleId(number * 30 + random.below(30)),
                time_ns: (1 << 40) + number * 1000,
                address: random.next_u64() >> 17,
                size: 1 << random.below(40),
                freed_ns: NonZeroU64::new(random.below(2) * ((1 << 40) + number * 2000)),
                thread: ThreadId(random.below(300) as u32),
                points: 1 + random.below(4) as u32,
                stack: StackId(random.below(100_000) as u32),
                freed_by: ThreadId(random.below(3) as u32),
                type_id: random.below(5) as u32,
                heap: HeapId(random.below(2) as u16),
                flags: SampleFlags(random.below(512) as u16),
                interval: random.below(6) as u16,
                first_fate: fates[random.below(6) as usize],
            })
            .collect()
    }

    fn texts<S: std::borrow::Borrow<Sample>>(samples: impl IntoIterator<Item = S>) -> Vec<String> {
        let text = |sample: S| format!("{:?}", sample.borrow());
        samples.into_iter().map(text).collect()
    }

    #[test]
    fn samples_come_out_as_they_went_in() {
        let expected = random_samples(5000);
        let samples = Samples::from(expected.clone());
        assert_eq!(samples.len(), 5000);
        assert_eq!(texts(&samples), texts(&expected));
        for row in [0, 1, 255, 4999] {
            let one = [samples.at(row), samples.get(row).unwrap()];
            assert_eq!(texts(one), texts([expected[row]; 2]));
            assert_eq!(samples.stack(row), expected[row].stack);
            assert_eq!(samples.find_id(0..5000, expected[row].id), Some(row));
        }
        assert_eq!(texts(samples.last()), texts(expected.last()));
    }

    #[test]
    fn a_range_is_a_slice_without_the_rows_that_are_not_there() {
        let all = random_samples(100);
        let samples = Samples::from(all.clone());
        for (rows, expected) in [
            (0..100, &all[..]),
            (10..20, &all[10..20]),
            (90..200, &all[90..]),
            (100..101, &[]),
            (300..400, &[]),
            (7..7, &[]),
        ] {
            let part = samples.range(rows.clone());
            assert_eq!(part.len(), expected.len(), "{rows:?}");
            assert_eq!(texts(part), texts(expected), "{rows:?}");
        }
    }

    /// At every length of the last block, and at moments between and at the samples' own.
    #[test]
    fn rows_that_are_live_are_those_of_samples_that_are() {
        let all = random_samples(200);
        for count in [0, 1, 63, 64, 65, 128, 200] {
            let samples = Samples::from(all[..count].to_vec());
            let freed = all.iter().filter_map(|it| it.freed_ns);
            let moments = all.iter().map(|it| it.time_ns);
            let moments = moments
                .chain(freed.map(NonZeroU64::get))
                .chain([0, u64::MAX]);
            for time_ns in moments.flat_map(|time_ns| [time_ns.saturating_sub(1), time_ns]) {
                let expected = (0..count).filter(|&row| all[row].is_live_at(time_ns));
                let found: Vec<usize> = samples.live_at(time_ns).collect();
                assert_eq!(found, expected.collect::<Vec<_>>(), "{count} at {time_ns}");
            }
        }
        // Columns that hold nothing but zeros.
        let samples: Samples = (0..70).map(|_| Sample::default()).collect();
        assert_eq!(samples.live_at(0).count(), 70);
    }

    #[test]
    fn without_samples_there_is_nothing_to_get() {
        let mut samples = Samples::default();
        samples.set(0, random_samples(1)[0]);
        samples.map_stacks(StackId(7), |_, _| StackId(7));
        samples.keep_rows(&[]);
        assert!(samples.is_empty() && samples.get(0).is_none() && samples.last().is_none());
        assert_eq!((samples.iter().len(), samples.held_bytes()), (0, 0));
    }

    #[test]
    fn samples_can_be_overwritten_in_any_order() {
        let mut expected = random_samples(5000);
        let mut samples: Samples = (0..5000).map(|_| Sample::default()).collect();
        for row in (0..5000).rev() {
            samples.set(row, expected[row]);
        }
        assert_eq!(texts(&samples), texts(&expected));
        // Some facts alone.
        let mut random = Random::from_seed(2);
        for _ in 0..5000 {
            let row = random.below(5000) as usize;
            let number = random.below(1 << 20) as u32;
            let freed = Freed {
                time_ns: random.below(3),
                thread: ThreadId(number),
            };
            samples.set_freed(row, freed);
            samples.set_stack(row, StackId(number));
            samples.set_outcome(row, number, Some(Fate::Alive));
            let sample = &mut expected[row];
            sample.set_freed(freed);
            sample.stack = StackId(number);
            sample.type_id = number;
            sample.first_fate = Some(Fate::Alive);
        }
        assert_eq!(texts(&samples), texts(&expected));
    }

    #[test]
    fn stacks_are_replaced_by_what_they_and_the_flags_are() {
        for (count, last) in [(0, 9), (5000, 7), (5000, 1 << 20), (3 << 18, 200_000)] {
            let mut expected = random_samples(count);
            let mut samples = Samples::from(expected.clone());
            let new = |stack: StackId, flags: SampleFlags| {
                StackId((stack.0 * 2 + u32::from(flags.0 & 1)) % (last + 1))
            };
            samples.map_stacks(StackId(last), new);
            for sample in &mut expected {
                sample.stack = new(sample.stack, sample.flags);
            }
            assert_eq!(texts(&samples), texts(&expected), "{count}, {last}");
        }
    }

    #[test]
    fn the_samples_that_are_kept_stay_in_order() {
        let mut expected = random_samples(5000);
        let mut samples = Samples::from(expected.clone());
        let small = |sample: Sample| sample.size < 1000;
        let is_kept: Vec<bool> = samples.iter().map(small).collect();
        samples.keep_rows(&is_kept);
        expected.retain(|sample| sample.size < 1000);
        assert!((1..5000).contains(&samples.len()));
        assert_eq!(texts(&samples), texts(&expected));
    }

    #[test]
    fn a_sample_of_malloc_takes_36_bytes_and_room_to_grow() {
        let mut samples = Samples::default();
        for number in 0..100_000_u64 {
            samples.push(Sample {
                id: SampleId(number * 30),
                time_ns: (1 << 50) + number,
                address: (1 << 46) + number,
                size: number % 5000,
                freed_ns: NonZeroU64::new((1 << 50) + number * 2),
                thread: ThreadId(1),
                points: 1,
                stack: StackId(number as u32),
                ..Sample::default()
            });
        }
        let each = samples.held_bytes() as f64 / samples.len() as f64;
        // Three columns of 8 bytes, two of 4, one of 2 and two of 1; an eighth of room.
        assert!((36.0..36.0 * 1.125).contains(&each), "{each}");
    }
}
