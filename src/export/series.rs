//! The samples of a profile in the order of time.

use std::ops::Range;

use allocsample_profile::{Profile, Sample, Weights};

/// Samples by index, in the order of time. Each may stand for several (`merged.rs`).
#[derive(Debug)]
pub(crate) struct Series<'a> {
    pub profile: &'a Profile,
    /// Rows of the profile's samples, unless they are all in order.
    pub rows: Option<Vec<u32>>,
    /// What each stands for, unless it is for what the profile says.
    pub bytes: Option<Vec<f64>>,
}

impl<'a> Series<'a> {
    /// All samples. (They are in the order of the ring, in which threads may overtake each other by a moment.)
    pub fn of(profile: &'a Profile) -> Self {
        let samples = &profile.samples;
        let is_sorted = samples.iter().is_sorted_by_key(|sample| sample.time_ns);
        let rows = (!is_sorted).then(|| {
            // A profile has no more samples than 32 bits can number: they would not fit into memory.
            let mut rows: Vec<u32> = (0..).take(samples.len()).collect();
            rows.sort_by_key(|&row| samples.at(row as usize).time_ns);
            rows
        });
        Self {
            profile,
            rows,
            bytes: None,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        let samples = self.profile.samples.len();
        self.rows.as_ref().map_or(samples, Vec::len)
    }

    /// The sample with this index. What is not asked of it is not read.
    #[inline(always)]
    pub fn at(&self, index: usize) -> Sample {
        self.profile.samples.at(self.row(index) as usize)
    }

    /// The row in the profile of the sample with this index.
    #[inline(always)]
    pub fn row(&self, index: usize) -> u32 {
        let rows = self.rows.as_ref();
        rows.map_or(index as u32, |rows| rows[index])
    }

    /// The samples with these indices.
    #[inline]
    pub fn range(&self, indices: Range<usize>) -> impl ExactSizeIterator<Item = Sample> {
        indices.map(|index| self.at(index))
    }

    /// All samples.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Sample> {
        self.range(0..self.len())
    }

    /// What samples stand for, for many of them.
    pub fn bytes(&self) -> Bytes<'_> {
        Bytes {
            series: self,
            weights: Weights::of(self.profile),
        }
    }

    /// All samples, with the bytes that each stands for.
    pub fn with_bytes(&self) -> impl ExactSizeIterator<Item = (Sample, f64)> {
        let mut bytes = self.bytes();
        (0..self.len()).map(move |index| bytes.with_sample(index))
    }
}

/// The bytes that samples stand for, computed once for each size.
#[derive(Debug)]
pub(crate) struct Bytes<'a> {
    series: &'a Series<'a>,
    weights: Weights,
}

impl Bytes<'_> {
    /// Those of the sample with this index.
    #[inline]
    pub fn of(&mut self, index: usize) -> f64 {
        match &self.series.bytes {
            Some(bytes) => bytes[index],
            None => self.weights.get(&self.series.at(index)).0.value(),
        }
    }

    /// The sample with this index, and its bytes.
    #[inline]
    pub fn with_sample(&mut self, index: usize) -> (Sample, f64) {
        (self.series.at(index), self.of(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_in_the_order_of_time() {
        let mut profile = Profile::default();
        for (time_ns, size) in [(30, 1), (10, 2), (20, 3), (20, 4)] {
            profile.samples.push(Sample {
                time_ns,
                size,
                ..Sample::default()
            });
        }
        let series = Series::of(&profile);
        let sizes: Vec<u64> = series.iter().map(|sample| sample.size).collect();
        assert_eq!(sizes, [2, 3, 4, 1]);
        assert_eq!(series.range(1..3).len(), 2);
        assert_eq!(series.row(3), 0);
    }
}
