//! Finds samples by their ids, for the ends that are told later.
//!
//! An id is a position in the ring, in words, and samples come in the order of their ids. So a directory of every 64
//! words says where to look: 2 bytes a sample instead of the 40 of a hash table, and no hashing.

use std::collections::HashMap;
use std::ops::Range;

use allocsample_record::SampleId;

use crate::samples::Samples;

/// Samples are some 30 words apart.
const WORDS_PER_PLACE_LOG2: u32 = 6;

/// Where samples are.
#[derive(Debug, Default)]
pub(crate) struct SampleIndex {
    /// For each stretch of words the index of the first sample whose id is in it or behind it.
    first: Vec<u32>,
    /// One more than the largest id in the directory.
    next: u64,
    /// Samples out of order, or too far from the last one for the directory. A malformed profile has those.
    others: HashMap<SampleId, usize>,
}

impl SampleIndex {
    /// Notes the sample that will be at `index`, the end of the profile's samples.
    pub(crate) fn insert(&mut self, id: SampleId, index: usize) {
        /// So sparse may samples be, or else the directory would be larger than they.
        const PLACES_PER_SAMPLE: usize = 16;
        const FREE_PLACES: usize = 1 << 16;
        let place = (id.0 >> WORDS_PER_PLACE_LOG2) as usize;
        let most = index.saturating_mul(PLACES_PER_SAMPLE) + FREE_PLACES;
        match u32::try_from(index) {
            Ok(index) if id.0 >= self.next && place < most => {
                if self.first.len() <= place {
                    self.first.resize(place + 1, index);
                }
                self.next = id.0.saturating_add(1);
            }
            _ => {
                self.others.insert(id, index);
            }
        }
    }

    /// Bytes of memory that it takes.
    pub(crate) fn held_bytes(&self) -> u64 {
        const ENTRY: u64 = 40;
        4 * self.first.len() as u64 + ENTRY * self.others.len() as u64
    }

    /// The index of the sample with this id.
    pub(crate) fn get(&self, id: SampleId, samples: &Samples) -> Option<usize> {
        self.find(self.rows(id, samples), id, samples)
    }

    /// The same for many. First all places, then what is there: nothing in these two loops waits for anything else in them, so
    /// that the processor fetches what many of them need at the same time.
    pub(crate) fn get_all(
        &self,
        ids: impl Iterator<Item = SampleId> + Clone,
        samples: &Samples,
        found: &mut Vec<Option<usize>>,
    ) {
        let rows: Vec<Range<usize>> = ids.clone().map(|id| self.rows(id, samples)).collect();
        let rows = ids.zip(rows);
        found.clear();
        found.extend(rows.map(|(id, rows)| self.find(rows, id, samples)));
    }

    /// The rows among which the sample with this id is, unless it is among the others.
    #[inline]
    fn rows(&self, id: SampleId, samples: &Samples) -> Range<usize> {
        /// More are behind the last place alone, where those are that no place has.
        const MOST: usize = 1 << 10;
        let place = (id.0 >> WORDS_PER_PLACE_LOG2) as usize;
        let at = |place: usize| self.first.get(place).map(|&index| index as usize);
        let start = at(place).unwrap_or(samples.len());
        let end = at(place + 1).unwrap_or(samples.len());
        start..end.clamp(start, start + MOST)
    }

    #[inline]
    fn find(&self, rows: Range<usize>, id: SampleId, samples: &Samples) -> Option<usize> {
        let row = samples.find_id(rows, id);
        row.or_else(|| self.others.get(&id).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Sample;

    fn check(ids: &[u64]) {
        let mut index = SampleIndex::default();
        let mut samples = Samples::default();
        for &id in ids {
            index.insert(SampleId(id), samples.len());
            samples.push(Sample {
                id: SampleId(id),
                ..Sample::default()
            });
        }
        for (place, &id) in ids.iter().enumerate() {
            assert_eq!(index.get(SampleId(id), &samples), Some(place), "{id}");
        }
        for id in [3, 64, 1 << 20, u64::MAX - 1] {
            let expected = ids.iter().position(|&known| known == id);
            assert_eq!(index.get(SampleId(id), &samples), expected, "{id}");
        }
    }

    #[test]
    fn samples_are_found_by_their_ids() {
        check(&[]);
        check(&[0]);
        check(&[0, 1, 2, 63, 65, 127, 128, 500, 501, 9000]);
        let dense: Vec<u64> = (0..5000).map(|n| n * 7).collect();
        check(&dense);
        let sparse: Vec<u64> = (0..5000).map(|n| n * 700).collect();
        check(&sparse);
    }

    #[test]
    fn samples_in_no_order_are_found_too() {
        check(&[500, 40, 501, 1 << 60, 502, u64::MAX, 503, 41, 1 << 20, 504]);
    }
}
