//! Whether the sampled pages are as much memory as the kernel counts.

use allocsample_profile::{MemoryTotals, Profile, Weights};
use allocsample_sampling::Estimate;

use crate::units;

/// The sampled pages at the peak of anonymous memory, beside that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PageAudit {
    /// What the pages that were resident then stand for.
    pub estimate: Estimate,
    /// Anonymous memory by the kernel, the agent's own included.
    pub anonymous_bytes: f64,
    /// Samples, of pages that are gone, too.
    pub samples: usize,
}

impl PageAudit {
    /// `None`: no pages were sampled, or nobody read how much memory there was.
    pub fn of(profile: &Profile) -> Option<Self> {
        profile.pages.heap.as_ref()?;
        let readings = profile.memory.iter().map(|map| map.totals);
        let peak: MemoryTotals = readings.max_by_key(|totals| totals.anonymous_bytes)?;
        let mut weights = Weights::of_pages(profile);
        let pages = profile.pages.samples.iter();
        let live = pages.filter(|page| page.is_live_at(peak.time_ns));
        let mut estimate = Estimate::ZERO;
        for page in live {
            estimate += weights.get(page).0;
        }
        Some(Self {
            estimate,
            anonymous_bytes: peak.anonymous_bytes as f64,
            samples: profile.pages.samples.len(),
        })
    }

    /// In words, with a warning if the two are further apart than chance and the usual bias bring them.
    pub fn line(&self) -> String {
        /// Standard errors.
        const CHANCE: f64 = 4.0;
        /// What the kernel touches, what was there before, and what the agent has, of most programs (docs/pages.md).
        const USUAL: f64 = 0.1;
        let figures = format!(
            "{} resident at the peak by {} sampled page faults, where the kernel counts {} of anonymous memory",
            units::bytes_with_error(&self.estimate),
            units::count(self.samples as f64),
            units::bytes(self.anonymous_bytes),
        );
        let chance = CHANCE * self.estimate.stderr().unwrap_or(f64::INFINITY);
        let (least, most) = (
            self.estimate.value() - chance,
            self.estimate.value() + chance,
        );
        if least > self.anonymous_bytes * (1.0 + USUAL) {
            format!(
                "warning: pages: {figures}: pages were copied after a fork, or given back and touched again unseen"
            )
        } else if most < self.anonymous_bytes * (1.0 - USUAL) {
            format!(
                "warning: pages: {figures}: the rest was touched in system calls or before the recording, or is in huge pages, which are seldom sampled"
            )
        } else {
            format!("pages: {figures}; see them with --heap pages")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{
        Freed, Heap, HeapId, HeapKind, IntervalInfo, MemoryMap, Sample, Sampling, ThreadId,
    };

    const PAGES: HeapId = HeapId(3);

    /// One page in 64, touched at 10, 20, 30, of which the second one was given back at 25.
    fn profile() -> Profile {
        let mut profile = Profile::default();
        let heap = Heap {
            name: "pages".to_owned(),
            kind: Some(HeapKind::Pages),
            exact_bytes: 0,
        };
        profile.pages.heap = Some((PAGES, heap));
        profile.pages.intervals = vec![IntervalInfo {
            time_ns: 0,
            sampling: Sampling::Poisson,
            interval_bytes: allocsample_sampling::Interval::of_one_in(64, 4096)
                .unwrap()
                .bytes(),
            seed: 0,
        }];
        for time_ns in [10, 20, 30] {
            let mut page = Sample {
                time_ns,
                size: 4096,
                heap: PAGES,
                points: 1,
                ..Sample::default()
            };
            if time_ns == 20 {
                page.set_freed(Freed {
                    time_ns: 25,
                    thread: ThreadId(0),
                });
            }
            profile.pages.samples.push(page);
        }
        for (time_ns, anonymous_bytes) in [(15, 700_000), (22, 900_000), (40, 800_000)] {
            profile.memory.push(MemoryMap {
                totals: MemoryTotals {
                    time_ns,
                    anonymous_bytes,
                    ..MemoryTotals::default()
                },
                ..MemoryMap::default()
            });
        }
        profile
    }

    #[test]
    fn pages_that_were_resident_at_the_peak_are_compared_with_it() {
        let audit = PageAudit::of(&profile()).unwrap();
        let expected = 2.0 * 64.0 * 4096.0;
        assert!(
            (audit.estimate.value() / expected - 1.0).abs() < 1e-5,
            "{audit:?}"
        );
        assert_eq!(audit.anonymous_bytes, 900_000.0);
        assert_eq!(audit.samples, 3);
        let line = audit.line();
        assert!(
            line.starts_with("pages: 0.5 MiB (0.1 to 1.9) resident"),
            "{line}"
        );
        assert!(line.contains("3 sampled page faults"), "{line}");
        assert!(line.contains("879 KiB of anonymous memory"), "{line}");
    }

    #[test]
    fn a_difference_beyond_chance_is_a_warning() {
        let audit = PageAudit::of(&profile()).unwrap();
        let with = |anonymous_bytes: f64| PageAudit {
            anonymous_bytes,
            ..audit
        };
        let (value, error) = (audit.estimate.value(), audit.estimate.stderr().unwrap());
        let most = value + 4.0 * error;
        assert!(with(most).line().starts_with("pages: "));
        let line = with(most * 1.2).line();
        assert!(
            line.starts_with("warning: pages: ") && line.ends_with("seldom sampled"),
            "{line}"
        );
        // Many samples, so that chance is small.
        let mut many = profile();
        for _ in 0..8 {
            let again = many.pages.samples.clone();
            many.pages.samples.extend(again);
        }
        let line = PageAudit::of(&many).unwrap().line();
        assert!(
            line.starts_with("warning: pages: ") && line.ends_with("unseen"),
            "{line}"
        );
    }

    #[test]
    fn without_pages_or_readings_nothing_is_compared() {
        let mut without = profile();
        without.pages.heap = None;
        assert_eq!(PageAudit::of(&without), None);
        let mut unread = profile();
        unread.memory.clear();
        assert_eq!(PageAudit::of(&unread), None);
    }
}
