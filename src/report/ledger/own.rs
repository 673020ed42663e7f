//! What allocators count themselves, beside the estimate from the samples at the same moment.

use std::collections::BTreeMap;

use allocsample_profile::{HeapId, Note, OwnFigure, Profile};
use allocsample_sampling::Estimate;

use crate::shares::{Live, live_at};

/// One allocator's own figures, as it was asked for them nearest in time to a reading.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct OwnCount {
    /// The heap in words.
    pub name: String,
    /// When it was asked, CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Its figures.
    pub bytes: BTreeMap<OwnFigure, u64>,
    /// Live blocks at that time, estimated from the samples.
    pub live: Estimate,
    /// The same with every size rounded up as the allocator does it, or at most does it.
    pub live_rounded: Estimate,
    /// Whether these are the allocator's sizes. Otherwise it rounds them up by less.
    pub is_rounding_known: bool,
    /// The least and the most that blocks may take with what their sizes are rounded up by: at that time, or a moment earlier, because
    /// the answer may be as old.
    pub bounds: [f64; 2],
}

/// How an own count and the estimate agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Agreement {
    /// Their difference is explained by the error of the estimate and by how the allocator counts.
    Reconciled,
    /// The allocator counts more blocks than the samples can stand for.
    NotSampled,
    /// The samples stand for more than the allocator has.
    TooMany,
    /// The allocator does not count its blocks, and the samples stand for no more than the memory that it has.
    Fits,
}

impl Agreement {
    /// The name for scripts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reconciled => "reconciled",
            Self::NotSampled => "not_sampled",
            Self::TooMany => "too_many",
            Self::Fits => "fits",
        }
    }
}

impl OwnCount {
    /// One of the figures, if the allocator knows it.
    pub fn of(&self, figure: OwnFigure) -> Option<u64> {
        self.bytes.get(&figure).copied()
    }

    /// An allocator also counts free blocks in caches of threads, and those that are older than the recording. So the estimate may be
    /// lower by more than it may be higher.
    pub fn agreement(&self) -> Option<Agreement> {
        const ERRORS: f64 = 4.0;
        const CACHED_PART: f64 = 0.05;
        const CACHED_BYTES: f64 = (1 << 20) as f64;
        /// Blocks that came and went between the two counts.
        const MOVED_PART: f64 = 0.01;
        let [least, most] = self.bounds;
        let error = ERRORS * self.live_rounded.stderr().unwrap_or(0.0);
        let Some(allocated) = self.of(OwnFigure::Allocated) else {
            let resident = self.of(OwnFigure::Resident)? as f64;
            return Some(match least - error > resident * (1.0 + MOVED_PART) {
                true => Agreement::TooMany,
                false => Agreement::Fits,
            });
        };
        let allocated = allocated as f64;
        Some(if allocated < least - error - MOVED_PART * allocated {
            Agreement::TooMany
        } else if allocated > most + error + CACHED_PART * allocated + CACHED_BYTES {
            Agreement::NotSampled
        } else {
            Agreement::Reconciled
        })
    }
}

/// The counts of all allocators that were asked, each nearest to this time.
pub(super) fn counts(profile: &Profile, time_ns: u64) -> Vec<OwnCount> {
    let mut nearest: BTreeMap<HeapId, u64> = BTreeMap::new();
    let figures = || {
        let values = profile.vm.values.iter();
        values.filter_map(|it| Some((it, OwnFigure::from_statistic(it.statistic)?)))
    };
    for (value, _) in figures() {
        let at = nearest.entry(value.heap).or_insert(value.time_ns);
        if value.time_ns.abs_diff(time_ns) < at.abs_diff(time_ns) {
            *at = value.time_ns;
        }
    }
    // More than a process has; a file can claim any number, and each takes a pass through all samples.
    const MOST_HEAPS: usize = 8;
    let nearest = nearest.into_iter().take(MOST_HEAPS);
    let counts = nearest.map(|(heap, time_ns)| {
        let of_heap = figures().filter(|(it, _)| it.heap == heap && it.time_ns == time_ns);
        // The time is that after the answer, for which the allocator may need that long.
        const OLDEST_NS: u64 = 100_000_000;
        let live_at = |at_ns| live_at(profile, at_ns).filter(|it| it.sample.heap == heap);
        let rounding = Rounding::of(profile, heap);
        let earlier_ns = time_ns.saturating_sub(OLDEST_NS);
        let sum = |at_ns, part: &dyn Fn(&Live) -> Estimate| {
            live_at(at_ns).fold(Estimate::default(), |sum, it| sum + part(&it))
        };
        let least = |live: &Live| rounding.least(live);
        let most = |live: &Live| rounding.most(live);
        let name = profile.vm.heaps.get(&heap).map(|it| it.name.clone());
        let live_rounded = sum(time_ns, &most);
        OwnCount {
            name: name.unwrap_or_else(|| "malloc".to_owned()),
            time_ns,
            bytes: of_heap.map(|(it, figure)| (figure, it.value)).collect(),
            live: sum(time_ns, &|it| it.bytes),
            live_rounded,
            is_rounding_known: rounding == Rounding::Jemalloc,
            bounds: [
                (sum(time_ns, &least).value()).min(sum(earlier_ns, &least).value()),
                (live_rounded.value()).max(sum(earlier_ns, &most).value()),
            ],
        }
    });
    counts.collect()
}

