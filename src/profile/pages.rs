//! Sampled pages of the process's memory: the same memory as in the heaps, seen by the kernel's page faults.

use allocsample_record::{HeapId, HeapKind};

use regex::Regex;

use crate::model::{IntervalInfo, Profile, Sample};
use crate::reach::Reach;
use crate::vm::Heap;

/// The heap of the pages in [`Profile::of_pages`].
pub const PAGES: &str = "pages";

/// Pages that were sampled, which are in no other figure of a profile.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Pages {
    /// Their heap; `None` if no page was to be sampled.
    pub heap: Option<(HeapId, Heap)>,
    /// The pages, in the order in which they were touched. Those that are live were resident at the last look.
    pub samples: Vec<Sample>,
    /// The intervals that they name by number; others have no bytes.
    pub intervals: Vec<IntervalInfo>,
}

/// Functions that touch memory for their callers: those of libc that fill or copy it, and malloc's own.
const TOUCH_FOR_OTHERS: &str = r"^_*(mem(p?cpy|set|move)|str(n?cpy|dup))(_[a-z0-9_]+)?$|^(_int_(malloc|realloc|memalign)|sysmalloc|tcache_init|__libc_(malloc|calloc|realloc))";

impl Profile {
    /// Moves the pages out of the samples: a sum of both would have memory twice.
    pub(crate) fn set_pages_apart(&mut self) {
        let heaps = &mut self.vm.heaps;
        let is_pages = |heap: &Heap| heap.kind == Some(HeapKind::Pages);
        let Some(&id) = heaps.iter().find(|it| is_pages(it.1)).map(|it| it.0) else {
            return;
        };
        self.pages.heap = heaps.remove(&id).map(|heap| (id, heap));
        self.vm.intervals.remove(&id);
        let is_kept: Vec<bool> = (self.samples.iter()).map(|it| it.heap != id).collect();
        let pages = self.samples.iter().filter(|it| it.heap == id);
        self.pages.samples = pages.collect();
        self.keep_rows(&is_kept);
        self.set_intervals_apart();
    }

    /// Intervals of pages alone say nothing of the other samples, nor do those of others of pages.
    fn set_intervals_apart(&mut self) {
        let count = self.intervals.len();
        let used = |samples: &mut dyn Iterator<Item = Sample>| {
            let mut is_used = vec![false; count];
            for sample in samples {
                if let Some(is_used) = is_used.get_mut(usize::from(sample.interval)) {
                    *is_used = true;
                }
            }
            is_used
        };
        let of_pages = used(&mut self.pages.samples.iter().copied());
        let of_others = used(&mut self.samples.iter());
        self.pages.intervals = self.intervals.clone();
        let of_heaps = self.vm.intervals.values().flatten();
        let others: Vec<u64> = of_heaps.map(|info| info.interval_bytes).collect();
        for index in 0..count {
            if !of_pages[index] {
                self.pages.intervals[index].interval_bytes = 0;
            }
            let is_some_heaps = u16::try_from(index).is_ok_and(|it| self.reach.is_of_heaps(it));
            let info = &mut self.intervals[index];
            if is_some_heaps && !of_others[index] && !others.contains(&info.interval_bytes) {
                info.interval_bytes = 0;
            }
        }
    }

    /// A profile of the same process whose samples are its pages: each is an allocation that was made when the page was touched
    /// first, and freed when it was found to be gone.
    pub fn of_pages(&self) -> Self {
        let mut profile = Self {
            intervals: self.pages.intervals.clone(),
            reach: Reach::of_other_heaps(self.pages.intervals.len()),
            own_cost: self.own_cost,
            ..self.without_samples()
        };
        let known = profile.intervals.iter().filter(|it| it.interval_bytes != 0);
        // They are all in force at any time; the longest one may miss most.
        let longest = known.max_by_key(|it| it.interval_bytes);
        profile.interval_history = longest.copied().into_iter().collect();
        if profile.charging.allocators.is_none() && profile.charging.skips_wrappers {
            profile.charging.allocators = Regex::new(TOUCH_FOR_OTHERS).ok();
        }
        for &page in &self.pages.samples {
            profile.samples.push(page);
        }
        profile.vm.heaps.clear();
        profile.vm.heaps.extend(self.pages.heap.clone());
        profile
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::IntervalInfo;
    use allocsample_record::{SampleId, Sampling};

    #[test]
    fn pages_are_in_a_profile_of_their_own() {
        const JAVA: HeapId = HeapId(1);
        const OF_PAGES: HeapId = HeapId(2);
        let mut profile = Profile::default();
        for (id, kind) in [(JAVA, HeapKind::Traced), (OF_PAGES, HeapKind::Pages)] {
            let heap = Heap {
                name: "any".to_owned(),
                kind: Some(kind),
                exact_bytes: 0,
            };
            profile.vm.heaps.insert(id, heap);
        }
        for (id, heap) in (1..).zip([HeapId::MALLOC, OF_PAGES, JAVA, OF_PAGES]) {
            let id = SampleId(id);
            profile.samples.push(Sample {
                id,
                heap,
                ..Sample::default()
            });
        }
        profile.set_pages_apart();
        let ids = |profile: &Profile| -> Vec<u64> {
            profile.samples.iter().map(|sample| sample.id.0).collect()
        };
        assert_eq!(ids(&profile), [1, 3]);
        assert!(profile.vm.heaps.keys().eq([&JAVA]));
        let pages = profile.of_pages();
        assert_eq!(ids(&pages), [2, 4]);
        assert!(pages.vm.heaps.keys().eq([&OF_PAGES]));
        // The first numbers are those of malloc's intervals.
        let of = |interval_bytes| IntervalInfo {
            time_ns: 0,
            sampling: Sampling::Poisson,
            interval_bytes,
            seed: 0,
        };
        profile.pages.intervals = vec![of(0), of(0), of(4096 * 60)];
        assert_eq!(profile.of_pages().interval_bytes(), 4096 * 60);
        assert!(
            Regex::new(TOUCH_FOR_OTHERS)
                .unwrap()
                .is_match("__memcpy_avx512_unaligned_erms")
        );
        assert_eq!(ids(&Profile::default().of_pages()), []);
    }
}