/// How an allocator rounds sizes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounding {
    Jemalloc,
    /// To a multiple of 16, or by a quarter at most. This is true of gperftools' tcmalloc 2.10 for each size up to 1.2 million
    /// bytes (`malloc_usable_size`), whose classes depend on how it was built. mimalloc has eight classes in each doubling.
    ByAQuarter,
}

impl Rounding {
    fn of(profile: &Profile, heap: HeapId) -> Self {
        let is_tcmalloc = |note: Note, path: &str| {
            let file = path.rsplit('/').next().unwrap_or(path);
            note == Note::NextAllocator && file.contains("tcmalloc")
        };
        let mut notes = profile.notes.iter();
        let is_in_file = |heap| {
            let heap = profile.vm.heaps.get(&heap);
            let rounds = |name: &str| {
                ["tcmalloc in ", "mimalloc in "]
                    .iter()
                    .any(|it| name.starts_with(it))
            };
            heap.is_some_and(|heap| rounds(&heap.name))
        };
        match heap {
            _ if is_in_file(heap) => Self::ByAQuarter,
            HeapId::MALLOC if notes.any(|(note, path)| is_tcmalloc(*note, path)) => {
                Self::ByAQuarter
            }
            _ => Self::Jemalloc,
        }
    }

    /// What a sampled block and those that it stands for take at least.
    fn least(self, live: &Live) -> Estimate {
        match self {
            Self::Jemalloc => self.most(live),
            Self::ByAQuarter => live.bytes,
        }
    }

    /// The same, at most.
    fn most(self, live: &Live) -> Estimate {
        let size = live.sample.size.max(1);
        let taken = match self {
            Self::Jemalloc => class_of(size),
            Self::ByAQuarter => (size.checked_next_multiple_of(16).unwrap_or(size))
                .max(size.saturating_add(size / 4)),
        };
        let (factor, bytes) = (taken as f64 / size as f64, live.bytes);
        let variance = bytes.stderr().map(|it| (it * factor).powi(2));
        Estimate::from_parts(bytes.value() * factor, variance, bytes.samples())
    }
}

/// jemalloc's size classes (since 4.0, on 64-bit machines): 8, multiples of 16 up to 128, and then four in each doubling.
fn class_of(size: u64) -> u64 {
    match size {
        0..=8 => 8,
        9..=128 => size.next_multiple_of(16),
        _ => {
            let step = 1 << (size - 1).ilog2().saturating_sub(2);
            size.checked_next_multiple_of(step).unwrap_or(size)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{IntervalInfo, Sample, Sampling, Value};

    fn value(time_ns: u64, heap: HeapId, figure: OwnFigure, value: u64) -> Value {
        Value {
            time_ns,
            heap,
            statistic: figure.statistic(),
            value,
        }
    }

    #[test]
    fn the_count_nearest_to_the_reading_is_taken_for_every_heap() {
        let mut profile = Profile::default();
        assert_eq!(counts(&profile, 5), []);
        let other = HeapId(3);
        profile.vm.values = vec![
            value(10, HeapId::MALLOC, OwnFigure::Allocated, 100),
            value(10, HeapId::MALLOC, OwnFigure::Resident, 150),
            value(20, HeapId::MALLOC, OwnFigure::Allocated, 200),
            value(40, other, OwnFigure::Allocated, 7),
        ];
        let found = counts(&profile, 17);
        let figures: Vec<_> = found
            .iter()
            .map(|it| (&*it.name, it.time_ns, it.of(OwnFigure::Allocated)))
            .collect();
        assert_eq!(
            figures,
            [("malloc", 20, Some(200)), ("malloc", 40, Some(7))]
        );
        assert_eq!(counts(&profile, 12)[0].of(OwnFigure::Resident), Some(150));
    }

    #[test]
    fn without_a_count_of_blocks_the_samples_must_fit_into_the_memory() {
        let count = |resident: Option<u64>, least: f64| OwnCount {
            name: "mimalloc in own".to_owned(),
            time_ns: 0,
            bytes: resident
                .map(|it| (OwnFigure::Resident, it))
                .into_iter()
                .collect(),
            live: Estimate::default(),
            live_rounded: Estimate::from_parts(1e6, Some(1e4 * 1e4), 100),
            is_rounding_known: false,
            bounds: [least, 1.25 * least],
        };
        // A hundredth may have moved, and the error is four times 10,000.
        for (least, agreement) in [
            (0.0, Agreement::Fits),
            (1_049_000.0, Agreement::Fits),
            (1_051_000.0, Agreement::TooMany),
        ] {
            let found = count(Some(1_000_000), least).agreement();
            assert_eq!(found, Some(agreement), "{least}");
        }
        assert_eq!(count(None, 1e6).agreement(), None);
    }

    #[test]
    fn sizes_are_rounded_up_as_jemalloc_does_it() {
        let classes = [
            (1, 8),
            (9, 16),
            (100, 112),
            (128, 128),
            (129, 160),
            (256, 256),
            (257, 320),
            (1025, 1280),
            (4096, 4096),
            (4097, 5120),
            (14_337, 16_384),
            (1 << 20, 1 << 20),
            ((1 << 20) + 1, 5 << 18),
        ];
        for (size, class) in classes {
            assert_eq!(class_of(size), class, "{size}");
        }
    }

    #[test]
    fn sizes_that_are_rounded_in_an_unknown_way_have_bounds() {
        let mut profile = Profile::default();
        profile.vm.values = vec![value(10, HeapId::MALLOC, OwnFigure::Allocated, 100)];
        profile.intervals.push(IntervalInfo {
            time_ns: 0,
            sampling: Sampling::Poisson,
            interval_bytes: 1,
            seed: 1,
        });
        for size in [1, 16, 100, 1000] {
            profile.samples.push(Sample {
                size,
                ..Sample::default()
            });
        }
        let count = || counts(&profile, 10).remove(0);
        assert!(count().is_rounding_known);
        assert_eq!(count().bounds, [8.0 + 16.0 + 112.0 + 1024.0; 2]);
        (profile.notes).push((Note::NextAllocator, "/lib/libtcmalloc.so.4".to_owned()));
        let count = counts(&profile, 10).remove(0);
        assert!(!count.is_rounding_known);
        // Each is alone in its interval.
        assert_eq!(count.bounds, [1117.0, 16.0 + 20.0 + 125.0 + 1250.0]);
    }

    #[test]
    fn an_estimate_agrees_within_its_error_and_the_allocators_rounding() {
        const MIB: u64 = 1 << 20;
        let agreement_of = |own_mib: u64, live_mib: u64, error_mib: u64, earlier_mib: u64| {
            let (live, error) = ((live_mib * MIB) as f64, (error_mib * MIB) as f64);
            let count = OwnCount {
                name: "jemalloc".to_owned(),
                time_ns: 0,
                bytes: BTreeMap::from([(OwnFigure::Allocated, own_mib * MIB)]),
                live: Estimate::default(),
                live_rounded: Estimate::from_parts(live, Some(error * error), 9),
                is_rounding_known: true,
                bounds: [f64::min, f64::max].map(|of| of(live, (earlier_mib * MIB) as f64)),
            };
            count.agreement()
        };
        let agreement = |own, live, error| agreement_of(own, live, error, live);
        assert_eq!(agreement(100, 100, 0), Some(Agreement::Reconciled));
        assert_eq!(agreement(100, 95, 0), Some(Agreement::Reconciled));
        assert_eq!(agreement(100, 90, 1), Some(Agreement::Reconciled));
        assert_eq!(agreement(100, 89, 1), Some(Agreement::NotSampled));
        assert_eq!(agreement(100, 105, 1), Some(Agreement::Reconciled));
        assert_eq!(agreement(100, 106, 1), Some(Agreement::TooMany));
        // It grew or shrank while the allocator was asked.
        assert_eq!(agreement_of(100, 130, 1, 90), Some(Agreement::Reconciled));
        assert_eq!(agreement_of(100, 70, 1, 110), Some(Agreement::Reconciled));
        assert_eq!(agreement_of(100, 130, 1, 120), Some(Agreement::TooMany));
    }
}
